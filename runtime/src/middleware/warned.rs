//! Warnings that are logged once, however often their cause occurs.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash};

use parking_lot::Mutex;

use crate::run::panic::isolated;
use crate::{AsInstance, RunContext};

/// The maximum number of warnings that are remembered. After that, nothing is warned of any more, so that a program
/// that creates new instances for ever neither fills its log nor its memory.
const MAX_WARNINGS: usize = 1_000;

/// Returns `true` for the first of equal keys.
pub(crate) fn is_first(key: impl Hash) -> bool {
    static WARNED: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
    let mut warned = WARNED.lock();
    let warned = warned.get_or_insert_default();
    let hash = warned.hasher().hash_one(key);
    warned.len() < MAX_WARNINGS && warned.insert(hash)
}

impl RunContext {
    /// Logs a warning about a mistake in the program, once for each instance. `about` names the mistake: the runs of an
    /// instance log one warning for each name. Instances whose emitter has no creator are told apart by kind and name
    /// only. At most 1,000 warnings are logged in a process.
    ///
    /// A warning names the run and ends with the line to write. The function is called only if the warning is logged.
    ///
    /// ```
    /// use emitree_runtime::{Result, RunContext, Runnable, runnable_fn};
    ///
    /// fn needs_tenant(ctx: &RunContext) -> Result<()> {
    ///     if ctx.get("tenant").is_none() {
    ///         let name = ctx.name();
    ///         ctx.warn_once("tenant", || format!("`{name}` has no tenant: write `.context(json!({{\"tenant\": …}}))`"));
    ///     }
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }).middleware(needs_tenant);
    /// assert_eq!(double.run(2).await?, 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn warn_once(&self, about: &str, text: impl FnOnce() -> String) {
        // The creator of a run may be made for this run, so the instance is told apart by the creator of its emitter.
        let instance = self.instance_emitter().creator().map_or(0, |creator| creator.id());
        if is_first((instance, self.kind(), self.name(), about)) {
            // The text and the `tracing` subscriber are user code, and may panic.
            isolated(|| tracing::warn!("{}", text()));
        }
    }
}
