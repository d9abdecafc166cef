//! Services of tower as runnables: backpressure in order of arrival, errors, parents, and runs that are dropped while
//! they wait.
#![cfg(feature = "tower")]

mod support;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_emitter::Emitter;
use emitree_runtime::{AbortHandle, Error, ErrorKind, Op, RunContext, Runnable, Stack, TowerRunnable, runnable_fn};
use futures_util::future::join_all;
use support::pace::{Pace, TEN, begin};
use support::{Recorder, current_id};
use tower::timeout::error::Elapsed;
use tower::{BoxError, Service, ServiceBuilder, service_fn};

/// Returns a service that works at a fixed pace.
fn paced(
    recorder: &Recorder,
) -> impl Service<u32, Response = u32, Error = BoxError, Future: Send> + Clone + Send + 'static {
    let pace = Pace::new(recorder);
    service_fn(move |n| {
        let work = pace.clone().work(n);
        async move { Ok(work.await) }
    })
}

/// Returns a runnable for the paced service, limited to one call at a time. The recorder records the events of the
/// runnable.
fn one_at_a_time(recorder: &Recorder) -> impl Runnable<Input = u32, Output = u32> + 'static {
    let tree = Emitter::new();
    recorder.watch(&tree);
    TowerRunnable::new("one", ServiceBuilder::new().concurrency_limit(1).service(paced(recorder))).with_emitter(tree)
}

struct Double;

impl Op for Double {
    type In = u32;
    type Out = u32;
}

// R4
#[tokio::test(start_paused = true)]
async fn each_call_is_a_run_with_its_events_middlewares_and_layers() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let notes = recorder.clone();
    let bound = move |_: &RunContext| {
        notes.note("bound");
        Ok(())
    };
    let plus =
        Stack::<Double>::builder().layer_fn("plus", |n, _, next| Box::pin(async move { next.run(&(n + 1)).await }));
    let double = TowerRunnable::new("double", paced(&recorder))
        .with_emitter(tree.child("double").expect("a valid name"))
        .middleware(bound)
        .middleware(plus.build());
    assert_eq!((double.name(), double.kind()), ("double", "Run"));
    assert_eq!(double.run(1).on_start(|start, _| start.input += 1).await.expect("nothing fails"), 6);
    recorder.expect(["bound", "double.run.start", "3 at 0 ms", "double.run.success", "double.run.finish"]);
}

