//! R9: the values that a run carries, and the code in which it is the current run.

use std::sync::Arc;

use crate::support::{Any, Recorder, TestResult, below, current_id, emitter_of, poll_once, silence_planned_panics};
use emitree_emitter::{BoxError, Emitter, EventMeta};
use emitree_runtime::{Error, RunContext, Runnable, Stage, runnable_fn};
use futures_core::future::BoxFuture;
use serde_json::{Value, json};

/// Records the path and the context of every event that reaches an emitter. The runtime's key `internal` is left out.
fn note_contexts(recorder: &Recorder, emitter: &Emitter) {
    let notes = recorder.clone();
    let note = move |_: &Any, meta: &EventMeta<'_>| {
        let mut context = json!(meta.context());
        context.as_object_mut().map(|map| map.remove("internal"));
        context.sort_all_objects();
        notes.note(format!("{} {context}", meta.path()));
    };
    emitter.observe("*.*", note).expect("a valid matcher");
}

// R9
#[tokio::test]
async fn the_context_of_a_run_overrides_its_parents_and_its_parents_overrides_its_instances() -> TestResult {
    let tree = Emitter::builder().context(json!({"root": "root", "all": "root"})).build()?;
    let context = json!({"instance": "instance", "two": "instance", "all": "instance"});
    let inner = tree.child_builder("inner").context(context).build()?;
    let inner = runnable_fn("inner", |(), ctx: RunContext| async move { Ok(json!(ctx.context())) }).with_emitter(inner);
    let inner = Arc::new(inner);
    let outer = below(&tree, "outer", move |(), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).context(json!({"own": "own"})).context(json!({"all": "own"})).await }
    });
    let context = outer.run(()).context(json!({"two": "parent", "three": "parent", "all": "parent"})).await?;
    let expected = json!({
        "root": "root", "instance": "instance", "two": "parent", "three": "parent", "own": "own", "all": "own",
    });
    assert_eq!(context, expected);
    Ok(())
}

// R9
#[tokio::test]
async fn a_context_value_set_during_a_run_applies_to_later_events_and_later_children() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_contexts(&recorder, &tree);
    let child = Arc::new(below(&tree, "child", |key: String, ctx: RunContext| async move {
        tokio::task::yield_now().await;
        Ok(ctx.set(key, "by child")?)
    }));
    let parent = below(&tree, "parent", move |(), ctx: RunContext| {
        let child = Arc::clone(&child);
        async move {
            let (early, setting) = (child.run("early".into()), async {
                ctx.set("set", 1)?;
                assert_eq!((ctx.get("set"), ctx.get("unset")), (Some(json!(1)), None));
                ctx.emitter().emit("word", &mut ()).await?;
                Ok(())
            });
            let (early, set) = tokio::join!(early, setting);
            early.and(set)?;
            child.run("late".into()).await
        }
    });
    parent.run(()).await?;
    recorder.expect([
        "parent.run.start {}",
        "child.run.start {}",
        "parent.word {\"set\":1}",
        "child.run.success {\"early\":\"by child\"}",
        "child.run.finish {\"early\":\"by child\"}",
        "child.run.start {\"set\":1}",
        "child.run.success {\"late\":\"by child\",\"set\":1}",
        "child.run.finish {\"late\":\"by child\",\"set\":1}",
        "parent.run.success {\"set\":1}",
        "parent.run.finish {\"set\":1}",
    ]);
    Ok(())
}

// R9
#[tokio::test]
async fn a_context_value_set_by_a_middleware_applies_to_every_event_of_the_run() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_contexts(&recorder, &tree);
    let run = below(&tree, "run", |(), _: RunContext| async { Ok(()) });
    run.run(()).middleware(|ctx: &RunContext| Ok(ctx.set("tenant", "acme")?)).await?;
    let tenant = json!({"tenant": "acme"});
    recorder.expect(["start", "success", "finish"].map(|name| format!("run.run.{name} {tenant}")).iter().map(|s| &**s));
    run.run(()).await?;
    recorder.expect(["run.run.start {}", "run.run.success {}", "run.run.finish {}"]);
    Ok(())
}

