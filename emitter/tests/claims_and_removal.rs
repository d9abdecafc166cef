//! Limits on the calls of listeners, and the removal of listeners (E8, E9).

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;

use emitree_emitter::{
    AnyEvent, DropGuard, Emitter, EventMeta, EventName, IntoMatcher, Matcher, MatcherError, Options, Subscription,
    matcher_fn,
};
use futures_util::FutureExt;
use regex::Regex;

use crate::support::{Recorder, TestResult, block_on, emit, yield_once};

/// E8: once all calls of a listener are claimed, no other emit calls the listener.
#[test]
fn once_and_times_hold_under_concurrent_emits() -> TestResult {
    const EMITS: usize = 200;
    for limit in [1, 3, 50] {
        let emitter = Emitter::new();
        let [sync, blocking, observed, awaited] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
        let counts = [&sync, &blocking, &observed, &awaited].map(Arc::clone);
        let limited = emitter.with(Options::new().times(limit));
        limited.on("*", move |_: &mut dyn AnyEvent, _| {
            sync.fetch_add(1, Ordering::Relaxed);
        })?;
        limited.observe("*", move |_: &dyn AnyEvent, _| {
            observed.fetch_add(1, Ordering::Relaxed);
        })?;
        limited.on_async("*", move |_: &mut dyn AnyEvent, _| {
            blocking.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                yield_once().await;
                Ok(())
            })
        })?;
        limited.observe_async("*", move |_: &dyn AnyEvent, _| {
            awaited.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                yield_once().await;
                Ok(())
            })
        })?;
        let start = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    (0..EMITS / 4).for_each(|_| emit(&emitter, "x"));
                });
            }
        });
        assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [limit; 4]);
        assert_eq!(emitter.listener_count(), 0, "spent, they are gone");
    }
    Ok(())
}

/// E8: two emits have selected the listener before either of them reaches it.
#[test]
fn a_once_listener_is_called_once_even_if_two_emits_have_selected_it() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    emitter.on_async("*", recorder.hears_async("before"))?;
    emitter.with(Options::new().once()).on("*", recorder.hears("once, sync"))?;
    emitter.with(Options::new().once()).on_async("*", recorder.hears_async("once, async"))?;
    let (mut a, mut b) = ((), ());
    let mut first = Box::pin(emitter.emit("x", &mut a));
    let mut second = Box::pin(emitter.emit("x", &mut b));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    block_on(second)?;
    block_on(first)?;
    recorder.expect([
        "before x",
        "before x",
        "before done",
        "once, sync x",
        "once, async x",
        "once, async done",
        "before done",
    ]);
    Ok(())
}

/// E8: a claim comes before the call.
#[test]
fn a_once_listener_that_emits_the_same_event_is_not_called_again() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    let (note, inner) = (recorder.clone(), emitter.clone());
    emitter.with(Options::new().once()).on("x", move |_: &mut (), _| {
        note.note("once");
        Ok(inner.emit_now("x", &mut ())?)
    })?;
    emit(&emitter, "x");
    emit(&emitter, "x");
    recorder.expect(["once"]);
    Ok(())
}

/// E8: a call that was not made is not counted.
#[test]
fn events_that_a_listener_does_not_receive_do_not_count_toward_its_limit() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    let told = Arc::new(AtomicUsize::new(0));
    let says = Arc::clone(&told);
    let third = matcher_fn(move |_| says.fetch_add(1, Ordering::Relaxed) == 2);
    let once = emitter.with(Options::new().once()).on(third, recorder.hears("third"))?;
    for _ in 0..5 {
        emit(&emitter, "x");
    }
    recorder.expect(["third x"]);
    assert_eq!((told.load(Ordering::Relaxed), once.is_active(), once.off()), (3, false, false));
    Ok(())
}

/// E8.
#[test]
fn a_listener_with_a_limit_of_zero_calls_is_never_called() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    emitter.with(Options::new().times(0)).on("*", recorder.hears("never"))?;
    emit(&emitter, "x");
    recorder.expect([]);
    Ok(())
}

/// E9.
#[test]
fn off_removes_a_listener_only_once_and_dropping_its_subscription_keeps_the_listener() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    drop(emitter.on("*", recorder.hears("kept"))?);
    let gone = emitter.on("*", recorder.hears("gone"))?;
    let handle = gone.clone();
    assert!(gone.is_active() && gone.off() && !gone.off() && !handle.off() && !handle.is_active());
    emit(&emitter, "x");
    recorder.expect(["kept x"]);
    let orphan = Emitter::new().on("*", recorder.hears("orphan"))?;
    assert!(!orphan.is_active() && !orphan.off(), "its emitter is gone");
    Ok(())
}

