//! Middlewares that are bound to a run that they do not handle, and would therefore do nothing (M11).

use std::sync::Arc;

use crate::{Error, ErrorKind, Middleware, Result, RunContext, Runnable};

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

/// Returns the names of the guards that an instance binds to each of its runs.
///
/// ```
/// use emitree_runtime::{RunContext, guards_of, runnable_fn};
///
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// assert!(guards_of(&double).is_empty());
/// ```
#[must_use]
pub fn guards_of(runnable: &impl Runnable) -> Vec<String> {
    names_of_guards(runnable.middlewares())
}

/// Returns the names of the guards among middlewares.
pub(crate) fn names_of_guards(middlewares: &[Arc<dyn Middleware>]) -> Vec<String> {
    let guards = middlewares.iter().filter(|middleware| middleware.describe().is_guard());
    guards.map(|guard| guard.name().to_owned()).collect()
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
    ctx.warn_once(middleware.name(), || format!("the middleware {}", does_nothing(middleware, kind, name)));
    Ok(false)
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
