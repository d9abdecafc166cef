//! Services that work in their own tasks, as tower's `Buffer` does: runs in these tasks are children of the run that
//! made the request, inherit its middlewares, and end before it.
#![cfg(feature = "tower")]

mod support;

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::Emitter;
use emitree_runtime::{
    AbortHandle, EnterRunLayer, Error, PropagateRunLayer, Result, RunContext, RunLayer, Runnable, Ticket,
    TowerRunnable, WithRun, for_nested, runnable_fn, tower_layer,
};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use support::{Recorder, below, current_id};
use tokio::sync::Notify;
use tower::layer::layer_fn;
use tower::{BoxError, Layer as _, Service, ServiceBuilder, service_fn};

fn closed(_: &RunContext) -> Result<()> {
    Err(Error::denied("desk", "closed"))
}

/// Returns the id of the current run's parent.
fn parent() -> Option<String> {
    RunContext::current().and_then(|run| run.parent().map(|parent| parent.run_id().to_string()))
}

/// Returns a runnable whose runs return the id of their parent.
fn child() -> Arc<impl Runnable<Input = (), Output = Option<String>> + 'static> {
    Arc::new(runnable_fn("child", |(): (), _: RunContext| async { Ok(parent()) }))
}

/// A service that awaits each call in a task.
#[derive(Clone)]
struct Tasks<S>(S);

impl<S, T> Service<T> for Tasks<S>
where
    S: Service<T, Response: Send + 'static, Error: Into<BoxError>, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: T) -> Self::Future {
        let call = self.0.call(request);
        let task = tokio::spawn(async move { call.await.map_err(Into::into) });
        async move { task.await? }.boxed()
    }
}

/// Calls a service from many runs at the same time. Each call starts a run and returns the id of that run's parent,
/// which must be the calling run.
async fn expect_below<S>(service: S)
where
    S: Service<(), Response = Option<String>, Error: Into<BoxError>, Future: Send> + Send + 'static,
{
    let (ids, notes) = (Recorder::new(), Recorder::new());
    let note = ids.clone();
    let desk = TowerRunnable::new("desk", service).middleware(move |ctx: &RunContext| {
        note.note(ctx.run_id());
        Ok(())
    });
    for parent in join_all((0..20).map(|_| desk.run(()))).await {
        notes.note(parent.expect("nothing fails").as_deref().unwrap_or("no parent"));
    }
    let ids = ids.take();
    notes.expect(ids.iter().map(String::as_str));
    let error = desk.run(()).middleware(for_nested(closed)).await.expect_err("what is below is closed");
    assert!(error.is_denied(), "{error}");
}

// R1, R4
#[tokio::test]
async fn a_run_that_is_made_in_a_call_behind_a_buffer_is_below_the_callers_run_and_its_guards() {
    let child = child();
    let made_in_the_call = service_fn(move |()| child.run_shared(()));
    let layers = ServiceBuilder::new().layer(PropagateRunLayer::new()).buffer(8).layer(EnterRunLayer::new());
    expect_below(layers.service(made_in_the_call)).await;
}

// R1, R4
#[tokio::test]
async fn a_run_that_is_made_in_a_task_of_the_service_is_below_the_callers_run_and_its_guards() {
    let child = child();
    let made_when_polled = service_fn(move |()| {
        let child = Arc::clone(&child);
        async move { child.run(()).await }
    });
    let layers =
        ServiceBuilder::new().layer(PropagateRunLayer::new()).layer(layer_fn(Tasks)).layer(EnterRunLayer::new());
    expect_below(layers.service(made_when_polled)).await;
}

// R1, R4
#[tokio::test]
async fn a_run_layer_behind_a_buffer_makes_runs_below_the_callers_run_without_other_layers() {
    let service = service_fn(|()| async { Ok::<_, BoxError>(parent()) });
    expect_below(ServiceBuilder::new().buffer(8).layer(RunLayer::new("child")).service(service)).await;
}

// R1
#[tokio::test]
async fn a_call_that_is_made_in_one_run_and_awaited_in_another_is_below_the_first() {
    let service = service_fn(|()| async { Ok::<_, BoxError>(parent()) });
    let service = ServiceBuilder::new().layer(RunLayer::new("child")).service(service);
    let outer = runnable_fn("outer", move |(): (), _: RunContext| {
        let call = Mutex::new(Some(service.clone().call(()).boxed()));
        let awaits = Arc::new(runnable_fn("awaits", move |(): (), _: RunContext| {
            let call = call.lock().expect("no panic").take();
            async move { call.expect("one run").await.map_err(Error::from_boxed) }.boxed()
        }));
        async move { Ok(awaits.run_shared(()).await? == current_id()) }
    });
    assert!(outer.run(()).await.expect("nothing fails"));
}

