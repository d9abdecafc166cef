//! Interleavings of claims (E8, E9), and of changes and loads (E10), explored by loom. The models include the crate's
//! own source files.

#[allow(dead_code, reason = "the models use the part that races")]
#[path = "../src/registry/claim.rs"]
mod claim;
#[allow(dead_code, reason = "the models use the part that races")]
#[path = "../src/registry/published.rs"]
mod published;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use self::claim::Claims;
use self::published::Published;

/// The primitives of the crate's `sync` module, built on loom's. The crate reads a slot atomically and without a lock;
/// here a lock makes the read atomic.
mod sync {
    use std::sync::Arc;

    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};

    /// The value of a [`Slot`] at the time it was read.
    pub(crate) struct Guard<T>(Option<Arc<T>>);

    impl<T> Guard<T> {
        pub(crate) fn from_inner(value: Option<Arc<T>>) -> Self {
            Self(value)
        }
    }

    impl<T> std::ops::Deref for Guard<T> {
        type Target = Option<Arc<T>>;

        fn deref(&self) -> &Self::Target {
            &self.0
        }
    }

    pub(crate) struct Mutex<S>(loom::sync::Mutex<S>);

    impl<S> Mutex<S> {
        pub(crate) fn new(state: S) -> Self {
            Self(loom::sync::Mutex::new(state))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, S> {
            self.0.lock().expect("nobody panics")
        }
    }

    pub(crate) struct Slot<T>(Mutex<Option<Arc<T>>>);

    impl<T> Slot<T> {
        pub(crate) fn new(value: Option<Arc<T>>) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn load(&self) -> Guard<T> {
            Guard(self.0.lock().clone())
        }

        pub(crate) fn store(&self, value: Option<Arc<T>>) {
            *self.0.lock() = value;
        }

        pub(crate) fn swap(&self, value: Option<Arc<T>>) -> Option<Arc<T>> {
            std::mem::replace(&mut *self.0.lock(), value)
        }
    }
}

/// Runs a model in all interleavings that have at most three preemptions.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// E8: three emits claim calls of a listener that is limited to two calls.
#[test]
fn exactly_the_allowed_number_of_concurrent_claims_succeeds() {
    model(|| {
        let (claims, calls) = (Arc::new(Claims::times(2)), Arc::new(AtomicUsize::new(0)));
        let claim = |claims: &Claims, calls: &AtomicUsize| {
            if claims.claim() {
                calls.fetch_add(1, Ordering::Relaxed);
            }
        };
        let emits: Vec<_> = (0..2)
            .map(|_| {
                let (claims, calls) = (Arc::clone(&claims), Arc::clone(&calls));
                thread::spawn(move || claim(&claims, &calls))
            })
            .collect();
        claim(&claims, &calls);
        emits.into_iter().for_each(|emit| emit.join().expect("it only claims"));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert!(claims.is_spent());
    });
}

/// E9: nothing is claimed after the end, and at most one call of `end` returns `true`.
#[test]
fn no_claim_succeeds_after_the_end() {
    for limit in [None, Some(1), Some(2)] {
        model(move || {
            let claims = Arc::new(limit.map_or_else(Claims::unlimited, Claims::times));
            let ended = Arc::new(AtomicBool::new(false));
            let emit = {
                let (claims, ended) = (Arc::clone(&claims), Arc::clone(&ended));
                thread::spawn(move || {
                    for _ in 0..2 {
                        let before = ended.load(Ordering::Acquire);
                        assert!(!(claims.claim() && before), "claimed after the end");
                    }
                })
            };
            let other = {
                let claims = Arc::clone(&claims);
                thread::spawn(move || claims.end())
            };
            let this = claims.end();
            ended.store(true, Ordering::Release);
            assert!(!claims.claim());
            emit.join().expect("nothing is claimed after the end");
            let both = this && other.join().expect("it only ends");
            assert!(!both && claims.is_spent());
        });
    }
}

/// E10 depends on this: an emit must find every listener that was registered before the emit began.
#[test]
fn a_finished_change_is_visible_to_every_later_load() {
    model(|| {
        let published = Arc::new(Published::new(0_usize));
        let changed = Arc::new(AtomicUsize::new(0));
        let reader = {
            let (published, changed) = (Arc::clone(&published), Arc::clone(&changed));
            thread::spawn(move || {
                let before = changed.load(Ordering::Acquire);
                let seen = published.load(|state| *state).as_deref().copied().expect("something is published");
                assert!(seen >= before, "saw {seen} after {before}");
            })
        };
        let other = {
            let published = Arc::clone(&published);
            thread::spawn(move || published.load(|state| *state).as_deref().copied().expect("something is published"))
        };
        for n in 1..=2 {
            published.change(|state| *state = n);
            changed.store(n, Ordering::Release);
        }
        assert_eq!(published.load(|state| *state).as_deref(), Some(&2));
        reader.join().expect("it sees what there was");
        assert!(other.join().expect("it only loads") <= 2);
    });
}

/// E10: a thread never reads an older value after a newer value.
#[test]
fn a_load_never_returns_an_older_state_than_an_earlier_load() {
    model(|| {
        let published = Arc::new(Published::new(0_usize));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let published = Arc::clone(&published);
                thread::spawn(move || {
                    let look = || published.load(|state| *state).as_deref().copied();
                    let (first, second) = (look(), look());
                    assert!(first.is_some() && first <= second, "{first:?}, then {second:?}");
                })
            })
            .collect();
        published.change(|state| *state += 1);
        assert_eq!(published.load(|state| *state).as_deref(), Some(&1));
        readers.into_iter().for_each(|reader| reader.join().expect("it sees no older one"));
    });
}

/// R14 depends on this: an emit that finds a run's listeners behind a snapshot must not miss those that have ended with
/// the run since the snapshot was loaded.
#[test]
fn a_state_is_inspected_behind_a_derived_value_only_if_it_has_not_changed() {
    model(|| {
        let published = Arc::new(Published::new(0_usize));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let published = Arc::clone(&published);
                thread::spawn(move || {
                    let loaded = published.load(|state| *state);
                    let derived = loaded.as_deref().expect("something is published");
                    let state = published.inspect_behind(derived, |state| *state);
                    assert!(state.is_none_or(|state| state == *derived), "{state:?} behind {derived}");
                })
            })
            .collect();
        published.change(|state| *state += 1);
        let loaded = published.load(|state| *state);
        let derived = loaded.as_deref().expect("something is published");
        assert_eq!(published.inspect_behind(derived, |state| *state), Some(1), "nothing changes any more");
        readers.into_iter().for_each(|reader| reader.join().expect("it inspects what it has loaded"));
    });
}
