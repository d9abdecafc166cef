//! R14: when a run has ended, its bindings are dropped inside that run, so that a binding that holds its own run does
//! not keep the run alive.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_emitter::{BoxError, Emitter, EventMeta, ListenError, Options, Sink, SinkRecord};
use emitree_runtime::{
    AbortHandle, AnyRun, Error, Lifecycle, Middleware, Next, Result, RunContext, RunEvent, Runnable, Stack, Stage,
    Start, StreamItem, map_input, map_output,
};
use futures_util::{FutureExt, StreamExt};
use support::ends::expect_aborted;
use support::{Any, AtDrop, Recorder, Slot, TestResult, below, endless, poll_once, silence_planned_panics};
use tracing_subscriber::layer::SubscriberExt;

/// Counts the living runs. Each run has an extension, a `Living`, whose drop lowers the count.
#[derive(Clone, Default)]
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn enter(&self, ctx: &RunContext) {
        self.0.fetch_add(1, Ordering::SeqCst);
        ctx.set_extension(Living(self.clone()));
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

struct Living(Alive);

impl Drop for Living {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A function that adds a binding to a run. The binding keeps a value.
type Bind = fn(&RunContext, Kept) -> Result<()>;

/// A value that a binding keeps, usually the run's own context.
type Kept = Arc<dyn Send + Sync>;

fn changes_nothing(kept: Kept) -> impl Fn(&mut u32, &RunContext) -> Result<()> {
    move |_, _| {
        let _kept = &kept;
        Ok(())
    }
}

/// A middleware that keeps a value.
struct Keeps(#[expect(dead_code, reason = "it is dropped with it")] Kept);

impl std::fmt::Debug for Keeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keeps")
    }
}

impl Middleware for Keeps {
    fn bind(&self, _: &RunContext) -> Result<()> {
        Ok(())
    }
}

fn layers(kept: Kept) -> Stack<AnyRun> {
    let stack = Stack::builder().layer_fn("keeps", move |(): &(), _: &RunContext, next: Next<'_, AnyRun>| {
        let _kept = &kept;
        Box::pin(next.run(&()))
    });
    stack.build()
}

/// All kinds of bindings.
const KINDS: [(&str, Bind); 20] = [
    ("on", |ctx, kept| {
        ctx.emitter().on("*", move |_: &mut Any, _| _ = &kept)?;
        Ok(())
    }),
    ("observe", |ctx, kept| {
        ctx.emitter().observe("*.*", move |_: &Any, _| _ = &kept)?;
        Ok(())
    }),
    ("on_async", |ctx, kept| {
        let subscription = ctx.emitter().on_async("*", move |_: &mut Any, _| {
            let kept = Arc::clone(&kept);
            Box::pin(async move {
                drop(kept);
                Ok(())
            })
        });
        subscription?;
        Ok(())
    }),
    ("observe_async", |ctx, kept| {
        let subscription = ctx.emitter().observe_async("*", move |_: &Any, _| {
            let kept = Arc::clone(&kept);
            Box::pin(async move {
                drop(kept);
                Ok(())
            })
        });
        subscription?;
        Ok(())
    }),
    ("once", |ctx, kept| {
        ctx.emitter().with(Options::new().once()).on("never", move |_: &mut Any, _| _ = &kept)?;
        Ok(())
    }),
    ("persistent", |ctx, kept| {
        ctx.emitter().with(Options::new().persistent()).on("*", move |_: &mut Any, _| _ = &kept)?;
        Ok(())
    }),
    ("a matcher", |ctx, kept| {
        let matcher = move |_: &EventMeta<'_>| {
            _ = &kept;
            true
        };
        ctx.emitter().on(matcher, |_: &mut Any, _| ())?;
        Ok(())
    }),
    ("a pipe", |ctx, kept| {
        let target = Emitter::new();
        target.on("x", move |_: &mut Any, _| _ = &kept)?;
        ctx.emitter().pipe(&target);
        Ok(())
    }),
    ("layer", |ctx, kept| layers(kept).bind(ctx)),
    ("map_input", |ctx, kept| map_input(changes_nothing(kept)).bind(ctx)),
    ("map_output", |ctx, kept| map_output(changes_nothing(kept)).bind(ctx)),
    ("middleware", |ctx, kept| {
        ctx.bind_nested(Keeps(kept));
        Ok(())
    }),
    ("bind_nested", |ctx, kept| {
        ctx.bind_nested(move |_: &RunContext| {
            _ = &kept;
            Ok(())
        });
        Ok(())
    }),
    ("observer", |ctx, kept| {
        ctx.subscribe(move |_: &RunEvent<'_>| _ = &kept);
        Ok(())
    }),
    ("map_error", |ctx, kept| {
        ctx.map_error(move |error| {
            _ = &kept;
            error
        });
        Ok(())
    }),
    ("map_context", |ctx, kept| {
        ctx.map_context(move |_, value| {
            _ = &kept;
            value
        });
        Ok(())
    }),
    ("on_end", |ctx, kept| {
        ctx.on_end(move |_, _| drop(kept));
        Ok(())
    }),
    ("a listener that binds at the end", |ctx, kept| {
        let bind = move |_: &Any, _: &EventMeta<'_>| {
            let (kept, ctx) = (Arc::clone(&kept), RunContext::current().ok_or("in a run")?);
            ctx.subscribe(move |_: &RunEvent<'_>| _ = &kept);
            Ok(())
        };
        ctx.emitter().observe(Stage::Finish, bind)?;
        Ok(())
    }),
    ("on_end that leaves another", |ctx, kept| {
        ctx.on_end(move |ctx, _| ctx.on_end(move |_, _| drop(kept)));
        Ok(())
    }),
    ("a listener of a child", |ctx, kept| {
        let child = ctx.emitter().child("child")?;
        child.on("*", move |_: &mut Any, _| _ = &kept)?;
        Ok(())
    }),
];

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Succeeds,
    Fails,
    Panics,
    Aborted,
    TimesOut,
    Dropped,
    NotBound,
}

