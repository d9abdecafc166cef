//! What inputs and outputs of a run pass: list order in both directions, and who said no.

mod support;

use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::{
    Error, InputFn, Lifecycle, OutputFn, Passing, RunContext, Runnable, input_fn, keep_input, output_fn, runnable_fn,
};
use support::{Recorder, TestResult, below};

fn appends(text: &'static str, recorder: &Recorder) -> InputFn<String> {
    let recorder = recorder.clone();
    input_fn(move |input: Passing<'_, String>| {
        recorder.note(format!("{} sees {} of {}", input.name(), input.value(), input.original()));
        Box::pin(async move { Ok(Some(format!("{}{text}", input.value()))) })
    })
}

fn adds(text: &'static str, recorder: &Recorder) -> OutputFn<String> {
    let recorder = recorder.clone();
    output_fn(move |output: Passing<'_, String>| {
        recorder.note(format!("{} sees {} of {}", output.name(), output.value(), output.original()));
        Box::pin(async move { Ok(Some(format!("{}{text}", output.value()))) })
    })
}

fn echo(recorder: &Recorder) -> impl Runnable<Input = String, Output = String> + 'static {
    let recorder = recorder.clone();
    below(&Emitter::new(), "echo", move |text: String, _: RunContext| {
        recorder.note(format!("work {text}"));
        async move { Ok(text) }
    })
}

// Section 5: agent.input, agent.output
#[tokio::test]
async fn both_go_in_list_order_and_each_sees_what_the_one_before_returned() {
    let recorder = Recorder::new();
    let echo = echo(&recorder);
    let run = echo
        .run("x".to_owned())
        .on_start(|start, _| start.input.push('!'))
        .middleware(appends("1", &recorder))
        .middleware(adds("3", &recorder))
        .middleware(appends("2", &recorder).named("second"))
        .middleware(adds("4", &recorder));
    assert_eq!(run.await.expect("nothing fails"), "x!1234");
    recorder.expect([
        "input#1 sees x! of x",
        "second sees x!1 of x",
        "work x!12",
        "output#1 sees x!12 of x!12",
        "output#2 sees x!123 of x!12",
    ]);
}

// Section 5
#[tokio::test]
async fn nothing_returned_keeps_the_value() {
    let keeps = input_fn(|_: Passing<'_, String>| Box::pin(async { Ok(None) }));
    let too = output_fn(|_: Passing<'_, String>| Box::pin(async { Ok(None) }));
    let echo = echo(&Recorder::new());
    assert_eq!(echo.run("x".to_owned()).middleware(keeps).middleware(too).await.expect("nothing fails"), "x");
}

// Section 5
#[tokio::test]
async fn errors_name_the_middleware() {
    let says = |how: &'static str| {
        input_fn(move |input: Passing<'_, String>| {
            Box::pin(async move {
                Err(match how {
                    "abort" => input.abort("gone"),
                    "deny" => input.deny("no"),
                    "halt" => input.halt("stop"),
                    _ => input.retry("again", 7),
                })
            })
        })
    };
    let rows = [
        ("abort", "aborted: gone\n  by: \"input#1\""),
        ("deny", "denied by input#1: no"),
        ("halt", "halted by input#1: stop"),
        ("retry", "retry requested: again\n  by: \"input#1\""),
    ];
    for (how, explained) in rows {
        let recorder = Recorder::new();
        let echo = echo(&recorder);
        let error = echo.run("x".to_owned()).middleware(says(how)).await.expect_err("it says no");
        assert_eq!(error.explain(), explained);
        recorder.expect([]);
    }
}

// M7
#[tokio::test]
async fn an_output_middleware_can_ask_for_another_attempt_and_feedback_says_who() {
    let wants = output_fn(|n: Passing<'_, u32>| {
        Box::pin(async move {
            assert_eq!(n.attempt(), *n.value());
            if n.attempt() < 2 { Err(n.retry("too few", *n.value())) } else { Ok(None) }
        })
    });
    let count = runnable_fn("count", |(): (), ctx: RunContext| async move {
        let who = ctx.feedback().into_iter().map(|retry| retry.by.unwrap_or_default());
        assert!(who.into_iter().all(|by| by == "few"));
        Ok(ctx.attempt())
    });
    assert_eq!(count.run(()).middleware(wants.named("few")).max_middleware_retries(2).await.expect("fine"), 2);
}

// M7
#[tokio::test]
async fn the_original_input_is_the_callers_before_any_listener_of_start() -> TestResult {
    let echo = below(&Emitter::new(), "echo", |_: String, ctx: RunContext| async move {
        Ok(ctx.original_input::<String>().map(Arc::unwrap_or_clone))
    });
    echo.on_start(|start, _| start.input.clear())?;
    assert_eq!(echo.run("x".to_owned()).await?, None, "nobody had it kept");
    assert_eq!(echo.run("x".to_owned()).middleware(keep_input::<String>()).await?.as_deref(), Some("x"));
    let passes = input_fn(|input: Passing<'_, String>| {
        Box::pin(async move { Ok(Some(format!("{}{}", input.value(), input.original()))) })
    });
    assert_eq!(echo.run("y".to_owned()).middleware(passes).await?.as_deref(), Some("y"));
    Ok(())
}

// Section 5
#[tokio::test]
async fn it_is_told_of_which_run_it_is() {
    let tells = output_fn(|output: Passing<'_, String>| {
        let same = output.instance() == output.ctx().instance();
        Box::pin(async move { Ok(Some(format!("{} {} {same}", output.operation(), output.attempt()))) })
    });
    let echo = echo(&Recorder::new());
    assert_eq!(echo.run(String::new()).middleware(tells).await.expect("nothing fails"), "echo 0 true");
}

// Section 5
#[tokio::test]
async fn one_of_another_type_than_the_runs_is_an_error_that_names_both() {
    let count = input_fn(|_: Passing<'_, u32>| Box::pin(async { Ok(None) }));
    let echo = echo(&Recorder::new());
    let error = echo.run(String::new()).middleware(count).await.expect_err("it does not fit");
    let expected = "an input middleware of `u32` was bound to a run whose input is `alloc::string::String`";
    assert_eq!(error.to_string(), expected);
}

// Section 5
#[tokio::test]
async fn one_that_fails_is_a_failure_and_the_rest_is_not_asked() {
    let recorder = Recorder::new();
    let echo = echo(&recorder);
    let fails = input_fn(|_: Passing<'_, String>| Box::pin(async { Err(Error::new("broken")) }));
    let run = echo.run("x".to_owned()).middleware(fails).middleware(appends("never", &recorder));
    assert_eq!(run.await.expect_err("the first fails").to_string(), "broken");
    recorder.expect([]);
}
