//! M1: layers of `AnyRun` wrap runs of any type, and have no access to their inputs and outputs.

use std::sync::Arc;

use crate::support::layers::Notes;
use crate::support::{Recorder, TestResult, below};
use emitree_emitter::Emitter;
use emitree_runtime::{
    AnyRun, Error, ErrorKind, JsonRun, Middleware, Next, Result, RunContext, Runnable, Stack, for_tree, layer_fn,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that cannot be converted to JSON.
#[derive(Clone)]
struct Bare(u32);

impl Serialize for Bare {
    fn serialize<S: Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
        panic!("nobody is to look")
    }
}

impl<'de> Deserialize<'de> for Bare {
    fn deserialize<D: Deserializer<'de>>(_: D) -> std::result::Result<Self, D::Error> {
        Err(serde::de::Error::custom("nobody is to look"))
    }
}

fn bare(tree: &Emitter) -> impl Runnable<Input = Bare, Output = Bare> + 'static {
    below(tree, "bare", |bare: Bare, _: RunContext| async move { Ok(Bare(bare.0 + 1)) })
}

fn around<F>(f: F) -> impl Middleware
where
    F: for<'a> Fn(Next<'a, AnyRun>) -> futures_core::future::BoxFuture<'a, Result<()>> + Send + Sync + 'static,
{
    Stack::<AnyRun>::builder().layer(layer_fn("around", move |(), _, next| f(next))).build()
}

#[tokio::test]
async fn values_pass_any_run_layers_without_conversion_to_json() -> TestResult {
    let recorder = Recorder::new();
    let inner = Arc::new(bare(&Emitter::new()));
    let outer = below(&Emitter::new(), "outer", move |n: u32, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { Ok(inner.run(Bare(n)).await?.0) }
    });
    let notes = Stack::<AnyRun>::builder().observe(Notes("opaque", recorder.clone())).build();
    assert_eq!(outer.run(1).middleware(for_tree(notes)).await?, 2);
    recorder.expect(["opaque <- ()", "opaque <- ()", "opaque -> ()", "opaque -> ()"]);
    Ok(())
}

#[tokio::test]
async fn a_run_continues_with_the_last_output_that_next_produced() -> TestResult {
    let count = std::sync::atomic::AtomicU32::new(0);
    let counting = below(&Emitter::new(), "count", move |(): (), _: RunContext| {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move { if n == 2 { Err(Error::new("the third fails")) } else { Ok(n) } }
    });
    let thrice = around(|next| {
        Box::pin(async move {
            next.run(&()).await?;
            next.run(&()).await?;
            assert_eq!(next.run(&()).await.expect_err("it fails").to_string(), "the third fails");
            Ok(())
        })
    });
    assert_eq!(counting.run(()).middleware(thrice).await?, 1);
    Ok(())
}

#[tokio::test]
async fn an_any_run_layer_that_returns_ok_without_an_output_fails_the_run() {
    let bare = bare(&Emitter::new());
    let Err(error) = bare.run(Bare(1)).middleware(around(|_| Box::pin(async { Ok(()) }))).await else {
        panic!("it has no output");
    };
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    let message =
        "the layer `around` does not see values and returned `Ok` without an output: call `next`, or return an error";
    assert_eq!(error.to_string(), message);
}

// M9
#[tokio::test]
async fn an_any_run_layer_cannot_swallow_control_flow() {
    let denied = below(&Emitter::new(), "denied", |(): (), _: RunContext| async move {
        Err::<(), _>(Error::denied("the house", "no"))
    });
    let swallow = around(|next| {
        Box::pin(async move {
            next.run(&()).await.ok();
            Err(Error::new("something else"))
        })
    });
    let error = denied.run(()).middleware(swallow).await.expect_err("it is denied");
    assert_eq!(error.explain(), "denied by the house: no");
}

// M6
#[tokio::test]
async fn every_kind_of_layer_can_see_whether_the_run_was_answered_at_start() -> TestResult {
    let double = below(&Emitter::new(), "double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    let recorder = Recorder::new();
    let note = |what: &'static str| {
        let notes = recorder.clone();
        move |is_answered| notes.note(format!("{what}: {is_answered}"))
    };
    let (json, opaque, typed) = (note("json"), note("opaque"), note("typed"));
    let double = double
        .middleware(
            Stack::<JsonRun>::builder()
                .layer_fn("json", move |input, _, next| {
                    json(next.is_answered());
                    Box::pin(next.run(input))
                })
                .build(),
        )
        .middleware(
            Stack::<AnyRun>::builder()
                .layer_fn("opaque", move |(), _, next| {
                    opaque(next.is_answered());
                    Box::pin(next.run(&()))
                })
                .build(),
        )
        .layers(|stack| {
            stack.layer_fn("typed", move |input, _, next| {
                typed(next.is_answered());
                Box::pin(next.run(input))
            })
        });
    assert_eq!(double.run(1).await?, 2);
    recorder.expect(["json: false", "opaque: false", "typed: false"]);
    assert_eq!(double.run(1).on_start(|start, _| start.output = Some(7)).await?, 7);
    recorder.expect(["json: true", "opaque: true", "typed: true"]);
    Ok(())
}

// M1
#[tokio::test]
async fn an_any_run_layer_that_skips_the_work_fails_even_a_run_with_unit_values() {
    let skips = Stack::<AnyRun>::builder().layer_fn("skips", |(), _, _| Box::pin(async { Ok(()) })).build();
    let nothing = below(&Emitter::new(), "nothing", |(), _: RunContext| async { Ok(()) });
    let error = nothing.run(()).middleware(skips).await.expect_err("the work was not done");
    assert_eq!(error.kind(), &ErrorKind::Invalid);
}
