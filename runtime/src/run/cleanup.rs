//! Ends the tasks and the children of a run whose work is over (R13).
//!
//! 1. The tasks are aborted and awaited before the children are looked up: tasks may begin runs until they have ended.
//! 2. A child that has children itself hands them over to the run that ends it, and waits for them. So a chain of runs
//!    of any length is ended from one list, the innermost run first, and not by recursion.
//! 3. A child with children is driven once to find them, and again only after they have ended.

use std::task::{Context as TaskContext, Poll, ready};

use tokio::task::JoinSet;

use crate::run::drive::Driven;
use crate::run::lease::Driver;
use crate::run::panic::discard;
use crate::{Error, Result, RunContext};

/// If a run is ended by its parent, the run adds its children to this list of the parent.
pub(crate) type Deferred<'a> = Option<&'a mut Vec<RunContext>>;

/// The tasks and children that must end before a run continues with its result.
pub(crate) struct Cleanup<O> {
    result: Option<Result<O>>,
    tasks: Option<JoinSet<()>>,
    /// The children, which are ended from the last to the first. `None` until they have been looked up.
    below: Option<Vec<RunContext>>,
}

impl<O> Cleanup<O> {
    pub(crate) fn new(run: &RunContext, result: Result<O>) -> Self {
        let mut tasks = run.shared().tasks.get().and_then(|tasks| tasks.lock().take());
        if let Some(tasks) = &mut tasks {
            tasks.abort_all();
        }
        Self { result: Some(result), tasks, below: None }
    }

    /// Aborts the children after the tasks have ended, waits for the children, and returns the result.
    pub(crate) fn poll(
        &mut self,
        run: &RunContext,
        handed_over: Deferred<'_>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<O>> {
        ready!(self.poll_tasks(run, cx));
        let below = match &mut self.below {
            Some(below) => below,
            none => none.insert(ready!(abort_below(run, cx))),
        };
        match handed_over {
            None => ready!(end_all(run, below, cx)),
            // The parent, which is ending this run, ends this run's children first (invariant 2).
            Some(list) => {
                let ended = below.extract_if(.., |run| run.has_ended()).collect::<Vec<_>>();
                ended.into_iter().for_each(discard);
                if !below.is_empty() {
                    list.append(&mut below.clone());
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(
            self.result.take().unwrap_or_else(|| Err(Error::new("the run was polled again after it had ended"))),
        )
    }

    /// Waits for the tasks, unless the delivery is cut.
    fn poll_tasks(&mut self, run: &RunContext, cx: &mut TaskContext<'_>) -> Poll<()> {
        while let Some(tasks) = &mut self.tasks {
            if run.delivery().is_cut() {
                break;
            }
            match ready!(tasks.poll_join_next(cx)) {
                Some(ended) => discard(ended),
                None => break,
            }
        }
        self.tasks = None;
        Poll::Ready(())
    }
}

/// Aborts the children of a run, once all of them have been made.
fn abort_below(run: &RunContext, cx: &mut TaskContext<'_>) -> Poll<Vec<RunContext>> {
    let below = ready!(run.node().below.poll_all(cx));
    for child in &below {
        // A stop of this run may have missed a child that is beginning on another thread and has not checked its parent
        // yet. The stop came first, so its reason is passed on before this abort's reason (R7).
        child.node().follow(run.node());
        child.abort("the parent run has ended");
    }
    Poll::Ready(below)
}

/// Ends the runs of a list, from the last to the first. Children that a run hands over are ended before that run.
fn end_all(run: &RunContext, runs: &mut Vec<RunContext>, cx: &mut TaskContext<'_>) -> Poll<()> {
    while let Some(child) = runs.last() {
        let mut before = Vec::new();
        match end(run, child, &mut before, cx) {
            // This may be the last handle of the run, and dropping it may drop user values.
            Driven::Over => discard(runs.pop()),
            Driven::Pending if !before.is_empty() => runs.append(&mut before),
            Driven::Pending | Driven::Elsewhere => return Poll::Pending,
        }
    }
    Poll::Ready(())
}

fn end(run: &RunContext, child: &RunContext, before: &mut Vec<RunContext>, cx: &mut TaskContext<'_>) -> Driven {
    let mut who = Driver::Parent;
    if run.delivery().is_cut() {
        child.delivery().cut();
        who = Driver::Supervisor;
    }
    child.drive_handing_over(who, Some(before), cx)
}
