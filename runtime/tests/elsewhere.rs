//! If another thread drops a value of a run, the value is dropped inside the run, or inside the run above if the run
//! has ended (R14, R1). A guard that is bound above thus checks the runs that the drop starts.

#[path = "support/starts.rs"]
mod starts;
mod support;

use std::future::pending;
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::thread;

use emitree_emitter::{BoxError, Emitter, Event, EventName};
use emitree_runtime::{
    AnyRun, Error, Layer, Middleware, Next, Op, Result, RunContext, RunStream, Runnable, Stack, StreamItem, runnable_fn,
};
use futures_util::future::BoxFuture;
use serde::Serialize;
use starts::{Failure, Seen, Started, Starts, guard_against_starts};
use support::{Any, below, poll_once};

/// A function that a middleware calls in `bind`. It stores a value somewhere in the run or in a run below, and returns
/// a function that causes the value to be dropped.
type Leave = fn(&RunContext, Starts) -> Result<Drops>;
type Drops = Box<dyn FnOnce() + Send>;

/// Returns a function that calls `call` and owns a value, which is dropped with the function.
fn holding<T>(starts: Starts, call: impl Fn() -> T) -> impl Fn() -> T {
    move || {
        _ = &starts;
        call()
    }
}

/// Starts an emit that stays pending, and returns the function that drops it.
fn emitting(emitter: &Emitter) -> Result<Drops> {
    let emitter = emitter.clone();
    let mut emit = Box::pin(async move { emitter.emit("x", &mut ()).await });
    assert!(poll_once(&mut emit).is_pending());
    Ok(Box::new(move || drop(emit)))
}

/// Reads the first item of a stream, and returns the function that drops the stream. The stream's run ends while the
/// item is read.
fn unread<R: Runnable>(mut stream: RunStream<'static, R, Told>) -> Result<Drops> {
    let read = pin!(stream.recv()).poll(&mut TaskContext::from_waker(Waker::noop()));
    assert!(matches!(read, Poll::Ready(Some(StreamItem::Event(Told { starts: None })))));
    Ok(Box::new(move || drop(stream)))
}

fn waits_with(starts: Option<Starts>) -> BoxFuture<'static, std::result::Result<(), BoxError>> {
    Box::pin(async move {
        let _starts = starts;
        pending().await
    })
}

/// Calls `call` on another thread. The returned function lets that call continue, and waits until it has returned.
fn calling(entered: &Receiver<()>, go_on: Sender<()>, call: impl FnOnce() + Send + 'static) -> Drops {
    let calls = thread::spawn(call);
    entered.recv().expect("it is called");
    Box::new(move || {
        go_on.send(()).expect("it waits");
        calls.join().expect("it does not panic");
    })
}

/// Blocks the first call of [`wait`](Self::wait) until the test lets the call continue.
struct Waits {
    entered: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Waits {
    fn new() -> (Self, Receiver<()>, Sender<()>) {
        let (entered, is_entered) = channel();
        let (send, go_on) = channel();
        (Self { entered, go_on: Mutex::new(go_on) }, is_entered, send)
    }

    fn wait(&self) {
        if self.entered.send(()).is_ok() {
            self.go_on.lock().expect("nobody panics").recv().ok();
        }
    }
}

/// A layer or middleware that blocks in its `name` method.
struct Read(Waits, #[expect(dead_code, reason = "it is dropped")] Starts);

impl std::fmt::Debug for Read {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Read")
    }
}

impl<O: Op> Layer<O> for Read {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        next.run(input).await
    }

    fn name(&self) -> &str {
        self.0.wait();
        "read"
    }
}

impl Middleware for Read {
    fn bind(&self, _: &RunContext) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> &str {
        self.0.wait();
        "read"
    }
}

#[derive(Clone, Serialize)]
struct Told {
    #[serde(skip)]
    starts: Option<Starts>,
}

impl Event for Told {
    const NAME: EventName = EventName::new("told");
}

