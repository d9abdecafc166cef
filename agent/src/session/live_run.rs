//! A run of an agent that uses a session.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use emitree_runtime::RunContext;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::ChatOptions;
use crate::message::history::History;
use crate::message::turn::CurrentTurn;
use crate::session::stopped::{OpenCall, Stopped, StoppedTurn, Unreturned};
use crate::session::turn_calls::TurnCalls;

/// A run under way, with the values that its session would keep if the run ended now.
#[derive(Debug)]
pub(crate) struct LiveRun {
    id: OnceLock<Uuid>,
    pub(crate) turn: CurrentTurn,
    /// The number of the current turn in its session.
    pub(super) number: AtomicU64,
    /// `true` from the end of a turn until the model's next response.
    pub(super) asks: AtomicBool,
    /// `true` while the end of the run is being stored, with its answer in the history.
    pub(super) returns: AtomicBool,
    pub(super) parts: Mutex<LiveParts>,
}

#[derive(Debug, Default)]
pub(super) struct LiveParts {
    /// The run, between the beginning and the end of an attempt.
    pub(super) run: Option<RunContext>,
    /// The options of the run's input.
    pub(super) options: ChatOptions,
    /// The turn whose calls are being made.
    pub(super) calls: Option<Arc<TurnCalls>>,
    /// The run that this run goes on with, until it makes the calls that were left open.
    pub(super) resumed: Option<Stopped>,
}

impl LiveRun {
    pub(super) fn new() -> Arc<Self> {
        let (turn, number, asks) = (CurrentTurn::default(), AtomicU64::new(0), AtomicBool::new(false));
        let returns = AtomicBool::new(false);
        Arc::new(Self { id: OnceLock::new(), turn, number, asks, returns, parts: Mutex::default() })
    }

    /// Returns the id of the run, which is made when it is first needed. Without a run, returns a nil id.
    pub(super) fn id(&self) -> Uuid {
        let known = self.id.get().copied();
        known.unwrap_or_else(|| {
            let run = self.parts.lock().run.clone();
            run.map_or(Uuid::nil(), |run| *self.id.get_or_init(|| run.run_id()))
        })
    }

    /// Forgets the run: a context in a value of the run would keep the run alive.
    pub(super) fn forget(&self) {
        let run = self.parts.lock().run.take();
        drop(run);
    }

    /// Returns what the session keeps of the run if it ends with this open turn.
    pub(super) fn stop(&self, open: Option<StoppedTurn>) -> Stopped {
        let options = self.parts.lock().options.clone();
        let asks = self.asks.load(Ordering::Relaxed);
        let calling = Some(self.number.load(Ordering::Relaxed)).filter(|number| asks && *number > 0);
        Stopped { run: self.id(), turn: self.turn.get(), asks, calling, options, open, answer: None }
    }

    /// Returns what the session keeps of the run if it ends without returning its answer.
    pub(super) fn stop_with(&self, answer: Unreturned) -> Stopped {
        Stopped { asks: false, calling: None, answer: Some(answer), ..self.stop(None) }
    }

    pub(super) fn returns(&self) -> bool {
        self.returns.load(Ordering::Relaxed)
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
