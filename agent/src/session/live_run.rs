//! A run of an agent that uses a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::ChatOptions;
use crate::agent::turn::CurrentTurn;
use crate::message::history::History;
use crate::session::stopped::{OpenCall, Stopped, StoppedTurn};
use crate::session::turn_calls::TurnCalls;

/// What a session would keep if the run ended now.
#[derive(Debug)]
pub(crate) struct LiveRun {
    pub(super) id: Uuid,
    pub(crate) turn: CurrentTurn,
    /// The number of the current turn in its session.
    pub(super) number: AtomicU64,
    /// `true` from the end of a turn until the model's next response.
    pub(super) asks: AtomicBool,
    pub(super) parts: Mutex<LiveParts>,
}

#[derive(Debug, Default)]
pub(super) struct LiveParts {
    /// The options of the run's input.
    pub(super) options: ChatOptions,
    /// The turn whose calls are being made.
    pub(super) calls: Option<Arc<TurnCalls>>,
    /// The run that this run goes on with, until it makes the calls that were left open.
    pub(super) resumed: Option<Stopped>,
}

impl LiveRun {
    pub(super) fn new(id: Uuid) -> Arc<Self> {
        let (turn, number, asks) = (CurrentTurn::default(), AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { id, turn, number, asks, parts: Mutex::default() })
    }

    /// Returns what the session keeps of the run if it ends with this open turn.
    pub(super) fn stop(&self, open: Option<StoppedTurn>) -> Stopped {
        let options = self.parts.lock().options.clone();
        let asks = self.asks.load(Ordering::Relaxed);
        Stopped { run: self.id, turn: self.turn.get(), asks, options, open }
    }

    pub(super) fn change_open_calls<T>(&self, change: &mut impl FnMut(&mut OpenCall) -> Option<T>) -> Option<T> {
        let parts = &mut *self.parts.lock();
        match (&parts.calls, &mut parts.resumed) {
            (Some(calls), _) => calls.change_open(change),
            (None, Some(resumed)) => resumed.change_open_calls(change),
            (None, None) => None,
        }
    }

    /// Returns what the session would keep of the run if it ended now, and adds the messages of its turn to a history.
    pub(super) fn stop_now(&self, history: &mut History) -> Stopped {
        let (calls, resumed) = {
            let parts = self.parts.lock();
            (parts.calls.clone(), parts.resumed.clone())
        };
        match (calls, resumed) {
            (Some(calls), _) => self.stop(calls.enter(calls.peek(), history).open),
            (None, Some(resumed)) => resumed,
            (None, None) => self.stop(None),
        }
    }
}