/// E9.
#[test]
fn a_drop_guard_removes_on_drop() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    let guard = emitter.on("*", recorder.hears("guarded"))?.drop_guard();
    emit(&emitter, "x");
    drop(guard);
    emit(&emitter, "y");
    recorder.expect(["guarded x"]);
    Ok(())
}

/// E9: the listeners are registered by different methods. `off` is called before the dispatch reaches any of them.
#[test]
fn a_dispatch_under_way_does_not_call_listeners_that_off_has_removed() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let emitter = root.child("a")?;
    let ends: Arc<OnceLock<Vec<Subscription>>> = Arc::default();
    let off = Arc::clone(&ends);
    emitter.with(Options::new().priority(1)).on("*", move |_: &mut dyn AnyEvent, _| {
        for subscription in off.get().into_iter().flatten() {
            subscription.off();
        }
    })?;
    emitter.on_async("*", recorder.hears_async("kept"))?;
    let subscriptions = vec![
        emitter.on("*", recorder.hears("on"))?,
        root.on_async("*.*", recorder.hears_async("on_async"))?,
        emitter.observe("*", recorder.sees("observe"))?,
        root.observe_async("*.*", recorder.sees_async("observe_async"))?,
        root.with(Options::new().times(5)).on("*.*", recorder.hears("times"))?,
        root.with(Options::new().persistent()).on("*.*", recorder.hears("persistent"))?,
    ];
    assert!(ends.set(subscriptions).is_ok());
    emit(&emitter, "x");
    recorder.expect(["kept a.x", "kept done"]);
    Ok(())
}

/// E9: a suspended dispatch does not call listeners that `reset`, `close` or `off_matching` has removed.
#[test]
fn a_dispatch_under_way_does_not_call_listeners_removed_by_reset_close_or_off_matching() -> TestResult {
    let removals: [fn(&Emitter); 3] = [
        |emitter| assert_eq!(emitter.reset(), 3),
        Emitter::close,
        |emitter| assert!(emitter.off_matching("x").is_ok()),
    ];
    for remove in removals {
        let (recorder, root) = (Recorder::new(), Emitter::new());
        root.on_async("x", recorder.hears_async("under way"))?;
        root.on("x", recorder.hears("later"))?;
        root.observe_async("x", recorder.sees_async("last"))?;
        let mut payload = ();
        let mut emit = Box::pin(root.emit("x", &mut payload));
        assert!(emit.as_mut().now_or_never().is_none());
        remove(&root);
        block_on(emit)?;
        recorder.expect(["under way x", "under way done"]);
    }
    Ok(())
}

/// E9.
#[test]
fn off_matching_removes_all_listeners_with_an_equal_matcher() -> TestResult {
    let (emitter, handle) = (Emitter::new(), matcher_fn(|_| true));
    let register = |matcher: Matcher| emitter.on(matcher, |_: &mut dyn AnyEvent, _| ()).map(drop);
    let matchers = || -> Result<[Matcher; 9], MatcherError> {
        Ok([
            "x".into_matcher()?,
            EventName::new("y").into_matcher()?,
            "a.x".into_matcher()?,
            "*".into_matcher()?,
            "*.*".into_matcher()?,
            "x*".into_matcher()?,
            "a.*".into_matcher()?,
            Matcher::regex("x")?,
            handle.clone().into_matcher()?,
        ])
    };
    for matcher in matchers()? {
        register(matcher.clone())?;
        register(matcher)?;
    }
    for (removed, matcher) in matchers()?.into_iter().enumerate() {
        assert_eq!(emitter.listener_count(), 18 - 2 * removed);
        assert_eq!(emitter.off_matching(&matcher)?, 2, "{matcher:?}");
        assert_eq!(emitter.off_matching(&matcher)?, 0, "{matcher:?}");
    }
    register(Matcher::regex("x")?)?;
    emitter.on("y", |_: &mut dyn AnyEvent, _| ())?;
    emitter.on(|_: &EventMeta<'_>| true, |_: &mut dyn AnyEvent, _| ())?;
    assert_eq!(emitter.off_matching(handle.clone())?, 0, "another function");
    assert_eq!(emitter.off_matching(Regex::new("x")?)?, 1, "a regex is its pattern");
    assert_eq!(emitter.off_matching("y")?, 1, "a name is its text");
    Ok(())
}

/// E9.
#[test]
fn persistent_listeners_are_removed_only_by_their_own_off_and_by_close() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    let persistent = Options::new().persistent();
    let own = emitter.with(persistent).on("*", recorder.hears("off"))?;
    emitter.with(persistent).observe("*", recorder.sees("close"))?;
    emitter.on("*", recorder.hears("off_matching"))?;
    emitter.on("x", recorder.hears("reset"))?;
    assert_eq!((emitter.off_matching("*")?, emitter.reset(), emitter.reset()), (1, 1, 0));
    emit(&emitter, "x");
    recorder.expect(["off x", "close x"]);
    assert!(own.off());
    emit(&emitter, "x");
    recorder.expect(["close x"]);
    emitter.close();
    emit(&emitter, "x");
    recorder.expect([]);
    emitter.on("*", recorder.hears("usable"))?;
    emit(&emitter, "x");
    recorder.expect(["usable x"]);
    Ok(())
}

