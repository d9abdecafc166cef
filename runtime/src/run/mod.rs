//! A run, from building to its result.
//!
//! A run has two halves. Its *work* borrows the runnable, so only the run's own future can hold it. Its *events* are a
//! sequence of `Step`s that owns everything it needs, so any holder of the run's lease can end the run without its work:
//! if its future is dropped, if its parent ends first, or if a shutdown has waited for it for half of the time until its
//! deadline. Three files decide when a run ends and which code ends it: `state` decides the race between an abort and the
//! end of the work, `lease` decides which code advances the run, and `steps` has the order of the steps. The first two
//! have loom models.
//!
//! The run's `Delivery` decides when async listeners are awaited: in order; after all sync listeners, if the run's future
//! was dropped; or not at all, for example if the tokio runtime shuts down.
//!
//! The function `emit` in `steps` emits all lifecycle events: first to the listeners, if there are any, and then to the
//! subscribers of the run and of the runs above. A subscriber can only watch runs, and needs no emitter. Code that
//! changes values, has to be awaited, or needs other events must be a listener.

pub(crate) mod bindings;
pub(crate) mod cleanup;
pub(crate) mod config;
pub(crate) mod drive;
pub(crate) mod drop_chain;
pub(crate) mod exit_maps;
pub(crate) mod future;
pub(crate) mod lease;
pub(crate) mod panic;
pub(crate) mod shutdown;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod supervise;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{BoxError, Context, EventMeta, IntoMatcher, ListenerResult, Options, Payload, Registration};
use futures_core::future::BoxFuture;
use serde_json::Value;

use crate::abort::watch::Watch;
use crate::key::OwnKey;
use crate::lifecycle::{Failure, Finish, Start, Success};
use crate::run::config::{Binding, Overrides, RunConfig, StartedRun};
use crate::run::future::WorkState;
use crate::run::shutdown::Listed;
use crate::{AbortSignal, IntoMiddleware, Result, RunContext, RunKey, Runnable, Stage, TraceParent};

/// A fact for the context of a run's `start` ([`Run::start_fact`]), as the run's own extension.
pub(crate) struct StartFact {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
}

