//! What may stop a run from outside while its work is done: signals, tokens, a time-out (R7).

use std::future::Future;
use std::pin::Pin;
use std::task::Context as TaskContext;
use std::time::Duration;

use futures_core::future::BoxFuture;
use smallvec::SmallVec;
use tokio::time::{Sleep, sleep};

use crate::abort::{AbortSignal, CANCELLED, Link, Stop};
use crate::conduct::calm;
use crate::{Result, RunContext};

/// What a run watches. Most watch nothing.
#[derive(Default)]
pub(crate) struct Watch {
    /// Signals need to know of the run; dropping it takes the run away from below them.
    links: SmallVec<[Link; 1]>,
    tokens: Vec<BoxFuture<'static, ()>>,
    timer: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Watch {
    pub(crate) fn add(&mut self, signal: AbortSignal, run: &RunContext) {
        match signal.link(run) {
            Ok(link) => self.links.push(link),
            Err(token) => self.tokens.push(Box::pin(token.cancelled_owned())),
        }
    }

    /// Starts the clock.
    pub(crate) fn timeout(&mut self, after: Duration) -> Result<()> {
        // Panics where tokio has no clock.
        self.timer = Some((after, calm(|| Ok(Box::pin(sleep(after))))?));
        Ok(())
    }

    /// Looks, and stops the run if it has to stop.
    pub(crate) fn look(&mut self, run: &RunContext, cx: &mut TaskContext<'_>) {
        if self.tokens.iter_mut().any(|token| token.as_mut().poll(cx).is_ready()) {
            self.tokens.clear();
            run.node().stop(Stop::aborted(CANCELLED));
        }
        if let Some((after, timer)) = &mut self.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            run.node().stop(Stop::TimedOut(*after));
            self.timer = None;
        }
    }
}
