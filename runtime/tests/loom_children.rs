//! R13: one thread ends a run while another thread begins a child of that run. The models use the source files of
//! the crate, and explore the interleavings of the threads. Either the child is ended together with its parent, or it
//! does not become a child. A task that ends the parent may have to wait until the child is made. That task is woken
//! when the child has been made, or when making it has failed.

#[allow(dead_code, reason = "the models use the part that races")]
#[path = "../src/tree/children.rs"]
mod children;
#[allow(dead_code, reason = "the models use the part that races")]
#[path = "../src/tree/parent.rs"]
mod parent;
#[allow(dead_code, reason = "the models use the part that races")]
#[path = "../src/run/state.rs"]
mod state;
/// The module path that the crate uses.
mod tree {
    pub(crate) use crate::children;
}
#[path = "support/loom_sync.rs"]
mod sync;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::Notify;
use loom::thread;

use self::children::Children;
use self::context::WeakRun;
use self::parent::Parent;
use self::state::RunState;
use self::sync::{AtomicBool, Ordering};

/// The parts of the crate's own `context` that this model needs, for a run that is only a node of a tree.
mod context {
    use super::{Arc, Ordering, Run, RunContext};

    pub(crate) struct WeakRun(pub(crate) Arc<Run>);

    impl WeakRun {
        /// Returns `None` until the run is made, as the crate's weak handle does.
        pub(crate) fn upgrade(&self) -> Option<RunContext> {
            self.0.is_made.load(Ordering::Acquire).then(|| RunContext(Arc::clone(&self.0)))
        }
    }
}

#[derive(Clone)]
pub(crate) struct RunContext(Arc<Run>);

pub(crate) struct Run {
    is_made: AtomicBool,
    node: AbortNode,
}

pub(crate) struct AbortNode {
    pub(crate) state: RunState<()>,
    pub(crate) below: Children,
}

impl RunContext {
    fn new(is_made: bool) -> Self {
        let node = AbortNode { state: RunState::open(), below: Children::default() };
        Self(Arc::new(Run { is_made: AtomicBool::new(is_made), node }))
    }

    pub(crate) fn node(&self) -> &AbortNode {
        &self.0.node
    }

    /// Makes this run a child of `above`, as the crate's `RunContext::make` does.
    fn begin(&self, above: &Self) -> Option<Parent> {
        let above = Parent::of(WeakRun(Arc::clone(&self.0)), above.clone());
        self.0.is_made.store(true, Ordering::Release);
        above.inspect(Parent::arrive).ok()
    }

    /// Registers this run as a child of `above`, and then fails to make it.
    fn fail_to_begin(&self, above: &Self) {
        drop(Parent::of(WeakRun(Arc::clone(&self.0)), above.clone()));
    }

    /// Ends a run, as the crate does, and returns the runs that are ended with it.
    async fn end(&self) -> Vec<Self> {
        let node = self.node();
        node.state.settle().ok();
        let mut ended = Vec::new();
        if !node.below.is_empty() {
            ended = poll_fn(|cx| node.below.poll_all(cx)).await;
        }
        node.state.close();
        if !node.below.is_empty() {
            ended.extend(poll_fn(|cx| node.below.poll_all(cx)).await);
        }
        node.state.end();
        ended
    }
}

struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Waits for a future. A future that is never woken is a deadlock, which loom finds.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let woken = Arc::new(Woken(Notify::new()));
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => woken.0.wait(),
        }
    }
}

/// Runs a model with at most three preemptions, which is usually enough to find races.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

fn is_among(run: &RunContext, ended: &[RunContext]) -> bool {
    ended.iter().any(|other| Arc::ptr_eq(&other.0, &run.0))
}

/// R13: the run uses the slot.
#[test]
fn a_run_made_in_the_slot_while_the_run_above_ends_is_ended_too_or_is_not_below_it() {
    model(|| {
        let (above, run) = (RunContext::new(true), RunContext::new(false));
        let made = {
            let (above, run) = (above.clone(), run.clone());
            thread::spawn(move || run.begin(&above))
        };
        let ended = block_on(above.end());
        let place = made.join().expect("it does not panic");
        assert_eq!(is_among(&run, &ended), place.is_some());
        place.iter().for_each(Parent::leave);
    });
}

/// R13: the run uses a shard, because another thread owns the slot.
#[test]
fn a_run_made_in_a_shard_while_the_run_above_ends_is_ended_too_or_is_not_below_it() {
    model(|| {
        let (above, first, run) = (RunContext::new(true), RunContext::new(false), RunContext::new(false));
        let place = first.begin(&above).expect("it is open");
        place.leave();
        let made = {
            let (above, run) = (above.clone(), run.clone());
            thread::spawn(move || {
                sync::be_thread(2);
                run.begin(&above)
            })
        };
        let ended = block_on(above.end());
        let place = made.join().expect("it does not panic");
        assert_eq!(is_among(&run, &ended), place.is_some());
        place.iter().for_each(Parent::leave);
    });
}

/// R13
#[test]
fn a_run_that_could_not_be_made_does_not_delay_the_end_of_the_run_above() {
    model(|| {
        let (above, run) = (RunContext::new(true), RunContext::new(false));
        let failed = {
            let (above, run) = (above.clone(), run.clone());
            thread::spawn(move || run.fail_to_begin(&above))
        };
        let ended = block_on(above.end());
        failed.join().expect("it does not panic");
        assert!(ended.is_empty() && above.node().below.is_empty());
    });
}

/// A7: other code writes a flag and then looks for the children; a child checks the flag when it has arrived.
#[test]
fn a_run_that_begins_while_children_are_looked_up_is_found_or_sees_what_was_written_before() {
    for thread in [1, 2] {
        model(move || {
            let (above, first, run) = (RunContext::new(true), RunContext::new(false), RunContext::new(false));
            // The first thread owns the slot, so the run uses the slot, or a shard in the other thread.
            first.begin(&above).expect("it is open").leave();
            let is_refused = Arc::new(AtomicBool::new(false));
            let begins = {
                let (above, run, is_refused) = (above.clone(), run.clone(), Arc::clone(&is_refused));
                thread::spawn(move || {
                    sync::be_thread(thread);
                    let place = run.begin(&above).expect("it is open");
                    let sees = is_refused.load(Ordering::Relaxed);
                    (place, sees)
                })
            };
            is_refused.store(true, Ordering::Relaxed);
            let is_found = is_among(&run, &above.node().below.arrived());
            let (place, sees) = begins.join().expect("it does not panic");
            assert!(is_found || sees);
            place.leave();
        });
    }
}