// R9, E3
#[tokio::test]
async fn a_group_set_during_a_run_applies_to_later_events_and_later_children() -> TestResult {
    for has_listeners in [true, false] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        let notes = recorder.clone();
        if has_listeners {
            tree.observe("*.*", move |_: &Any, meta| notes.note(format!("{} {:?}", meta.path(), meta.group_id())))?;
        }
        let group = |ctx: &RunContext| ctx.emitter().group_id().map(str::to_owned);
        let inner = Arc::new(below(&tree, "inner", move |(): (), ctx: RunContext| async move {
            tokio::task::yield_now().await;
            Ok(group(&ctx))
        }));
        let outer = below(&tree, "outer", move |(): (), ctx: RunContext| {
            let inner = Arc::clone(&inner);
            async move {
                let mut early = inner.run(());
                assert!(poll_once(&mut early).is_pending());
                ctx.set_group_id("first");
                ctx.set_group_id("set");
                Ok((early.await?, inner.run(()).await?, inner.run(()).group_id("own").await?, group(&ctx)))
            }
        });
        let [given, set, own] = ["given", "set", "own"].map(|group| Some(group.to_owned()));
        assert_eq!(outer.run(()).group_id("given").await?, (given, set.clone(), own, set.clone()));
        let Some(ended) = recorder.take().pop() else { continue };
        assert_eq!(ended, r#"outer.run.finish Some("set")"#);
    }
    Ok(())
}

// R9
#[tokio::test]
async fn a_run_takes_its_own_group_before_its_parents_and_its_parents_before_its_instances() -> TestResult {
    let tree = Emitter::new();
    let grouped = tree.child_builder("inner").group_id("instance").build()?;
    let inner =
        runnable_fn("inner", |(), ctx: RunContext| async move { Ok(ctx.emitter().group_id().map(str::to_owned)) });
    let inner = Arc::new(inner.with_emitter(grouped));
    let nested = Arc::clone(&inner);
    let outer = below(&tree, "outer", move |(), _: RunContext| {
        let inner = Arc::clone(&nested);
        async move { inner.run(()).await }
    });
    assert_eq!(inner.run(()).await?.as_deref(), Some("instance"));
    assert_eq!(inner.run(()).group_id("own").await?.as_deref(), Some("own"));
    assert_eq!(outer.run(()).group_id("parent").await?.as_deref(), Some("parent"));
    assert_eq!(outer.run(()).await?.as_deref(), Some("instance"));
    Ok(())
}

#[derive(Debug, PartialEq)]
struct Tenant(&'static str);

#[derive(Debug, PartialEq)]
struct Budget(u32);

// R9
#[tokio::test]
async fn extensions_are_inherited_and_an_extension_set_by_a_child_does_not_reach_its_parent() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    let child = Arc::new(below(&tree, "child", move |(), ctx: RunContext| {
        notes.note(format!("{:?} {:?}", ctx.extension::<Tenant>(), ctx.extension::<Budget>()));
        ctx.set_extension(Budget(0));
        async { Ok(()) }
    }));
    let notes = recorder.clone();
    let parent = below(&tree, "parent", move |(), ctx: RunContext| {
        let (child, notes) = (Arc::clone(&child), notes.clone());
        async move {
            child.run(()).await?;
            ctx.set_extension(Budget(7));
            child.run(()).extension(Tenant("other")).await?;
            notes.note(format!("{:?} {:?}", ctx.extension::<Tenant>(), ctx.extensions().get::<Budget>()));
            Ok(())
        }
    });
    parent.run(()).extension(Tenant("overwritten")).extension(Tenant("acme")).await?;
    recorder.expect([
        "Some(Tenant(\"acme\")) None",
        "Some(Tenant(\"other\")) Some(Budget(7))",
        "Some(Tenant(\"acme\")) Some(Budget(7))",
    ]);
    parent.run(()).await?;
    assert_eq!(recorder.take()[0], "None None");
    Ok(())
}

// R9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_of_extension_or_default_return_the_same_extension() -> TestResult {
    #[derive(Debug, Default)]
    struct Shared;
    let tree = Emitter::new();
    let child = below(&tree, "child", |(), ctx: RunContext| async move {
        Ok(Arc::as_ptr(&ctx.extension_or_default::<Shared>()).addr())
    });
    let child = Arc::new(child);
    let parent = below(&tree, "parent", move |(), ctx: RunContext| {
        let child = Arc::clone(&child);
        async move {
            let asks = (0..32)
                .map(|_| ctx.clone())
                .map(|run| tokio::spawn(async move { Arc::as_ptr(&run.extension_or_default::<Shared>()).addr() }));
            let mut got: Vec<usize> = futures_util::future::try_join_all(asks).await?;
            got.push(child.run(()).await?);
            got.dedup();
            Ok(got.len())
        }
    });
    assert_eq!(parent.run(()).await?, 1);
    Ok(())
}

