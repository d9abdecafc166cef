//! Runs are counted by kind and outcome, once each, however they end; counting never affects a run.

mod support;

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_emitter::{BoxError, Emitter, EventMeta};
use emitree_middleware::Metrics;
use emitree_middleware::metrics::{Counted, MetricsError};
use emitree_runtime::{AbortHandle, Error, Interrupt, RunContext, Runnable, Status, for_tree, wait_for_ends};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use support::{Page, TestResult, instance, poll_once};
use tokio::time::sleep;

/// Returns the metrics of a recorder as sorted lines: `name{kind="Tool"} value`. The value of a histogram is a list.
fn told(snapshotter: &Snapshotter) -> Vec<String> {
    let all = snapshotter.snapshot().into_vec().into_iter();
    let mut lines: Vec<_> = all
        .map(|(key, _, _, value)| {
            let labels = key.key().labels().map(|label| format!("{}={:?}", label.key(), label.value()));
            let labels = labels.collect::<Vec<_>>().join(",");
            let value = match value {
                DebugValue::Counter(n) => n.to_string(),
                DebugValue::Gauge(n) => n.to_string(),
                DebugValue::Histogram(all) => format!("{:?}", all.iter().map(|value| value.0).collect::<Vec<_>>()),
            };
            format!("{}{{{labels}}} {value}", key.key().name())
        })
        .collect();
    lines.sort();
    lines
}

/// Blocks on a future in a new runtime with paused time.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

/// Returns the metrics that are recorded while a future is awaited.
fn counted<T>(future: impl Future<Output = T>) -> Vec<String> {
    let recorder = DebuggingRecorder::new();
    with_local_recorder(&recorder, || block_on(future));
    told(&recorder.snapshotter())
}

#[track_caller]
fn expect<'a>(lines: &[String], expected: impl IntoIterator<Item = &'a str>) {
    let expected: Vec<_> = expected.into_iter().collect();
    assert!(lines == expected, "expected:\n{}\ntold:\n{}", expected.join("\n"), lines.join("\n"));
}

fn of_name<'a>(lines: &'a [String], name: &str) -> Vec<&'a str> {
    lines.iter().filter_map(|line| line.strip_prefix(name)).collect()
}

/// Returns a runnable that sleeps for the given number of milliseconds, and fails for 0.
fn wait(root: &Emitter, kind: &'static str, name: &'static str) -> impl Runnable<Input = u64, Output = u64> + use<> {
    instance(root, kind, name, |ms: u64, _: RunContext| async move {
        sleep(Duration::from_millis(ms)).await;
        if ms > 0 { Ok(ms) } else { Err(Error::new("no time")) }
    })
}

#[test]
fn runs_are_counted_by_kind_and_outcome_and_timed_in_seconds_by_tokios_clock() {
    let lines = counted(async {
        let (metrics, root) = (Metrics::new(), Emitter::new());
        let (tool, agent) = (wait(&root, "Tool", "a"), wait(&root, "Agent", "b"));
        for ms in [250, 500, 0] {
            tool.run(ms).middleware(metrics.clone()).await.ok();
        }
        agent.run(1_000).middleware(metrics.clone()).await.ok();
    });
    expect(
        &lines,
        [
            r#"emitree_run_duration_seconds{kind="Agent",outcome="success"} [1.0]"#,
            r#"emitree_run_duration_seconds{kind="Tool",outcome="failed"} [0.0]"#,
            r#"emitree_run_duration_seconds{kind="Tool",outcome="success"} [0.25, 0.5]"#,
            r#"emitree_runs_active{kind="Agent"} 0"#,
            r#"emitree_runs_active{kind="Tool"} 0"#,
            r#"emitree_runs_ended_total{kind="Agent",outcome="success"} 1"#,
            r#"emitree_runs_ended_total{kind="Tool",outcome="failed"} 1"#,
            r#"emitree_runs_ended_total{kind="Tool",outcome="success"} 2"#,
            r#"emitree_runs_started_total{kind="Agent"} 1"#,
            r#"emitree_runs_started_total{kind="Tool"} 3"#,
        ],
    );
}