const ENDS: [End; 7] =
    [End::Succeeds, End::Fails, End::Panics, End::Aborted, End::TimesOut, End::Dropped, End::NotBound];

/// The moment of the binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    InTheWork,
    InFinish,
    AtEnd,
}

const WHENS: [When; 4] = [When::Before, When::InTheWork, When::InFinish, When::AtEnd];

/// Runs once with a binding that holds the run. If the binding is refused because the work has begun, its error is
/// ignored.
async fn run(tree: &Emitter, alive: &Alive, bind: Bind, (when, end): (When, End)) {
    let bind_own = move |ctx: &RunContext| bind(ctx, Arc::new(ctx.clone()));
    let work = move |_: u32, ctx: RunContext| async move {
        if when == When::InTheWork {
            bind_own(&ctx).ok();
        }
        match end {
            End::Succeeds | End::NotBound => Ok(7_u32),
            End::Fails => Err(Error::new("no")),
            End::Panics => panic!("a planned panic"),
            End::Aborted | End::TimesOut | End::Dropped => std::future::pending().await,
        }
    };
    let alive = alive.clone();
    let prepare = move |ctx: &RunContext| {
        alive.enter(ctx);
        match when {
            When::Before => bind_own(ctx)?,
            When::InTheWork => {}
            When::InFinish => {
                ctx.emitter().observe(Stage::Finish, move |_: &Any, _| {
                    let ctx = RunContext::current().ok_or("in a run")?;
                    bind_own(&ctx).ok();
                    Ok(())
                })?;
            }
            When::AtEnd => ctx.on_end(move |ctx, _| _ = bind_own(ctx)),
        }
        if end == End::NotBound { Err(Error::new("not here")) } else { Ok(()) }
    };
    let work = below(tree, "work", work);
    let abort = AbortHandle::new();
    let mut run = work.run(7).middleware(prepare).abort_on(abort.signal());
    if end == End::TimesOut {
        run = run.timeout(Duration::from_millis(1));
    }
    match end {
        End::Dropped => {
            assert!(poll_once(&mut run).is_pending());
            drop(run);
        }
        End::Aborted => {
            assert!(poll_once(&mut run).is_pending());
            abort.abort("enough");
            run.await.expect_err("it was aborted");
        }
        _ => _ = run.await,
    }
}

