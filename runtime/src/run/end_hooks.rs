//! What is called when a run is over, whether anybody listens or not.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::run::panic::{discard_all, isolated};
use crate::{RunContext, Status};

type EndHook = Box<dyn FnOnce(&RunContext, Status) + Send>;

/// Called once each, by whoever brings the run to its end.
#[derive(Default)]
pub(crate) struct EndHooks {
    list: Mutex<SmallVec<[EndHook; 1]>>,
    /// Whether there may be some: looked at first, and again when they have been called.
    is_due: AtomicBool,
}

impl EndHooks {
    fn add(&self, end: EndHook) {
        let mut list = self.list.lock();
        list.push(end);
        self.is_due.store(true, Ordering::Release);
    }

    #[inline]
    fn are_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    fn take(&self) -> SmallVec<[EndHook; 1]> {
        let mut list = self.list.lock();
        self.is_due.store(false, Ordering::Relaxed);
        std::mem::take(&mut *list)
    }

    /// Calls them, those too that are left meanwhile.
    pub(crate) fn call(&self, run: &RunContext, status: impl FnOnce() -> Status) {
        if !self.are_due() {
            return;
        }
        let status = status();
        while self.are_due() {
            self.take().into_iter().for_each(|end| isolated(|| end(run, status)));
        }
    }

    /// Drops those that come too late.
    pub(crate) fn release(&self) {
        if self.are_due() {
            discard_all(self.take());
        }
    }
}

impl RunContext {
    /// Has a function called once, when the run is over: after `finish`, in order of registration, and before whoever
    /// awaits the run gets its result. It can change nothing; a panic of its is logged.
    ///
    /// What is bound to a run calls this to count it, or to let go of what it holds for it: it is called however the
    /// run ends (R4), dropped and panicked ones too, and also if the run ends before `start` because something else
    /// could not be bound. Unlike a listener of `finish` it does not make the run emit anything. In a run that has
    /// ended it is dropped, and never called.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// /// Says how runs end.
    /// fn say(ctx: &RunContext) -> emitree_runtime::Result<()> {
    ///     ctx.on_end(|ctx, status| println!("{} after {:?}", status.as_str(), ctx.elapsed()));
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// assert_eq!(double.run(2).middleware(say).await?, 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_end(&self, f: impl FnOnce(&Self, Status) + Send + 'static) {
        self.bindings().end_hooks().add(Box::new(f));
        self.bound();
    }
}
