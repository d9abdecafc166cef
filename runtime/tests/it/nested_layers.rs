//! M1, M4: layers for runs of any type, and middleware that reaches every run below.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::layers::{Notes, doubling};
use crate::support::{Recorder, TestResult, below};
use emitree_emitter::Emitter;
use emitree_runtime::{
    Error, ErrorKind, JsonRun, Next, Result, RunContext, Runnable, Stack, StreamItem, for_nested, for_tree, layer_fn,
    map_output,
};
use futures_util::StreamExt;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

fn outer(tree: &Emitter) -> impl Runnable<Input = u32, Output = String> + 'static {
    let inner = below(tree, "inner", |text: String, _: RunContext| async move { Ok(text.len()) });
    let middle = below(tree, "middle", |n: u32, _: RunContext| async move { Ok(n + 1) });
    let (inner, middle) = (Arc::new(inner), Arc::new(middle));
    below(tree, "outer", move |n: u32, _: RunContext| {
        let (inner, middle) = (Arc::clone(&inner), Arc::clone(&middle));
        async move { Ok(format!("{} {}", middle.run(n).await?, inner.run("four".to_owned()).await?)) }
    })
}

// M4
#[tokio::test]
async fn a_middleware_for_tree_reaches_the_run_and_every_run_below() -> TestResult {
    let recorder = Recorder::new();
    let outer = outer(&Emitter::new());
    let stack = Stack::<JsonRun>::builder().observe(Notes("any", recorder.clone())).build();
    assert_eq!(outer.run(1).middleware(for_tree(stack)).await?, "2 4");
    recorder.expect([
        "any <- Number(1)",
        "any <- Number(1)",
        "any -> Number(2)",
        "any <- String(\"four\")",
        "any -> Number(4)",
        "any -> String(\"2 4\")",
    ]);
    Ok(())
}

// M4
#[tokio::test]
async fn a_middleware_for_nested_reaches_every_run_below_and_not_the_run_itself() -> TestResult {
    let recorder = Recorder::new();
    let outer = outer(&Emitter::new());
    let stack = Stack::<JsonRun>::builder().observe(Notes("any", recorder.clone())).build();
    let run = outer.run(1).middleware(for_nested(stack));
    assert!(run.explain().chain.is_empty(), "its layers are not those of this run");
    assert!(run.explain().middlewares[0].summary.to_string().ends_with("(for the runs below)"));
    assert_eq!(run.await?, "2 4");
    recorder.expect(["any <- Number(1)", "any -> Number(2)", "any <- String(\"four\")", "any -> Number(4)"]);
    Ok(())
}

// M4
#[tokio::test]
async fn streamed_runs_and_retried_attempts_pass_the_same_chain() -> TestResult {
    let recorder = Recorder::new();
    let double = doubling(&recorder);
    let run = || double.run(1).middleware(Stack::<JsonRun>::builder().observe(Notes("any", recorder.clone())).build());
    let told = ["any <- Number(1)", "work 1", "any -> Number(2)"];
    assert_eq!(run().await?, 2);
    recorder.expect(told);
    assert!(matches!(run().into_stream().collect::<Vec<_>>().await.last(), Some(StreamItem::Result(Ok(2)))));
    recorder.expect(told);
    let once_more = map_output(
        |_: &mut u32, ctx: &RunContext| {
            if ctx.attempt() == 0 { Err(Error::retry("again")) } else { Ok(()) }
        },
    );
    assert_eq!(run().middleware(once_more).max_middleware_retries(1).await?, 2);
    recorder.expect([told, told].concat());
    Ok(())
}

// M1
#[tokio::test]
async fn a_json_layer_can_change_the_input_and_the_output() -> TestResult {
    let shout = layer_fn("shout", |input: &Value, _, next: Next<'_, JsonRun>| {
        Box::pin(async move {
            let changed = input.as_u64().map_or_else(|| input.clone(), |n| json!(n * 10));
            let output = next.run(&changed).await?;
            Ok(output.as_str().map_or(output.clone(), |text| json!(format!("{text}!"))))
        })
    });
    let outer = outer(&Emitter::new());
    assert_eq!(outer.run(1).middleware(Stack::<JsonRun>::builder().layer(shout).build()).await?, "11 4!");
    Ok(())
}

