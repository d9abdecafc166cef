//! Values that start a run when they are dropped, and a guard that denies these runs.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use emitree_runtime::{Error, ErrorKind, RunContext, Runnable, runnable_fn};
use parking_lot::Mutex;

use crate::support::poll_once;

/// Starts a run when the last of its clones is dropped, and records the outcome.
#[derive(Clone)]
pub(crate) struct Starts(#[expect(dead_code, reason = "it is dropped")] Arc<AtDrop>);

struct AtDrop {
    above: RunContext,
    seen: Seen,
}

/// The outcomes of the runs that were started, and whether the run above had already ended.
pub(crate) type Seen = Arc<Mutex<Vec<(Started, bool)>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    Guarded,
    /// The run's parent had been aborted, so the run ended before the guard's decision.
    Aborted,
    Unguarded,
}

impl Starts {
    /// Returns a value whose drop starts a run, and records whether the run above has ended.
    pub(crate) fn below(above: &RunContext, seen: &Seen) -> Self {
        Self(Arc::new(AtDrop { above: above.clone(), seen: Arc::clone(seen) }))
    }
}

/// Binds a guard that denies the runs started by [`Starts`] values.
pub(crate) fn guard_against_starts(run: &RunContext) {
    run.bind_nested(|run: &RunContext| match run.name() {
        "attack" => Err(Error::denied("guard", "nobody starts this")),
        _ => Ok(()),
    });
}

impl Drop for AtDrop {
    fn drop(&mut self) {
        let has_ended = self.above.has_ended();
        let has_worked = AtomicBool::new(false);
        let attack = runnable_fn("attack", |(): (), _: RunContext| async {
            has_worked.store(true, Ordering::Relaxed);
            Ok(())
        });
        let polled = poll_once(&mut attack.run(()));
        let started = match polled {
            _ if has_worked.into_inner() => Started::Unguarded,
            Poll::Ready(Err(error)) if matches!(error.kind(), ErrorKind::Denied { .. }) => Started::Guarded,
            _ => Started::Aborted,
        };
        self.seen.lock().push((started, has_ended));
    }
}

#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Starts);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a planned failure")
    }
}

impl std::error::Error for Failure {}

impl fmt::Debug for Starts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Starts")
    }
}
