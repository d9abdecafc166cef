//! The calls under way on a connection, which take questions that the server asks meanwhile.
//!
//! A question of the old era does not name its call, so it is passed on only if exactly one call can have asked it. A
//! call that was cancelled may still ask, until the server has read so: behind each cancellation goes a `ping`, and no
//! question is passed on before its answer. A call whose question could be stored begins after it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::model::ElicitResult;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

use crate::call::question::Request;

/// The most questions that wait for a call to take them.
const WAITING: usize = 16;

/// The time in which a server has to answer the `ping` behind a cancellation before the next call. One that has not may
/// ask for either call, so no question is passed on.
const SETTLING: Duration = Duration::from_secs(2);

/// A question in the middle of a call. If `reply` is dropped, the server gets an error.
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) reply: oneshot::Sender<ElicitResult>,
}

/// The calls under way on a connection.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    state: Mutex<State>,
    settled: Notify,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    calls: HashMap<u64, mpsc::Sender<Asked>>,
    /// The calls that were cancelled, and may still ask.
    cancelled: usize,
    /// The server has not answered a `ping` in time, so no further call waits for it.
    is_mute: bool,
}

impl State {
    const fn waits_for_answer(&self) -> bool {
        self.cancelled > 0 && !self.is_mute
    }
}

impl Calls {
    /// Notes that a call is under way, until the returned value is dropped.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        let (sender, questions) = mpsc::channel(WAITING);
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.calls.insert(number, sender);
        UnderWay { calls: self, number, questions }
    }

    /// Notes that a call is cancelled. This has to be known before the next call begins.
    pub(crate) fn cancel(&self) {
        self.state.lock().cancelled += 1;
    }

    /// Notes that the server has read a cancellation.
    pub(crate) fn settle(&self) {
        let mut state = self.state.lock();
        state.cancelled = state.cancelled.saturating_sub(1);
        state.is_mute &= state.cancelled > 0;
        drop(state);
        self.settled.notify_waiters();
    }

    /// Waits until the server has read all cancellations, or has not in time. Cancel safe.
    pub(crate) async fn settled(&self) {
        let settled = async {
            loop {
                // Made before the look, so that no notice is missed.
                let settled = self.settled.notified();
                if !self.state.lock().waits_for_answer() {
                    return;
                }
                settled.await;
            }
        };
        if timeout(SETTLING, settled).await.is_err() {
            self.state.lock().is_mute = true;
        }
    }

    /// Returns the call that a question of now belongs to, or the reason why that is unknown.
    pub(crate) fn asker(&self) -> Asker {
        let state = self.state.lock();
        let mut calls = state.calls.values();
        match (calls.next(), calls.next()) {
            (Some(_), _) if state.cancelled > 0 => Err("a call that was cancelled may have asked it".to_owned()),
            (Some(call), None) => Ok(call.clone()),
            (None, _) => Err("no call is under way, so the question belongs to none".to_owned()),
            _ => Err(format!(
                "{} calls are under way, so it is unknown which one asks: set `.elicit(..)` at the server, or name the \
                 tool in `exclusive([..])`, and in `idempotent([..])`",
                state.calls.len()
            )),
        }
    }
}

/// The call that has asked a question. It is found when the message arrives, because rmcp handles each request in a task
/// of its own.
pub(crate) type Asker = Result<mpsc::Sender<Asked>, String>;

/// Passes a question to its call.
///
/// # Errors
///
/// Returns the question and the reason if no call takes it.
pub(crate) fn pass(asked: Asked, asker: Option<&Asker>) -> Result<(), (Asked, String)> {
    let call = match asker {
        Some(Ok(call)) => call,
        Some(Err(reason)) => return Err((asked, reason.clone())),
        None => return Err((asked, "it is unknown which call asks".to_owned())),
    };
    call.try_send(asked).map_err(|error| match error {
        TrySendError::Full(asked) => (asked, format!("{WAITING} questions wait already")),
        TrySendError::Closed(asked) => (asked, "the call has ended".to_owned()),
    })
}

/// A call under way.
pub(crate) struct UnderWay<'a> {
    calls: &'a Calls,
    number: u64,
    questions: mpsc::Receiver<Asked>,
}

impl UnderWay<'_> {
    /// Waits for a question. Cancel safe.
    pub(crate) async fn asked(&mut self) -> Asked {
        match self.questions.recv().await {
            Some(asked) => asked,
            // The sender is dropped only after this value.
            None => std::future::pending().await,
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let sender = self.calls.state.lock().calls.remove(&self.number);
        drop(sender);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn only_the_first_call_waits_for_a_server_that_does_not_answer() {
        let calls = Calls::default();
        let begin = Instant::now();
        for (waits, cancels) in [(0, false), (2, true), (2, false), (2, true)] {
            if cancels {
                calls.cancel();
            }
            calls.settled().await;
            assert_eq!(begin.elapsed().as_secs(), waits);
        }
        let _call = calls.begin();
        assert!(calls.asker().is_err());
        calls.settle();
        assert!(calls.asker().is_err(), "one of two is left");
        calls.settle();
        assert!(calls.asker().is_ok());
        calls.cancel();
        calls.settled().await;
        assert_eq!(begin.elapsed().as_secs(), 4, "it has answered since");
    }
}
