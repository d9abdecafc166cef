//! M1, M9: layers wrap the work, per instance and per run, and control flow passes through them.

use crate::support::layers::{Notes, doubling, inside};
use crate::support::{Recorder, below};
use emitree_emitter::Emitter;
use emitree_runtime::{Error, ErrorKind, Layer, Next, Op, Result, RunContext, Runnable, Stack, layer_fn, runnable_fn};

struct Count;

impl Op for Count {
    type In = u32;
    type Out = u32;

    fn name() -> &'static str {
        "count"
    }
}

// M1
#[tokio::test]
async fn an_empty_stack_calls_the_work_once() {
    let recorder = Recorder::new();
    let stack = Stack::<Count>::default();
    let notes = recorder.clone();
    let result = inside(move |ctx| {
        let (stack, notes) = (stack.clone(), notes.clone());
        async move {
            stack
                .call(&1, &ctx, |n, _| {
                    notes.note(format!("work {n}"));
                    Box::pin(async move { Ok(n + 1) })
                })
                .await
        }
    });
    assert_eq!(result.await.expect("nothing fails"), 2);
    recorder.expect(["work 1"]);
}

// M1
#[tokio::test]
async fn a_layer_can_call_next_never_once_or_several_times_with_other_inputs() {
    let recorder = Recorder::new();
    let double = doubling(&recorder);
    let run = |times: u32| {
        double.run(1).layers(move |stack| {
            stack.layer_fn("several", move |n, _, next| {
                Box::pin(async move {
                    let mut sum = 0;
                    for i in 0..times {
                        sum += next.run(&(n + i)).await?;
                    }
                    Ok(sum)
                })
            })
        })
    };
    for (times, sum, work) in [(0, 0, &[][..]), (1, 2, &["work 1"]), (3, 12, &["work 1", "work 2", "work 3"])] {
        assert_eq!(run(times).await.expect("nothing fails"), sum);
        recorder.expect(work.iter().copied());
    }
}

// M1
#[tokio::test]
async fn layers_of_the_instance_wrap_the_layers_of_the_run() {
    let recorder = Recorder::new();
    let echo =
        runnable_fn("echo", |n: u32, _: RunContext| async move { Ok(n) }).layer(Notes("instance", recorder.clone()));
    for n in [1, 2] {
        echo.run(n).layer(Notes("run", recorder.clone())).await.expect("nothing fails");
        let line = |who: &str, arrow: &str| format!("{who} {arrow} {n}");
        let lines = [line("instance", "<-"), line("run", "<-"), line("run", "->"), line("instance", "->")];
        recorder.expect(lines.iter().map(String::as_str));
    }
    echo.run(3).await.expect("nothing fails");
    recorder.expect(["instance <- 3", "instance -> 3"]);
}

// M1
#[tokio::test]
async fn binding_a_stack_of_other_types_is_an_error_that_names_both_types() {
    let stack = Stack::<Count>::builder().layer(Notes("never", Recorder::new())).build();
    let upper = runnable_fn("upper", |text: String, _: RunContext| async move { Ok(text.to_uppercase()) });
    let error = upper.run("a".to_owned()).middleware(stack).await.expect_err("it does not fit");
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    assert_eq!(
        error.to_string(),
        "layers of `count`, from `u32` to `u32`, were bound to a run from `alloc::string::String` to \
         `alloc::string::String`: layers for runs of any type are `Layer<JsonRun>` or `Layer<AnyRun>`"
    );
}

/// A layer that returns 7 for every error of the layers inside.
#[derive(Debug)]
struct OrSeven {
    absorbs: bool,
}

impl<O: Op<Out = u32>> Layer<O> for OrSeven {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<u32> {
        match next.run(input).await {
            Err(error) if self.absorbs => {
                next.absorb(&error);
                Ok(7)
            }
            result => Ok(result.unwrap_or(7)),
        }
    }
}

fn control_flow() -> [Error; 5] {
    [
        Error::denied("desk", "no"),
        Error::halted("desk", "stop"),
        Error::aborted("gone"),
        Error::interrupted(emitree_runtime::Interrupt::new("question", 1)),
        Error::retry("again"),
    ]
}

fn failing(error: Error) -> impl Runnable<Input = (), Output = u32> + 'static {
    below(&Emitter::new(), "failing", move |(): (), _: RunContext| {
        let error = error.clone();
        async move { Err(error) }
    })
}

// M9
#[tokio::test]
async fn a_layer_that_catches_everything_catches_failures() {
    for error in [Error::new("broken"), Error::timed_out("slow")] {
        assert_eq!(failing(error).run(()).layer(OrSeven { absorbs: false }).await.expect("it was caught"), 7);
    }
}