/// A future that runs a [`Runnable`] once and returns its result. Created by [`Runnable::run`].
///
/// Its methods add listeners, middlewares, limits and context to this run only. Nothing happens before the first poll.
/// An invalid argument of these methods, such as an invalid matcher, makes the run fail. From the first poll on, these
/// steps are taken in order:
///
/// 1. The run's context is created. The run's emitter is created now if there are listeners, and otherwise when it is
///    first used.
/// 2. Middlewares are bound: by default, first the middlewares inherited from the runs above, then the instance's, then
///    the run's own. The run's middlewares and listeners are bound in the order of the calls: with
///    `.on(a).middleware(m).on(b)`, an event reaches `a`, then the listeners that `m` registers, and then `b`, if all
///    have the same priority.
/// 3. `start` is emitted. Listeners may change the input, or answer the run by setting the output.
/// 4. The input passes through input middlewares and layers, the work runs, and the output passes through layers and
///    output middlewares. An output that was set at `start` replaces the work. An accepted request for a retry repeats
///    this step.
/// 5. Tasks that the run has spawned, and runs started in it that have not ended, are aborted and awaited.
/// 6. `success` or `error` is emitted. Listeners of `success` may change the output.
/// 7. `finish` is emitted, and the result is returned.
///
/// # How it ends
///
/// A run that emitted `start` emits exactly one of `success` and `error`, and then exactly one `finish`:
///
/// | cause | events after `start` | the caller receives |
/// |---|---|---|
/// | the work returns, or the output was set at `start` | `success`, `finish` success | the output |
/// | the work or a listener of `start` fails | `error`, `finish` failed | that error |
/// | the work, a guard, a layer or a listener of `start` denies or halts the run | `error`, `finish` denied or halted | that error |
/// | the work or a listener of `start` panics | `error`, `finish` panicked | an error with the panic's message |
/// | a listener of `success` fails, panics, denies or halts | `success`, `finish` failed, panicked, denied or halted | that error |
/// | a listener of `error` or `finish` fails | the same as without the failure, which is logged and counted | the same as without the failure |
/// | the run or a run above it is aborted before the work is over | `error`, `finish` aborted | an error with the reason |
/// | the run takes too long | `error`, `finish` timed out | an error of kind `TimedOut` |
/// | the run is interrupted | `error`, `finish` interrupted | an error with the interrupt |
/// | its future is dropped after the first poll and before the work is over | `error`, `finish` dropped | – |
/// | its parent ends before it | `error`, `finish` aborted | an error, at the next poll |
/// | [`shutdown`](crate::shutdown) is called | `error`, `finish` aborted | an error with the reason |
/// | the tokio runtime shuts down | `error`, `finish` dropped; async listeners are skipped | – |
///
/// The parent of a run is the run in which it was made. If the parent has ended before the first poll, the run never
/// starts: it emits nothing, and the caller receives an error of kind `Aborted`. So a run cannot evade middleware that
/// its parent has bound for the runs below. A run that is made in a listener of `finish`, or in a function of
/// [`on_end`](RunContext::on_end), becomes a child of the nearest run above that still accepts runs. If none of the
/// runs above accepts runs, the new run never starts. If there is no run above, the new run has no parent.
///
/// Children end first: `finish` of a run comes after `finish` of every run started in it.
///
/// # Order of events
///
/// These traces list the events of a run, and show when its work begins and is dropped:
///
/// ```text
/// the work returns               1 start  2 works  3 success  4 finish success
/// a listener of `start` answers  1 start  2 success  3 finish success
/// the work fails                 1 start  2 works  3 error  4 finish failed
/// a listener of `start` fails    1 start  2 error  3 finish failed
/// a listener of `success` fails  1 start  2 works  3 success  4 finish failed
/// it is aborted before its work  1 start  2 error  3 finish aborted
/// it is aborted during its work  1 start  2 works  3 work dropped  4 error  5 finish aborted
/// its future is dropped          1 start  2 works  3 work dropped  4 error  5 finish dropped
/// it leaves a child              1 start  2 child start  3 child error  4 child finish aborted  5 success  6 finish success
/// it is aborted, with a child    1 start  2 child start  3 child error  4 child finish aborted  5 error  6 finish aborted
/// ```
///
/// A run leaves a child if the child has begun and its future outlives the run's work, for example in a task.
///
/// # Nesting
///
/// Like any future, a run polls the runs that it awaits, so each level uses stack space. On a thread with 2 MiB of
/// stack, a debug build reaches 250 to 300 levels, or 130 with a layer around each run. Limit recursion that depends on
/// user input: `Limits` of `emitree-middleware` can limit the depth. A run in its own task, spawned with
/// [`RunContext::spawn`], does not use the stack of the run above, so a chain of such runs may have any length.
///
/// # Dropping
///
/// Dropping a run before its first poll has no effect. Dropping it later, before its work is over, aborts the run: the
/// work is dropped, and with it the runs that it awaits. Sync listeners receive `error` and `finish` during the drop.
/// Async listeners receive them in a task, and [`wait_for_ends`](crate::wait_for_ends) waits until the run has ended. If
/// `error` has async listeners, `finish` is emitted in that task, after these listeners are done. If a lifecycle event
/// is being emitted when the run is dropped, that emit is finished first. Outside a tokio runtime, async listeners are
/// skipped.
///
/// # After the end
///
/// After `finish` and the functions of [`on_end`](RunContext::on_end), everything bound to the run is dropped,
/// including persistent listeners. No lock is held during these drops, and the run is the current run. Therefore, a
/// listener, layer or subscriber may hold the context of its run.
///
/// - From then on, the run accepts no listener, and an event emitted on it reaches no listener. The first such event
///   that could have reached listeners is logged. An emit that is under way when the run ends still calls all listeners
///   that it has found.
/// - If listeners were bound to the run, no event rises through its emitter any more. An event that is piped to this
///   emitter, or emitted in a run of an instance below it in the tree, stops there.
/// - The input and the extensions of the run are dropped with the last [`RunContext`] of the run.
/// - Some values may be dropped on any thread, but still with this run as the current run: a value that is replaced, a
///   listener or pipe that is removed, the rest of an emit that is dropped, and a binding that another thread reads
///   while the run ends. If the run no longer exists at the drop, the next run above is the current run instead. Unread
///   items of the run's stream are always dropped in the next run above.
/// - A run that a drop starts belongs to the nearest run above that accepts runs, and the guards bound there apply to
///   it.
/// - An output or an error that a run has returned belongs to the caller, and is not dropped in the run.
///
/// # Cancel safety
///
/// Dropping a run aborts it, as described above. Polling a run by reference in a `select!` loses nothing.
#[must_use = "a run does nothing until it is awaited"]
pub struct Run<'a, R: Runnable> {
    /// `Some` while the run is under way.
    run: Option<StartedRun<R>>,
    work: WorkState<'a, R>,
    /// The signals and the timeout that may stop the run, if it has any.
    watch: Option<Watch>,
    /// Set when a run without a parent first has to wait, so that a shutdown finds it.
    listed: Option<Listed>,
}

