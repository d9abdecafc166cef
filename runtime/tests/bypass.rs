//! Drops do not evade guards (R1, M5). A value of a nested run may be dropped at any time, in any task or thread. A
//! guard that is bound above checks the runs that the value's `Drop` starts, unless the run above has ended.

#[path = "support/starts.rs"]
mod starts;
mod support;

use std::panic::panic_any;
use std::sync::Arc;
use std::thread;

use emitree_emitter::Emitter;
use emitree_runtime::{
    AbortHandle, Error, Guard, Next, Op, Run, RunContext, RunEvent, Runnable, Stage, layer_fn, map_output,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use starts::{Failure, Seen, Started, Starts, guard_against_starts};
use support::{Any, below, poll_once, silence_planned_panics};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot};

/// An input or output of a run, which may hold a value that starts a run when it is dropped.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Value {
    #[serde(skip)]
    #[expect(dead_code, reason = "it is dropped")]
    held: Option<Starts>,
}

#[derive(Debug)]
struct Holding(#[expect(dead_code, reason = "it is dropped")] Starts);

impl<O: Op> Guard<O> for Holding {}

/// The place of the value that starts a run when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Listener,
    Observer,
    Layer,
    Guard,
    Extension,
    Input,
    Output,
    Error,
    Panic,
    ContextMap,
    ErrorMap,
    EndHook,
    Runnable,
    Task,
}

const PLACES: [Place; 14] = [
    Place::Listener,
    Place::Observer,
    Place::Layer,
    Place::Guard,
    Place::Extension,
    Place::Input,
    Place::Output,
    Place::Error,
    Place::Panic,
    Place::ContextMap,
    Place::ErrorMap,
    Place::EndHook,
    Place::Runnable,
    Place::Task,
];

/// The moment or the way in which the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Unpolled,
    Bind,
    Start,
    Work,
    Retry,
    End,
    Abort,
    RuntimeGone,
}

const MOMENTS: [Moment; 8] = [
    Moment::Unpolled,
    Moment::Bind,
    Moment::Start,
    Moment::Work,
    Moment::Retry,
    Moment::End,
    Moment::Abort,
    Moment::RuntimeGone,
];

/// The task or thread that polls the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spawned {
    ByTokio,
    ByTheRun,
    OnAThread,
}

const SPAWNED: [Spawned; 3] = [Spawned::ByTokio, Spawned::ByTheRun, Spawned::OnAThread];

/// The place of the value, the end of the run, and the handles that control the run.
struct Plan {
    place: Place,
    moment: Moment,
    abort: AbortHandle,
    begun: Arc<Notify>,
}

/// Returns a nested run with a value whose drop starts another run.
fn nested(
    tree: &Emitter,
    plan: &Plan,
    starts: Starts,
) -> Run<'static, impl Runnable<Input = Value, Output = Value> + use<>> {
    let Plan { place, moment, .. } = *plan;
    let held = (place == Place::Runnable).then(|| starts.clone());
    let is_of_work = matches!(place, Place::Output | Place::Error | Place::Panic | Place::Task);
    // The first attempt takes the value out of the mutex, so that the work drops the last clone.
    let of_work = Mutex::new(is_of_work.then(|| starts.clone()));
    let begun = Arc::clone(&plan.begun);
    let work = move |_: Value, ctx: RunContext| {
        let (value, _held) = (of_work.lock().take(), &held);
        let begun = Arc::clone(&begun);
        async move {
            let value = if place == Place::Task { keep_in_a_task(&ctx, value).await } else { value };
            begun.notify_one();
            match (moment, place, value) {
                (Moment::Abort | Moment::RuntimeGone, _, _value) => std::future::pending().await,
                (_, Place::Panic, Some(value)) => panic_any(value),
                (_, Place::Error, Some(value)) => Err(Error::from(Failure(value))),
                (Moment::Work, _, value) => Err(value.map_or_else(|| Error::new("no"), |value| Failure(value).into())),
                (_, _, held) => Ok(Value { held }),
            }
        }
    };
    let input = Value { held: (place == Place::Input).then(|| starts.clone()) };
    let run = Arc::new(below(tree, "nested", work)).run_shared(input).abort_on(plan.abort.signal());
    ending(hold(run, place, starts), moment)
}

