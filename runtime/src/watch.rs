//! What may stop a run from outside while its work is done: signals, tokens, a time-out (R7).

use std::future::Future;
use std::pin::Pin;
use std::task::Context as TaskContext;
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::time::{Sleep, sleep};

use crate::abort::{AbortSignal, CANCELLED, Link, Node, Stop};
use crate::conduct::calm;
use crate::{Result, RunContext};

/// What a run watches. Most watch nothing, or one signal.
#[derive(Default)]
pub(crate) struct Watch {
    /// A signal needs to know of the run; dropping the link takes the run away from below it.
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

    /// Starts the clock.
    pub(crate) fn timeout(&mut self, after: Duration) -> Result<()> {
        // Panics where tokio has no clock.
        let timer = calm(|| Ok(Box::pin(sleep(after))))?;
        self.more.get_or_insert_default().timer = Some((after, timer));
        Ok(())
    }

    /// Looks, and stops the run if it has to stop.
    #[inline]
    pub(crate) fn look(&mut self, node: &Node, cx: &mut TaskContext<'_>) {
        if let Some(more) = &mut self.more {
            more.look(node, cx);
        }
    }
}

impl More {
    fn look(&mut self, node: &Node, cx: &mut TaskContext<'_>) {
        if self.tokens.iter_mut().any(|token| token.as_mut().poll(cx).is_ready()) {
            self.tokens.clear();
            node.stop(Stop::aborted(CANCELLED));
        }
        if let Some((after, timer)) = &mut self.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            node.stop(Stop::TimedOut(*after));
            self.timer = None;
        }
    }
}
