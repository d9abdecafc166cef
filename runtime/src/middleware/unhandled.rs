//! Middlewares that are bound to a run that they do not handle, and would therefore do nothing (M11).

use std::collections::HashSet;
use std::hash::BuildHasher;

use parking_lot::Mutex;

use crate::run::panic::isolated;
use crate::{AsInstance, Error, ErrorKind, Middleware, Result, RunContext, Runnable};

/// The maximum number of warnings that are remembered. After that, nothing is warned of any more, so that a program
/// that creates new instances for ever neither fills its log nor its memory.
const MAX_WARNINGS: usize = 1_000;

/// Checks that the guards among the middlewares of an instance handle its runs. Builders of instances call this
/// function, so that a mistake is found before the first run.
///
/// ```
/// use emitree_runtime::{Middleware, Result, RunContext, check_guards, runnable_fn};
///
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// assert!(check_guards(&double).is_ok());
/// ```
///
/// # Errors
///
/// Returns the error with which each run of the instance would end: a guard does not [handle](Middleware::handles) runs
/// of this kind and name.
pub fn check_guards(runnable: &impl Runnable) -> Result<()> {
    let kind = runnable.kind();
    let name = runnable.name();
    let mut unhandled = runnable.middlewares().iter().filter(|middleware| !middleware.handles(kind, name));
    unhandled
        .find(|middleware| middleware.describe().is_guard())
        .map_or(Ok(()), |guard| Err(refused(&**guard, kind, name)))
}

/// Returns `true` if a middleware that is bound to this run handles it. Logs a warning otherwise, once for each
/// instance.
///
/// # Errors
///
/// Returns an error if the middleware does not handle the run, and is a guard: a guard that guards nothing is a mistake
/// that must not go unnoticed.
pub(crate) fn check_bound(middleware: &dyn Middleware, ctx: &RunContext) -> Result<bool> {
    let kind = ctx.kind();
    let name = ctx.name();
    if middleware.handles(kind, name) {
        return Ok(true);
    }
    if middleware.describe().is_guard() {
        return Err(refused(middleware, kind, name));
    }
    // The creator of a run may be made for this run, so the instance is told apart by the creator of its emitter.
    let instance = ctx.instance_emitter().creator().map_or(0, |creator| creator.id());
    if is_first((instance, kind, name, middleware.name())) {
        let what = does_nothing(middleware, kind, name);
        // A `tracing` subscriber is user code, and may panic.
        isolated(|| tracing::warn!("the middleware {what}"));
    }
    Ok(false)
}

/// Returns `true` for the first of equal keys.
pub(crate) fn is_first(key: impl std::hash::Hash) -> bool {
    static WARNED: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
    let mut warned = WARNED.lock();
    let warned = warned.get_or_insert_default();
    let hash = warned.hasher().hash_one(key);
    warned.len() < MAX_WARNINGS && warned.insert(hash)
}

fn refused(guard: &dyn Middleware, kind: &str, name: &str) -> Error {
    Error::of_kind(ErrorKind::Invalid, format!("the guard {}", does_nothing(guard, kind, name)))
}

fn does_nothing(middleware: &dyn Middleware, kind: &str, name: &str) -> String {
    let own = middleware.name();
    let summary = middleware.describe().summary();
    format!(
        "`{own}` ({summary}) is bound to {kind} `{name}`, which it does not handle, so it does nothing: to bind it to \
         the runs below as well, write `.middleware(for_tree(…))`"
    )
}
