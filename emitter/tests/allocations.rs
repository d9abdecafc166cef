//! Allocations, counted per thread: none without listeners (E15), few for a child, and no leaks (E1).

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use allocation_counter::{AllocationInfo, measure};
use emitree_emitter::{AnyEvent, BoxError, Emitter, EventName, Matcher, Options};
use futures_util::FutureExt;

use crate::support::{TestResult, run_of, run_within};

const TOKEN: EventName = EventName::new("token");

/// Returns a root, and a run below it that was started in another run.
fn leaf() -> (Emitter, Emitter) {
    let root = Emitter::new();
    let agent = root.child("backend").and_then(|backend| backend.child("agent")).expect("a name");
    let run = run_within(&root.child("tool").expect("a name"), &run_of(&agent));
    (root, run)
}

/// Counts the allocations of a thousand rounds of four emits: `emit` and `emit_now`, each with an `EventName` and with
/// text. One more round runs before the count. Each of the `listeners` that receive the event adds 1 to its payload.
#[track_caller]
fn count_emits(emitter: &Emitter, listeners: u64) -> AllocationInfo {
    let emit = || {
        let mut payload = 0_u64;
        emitter.emit_now(TOKEN, &mut payload).expect("no listener fails");
        emitter.emit_now("token", &mut payload).expect("no listener fails");
        emitter.emit(TOKEN, &mut payload).now_or_never().expect("nothing is awaited").expect("no listener fails");
        emitter.emit("token", &mut payload).now_or_never().expect("nothing is awaited").expect("no listener fails");
        assert_eq!(payload, 4 * listeners, "each listener receives each emit once");
    };
    emit();
    measure(|| (0..1000).for_each(|_| emit()))
}

/// E15.
#[test]
fn an_emit_that_no_listener_receives_allocates_nothing() -> TestResult {
    let (root, leaf) = leaf();
    assert_eq!(count_emits(&leaf, 0), AllocationInfo::default(), "nobody listens anywhere");

    root.on("other", |_: &mut dyn AnyEvent, _| ())?;
    leaf.on("other", |_: &mut u64, _| ())?;
    leaf.on_async("another", |_: &mut u64, _| Box::pin(async { Ok(()) }))?;
    leaf.on("tool.other", |_: &mut u64, _| ())?;
    assert_eq!(count_emits(&leaf, 0), AllocationInfo::default(), "only to other names and paths");

    for i in 0..100 {
        root.on(Matcher::regex(&format!("other{i}"))?, |_: &mut u64, _| ())?;
        leaf.on(format!("other_{i}_*"), |_: &mut u64, _| ())?;
    }
    assert_eq!(count_emits(&leaf, 0), AllocationInfo::default(), "only to other patterns");
    Ok(())
}

/// E7, E15: the payload is passed by `&mut`, without an allocation.
#[test]
fn an_emit_that_a_sync_listener_receives_allocates_nothing() -> TestResult {
    let matchers = ["token", "*", "*.*", "tool.token", "tok*", "**.token", "*.{token,x}"];
    for matcher in matchers {
        let (root, leaf) = leaf();
        let at = if matcher.contains('.') { &root } else { &leaf };
        at.on(matcher, |n: &mut u64, _| *n += 1)?;
        assert_eq!(count_emits(&leaf, 1), AllocationInfo::default(), "{matcher}");
        let observed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&observed);
        at.observe(matcher, move |_: &dyn AnyEvent, meta| {
            let is_as_expected = meta.name() == "token" && meta.id().get_version_num() == 7;
            count.fetch_add(usize::from(is_as_expected), Ordering::Relaxed);
        })?;
        assert_eq!(count_emits(&leaf, 1), AllocationInfo::default(), "{matcher}, observed, its id read");
        assert_eq!(observed.load(Ordering::Relaxed), 4 * 1001, "{matcher}, observed once for each emit");
    }
    Ok(())
}

/// The future of the emit holds all other state while the listener is awaited.
#[test]
fn an_emit_that_an_async_listener_receives_allocates_only_the_future_of_the_listener() -> TestResult {
    let (_root, leaf) = leaf();
    leaf.on_async("token", |n: &mut u64, _| {
        Box::pin(async move {
            *n += 1;
            Ok(())
        })
    })?;
    let emit = || leaf.emit(TOKEN, &mut 7_u64).now_or_never().expect("it answers at once").expect("it does not fail");
    // The first emit makes the snapshot, and the second makes the thread's slot for loading snapshots.
    (0..2).for_each(|_| emit());
    assert_eq!(measure(|| (0..1000).for_each(|_| emit())).count_total, 1000);
    Ok(())
}

/// Listeners are matched once per emitter and path. After that, an emit only calls the sync listeners.
#[test]
fn an_emit_that_ten_of_a_thousand_listeners_receive_allocates_nothing() -> TestResult {
    let (root, leaf) = leaf();
    for i in 0..1000 {
        let matcher = match i % 4 {
            0 => format!("tok{}*", i / 10),
            1 => format!("**.{i}"),
            2 => format!("tool.x{i}"),
            _ => format!("name{i}"),
        };
        root.with(Options::new().priority(i)).on(matcher, |_: &mut u64, _| ())?;
    }
    for _ in 0..10 {
        root.on("*.token", |n: &mut u64, _| *n += 1)?;
    }
    assert_eq!(count_emits(&leaf, 10), AllocationInfo::default());
    Ok(())
}