async fn keep_in_a_task(ctx: &RunContext, value: Option<Starts>) -> Option<Starts> {
    drop(ctx.spawn(async move {
        let _value = value;
        std::future::pending::<()>().await;
    }));
    tokio::task::yield_now().await;
    None
}

/// Binds the value to the run, if its place is a binding or an extension.
fn hold<R: Runnable<Input = Value, Output = Value>>(
    run: Run<'static, R>,
    place: Place,
    starts: Starts,
) -> Run<'static, R> {
    let bound = Mutex::new(Some(starts.clone()));
    let middleware = move |ctx: &RunContext| {
        let starts = bound.lock().take();
        match place {
            Place::Observer => ctx.subscribe(move |_: &RunEvent<'_>| _ = &starts),
            Place::EndHook => ctx.on_end(move |_, _| drop(starts)),
            Place::ContextMap => ctx.map_context(move |_, value| {
                _ = &starts;
                value
            }),
            _ => ctx.map_error(move |error| {
                _ = &starts;
                error
            }),
        }
        Ok(())
    };
    match place {
        Place::Listener => run.on("never", move |_: &mut Any, _| _ = &starts),
        Place::Layer => run.layer(layer_fn("holds", move |input, _, next: Next<'_, _>| {
            let _starts = &starts;
            Box::pin(next.run(input))
        })),
        Place::Guard => run.layers(|stack| stack.guard(Holding(starts))),
        Place::Extension => run.extension(starts),
        Place::Observer | Place::EndHook | Place::ContextMap | Place::ErrorMap => run.middleware(middleware),
        Place::Input | Place::Output | Place::Error | Place::Panic | Place::Runnable | Place::Task => run,
    }
}

