//! R8, R13: several threads may end a run. The models use the source file of the crate, and explore the interleavings
//! of the threads. Exactly one thread ends the run, and none waits forever.

#[allow(dead_code, reason = "the models use all of it, each its part")]
#[path = "../src/run/lease.rs"]
mod lease;
#[path = "support/loom_sync.rs"]
mod sync;

use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::Notify;
use loom::thread;

use self::lease::{Acquired, Driver, DriverLease};
use self::sync::{AtomicUsize, Mutex, Ordering};

/// A listener that a driver waits for: a flag that is set when it is done, and the waker of its last poll.
struct Listener(Mutex<(bool, Option<Waker>)>);

impl Listener {
    fn poll(&self, waker: &Waker) -> bool {
        let mut state = self.0.lock();
        state.1 = Some(waker.clone());
        state.0
    }

    fn is_done(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.0 = true;
            state.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

/// A run whose last step waits for a listener.
struct Run {
    lease: DriverLease<(), ()>,
    listener: Listener,
    ends: AtomicUsize,
}

#[derive(PartialEq, Eq)]
enum Driven {
    Over,
    Pending,
    Elsewhere,
}

impl Run {
    fn new() -> Arc<Self> {
        let listener = Listener(Mutex::new((false, None)));
        Arc::new(Self { lease: DriverLease::taken(), listener, ends: AtomicUsize::new(0) })
    }

    /// Drives this run until it is over or has to wait, unless the lease is refused.
    fn drive(&self, who: Driver, waker: &Waker) -> Driven {
        match self.lease.acquire(who, waker) {
            Acquired::Steps(()) => self.go_on(who, waker),
            Acquired::ByOther => Driven::Elsewhere,
            Acquired::Over(result) => {
                self.lease.over(result);
                Driven::Over
            }
        }
    }

    fn go_on(&self, who: Driver, waker: &Waker) -> Driven {
        if !self.listener.poll(waker) {
            self.lease.park((), who, waker);
            return Driven::Pending;
        }
        self.ends.fetch_add(1, Ordering::Relaxed);
        self.lease.over(Some(()));
        Driven::Over
    }
}

struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Polls until the run is over. A poll that is never woken is a deadlock, which loom finds.
fn until_over(mut poll: impl FnMut(&Waker) -> Driven) {
    let woken = Arc::new(Woken(Notify::new()));
    let waker = Waker::from(Arc::clone(&woken));
    while poll(&waker) != Driven::Over {
        woken.0.wait();
    }
}

/// Polls as a run's own future does: it holds the lease until it parks for the first time.
fn own(run: &Run) {
    let mut has_seat = true;
    until_over(|waker| {
        if std::mem::take(&mut has_seat) { run.go_on(Driver::Own, waker) } else { run.drive(Driver::Own, waker) }
    });
}

/// Acts as a run's own future that is dropped, and as the task that then ends the run.
fn dropped(run: &Run) {
    run.lease.park((), Driver::Own, Waker::noop());
    if run.drive(Driver::Supervisor, Waker::noop()) == Driven::Pending {
        run.lease.supervised();
        until_over(|waker| run.drive(Driver::Supervisor, waker));
    }
}

/// Acts as the parent, which drives the run to its end.
fn above(run: &Run) {
    until_over(|waker| run.drive(Driver::Parent, waker));
}

/// Acts as code that only waits for the end of the run.
fn waits(run: &Run) {
    until_over(|waker| if run.lease.is_over(waker) { Driven::Over } else { Driven::Elsewhere });
}

/// Races two drivers while the listener completes, with at most three preemptions, which is usually enough to find
/// races.
fn race(first: fn(&Run), second: fn(&Run)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let run = Run::new();
        let threads = [first, second].map(|ends| {
            let run = Arc::clone(&run);
            thread::spawn(move || ends(&run))
        });
        run.listener.is_done();
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        assert_eq!(run.ends.load(Ordering::Relaxed), 1);
    });
}

// R13
#[test]
fn the_runs_own_future_and_the_run_above_end_a_run_exactly_once_and_are_both_woken() {
    race(own, above);
}

// R8, R13
#[test]
fn a_supervised_task_and_the_run_above_end_a_dropped_run_exactly_once_and_are_both_woken() {
    race(dropped, above);
}

// R13
#[test]
fn code_that_waits_for_the_end_of_a_run_is_woken_and_does_not_hinder_the_runs_own_future() {
    race(own, waits);
}

// R8, R13
#[test]
fn code_that_waits_for_the_end_of_a_dropped_run_is_woken() {
    race(dropped, waits);
}