/// Ends one run in each possible way, and creates one run that never begins.
async fn end_in_every_way(metrics: &Metrics) {
    let ends = instance(&Emitter::new(), "Tool", "ends", |how: String, _: RunContext| async move {
        match &*how {
            "success" => Ok(()),
            "failed" => Err(Error::new("no")),
            "denied" => Err(Error::denied("desk", "no")),
            "halted" => Err(Error::halted("desk", "stop")),
            "interrupted" => Err(Error::interrupted(Interrupt::new("question", 1))),
            "panicked" => panic!("planned"),
            _ => std::future::pending().await,
        }
    });
    let run = |how: &str| ends.run(how.to_owned()).middleware(metrics.clone());
    for how in ["success", "failed", "denied", "halted", "interrupted", "panicked"] {
        run(how).await.ok();
    }
    run("timed_out").timeout(Duration::from_secs(1)).await.ok();
    let handle = AbortHandle::new();
    handle.abort("enough");
    run("aborted").abort_on(handle.signal()).await.ok();
    let mut dropped = run("dropped");
    assert!(poll_once(&mut dropped).is_pending());
    drop(dropped);
    // A run that is not polled does not begin.
    drop(run("never"));
    // A middleware that is bound after the `Metrics` fails to bind.
    run("unbound").middleware(|_: &RunContext| Err(Error::halted("desk", "closed"))).await.ok();
    // A listener of `success` makes the run fail.
    run("success").on_success(|_, _| Err("no".into())).await.ok();
    wait_for_ends(Duration::from_secs(1)).await;
}

/// The outcomes of the runs of `end_in_every_way`, and the number of runs with each outcome.
const ENDS: [(Status, usize); 9] = [
    (Status::Aborted, 1),
    (Status::Denied, 1),
    (Status::Dropped, 1),
    (Status::Failed, 2),
    (Status::Halted, 2),
    (Status::Interrupted, 1),
    (Status::Panicked, 1),
    (Status::Success, 1),
    (Status::TimedOut, 1),
];