#[tokio::test(start_paused = true)]
async fn a_binding_that_holds_its_own_run_does_not_keep_the_run_alive() {
    silence_planned_panics();
    let (tree, alive) = (Emitter::new(), Alive::default());
    for (kind, bind) in KINDS {
        for (when, end) in WHENS.into_iter().flat_map(|when| ENDS.map(|end| (when, end))) {
            run(&tree, &alive, bind, (when, end)).await;
            assert_eq!(alive.count(), 0, "{kind}, bound {when:?}, {end:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_binding_that_holds_its_own_run_does_not_keep_a_nested_run_alive() {
    silence_planned_panics();
    let (tree, alive) = (Emitter::new(), Alive::default());
    let inner = (tree.clone(), alive.clone());
    let above = below(&tree, "above", move |(): (), ctx: RunContext| {
        let (tree, alive) = inner.clone();
        async move {
            alive.enter(&ctx);
            for (kind, bind) in KINDS {
                bind(&ctx, Arc::new(ctx.clone())).ok();
                for (when, end) in WHENS.into_iter().flat_map(|when| ENDS.map(|end| (when, end))) {
                    run(&tree, &alive, bind, (when, end)).await;
                    assert_eq!(alive.count(), 1, "{kind}, bound {when:?}, {end:?}");
                }
            }
            Ok(())
        }
    });
    above.run(()).await.expect("it succeeds");
    assert_eq!(alive.count(), 0);
}

/// Bindings are dropped by the thread that comes last: the thread that ends the run, or the thread that binds too late.
#[test]
fn a_binding_added_by_another_thread_as_the_run_ends_does_not_keep_the_run_alive() {
    let (tree, alive) = (Emitter::new(), Alive::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for round in 0..400 {
        let (_, bind) = KINDS[round % KINDS.len()];
        let (alive_of_run, (send, receive)) = (alive.clone(), std::sync::mpsc::channel::<RunContext>());
        let binder = std::thread::spawn(move || {
            let Ok(ctx) = receive.recv() else { return };
            // Some bindings come before the end and some after it; the test targets bindings during the end.
            for _ in 0..20 {
                bind(&ctx, Arc::new(ctx.clone())).ok();
            }
        });
        let work = below(&tree, "work", move |(): (), ctx: RunContext| {
            let (alive, send) = (alive_of_run.clone(), send.clone());
            async move {
                alive.enter(&ctx);
                send.send(ctx).ok();
                (0..round % 10).for_each(|_| std::thread::yield_now());
                Ok(())
            }
        });
        runtime.block_on(async { work.run(()).await }).expect("it succeeds");
        drop(work);
        binder.join().expect("it does not panic");
        assert_eq!(alive.count(), 0, "round {round}");
    }
}

/// Records the run in which a binding is dropped, the events before the drop, and the parent of a run that the drop
/// starts.
#[tokio::test]
async fn bindings_are_dropped_in_the_run_after_on_end_and_before_the_run_above_continues() {
    let not_before_the_drop_of_the_work = ["a listener of a child"];
    for (kind, bind) in KINDS.into_iter().filter(|(kind, _)| !not_before_the_drop_of_the_work.contains(kind)) {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        let notes = recorder.clone();
        let starts = recorder.clone();
        let late = Arc::new(below(&tree, "late", move |(): (), ctx: RunContext| {
            starts.note(format!("started in {}", ctx.parent().map_or("none", RunContext::name)));
            async { Ok(()) }
        }));
        let work = Arc::new(below(&tree, "work", |n: u32, _: RunContext| async move { Ok(n) }));
        let prepare = move |ctx: &RunContext| {
            let (notes, late) = (notes.clone(), late.clone());
            let at_drop = AtDrop(move || {
                let current = RunContext::current();
                notes.note(format!("dropped in {}", current.as_ref().map_or("none", |run| run.name())));
                assert!(poll_once(&mut late.run(())).is_ready());
            });
            let shared: Kept = Arc::new(parking_lot::Mutex::new(at_drop));
            bind(ctx, shared)
        };
        let notes = recorder.clone();
        let ends = move |ctx: &RunContext| {
            let (at_finish, on_end) = (notes.clone(), notes.clone());
            ctx.emitter()
                .with(Options::new().priority(-1))
                .observe(Stage::Finish, move |_: &Any, _| at_finish.note("finish"))?;
            ctx.on_end(move |_, _| on_end.note("at end"));
            Ok(())
        };
        let (guard, notes) = (recorder.clone(), recorder.clone());
        let above = below(&tree, "above", move |(): (), ctx: RunContext| {
            let (work, prepare, ends, guard) = (work.clone(), prepare.clone(), ends.clone(), guard.clone());
            let notes = notes.clone();
            async move {
                ctx.bind_nested(move |ctx: &RunContext| {
                    guard.note(format!("guarded {}", ctx.name()));
                    Ok(())
                });
                work.run(1).middleware(ends).middleware(prepare).await?;
                notes.note("goes on");
                Ok(())
            }
        });
        above.run(()).await.expect("it succeeds");
        let dropped = ["dropped in work", "guarded late", "started in above"];
        // The call of an `on_end` hook drops the hook's values. The hook that notes "at end" was added first.
        let expected: Vec<_> =
            ["guarded work", "finish", "at end"].into_iter().chain(dropped).chain(["goes on"]).collect();
        assert_eq!(recorder.take(), expected, "{kind}");
    }
}

#[tokio::test]
async fn a_run_that_has_ended_accepts_no_bindings_and_logs_the_first_late_emit() -> TestResult {
    let (tree, recorder, kept) = (Emitter::new(), Recorder::new(), Arc::new(parking_lot::Mutex::new(None)));
    recorder.watch(&tree);
    let keep = Arc::clone(&kept);
    let work = below(&tree, "work", move |n: u32, ctx: RunContext| {
        *keep.lock() = Some(ctx);
        async move { Ok(n) }
    });
    for is_heard_by_itself in [false, true] {
        let mut run = work.run(1);
        if is_heard_by_itself {
            run = run.on("never", |_: &mut Any, _| ());
        }
        run.await?;
        recorder.take();
        let ctx = kept.lock().take().ok_or("the work has it")?;
        let refused = ctx.emitter().on("progress", |_: &mut Any, _| ()).expect_err("it takes no listeners");
        let text = "this run of `work` has ended and accepts no more listeners; register listeners before it ends, or on its instance";
        assert!(matches!(refused, ListenError::RunEnded { .. }) && refused.to_string() == text, "{refused}");
        assert!(ctx.emitter().child("x")?.on("*", |_: &mut Any, _| ()).is_err());
        assert!(!ctx.emitter().pipe(&Emitter::new()).unpipe());
        assert!(!ctx.has_listeners() && !ctx.emitter().has_listeners());
        // A late event reaches no listener, because the bindings that could have redacted it are gone.
        let warnings = Warnings::default();
        let logs = tracing::subscriber::set_default(tracing_subscriber::registry().with(warnings.clone()));
        for _ in 0..3 {
            ctx.emitter().emit("progress", &mut "a secret".to_owned()).await?;
            assert_eq!(warnings.0.load(Ordering::SeqCst), 1, "only the first is logged");
        }
        ctx.emitter().child("x")?.emit_now("progress", &mut 1_u32)?;
        assert_eq!(warnings.0.load(Ordering::SeqCst), 1);
        drop(logs);
        recorder.expect([]);
        let layer = layers(Arc::new(())).bind(&ctx).expect_err("the work is over");
        assert!(layer.to_string().contains("work has begun"), "{layer}");
        assert!(ctx.explain().chain.is_empty() && ctx.explain().middlewares.is_empty());
        for (kind, bind) in KINDS {
            let kept: Kept = Arc::new(());
            bind(&ctx, Arc::clone(&kept)).ok();
            assert_eq!(Arc::strong_count(&kept), 1, "{kind} is kept");
        }
    }
    Ok(())
}

/// Counts warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        self.0.fetch_add(usize::from(*event.metadata().level() == tracing::Level::WARN), Ordering::SeqCst);
    }
}

#[tokio::test]
async fn withheld_context_values_are_logged_once() -> TestResult {
    let left = Slot::new();
    let leaves = left.clone();
    let work = below(&Emitter::new(), "work", move |(): (), ctx: RunContext| {
        ctx.map_context(|_, value| value);
        leaves.put(ctx);
        async { Ok(()) }
    });
    work.run(()).await?;
    let (ctx, warnings) = (left.take(), Warnings::default());
    let subscriber = tracing_subscriber::registry().with(warnings.clone());
    tracing::subscriber::with_default(subscriber, || {
        ctx.set("a", 1)?;
        ctx.set("b", 2)?;
        // A function that is added after the end receives no value: the values are already withheld.
        ctx.map_context(|_, value| value);
        ctx.set("c", 3)
    })?;
    assert_eq!(["a", "b", "c"].map(|key| ctx.get(key)), [const { Some(serde_json::Value::Null) }; 3]);
    assert_eq!(warnings.0.load(Ordering::SeqCst), 1);
    Ok(())
}

/// The `map_context` functions are dropped at the end of the run, so later values are withheld.
#[tokio::test]
async fn context_values_are_withheld_after_the_end_of_a_run_that_had_a_map_context() -> TestResult {
    let kept = Arc::new(parking_lot::Mutex::new(None));
    let keep = Arc::clone(&kept);
    let work = below(&Emitter::new(), "work", move |n: u32, ctx: RunContext| {
        *keep.lock() = Some(ctx);
        async move { Ok(n) }
    });
    let maps = |ctx: &RunContext| {
        ctx.map_context(|_, _| "redacted".into());
        Ok(())
    };
    work.run(1).await?;
    let free = kept.lock().take().ok_or("the work has it")?;
    work.run(1).middleware(maps).await?;
    let mapped = kept.lock().take().ok_or("the work has it")?;
    for ctx in [&free, &mapped] {
        ctx.set("key", "a secret")?;
    }
    assert_eq!(free.get("key"), Some("a secret".into()));
    assert_eq!(mapped.get("key"), Some(serde_json::Value::Null));
    Ok(())
}

/// Panics once, when a span is exited for the first time after the run has ended.
struct PanicsAfter(Arc<parking_lot::Mutex<Option<RunContext>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for PanicsAfter {
    fn on_exit(&self, _: &tracing::Id, _: tracing_subscriber::layer::Context<'_, S>) {
        let ended = self.0.lock().take_if(|run| run.has_ended());
        assert!(ended.is_none(), "a planned panic");
    }
}

/// The result of the run is lost, because a `tracing` subscriber panics after the end. The next poll returns an error
/// with the reason for the abort. If the run had `map_error` functions, they are already dropped, so the reason is
/// withheld.
#[test]
fn errors_are_withheld_after_the_end_of_a_run_that_had_a_map_error() {
    silence_planned_panics();
    let rows = [
        (false, "a secret"),
        (true, "the error was withheld, because its run has ended and the `map_error` functions were dropped"),
    ];
    for (is_mapped, message) in rows {
        let (abort, kept) = (AbortHandle::new(), Arc::new(parking_lot::Mutex::new(None)));
        let keep = Arc::clone(&kept);
        let maps = move |ctx: &RunContext| {
            if is_mapped {
                ctx.map_error(|_| Error::new("redacted"));
            }
            *keep.lock() = Some(ctx.clone());
            Ok(())
        };
        let waits = endless(&Emitter::new(), "waits", &Recorder::new());
        let mut run = waits.run(()).abort_on(&abort).middleware(maps);
        let subscriber = tracing_subscriber::registry().with(PanicsAfter(kept));
        tracing::subscriber::with_default(subscriber, || {
            assert!(poll_once(&mut run).is_pending());
            abort.abort("a secret");
            assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut run))).is_err(), "the result is lost");
            expect_aborted(run.now_or_never().expect("the run has ended"), message);
        });
    }
}

