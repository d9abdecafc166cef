//! R12: each run is a `tracing` span.

mod support;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use emitree_emitter::{BoxError, Creator, Emitter, EventMeta};
use emitree_runtime::{Error, Next, Phase, Result, RunContext, Runnable, Stage, runnable_fn};
use support::ends::{OUTCOMES, run_to};
use support::{Any, Recorder, TestResult, below, poll_once, silence_planned_panics};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Instrument, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// A recorded span.
#[derive(Clone, Debug, Default)]
struct Span {
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Span {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// Collects spans and events in the order in which they were created. An event is stored as a span named `event`.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(u64, Span)>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let parent = ctx.span(id).and_then(|span| span.parent().map(|parent| parent.id().into_u64()));
        let mut span = Span { name: attributes.metadata().name(), parent, ..Span::default() };
        attributes.record(&mut span);
        self.0.lock().expect("nobody panics here").push((id.into_u64(), span));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut spans = self.0.lock().expect("nobody panics here");
        let span = spans.iter_mut().rev().find(|(known, _)| *known == id.into_u64());
        values.record(&mut span.expect("a span of ours").1);
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let parent = ctx.event_span(event).map(|span| span.id().into_u64());
        let span = Span { name: "event", parent, ..Span::default() };
        self.0.lock().expect("nobody panics here").push((0, span));
    }
}

impl Spans {
    /// Collects the spans of this thread until the guard is dropped.
    fn collect() -> (Self, DefaultGuard) {
        let spans = Self::default();
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
        (spans, guard)
    }

    fn all(&self) -> Vec<Span> {
        self.0.lock().expect("nobody panics here").iter().map(|(_, span)| span.clone()).collect()
    }

    /// Returns one line per span: `name in parent: outcome`, with the path as the name of a run.
    fn lines(&self) -> Vec<String> {
        let spans = self.0.lock().expect("nobody panics here");
        let called = |span: &Span| span.fields.get("path").map_or(span.name, |path| path).to_owned();
        let line = |(at, (_, span)): (usize, &(u64, Span))| {
            let known = |id| spans[..at].iter().rev().find(|(known, _)| *known == id);
            let parent = span.parent.and_then(known).map_or("nothing".into(), |(_, parent)| called(parent));
            let outcome = span.fields.get("outcome").map_or("-", |outcome| outcome);
            format!("{} in {parent}: {outcome}", called(span))
        };
        spans.iter().enumerate().map(line).collect()
    }
}

// R12
#[tokio::test]
async fn a_run_is_a_span_with_run_id_parent_run_id_path_and_outcome() -> TestResult {
    let (spans, _guard) = Spans::collect();
    let tree = Emitter::new();
    let inner = Arc::new(below(&tree, "desk.inner", |(), ctx: RunContext| async move { Ok(ctx.run_id().to_string()) }));
    let outer = below(&tree, "outer", move |(), ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move { Ok((ctx.run_id().to_string(), inner.run(()).await?)) }
    });
    let (outer_id, inner_id) = outer.run(()).await?;

    let spans = spans.all();
    assert_eq!(spans.iter().map(|span| span.name).collect::<Vec<_>>(), ["run", "run"]);
    let fields = |fields: &[(&'static str, &str)]| {
        fields.iter().map(|&(name, value)| (name, value.to_owned())).collect::<BTreeMap<_, _>>()
    };
    let expected = [("path", "outer"), ("run_id", &outer_id), ("parent_run_id", ""), ("outcome", "success")];
    let named = |name: &'static str, title: &'static str| [("kind", "Run"), ("name", name), ("otel.name", title)];
    assert_eq!(spans[0].fields, fields(&[&expected[..], &named("outer", "Run outer")].concat()));
    let expected =
        [("path", "desk.inner"), ("run_id", &inner_id), ("parent_run_id", &outer_id), ("outcome", "success")];
    assert_eq!(spans[1].fields, fields(&[&expected[..], &named("desk.inner", "Run desk.inner")].concat()));
    Ok(())
}

/// A runnable of the kind `Tool` without an emitter of its own name.
struct Count(Emitter);

impl Runnable for Count {
    type Input = ();
    type Output = ();

    fn emitter(&self) -> &Emitter {
        &self.0
    }

    fn kind(&self) -> &str {
        "Tool"
    }

    fn name(&self) -> &str {
        "count"
    }

