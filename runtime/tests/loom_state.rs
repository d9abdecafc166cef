//! R7: aborts race with the end of the work. The models use the source file of the crate, and explore the
//! interleavings of the threads. Exactly one of the racing calls wins, and every thread that checks afterwards sees the
//! same state. Bindings race with the beginning and the end of the work (M1, R14): each binding is dropped or refused,
//! and no layer is skipped.

#[allow(dead_code, reason = "the models use all of it, each its part")]
#[path = "../src/run/state.rs"]
mod state;
#[path = "support/loom_sync.rs"]
mod sync;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::{self, JoinHandle};

use self::state::RunState;

/// Runs a model with at most three preemptions, which is usually enough to find races.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

type Shared = Arc<RunState<&'static str>>;

fn spawn<T: 'static>(state: &Shared, f: impl FnOnce(&RunState<&'static str>) -> T + 'static) -> JoinHandle<T> {
    let state = Arc::clone(state);
    thread::spawn(move || f(&state))
}

fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().expect("it does not panic")
}

/// Settles the state, and fails with the reason if the run had already been stopped.
fn close(state: &RunState<&'static str>) -> Result<(), &'static str> {
    state.settle().map_err(|stop| *stop)
}

/// R7
#[test]
fn an_abort_that_races_with_the_end_of_the_work_either_wins_or_has_no_effect() {
    model(|| {
        let state = Arc::new(RunState::open());
        let abort = spawn(&state, |state| state.stop("enough"));
        let closed = close(&state);
        let then = state.stopped().copied();
        let aborted = join(abort);
        assert_eq!(closed, if aborted { Err("enough") } else { Ok(()) });
        assert_eq!((then, state.stopped().copied()), (closed.err(), closed.err()));
        assert!(!state.stop("too late") && close(&state) == closed);
    });
}

/// R7
#[test]
fn exactly_one_of_two_aborts_and_the_end_of_the_work_wins() {
    model(|| {
        let state = Arc::new(RunState::open());
        let [first, second] = ["first", "second"].map(|reason| spawn(&state, move |state| state.stop(reason)));
        let closed = close(&state);
        let outcome = match [first, second].map(join) {
            [true, false] => Err("first"),
            [false, true] => Err("second"),
            [false, false] => Ok(()),
            [true, true] => unreachable!("both have aborted it"),
        };
        assert_eq!((closed, state.stopped().copied()), (outcome, outcome.err()));
    });
}

/// R7: an abort that lost to another abort, and not to the end of the work, reads the winner's reason.
#[test]
fn an_abort_that_loses_to_another_abort_reads_the_reason_of_the_winner() {
    model(|| {
        let state = Arc::new(RunState::open());
        let other = spawn(&state, |state| (state.stop("other"), state.stopped().copied()));
        let own = (state.stop("own"), state.stopped().copied());
        match (own, join(other)) {
            ((true, Some("own")), (false, Some("own"))) | ((false, Some("other")), (true, Some("other"))) => {}
            unexpected => unreachable!("{unexpected:?}"),
        }
    });
}

/// R7: work that ends after an abort has returned is aborted, even if another abort was faster.
#[test]
fn work_that_ends_after_an_abort_has_returned_is_aborted() {
    model(|| {
        let state = Arc::new(RunState::open());
        let other = spawn(&state, |state| state.stop("other"));
        let own = state.stop("own");
        let closed = close(&state);
        assert_eq!((closed, own), (Err(if own { "own" } else { "other" }), !join(other)));
    });
}

/// R7: a thread that sees an abort also sees its reason.
#[test]
fn a_thread_that_reads_the_state_sees_no_abort_or_the_abort_with_its_reason() {
    model(|| {
        let state = Arc::new(RunState::open());
        let abort = spawn(&state, |state| state.stop("enough"));
        let looks = [state.stopped().copied(), state.stopped().copied()];
        assert!(matches!(looks, [None, None] | [None, Some("enough")] | [Some("enough"), Some("enough")]), "{looks:?}");
        assert!(join(abort));
    });
}

/// R14
#[test]
fn a_binding_made_while_a_run_ends_is_dropped_by_the_binder_or_by_the_end() {
    model(|| {
        let (state, kept) = (Arc::new(RunState::open()), Arc::new(AtomicBool::new(false)));
        let drop_chain = |kept: &AtomicBool| kept.store(false, Ordering::Relaxed);
        let binder = {
            let kept = Arc::clone(&kept);
            spawn(&state, move |state| {
                kept.store(true, Ordering::Relaxed);
                if !state.bind() {
                    drop_chain(&kept);
                }
            })
        };
        if state.release() {
            assert!(kept.load(Ordering::Relaxed), "what it was told of is there");
            drop_chain(&kept);
        }
        join(binder);
        assert!(!kept.load(Ordering::Relaxed), "it is kept for ever");
    });
}

/// M1: either the work passes through the chain, or all layers are refused; no layer is skipped.
#[test]
fn a_chain_that_is_added_as_the_work_begins_is_passed_or_refused() {
    model(|| {
        let state = Arc::new(RunState::open());
        let binders = [(), ()].map(|()| spawn(&state, RunState::add_chain));
        let passes = state.begin_work();
        let taken = binders.map(join);
        // A second chain is accepted if the first was, and refused if the work began first.
        assert_eq!(passes, state.has_chain());
        assert!(taken.iter().all(|taken| *taken == passes), "{taken:?} {passes}");
        assert_eq!(state.add_chain(), passes);
    });
}

/// R14
#[test]
fn a_chain_that_is_added_while_a_run_ends_is_dropped_by_the_end_or_refused() {
    model(|| {
        let state = Arc::new(RunState::open());
        let binder = spawn(&state, RunState::add_chain);
        state.settle_and_close().ok();
        let is_bound = state.release();
        assert_eq!(join(binder), is_bound);
    });
}

/// R14: the end of the work releases the run even if the run has no bindings.
#[test]
fn a_binding_made_as_the_work_ends_is_dropped_exactly_once() {
    model(|| {
        let state = Arc::new(RunState::open());
        let binder = spawn(&state, |state| !state.bind());
        state.settle_and_close().ok();
        let by_end = state.release();
        assert_ne!(join(binder), by_end, "it is let go once");
    });
}