// R9
#[tokio::test]
async fn a_context_returns_the_ids_parent_depth_and_instance_of_its_run() -> TestResult {
    let tree = Emitter::new();
    let inner = Arc::new(below(&tree, "inner", |(), ctx: RunContext| async move {
        let parent = ctx.parent().cloned().expect("it is nested");
        let (trace, above) = (ctx.trace(), parent.trace());
        assert_eq!((ctx.depth(), parent.depth()), (1, 0));
        assert_eq!((trace.run_id, trace.parent_run_id), (ctx.run_id(), Some(parent.run_id())));
        assert_eq!((trace.id, above.id), (parent.run_id(), parent.run_id()));
        assert_eq!(above.parent_run_id, None);
        assert_eq!(ctx.run_id().get_version_num(), 7);
        assert_ne!(ctx.instance(), parent.instance());
        assert!(format!("{ctx:?}").contains("inner"));
        Ok(ctx.has_ended())
    }));
    let outer = below(&tree, "outer", move |(), ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            assert_eq!(ctx.instance().emitter().namespace(), "outer");
            inner.run(()).await
        }
    });
    assert!(!outer.run(()).await?);
    Ok(())
}

/// Registers a listener with each of the four methods. The listeners record the current run, and async listeners record
/// it again after an await.
fn note_current(recorder: &Recorder, label: &str, emitter: &Emitter) -> TestResult {
    let [on, observe] = [(); 2].map(|()| {
        let (notes, label) = (recorder.clone(), label.to_owned());
        move |verb: &str, meta: &EventMeta<'_>| note(&notes, &label, verb, meta)
    });
    let sync = on.clone();
    emitter.on("*.*", move |_: &mut Any, meta| sync("on", meta))?;
    emitter.on_async("*.*", move |_: &mut Any, meta| noted_later(on.clone(), "on_async", meta))?;
    let sync = observe.clone();
    emitter.observe("*.*", move |_: &Any, meta| sync("observe", meta))?;
    emitter.observe_async("*.*", move |_: &Any, meta| noted_later(observe.clone(), "observe_async", meta))?;
    Ok(())
}

fn noted_later<'a>(
    note: impl Fn(&str, &EventMeta<'_>) + Send + 'a,
    verb: &'a str,
    meta: &'a EventMeta<'a>,
) -> BoxFuture<'a, Result<(), BoxError>> {
    Box::pin(async move {
        note(verb, meta);
        tokio::task::yield_now().await;
        note(verb, meta);
        Ok(())
    })
}

fn note(recorder: &Recorder, label: &str, verb: &str, meta: &EventMeta<'_>) {
    let happened_in = meta.trace().map(|trace| trace.run_id.to_string());
    let right = if current_id() == happened_in { "right" } else { "wrong" };
    recorder.note(format!("{} {label} {verb} {right}", meta.path()));
}

const NOTES_PER_EVENT: usize = 6;

// R9
#[tokio::test]
async fn the_current_run_is_the_events_run_in_listeners_on_every_emitter() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let inner =
        Arc::new(below(
            &tree,
            "inner",
            |(), ctx: RunContext| async move { Ok(ctx.emitter().emit("word", &mut ()).await?) },
        ));
    note_current(&recorder, "root", &tree)?;
    note_current(&recorder, "instance", emitter_of(&inner))?;
    let outer = below(&tree, "outer", move |(), ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            let own = current_id();
            assert_eq!(own, Some(ctx.run_id().to_string()));
            inner.run(()).await?;
            assert_eq!(current_id(), own, "the work is in its own run again");
            Ok(())
        }
    });
    let [bound, run] = [(); 2].map(|()| recorder.clone());
    let bind = move |ctx: &RunContext| {
        assert_eq!(current_id(), Some(ctx.run_id().to_string()));
        note_current(&bound, "parent run", ctx.emitter()).map_err(Error::from_boxed)
    };
    let by_run = move |_: &mut Any, meta: &EventMeta<'_>| note(&run, "builder", "on", meta);
    assert_eq!(current_id(), None);
    outer.run(()).middleware(bind).on("*.*", by_run).await?;
    assert_eq!(current_id(), None);

    let recorded = recorder.take();
    // Three emitters receive the four events of the inner run, and two emitters receive the three events of the outer
    // run. The listener that was added to the outer run with `on` receives all seven events.
    assert_eq!(recorded.len(), NOTES_PER_EVENT * (4 * 3 + 3 * 2) + 7, "{recorded:#?}");
    assert!(recorded.iter().all(|line| line.ends_with(" right")), "{recorded:#?}");
    Ok(())
}

