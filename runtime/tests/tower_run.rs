//! Services of tower whose calls are runs: a call emits events, is below the current run, uses the service that is
//! ready, and ends when it is dropped.
#![cfg(feature = "tower")]

mod support;

use emitree_emitter::{Creator, Emitter};
use emitree_runtime::{Error, LifecycleRef, RunContext, RunLayer, Runnable, Stack, Stage, runnable_fn};
use futures_util::FutureExt;
use support::pace::{TEN, endless};
use support::{Any, Recorder};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

/// Returns a service that doubles its input, and records its work.
fn double(
    recorder: &Recorder,
) -> impl Service<u32, Response = u32, Error = BoxError, Future: Send> + Clone + Send + use<> {
    let recorder = recorder.clone();
    service_fn(move |n| {
        recorder.note(format!("work {n}"));
        async move { Ok(n * 2) }
    })
}

fn watched(recorder: &Recorder) -> RunLayer {
    let tree = Emitter::new();
    recorder.watch(&tree);
    RunLayer::new("double").with_emitter(tree)
}

// R4, R5
#[tokio::test]
async fn each_call_is_a_run_whose_start_listeners_may_change_or_answer_it() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let emitter = tree.child_builder("double").creator(Creator::new("Tool", "any")).build().expect("a valid name");
    recorder.watch(&emitter);
    emitter
        .on(Stage::Start, |start: &mut emitree_runtime::Start<u32, u32>, _| {
            start.input += 1;
            start.output = (start.input > 10).then_some(0);
        })
        .expect("a valid matcher");
    let mut service =
        ServiceBuilder::new().layer(RunLayer::new("double").with_emitter(emitter)).service(double(&recorder));
    let events = |work: &'static [&'static str]| {
        [&["double.run.start"], work, &["double.run.success", "double.run.finish"]].concat()
    };
    assert_eq!(service.ready().await.expect("ready").call(1).await.expect("nothing fails"), 4);
    recorder.expect(events(&["work 2"]));
    assert_eq!(service.ready().await.expect("ready").call(10).await.expect("nothing fails"), 0);
    recorder.expect(events(&[]));
}

// R1
#[tokio::test]
async fn a_call_in_a_run_is_below_that_run() {
    let below = parent();
    let outer = runnable_fn("outer", move |(): (), ctx: RunContext| {
        let service = below.clone();
        async move {
            let parent = service.oneshot(()).await.map_err(Error::from_boxed)?;
            Ok(parent == Some(ctx.run_id().to_string()))
        }
    });
    assert!(outer.run(()).await.expect("nothing fails"));
}

/// Returns a service that returns the id of its run's parent.
fn parent() -> impl Service<(), Response = Option<String>, Error = BoxError, Future: Send> + Clone + Send + Sync {
    ServiceBuilder::new().layer(RunLayer::new("parent")).service(service_fn(|()| async {
        let parent = RunContext::current().and_then(|run| run.parent().cloned());
        Ok::<_, BoxError>(parent.map(|parent| parent.run_id().to_string()))
    }))
}

// R8
#[tokio::test(start_paused = true)]
async fn a_call_that_a_timeout_drops_ends_as_dropped() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    let note = move |event: &Any, meta: &emitree_emitter::EventMeta<'_>| {
        if let Some(LifecycleRef::Finish(finish)) = LifecycleRef::of(event, meta) {
            notes.note(finish.status().as_str());
        }
    };
    tree.observe(Stage::Finish, note).expect("a valid matcher");
    let works = recorder.clone();
    let slow = service_fn(move |(): ()| endless::<Result<(), BoxError>>(works.clone()));
    let service = ServiceBuilder::new().timeout(TEN).layer(RunLayer::new("slow").with_emitter(tree)).service(slow);
    let error = service.oneshot(()).await.expect_err("it takes too long");
    assert!(error.is::<tower::timeout::error::Elapsed>());
    recorder.expect(["the work is dropped", "dropped"]);
}

#[tokio::test]
async fn a_call_uses_the_ready_service_and_a_dropped_call_releases_its_place() {
    let recorder = Recorder::new();
    let mut service = ServiceBuilder::new().layer(watched(&recorder)).concurrency_limit(1).service(double(&recorder));
    let call = service.ready().await.expect("ready").call(1);
    assert!(service.ready().now_or_never().is_none(), "the only place is taken");
    drop(call);
    // R8: a call that was never polled emits no events.
    recorder.expect([]);
    assert_eq!(service.ready().await.expect("ready").call(2).await.expect("nothing fails"), 4);
    recorder.expect(["run.start", "work 2", "run.success", "run.finish"]);
}

// R10
#[tokio::test]
async fn the_runs_error_keeps_its_kind_through_layers_of_tower() {
    let denies = service_fn(|(): ()| async { Err::<(), _>(Error::denied("desk", "not today")) });
    let service = ServiceBuilder::new().timeout(TEN).layer(RunLayer::new("denies")).service(denies);
    let error = service.oneshot(()).await.expect_err("it is denied");
    assert_eq!(Error::from_boxed(error).explain(), "denied by desk: not today");
}

// M1
#[tokio::test]
async fn layers_of_the_run_may_call_the_service_again() {
    let recorder = Recorder::new();
    let twice = Stack::<Double>::builder()
        .layer_fn("twice", |n, _, next| Box::pin(async move { Ok(next.run(n).await? + next.run(n).await?) }));
    let layer = watched(&recorder).middleware(twice.build());
    let service = ServiceBuilder::new().layer(layer).concurrency_limit(1).service(double(&recorder));
    assert_eq!(service.oneshot(1).await.expect("nothing fails"), 4);
    recorder.expect(["run.start", "work 1", "work 1", "run.success", "run.finish"]);
}

struct Double;

impl emitree_runtime::Op for Double {
    type In = u32;
    type Out = u32;
}
