//! `RunContext::subscribe`: subscribers receive the same lifecycle events as listeners, but do not count as listeners
//! of a run.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_emitter::{Emitter, EventMeta, EventRecord};
use emitree_runtime::{AbortHandle, Error, LifecycleRef, Result, RunContext, RunEvent, Runnable, Stage, wait_for_ends};
use serde_json::{Value, json};
use support::{Any, Recorder, TestResult, below, emitter_of, poll_once, silence_planned_panics};

/// Returns a middleware with a subscriber that records paths.
fn noting(
    recorder: &Recorder,
    label: &'static str,
) -> impl Fn(&RunContext) -> Result<()> + Send + Sync + use<> + 'static {
    let recorder = recorder.clone();
    move |ctx| {
        let recorder = recorder.clone();
        ctx.subscribe(move |event: &RunEvent<'_>| recorder.note(format!("{label} {}", event.path())));
        Ok(())
    }
}

/// The ways in which the inner run ends.
const ENDS: [&str; 8] = ["succeeds", "fails", "panics", "denied", "answered", "aborted", "times out", "dropped"];

async fn act(end: &str) -> Result<u32> {
    match end {
        "fails" => Err(Error::new("a planned failure")),
        "panics" => panic!("a planned panic"),
        "denied" => Err(Error::denied("desk", "closed")),
        "aborted" | "times out" | "dropped" => std::future::pending().await,
        _ => Ok(1),
    }
}

/// Returns the events of an inner run with the given end, as a subscriber or a listener of the outer run receives them.
async fn told(end: &'static str, observed: bool) -> Result<Vec<String>> {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let inner = Arc::new(below(&tree, "inner", move |(), _: RunContext| act(end)));
    let outer = below(&tree, "outer", move |(), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            let abort = AbortHandle::new();
            let mut run = inner.run(()).abort_on(&abort);
            match end {
                "answered" => run = run.on_start(|start, _| start.output = Some(7)),
                "aborted" => drop(abort.abort("enough")),
                "times out" => run = run.timeout(Duration::from_millis(5)),
                "dropped" => {
                    assert!(poll_once(&mut run).is_pending());
                    return Ok(());
                }
                _ => {}
            }
            run.await.ok();
            Ok(())
        }
    });
    let note = |recorder: &Recorder, path: &str, payload: Value| {
        let mut payload = payload;
        // The measured duration differs in each run.
        payload.as_object_mut().map(|payload| payload.remove("duration_ns"));
        recorder.note(format!("{path} {payload}"));
    };
    let run = outer.run(());
    if observed {
        let notes = recorder.clone();
        let observe = move |ctx: &RunContext| {
            let notes = notes.clone();
            ctx.subscribe(move |event: &RunEvent<'_>| note(&notes, event.path(), event.payload().to_json()));
            Ok(())
        };
        run.middleware(observe).await?;
    } else {
        let notes = recorder.clone();
        run.observe("*.*", move |event: &Any, meta| note(&notes, meta.path(), event.to_json())).await?;
    }
    Ok(recorder.take())
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_receives_the_same_events_as_a_listener_for_every_end() -> TestResult {
    silence_planned_panics();
    for end in ENDS {
        let seen = told(end, true).await?;
        assert_eq!(seen, told(end, false).await?, "{end}");
        assert_eq!(seen.len(), 6, "{end}: {seen:?}");
    }
    Ok(())
}

// E15
#[tokio::test]
async fn a_run_with_only_a_subscriber_has_no_listeners() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let inner = Arc::new(below(&tree, "inner", |(), ctx: RunContext| async move { Ok(ctx.has_listeners()) }));
    let outer = below(&tree, "outer", move |(), ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move { Ok([ctx.has_listeners(), inner.run(()).await?]) }
    });
    assert_eq!(outer.run(()).middleware(noting(&recorder, "sees")).await?, [false, false]);
    recorder.expect([
        "sees outer.run.start",
        "sees inner.run.start",
        "sees inner.run.success",
        "sees inner.run.finish",
        "sees outer.run.success",
        "sees outer.run.finish",
    ]);
    Ok(())
}