#[tokio::test]
async fn a_stream_still_yields_its_items_after_the_run_has_ended() -> TestResult {
    let work = below(&Emitter::new(), "work", |n: u32, ctx: RunContext| async move {
        for i in 0..n {
            ctx.emitter().emit("progress", &mut i.clone()).await?;
        }
        Ok(n)
    });
    let stream = work.run(3).events("*.*");
    let items: Vec<_> = stream.collect().await;
    let names = |item: &StreamItem<u32>| match item {
        StreamItem::Event(record) => record.name().to_string(),
        other => format!("{other:?}"),
    };
    let names: Vec<_> = items.iter().map(names).collect();
    assert_eq!(names, ["start", "progress", "progress", "progress", "success", "finish", "Result(Ok(3))"]);
    Ok(())
}

struct Paths(Recorder);

impl Sink for Paths {
    fn write(&mut self, record: &SinkRecord) -> std::result::Result<(), BoxError> {
        self.0.note(path_of(record));
        Ok(())
    }

    fn close(&mut self) -> std::result::Result<(), BoxError> {
        self.0.note("closed");
        Ok(())
    }
}

fn path_of(record: &SinkRecord) -> String {
    match record {
        SinkRecord::Event(event) => event.path.to_string(),
        other => format!("{other:?}"),
    }
}

