//! R4: a panic whose payload panics when it is dropped is contained wherever user code is called. If the run with the
//! panic has started, it ends once, before the run above. No panic leaves a poll or a drop.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;

use crate::support::{Any, Recorder, below, poll_once};
use emitree_emitter::{BoxError, Emitter, Options};
use emitree_runtime::{
    AbortHandle, Error, Guard, Layer, Next, Observe, Op, Result, Run, RunContext, RunEvent, Runnable, Stack, Stage,
    map_input_async, map_output,
};
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;

/// A panic payload that panics with another payload when it is dropped.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        match self.0 {
            0 => panic!("a planned panic"),
            n => panic_any(Self(n - 1)),
        }
    }
}

fn explode() -> ! {
    panic_any(Bomb(1))
}

/// A value that panics when it is dropped, unless `explodes` is `false`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Value {
    explodes: bool,
}

impl Drop for Value {
    fn drop(&mut self) {
        if self.explodes {
            explode();
        }
    }
}

/// The place of the panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    Work,
    WorkLater,
    WorkDropped,
    Input,
    Output,
    Error,
    Spawned,
    SpawnedOutput,
    Listener(Stage),
    ListenerLater(Stage),
    ListenersDrop(Stage),
    Observer(Stage),
    RunSubscriber,
    Bind,
    MapInput,
    MapOutput,
    LayerBefore,
    LayerAfter,
    LayerObserves,
    LayerRemembers,
    Guard,
    MapError,
    MapContext,
    AtEnd,
    Extension,
}

impl Site {
    fn all() -> Vec<Self> {
        let stages = [Stage::Start, Stage::Success, Stage::Error, Stage::Finish];
        let each = stages.into_iter().flat_map(|stage| {
            [Self::Listener(stage), Self::ListenerLater(stage), Self::ListenersDrop(stage), Self::Observer(stage)]
        });
        let others = [
            Self::Work,
            Self::WorkLater,
            Self::WorkDropped,
            Self::Input,
            Self::Output,
            Self::Error,
            Self::Spawned,
            Self::SpawnedOutput,
            Self::RunSubscriber,
            Self::Bind,
            Self::MapInput,
            Self::MapOutput,
            Self::LayerBefore,
            Self::LayerAfter,
            Self::LayerObserves,
            Self::LayerRemembers,
            Self::Guard,
            Self::MapError,
            Self::MapContext,
            Self::AtEnd,
            Self::Extension,
        ];
        each.chain(others).collect()
    }
}

/// A runnable that panics at its site, or else succeeds, fails or waits.
struct Work {
    emitter: Emitter,
    site: Site,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Succeeds,
    Fails,
    Waits,
}

/// An error that panics when it is dropped.
#[derive(Debug, thiserror::Error)]
#[error("a planned failure")]
struct Explosive(Value);

impl Runnable for Work {
    type Input = Value;
    type Output = Value;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    fn execute(&self, _: &Value, ctx: &RunContext) -> impl Future<Output = Result<Value>> + Send {
        if self.site == Site::Work {
            explode();
        }
        let (site, then, ctx) = (self.site, self.then, ctx.clone());
        async move {
            yield_now().await;
            match site {
                Site::WorkLater => explode(),
                Site::MapContext => ctx.set("key", "value")?,
                Site::Spawned => drop(ctx.spawn(async { explode() })),
                Site::SpawnedOutput => drop(ctx.spawn(async { Value { explodes: true } })),
                _ => {}
            }
            yield_now().await;
            let _explodes = (site == Site::WorkDropped).then(|| Value { explodes: true });
            match then {
                Then::Succeeds => Ok(Value { explodes: site == Site::Output }),
                Then::Fails if site == Site::Error => Err(Explosive(Value { explodes: true }).into()),
                Then::Fails => Err(Error::new("a planned failure")),
                Then::Waits => pending().await,
            }
        }
    }
}

#[derive(Debug)]
struct Explodes(Site);

impl<O: Op> Layer<O> for Explodes {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        if self.0 == Site::LayerBefore {
            explode();
        }
        let result = next.run(input).await;
        if self.0 == Site::LayerAfter { explode() } else { result }
    }
}

impl<O: Op> Observe<O> for Explodes {
    type Memo = Value;

    fn before(&self, _: &O::In, _: &RunContext) -> Value {
        if self.0 == Site::LayerObserves { explode() } else { Value { explodes: true } }
    }

    fn after(&self, _memo: Value, _: &Result<O::Out>, _: &RunContext) {}
}

impl<O: Op> Guard<O> for Explodes {
    async fn check_input(&self, _: &O::In, _: &RunContext) -> Result<()> {
        explode()
    }
}

