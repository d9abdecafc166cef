//! Each option of a trajectory does what it says; the defaults are those of the other test files.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_emitter::{Creator, Emitter, Options, matcher_fn};
use emitree_middleware::Runs;
use emitree_middleware::trajectory::{Target, Trajectory, TrajectoryError};
use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
use serde_json::{Value, json};

use support::{Any, File, LINES, Page, TestResult, desk, failing_desk, instance, question};

async fn shown(options: impl FnOnce(Builder) -> Builder) -> Page {
    let page = Page::new();
    let desk = desk(&Emitter::new());
    desk.run(question()).middleware(page.built(options)).await.expect("a desk that works");
    page
}

type Builder = emitree_middleware::trajectory::TrajectoryBuilder;

#[tokio::test]
async fn only_what_is_included_is_shown() {
    let page = shown(|builder| builder.included(Runs::of_kind("Tool"))).await;
    page.expect(LINES[1..5].to_vec());
    let page = shown(|builder| builder.included(Runs::named("Desk")).included(Runs::named("decode"))).await;
    page.expect([
        LINES[0],
        r#"--> Tool[decode][start]: {"input":[1,2]}"#,
        r#"<-- Tool[decode][success]: {"input":[1,2],"output":2}"#,
        LINES[5],
    ]);
}

#[tokio::test]
async fn what_is_excluded_takes_its_level_with_it() {
    let page = shown(|builder| builder.excluded(Runs::named("read_file"))).await;
    page.expect([
        LINES[0],
        r#"--> Tool[decode][start]: {"input":[1,2]}"#,
        r#"<-- Tool[decode][success]: {"input":[1,2],"output":2}"#,
        LINES[5],
    ]);
}

#[tokio::test]
async fn exclusion_wins() {
    let page = shown(|builder| builder.included(Runs::of_kind("Tool")).excluded(Runs::named("decode"))).await;
    page.expect([LINES[1], LINES[4]]);
}

#[tokio::test]
async fn runs_are_told_by_the_types_that_go_in_and_out() {
    let page = shown(|builder| builder.included(Runs::of_type::<File>())).await;
    page.expect([LINES[1], LINES[4]]);
    let page = shown(|builder| builder.included(Runs::of_type::<usize>())).await;
    page.expect([
        r#"--> Tool[decode][start]: {"input":[1,2]}"#,
        r#"<-- Tool[decode][success]: {"input":[1,2],"output":2}"#,
    ]);
    let page = shown(|builder| builder.included(Runs::of_type::<u8>())).await;
    page.expect([]);
}

#[tokio::test]
async fn runs_are_told_by_the_type_of_the_thing_behind_them() -> TestResult {
    struct Calculator;
    let emitter = Emitter::new().child_with(Creator::of("Tool", "calculator", Arc::new(Calculator)));
    let double = runnable_fn("calculator", |n: u32, _: RunContext| async move { Ok(n * 2) }).with_emitter(emitter);
    let page = Page::new();
    double.run(1).middleware(page.built(|builder| builder.included(Runs::of_type::<Calculator>()))).await?;
    assert_eq!(page.take().lines().count(), 2);
    double.run(1).middleware(page.built(|builder| builder.excluded(Runs::of_type::<Calculator>()))).await?;
    page.expect([]);
    Ok(())
}

#[tokio::test]
async fn a_predicate_is_asked_once_for_each_run_at_its_start() {
    let asked = Arc::new(AtomicUsize::new(0));
    let asks = Arc::clone(&asked);
    let page = shown(|builder| {
        builder.excluded(Runs::that(move |run| {
            asks.fetch_add(1, Ordering::Relaxed);
            run.namespace() == "tool.read_file" || run.run().is_none_or(|ctx| run.trace() != Some(ctx.trace()))
        }))
    })
    .await;
    assert_eq!(page.take().lines().count(), 4);
}

#[tokio::test]
async fn the_most_specific_prefix_stands_before_the_kind() {
    let page = shown(|builder| {
        builder.prefix_by_kind("*", "any ").prefix_by_kind("Tool", "tool ").prefix_by_kind("Tool[decode]", "decoder ")
    })
    .await;
    let text = page.take();
    let heads: Vec<_> = text.lines().map(|line| &line[..line.find('[').expect("a name")]).collect();
    assert_eq!(
        heads,
        [
            "any Assistant",
            "--> tool Tool",
            "    --> decoder Tool",
            "    <-- decoder Tool",
            "<-- tool Tool",
            "any Assistant"
        ]
    );
}

