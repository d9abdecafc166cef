//! R13: every interleaving of a run that ends with one that is made below it on another thread, of the very sources that
//! the crate is made of: it is ended with the one above, or is not below it; and who waits for it to be made is woken.

#[allow(dead_code, reason = "the models use the part that races")]
#[path = "../src/above.rs"]
mod above;
#[allow(dead_code, reason = "the models use the part that races")]
#[path = "../src/below.rs"]
mod below;
#[allow(dead_code, reason = "the models use the part that races")]
#[path = "../src/fate.rs"]
mod fate;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use self::above::Above;
use self::below::Below;
use self::context::WeakRun;
use self::fate::Fate;

/// What the crate's own `sync` has, of loom's primitives. Loom takes the strictest order for the one below it, but for
/// fences: so they stand where two such accesses rely on it.
#[allow(dead_code, reason = "each of the atomics has what any of them needs")]
mod sync {
    use std::task::Waker;

    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};

    pub(crate) const SHARDS: usize = 2;

    loom::thread_local! {
        static OWN: std::cell::Cell<usize> = std::cell::Cell::new(1);
    }

    /// 1, or what the thread was told.
    pub(crate) fn thread() -> usize {
        OWN.with(std::cell::Cell::get)
    }

    pub(crate) fn be_thread(number: usize) {
        OWN.with(|own| own.set(number));
    }

    macro_rules! strict {
        ($name:ident, $of:ty) => {
            #[derive(Debug, Default)]
            pub(crate) struct $name(loom::sync::atomic::$name);

            impl $name {
                pub(crate) fn new(value: $of) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $of {
                    strictly(order, || self.0.load(order))
                }

                pub(crate) fn store(&self, value: $of, order: Ordering) {
                    strictly(order, || self.0.store(value, order));
                }

                pub(crate) fn fetch_or(&self, value: $of, order: Ordering) -> $of {
                    strictly(order, || self.0.fetch_or(value, order))
                }

                pub(crate) fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    f: impl FnMut($of) -> Option<$of>,
                ) -> Result<$of, $of> {
                    self.0.fetch_update(set, fetch, f)
                }

                pub(crate) fn compare_exchange(
                    &self,
                    current: $of,
                    new: $of,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$of, $of> {
                    strictly(success, || self.0.compare_exchange(current, new, success, failure))
                }
            }
        };
    }

    strict!(AtomicU8, u8);
    strict!(AtomicUsize, usize);

    fn strictly<T>(order: Ordering, access: impl FnOnce() -> T) -> T {
        let fenced = || {
            if order == Ordering::SeqCst {
                fence(Ordering::SeqCst);
            }
        };
        fenced();
        let accessed = access();
        fenced();
        accessed
    }

    #[derive(Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("nobody panics")
        }
    }

    /// As there, it is read without a lock, and lies where it can be borrowed.
    pub(crate) struct OnceLock<T> {
        setting: Mutex<()>,
        is_set: AtomicBool,
        value: std::sync::OnceLock<T>,
    }

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self { setting: Mutex::default(), is_set: AtomicBool::new(false), value: std::sync::OnceLock::new() }
        }
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            let _setting = self.setting.lock();
            self.value.set(value)?;
            self.is_set.store(true, Ordering::Release);
            Ok(())
        }

        pub(crate) fn get(&self) -> Option<&T> {
            if self.is_set.load(Ordering::Acquire) { self.value.get() } else { None }
        }

        pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            if self.get().is_none() {
                self.set(make()).ok();
            }
            self.value.get().expect("it is set")
        }
    }

    impl<T> std::fmt::Debug for OnceLock<T> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("OnceLock")
        }
    }

    /// Is an atom there; here the atom is a lock.
    #[derive(Default)]
    pub(crate) struct AtomicWaker(Mutex<Option<Waker>>);

    impl AtomicWaker {
        pub(crate) fn register(&self, waker: &Waker) {
            *self.0.lock() = Some(waker.clone());
        }

        pub(crate) fn take(&self) -> Option<Waker> {
            self.0.lock().take()
        }

        pub(crate) fn wake(&self) {
            self.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// What the crate's own `context` has, of a run that is nothing but a place among others.
mod context {
    use super::{Arc, Ordering, Run, RunContext};

    pub(crate) struct WeakRun(pub(crate) Arc<Run>);

    impl WeakRun {
        /// As a weak handle's, which leads to nothing until what it is of is made.
        pub(crate) fn upgrade(&self) -> Option<RunContext> {
            self.0.is_made.load(Ordering::Acquire).then(|| RunContext(Arc::clone(&self.0)))
        }
    }
}

#[derive(Clone)]
pub(crate) struct RunContext(Arc<Run>);

pub(crate) struct Run {
    is_made: AtomicBool,
    node: Node,
}

pub(crate) struct Node {
    fate: Fate<()>,
    below: Below,
}

impl Node {
    pub(crate) fn is_closed(&self) -> bool {
        self.fate.is_closed()
    }

    pub(crate) const fn fate(&self) -> &Fate<()> {
        &self.fate
    }

    pub(crate) const fn below(&self) -> &Below {
        &self.below
    }
}

impl RunContext {
    fn new(is_made: bool) -> Self {
        let node = Node { fate: Fate::open(), below: Below::default() };
        Self(Arc::new(Run { is_made: AtomicBool::new(is_made), node }))
    }

    pub(crate) fn node(&self) -> &Node {
        &self.0.node
    }

    /// As `RunContext::begin` makes one below another.
    fn begin(&self, above: &Self) -> Option<Above> {
        let above = Above::of(WeakRun(Arc::clone(&self.0)), above.clone());
        self.0.is_made.store(true, Ordering::Release);
        above.inspect(Above::arrive)
    }

    /// The same, where making it fails.
    fn fail_to_begin(&self, above: &Self) {
        drop(Above::of(WeakRun(Arc::clone(&self.0)), above.clone()));
    }

    /// As `announce` ends a run: gives those that are ended with it.
    async fn end(&self) -> Vec<Self> {
        let node = self.node();
        node.fate().settle().ok();
        let mut ended = Vec::new();
        if !node.below().is_empty() {
            ended = poll_fn(|cx| node.below().poll_all(cx)).await;
        }
        node.fate().close();
        if !node.below().is_empty() {
            ended.extend(poll_fn(|cx| node.below().poll_all(cx)).await);
        }
        node.fate().end();
        ended
    }
}

struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Waits for a future. One that is never woken is a deadlock, which loom finds.
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

/// Runs a model with at most three preemptions, which is where races show.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

fn is_among(run: &RunContext, ended: &[RunContext]) -> bool {
    ended.iter().any(|other| Arc::ptr_eq(&other.0, &run.0))
}

/// R13: it takes the slot.
#[test]
fn a_run_that_is_made_while_the_one_above_ends_is_ended_with_it_or_is_not_below_it() {
    model(|| {
        let (above, run) = (RunContext::new(true), RunContext::new(false));
        let made = {
            let (above, run) = (above.clone(), run.clone());
            thread::spawn(move || run.begin(&above))
        };
        let ended = block_on(above.end());
        let place = made.join().expect("it does not panic");
        assert_eq!(is_among(&run, &ended), place.is_some());
        place.iter().for_each(Above::leave);
    });
}

/// R13: it takes a place in a shard, for another thread has the slot.
#[test]
fn so_is_one_that_another_thread_makes_than_made_the_first() {
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
        place.iter().for_each(Above::leave);
    });
}

/// R13
#[test]
fn a_run_that_could_not_be_made_keeps_the_one_above_from_nothing() {
    model(|| {
        let (above, run) = (RunContext::new(true), RunContext::new(false));
        let failed = {
            let (above, run) = (above.clone(), run.clone());
            thread::spawn(move || run.fail_to_begin(&above))
        };
        let ended = block_on(above.end());
        failed.join().expect("it does not panic");
        assert!(ended.is_empty() && above.node().below().is_empty());
    });
}