/// Makes a run panic at a site.
fn with_site<'a>(run: Run<'a, Work>, site: Site) -> Run<'a, Work> {
    let value = || Value { explodes: true };
    match site {
        Site::Listener(stage) => run.on(stage, |_: &mut Any, _| -> () { explode() }),
        Site::ListenerLater(stage) => run.on_async(stage, |_: &mut Any, _| Box::pin(async { explode() })),
        Site::ListenersDrop(stage) => run.on_async(stage, move |_: &mut Any, _| {
            let value = value();
            Box::pin(async move {
                let _value = value;
                yield_now().await;
                Err::<(), BoxError>(Explosive(Value { explodes: true }).into())
            })
        }),
        Site::Observer(stage) => run.register(Options::new().observe(stage, |_: &Any, _| -> () { explode() })),
        Site::RunSubscriber => run.middleware(|ctx: &RunContext| {
            ctx.subscribe(|_: &RunEvent<'_>| explode());
            Ok(())
        }),
        Site::Bind => run.middleware(|_: &RunContext| -> Result<()> { explode() }),
        Site::MapInput => run.middleware(map_input_async::<Value, _>(|_, _| Box::pin(async { explode() }))),
        Site::MapOutput => run.middleware(map_output::<Value, _>(|_, _| explode())),
        Site::LayerBefore | Site::LayerAfter => run.middleware(Stack::<Work>::builder().layer(Explodes(site)).build()),
        Site::LayerObserves | Site::LayerRemembers => {
            run.middleware(Stack::<Work>::builder().observe(Explodes(site)).build())
        }
        Site::Guard => run.middleware(Stack::<Work>::builder().guard(Explodes(site)).build()),
        Site::MapError => run.middleware(|ctx: &RunContext| {
            ctx.map_error(|_| explode());
            Ok(())
        }),
        Site::MapContext => run.middleware(|ctx: &RunContext| {
            ctx.map_context(|_, _| explode());
            Ok(())
        }),
        Site::AtEnd => run.middleware(|ctx: &RunContext| {
            ctx.on_end(|_, _| explode());
            Ok(())
        }),
        Site::Extension => run.extension(value()),
        _ => run,
    }
}

/// The way in which a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Awaited(Then),
    Dropped,
    /// Dropped while the thread unwinds.
    Unwound,
    Aborted,
}

impl End {
    const ALL: [Self; 5] =
        [Self::Awaited(Then::Succeeds), Self::Awaited(Then::Fails), Self::Dropped, Self::Unwound, Self::Aborted];

    const fn then(self) -> Then {
        match self {
            Self::Awaited(then) => then,
            _ => Then::Waits,
        }
    }
}

/// The number of steps after which all tasks and futures are idle.
const STEPS: usize = 12;

/// Ends a run below another run, and returns the events of both.
async fn told(site: Site, end: End) -> Vec<String> {
    let (tree, recorder, handle) = (Emitter::new(), Recorder::new(), AbortHandle::new());
    recorder.ends(&tree);
    let work = Arc::new(Work { emitter: tree.child("child").expect("a valid name"), site, then: end.then() });
    let parent = Arc::new(below(&tree, "parent", move |(): (), _: RunContext| {
        let work = Arc::clone(&work);
        async move {
            let result = with_site(work.run_shared(Value { explodes: site == Site::Input }), site).await;
            // The caller owns the result, so a panic in its drop would not be a panic of the run.
            std::mem::forget(result);
            Ok(())
        }
    }));
    let mut run = parent.run_shared(()).abort_on(&handle);
    for _ in 0..STEPS {
        drop(poll_once(&mut run));
        yield_now().await;
    }
    match end {
        End::Awaited(_) => {}
        End::Dropped => drop(run),
        End::Unwound => {
            let unwinding = AssertUnwindSafe(move || {
                let _run = run;
                std::panic::resume_unwind(Box::new("a planned panic"));
            });
            assert!(catch_unwind(unwinding).is_err());
        }
        End::Aborted => {
            handle.abort("enough");
            for _ in 0..STEPS {
                drop(poll_once(&mut run));
                yield_now().await;
            }
        }
    }
    for _ in 0..STEPS {
        yield_now().await;
    }
    recorder.take()
}

/// Returns the first fault in the events of a child and its parent, if there is one.
fn complaint(told: &[String]) -> Option<&'static str> {
    let at = |wanted: &str| told.iter().position(|line| line.starts_with(wanted));
    let count = |wanted: &str| told.iter().filter(|line| line.starts_with(wanted)).count();
    let started = count("child.run.start");
    let ends = (count("child.run.success") + count("child.run.error"), count("child.run.finish"));
    match (started, ends) {
        (0, (0, 0)) | (1, (1, 1)) if count("parent.run.finish") != 1 => Some("the parent has not ended"),
        (1, (1, 1)) if at("child.run.finish") > at("parent.run.finish") => Some("the parent has ended first"),
        (0, (0, 0)) | (1, (1, 1)) => None,
        _ => Some("the child has not ended once"),
    }
}

// R4, R13
#[test]
fn a_run_ends_once_and_no_panic_leaves_it_even_if_a_panic_payload_panics_when_dropped() {
    std::panic::set_hook(Box::new(|_| ()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut complaints = Vec::new();
    for (site, end) in Site::all().into_iter().flat_map(|site| End::ALL.map(|end| (site, end))) {
        match catch_unwind(AssertUnwindSafe(|| runtime.block_on(told(site, end)))) {
            Ok(told) => complaints.extend(complaint(&told).map(|what| format!("{site:?}, {end:?}: {what}: {told:?}"))),
            Err(payload) => {
                std::mem::forget(payload);
                complaints.push(format!("{site:?}, {end:?}: the panic leaves the run"));
            }
        }
    }
    drop(std::panic::take_hook());
    assert!(complaints.is_empty(), "{} of {}:\n{}", complaints.len(), Site::all().len() * 5, complaints.join("\n"));
}