    async fn execute(&self, (): &(), _: &RunContext) -> Result<()> {
        Ok(())
    }
}

// R12: exporters for OpenTelemetry take the name of a span from the field `otel.name`.
#[tokio::test]
async fn a_span_says_the_kind_and_the_name_of_its_run() -> TestResult {
    let (spans, _guard) = Spans::collect();
    let tree = Emitter::new();
    runnable_fn("shout", |(), _: RunContext| async { Ok(()) }).run(()).await?;
    Count(tree.child("tools")?).run(()).await?;
    let model = Emitter::new().child_with(Creator::new("ChatModel", "gpt-5"));
    runnable_fn("gpt-5", |(), _: RunContext| async { Ok(()) }).with_emitter(model).run(()).await?;
    let titles: Vec<_> =
        spans.all().iter().map(|span| ["kind", "name", "otel.name"].map(|field| span.fields[field].clone())).collect();
    let expected =
        [["Run", "shout", "Run shout"], ["Tool", "count", "Tool count"], ["ChatModel", "gpt-5", "ChatModel gpt-5"]];
    assert_eq!(titles, expected.map(|row| row.map(str::to_owned)));
    Ok(())
}

// R12
#[tokio::test]
async fn a_span_has_the_outcome_of_its_run() {
    silence_planned_panics();
    for has_listeners in [false, true] {
        let (spans, _guard) = Spans::collect();
        let tree = Emitter::new();
        if has_listeners {
            tree.observe(Stage::Finish, |_: &Any, _| ()).expect("a valid matcher");
        }
        for (outcome, _) in OUTCOMES {
            run_to(outcome, &tree, |_: &RunContext| Ok(())).await;
        }
        assert_eq!(spans.lines(), OUTCOMES.map(|(_, name)| format!("run in nothing: {name}")));
    }
}

// R12
#[tokio::test]
async fn a_span_has_the_outcome_that_a_listener_or_a_middleware_causes() {
    let (spans, _guard) = Spans::collect();
    let run = below(&Emitter::new(), "run", |fails: bool, _: RunContext| async move {
        if fails { Err(Error::new("broken")) } else { Ok(()) }
    });
    drop(run.run(false).on_start(|_, _| Err("too early".into())).await);
    drop(run.run(false).on_success(|_, _| Err("too late".into())).await);
    drop(run.run(true).on_start(|start, _| start.output = Some(())).await);
    drop(run.run(false).middleware(|_: &RunContext| Err(Error::denied("desk", "closed"))).await);
    let outcomes = ["failed", "failed", "success", "denied"];
    assert_eq!(spans.lines(), outcomes.map(|outcome| format!("run in nothing: {outcome}")));
}

// R12
#[tokio::test]
async fn spans_and_events_inside_the_work_are_children_of_the_runs_span() -> TestResult {
    let (spans, _guard) = Spans::collect();
    let run = below(&Emitter::new(), "work", |(), _: RunContext| async {
        tracing::info_span!("before").in_scope(|| ());
        tokio::task::yield_now().await;
        tracing::info_span!("after").in_scope(|| tracing::info!("deep"));
        tracing::info!("shallow");
        Ok(())
    });
    let bind = |_: &RunContext| {
        tracing::info_span!("bind").in_scope(|| ());
        Ok(())
    };
    run.run(()).middleware(bind).await?;
    tracing::info_span!("outside").in_scope(|| ());
    assert_eq!(
        spans.lines(),
        [
            "work in nothing: success",
            "bind in work: -",
            "before in work: -",
            "after in work: -",
            "event in after: -",
            "event in work: -",
            "outside in nothing: -",
        ]
    );
    Ok(())
}

// R12
#[tokio::test]
async fn spans_inside_listeners_of_a_run_are_children_of_its_span() -> TestResult {
    let (spans, _guard) = Spans::collect();
    let tree = Emitter::new();
    tree.on("*.*", |_: &mut Any, _| tracing::info_span!("listener").in_scope(|| ()))?;
    below(&tree, "work", |(), _: RunContext| async { Ok(()) }).run(()).await?;
    assert_eq!(
        spans.lines(),
        ["work in nothing: success", "listener in work: -", "listener in work: -", "listener in work: -"]
    );
    Ok(())
}