// R9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_current_run_is_the_events_run_when_a_foreign_task_or_thread_emits() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_current(&recorder, "root", &tree)?;
    let quiet = Emitter::new();
    let notes = recorder.clone();
    quiet.on("*.*", move |_: &mut Any, meta| note(&notes, "quiet", "on", meta))?;
    let talk = below(&tree, "talk", |(), ctx: RunContext| async move {
        let emitter = ctx.emitter().clone();
        let foreign = async move {
            assert_eq!(current_id(), None);
            let emitted = emitter.emit("word", &mut ()).await;
            assert_eq!(current_id(), None);
            emitted
        };
        Ok(tokio::spawn(foreign).await??)
    });
    talk.run(()).await?;
    let now = below(&quiet, "talk", |(), ctx: RunContext| async move {
        let emitter = ctx.emitter().clone();
        std::thread::spawn(move || emitter.emit_now("word", &mut ())).join().expect("it does not panic")?;
        Ok(())
    });
    now.run(()).await?;

    let recorded = recorder.take();
    assert_eq!(recorded.len(), NOTES_PER_EVENT * 4 + 4, "{recorded:#?}");
    assert!(recorded.iter().all(|line| line.ends_with(" right")), "{recorded:#?}");
    Ok(())
}

// R9
#[tokio::test]
async fn the_current_run_is_the_events_run_when_another_run_emits() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let inner = Arc::new(below(&tree, "inner", |(), ctx: RunContext| async move {
        let outer = ctx.parent().expect("it is nested").emitter();
        outer.emit("word", &mut ()).await?;
        outer.emit("word", &mut ()).await?;
        assert_eq!(current_id(), Some(ctx.run_id().to_string()));
        Ok(())
    }));
    let outer = below(&tree, "outer", move |(), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    });
    note_current(&recorder, "root", &tree)?;
    outer.run(()).await?;
    let recorded = recorder.take();
    assert_eq!(recorded.len(), NOTES_PER_EVENT * (3 + 2 + 3), "{recorded:#?}");
    assert!(recorded.iter().all(|line| line.ends_with(" right")), "{recorded:#?}");
    Ok(())
}

// R9
#[tokio::test]
async fn there_is_no_current_run_outside_runs() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let talk = below(&tree, "talk", |(), _: RunContext| async move {
        assert!(tokio::spawn(async { current_id() }).await?.is_none());
        assert!(std::thread::spawn(current_id).join().expect("it does not panic").is_none());
        Ok(())
    });
    let run = talk.run(());
    assert_eq!(current_id(), None, "while a run is built");
    run.await?;
    assert_eq!(current_id(), None, "after a run");

    let notes = recorder.clone();
    tree.on("plain", move |_: &mut Any, _| notes.note(format!("{:?}", current_id())))?;
    tree.emit("plain", &mut ()).await?;
    recorder.expect(["None"]);
    Ok(())
}

// R9
#[tokio::test]
async fn concurrent_runs_in_one_task_are_each_in_their_own_run() -> TestResult {
    let tree = Emitter::new();
    let talk = below(&tree, "talk", |(), ctx: RunContext| async move {
        for _ in 0..3 {
            assert_eq!(current_id(), Some(ctx.run_id().to_string()));
            tokio::task::yield_now().await;
        }
        Ok(ctx.run_id().to_string())
    });
    let (one, two) = tokio::join!(talk.run(()), talk.run(()));
    assert_ne!(one?, two?);
    Ok(())
}