#[tokio::test]
async fn what_is_null_is_left_out_unless_it_is_asked_for() -> TestResult {
    let page = Page::new();
    let echo = instance(&Emitter::new(), "Tool", "echo", |value: Value, _| async { Ok(value) });
    let value = json!({"b": null, "a": [null, {"c": null}]});
    echo.run(value.clone()).middleware(page.trajectory()).on_start(|start, _| start.output = Some(1.into())).await?;
    page.expect([
        r#"Tool[echo][start]: {"input":{"a":[null,{}]},"output":1}"#,
        r#"Tool[echo][success]: {"input":{"a":[null,{}]},"output":1}"#,
    ]);
    echo.run(value).middleware(page.built(|builder| builder.exclude_none(false))).await?;
    page.expect([
        r#"Tool[echo][start]: {"input":{"a":[null,{"c":null}],"b":null},"output":null}"#,
        r#"Tool[echo][success]: {"input":{"a":[null,{"c":null}],"b":null},"output":{"a":[null,{"c":null}],"b":null}}"#,
    ]);
    Ok(())
}

#[tokio::test]
async fn it_can_be_switched_off() {
    shown(|builder| builder.enabled(false)).await.expect([]);
}

#[tokio::test]
async fn without_nested_only_the_bound_run_is_shown() {
    shown(|builder| builder.nested(false)).await.expect([LINES[0], LINES[5]]);
}

#[tokio::test]
async fn a_formatter_makes_the_line() {
    let page = shown(|builder| {
        builder.formatter(|line| {
            let (origin, level) = (line.origin(), line.level());
            format!("{} {} {} {}", level.relative, origin.name(), origin.event(), line.payload().len())
        })
    })
    .await;
    let lens = LINES.map(|line| line.split_once(": ").expect("a payload").1.len());
    page.expect([
        &*format!("0 Desk start {}", lens[0]),
        &*format!("1 read_file start {}", lens[1]),
        &*format!("2 decode start {}", lens[2]),
        &*format!("2 decode success {}", lens[3]),
        &*format!("1 read_file success {}", lens[4]),
        &*format!("0 Desk success {}", lens[5]),
    ]);
    let page = shown(|builder| builder.formatter(|line| format!("> {line}"))).await;
    let expected = LINES.map(|line| format!("> {line}"));
    page.expect(expected.iter().map(|line| &**line));
}