// R7, R13
#[tokio::test]
async fn runs_in_a_task_of_the_service_are_aborted_with_the_callers_run_and_end_before_it() {
    let (tree, recorder, handle) = (Emitter::new(), Recorder::new(), AbortHandle::new());
    recorder.ends(&tree);
    let is_at_work = Arc::new(Notify::new());
    let works = Arc::clone(&is_at_work);
    let child = Arc::new(below(&tree, "child", move |(): (), _: RunContext| {
        works.notify_one();
        pending::<Result<()>>()
    }));
    let service = ServiceBuilder::new()
        .layer(PropagateRunLayer::new())
        .layer(layer_fn(Tasks))
        .layer(EnterRunLayer::new())
        .service(service_fn(move |()| {
            let child = Arc::clone(&child);
            async move { child.run(()).await }
        }));
    let desk = TowerRunnable::new("desk", service).with_emitter(tree.child("desk").expect("a valid name"));
    let abort = async {
        is_at_work.notified().await;
        handle.abort("enough");
    };
    let (result, ()) = tokio::join!(desk.run(()).abort_on(&handle), abort);
    assert!(result.expect_err("it is aborted").is_aborted());
    let starts = ["desk.run.start", "child.run.start"];
    let of_child = ["child.run.error", "child.run.finish aborted"];
    recorder.expect([starts, of_child, ["desk.run.error", "desk.run.finish aborted"]].concat());
}

// R1
#[tokio::test]
async fn a_request_whose_run_has_ended_starts_no_run() {
    let late = runnable_fn("late", |(): (), _: RunContext| async { Ok(()) });
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let outer = runnable_fn("outer", move |(): (), _: RunContext| {
        *keep.lock().expect("no panic") = Some(WithRun::new(()));
        async { Ok(()) }
    });
    outer.run(()).await.expect("nothing fails");
    let late = Arc::new(late);
    let mut service = EnterRunLayer::new().layer(service_fn(move |()| late.run_shared(())));
    let request = kept.lock().expect("no panic").take().expect("a request");
    let error = service.call(request).await.expect_err("it is too late");
    assert_eq!(error.to_string(), "the parent run ended before this run was first polled");
}

// R1
#[tokio::test]
async fn a_request_made_while_a_run_reports_its_end_belongs_to_the_run_above() {
    let inner = Arc::new(runnable_fn("inner", |(): (), _: RunContext| async { Ok(()) }));
    let outer = runnable_fn("outer", move |(): (), ctx: RunContext| {
        let (inner, kept) = (Arc::clone(&inner), Arc::new(Mutex::new(None)));
        async move {
            let keep = Arc::clone(&kept);
            let at_the_end = inner.run_shared(()).on_finish(move |_, _| {
                *keep.lock().expect("no panic") = Some(WithRun::new(()));
            });
            at_the_end.await?;
            let request = kept.lock().expect("no panic").take().expect("a request");
            Ok(request.run() == Some(&ctx))
        }
    });
    assert!(outer.run(()).await.expect("nothing fails"));
}

// R1
#[tokio::test]
async fn a_run_that_a_layer_behind_a_buffer_makes_for_a_ticket_is_below_the_tickets_run() {
    let (child, recorder) = (child(), Recorder::new());
    let notes = recorder.clone();
    let makes_a_run = ServiceBuilder::new().layer(PropagateRunLayer::new()).buffer(8).layer(EnterRunLayer::new());
    let makes_a_run = makes_a_run.layer(layer_fn(move |inside| {
        let (child, notes) = (Arc::clone(&child), notes.clone());
        service_fn(move |ticket: Ticket| {
            let (run, notes): (_, Recorder) = (child.run_shared(()), notes.clone());
            let mut inside: emitree_runtime::TicketService = inside;
            async move {
                notes.note(run.await?.unwrap_or_default());
                inside.call(ticket).await
            }
        })
    }));
    let work = runnable_fn("work", |(): (), _: RunContext| async { Ok(current_id()) });
    let id = work.layer(tower_layer(makes_a_run)).run(()).await.expect("nothing fails").expect("a run");
    recorder.expect([id.as_str()]);
}