// M1, R5
#[tokio::test]
async fn a_json_layers_value_that_does_not_fit_is_an_error_that_names_the_place() {
    let tree = Emitter::new();
    let point = below(&tree, "point", |at: (u32, u32), _: RunContext| async move { Ok(at.0) });
    let gives = |input: Value, output: Value| {
        let layer = layer_fn("gives", move |_, _, next: Next<'_, JsonRun>| {
            let (input, output) = (input.clone(), output.clone());
            Box::pin(async move { next.run(&input).await.map(|_| output) })
        });
        Stack::<JsonRun>::builder().layer(layer).build()
    };
    let rows = [
        (json!([1, "two"]), json!(1), "the input `[1,\"two\"]` does not fit `(u32, u32)` at `[1]`"),
        (json!([1, 2]), json!({"one": 1}), "the output `{\"one\":1}` does not fit `u32`"),
    ];
    for (input, output, message) in rows {
        let error = point.run((1, 2)).middleware(gives(input, output)).await.expect_err("it does not fit");
        assert_eq!(error.kind(), &ErrorKind::Invalid);
        assert!(error.to_string().starts_with(message), "{error}");
    }
}

/// A value that can be serialized but not deserialized.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct OneWay(u32);

impl<'de> Deserialize<'de> for OneWay {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("it was parsed"))
    }
}

// M1
#[tokio::test]
async fn a_value_that_json_layers_leave_unchanged_is_not_deserialized() -> TestResult {
    let one_way =
        below(&Emitter::new(), "one_way", |OneWay(n): OneWay, _: RunContext| async move { Ok(OneWay(n + 1)) });
    let stack = Stack::<JsonRun>::builder().layer(Notes("any", Recorder::new())).build();
    assert_eq!(one_way.run(OneWay(1)).middleware(stack).await?, OneWay(2));
    Ok(())
}

// M9
#[tokio::test]
async fn a_json_layer_cannot_swallow_control_flow_without_absorbing_it() {
    let denied =
        below(
            &Emitter::new(),
            "denied",
            |(): (), _: RunContext| async move { Err::<u32, _>(Error::denied("desk", "no")) },
        );
    for absorbs in [false, true] {
        let catches = layer_fn("catches", move |input: &Value, _, next: Next<'_, JsonRun>| {
            Box::pin(async move {
                if let (Err(error), true) = (next.run(input).await, absorbs) {
                    next.absorb(&error);
                }
                Ok(json!(7))
            })
        });
        let result = denied.run(()).middleware(Stack::<JsonRun>::builder().layer(catches).build()).await;
        assert_eq!(result.ok(), absorbs.then_some(7));
    }
}

// M1
#[tokio::test]
async fn json_layers_are_called_in_their_phases_among_typed_layers() -> TestResult {
    let recorder = Recorder::new();
    let notes = |name| Notes(name, recorder.clone());
    let any = Stack::<JsonRun>::builder().observe(notes("any observe")).guard(notes("any guard")).build();
    let double = below(&Emitter::new(), "double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    double.run(1).layer(notes("typed")).middleware(any).await?;
    recorder.expect([
        "any observe <- Number(1)",
        "typed <- 1",
        "any guard <- Number(1)",
        "any guard -> Number(2)",
        "typed -> 2",
        "any observe -> Number(2)",
    ]);
    Ok(())
}

// R1, M4: the task first polls the run before or after the end of the run's parent.
#[tokio::test]
async fn a_run_that_is_spawned_and_left_behind_does_not_evade_a_guard_for_the_tree() -> TestResult {
    for yields in [false, true] {
        let tree = Emitter::new();
        let done = Arc::new(AtomicBool::new(false));
        let does = Arc::clone(&done);
        let delete = Arc::new(below(&tree, "delete", move |(): (), _: RunContext| {
            does.store(true, Ordering::Relaxed);
            async { Ok(()) }
        }));
        let (left, leaves) = tokio::sync::oneshot::channel();
        let leaves_it = Mutex::new(Some(left));
        let agent = below(&tree, "agent", move |(): (), _: RunContext| {
            let left = tokio::spawn(delete.run_shared(()));
            leaves_it.lock().expect("no panic").take().map(|sender| sender.send(left));
            async move {
                if yields {
                    tokio::task::yield_now().await;
                }
                Ok(())
            }
        });
        let guard = layer_fn("never", |_: &Value, ctx: &RunContext, next: Next<'_, JsonRun>| {
            let is_denied = ctx.parent().is_some();
            Box::pin(async move {
                if is_denied { Err(Error::denied("guard", "never")) } else { next.run(&json!(null)).await }
            })
        });
        let guard = Stack::<JsonRun>::builder().layer(guard).build();
        agent.run(()).middleware(for_tree(guard)).await?;
        let error = leaves.await?.await?.expect_err("it is not done");
        assert!(error.is_denied() || error.is_aborted(), "{error:?}");
        assert!(!done.load(Ordering::Relaxed));
    }
    Ok(())
}