#[tokio::test]
async fn a_formatter_that_panics_or_runs_something_itself_does_no_harm() -> TestResult {
    let page = Page::new();
    let double = instance(&Emitter::new(), "Tool", "double", |n: u32, _| async move { Ok(n * 2) });
    let trajectory = page.built(|builder| builder.formatter(|_| panic!("on purpose")));
    assert_eq!(double.run(1).middleware(trajectory).await?, 2);
    page.expect([]);
    let inner = page.trajectory();
    let trajectory = page.built(|builder| {
        builder.formatter(move |line| {
            if line.origin().name() == "triple" {
                return line.to_string();
            }
            // Started in the run that the line is about, so it is shown below that, and by a trajectory of its own.
            let triple = runnable_fn("triple", |n: u32, _: RunContext| async move { Ok(n * 3) });
            let run = std::pin::pin!(triple.run(1).middleware(inner.clone()));
            let waker = std::task::Waker::noop();
            assert!(run.poll(&mut std::task::Context::from_waker(waker)).is_ready());
            line.to_string()
        })
    });
    double.run(1).middleware(trajectory).await?;
    let triple = [
        r#"Run[triple][start]: {"input":1}"#,
        r#"--> Run[triple][start]: {"input":1}"#,
        r#"Run[triple][success]: {"input":1,"output":3}"#,
        r#"<-- Run[triple][success]: {"input":1,"output":3}"#,
    ];
    let (start, success) = (r#"Tool[double][start]: {"input":1}"#, r#"Tool[double][success]: {"input":1,"output":2}"#);
    page.expect(triple.into_iter().chain([start]).chain(triple).chain([success]));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn timing_tells_on_success_and_error_how_long_it_took() {
    let page = Page::new();
    let root = Emitter::new();
    let nap = Arc::new(instance(&root, "Tool", "nap", |millis: u64, _| async move {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        if millis > 1000 { Err(Error::new("overslept")) } else { Ok(()) }
    }));
    let top = instance(&root, "Tool", "top", move |(): (), _| {
        let nap = Arc::clone(&nap);
        async move {
            nap.run(350).await?;
            nap.run(1200).await
        }
    });
    assert!(top.run(()).middleware(page.built(|builder| builder.timing(true))).await.is_err());
    page.expect([
        "Tool[top][start]: {}",
        r#"--> Tool[nap][start]: {"input":350}"#,
        r#"<-- Tool[nap][success] (350.0ms): {"input":350}"#,
        r#"--> Tool[nap][start]: {"input":1200}"#,
        "<-- Tool[nap][error] (1.2s): overslept",
        "Tool[top][error] (1.6s): overslept",
    ]);
}

fn chatty(root: &Emitter) -> impl Runnable<Input = (), Output = ()> + 'static {
    let below = Arc::new(instance(root, "Model", "below", |(): (), ctx: RunContext| async move {
        ctx.emitter().emit("new_token", &mut "two").await?;
        ctx.emitter().emit("other", &mut "no").await?;
        Ok(())
    }));
    instance(root, "Model", "top", move |(): (), ctx: RunContext| {
        let below = Arc::clone(&below);
        async move {
            ctx.emitter().emit("new_token", &mut json!({"b": 1, "a": null})).await?;
            below.run(()).await
        }
    })
}

#[tokio::test]
async fn further_events_have_lines_of_their_own() -> TestResult {
    let page = Page::new();
    chatty(&Emitter::new())
        .run(())
        .middleware(page.built(|builder| builder.events("new_token").events("*.nothing")))
        .await?;
    page.expect([
        "Model[top][start]: {}",
        r#"Model[top][new_token]: {"b":1}"#,
        "--> Model[below][start]: {}",
        r#"<-- Model[below][new_token]: "two""#,
        "<-- Model[below][success]: {}",
        "Model[top][success]: {}",
    ]);
    Ok(())
}

#[tokio::test]
async fn further_events_may_be_told_by_any_matcher_and_go_with_their_run() -> TestResult {
    let page = Page::new();
    let model = chatty(&Emitter::new());
    let by_function = matcher_fn(|meta| meta.name() == "other");
    for (trajectory, lines) in [
        (page.built(|builder| builder.events("*.*")), 7),
        (page.built(|builder| builder.events("model.below.*")), 6),
        (page.built(|builder| builder.events(by_function)), 5),
        (page.built(|builder| builder.events("*").excluded(Runs::named("below"))), 3),
        (page.built(|builder| builder.events("*").nested(false)), 3),
    ] {
        model.run(()).middleware(trajectory).await?;
        let text = page.take();
        assert_eq!(text.lines().count(), lines, "{text}");
    }
    Ok(())
}

#[test]
fn what_is_no_matcher_is_an_error_of_the_building() {
    let error = Trajectory::builder().target(Target::None).events("a b").build().unwrap_err();
    assert!(matches!(error, TrajectoryError::Events(_)));
    assert!(error.to_string().contains("a b"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_json_line_is_one_record() -> TestResult {
    let page = Page::new();
    failing_desk(&Emitter::new())
        .run(question())
        .middleware(page.built(|builder| builder.json(true).timing(true).pretty(true).prefix_by_kind("Tool", "!")))
        .await?;
    let records = page.take().lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    assert_eq!(records.len(), 6);
    let error = &records[4];
    assert_eq!(error["payload"]["error"]["message"], "not found: no path");
    let told = |key: &str| error[key].clone();
    assert_eq!(
        ["kind", "name", "event", "path", "prefix", "level", "duration_ns"].map(told),
        [
            json!("Tool"),
            json!("read_file"),
            json!("error"),
            json!("tool.read_file.run.error"),
            json!("!"),
            json!({"relative": 1, "absolute": 1}),
            json!(0)
        ]
    );
    assert_eq!(error["trace"]["parent_run_id"], records[0]["trace"]["run_id"]);
    assert!(error["time"].as_str().is_some_and(|time| time.ends_with('Z')));
    assert_eq!(records[0].get("prefix"), None);
    assert_eq!(records[0].get("duration_ns"), None);
    Ok(())
}

#[tokio::test]
async fn a_listener_that_fails_the_start_is_shown_as_an_error() {
    let page = Page::new();
    let double = instance(&Emitter::new(), "Tool", "double", |n: u32, _| async move { Ok(n * 2) });
    let run = double.run(1).middleware(page.trajectory()).register(
        Options::new().on("tool.double.run.start", |_: &mut Any, _| Err::<(), _>(Error::new("not today").into())),
    );
    assert!(run.await.is_err());
    let text = page.take();
    assert!(text.starts_with("Tool[double][start]: {\"input\":1}\nTool[double][error]: not today\n"), "{text}");
}

#[tokio::test]
async fn runs_are_told_by_the_type_of_what_is_run() -> TestResult {
    struct Doubler(Emitter);
    impl Runnable for Doubler {
        type Input = u32;
        type Output = u32;
        fn emitter(&self) -> &Emitter {
            &self.0
        }
        async fn execute(&self, n: &u32, _: &RunContext) -> emitree_runtime::Result<u32> {
            Ok(n * 2)
        }
    }
    let (doubler, page) = (Doubler(Emitter::new()), Page::new());
    doubler.run(1).middleware(page.built(|builder| builder.excluded(Runs::of_type::<Doubler>()))).await?;
    page.expect([]);
    doubler.run(1).middleware(page.built(|builder| builder.included(Runs::of_type::<Doubler>()))).await?;
    assert_eq!(page.take().lines().count(), 2);
    Ok(())
}

#[tokio::test]
async fn a_formatter_stays_where_json_is_not_wanted() {
    let page = shown(|builder| builder.formatter(|line| line.origin().event().to_owned()).json(false)).await;
    page.expect(["start", "start", "start", "success", "success", "success"]);
}
