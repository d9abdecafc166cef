//! Layers of tower around runs: the results that the caller and the layers receive if a layer or the work ends first.
#![cfg(feature = "tower")]

mod support;

use emitree_emitter::Emitter;
use emitree_runtime::{Error, Result, RunContext, Runnable, Ticket, runnable_fn, tower_layer};
use support::layers::doubling;
use support::pace::{TEN, endless};
use support::{Recorder, below};
use tower::timeout::TimeoutLayer;
use tower::timeout::error::Elapsed;
use tower::{BoxError, ServiceBuilder, layer::layer_fn, service_fn};

// R6
#[tokio::test(start_paused = true)]
async fn a_timeout_of_a_tower_layer_drops_the_work_and_the_run_times_out() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let works = recorder.clone();
    let slow = below(&tree, "slow", move |(): (), _: RunContext| endless::<Result<()>>(works.clone()));
    let error = slow.run(()).layer(tower_layer(TimeoutLayer::new(TEN))).await.expect_err("it takes too long");
    assert!(error.is_timed_out());
    assert!(error.find::<Elapsed>().is_some());
    recorder.expect(["slow.run.start", "the work is dropped", "slow.run.error", "slow.run.finish"]);
}

// M9
#[tokio::test]
async fn a_tower_layer_receives_the_result_of_the_work_and_cannot_change_it() {
    let (recorder, work) = (Recorder::new(), |fails: bool, _: RunContext| async move {
        if fails { Err(Error::denied("desk", "not today")) } else { Ok(7) }
    });
    let notes = recorder.clone();
    let turned = tower_layer(ServiceBuilder::new().map_result(move |result: Result<(), BoxError>| {
        notes.note(format!("{:?}", result.as_ref().map_err(ToString::to_string)));
        if result.is_ok() { Err(BoxError::from("too late to fail")) } else { Ok(()) }
    }));
    let work = runnable_fn("work", work).layer(turned);
    assert_eq!(work.run(false).await.expect("nothing fails"), 7);
    assert!(work.run(true).await.expect_err("it is denied").is_denied());
    recorder.expect(["Ok(())", "Err(\"not today\")"]);
}

#[tokio::test]
async fn a_tower_layer_that_answers_without_the_work_fails_the_run() {
    let recorder = Recorder::new();
    let answers = tower_layer(layer_fn(|_| service_fn(|_: Ticket| async { Ok::<_, BoxError>(()) })));
    let error = doubling(&recorder).run(1).layer(answers).await.expect_err("there is no output");
    let message = "a tower layer returned `Ok` before the work was over, so there is no output";
    assert_eq!(error.explain(), message);
    recorder.expect([]);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_tower_layer_that_drops_the_ticket_is_the_error_of_the_run() {
    let recorder = Recorder::new();
    let fails = tower_layer(layer_fn(|_| {
        service_fn(|ticket: Ticket| async {
            drop(ticket);
            tokio::time::sleep(TEN).await;
            Err::<(), BoxError>("no such route".into())
        })
    }));
    let error = doubling(&recorder).run(1).layer(fails).await.expect_err("it is not routed");
    assert_eq!(error.explain(), "no such route");
    recorder.expect([]);
}

// M2
#[tokio::test]
async fn explain_shows_the_type_of_towers_layer() {
    let double = doubling(&Recorder::new());
    let explained = double.run(1).layer(tower_layer(TimeoutLayer::new(TEN))).explain().to_string();
    let line = "transform tower::timeout::layer::TimeoutLayer: TowerLayer { service:";
    assert!(explained.contains(line), "{explained}");
}