const LEFT: &[(&str, Leave)] = &[
    ("the future of a listener of an emit under way", |ctx, starts| {
        let left = Mutex::new(Some(starts));
        ctx.emitter().on_async("x", move |_: &mut Any, _| waits_with(left.lock().expect("nobody panics").take()))?;
        emitting(ctx.emitter())
    }),
    ("the future of an observer of an emit under way", |ctx, starts| {
        let left = Mutex::new(Some(starts));
        ctx.emitter().observe_async("x", move |_: &Any, _| waits_with(left.lock().expect("nobody panics").take()))?;
        emitting(ctx.emitter())
    }),
    ("a listener of an emit under way", |ctx, starts| {
        let waits = holding(starts, || waits_with(None));
        ctx.emitter().on_async("x", move |_: &mut Any, _| waits())?;
        emitting(ctx.emitter())
    }),
    ("what a listener of an emit under way has failed with", |ctx, starts| {
        let left = Mutex::new(Some(starts));
        ctx.emitter().on("x", move |_: &mut Any, _| {
            let starts = left.lock().expect("nobody panics").take();
            starts.map_or(Ok(()), |starts| Err::<(), BoxError>(Failure(starts).into()))
        })?;
        ctx.emitter().observe_async("x", |_: &Any, _| waits_with(None))?;
        emitting(ctx.emitter())
    }),
    ("a listener that is removed", |ctx, starts| {
        let call = holding(starts, || ());
        let subscription = ctx.emitter().on("x", move |_: &mut Any, _| call())?;
        Ok(Box::new(move || _ = subscription.off()))
    }),
    ("a listener at the end of a pipe that is removed", |ctx, starts| {
        let (call, target) = (holding(starts, || ()), Emitter::new());
        target.on("x", move |_: &mut Any, _| call())?;
        let pipe = ctx.emitter().pipe(&target);
        Ok(Box::new(move || _ = pipe.unpipe()))
    }),
    ("a listener of a part of the run", |ctx, starts| {
        let (call, part) = (holding(starts, || ()), ctx.emitter().child("part")?);
        part.on("x", move |_: &mut Any, _| call())?;
        Ok(Box::new(move || drop(part)))
    }),
    ("what a value of the context passes", |ctx, starts| {
        let (waits, entered, go_on) = Waits::new();
        let wait = holding(starts, move || waits.wait());
        ctx.map_context(move |_, value| {
            wait();
            value
        });
        let ctx = ctx.clone();
        Ok(calling(&entered, go_on, move || ctx.set("key", 1).expect("it is free")))
    }),
    ("a layer that is explained", |ctx, starts| {
        let (waits, entered, go_on) = Waits::new();
        Stack::<AnyRun>::builder().layer(Read(waits, starts)).build().bind(ctx)?;
        let ctx = ctx.clone();
        Ok(calling(&entered, go_on, move || drop(ctx.explain())))
    }),
    ("a middleware for the runs below, one of which is explained", |ctx, starts| {
        let (waits, entered, go_on) = Waits::new();
        ctx.bind_nested(Read(waits, starts));
        let run = Arc::new(runnable_fn("below", |(): (), _: RunContext| async { Ok(()) })).run_shared(());
        Ok(calling(&entered, go_on, move || drop(run.explain())))
    }),
    ("what a stream of a run below has heard, unread", |_, starts| {
        let left = Mutex::new(Some(starts));
        let tells = Arc::new(runnable_fn("tells", move |(): (), ctx: RunContext| {
            let starts = left.lock().expect("nobody panics").take();
            async move {
                ctx.emitter().emit_event(&mut Told { starts: None }).await?;
                Ok(ctx.emitter().emit_event(&mut Told { starts }).await?)
            }
        }));
        unread(tells.run_shared(()).events_of())
    }),
    ("what a stream of a run below has come to, unread", |_, starts| {
        let left = Mutex::new(Some(starts));
        let fails = Arc::new(runnable_fn("fails", move |(): (), ctx: RunContext| {
            let starts = left.lock().expect("nobody panics").take();
            async move {
                ctx.emitter().emit_event(&mut Told { starts: None }).await?;
                starts.map_or(Ok(()), |starts| Err(Failure(starts).into()))
            }
        }));
        unread(fails.run_shared(()).events_of())
    }),
    #[cfg(feature = "tower")]
    ("a request with its run", |_, starts| {
        let request = emitree_runtime::WithRun::new(starts);
        Ok(Box::new(move || drop(request)))
    }),
];

/// The moment at which the value is dropped.
#[derive(Clone, Copy, Debug)]
enum When {
    /// During the work of the run.
    Works,
    /// After the run has ended.
    Ended,
}

/// Returns the outcomes of the runs that the drop has started.
fn dropped(leave: Leave, when: When, has_listeners: bool) -> Vec<(Started, bool)> {
    let (tree, seen) = (Emitter::new(), Seen::default());
    let notes = Arc::clone(&seen);
    let above = below(&tree.clone(), "above", move |(): (), ctx: RunContext| {
        let (tree, notes) = (tree.clone(), Arc::clone(&notes));
        async move {
            guard_against_starts(&ctx);
            let left = Arc::new(Mutex::new(None));
            let drop_left = |left: &Mutex<Option<Drops>>| {
                let drops = left.lock().expect("nobody panics").take().expect("it was left");
                thread::spawn(drops).join().expect("it does not panic");
            };
            let works = Arc::clone(&left);
            let nested = below(&tree, "nested", move |(): (), _: RunContext| {
                if matches!(when, When::Works) {
                    drop_left(&works);
                }
                async { Ok(()) }
            });
            let starts = Mutex::new(Some(Starts::below(&ctx, &notes)));
            let leaves = Arc::clone(&left);
            let middleware = move |ctx: &RunContext| {
                let starts =
                    starts.lock().expect("nobody panics").take().ok_or_else(|| Error::new("there is one run"))?;
                *leaves.lock().expect("nobody panics") = Some(leave(ctx, starts)?);
                Ok(())
            };
            let run = nested.run(());
            let run = if has_listeners { run.on("never", |_: &mut Any, _| ()) } else { run };
            run.middleware(middleware).await?;
            if matches!(when, When::Ended) {
                drop_left(&left);
            }
            Ok(())
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async { above.run(()).await }).expect("it succeeds");
    std::mem::take(&mut *seen.lock())
}

#[test]
fn a_value_dropped_by_another_thread_is_dropped_in_its_run_or_the_run_above() {
    let mut evaded = Vec::new();
    for (name, leave) in LEFT {
        // A run with listeners has its emitter from the beginning. In any other run, the emitter is made at its first
        // use.
        for (when, has_listeners) in
            [When::Works, When::Ended].into_iter().flat_map(|when| [(when, false), (when, true)])
        {
            let seen = dropped(*leave, when, has_listeners);
            if seen != [(Started::Guarded, false)] {
                evaded.push(format!("{name}, {when:?}, heard: {has_listeners}: {seen:?}"));
            }
        }
    }
    assert!(evaded.is_empty(), "{} evaded:\n{}", evaded.len(), evaded.join("\n"));
}
