//! `map_input` and `map_output`: functions are called in the order in which they are bound, guards last. Errors name
//! the function, unless they already have a name or are panics.

use std::sync::Arc;

use crate::support::{Recorder, TestResult, below, silence_planned_panics};
use emitree_emitter::Emitter;
use emitree_runtime::{
    Error, ErrorKind, Lifecycle, MapValue, RunContext, Runnable, map_input, map_input_async, map_output,
    map_output_async, runnable_fn,
};

fn appends(
    text: &'static str,
    recorder: &Recorder,
) -> impl Fn(&mut String, &RunContext) -> emitree_runtime::Result<()> + Send + Sync + 'static {
    let recorder = recorder.clone();
    move |value, _| {
        recorder.note(format!("{text} sees {value}"));
        value.push_str(text);
        Ok(())
    }
}

fn echo(recorder: &Recorder) -> impl Runnable<Input = String, Output = String> + 'static {
    let recorder = recorder.clone();
    below(&Emitter::new(), "echo", move |text: String, _: RunContext| {
        recorder.note(format!("work {text}"));
        async move { Ok(text) }
    })
}

// Both the functions on the input and the functions on the output are called in list order.
#[tokio::test]
async fn input_and_output_functions_are_called_in_list_order_with_the_changed_value() {
    let recorder = Recorder::new();
    let echo = echo(&recorder);
    let notes = recorder.clone();
    let run = echo
        .run("x".to_owned())
        .on_start(|start, _| start.input.push('!'))
        .on_success(move |success, _| notes.note(format!("success sees {}", success.output)))
        .middleware(map_input(appends("1", &recorder)))
        .middleware(map_output(appends("3", &recorder)))
        .middleware(map_input(appends("2", &recorder)))
        .middleware(map_output(appends("4", &recorder)));
    assert_eq!(run.await.expect("nothing fails"), "x!1234");
    let seen = ["1 sees x!", "2 sees x!1", "work x!12", "3 sees x!12", "4 sees x!123", "success sees x!1234"];
    recorder.expect(seen);
}

// Guard functions on the input are called after all other functions on the input. The same applies to the output.
#[tokio::test]
async fn guard_functions_are_called_after_all_other_functions_of_their_side() {
    let recorder = Recorder::new();
    let echo = echo(&recorder);
    let run = echo
        .run("x".to_owned())
        .middleware(map_input(appends("1", &recorder)).guard())
        .middleware(map_output(appends("3", &recorder)).guard())
        .middleware(map_input(appends("2", &recorder)))
        .middleware(map_output(appends("4", &recorder)));
    assert_eq!(run.await.expect("nothing fails"), "x2143");
    recorder.expect(["2 sees x", "1 sees x2", "work x21", "4 sees x21", "3 sees x214"]);
}

fn fails(how: &str) -> Error {
    match how {
        "abort" => Error::aborted("gone"),
        "deny" => Error::denied("policy", "no"),
        "halt" => Error::halted("budget", "spent"),
        "retry" => Error::retry("again"),
        "panic" => panic!("planned"),
        _ => Error::new("broken"),
    }
}

/// Runs `echo` four times, each time with a different failing function: sync or async, on the input or on the output.
/// Returns the output of `explain` for each error.
async fn explained(how: &'static str, make: impl Fn(MapValue<String>) -> MapValue<String>) -> [String; 4] {
    let echo = echo(&Recorder::new());
    let run = async |map: MapValue<String>| {
        echo.run("x".to_owned()).middleware(make(map.named("check"))).await.expect_err("it fails").explain()
    };
    [
        run(map_input(move |_, _| Err(fails(how)))).await,
        run(map_input_async(move |_, _| Box::pin(async move { Err(fails(how)) }))).await,
        run(map_output(move |_, _| Err(fails(how)))).await,
        run(map_output_async(move |_, _| Box::pin(async move { Err(fails(how)) }))).await,
    ]
}

#[tokio::test]
async fn errors_name_the_function_unless_they_have_a_name_or_are_panics() {
    silence_planned_panics();
    let rows = [
        ("abort", "aborted: gone\n  by: \"check\""),
        ("deny", "denied by policy: no"),
        ("halt", "halted by budget: spent"),
        ("retry", "retry requested: again\n  by: \"check\""),
        ("fail", "broken\n  by: \"check\""),
        ("panic", "panicked: planned"),
    ];
    for (how, expected) in rows {
        assert_eq!(explained(how, |map| map).await, [expected; 4]);
    }
}

// M5
#[tokio::test]
async fn a_guard_function_that_fails_or_panics_denies_by_its_name_and_keeps_control_flow() {
    silence_planned_panics();
    let rows = [
        ("abort", "aborted: gone"),
        ("halt", "halted by budget: spent"),
        ("fail", "denied by check: broken"),
        ("panic", "denied by check: the guard panicked: planned"),
    ];
    for (how, expected) in rows {
        for explained in explained(how, MapValue::guard).await {
            assert_eq!(explained.lines().next(), Some(expected));
        }
    }
}