// R3
#[tokio::test]
async fn subscribers_are_called_after_all_listeners_nearest_run_first() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let nearest = recorder.clone();
    let inner = Arc::new(below(&tree, "inner", |(), _: RunContext| async { Ok(()) }));
    let outer = below(&tree, "outer", move |(), _: RunContext| {
        let inner = Arc::clone(&inner);
        let (first, second) = (noting(&nearest, "first"), noting(&nearest, "second"));
        async move { inner.run(()).middleware(first).middleware(second).await }
    });
    tree.observe("inner.run.start", recorder.sees("root"))?;
    let late = recorder.clone();
    tree.observe_async("inner.run.start", move |_: &Any, _| {
        let late = late.clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            late.note("late");
            Ok(())
        })
    })?;
    outer.run(()).middleware(noting(&recorder, "above")).await?;
    let seen: Vec<_> = recorder.take().into_iter().filter(|line| !line.contains("outer")).take(5).collect();
    let order = ["root inner.run.start", "late", "first inner.run.start", "second inner.run.start"];
    assert_eq!(seen, [&order[..], &["above inner.run.start"]].concat());
    Ok(())
}

// M5
#[tokio::test]
async fn a_subscriber_that_panics_does_not_affect_the_run_or_other_subscribers() -> TestResult {
    silence_planned_panics();
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let run = below(&tree, "run", |(), _: RunContext| async { Ok(7) });
    let panics = |ctx: &RunContext| {
        ctx.subscribe(|_: &RunEvent<'_>| panic!("a planned panic"));
        Ok(())
    };
    assert_eq!(run.run(()).middleware(panics).middleware(noting(&recorder, "sees")).await?, 7);
    recorder.expect(["sees run.run.start", "sees run.run.success", "sees run.run.finish"]);
    Ok(())
}

#[tokio::test]
async fn a_subscriber_receives_events_from_then_on_and_may_add_another_subscriber() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    let inner = Arc::new(below(&tree, "inner", |(), _: RunContext| async { Ok(()) }));
    let outer = below(&tree, "outer", move |(), ctx: RunContext| {
        let (inner, notes) = (Arc::clone(&inner), notes.clone());
        async move {
            inner.run(()).await?;
            let bind = noting(&notes, "second");
            let once = Mutex::new(Some(bind));
            ctx.subscribe(move |event: &RunEvent<'_>| {
                notes.note(format!("first {}", event.path()));
                let bind = once.lock().expect("nobody panics").take();
                if let Some(bind) = bind {
                    bind(event.run()).expect("it only observes");
                }
            });
            inner.run(()).await
        }
    });
    outer.run(()).await?;
    recorder.expect([
        // During this event, `second` is bound to the inner run.
        "first inner.run.start",
        "second inner.run.success",
        "first inner.run.success",
        "second inner.run.finish",
        "first inner.run.finish",
        "first outer.run.success",
        "first outer.run.finish",
    ]);
    Ok(())
}

#[tokio::test]
async fn a_subscriber_receives_events_as_listeners_have_changed_them() -> TestResult {
    let tree = Emitter::new();
    let double = below(&tree, "double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let observe = move |ctx: &RunContext| {
        let notes = Arc::clone(&notes);
        ctx.subscribe(move |event: &RunEvent<'_>| {
            let json = match event.lifecycle() {
                Some(LifecycleRef::Start(start)) => start.input_json(),
                Some(LifecycleRef::Success(success)) => success.output_json(),
                Some(LifecycleRef::Finish(finish)) => finish.status().as_str().into(),
                other => panic!("{other:?}"),
            };
            notes.lock().expect("nobody panics").push(json);
        });
        Ok(())
    };
    let run = double.run(1).on_start(|start, _| start.input = 10).on_success(|success, _| success.output += 1);
    assert_eq!(run.middleware(observe).await?, 21);
    assert_eq!(*seen.lock().expect("nobody panics"), [json!(10), json!(21), json!("success")]);
    Ok(())
}