/// After a change, the next emit of an event searches its listeners again, and copies only those.
#[test]
fn on_and_emit_in_turn_allocate_the_same_beside_few_and_many_listeners() -> TestResult {
    let bytes_beside = |n: usize| {
        let emitter = Emitter::new();
        for i in 0..n {
            emitter.on(format!("name_{i}"), |_: &mut u64, _| ())?;
            emitter.observe(format!("a.name_{i}"), |_: &u64, _| ())?;
        }
        for i in 0..n / 50 {
            emitter.on(format!("name_{i}_*"), |_: &mut u64, _| ())?;
        }
        emitter.emit_now("token", &mut 0_u64)?;
        let turns = measure(|| {
            for i in 0..100 {
                emitter.on(format!("other_{i}"), |_: &mut u64, _| ()).expect("a matcher");
                emitter.emit_now("token", &mut 0_u64).expect("no listener fails");
            }
        });
        Ok::<_, BoxError>(turns.bytes_total)
    };
    let (few, many) = (bytes_beside(1000)?, bytes_beside(20_000)?);
    assert!(many <= few + few / 10, "{few} bytes beside 1,000 names, {many} bytes beside 20,000");
    Ok(())
}

/// The bound holds for a namespace of usual length.
#[test]
fn a_child_is_at_most_256_bytes_in_two_allocations() -> TestResult {
    let parent = Emitter::new().child_builder("backend.agent").context(serde_json::json!({"user": 1})).build()?;
    let mut child = None;
    let made = measure(|| child = Some(parent.child("chat_model")));
    assert!(made.bytes_current <= 256 && made.count_total <= 2, "{made:?}");
    let child = child.transpose()?;
    let mut run = None;
    let made = measure(|| run = child.as_ref().map(run_of));
    assert!(made.bytes_current <= 256 && made.count_total <= 2, "{made:?}");
    Ok(())
}

#[test]
fn an_emitter_keeps_the_same_number_of_bytes_however_many_levels_deep() -> TestResult {
    let mut path = vec![Emitter::new()];
    let root = path[0].clone();
    for _ in 0..20 {
        root.on("*.*", |_: &mut dyn AnyEvent, meta| assert!(meta.path().ends_with(".token")))?;
    }
    let mut below = |levels: usize| {
        let made = measure(|| {
            path.reserve_exact(levels);
            for _ in 0..levels {
                let child = path[path.len() - 1].child("some_name").expect("a name");
                // Listeners read the path, and the root stores which listeners match it.
                child.emit_now(TOKEN, &mut 7_u64).expect("no listener fails");
                path.push(child);
            }
            root.reset();
        });
        made.bytes_current / levels as i64
    };
    // The root has listeners when the first levels are made, and none afterwards.
    let (first, deeper, deepest) = (below(100), below(1000), below(3000));
    assert!(first <= 450 && deeper <= 450 && deepest <= 450, "{first}, {deeper} and {deepest} bytes for each level");
    Ok(())
}

/// E1.
#[test]
fn a_million_children_and_a_hundred_thousand_runs_created_and_dropped_leave_nothing_behind() -> TestResult {
    let root = Emitter::new();
    root.on("*.nothing", |_: &mut dyn AnyEvent, _| ())?;
    let churn = |n| {
        for _ in 0..n {
            let child = root.child("child").expect("a name");
            child.emit_now(TOKEN, &mut ()).expect("no listener fails");
        }
    };
    // The second emit is the first on this thread to load an existing snapshot. The thread keeps the memory that this
    // load allocates.
    churn(2);
    let left = measure(|| churn(1_000_000));
    assert_eq!((left.bytes_current, left.count_current), (0, 0));
    let left = measure(|| (0..100_000).for_each(|_| drop(run_within(&root, &run_of(&root)))));
    assert_eq!((left.bytes_current, left.count_current), (0, 0));
    Ok(())
}

/// E1: the children also have listeners and receive events before they are dropped.
#[test]
fn children_with_listeners_created_and_dropped_leave_nothing_behind() -> TestResult {
    let root = Emitter::new();
    root.on("*.*", |_: &mut dyn AnyEvent, _| ())?;
    let churn = |n| {
        for _ in 0..n {
            let child = run_of(&root.child("child").expect("a name"));
            let subscription = child.on("token", |_: &mut dyn AnyEvent, _| ()).expect("a matcher");
            child.observe("tok*", |_: &dyn AnyEvent, _| ()).expect("a matcher");
            child.emit_now(TOKEN, &mut ()).expect("no listener fails");
            subscription.off();
            child.emit_now(TOKEN, &mut ()).expect("no listener fails");
        }
    };
    churn(10);
    let left = measure(|| churn(500));
    assert_eq!((left.bytes_current, left.count_current), (0, 0));
    Ok(())
}

/// E1: a chain of emitters is dropped in a loop instead of by recursion.
#[test]
fn a_chain_of_100_000_nested_emitters_drops_without_overflowing_the_stack() {
    let left = measure(|| {
        let mut deepest = Emitter::new();
        for _ in 0..100_000 {
            deepest = deepest.child(()).expect("it has no name");
        }
        drop(deepest);
        let instance = Emitter::new().child("agent").expect("a name");
        let mut run = run_of(&instance);
        for _ in 0..100_000 {
            run = run_within(&instance, &run);
        }
        drop(run);
    });
    assert_eq!((left.bytes_current, left.count_current), (0, 0));
}