#[track_caller]
fn expect_ends(lines: &[String]) {
    let expected = ENDS.map(|(status, n)| format!(r#"{{kind="Tool",outcome="{}"}} {n}"#, status.as_str()));
    assert_eq!(of_name(lines, "emitree_runs_ended_total"), expected);
    assert_eq!(of_name(lines, "emitree_runs_started_total"), [r#"{kind="Tool"} 11"#]);
    assert_eq!(of_name(lines, "emitree_runs_active"), [r#"{kind="Tool"} 0"#]);
    assert_eq!(of_name(lines, "emitree_run_duration_seconds").len(), ENDS.len());
}

// R4
#[test]
fn each_run_is_counted_once_however_it_ends() {
    expect_ends(&counted(async { end_in_every_way(&Metrics::new()).await }));
}

/// Records the events that a `Metrics` emits. The listener fails; it is async if `is_awaited` is `true`.
fn note(metrics: &Metrics, is_awaited: bool) -> TestResult<Arc<Mutex<Vec<Status>>>> {
    let said = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&said);
    let fails = move |counted: &Counted| {
        noted.lock().expect("nobody panics").push(counted.status);
        Err(BoxError::from("no"))
    };
    if is_awaited {
        metrics.emitter().on_async("counted", move |counted: &mut Counted, _| {
            let failed = fails(counted);
            Box::pin(async move {
                tokio::task::yield_now().await;
                failed
            })
        })?;
    } else {
        metrics.emitter().on("counted", move |counted: &mut Counted, _: &EventMeta<'_>| fails(counted))?;
    }
    Ok(said)
}

// R4, M5: `counted` is emitted exactly once for each run, and listeners do not change the counts.
#[test]
fn counted_is_emitted_once_per_run_and_failing_listeners_do_not_change_the_counts() -> TestResult {
    for is_awaited in [false, true] {
        let metrics = Metrics::new();
        let said = note(&metrics, is_awaited)?;
        expect_ends(&counted(async { end_in_every_way(&metrics).await }));
        let mut said = said.lock().expect("nobody panics").clone();
        said.sort_by_key(|status| status.as_str());
        let mut expected: Vec<_> = ENDS.iter().flat_map(|(status, n)| std::iter::repeat_n(*status, *n)).collect();
        if is_awaited {
            // One run has no `finish` at which an async listener could be awaited.
            let unbound = expected.iter().position(|status| *status == Status::Halted).expect("one");
            expected.remove(unbound);
        }
        assert_eq!(said, expected, "is awaited: {is_awaited}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn events_of_metrics_reach_their_emitter_and_the_run_with_the_run_s_ids() -> TestResult {
    let (metrics, heard) = (Metrics::new(), Arc::new(Mutex::new(Vec::new())));
    let note = |who: &'static str| {
        let heard = Arc::clone(&heard);
        move |counted: &mut Counted, meta: &EventMeta<'_>| {
            let run_id = meta.trace().map(|trace| trace.run_id);
            let json = serde_json::to_string(counted).expect("it is JSON");
            heard.lock().expect("nobody panics").push((who, run_id, meta.path().to_owned(), json));
        }
    };
    metrics.emitter().on("counted", note("own"))?;
    let run_id = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&run_id);
    let wait = wait(&Emitter::new(), "Tool", "wait");
    let run = wait.run(5).middleware(metrics).on("middleware.metrics.counted", note("run"));
    let run = run.middleware(move |ctx: &RunContext| {
        *keep.lock().expect("nobody panics") = Some(ctx.run_id());
        Ok(())
    });
    run.await?;
    let run_id = *run_id.lock().expect("nobody panics");
    let json = r#"{"kind":"Tool","name":"wait","status":"success","duration_ns":5000000}"#;
    let said = |who| (who, run_id, "middleware.metrics.counted".to_owned(), json.to_owned());
    assert_eq!(*heard.lock().expect("nobody panics"), ["own", "run"].map(said));
    Ok(())
}

// The order of binding does not matter.
#[tokio::test(start_paused = true)]
async fn a_trajectory_shows_counted_for_each_run() -> TestResult {
    let (root, page) = (Emitter::new(), Page::new());
    let inner = Arc::new(wait(&root, "Tool", "inner"));
    let outer = instance(&root, "Agent", "outer", move |ms: u64, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(ms).await }
    });
    let metrics = || for_tree(Metrics::new());
    let trajectory = || page.built(|builder| builder.events("middleware.metrics.*"));
    let counted = |level: &str, kind: &str, name: &str| {
        let of = format!("duration_ns: 1000000, kind: {kind}, name: {name}, status: success");
        format!("{level}Middleware[metrics][counted]: {of}")
    };
    for run in [
        outer.run(1).middleware(metrics()).middleware(trajectory()),
        outer.run(1).middleware(trajectory()).middleware(metrics()),
    ] {
        run.await?;
        let text = page.take();
        let lines: Vec<_> = text.lines().filter(|line| line.contains("metrics")).collect();
        assert_eq!(lines, [counted("<-- ", "Tool", "inner"), counted("", "Agent", "outer")], "{text}");
    }
    Ok(())
}

/// Returns the outcomes that a listener of `counted` receives if the run's own work registers the listener.
async fn listen_under_way(metrics: &Metrics, is_awaited: bool) -> TestResult<Vec<Status>> {
    let (said, noted) = (Arc::new(Mutex::new(None)), metrics.clone());
    let keep = Arc::clone(&said);
    let listens = instance(&Emitter::new(), "Tool", "listens", move |(): (), _: RunContext| {
        *keep.lock().expect("nobody panics") = note(&noted, is_awaited).ok();
        async { Ok(()) }
    });
    listens.run(()).middleware(metrics.clone()).await?;
    let said = said.lock().expect("nobody panics").take().ok_or("it works")?;
    let said = said.lock().expect("nobody panics").clone();
    Ok(said)
}

#[test]
fn a_listener_registered_during_the_run_receives_counted_unless_it_is_async() -> TestResult {
    let lines = counted(async {
        assert_eq!(listen_under_way(&Metrics::new(), false).await?, [Status::Success]);
        assert_eq!(listen_under_way(&Metrics::new(), true).await?, []);
        Ok::<_, BoxError>(())
    });
    assert_eq!(of_name(&lines, "emitree_runs_ended_total"), [r#"{kind="Tool",outcome="success"} 2"#]);
    Ok(())
}

#[test]
fn the_gauge_of_active_runs_counts_the_runs_under_way() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    with_local_recorder(&recorder, || {
        block_on(async {
            let wait = wait(&Emitter::new(), "Tool", "wait");
            let metrics = Metrics::new();
            let mut runs = [1, 2, 3].map(|ms| wait.run(ms).middleware(metrics.clone()));
            for run in &mut runs {
                assert!(poll_once(run).is_pending());
            }
            assert_eq!(of_name(&told(&snapshotter), "emitree_runs_active"), [r#"{kind="Tool"} 3"#]);
            let [first, ..] = runs;
            first.await.expect("it is waited for");
            // Each snapshot resets the recorder's metrics to 0.
            assert_eq!(of_name(&told(&snapshotter), "emitree_runs_active"), [r#"{kind="Tool"} -1"#]);
        });
    });
}

#[test]
fn for_tree_counts_the_runs_below_too() {
    let lines = counted(async {
        let root = Emitter::new();
        let inner = Arc::new(wait(&root, "Tool", "inner"));
        let outer = instance(&root, "Agent", "outer", move |(): (), _: RunContext| {
            let inner = Arc::clone(&inner);
            async move { Ok(inner.run(1).await? + inner.run(1).await?) }
        });
        outer.run(()).middleware(for_tree(Metrics::new())).await
    });
    let ended = [r#"{kind="Agent",outcome="success"} 1"#, r#"{kind="Tool",outcome="success"} 2"#];
    assert_eq!(of_name(&lines, "emitree_runs_ended_total"), ended);
}

#[test]
fn a_metrics_middleware_is_shared_by_100_concurrent_runs() {
    let lines = counted(async {
        let (metrics, wait) = (Metrics::new(), wait(&Emitter::new(), "Tool", "wait"));
        futures_util::future::join_all((0..100).map(|n| wait.run(n % 2).middleware(metrics.clone()))).await
    });
    let ended = [r#"{kind="Tool",outcome="failed"} 50"#, r#"{kind="Tool",outcome="success"} 50"#];
    assert_eq!(of_name(&lines, "emitree_runs_ended_total"), ended);
    assert_eq!(of_name(&lines, "emitree_runs_active"), [r#"{kind="Tool"} 0"#]);
}

#[test]
fn custom_names_and_labels_are_added_and_a_panicking_label_function_yields_unknown() -> TestResult {
    let metrics = Metrics::builder()
        .prefix("shop")
        .names()
        .label("tenant", |run| run.get("tenant").and_then(|tenant| Some(tenant.as_str()?.to_owned())).expect("planned"))
        .build()?;
    let lines = counted(async {
        let wait = wait(&Emitter::new(), "Tool", "wait");
        for tenant in ["acme", "zoo"] {
            wait.run(1).context(serde_json::json!({"tenant": tenant})).middleware(metrics.clone()).await?;
        }
        wait.run(1).middleware(metrics.clone()).await
    });
    let labelled = |tenant| format!(r#"{{kind="Tool",name="wait",tenant="{tenant}"}} 1"#);
    assert_eq!(of_name(&lines, "shop_runs_started_total"), ["acme", "unknown", "zoo"].map(labelled));
    assert!(lines.iter().all(|line| line.starts_with("shop_")), "{lines:?}");
    Ok(())
}

#[test]
fn runs_with_new_labels_beyond_max_combinations_are_counted_as_other() -> TestResult {
    let metrics = Metrics::builder().names().max_combinations(2).build()?;
    let lines = counted(async {
        let root = Emitter::new();
        for name in ["a", "b", "c", "d", "a", "c"] {
            wait(&root, "Tool", name).run(1).middleware(metrics.clone()).await.ok();
        }
    });
    let ended = [
        r#"{kind="Tool",name="a",outcome="success"} 2"#,
        r#"{kind="Tool",name="b",outcome="success"} 1"#,
        r#"{kind="other",name="other",outcome="success"} 3"#,
    ];
    assert_eq!(of_name(&lines, "emitree_runs_ended_total"), ended);
    Ok(())
}

#[test]
fn invalid_options_of_metrics_are_errors_that_quote_the_value_and_the_remedy() {
    let label = |name: &str| Metrics::builder().label(name, |_| "x");
    let rows = [
        (
            Metrics::builder().prefix("my shop"),
            "`my shop` is not a valid prefix of metric names: use letters, digits, `_` and `:`, and begin with a non-digit",
        ),
        (
            Metrics::builder().prefix(""),
            "`` is not a valid prefix of metric names: use letters, digits, `_` and `:`, and begin with a non-digit",
        ),
        (
            label("9"),
            "`9` is not a valid label name: use letters, digits and `_`, and do not begin with a digit or `__`",
        ),
        (
            label("__x"),
            "`__x` is not a valid label name: use letters, digits and `_`, and do not begin with a digit or `__`",
        ),
        (label("kind"), "the label `kind` exists already or is reserved: choose another name"),
        (
            label("tenant").label("tenant", |_| "x"),
            "the label `tenant` exists already or is reserved: choose another name",
        ),
        (
            Metrics::builder().max_combinations(0),
            "with at most 0 combinations of labels, all runs would be counted as `other`: allow 1 or more",
        ),
    ];
    for (builder, expected) in rows {
        let error: MetricsError = builder.build().expect_err("a wrong option");
        assert_eq!(error.to_string(), expected);
    }
}

/// A recorder that panics when a metric is incremented or, if `registers` is `false`, when a metric is registered.
struct Panics {
    registers: bool,
}

impl metrics::CounterFn for Panics {
    fn increment(&self, _: u64) {
        panic!("planned");
    }

    fn absolute(&self, _: u64) {}
}

impl Recorder for Panics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        assert!(self.registers, "planned");
        Counter::from_arc(Arc::new(Self { registers: true }))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

// M5
#[test]
fn a_panicking_recorder_does_not_affect_a_run() {
    for registers in [false, true] {
        let recorder = Panics { registers };
        let output = with_local_recorder(&recorder, || {
            block_on(async { wait(&Emitter::new(), "Tool", "wait").run(7).middleware(Metrics::new()).await })
        });
        assert_eq!(output.expect("it is not hurt"), 7);
    }
}

#[test]
fn each_run_is_counted_by_the_recorder_that_is_installed_during_the_run() {
    let (metrics, wait) = (Metrics::new(), wait(&Emitter::new(), "Tool", "wait"));
    let run = || block_on(async { wait.run(1).middleware(metrics.clone()).await }).expect("it succeeds");
    // First run while no recorder is installed.
    run();
    let recorders = [DebuggingRecorder::new(), DebuggingRecorder::new()];
    for recorder in &recorders {
        with_local_recorder(recorder, || [run(), run()]);
    }
    for recorder in &recorders {
        let lines = told(&recorder.snapshotter());
        assert_eq!(of_name(&lines, "emitree_runs_ended_total"), [r#"{kind="Tool",outcome="success"} 2"#]);
    }
}

#[test]
fn a_run_that_ends_without_its_recorder_does_not_affect_the_counts_of_later_runs() {
    let (metrics, wait) = (Metrics::new(), wait(&Emitter::new(), "Tool", "wait"));
    let recorder = DebuggingRecorder::new();
    let mut run = wait.run(1).middleware(metrics.clone());
    block_on(async {
        with_local_recorder(&recorder, || {
            assert!(poll_once(&mut run).is_pending());
        });
        // Drop the run while no recorder is installed.
        drop(run);
    });
    with_local_recorder(&recorder, || {
        block_on(async {
            let mut run = wait.run(1).middleware(metrics.clone());
            assert!(poll_once(&mut run).is_pending());
            drop(run);
        });
    });
    let lines = told(&recorder.snapshotter());
    assert_eq!(of_name(&lines, "emitree_runs_ended_total"), [r#"{kind="Tool",outcome="dropped"} 1"#]);
    assert_eq!(of_name(&lines, "emitree_runs_active"), [r#"{kind="Tool"} 0"#]);
}

#[test]
fn each_metric_is_described_once_to_a_recorder() {
    let recorder = Describes::default();
    with_local_recorder(&recorder, || {
        block_on(async {
            let metrics = Metrics::new();
            for kind in ["Tool", "Agent"] {
                wait(&Emitter::new(), kind, "wait").run(1).middleware(metrics.clone()).await.expect("it succeeds");
            }
        });
    });
    let described = recorder.0.into_inner().expect("nobody panics");
    let expected = [
        "emitree_runs_started_total count",
        "emitree_runs_active count",
        "emitree_runs_ended_total count",
        "emitree_run_duration_seconds seconds",
    ];
    assert_eq!(described, expected);
}

/// Records the descriptions of metrics.
#[derive(Default)]
struct Describes(Mutex<Vec<String>>);

impl Describes {
    fn note(&self, name: &KeyName, unit: Option<Unit>) {
        let unit = unit.map_or("", |unit| unit.as_str());
        self.0.lock().expect("nobody panics").push(format!("{} {unit}", name.as_str()));
    }
}

impl Recorder for Describes {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.note(&name, unit);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.note(&name, unit);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.note(&name, unit);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn metrics_register_no_listener_on_the_run() {
    block_on(async {
        let heard = instance(&Emitter::new(), "Tool", "heard", |(): (), ctx: RunContext| async move {
            Ok(ctx.emitter().has_listeners())
        });
        assert!(!heard.run(()).middleware(Metrics::new()).await.expect("it succeeds"));
    });
}

#[test]
fn explain_lists_metrics_with_their_labels() {
    let wait = wait(&Emitter::new(), "Tool", "wait");
    let run = wait.run(1).middleware(Metrics::new());
    let lines = ["wait", "  bound:", "    metrics: emitree_*: kind, outcome; at most 1000 combinations"];
    assert!(run.explain().to_string().starts_with(&lines.join("\n")), "{}", run.explain());
}
