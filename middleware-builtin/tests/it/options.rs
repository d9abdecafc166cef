//! Each option of a trajectory has its documented effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_emitter::{Creator, Emitter, Options, matcher_fn};
use emitree_middleware::Runs;
use emitree_middleware::trajectory::{Trajectory, TrajectoryBuilder};
use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
use serde_json::{Value, json};

use crate::support::{Any, File, LINES, Page, TestResult, desk, instance, poll_once, question};

async fn shown(options: impl FnOnce(Builder) -> Builder) -> Page {
    let page = Page::new();
    let desk = desk(&Emitter::new());
    desk.run(question()).middleware(page.built(options)).await.expect("a desk that works");
    page
}

type Builder = TrajectoryBuilder;

#[tokio::test]
async fn only_included_runs_are_shown() {
    let page = shown(|builder| builder.included(Runs::of_kind("Tool"))).await;
    page.expect(LINES[1..5].to_vec());
    let page = shown(|builder| builder.included(Runs::named("Desk")).included(Runs::named("decode"))).await;
    page.expect([LINES[0], "--> Tool[decode][start]: [1,2]", "<-- Tool[decode][success]: 2", LINES[5]]);
}

#[tokio::test]
async fn an_excluded_run_takes_no_level() {
    let page = shown(|builder| builder.excluded(Runs::named("read_file"))).await;
    page.expect([LINES[0], "--> Tool[decode][start]: [1,2]", "<-- Tool[decode][success]: 2", LINES[5]]);
}

#[tokio::test]
async fn an_excluded_run_is_hidden_even_if_it_is_included() {
    let page = shown(|builder| builder.included(Runs::of_kind("Tool")).excluded(Runs::named("decode"))).await;
    page.expect([LINES[1], LINES[4]]);
}

#[tokio::test]
async fn runs_are_selected_by_their_input_or_output_type() {
    let page = shown(|builder| builder.included(Runs::of_type::<File>())).await;
    page.expect([LINES[1], LINES[4]]);
    let page = shown(|builder| builder.included(Runs::of_type::<usize>())).await;
    page.expect(["--> Tool[decode][start]: [1,2]", "<-- Tool[decode][success]: 2"]);
    let page = shown(|builder| builder.included(Runs::of_type::<u8>())).await;
    page.expect([]);
}

#[tokio::test]
async fn runs_are_selected_by_the_type_of_the_value_that_their_creator_shares() -> TestResult {
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
async fn a_predicate_is_called_once_per_run_with_the_namespace_and_the_trace_of_the_run() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&calls);
    let page = shown(|builder| {
        builder.excluded(Runs::matching(move |run| {
            counts.fetch_add(1, Ordering::Relaxed);
            run.namespace() == "tool.read_file" || run.run().is_none_or(|ctx| run.trace() != Some(ctx.trace()))
        }))
    })
    .await;
    assert_eq!(page.take().lines().count(), 4);
    assert_eq!(calls.load(Ordering::Relaxed), 3, "the desk starts two runs");
}

#[tokio::test]
async fn the_last_prefix_for_a_kind_is_shown_before_the_kind() {
    let page = shown(|builder| builder.prefix_by_kind("Tool", "old ").prefix_by_kind("Tool", "* ")).await;
    let text = page.take();
    let heads: Vec<_> = text.lines().map(|line| &line[..line.find('[').expect("a name")]).collect();
    assert_eq!(heads, ["Assistant", "--> * Tool", "    --> * Tool", "    <-- * Tool", "<-- * Tool", "Assistant"]);
}

#[tokio::test]
async fn null_members_of_objects_are_omitted() -> TestResult {
    let page = Page::new();
    let echo = instance(&Emitter::new(), "Tool", "echo", |value: Value, _| async { Ok(value) });
    let value = json!({"b": null, "a": [null, {"c": null}]});
    echo.run(value.clone()).middleware(page.trajectory()).on_start(|start, _| start.output = Some(1.into())).await?;
    page.expect(["Tool[echo][start]: a: [null,{}] => 1", "Tool[echo][success]: 1"]);
    let as_json = page.built(TrajectoryBuilder::json);
    echo.run(value).middleware(as_json).on_start(|start, _| start.output = Some(1.into())).await?;
    page.expect([
        r#"Tool[echo][start]: {"input":{"a":[null,{}]},"output":1}"#,
        r#"Tool[echo][success]: {"input":{"a":[null,{}]},"output":1}"#,
    ]);
    Ok(())
}