// R9
#[tokio::test]
async fn ctx_spawn_carries_the_run_into_a_task_and_a_bare_spawn_does_not() -> TestResult {
    let tree = Emitter::new();
    let child =
        Arc::new(below(&tree, "child", |(), ctx: RunContext| async move { Ok(json!(ctx.trace().parent_run_id)) }));
    let parent = below(&tree, "parent", move |(), ctx: RunContext| {
        let child = Arc::clone(&child);
        async move {
            let (one, two) = (Arc::clone(&child), child);
            let carried = ctx.spawn(async move { (current_id(), one.run(()).await) }).await?;
            let bare = tokio::spawn(async move { (current_id(), two.run(()).await) }).await?;
            assert_eq!((carried.0, carried.1?), (Some(ctx.run_id().to_string()), json!(ctx.run_id())));
            assert_eq!((bare.0, bare.1?), (None, Value::Null));
            Ok(())
        }
    });
    parent.run(()).await?;
    Ok(())
}

// R9
#[tokio::test]
async fn elapsed_is_measured_by_tokios_clock_from_the_first_poll() -> TestResult {
    tokio::time::pause();
    let slow = below(&Emitter::new(), "slow", |(), ctx: RunContext| async move {
        tokio::time::advance(std::time::Duration::from_secs(2)).await;
        Ok(ctx.elapsed().as_secs())
    });
    let run = slow.run(());
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    assert_eq!(run.await?, 2);
    Ok(())
}

// R9
#[tokio::test]
async fn has_ended_is_false_during_finish_and_true_afterwards() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let kept = Arc::new(std::sync::Mutex::new(None));
    let keep = Arc::clone(&kept);
    let run = below(&tree, "run", |(), ctx: RunContext| async move {
        assert!(!ctx.has_ended());
        Ok(())
    });
    let notes = recorder.clone();
    tree.on(Stage::Finish, move |_: &mut Any, _| {
        notes.note(format!("has ended: {}", RunContext::current().expect("in the run").has_ended()));
    })?;
    run.run(())
        .middleware(move |ctx: &RunContext| {
            *keep.lock().expect("nobody panics here") = Some(ctx.clone());
            Ok(())
        })
        .await?;
    recorder.expect(["has ended: false"]);
    assert!(kept.lock().expect("nobody panics here").as_ref().is_some_and(RunContext::has_ended));
    Ok(())
}

#[tokio::test]
async fn contexts_are_equal_when_they_are_of_the_same_run() -> TestResult {
    let tree = Emitter::new();
    let outer = below(&tree, "outer", |(), ctx: RunContext| async move {
        let task = ctx.clone();
        let in_task = ctx.spawn(async move { RunContext::current() == Some(task) }).await?;
        Ok([in_task, RunContext::current().as_ref() == Some(&ctx), ctx.parent() == Some(&ctx)])
    });
    assert_eq!(outer.run(()).await?, [true, true, false]);
    Ok(())
}

/// R9: own extensions of a run are not inherited. `own_extension_or_default` returns the same value to all callers.
#[tokio::test]
async fn own_extensions_belong_to_one_run_and_are_not_inherited() -> TestResult {
    struct Id(u32);
    let ids = |ctx: &RunContext| [ctx.own_extension::<Id>(), ctx.extension::<Id>()].map(|id| id.map_or(0, |id| id.0));
    let tree = Emitter::new();
    let inner = Arc::new(below(&tree, "inner", move |(), ctx: RunContext| async move { Ok(ids(&ctx)) }));
    let outer = below(&tree, "outer", move |(), ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            let given = ids(&ctx);
            ctx.set_own_extension(Id(3));
            let first = ctx.own_extension_or_default::<std::sync::atomic::AtomicU32>();
            assert!(Arc::ptr_eq(&first, &ctx.own_extension_or_default()));
            Ok([given, ids(&ctx), inner.run(()).await?])
        }
    });
    let run = outer.run(()).extension(Id(1)).own_extension(Id(2));
    assert_eq!(run.await?, [[2, 1], [3, 1], [0, 1]]);
    Ok(())
}

/// R14: each value is dropped, even if the drop of another value panics.
#[test]
fn a_value_that_panics_when_dropped_does_not_keep_other_values_alive() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("planned")
        }
    }
    silence_planned_panics();
    let kept = Arc::new(());
    let nothing = runnable_fn("nothing", |(), _: RunContext| async { Ok(()) });
    let run = nothing.run(()).extension(Panics).own_extension(Panics).own_extension(Arc::clone(&kept));
    let mut run = run.extension(Arc::clone(&kept));
    assert!(poll_once(&mut run).is_ready());
    drop(run);
    assert_eq!(Arc::strong_count(&kept), 1);
}
