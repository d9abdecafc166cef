//! R7: one thread aborts a run while another thread aborts or drops a run below. The models use source files of the
//! crate, and explore the interleavings of the threads. A run keeps its first reason, and a thread that has seen the
//! abort also finds its reason in the run below.

#[allow(dead_code, reason = "the model uses its part")]
#[path = "../src/abort/fall.rs"]
mod fall;
#[allow(dead_code, reason = "the model uses its part")]
#[path = "../src/run/state.rs"]
mod state;
/// The module path that the crate uses.
mod run {
    pub(crate) use crate::state;
}
#[path = "support/loom_sync.rs"]
mod sync;

use loom::sync::Arc;
use loom::thread;

use self::fall::{Stoppable, Stops};
use self::state::RunState;

type Reason = &'static str;

/// A run, with at most one run below it.
#[derive(Clone)]
struct Run(Arc<Inner>);

struct Inner {
    state: RunState<Reason>,
    below: Option<Run>,
}

impl Run {
    fn above(below: Option<Self>) -> Self {
        Self(Arc::new(Inner { state: RunState::open(), below }))
    }

    fn reason(&self) -> Option<Reason> {
        self.0.state.stopped().copied()
    }

    fn stop(&self, stops: &Stops, reason: Reason) -> bool {
        stops.stop(&reason, || self.0.state.stop(reason).then(|| self.followers())).is_some()
    }
}

impl Stoppable for Run {
    type Stop = Reason;

    fn state(&self) -> &RunState<Reason> {
        &self.0.state
    }

    fn followers(&self) -> Vec<Self> {
        self.0.below.iter().cloned().collect()
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// R7: the task that polls the outermost run sees the abort and drops the run's work, and with it the runs below, the
/// innermost first.
#[test]
fn a_thread_that_sees_an_abort_and_drops_a_run_below_finds_the_reason_in_that_run() {
    model(|| {
        let stops = Arc::new(Stops::new(sync::Mutex::new(())));
        let inner = Run::above(None);
        let middle = Run::above(Some(inner.clone()));
        let outer = Run::above(Some(middle.clone()));
        let aborting = {
            let (outer, stops) = (outer.clone(), Arc::clone(&stops));
            thread::spawn(move || outer.stop(&stops, "enough"))
        };
        let is_seen = outer.reason().is_some();
        let dropped = [&inner, &middle].map(|run| run.stop(&stops, "dropped"));
        let reasons = [&inner, &middle].map(Run::reason);
        assert!(aborting.join().expect("it does not panic"));
        if is_seen {
            assert_eq!((dropped, reasons), ([false; 2], [Some("enough"); 2]));
        }
        assert!(reasons.iter().all(Option::is_some));
    });
}

/// R7: if a run and the run above it are aborted at the same time, the lower run has the reason of the first abort.
#[test]
fn a_run_that_is_aborted_itself_and_from_above_has_the_reason_of_the_first_abort() {
    model(|| {
        let stops = Arc::new(Stops::new(sync::Mutex::new(())));
        let inner = Run::above(None);
        let outer = Run::above(Some(inner.clone()));
        let aborting = {
            let (outer, stops) = (outer.clone(), Arc::clone(&stops));
            thread::spawn(move || outer.stop(&stops, "outer"))
        };
        let was_first = inner.stop(&stops, "inner");
        assert!(aborting.join().expect("it does not panic"));
        let expected = if was_first { "inner" } else { "outer" };
        assert_eq!((inner.reason(), outer.reason()), (Some(expected), Some("outer")));
    });
}
