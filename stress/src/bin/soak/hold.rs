//! Holds the future of a run as planned: awaits it, drops it, spawns it, or hands it out.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use emitree::{Result, RunContext};
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use crate::plan::{Holder, Then};
use crate::tree::Branch;

/// Holds a run as the plan requires. Returns its result if it was awaited to its end.
pub(crate) async fn hold(branch: &Arc<Branch>) -> Option<Result<u32>> {
    match branch.node.holder {
        Holder::Awaited => Some(branch.call().await),
        Holder::Dropped { polls } => poll_times(&mut Box::pin(branch.call()), polls).await,
        Holder::Spawned { is_awaited } => spawn(branch, is_awaited).await,
        Holder::Task { then } => spawn_apart(branch, then).await,
        Holder::Thread { polls, polls_there } => {
            let run = hand_out(branch, polls).await?;
            branch.shared.threads.do_soon(move || poll_idly(run, polls_there));
            None
        }
        Holder::Kept { polls } => {
            let run = hand_out(branch, polls).await?;
            branch.shared.keep(run);
            None
        }
    }
}

async fn spawn(branch: &Arc<Branch>, is_awaited: bool) -> Option<Result<u32>> {
    let (Some(ctx), true) = (RunContext::current(), has_runtime()) else { return Some(branch.call().await) };
    let task = ctx.spawn(branch.call_shared());
    if is_awaited { Some(task.await.and_then(|result| result)) } else { None }
}

async fn spawn_apart(branch: &Arc<Branch>, then: Then) -> Option<Result<u32>> {
    if !has_runtime() {
        return Some(branch.call().await);
    }
    let task = tokio::spawn(branch.call_shared());
    match then {
        Then::Awaited => task.await.ok(),
        Then::Detached => None,
        Then::AbortedAfter(yields) => {
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            task.abort();
            None
        }
    }
}

/// Returns `true` inside a tokio runtime, and `false` on a plain thread.
fn has_runtime() -> bool {
    Handle::try_current().is_ok()
}

/// Polls a run up to `polls` times, and returns it if it is not over.
async fn hand_out(branch: &Arc<Branch>, polls: u32) -> Option<BoxFuture<'static, ()>> {
    let run = branch.call_shared();
    let mut run: BoxFuture<'static, ()> = Box::pin(async { drop(run.await) });
    match poll_times(&mut run, polls).await {
        Some(()) => None,
        None => Some(run),
    }
}

/// Polls a future up to `polls` times, whether or not it was woken. Returns its output if it became ready.
async fn poll_times<F: Future + ?Sized>(future: &mut Pin<Box<F>>, mut polls: u32) -> Option<F::Output> {
    poll_fn(|cx| {
        let Some(left) = polls.checked_sub(1) else { return Poll::Ready(None) };
        polls = left;
        cx.waker().wake_by_ref();
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Polls a run up to `polls` times with a waker that does nothing, and drops the run.
pub(crate) fn poll_idly(mut run: BoxFuture<'static, ()>, polls: u32) {
    let mut cx = Context::from_waker(Waker::noop());
    let mut is_pending = || run.as_mut().poll(&mut cx).is_pending();
    for _ in 0..polls {
        // Ignores a panic, because the recording contains it.
        if !catch_unwind(AssertUnwindSafe(&mut is_pending)).unwrap_or(false) {
            return;
        }
    }
}