// M9
#[tokio::test]
async fn control_flow_that_a_layer_swallows_is_still_the_result_of_the_run() {
    for error in control_flow() {
        let result = failing(error.clone()).run(()).layer(OrSeven { absorbs: false }).await;
        assert_eq!(result.expect_err("swallowed by accident").kind(), error.kind());
    }
}

// M9
#[tokio::test]
async fn control_flow_may_be_absorbed_on_purpose() {
    for error in control_flow() {
        assert_eq!(failing(error).run(()).layer(OrSeven { absorbs: true }).await.expect("absorbed"), 7);
    }
}

// M9
#[tokio::test]
async fn absorbing_one_control_flow_error_does_not_absorb_another() {
    for error in control_flow() {
        let failing = failing(error.clone());
        let run = failing.run(()).layers(|stack| {
            stack.layer_fn("absorbs another", |input, _, next| {
                Box::pin(async move {
                    let result = next.run(input).await;
                    next.absorb(&Error::denied("somebody else", "no"));
                    Ok(result.unwrap_or(7))
                })
            })
        });
        assert_eq!(run.await.expect_err("swallowed by accident").kind(), error.kind());
    }
}

// M9
#[tokio::test]
async fn an_outer_layer_receives_the_control_flow_that_an_inner_layer_swallowed() {
    let recorder = Recorder::new();
    let run = failing(Error::denied("desk", "no"));
    let run = run.run(()).layer(Notes("outside", recorder.clone())).layer(OrSeven { absorbs: false });
    assert!(run.await.expect_err("swallowed by accident").is_denied());
    recorder.expect(["outside <- ()", "outside -> error: no"]);
}

// M9
#[tokio::test]
async fn a_layer_that_replaces_control_flow_with_a_failure_does_not_hide_the_control_flow() {
    let halted = failing(Error::halted("desk", "stop"));
    let wrapped = halted.run(()).layers(|stack| {
        stack.layer_fn("wraps", |input, _, next| {
            Box::pin(async move { next.run(input).await.map_err(|error| Error::new(format!("gave up: {error}"))) })
        })
    });
    assert!(wrapped.await.expect_err("the work was halted").is_halted());
}

// M9
#[tokio::test]
async fn after_control_flow_next_does_not_call_the_work_again() {
    let recorder = Recorder::new();
    let notes = recorder.clone();
    let denied = runnable_fn("denied", move |(): (), _: RunContext| {
        notes.note("work");
        async { Err::<u32, _>(Error::denied("desk", "no")) }
    });
    let thrice = denied.run(()).layers(|stack| {
        stack.layer_fn("thrice", |input, _, next| {
            Box::pin(async move {
                for _ in 0..2 {
                    next.run(input).await.expect_err("the work is denied");
                }
                next.run(input).await
            })
        })
    });
    assert!(thrice.await.expect_err("the work is denied").is_denied());
    recorder.expect(["work"]);
}

// M1
#[tokio::test]
async fn a_closure_that_captures_can_be_a_layer() {
    let prefix = "re".to_owned();
    let prefixed = layer_fn("prefixed", move |text: &String, _, next: Next<'_, Text>| {
        let text = format!("{prefix}{text}");
        Box::pin(async move { next.run(&text).await })
    });
    let stack = Stack::<Text>::builder().layer(prefixed).build();
    let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) }).middleware(stack);
    assert_eq!(echo.run("do".to_owned()).await.expect("nothing fails"), "redo");
}

struct Text;

impl Op for Text {
    type In = String;
    type Out = String;
}

// M1, R6
#[tokio::test]
async fn a_layer_receives_a_panic_inside_as_an_error_and_can_call_next_again() {
    crate::support::silence_planned_panics();
    let recorder = Recorder::new();
    let panics = runnable_fn("panics", |n: u32, _: RunContext| async move {
        assert!(n > 1, "planned: {n} is not enough");
        Ok(n)
    });
    let notes = recorder.clone();
    let again = layer_fn::<Count, _>("again", move |n: &u32, _, next| {
        let notes = notes.clone();
        Box::pin(async move {
            let error = next.run(n).await.expect_err("it panics");
            notes.note(format!("{:?}: {error}", error.kind()));
            next.run(&(n + 1)).await
        })
    });
    let stack = Stack::<Count>::builder().layer(again).layer(Notes("inner", recorder.clone())).build();
    assert_eq!(panics.run(1).middleware(stack).await.expect("enough"), 2);
    recorder.expect([
        "inner <- 1",
        "inner -> error: planned: 1 is not enough",
        "Panicked: planned: 1 is not enough",
        "inner <- 2",
        "inner -> 2",
    ]);
}