// R12
#[tokio::test]
async fn the_spans_of_nested_runs_nest_even_if_a_run_is_started_in_a_spawned_task() -> TestResult {
    let (spans, _guard) = Spans::collect();
    let tree = Emitter::new();
    let step = |_: &RunContext| {
        tracing::info_span!("step").in_scope(|| ());
        Ok(())
    };
    let child: &'static _ = Box::leak(Box::new(below(&tree, "child", |(), _: RunContext| async { Ok(()) })));
    let parent = below(&tree, "parent", move |(), ctx: RunContext| async move {
        child.run(()).await?;
        ctx.spawn(async move {
            tracing::info_span!("task").in_scope(|| ());
            child.run(()).middleware(step).await
        })
        .await??;
        tokio::spawn(child.run(()).middleware(step)).await??;
        let around = tracing::info_span!("around");
        child.run(()).instrument(around).await
    });
    parent.run(()).await?;
    assert_eq!(
        spans.lines(),
        [
            "parent in nothing: success",
            "child in parent: success",
            "task in parent: -",
            "child in parent: success",
            "step in child: -",
            "child in parent: success",
            "step in child: -",
            "around in parent: -",
            "child in around: success",
        ]
    );
    Ok(())
}

// M1, R12
#[tokio::test]
async fn each_layer_is_a_span_around_the_layers_and_the_work_inside() -> TestResult {
    let (spans, _guard) = Spans::collect();
    let run = below(&Emitter::new(), "work", |(), _: RunContext| async {
        tracing::info_span!("inside").in_scope(|| ());
        Ok(())
    });
    let through = |name| emitree_runtime::layer_fn(name, |input, _, next: Next<'_, _>| Box::pin(next.run(input)));
    run.run(()).layers(|stack| stack.layer(through("inner")).layer_in(Phase::Retry, through("outer"))).await?;
    let lines = ["work in nothing: success", "layer in work: -", "layer in layer: -", "inside in layer: -"];
    assert_eq!(spans.lines(), lines);
    let fields = |span: &Span| format!("{} {}", span.fields["phase"], span.fields["name"]);
    let all = spans.all();
    assert_eq!([fields(&all[1]), fields(&all[2])], ["retry outer", "transform inner"]);
    Ok(())
}

// R12
#[tokio::test]
async fn the_span_of_a_run_is_a_child_of_the_users_span_around_the_run() -> TestResult {
    let (spans, _guard) = Spans::collect();
    let run = below(&Emitter::new(), "run", |(), _: RunContext| async { Ok(()) });
    run.run(()).instrument(tracing::info_span!("request")).await?;
    assert_eq!(spans.lines(), ["request in nothing: -", "run in request: success"]);
    Ok(())
}

// R12: the span ids of a subscriber are meaningless to another subscriber.
#[tokio::test]
async fn a_run_may_have_another_tracing_subscriber_than_its_parent() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let child = below(&tree, "child", |(), _: RunContext| async { Ok(7) });
    let notes = recorder.clone();
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let subscriber = tracing_subscriber::registry();
        // No span of that subscriber is current.
        let child = std::thread::scope(|threads| {
            let run = child.run(());
            let made = || tracing::subscriber::with_default(subscriber, || futures_util::FutureExt::now_or_never(run));
            threads.spawn(made).join()
        });
        notes.note(format!("{:?}", child.expect("it does not panic")));
        async { Ok(()) }
    });
    // Once other subscribers exist in the process, a span has an id even on a thread without a subscriber.
    let _others = [(); 2].map(|()| tracing::Dispatch::new(tracing_subscriber::registry()));
    parent.run(()).await?;
    recorder.expect(["Some(Ok(7))"]);
    Ok(())
}

// R10
#[tokio::test]
async fn a_failing_listener_of_finish_or_error_is_logged_in_the_span_of_the_run() {
    silence_planned_panics();
    let tree = Emitter::new();
    let work = below(&tree, "work", |fails: bool, _: RunContext| async move {
        if fails { Err(Error::new("planned")) } else { Ok(()) }
    });
    for (fails, logged) in [(false, 1), (true, 2)] {
        let (spans, _guard) = Spans::collect();
        let failing = work.run(fails).on_finish(|_, _| Err("no".into())).on_error(|_, _| -> () { panic!("planned") });
        assert_eq!(failing.await.is_err(), fails);
        let events = spans.lines().iter().filter(|line| **line == "event in work: -").count();
        assert_eq!(events, logged, "{:?}", spans.lines());
    }
}

/// Panics once: at the nth time that a span is entered, exited or recorded, or an event is logged.
struct PanicsAt(AtomicUsize);