// E13
#[tokio::test]
async fn a_sink_and_a_stream_on_a_run_receive_all_later_events_up_to_finish() -> TestResult {
    let (recorder, left) = (Recorder::new(), Slot::new());
    let (notes, leaves) = (recorder.clone(), left.clone());
    let work = below(&Emitter::new(), "work", move |n: u32, ctx: RunContext| {
        let attached = ctx.emitter().pipe_to(Paths(notes.clone())).map_err(Error::from);
        let streamed = ctx.emitter().stream("*.*", 16).map_err(Error::from);
        let leaves = leaves.clone();
        async move {
            leaves.put((attached?, streamed?));
            for i in 0..n {
                ctx.emitter().emit("progress", &mut i.clone()).await?;
            }
            Ok(n)
        }
    });
    work.run(2).await?;
    let (sink, stream) = left.take();
    let told = ["work.progress", "work.progress", "work.run.success", "work.run.finish"];
    assert_eq!(sink.close(Duration::from_secs(60)).await.complete()?, 4);
    recorder.expect(told.into_iter().chain(["closed"]));
    let streamed: Vec<_> = stream.map(|record| path_of(&record)).collect().await;
    assert_eq!(streamed, told);
    Ok(())
}

/// A middleware whose drop lets another thread look at the run.
#[derive(Debug)]
struct LooksAtDrop(std::sync::mpsc::Sender<bool>);