/// Adds the binding that makes the run fail or retry at this moment. Other moments need no binding.
fn ending<R: Runnable<Input = Value, Output = Value>>(run: Run<'static, R>, moment: Moment) -> Run<'static, R> {
    match moment {
        Moment::Bind => run.middleware(|_: &RunContext| Err(Error::new("not bound"))),
        Moment::Start => run.on(Stage::Start, |_: &mut Any, _| Err("not begun".into())),
        Moment::Retry => run
            .middleware(map_output(
                |_: &mut Value, ctx: &RunContext| {
                    if ctx.attempt() == 0 { Err(Error::retry("again")) } else { Ok(()) }
                },
            ))
            .max_middleware_retries(1),
        Moment::Unpolled | Moment::Work | Moment::End | Moment::Abort | Moment::RuntimeGone => run,
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// Polls the run in a task or on a thread and hands its result to the run above, or drops the run there unpolled.
fn spawn<R: Runnable<Output = Value>>(
    run: Run<'static, R>,
    ctx: &RunContext,
    (spawned, moment): (Spawned, Moment),
    elsewhere: &Runtime,
    gone: &Arc<Notify>,
) -> oneshot::Receiver<emitree_runtime::Result<Value>> {
    let (send, receive) = oneshot::channel();
    let driven = async move {
        let result = match moment {
            Moment::Unpolled => {
                // Drop the run first: the drop of `send` wakes the run above, which may then end.
                drop(run);
                None
            }
            _ => Some(run.await),
        };
        result.map(|result| send.send(result).ok());
    };
    match spawned {
        Spawned::ByTokio => drop(elsewhere.spawn(driven)),
        Spawned::ByTheRun => {
            let _inside = elsewhere.enter();
            drop(ctx.spawn(driven));
        }
        Spawned::OnAThread => {
            let gone = Arc::clone(gone);
            thread::spawn(move || {
                let mut driven = Box::pin(driven);
                let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    tokio::select! {
                        () = &mut driven => {}
                        () = gone.notified() => {}
                    }
                });
                drop(runtime);
            });
        }
    }
    receive
}

/// Runs one case, and returns the outcomes of the runs that drops have started.
fn attack(case: (Place, Moment, Spawned)) -> Vec<(Started, bool)> {
    let (place, moment, spawned) = case;
    let (tree, seen) = (Emitter::new(), Seen::default());
    let notes = Arc::clone(&seen);
    let elsewhere = Mutex::new(Some(runtime()));
    let instances = tree.clone();
    let above = below(&tree, "above", move |(): (), ctx: RunContext| {
        let (tree, notes, elsewhere) = (instances.clone(), Arc::clone(&notes), elsewhere.lock().take());
        async move {
            guard_against_starts(&ctx);
            let elsewhere = elsewhere.ok_or_else(|| Error::new("there is one run"))?;
            let (begun, gone) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let plan = Plan { place, moment, abort: AbortHandle::new(), begun: Arc::clone(&begun) };
            let starts = Starts::below(&ctx, &notes);
            let run = nested(&tree, &plan, starts);
            let result = spawn(run, &ctx, (spawned, moment), &elsewhere, &gone);
            if matches!(moment, Moment::Abort | Moment::RuntimeGone) {
                begun.notified().await;
            }
            match moment {
                Moment::Abort => _ = plan.abort.abort("enough"),
                Moment::RuntimeGone => gone.notify_one(),
                _ => {}
            }
            if moment == Moment::RuntimeGone {
                thread::spawn(move || drop(elsewhere)).join().expect("it does not panic");
                drop(result.await);
            } else {
                drop(result.await);
                thread::spawn(move || drop(elsewhere)).join().expect("it does not panic");
            }
            Ok(())
        }
    });
    let main = Builder::new_current_thread().enable_all().build().expect("a runtime");
    main.block_on(async { above.run(()).await }).expect("it succeeds");
    drop(main);
    std::mem::take(&mut *seen.lock())
}

#[test]
fn a_run_started_by_a_drop_passes_the_guards_above_unless_the_run_above_has_ended() {
    silence_planned_panics();
    let mut evaded = Vec::new();
    for (place, moment) in PLACES.into_iter().flat_map(|place| MOMENTS.map(|moment| (place, moment))) {
        for spawned in SPAWNED {
            let case = (place, moment, spawned);
            let seen = attack(case);
            if seen.is_empty() || seen.contains(&(Started::Unguarded, false)) {
                evaded.push(format!("{case:?}: {seen:?}"));
            }
        }
    }
    assert!(
        evaded.is_empty(),
        "{} of {}:\n{}",
        evaded.len(),
        PLACES.len() * MOMENTS.len() * SPAWNED.len(),
        evaded.join("\n")
    );
}

/// The run above ends `fails`, so the error of `fails` is not fetched. Dropping this error starts another run.
#[tokio::test]
async fn a_run_started_by_the_drop_of_an_unfetched_error_passes_the_guards_above() {
    let (tree, seen) = (Emitter::new(), Seen::default());
    let notes = Arc::clone(&seen);
    let gate = Arc::new(Notify::new());
    let top = below(&tree.clone(), "top", move |(): (), ctx: RunContext| {
        let (tree, notes, gate) = (tree.clone(), Arc::clone(&notes), Arc::clone(&gate));
        async move {
            guard_against_starts(&ctx);
            let starts = Mutex::new(Some(Starts::below(&ctx, &notes)));
            let fails = Arc::new(below(&tree, "fails", move |(): (), _: RunContext| {
                let starts = starts.lock().take();
                async { Err::<(), _>(starts.map_or_else(|| Error::new("no"), |starts| Failure(starts).into())) }
            }));
            let left = Arc::new(Mutex::new(None));
            let leaves = Arc::clone(&left);
            let middle = below(&tree, "middle", move |(): (), _: RunContext| {
                let waits = Arc::clone(&gate);
                let mut run = Arc::clone(&fails).run_shared(()).on_async(Stage::Error, move |_: &mut Any, _| {
                    let waits = Arc::clone(&waits);
                    Box::pin(async move {
                        waits.notified().await;
                        Ok(())
                    })
                });
                assert!(poll_once(&mut run).is_pending());
                gate.notify_one();
                *leaves.lock() = Some(run);
                async { Ok(()) }
            });
            middle.run(()).await?;
            let left = left.lock().take();
            thread::spawn(move || drop(left)).join().expect("it does not panic");
            Ok(())
        }
    });
    top.run(()).await.expect("it succeeds");
    assert_eq!(*seen.lock(), [(Started::Guarded, false)]);
}