impl<'a, R: Runnable> Run<'a, R> {
    /// Makes the current run the parent, if this run has no parent and has not begun.
    #[cfg(feature = "tower")]
    pub(crate) fn start_here_if_alone(&mut self) {
        if let Some(config) = self.config_mut()
            && config.parent.is_none()
        {
            config.parent = RunContext::to_start_in();
        }
    }

    /// Returns the run's configuration until the run begins.
    pub(crate) const fn config(&self) -> Option<&RunConfig<'a, R>> {
        match (&self.run, &self.work) {
            (None, WorkState::Planned(config)) => Some(config),
            _ => None,
        }
    }

    const fn config_mut(&mut self) -> Option<&mut RunConfig<'a, R>> {
        match (&self.run, &mut self.work) {
            (None, WorkState::Planned(config)) => Some(config),
            _ => None,
        }
    }

    /// Returns the parent until the run is over.
    pub(crate) fn parent(&self) -> Option<&RunContext> {
        self.run.as_ref().map_or_else(|| self.config()?.parent.as_ref(), |run| run.parent())
    }

    fn with(mut self, change: impl FnOnce(&mut Overrides)) -> Self {
        if let Some(config) = self.config_mut() {
            change(config.overrides.get_or_insert_default());
        }
        self
    }

    /// Binds a middleware to this run, after the instance's middlewares. Middlewares and listeners of this run are
    /// bound in the order in which they were added, unless a middleware has an [`Order`](crate::Order).
    ///
    /// If the middleware fails to bind, the run fails with that error and emits no `start`.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// /// Adds a key to the context of the run's events.
    /// fn tenant(ctx: &RunContext) -> emitree_runtime::Result<()> {
    ///     ctx.set("tenant", "acme")?;
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let tenant_of = runnable_fn("tenant_of", |(): (), ctx: RunContext| async move { Ok(ctx.get("tenant")) });
    /// assert_eq!(tenant_of.run(()).middleware(tenant).await?, Some("acme".into()));
    /// assert_eq!(tenant_of.run(()).await?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn middleware<Sort>(self, middleware: impl IntoMiddleware<Sort>) -> Self {
        self.with(|overrides| overrides.bindings.push(Binding::Middleware(Arc::new(middleware.into_middleware()))))
    }

    /// Sets keys of the run's context. They replace keys that the run inherits from its instance and its parent. Every
    /// event of the run, and of the runs started in it, carries the keys.
    ///
    /// The key `internal` is reserved: a run that sets it fails at its first poll.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    /// use serde_json::json;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let inner = runnable_fn("inner", |(): (), ctx: RunContext| async move { Ok((ctx.get("user"), ctx.get("step"))) });
    /// let inner = Arc::new(inner);
    /// let outer = runnable_fn("outer", move |(): (), _: RunContext| inner.run_shared(()).context(json!({"step": 2})));
    ///
    /// let keys = outer.run(()).context(json!({"user": "ada", "step": 1})).await?;
    /// assert_eq!(keys, (Some("ada".into()), Some(2.into())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn context(self, context: impl Into<Context>) -> Self {
        self.with(|overrides| overrides.context = overrides.context.merged(&context.into()))
    }

    /// Sets the group of the run and of the runs started in it.
    pub fn group_id(self, group_id: impl Into<Arc<str>>) -> Self {
        self.with(|overrides| overrides.group_id = Some(group_id.into()))
    }

    /// Joins the run to a trace of another process, such as the client of a web service. `None` has no effect.
    ///
    /// If the run has no parent, its [trace](RunContext::trace) has the id of that trace, and eight zero bytes and the
    /// span id as the parent's id. The context of its `start` has the flags and the state: `"trace": {"flags": 1, "state":
    /// "vendor=value"}`. If the run has a parent, its ids stay as they are, and the context of its `start` has a link:
    /// `"trace": {"links": [{"trace_id": …, "span_id": …, "flags": 1}]}`. No other event has these facts.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, TraceParent, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let ids = runnable_fn("ids", |(): (), ctx: RunContext| async move {
    ///     let trace = ctx.trace();
    ///     Ok((trace.id.to_string(), trace.parent_run_id.map(|id| id.to_string())))
    /// });
    /// let parent = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")?;
    /// let (id, above) = ids.run(()).trace_parent(parent).await?;
    /// assert_eq!(id, "4bf92f35-77b3-4da6-a3ce-929d0e0e4736");
    /// assert_eq!(above.as_deref(), Some("00000000-0000-0000-00f0-67aa0ba902b7"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn trace_parent(self, parent: impl Into<Option<TraceParent>>) -> Self {
        match parent.into() {
            Some(parent) => self.with(|overrides| overrides.trace_parent = Some(Box::new(parent))),
            None => self,
        }
    }

    /// Sets a typed value for the run and the runs started in it ([`RunContext::extension`]).
    pub fn extension<T: Send + Sync + 'static>(self, value: T) -> Self {
        self.with(|overrides| overrides.extensions.inherited.insert(value))
    }

    /// Sets a typed value for this run only: runs that are started in this run do not inherit the value
    /// ([`RunContext::own_extension`]).
    pub fn own_extension<T: Send + Sync + 'static>(self, value: T) -> Self {
        self.with(|overrides| overrides.extensions.own.insert(value))
    }

    /// Adds a fact to the context of the run's `start`, and of no other event: something that a reader of events cannot
    /// know from the input, such as the id of the call that the run executes. A run has one such fact. The names `internal`
    /// and `trace` are reserved.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, Start, runnable_fn};
    /// use serde_json::json;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let work = runnable_fn("work", |n: u32, _: RunContext| async move { Ok(n) });
    /// let run = work.run(1).start_fact("call_id", "call-17").on("start", |_: &mut Start<u32, u32>, meta| {
    ///     assert_eq!(meta.context().get("call_id"), Some(&json!("call-17")));
    /// });
    /// run.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_fact(self, name: &'static str, value: impl Into<Value>) -> Self {
        self.own_extension(StartFact { name, value: value.into() })
    }

    /// Gives the run a key: a name that stays the same when the run is made again. The run's
    /// [key](RunContext::key) is the key of the nearest run above that has one, a `/`, and `id`. Further calls add
    /// parts: `.key("12").key("0")` is the path `12/0` below the key of the run above.
    ///
    /// A run has its key until it ends. A run that is dropped ends after the async listeners of its last events, so its
    /// key may still be taken for a while. If a run has succeeded, the key stays taken below the run whose key it
    /// continues, until that run, or a run between the two, discards its attempt. If no run above has a key, only the
    /// keys of runs with the same parent are compared. A run without a parent takes any key. Only whole paths are
    /// compared, as they were passed to this method: `12/0` is not compared with `12`.
    ///
    /// The run fails before `start` if `id` is empty, has more than 200 bytes, or contains `/` or a control character.
    /// It also fails if its key is taken; the error names both runs.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let key = |ctx: &RunContext| ctx.key().map(|key| key.to_string());
    /// let charge = Arc::new(runnable_fn("charge", move |(): (), ctx: RunContext| async move { Ok(key(&ctx)) }));
    /// let order = runnable_fn("order", move |(): (), _: RunContext| charge.run_shared(()).key("charge"));
    ///
    /// for _ in 0..2 {
    ///     // The key is the same when the runs are made again.
    ///     assert_eq!(order.run(()).key("order-17").await?.as_deref(), Some("order-17/charge"));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(mut self, id: impl Into<Box<str>>) -> Self {
        if let Some(config) = self.config_mut() {
            config.key = None;
        }
        self.with(|overrides| overrides.key.push(id.into()))
    }

    /// Gives the run a key that a function makes when the key is first read, for callers that make many runs with keys
    /// that are rarely read. The function returns the whole key: it is not continued from the run above. If several
    /// threads are the first to read the key, each may call the function, and the first result is kept.
    ///
    /// The key is not compared with other keys, so two runs may have it: pass a key that no other run has. Of this
    /// method and [`key`](Self::key), the method that is called last applies.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, RunKey, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let charge = runnable_fn("charge", |(): (), ctx: RunContext| async move { Ok(ctx.key().map(|key| key.to_string())) });
    /// let order = RunKey::new("order-17")?.child("charge")?;
    ///
    /// let key = charge.run(()).key_with(move || order.clone()).await?;
    /// assert_eq!(key.as_deref(), Some("order-17/charge"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn key_with(mut self, f: impl Fn() -> RunKey + Send + Sync + 'static) -> Self {
        if let Some(config) = self.config_mut() {
            config.key = Some(Box::new(OwnKey::new(f)));
            if let Some(overrides) = &mut config.overrides {
                overrides.key.clear();
            }
        }
        self
    }

    /// Marks the run as idempotent: executing it again, for example with the same [`key`](Self::key), has no further
    /// effect. Middleware reads the mark with [`RunContext::is_idempotent`]. Runs started in this run are not marked.
    pub fn idempotent(self) -> Self {
        self.with(|overrides| overrides.is_idempotent = true)
    }

    /// Aborts the run when a signal reports an abort: the signal of an [`AbortHandle`](crate::AbortHandle) or of
    /// another run, or a [`CancellationToken`](tokio_util::sync::CancellationToken). If this method is called several
    /// times, the first abort sets the reason. If several signals reported an abort before the first poll, it is
    /// unspecified which reason the run has.
    ///
    /// ```
    /// use emitree_runtime::{AbortHandle, RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wait = runnable_fn("wait", |(): (), _: RunContext| std::future::pending::<emitree_runtime::Result<()>>());
    /// let (user, server) = (AbortHandle::new(), AbortHandle::new());
    /// let run = wait.run(()).abort_on(&user).abort_on(&server);
    ///
    /// server.abort("the server restarts");
    /// assert_eq!(run.await.unwrap_err().explain(), "aborted: the server restarts");
    /// # }
    /// ```
    pub fn abort_on(mut self, signal: impl Into<AbortSignal>) -> Self {
        let Some(config) = self.config_mut() else { return self };
        match &config.signal {
            None => config.signal = Some(signal.into()),
            Some(_) => config.overrides.get_or_insert_default().signals.push(signal.into()),
        }
        self
    }

    /// Limits the time of the run: if its work takes longer, the run ends as timed out. If the method is called several
    /// times, the shortest timeout applies.
    ///
    /// The time is measured by tokio's clock from the first poll on, so it includes listeners of `start`. The timeout
    /// does not cancel a running listener: a listener of `start` that never returns keeps its run waiting.
    ///
    /// The timeout is checked before each poll of the work. Work that blocks its thread past the timeout and returns
    /// from that same poll succeeds; use [`tokio::task::spawn_blocking`] for such work.
    ///
    /// ```
    /// use std::time::Duration;
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    /// use tokio::time::sleep;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let nap = runnable_fn("nap", |ms: u64, _: RunContext| async move { Ok(sleep(Duration::from_millis(ms)).await) });
    /// let at_most = Duration::from_millis(100);
    /// assert!(nap.run(50).timeout(at_most).await.is_ok());
    /// let error = nap.run(500).timeout(at_most).await.unwrap_err();
    /// assert!(error.is_timed_out());
    /// assert_eq!(error.to_string(), "timed out after 100ms");
    /// # }
    /// ```
    pub fn timeout(self, after: Duration) -> Self {
        self.with(|overrides| overrides.timeout = Some(overrides.timeout.map_or(after, |before| before.min(after))))
    }

    /// Registers a listener with [`Options`] on the run's emitter: with a priority, for one call, or for
    /// [nested](Options::nested) events.
    ///
    /// ```
    /// use emitree_emitter::{AnyEvent, Options};
    /// use emitree_runtime::{RunContext, Runnable, Start, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// let doubled = double
    ///     .run(1)
    ///     .on_start(|start, _| start.input *= 10)
    ///     // Called before the others, although it is registered later.
    ///     .register(Options::new().priority(5).on("start", |start: &mut Start<u32, u32>, _| start.input += 1))
    ///     // Also receives events of the runs below.
    ///     .register(Options::new().nested(true).once().observe("**.finish", |_: &dyn AnyEvent, _| println!("over")));
    /// assert_eq!(doubled.await?, 40);
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(self, registration: Registration) -> Self {
        self.with(|overrides| overrides.bindings.push(Binding::Listener(Some(registration))))
    }

    /// Registers a listener that may change the run's events; see [`Emitter::on`](emitree_emitter::Emitter::on).
    ///
    /// A listener registered for `"start"` receives the run's own `start` if its payload type is the run's `Start<I,
    /// O>`. [`on_start`](Self::on_start), [`Stage::Start`] and the event's path, such as `backend.chat.run.start`,
    /// match the same event. A listener for `Start` with other type parameters, or for the payload of another stage,
    /// makes the run fail. With `dyn AnyEvent` or any other payload type, `"start"` matches events that the work emits
    /// under that name.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, Start, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// let run = double.run(1).on("start", |start: &mut Start<u32, u32>, _| start.input += 20);
    /// assert_eq!(run.await?, 42);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn on<T, Out>(
        self,
        matcher: impl IntoMatcher,
        f: impl Fn(&mut T, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self
    where
        T: Payload + ?Sized + 'static,
        Out: ListenerResult,
    {
        self.register(Options::new().on(matcher, f))
    }

    /// Registers an async listener that may change the run's events; see
    /// [`Emitter::on_async`](emitree_emitter::Emitter::on_async).
    #[track_caller]
    pub fn on_async<T>(
        self,
        matcher: impl IntoMatcher,
        f: impl for<'e> Fn(&'e mut T, &'e EventMeta<'e>) -> BoxFuture<'e, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Self
    where
        T: Payload + ?Sized + 'static,
    {
        self.register(Options::new().on_async(matcher, f))
    }

    /// Registers an observer of the run's events; see [`Emitter::observe`](emitree_emitter::Emitter::observe).
    #[track_caller]
    pub fn observe<T, Out>(
        self,
        matcher: impl IntoMatcher,
        f: impl Fn(&T, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self
    where
        T: Payload + ?Sized + 'static,
        Out: ListenerResult,
    {
        self.register(Options::new().observe(matcher, f))
    }

    /// Registers an async observer of the run's events, which is awaited together with the other async observers of the
    /// run's emitter; see [`Emitter::observe_async`](emitree_emitter::Emitter::observe_async).
    #[track_caller]
    pub fn observe_async<T>(
        self,
        matcher: impl IntoMatcher,
        f: impl for<'e> Fn(&'e T, &'e EventMeta<'e>) -> BoxFuture<'e, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Self
    where
        T: Payload + ?Sized + 'static,
    {
        self.register(Options::new().observe_async(matcher, f))
    }

    /// Registers a listener of the run's own `start`, which may change the input, or answer the run by setting the
    /// output.
    #[track_caller]
    pub fn on_start<Out: ListenerResult>(
        self,
        f: impl Fn(&mut Start<R::Input, R::Output>, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self {
        self.on(Stage::Start, f)
    }

    /// Registers a listener of the run's own `success`, which may change the output.
    #[track_caller]
    pub fn on_success<Out: ListenerResult>(
        self,
        f: impl Fn(&mut Success<R::Input, R::Output>, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self {
        self.on(Stage::Success, f)
    }

    /// Registers a listener of the run's own `error`.
    #[track_caller]
    pub fn on_error<Out: ListenerResult>(
        self,
        f: impl Fn(&Failure, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self {
        self.on(Stage::Error, move |failure: &mut Failure, meta| f(failure, meta))
    }

    /// Registers a listener of the run's own `finish`.
    #[track_caller]
    pub fn on_finish<Out: ListenerResult>(
        self,
        f: impl Fn(&Finish<R::Input, R::Output>, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self {
        self.on(Stage::Finish, move |finish: &mut Finish<R::Input, R::Output>, meta| f(finish, meta))
    }
}

/// The only pinned part of a run is the boxed future of its work.
impl<R: Runnable> Unpin for Run<'_, R> {}

impl<R: Runnable> fmt::Debug for Run<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.config(), self.run.is_some()) {
            (Some(_), _) => "Run(built)",
            (None, true) => "Run(running)",
            (None, false) => "Run(done)",
        })
    }
}
