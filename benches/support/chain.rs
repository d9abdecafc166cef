//! A chain of runs that is ended by abort. Each run spawns the next run as a task.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Instant;

use emitree::abort::AbortHandle;
use emitree::emitter::Creator;
use emitree::{Emitter, Error, Result, RunContext, Runnable};
use tokio::sync::mpsc;

use crate::support::Case;

/// The runnable of the chain. Each run spawns the next run, and then waits forever. The innermost run sends a message
/// instead of spawning a run.
struct Link {
    emitter: Emitter,
    this: Weak<Self>,
    innermost: mpsc::UnboundedSender<()>,
}

impl Runnable for Link {
    type Input = usize;
    type Output = ();

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, left: &usize, ctx: &RunContext) -> Result<()> {
        match (left.checked_sub(1), self.this.upgrade()) {
            (Some(left), Some(this)) => drop(ctx.spawn(this.run_shared(left))),
            _ => self.innermost.send(()).map_err(Error::from)?,
        }
        pending().await
    }
}

/// A case that starts a chain of runs, aborts the outermost run, and waits until that run has ended. All of this is
/// timed.
pub(crate) fn aborted(levels: usize) -> impl Case {
    let (innermost, mut waiting) = mpsc::unbounded_channel();
    let creator = Creator::new("Tool", "link");
    let emitter = Emitter::new().child_builder("tool.link").creator(creator).build().expect("a valid name");
    let link = Arc::new_cyclic(|this| Link { emitter, this: Weak::clone(this), innermost });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    move |n| {
        let start = Instant::now();
        for _ in 0..n {
            let handle = AbortHandle::new();
            let run = link.run_shared(levels - 1).abort_on(&handle);
            let ended = runtime.block_on(async {
                let outermost = tokio::spawn(run);
                waiting.recv().await;
                handle.abort("enough");
                outermost.await.expect("it does not panic")
            });
            assert!(ended.is_err(), "an aborted run ends");
        }
        start.elapsed()
    }
}