/// E9: events still rise after listeners are removed. Only `close` also removes pipes.
#[test]
fn events_still_rise_to_the_parent_after_listeners_are_removed() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let (emitter, aside) = (root.child("a")?, Emitter::new());
    root.on("*.*", recorder.hears("root"))?;
    aside.on("*.*", recorder.hears("aside"))?;
    emitter.pipe(&aside);
    emitter.on("*", recorder.hears("own"))?.off();
    emitter.on("*", recorder.hears("own"))?;
    assert_eq!(emitter.off_matching("*")?, 1);
    emitter.on("*", recorder.hears("own"))?;
    emitter.reset();
    emit(&emitter, "x");
    recorder.expect(["root a.x", "aside a.x"]);
    emitter.close();
    emit(&emitter, "x");
    recorder.expect(["root a.x"]);
    Ok(())
}

/// E9: each way of removing a listener drops its closure and captured values.
#[test]
fn a_removed_listener_is_dropped() -> TestResult {
    let removals: [fn(&Emitter, &Subscription); 6] = [
        |_, subscription| assert!(subscription.off()),
        |emitter, _| assert_eq!(emitter.reset(), 1),
        |emitter, _| emitter.close(),
        |emitter, _| assert!(emitter.off_matching("*").is_ok()),
        |_, subscription| drop(subscription.clone().drop_guard()),
        |emitter, _| emit(emitter, "spends"),
    ];
    for (way, remove) in removals.into_iter().enumerate() {
        let (emitter, held) = (Emitter::new(), Arc::new(()));
        let captured = Arc::clone(&held);
        let options = if way == 5 { Options::new().once() } else { Options::new() };
        let listener = move |_: &mut dyn AnyEvent, _: &EventMeta<'_>| drop(Arc::clone(&captured));
        let subscription = emitter.with(options).on("*", listener)?;
        if way != 5 {
            emit(&emitter, "x");
        }
        remove(&emitter, &subscription);
        assert_eq!((Arc::strong_count(&held), emitter.listener_count()), (1, 0), "way {way}");
    }
    Ok(())
}

/// E9: a removed listener is dropped after unlocking, so the drop of its captured values may remove and register
/// listeners, and emit events.
#[test]
fn a_closure_that_holds_its_own_guard_is_removed_without_a_deadlock() -> TestResult {
    struct Parting(Emitter, Recorder);
    impl Drop for Parting {
        fn drop(&mut self) {
            let Self(emitter, recorder) = self;
            recorder.note("dropped");
            emitter.off_matching("nobody").expect("a name");
            emit(emitter, "x");
            emitter.on("late", recorder.hears("registered in the drop:")).expect("a name");
        }
    }
    let removals: [fn(&Emitter); 5] = [
        |emitter| assert_eq!(emitter.reset(), 1),
        Emitter::close,
        |emitter| assert!(emitter.off_matching("*").is_ok()),
        |emitter| emit(emitter, "off"),
        |emitter| emit(emitter, "drop"),
    ];
    for remove in removals {
        let (recorder, emitter) = (Recorder::new(), Emitter::new());
        let own: Arc<Mutex<Option<DropGuard>>> = Arc::default();
        let (guard, parting) = (Arc::clone(&own), Parting(emitter.clone(), recorder.clone()));
        let subscription: Arc<OnceLock<Subscription>> = Arc::default();
        let handle = Arc::clone(&subscription);
        let listened = emitter.on("*", move |_: &mut dyn AnyEvent, meta| {
            let _ = &parting;
            match meta.name() {
                "off" => drop(handle.get().map(Subscription::off)),
                "drop" => drop(guard.lock().expect("calm").take()),
                _ => {}
            }
        })?;
        assert!(subscription.set(listened.clone()).is_ok());
        *own.lock().expect("calm") = Some(listened.drop_guard());
        drop(own);
        remove(&emitter);
        recorder.expect(["dropped"]);
        emit(&emitter, "late");
        recorder.expect(["registered in the drop: late"]);
    }
    Ok(())
}

/// E8.
#[test]
fn a_listener_with_a_limit_of_zero_calls_is_not_registered() -> TestResult {
    let emitter = Emitter::new();
    let subscription =
        emitter.with(Options::new().times(0)).on("x", |_: &mut (), _| -> () { panic!("it never runs") })?;
    assert_eq!((emitter.listener_count(), subscription.is_active()), (0, false));
    emitter.emit_now("x", &mut ())?;
    Ok(())
}