// M7
#[tokio::test]
async fn each_attempt_begins_with_the_input_as_start_left_it_and_feedback_names_the_function() {
    let recorder = Recorder::new();
    let wants = map_output(
        |n: &mut u32, ctx: &RunContext| {
            if ctx.attempt() < 2 { Err(Error::retry_with("too few", *n)) } else { Ok(()) }
        },
    );
    let [notes, feedback] = [(); 2].map(|()| recorder.clone());
    let count = runnable_fn("count", move |n: u32, ctx: RunContext| {
        let by: Vec<_> = ctx.feedback().into_iter().map(|retry| retry.by.unwrap_or_default()).collect();
        feedback.note(format!("feedback by {by:?}"));
        async move { Ok(n) }
    });
    let run = count
        .run(1)
        .on_start(|start, _| start.input += 10)
        .middleware(map_input(move |n: &mut u32, ctx: &RunContext| {
            notes.note(format!("{n} of {}", ctx.original::<u32>().expect("it is kept")));
            *n += 100;
            Ok(())
        }))
        .middleware(wants.named("few"))
        .max_middleware_retries(2);
    assert_eq!(run.await.expect("the third attempt"), 111);
    recorder.expect([
        "11 of 1",
        "feedback by []",
        "11 of 1",
        r#"feedback by ["few"]"#,
        "11 of 1",
        r#"feedback by ["few", "few"]"#,
    ]);
}

// M7
#[tokio::test]
async fn original_returns_the_callers_input_if_a_map_input_is_bound() -> TestResult {
    let echo = below(&Emitter::new(), "echo", |_: String, ctx: RunContext| async move {
        Ok(ctx.original::<String>().map(Arc::unwrap_or_clone))
    });
    echo.on_start(|start, _| start.input.clear())?;
    assert_eq!(echo.run("x".to_owned()).await?, None, "nobody had it kept");
    let keeps = map_input(|_: &mut String, _: &RunContext| Ok(()));
    assert_eq!(echo.run("x".to_owned()).middleware(keeps).await?.as_deref(), Some("x"));
    Ok(())
}

#[tokio::test]
async fn a_map_function_of_another_type_is_an_error_that_names_both_types() {
    let echo = echo(&Recorder::new());
    let count = |_: &mut u32, _: &RunContext| Ok(());
    let error = echo.run(String::new()).middleware(map_input(count)).await.expect_err("it does not fit");
    let expected = "`map_input` of `u32` was bound to a run whose input is `alloc::string::String`";
    assert_eq!((error.to_string().as_str(), error.kind()), (expected, &ErrorKind::Invalid));
    let error = echo.run(String::new()).middleware(map_output(count)).await.expect_err("it does not fit");
    assert_eq!(error.to_string(), "`map_output` of `u32` was bound to a run whose output is `alloc::string::String`");
}

#[tokio::test]
async fn after_an_input_function_fails_no_later_function_is_called() {
    let recorder = Recorder::new();
    let echo = echo(&recorder);
    let fails = map_input(|_: &mut String, _: &RunContext| Err(Error::new("broken")));
    let run = echo.run("x".to_owned()).middleware(fails).middleware(map_input(appends("never", &recorder)));
    assert_eq!(run.await.expect_err("the first fails").to_string(), "broken");
    recorder.expect([]);
}

#[tokio::test]
async fn original_output_returns_the_output_of_the_attempt_before_the_output_functions() {
    let recorder = Recorder::new();
    let sees = |text: &'static str| {
        let recorder = recorder.clone();
        move |value: &mut String, ctx: &RunContext| {
            recorder.note(format!("{text} {value} {:?}", ctx.original_output::<String>()));
            value.push_str(text);
            if ctx.attempt() == 0 && text == "b" { Err(Error::retry("again")) } else { Ok(()) }
        }
    };
    let notes = recorder.clone();
    let numbered = below(&Emitter::new(), "numbered", move |(): (), ctx: RunContext| {
        notes.note(format!("work {:?} {:?}", ctx.original_output::<String>(), ctx.original_output::<u32>()));
        async move { Ok(ctx.attempt().to_string()) }
    });
    let run = || numbered.run(()).middleware(map_output(sees("a"))).max_middleware_retries(1);
    run().middleware(map_output(sees("b")).keeping_original()).await.expect("the second attempt is fine");
    recorder.expect([
        "work None None",
        "a 0 Some(\"0\")",
        "b 0a Some(\"0\")",
        "work None None",
        "a 1 Some(\"1\")",
        "b 1a Some(\"1\")",
    ]);
    // Nothing is copied unless a function asks for it.
    run().await.expect("fine");
    recorder.expect(["work None None", "a 0 None"]);
}
