//! The signals, tokens and timeout that may stop a run from outside while its work runs (R7).

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::task::Context as TaskContext;
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use crate::abort::handle::{AbortSignal, CANCELLED, Link};
use crate::abort::{AbortNode, Stop};
use crate::run::panic::caught;
use crate::{Error, Result, RunContext};

/// The signals, tokens and timeout of a run. Most runs have none of these, or a single signal.
#[derive(Default)]
pub(crate) struct Watch {
    /// The first signal. Dropping the link deregisters the run from the signal.
    link: Option<Link>,
    more: Option<Box<More>>,
}

#[derive(Default)]
struct More {
    links: Vec<Link>,
    tokens: Vec<BoxFuture<'static, ()>>,
    timer: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Watch {
    pub(crate) fn add(&mut self, signal: AbortSignal, run: &RunContext) {
        match signal.link(run) {
            Ok(link) if self.link.is_none() => self.link = Some(link),
            Ok(link) => self.more.get_or_insert_default().links.push(link),
            Err(token) => self.more.get_or_insert_default().tokens.push(Box::pin(token.cancelled_owned())),
        }
    }

    /// Starts the timer that stops the run. Returns an error outside a tokio runtime, or if the runtime has no clock.
    pub(crate) fn timeout(&mut self, after: Duration) -> Result<()> {
        let no_clock = |why: &dyn Display| Error::new(format!("a timeout of {after:?} needs tokio's clock: {why}"));
        Handle::try_current().map_err(|error| no_clock(&error))?;
        // `sleep` panics in a runtime that was built without a clock.
        let timer = caught(|| Box::pin(sleep(after))).map_err(|panic| no_clock(&panic))?;
        self.more.get_or_insert_default().timer = Some((after, timer));
        Ok(())
    }

    /// Stops the run if a token was canceled or the timeout has elapsed. Signals need no check: they stop the run
    /// themselves.
    ///
    /// # Errors
    ///
    /// Returns an error if the runtime that drives the timer has been shut down.
    #[inline]
    pub(crate) fn look(&mut self, node: &AbortNode, cx: &mut TaskContext<'_>) -> Result<()> {
        self.more.as_mut().map_or(Ok(()), |more| more.look(node, cx))
    }
}

impl More {
    fn look(&mut self, node: &AbortNode, cx: &mut TaskContext<'_>) -> Result<()> {
        if self.tokens.iter_mut().any(|token| token.as_mut().poll(cx).is_ready()) {
            self.tokens.clear();
            node.stop(Stop::aborted(CANCELLED));
        }
        if let Some((after, timer)) = &mut self.timer
            // The timer panics once its runtime has been shut down.
            && caught(|| timer.as_mut().poll(cx).is_ready())?
        {
            node.stop(Stop::TimedOut(*after));
            self.timer = None;
        }
        Ok(())
    }
}