impl Middleware for LooksAtDrop {
    fn bind(&self, _: &RunContext) -> Result<()> {
        Ok(())
    }
}

impl Drop for LooksAtDrop {
    fn drop(&mut self) {
        let ctx = RunContext::current().expect("in the run");
        let (send, explained) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(ctx.explain()).ok());
        self.0.send(explained.recv_timeout(Duration::from_secs(10)).is_ok()).ok();
    }
}

#[tokio::test]
async fn a_middleware_is_dropped_under_no_lock() -> TestResult {
    let work = below(&Emitter::new(), "work", |n: u32, _: RunContext| async move { Ok(n) });
    let (send, looked) = std::sync::mpsc::channel();
    work.run(1).middleware(LooksAtDrop(send)).await?;
    assert!(looked.recv()?, "another thread could not look at the run meanwhile");
    Ok(())
}

/// Redaction still applies to an event that is under way; the redacting listener is dropped after the event, inside the
/// run.
#[tokio::test]
async fn an_emit_under_way_when_the_run_ends_still_calls_all_listeners_that_it_has_found() -> TestResult {
    let (tree, recorder, gate) = (Emitter::new(), Recorder::new(), Arc::new(tokio::sync::Notify::new()));
    let heard = recorder.clone();
    tree.observe("**.progress", move |text: &String, _| heard.note(text.clone()))?;
    let emits = Arc::new(parking_lot::Mutex::new(None));
    let (task, waits, notes) = (Arc::clone(&emits), Arc::clone(&gate), recorder.clone());
    let work = below(&tree, "work", move |(): (), ctx: RunContext| {
        let (task, waits, notes) = (Arc::clone(&task), Arc::clone(&waits), notes.clone());
        async move {
            let at_drop = AtDrop(move || {
                let current = RunContext::current();
                notes.note(format!("dropped in {}", current.as_ref().map_or("none", |run| run.name())));
            });
            let held = parking_lot::Mutex::new(at_drop);
            let first = Options::new().priority(1);
            ctx.emitter().with(first).on_async("progress", move |_: &mut String, _| {
                let waits = Arc::clone(&waits);
                Box::pin(async move {
                    waits.notified().await;
                    Ok(())
                })
            })?;
            ctx.emitter().on("progress", move |text: &mut String, _| {
                _ = &held;
                "redacted".clone_into(text);
            })?;
            *task.lock() =
                Some(tokio::spawn(async move { ctx.emitter().emit("progress", &mut "a secret".to_owned()).await }));
            tokio::task::yield_now().await;
            Ok(())
        }
    });
    work.run(()).await?;
    let emits = emits.lock().take().ok_or("it was spawned")?;
    gate.notify_one();
    emits.await??;
    recorder.expect(["redacted", "dropped in work"]);
    Ok(())
}