#[tokio::test]
async fn a_predicate_that_panics_or_starts_a_run_does_not_affect_the_run() -> TestResult {
    let page = Page::new();
    let double = instance(&Emitter::new(), "Tool", "double", |n: u32, _| async move { Ok(n * 2) });
    let trajectory = page.built(|builder| builder.included(Runs::matching(|_| panic!("on purpose"))));
    assert_eq!(double.run(1).middleware(trajectory).await?, 2);
    page.expect([]);
    let trajectory = page.built(|builder| {
        builder.included(Runs::matching(|run| {
            if run.name() == "double" {
                // This run is started by the predicate, so it is shown below the run that the predicate checks.
                let triple = runnable_fn("triple", |n: u32, _: RunContext| async move { Ok(n * 3) });
                assert!(poll_once(&mut Box::pin(triple.run(1).into_future())).is_ready());
            }
            true
        }))
    });
    double.run(1).middleware(trajectory).await?;
    page.expect([
        "--> Run[triple][start]: 1",
        "<-- Run[triple][success]: 3",
        "Tool[double][start]: 1",
        "Tool[double][success]: 2",
    ]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn timing_shows_the_duration_on_success_and_error() {
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
        "Tool[top][start]",
        "--> Tool[nap][start]: 350",
        "<-- Tool[nap][success] (350.0ms)",
        "--> Tool[nap][start]: 1200",
        "<-- Tool[nap][error] (1.2s): overslept",
        "  | input: 1200",
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
async fn further_events_have_their_own_lines() -> TestResult {
    let page = Page::new();
    chatty(&Emitter::new())
        .run(())
        .middleware(page.built(|builder| builder.events("new_token").events("*.nothing")))
        .await?;
    page.expect([
        "Model[top][start]",
        "Model[top][new_token]: b: 1",
        "--> Model[below][start]",
        "<-- Model[below][new_token]: two",
        "<-- Model[below][success]",
        "Model[top][success]",
    ]);
    Ok(())
}

#[tokio::test]
async fn further_events_are_selected_by_any_matcher_and_hidden_with_their_run() -> TestResult {
    let page = Page::new();
    let model = chatty(&Emitter::new());
    let by_function = matcher_fn(|meta| meta.name() == "other");
    for (trajectory, lines) in [
        (page.built(|builder| builder.events("*.*")), 7),
        (page.built(|builder| builder.events("model.below.*")), 6),
        (page.built(|builder| builder.events(by_function)), 5),
        (page.built(|builder| builder.events("*").excluded(Runs::named("below"))), 3),
    ] {
        model.run(()).middleware(trajectory).await?;
        let text = page.take();
        assert_eq!(text.lines().count(), lines, "{text}");
    }
    Ok(())
}

#[test]
fn an_invalid_matcher_is_an_error_of_build() {
    let error = Trajectory::builder().events("a b").build().unwrap_err();
    assert!(error.to_string().contains("a b"), "{error}");
}

#[tokio::test]
async fn an_error_of_a_start_listener_is_shown() {
    let page = Page::new();
    let double = instance(&Emitter::new(), "Tool", "double", |n: u32, _| async move { Ok(n * 2) });
    let run = double.run(1).middleware(page.trajectory()).register(
        Options::new().on("tool.double.run.start", |_: &mut Any, _| Err::<(), _>(Error::new("not today").into())),
    );
    assert!(run.await.is_err());
    let text = page.take();
    assert!(text.starts_with("Tool[double][start]: 1\nTool[double][error]: not today\n"), "{text}");
}

#[tokio::test]
async fn runs_are_selected_by_the_type_of_their_runnable() -> TestResult {
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
async fn a_trajectory_registers_listeners_on_plain_runs_only_for_further_events() -> TestResult {
    let below = Arc::new(runnable_fn("below", |(): (), ctx: RunContext| async move { Ok(ctx.has_listeners()) }));
    let top = runnable_fn("top", move |(): (), _: RunContext| {
        let below = Arc::clone(&below);
        async move { below.run(()).await }
    });
    let page = Page::new();
    assert!(!top.run(()).middleware(page.trajectory()).await?);
    assert!(top.run(()).middleware(page.built(|builder| builder.events("note"))).await?);
    Ok(())
}