#[tokio::test(start_paused = true)]
async fn runs_beyond_a_concurrency_limit_wait_and_are_admitted_in_order_of_arrival() {
    let recorder = Recorder::new();
    let service = ServiceBuilder::new().concurrency_limit(2).service(paced(&recorder));
    let double = TowerRunnable::new("double", service);
    let results = join_all((1..=5).map(|n| double.run(n))).await;
    assert_eq!(results.into_iter().collect::<Result<Vec<_>, _>>().expect("nothing fails"), [2, 4, 6, 8, 10]);
    recorder.expect(["1 at 0 ms", "2 at 0 ms", "3 at 10 ms", "4 at 10 ms", "5 at 20 ms"]);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_that_cannot_be_cloned_is_shared_by_all_runs() {
    let recorder = Recorder::new();
    let service = ServiceBuilder::new().rate_limit(2, Duration::from_millis(100)).service(paced(&recorder));
    let double = TowerRunnable::new("double", service);
    join_all((1..=5).map(|n| double.run(n))).await;
    recorder.expect(["1 at 0 ms", "2 at 0 ms", "3 at 100 ms", "4 at 100 ms", "5 at 200 ms"]);
}

// R6
#[tokio::test(start_paused = true)]
async fn a_timeout_in_the_service_is_a_timeout_of_the_run() {
    let never = service_fn(|(): ()| pending::<Result<(), BoxError>>());
    let never = TowerRunnable::new("never", ServiceBuilder::new().timeout(TEN).service(never));
    let error = never.run(()).await.expect_err("it takes too long");
    assert!(error.is_timed_out());
    assert!(error.find::<Elapsed>().is_some());
    assert_eq!(error.explain(), "request timed out");
}

// R10
#[tokio::test]
async fn an_error_of_the_service_is_found_as_the_source_of_the_runs_error() {
    let parse = service_fn(|text: String| async move { text.parse::<u32>() });
    let error = TowerRunnable::new("parse", parse).run("many".into()).await.expect_err("it is no number");
    assert_eq!(error.kind(), &ErrorKind::Failed);
    assert!(error.find::<std::num::ParseIntError>().is_some());
}

// R10
#[tokio::test]
async fn an_emitree_error_is_unchanged_by_layers_of_tower() {
    let denies = service_fn(|(): ()| async { Err::<(), _>(Error::denied("desk", "not today")) });
    let denies =
        TowerRunnable::new("denies", ServiceBuilder::new().timeout(TEN).map_err(BoxError::from).service(denies));
    let error = denies.run(()).await.expect_err("it is denied");
    assert_eq!(error.explain(), "denied by desk: not today");
}

// R1
#[tokio::test]
async fn runs_started_in_the_service_are_below_the_run_that_called_it() {
    let nested = Arc::new(runnable_fn("nested", |(): (), ctx: RunContext| async move {
        Ok(ctx.parent().map(|parent| parent.run_id().to_string()))
    }));
    let outer = TowerRunnable::new(
        "outer",
        service_fn(move |(): ()| {
            let (run, here) = (nested.run_shared(()), current_id());
            async move { Ok::<_, Error>([here, run.await?, current_id()]) }
        }),
    );
    let [at_the_call, parent, in_the_future] = outer.run(()).await.expect("nothing fails");
    assert!(parent.is_some());
    assert_eq!([&at_the_call, &in_the_future], [&parent, &parent]);
}

#[tokio::test(start_paused = true)]
async fn a_run_dropped_while_it_waits_does_not_call_the_service_or_delay_the_next_run() {
    let recorder = Recorder::new();
    let one = one_at_a_time(&recorder);
    let [mut first, mut second, mut third] = [1, 2, 3].map(|n| one.run(n));
    begin(&mut [&mut first, &mut second, &mut third]);
    recorder.expect(["run.start", "1 at 0 ms", "run.start", "run.start"]);
    drop(second);
    recorder.expect(["run.error", "run.finish"]);
    assert_eq!((first.await.expect("nothing fails"), third.await.expect("nothing fails")), (2, 6));
    recorder.expect(["run.success", "run.finish", "3 at 10 ms", "run.success", "run.finish"]);
}

// R7
#[tokio::test(start_paused = true)]
async fn a_run_aborted_while_it_waits_never_calls_the_service() {
    let (recorder, handle) = (Recorder::new(), AbortHandle::new());
    let one = one_at_a_time(&recorder);
    let [mut first, mut third] = [1, 3].map(|n| one.run(n));
    let mut second = one.run(2).abort_on(&handle);
    begin(&mut [&mut first, &mut second, &mut third]);
    handle.abort("enough");
    assert!(second.await.expect_err("it was aborted").is_aborted());
    assert_eq!((first.await.expect("nothing fails"), third.await.expect("nothing fails")), (2, 6));
    let calls = recorder.take().into_iter().filter(|line| line.contains(" at "));
    assert_eq!(calls.collect::<Vec<_>>(), ["1 at 0 ms", "3 at 10 ms"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_runs_never_exceed_the_limit_of_the_service() {
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&inside), Arc::clone(&most));
    let service = service_fn(move |n: u32| {
        let (inside, most) = counts.clone();
        async move {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, BoxError>(n)
        }
    });
    let limited = TowerRunnable::new("limited", ServiceBuilder::new().concurrency_limit(3).service(service));
    let limited = Arc::new(limited);
    let runs = (0..200).map(|n| tokio::spawn(limited.run_shared(n)));
    for (n, run) in (0..).zip(join_all(runs).await) {
        assert_eq!(run.expect("nothing panics").expect("nothing fails"), n);
    }
    assert_eq!(inside.load(Ordering::SeqCst), 0);
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
}