/// Bindings may be removed from any task or thread.
#[tokio::test]
async fn a_value_removed_on_another_thread_before_the_end_is_dropped_in_the_run() -> TestResult {
    let recorder = Recorder::new();
    let notes = recorder.clone();
    let work = below(&Emitter::new(), "work", move |(): (), ctx: RunContext| {
        let at_drop = |what: &'static str| {
            let notes = notes.clone();
            let at_drop: Kept = Arc::new(parking_lot::Mutex::new(AtDrop(move || {
                let current = RunContext::current();
                notes.note(format!("{what} in {}", current.as_ref().map_or("none", |run| run.name())));
            })));
            at_drop
        };
        let (listener, extension) = (at_drop("listener"), at_drop("extension"));
        async move {
            let subscription = ctx.emitter().on("never", move |_: &mut Any, _| _ = &listener)?;
            ctx.set_extension(extension);
            let elsewhere = std::thread::spawn(move || {
                subscription.off();
                ctx.set_extension::<Kept>(Arc::new(()));
            });
            elsewhere.join().map_err(|_| Error::new("it panicked"))?;
            Ok(())
        }
    });
    work.run(()).await?;
    recorder.expect(["listener in work", "extension in work"]);
    Ok(())
}

/// Neither piped events nor the events of an instance below the run's emitter bypass the redaction of the run.
#[tokio::test]
async fn no_event_rises_through_a_run_that_has_ended() -> TestResult {
    let (tree, recorder, kept) = (Emitter::new(), Recorder::new(), Arc::new(parking_lot::Mutex::new(None)));
    recorder.watch(&tree);
    let keep = Arc::clone(&kept);
    let outside = Emitter::new();
    let piped = outside.clone();
    let work = below(&tree, "work", move |(): (), ctx: RunContext| {
        piped.pipe(ctx.emitter());
        *keep.lock() = Some(ctx);
        async { Ok(()) }
    });
    work.run(()).on("*.*", |_: &mut Any, _| ()).await?;
    let ctx = kept.lock().take().ok_or("the work has it")?;
    recorder.take();
    let warnings = Warnings::default();
    let logs = tracing::subscriber::set_default(tracing_subscriber::registry().with(warnings.clone()));
    outside.emit("progress", &mut 1_u32).await?;
    recorder.expect([]);
    assert_eq!(warnings.0.load(Ordering::SeqCst), 1, "it is logged");
    drop(logs);
    let part = below(ctx.emitter(), "part", |n: u32, _: RunContext| async move { Ok(n) });
    part.run(1).on(Stage::Start, |start: &mut Start<u32, u32>, _| start.input = 7).await?;
    recorder.expect([]);
    Ok(())
}

/// If an instance below a run's emitter is run after that run has ended, the instance's listeners are still called.
#[tokio::test]
async fn listeners_of_an_instance_below_a_run_that_has_ended_receive_events_of_its_runs() -> TestResult {
    for is_bound in [false, true] {
        let make = |ctx: &RunContext| below(ctx.emitter(), "part", |n: u32, _: RunContext| async move { Ok(n) });
        let made = Arc::new(parking_lot::Mutex::new(None));
        let keep = Arc::clone(&made);
        let work = below(&Emitter::new(), "work", move |(): (), ctx: RunContext| {
            let part = make(&ctx);
            let guarded = part.on_start(|start, _| if start.input == 1 { Err("not that".into()) } else { Ok(()) });
            *keep.lock() = Some(part);
            async { guarded.map(drop).map_err(Error::from) }
        });
        let run = work.run(());
        if is_bound { run.on("*.*", |_: &mut Any, _| ()) } else { run }.await?;
        let part = made.lock().take().ok_or("the work has made it")?;
        part.run(1).await.expect_err("its listener refuses it");
        assert_eq!(part.run(2).await?, 2);
    }
    Ok(())
}

/// A value that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a planned panic");
    }
}

/// The unpolled run is the last owner of its parent, whose values panic when they are dropped.
#[tokio::test]
async fn no_panic_leaves_an_unpolled_run_that_outlives_the_run_above() -> TestResult {
    silence_planned_panics();
    for is_polled in [false, true] {
        let left = Arc::new(parking_lot::Mutex::new(None));
        let leaves = Arc::clone(&left);
        let work = below(&Emitter::new(), "work", move |(): (), ctx: RunContext| {
            ctx.set_extension(Bomb);
            let inner = Arc::new(below(&Emitter::new(), "inner", |(): (), _: RunContext| async { Ok(()) }));
            *leaves.lock() = Some(inner.run_shared(()));
            async { Ok(()) }
        });
        work.run(()).await?;
        let mut left = left.lock().take().ok_or("the work has made it")?;
        let end = AssertUnwindSafe(|| {
            assert!(!is_polled || poll_once(&mut left).is_ready());
            drop(left);
        });
        assert!(catch_unwind(end).is_ok(), "polled: {is_polled}");
    }
    Ok(())
}
