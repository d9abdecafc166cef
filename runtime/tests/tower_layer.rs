//! Layers of tower around runs: limits that several runnables share, the order of admission, and released permits.
#![cfg(feature = "tower")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_runtime::{
    AbortHandle, ErrorKind, Result, RunContext, Runnable, Ticket, TowerLayer, runnable_fn, tower_layer,
};
use futures_util::future::{join, join_all};
use support::pace::{Pace, begin, endless};
use support::{Recorder, current_id};
use tower::limit::{ConcurrencyLimitLayer, RateLimitLayer};
use tower::{BoxError, Service, ServiceBuilder};

/// Returns a runnable that works at a fixed pace behind a layer of tower.
fn paced<S>(recorder: &Recorder, layer: TowerLayer<S>) -> impl Runnable<Input = u32, Output = u32> + use<S>
where
    S: Service<Ticket, Response = (), Error: Into<BoxError>, Future: Send> + Send + 'static,
{
    let pace = Pace::new(recorder);
    let work = runnable_fn("paced", move |n, _: RunContext| {
        let work = pace.clone().work(n);
        async move { Ok(work.await) }
    });
    work.layer(layer)
}

#[tokio::test(start_paused = true)]
async fn one_limit_is_shared_by_runs_of_several_types_in_order_of_arrival() {
    let recorder = Recorder::new();
    let (limit, pace) = (tower_layer(ConcurrencyLimitLayer::new(2)), Pace::new(&recorder));
    let double = paced(&recorder, limit.clone());
    let text = runnable_fn("text", move |n: u32, _: RunContext| {
        let work = pace.clone().work(n);
        async move { Ok(work.await.to_string()) }
    });
    let texts = [2, 3].map(|n| text.run(n).layer(limit.clone()));
    let (doubles, texts) = join(join_all([double.run(1), double.run(4)]), join_all(texts)).await;
    assert_eq!(doubles.into_iter().map(|n| n.expect("nothing fails")).collect::<Vec<_>>(), [2, 8]);
    assert_eq!(texts.into_iter().map(|n| n.expect("nothing fails")).collect::<Vec<_>>(), ["4", "6"]);
    recorder.expect(["1 at 0 ms", "4 at 0 ms", "2 at 10 ms", "3 at 10 ms"]);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_admits_its_number_of_runs_per_period() {
    let recorder = Recorder::new();
    let double = paced(&recorder, tower_layer(RateLimitLayer::new(2, Duration::from_millis(100))));
    join_all((1..=5).map(|n| double.run(n))).await;
    recorder.expect(["1 at 0 ms", "2 at 0 ms", "3 at 100 ms", "4 at 100 ms", "5 at 200 ms"]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_releases_the_place_in_a_limit_and_does_not_include_waiting() {
    let recorder = Recorder::new();
    let fifteen = Duration::from_millis(15);
    let one = tower_layer(ServiceBuilder::new().timeout(fifteen).concurrency_limit(1));
    let (works, double) = (recorder.clone(), paced(&recorder, one.clone()));
    let slow = runnable_fn("slow", move |(): (), _: RunContext| endless::<Result<()>>(works.clone())).layer(one);
    let (timed_out, doubled) = join(slow.run(()), join_all([double.run(1), double.run(2)])).await;
    assert!(timed_out.expect_err("it takes too long").is_timed_out());
    assert!(doubled.iter().all(Result::is_ok));
    recorder.expect(["the work is dropped", "1 at 15 ms", "2 at 25 ms"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_shed_fails_without_its_work() {
    let recorder = Recorder::new();
    let double = paced(&recorder, tower_layer(ServiceBuilder::new().load_shed().concurrency_limit(1)));
    let [first, second] = <[_; 2]>::try_from(join_all([double.run(1), double.run(2)]).await).expect("two runs");
    assert_eq!(first.expect("nothing fails"), 2);
    let error = second.expect_err("there is no place");
    assert_eq!((error.kind(), error.to_string().as_str()), (&ErrorKind::Failed, "service overloaded"));
    recorder.expect(["1 at 0 ms"]);
}

// R8
#[tokio::test(start_paused = true)]
async fn a_run_dropped_while_it_waits_leaves_its_turn_to_the_next() {
    let recorder = Recorder::new();
    let double = paced(&recorder, tower_layer(ConcurrencyLimitLayer::new(1)));
    let [mut first, mut second, mut third] = [1, 2, 3].map(|n| double.run(n));
    begin(&mut [&mut first, &mut second, &mut third]);
    drop(second);
    assert_eq!((first.await.expect("nothing fails"), third.await.expect("nothing fails")), (2, 6));
    recorder.expect(["1 at 0 ms", "3 at 10 ms"]);
}

// R7
#[tokio::test(start_paused = true)]
async fn runs_aborted_in_the_queue_or_at_work_leave_their_places_to_the_next() {
    let recorder = Recorder::new();
    let double = paced(&recorder, tower_layer(ConcurrencyLimitLayer::new(1)));
    let handles = [1, 2].map(|_| AbortHandle::new());
    let [mut first, mut second] = [1, 2].map(|n| double.run(n));
    [first, second] = [first.abort_on(&handles[0]), second.abort_on(&handles[1])];
    let mut third = double.run(3);
    begin(&mut [&mut first, &mut second, &mut third]);
    handles.iter().rev().for_each(|handle| assert!(handle.abort("enough")));
    for run in [first, second] {
        assert!(run.await.expect_err("it was aborted").is_aborted());
    }
    assert_eq!(third.await.expect("nothing fails"), 6);
    recorder.expect(["1 at 0 ms", "3 at 0 ms"]);
}

// M1
#[tokio::test]
async fn a_layer_that_calls_next_again_takes_another_ticket_and_the_work_is_in_the_run() {
    let once_in_the_run = |(): (), ctx: RunContext| async move { Ok(current_id() == Some(ctx.run_id().to_string())) };
    let twice = runnable_fn("twice", once_in_the_run).layers(|stack| {
        let both = |first, second| Ok(first? && second?);
        let stack = stack.layer_fn("twice", move |input, _, next| {
            Box::pin(async move { both(next.run(input).await, next.run(input).await) })
        });
        stack.layer(tower_layer(ConcurrencyLimitLayer::new(1)))
    });
    assert!(twice.run(()).await.expect("nothing fails"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_runs_at_work_never_exceed_the_limit() {
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&inside), Arc::clone(&most));
    let work = runnable_fn("work", move |n: u32, _: RunContext| {
        let (inside, most) = counts.clone();
        async move {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok(n)
        }
    });
    let work = Arc::new(work.layer(tower_layer(ConcurrencyLimitLayer::new(3))));
    let runs = (0..200).map(|n| tokio::spawn(work.run_shared(n)));
    for (n, run) in (0..).zip(join_all(runs).await) {
        assert_eq!(run.expect("nothing panics").expect("nothing fails"), n);
    }
    assert_eq!(inside.load(Ordering::SeqCst), 0);
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
}