// E14: a listener and a subscriber record the same data of an event.
#[tokio::test]
async fn a_subscriber_records_the_same_data_of_an_event_as_a_listener() -> TestResult {
    async fn records(heard: bool) -> Result<Vec<[Option<EventRecord>; 2]>> {
        let tree = Emitter::new();
        let run = below(&tree, "run", |(), _: RunContext| async { Ok(()) });
        emitter_of(&run).set_context("tenant", "acme")?;
        let records = Arc::new(Mutex::new(Vec::new()));
        let (hears, sees) = (Arc::clone(&records), Arc::clone(&records));
        let built = run.run(()).middleware(move |ctx: &RunContext| {
            let sees = Arc::clone(&sees);
            ctx.subscribe(move |event: &RunEvent<'_>| {
                let mut records = sees.lock().expect("nobody panics");
                let heard = records.pop_if(|pair: &mut [Option<EventRecord>; 2]| pair[1].is_none());
                let record = event.to_record();
                assert_eq!((record.id, &*record.path), (event.id(), event.path()));
                assert_eq!((&record.context, record.created_at), (event.context(), event.time().into()));
                records.push([heard.and_then(|[heard, _]| heard), Some(record)]);
            });
            Ok(())
        });
        if heard {
            let built = built.observe_async("*.*", move |event: &Any, meta| {
                let record = meta.to_record(event);
                hears.lock().expect("nobody panics").push([Some(record), None]);
                Box::pin(async {
                    tokio::task::yield_now().await;
                    Ok(())
                })
            });
            built.await?;
        } else {
            built.await?;
        }
        let records = std::mem::take(&mut *records.lock().expect("nobody panics"));
        Ok(records)
    }
    let json = |record: &EventRecord| serde_json::to_value(record).expect("JSON");
    let both = records(true).await?;
    assert_eq!(both.len(), 3);
    for [heard, seen] in &both {
        assert_eq!(heard.as_ref().map(json), seen.as_ref().map(json));
    }
    let alone = records(false).await?;
    for ([_, with], [none, without]) in both.iter().zip(&alone) {
        assert!(none.is_none());
        let (with, without) = (with.as_ref().map(json), without.as_ref().map(json));
        for key in ["path", "context", "group_id", "payload_type"] {
            let of = |record: &Option<Value>| record.as_ref().map(|record| record[key].clone());
            assert_eq!(of(&with), of(&without), "{key}");
        }
    }
    Ok(())
}

// R8
#[tokio::test]
async fn a_subscriber_receives_the_finish_of_a_dropped_run_after_async_listeners() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let run = below(&tree, "run", |(), _: RunContext| std::future::pending::<Result<()>>());
    let late = recorder.clone();
    emitter_of(&run).observe_async(Stage::Finish, move |_: &Any, _| {
        let late = late.clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            late.note("late");
            Ok(())
        })
    })?;
    let mut run = run.run(()).middleware(noting(&recorder, "sees"));
    assert!(poll_once(&mut run).is_pending());
    drop(run);
    assert!(wait_for_ends(Duration::from_secs(1)).await.is_complete());
    recorder.expect(["sees run.run.start", "sees run.run.error", "late", "sees run.run.finish"]);
    Ok(())
}

// E14
#[tokio::test]
async fn a_subscriber_reads_the_context_of_the_event_and_no_payload_is_serialized() -> TestResult {
    /// A payload that panics when it is serialized.
    #[derive(Clone, serde::Deserialize)]
    struct Shy;

    impl serde::Serialize for Shy {
        fn serialize<S: serde::Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
            panic!("nobody asked for it");
        }
    }

    let tree = Emitter::new();
    let run = below(&tree, "run", |_: Shy, _: RunContext| async { Ok(()) });
    let (contexts, heard) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (sees, hears) = (Arc::clone(&contexts), Arc::clone(&heard));
    let observe = move |ctx: &RunContext| {
        let sees = Arc::clone(&sees);
        ctx.subscribe(move |event: &RunEvent<'_>| {
            sees.lock().expect("nobody panics").push(event.context().get("late").cloned());
        });
        Ok(())
    };
    let built = run.run(Shy).middleware(observe).on_async(Stage::Start, |_: &mut Any, _| {
        Box::pin(async {
            tokio::task::yield_now().await;
            RunContext::current().expect("it is in a run").set("late", true)?;
            Ok(())
        })
    });
    let note = move |_: &Any, meta: &EventMeta<'_>| {
        hears.lock().expect("nobody panics").push(meta.context().get("late").cloned());
    };
    built.observe("*.*", note).await?;
    assert_eq!(*contexts.lock().expect("nobody panics"), *heard.lock().expect("nobody panics"));
    assert_eq!(contexts.lock().expect("nobody panics")[..2], [None, Some(json!(true))]);
    Ok(())
}

/// A value that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a planned panic");
    }
}

// R4
#[tokio::test]
async fn a_run_returns_its_output_even_if_its_bindings_panic_when_dropped() -> TestResult {
    silence_planned_panics();
    let tree = Emitter::new();
    let run = below(&tree, "run", |(), _: RunContext| async { Ok(7) });
    let observes = |ctx: &RunContext| {
        let bomb = Bomb;
        ctx.subscribe(move |_: &RunEvent<'_>| _ = &bomb);
        Ok(())
    };
    assert_eq!(run.run(()).middleware(observes).await?, 7);
    let listens = |ctx: &RunContext| {
        let bomb = Bomb;
        ctx.emitter().observe("*", move |_: &Any, _| _ = &bomb)?;
        Ok(())
    };
    assert_eq!(run.run(()).middleware(listens).await?, 7);
    Ok(())
}