impl PanicsAt {
    fn count(&self) {
        assert!(self.0.fetch_sub(1, Ordering::Relaxed) != 1, "a planned panic");
    }

    /// Calls a function with a subscriber that panics when its count reaches `at`.
    fn during(at: usize, f: impl FnOnce()) {
        let panics = tracing_subscriber::registry().with(Self(AtomicUsize::new(at)));
        tracing::subscriber::with_default(panics, f);
    }
}

impl<S: Subscriber> Layer<S> for PanicsAt {
    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        self.count();
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        self.count();
    }

    fn on_record(&self, _: &Id, _: &Record<'_>, _: Context<'_, S>) {
        self.count();
    }

    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        self.count();
    }
}

/// The behavior of a run after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Ends,
    Waits,
    /// A listener of `start` waits.
    StartWaits,
}

// R4
#[test]
fn a_run_that_has_started_ends_even_if_a_tracing_subscriber_panics() {
    silence_planned_panics();
    let cases =
        [Then::Ends, Then::Waits, Then::StartWaits].into_iter().flat_map(|then| (1..16).map(move |at| (then, at)));
    for (then, at) in cases {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        let run = below(&tree, "run", move |(), _: RunContext| async move {
            if then == Then::Waits { std::future::pending().await } else { Ok(()) }
        });
        PanicsAt::during(at, || {
            let mut run = run.run(()).on("*.*", recorder.changes());
            if then == Then::StartWaits {
                run = run.on_async(Stage::Start, |_: &mut Any, _| Box::pin(std::future::pending()));
            }
            let polled = catch_unwind(AssertUnwindSafe(|| poll_once(&mut run).is_ready()));
            catch_unwind(AssertUnwindSafe(|| drop(run))).ok();
            let told = recorder.take();
            let told: Vec<_> = told.iter().map(|path| path.as_str()).collect();
            match told[..] {
                [] | ["run.run.start", "run.run.success" | "run.run.error", "run.run.finish"] => {}
                _ => panic!("{then:?}, at {at}, {polled:?}: {told:?}"),
            }
        });
    }
}

// R4
#[test]
fn success_or_error_is_emitted_once_even_if_a_tracing_subscriber_panics_on_a_failure() {
    silence_planned_panics();
    for at in 1..30 {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        let run = below(&tree, "run", |(), _: RunContext| async { Ok(()) });
        PanicsAt::during(at, || {
            let failing = |_: &Any, _: &EventMeta<'_>| Err::<(), BoxError>("no".into());
            let mut run = run.run(()).on("*.*", recorder.changes()).observe("*.*", failing);
            catch_unwind(AssertUnwindSafe(|| poll_once(&mut run).is_ready())).ok();
            catch_unwind(AssertUnwindSafe(|| drop(run))).ok();
            let told = recorder.take();
            let told: Vec<_> = told.iter().filter_map(|path| path.rsplit('.').next()).collect();
            assert!(matches!(&told[..], [] | ["start", "success" | "error", "finish"]), "at {at}: {told:?}");
        });
    }
}

// R13
#[test]
fn a_run_ends_even_if_a_tracing_subscriber_panics_at_the_end_of_a_run_below() {
    silence_planned_panics();
    for at in 1..20 {
        let tree = Emitter::new();
        let child = Arc::new(below(&tree, "child", |(), _: RunContext| std::future::pending::<Result<()>>()));
        let held = Arc::new(Mutex::new(None));
        let keeps = Arc::clone(&held);
        let parent = below(&tree, "parent", move |(), _: RunContext| {
            let (child, keeps) = (Arc::clone(&child), Arc::clone(&keeps));
            async move {
                let mut run = child.run_shared(());
                assert!(poll_once(&mut run).is_pending(), "it never ends by itself");
                *keeps.lock().expect("nobody panics here") = Some(run);
                Ok(())
            }
        });
        PanicsAt::during(at, || {
            let mut run = parent.run(());
            let polls = || catch_unwind(AssertUnwindSafe(|| poll_once(&mut run).is_ready())).unwrap_or(false);
            let is_over = std::iter::repeat_with(polls).take(4).any(|is_over| is_over);
            assert!(is_over, "at {at}, the parent never ends");
            let child = held.lock().expect("nobody panics here").take();
            assert!(child.is_none_or(|mut child| poll_once(&mut child).is_ready()), "at {at}, the child never ends");
        });
    }
}
