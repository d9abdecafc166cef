//! A run, from building to its result.

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

use emitree_emitter::{BoxError, Context, EventMeta, Hears, IntoMatcher, ListenerResult, Options, Registration};
use futures_core::future::BoxFuture;

use crate::abort::watch::Watch;
use crate::lifecycle::{Failure, Finish, Start, Success};
use crate::run::config::{Binding, Overrides, RunConfig, StartedRun};
use crate::run::future::Work;
use crate::run::shutdown::Listed;
use crate::{AbortSignal, IntoMiddleware, Result, RunContext, Runnable, Stage};

/// A run that has not begun, or is under way: a future of its result.
///
/// Made by [`Runnable::run`]. Its methods add what belongs to this run only; nothing happens before the first poll,
/// and what was wrong in the building comes out there. Then, in this order:
///
/// 1. the run gets its context and emitter (R2, R9);
/// 2. middlewares are bound: those from the runs above, the instance's, then the run's. The run's listeners are registered in
///    their place among its middlewares: `.on(a).middleware(m).on(b)` is heard by `a`, by what `m` registers, by `b`;
/// 3. `start` is emitted: listeners may change the input, or set the output;
/// 4. the input passes input middlewares and layers, the work is done, unless the output is set, and the output passes
///    layers and output middlewares; all that again where a retry is asked for;
/// 5. tasks that it has spawned, and runs started in it that have not ended, are aborted and end (R13);
/// 6. `success` is emitted, or `error`: listeners may change the output;
/// 7. `finish` is emitted, and the result is returned.
///
/// # How it ends
///
/// A run that emitted `start` emits exactly one of `success` and `error`, and then exactly one `finish` (R4):
///
/// | what happens | what is emitted after `start` | what the caller gets |
/// |---|---|---|
/// | the work returns, or the output was set at the start | `success`, `finish` success | the output |
/// | the work fails, or a listener of `start` does | `error`, `finish` failed | that error |
/// | a guard, a layer or a listener says no, or stop | `error`, `finish` denied or halted | that error |
/// | the work panics, or a listener of `start` does | `error`, `finish` panicked | an error with the panic's message |
/// | a listener of `success` fails, or panics | `success`, `finish` failed or panicked | that error |
/// | a listener of `error` or `finish` fails | what would be without it: all others are called; it is logged and counted | what would be without it |
/// | it is aborted before its work is over, itself or from above | `error`, `finish` aborted | an error with the reason |
/// | it takes too long | `error`, `finish` timed out | an error that says so |
/// | it is interrupted | `error`, `finish` interrupted | an error with the interrupt |
/// | its future is dropped after the first poll | `error`, `finish` dropped | – |
/// | the run that it was started in ends before it | `error`, `finish` aborted | an error, when it is polled again |
/// | [`shutdown`](crate::shutdown) is called | as when it is aborted | an error that says so |
/// | the runtime shuts down | as when it is dropped; who would have to be awaited is skipped | – |
///
/// A run whose parent, the run that it was made in, ends before its first poll does not begin: nothing is emitted, and the
/// caller gets an error of kind `Aborted`. So nobody slips away from what is bound there for the runs below. A run that is made in
/// a listener of a `finish`, or in what [`on_end`](RunContext::on_end) calls, has for its parent the next run above that takes more; where there is none above
/// at all, it stands alone.
///
/// Children first: `finish` of a run comes after that of every run started in it.
///
/// # In which order it ends
///
/// What is told, and when work begins and is dropped, by what happens to the run:
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
/// A child is left where its future, polled before, is in other hands when the work returns.
///
/// # Nesting
///
/// A run that is awaited in a run is polled by it, as with all futures: each level takes stack. On a thread of 2 MB a debug build
/// manages some two hundred levels. Recursion that users steer should have a limit: `Limits`, of `emitree-middleware`, has one of depth.
/// A run in a task of its own, by [`RunContext::spawn`], takes no stack of the one above: such chains may be of any length.
///
/// # What dropping does
///
/// Dropping it before the first poll leaves no trace. After that it aborts the run: the work is dropped, and with it the
/// runs that it awaits; sync listeners hear `error` and `finish` during the drop, those that are awaited from a task,
/// which [`wait_for_ends`](crate::wait_for_ends) waits for. An event that was being emitted is emitted to its end. Dropped outside of
/// a tokio runtime, it skips who would have to be awaited.
///
/// # Cancel safety
///
/// Dropping is how a run is cancelled, as above. Nothing is lost by polling it in a `select!` by reference.
#[must_use = "a run does nothing until it is awaited"]
pub struct Run<'a, R: Runnable> {
    /// While it is under way.
    run: Option<StartedRun<R>>,
    work: Work<'a, R>,
    /// What may stop it from outside, if anything.
    watch: Option<Watch>,
    /// In a run that has no run above, once it waits.
    listed: Option<Listed>,
}

impl<'a, R: Runnable> Run<'a, R> {
    /// Starts it in the current run, if it was made in none and has not begun.
    #[cfg(feature = "tower")]
    pub(crate) fn start_here_if_alone(&mut self) {
        if let Some(config) = self.config_mut()
            && config.parent.is_none()
        {
            config.parent = RunContext::to_start_in();
        }
    }

    /// Returns what was said about the run; none once it has begun.
    pub(crate) const fn config(&self) -> Option<&RunConfig<'a, R>> {
        match (&self.run, &self.work) {
            (None, Work::Planned(config)) => Some(config),
            _ => None,
        }
    }

    const fn config_mut(&mut self) -> Option<&mut RunConfig<'a, R>> {
        match (&self.run, &mut self.work) {
            (None, Work::Planned(config)) => Some(config),
            _ => None,
        }
    }

    /// Returns the run above, as long as this one is not over.
    pub(crate) fn parent(&self) -> Option<&RunContext> {
        self.run.as_ref().map_or_else(|| self.config()?.parent.as_ref(), |run| run.parent())
    }

    fn with(mut self, change: impl FnOnce(&mut Overrides)) -> Self {
        if let Some(config) = self.config_mut() {
            change(config.overrides.get_or_insert_default());
        }
        self
    }

    /// Binds a middleware to this run, after the instance's own, and in its place among the listeners of this run.
    pub fn middleware<Sort>(self, middleware: impl IntoMiddleware<Sort>) -> Self {
        self.with(|overrides| overrides.bindings.push(Binding::Middleware(Arc::new(middleware.into_middleware()))))
    }

    /// Lays keys over the context of the instance and of the parent run.
    pub fn context(self, context: impl Into<Context>) -> Self {
        self.with(|overrides| overrides.context = overrides.context.merged(&context.into()))
    }

    /// Sets the group that the run and those started in it belong to.
    pub fn group_id(self, group_id: impl Into<Arc<str>>) -> Self {
        self.with(|overrides| overrides.group_id = Some(group_id.into()))
    }

    /// Gives the run, and those started in it, a typed value.
    pub fn extension<T: Send + Sync + 'static>(self, value: T) -> Self {
        self.with(|overrides| overrides.extensions.inherited.insert(value))
    }

    /// Gives this run alone a typed value: runs started in it do not inherit it
    /// ([`RunContext::own_extension`]).
    pub fn own_extension<T: Send + Sync + 'static>(self, value: T) -> Self {
        self.with(|overrides| overrides.extensions.own.insert(value))
    }

    /// Aborts the run when the signal is: an [`AbortHandle`](crate::AbortHandle)'s, another run's, or a
    /// [`CancellationToken`](tokio_util::sync::CancellationToken). Of several, the first wins (R7).
    pub fn abort_on(mut self, signal: impl Into<AbortSignal>) -> Self {
        let Some(config) = self.config_mut() else { return self };
        match &config.signal {
            None => config.signal = Some(signal.into()),
            Some(_) => config.overrides.get_or_insert_default().signals.push(signal.into()),
        }
        self
    }

    /// Stops the run when its work is not over in time: it has timed out then. The time runs by tokio's clock from the
    /// first poll, and includes listeners of `start`, which are not cut short: one that waits for ever keeps its run waiting. Of several
    /// time-outs the shortest holds.
    ///
    /// The time-out is looked at before each poll of the work. Work that blocks the thread past it and returns from that very poll
    /// has succeeded: use [`tokio::task::spawn_blocking`] for such work.
    pub fn timeout(self, after: Duration) -> Self {
        self.with(|overrides| overrides.timeout = Some(overrides.timeout.map_or(after, |before| before.min(after))))
    }

    /// Registers a listener on the run's emitter, made with the verbs of [`Options`]: so listeners of a run get a priority, are
    /// called once, or take [nested](Options::nested) events.
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
    ///     // Before the others, though it is registered later.
    ///     .register(Options::new().priority(5).on("start", |start: &mut Start<u32, u32>, _| start.input += 1))
    ///     // Of runs below, too.
    ///     .register(Options::new().nested(true).once().observe("**.finish", |_: &dyn AnyEvent, _| println!("over")));
    /// assert_eq!(doubled.await?, 40);
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(self, registration: Registration) -> Self {
        self.with(|overrides| overrides.bindings.push(Binding::Listener(Some(registration))))
    }

    /// Listens to the run's events, and may change them; see [`Emitter::on`](emitree_emitter::Emitter::on).
    ///
    /// A listener of `"start"` receives the run's own `start` if it takes exactly that type, `&mut Start<I, O>`; so do those of
    /// [`on_start`](Self::on_start), [`Stage::Start`], and its path, `backend.chat.run.start`. With another payload type, or `dyn AnyEvent`,
    /// `"start"` is an event that the work emits under that name. Where the emitter declares its events, `"start"` is declared like all others.
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
        T: Hears + ?Sized + 'static,
        Out: ListenerResult,
    {
        self.register(Options::new().on(matcher, f))
    }

    /// Listens to the run's events, may change them, and is awaited; see
    /// [`Emitter::on_async`](emitree_emitter::Emitter::on_async).
    #[track_caller]
    pub fn on_async<T>(
        self,
        matcher: impl IntoMatcher,
        f: impl for<'e> Fn(&'e mut T, &'e EventMeta<'e>) -> BoxFuture<'e, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Self
    where
        T: Hears + ?Sized + 'static,
    {
        self.register(Options::new().on_async(matcher, f))
    }

    /// Watches the run's events; see [`Emitter::observe`](emitree_emitter::Emitter::observe).
    #[track_caller]
    pub fn observe<T, Out>(
        self,
        matcher: impl IntoMatcher,
        f: impl Fn(&T, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self
    where
        T: Hears + ?Sized + 'static,
        Out: ListenerResult,
    {
        self.register(Options::new().observe(matcher, f))
    }

    /// Watches the run's events, together with others of its sort; see
    /// [`Emitter::observe_async`](emitree_emitter::Emitter::observe_async).
    #[track_caller]
    pub fn observe_async<T>(
        self,
        matcher: impl IntoMatcher,
        f: impl for<'e> Fn(&'e T, &'e EventMeta<'e>) -> BoxFuture<'e, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Self
    where
        T: Hears + ?Sized + 'static,
    {
        self.register(Options::new().observe_async(matcher, f))
    }

    /// Listens to the run's own `start`: may change the input, or answer by setting the output.
    #[track_caller]
    pub fn on_start<Out: ListenerResult>(
        self,
        f: impl Fn(&mut Start<R::Input, R::Output>, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self {
        self.on(Stage::Start, f)
    }

    /// Listens to the run's own `success`: may change the output.
    #[track_caller]
    pub fn on_success<Out: ListenerResult>(
        self,
        f: impl Fn(&mut Success<R::Input, R::Output>, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self {
        self.on(Stage::Success, f)
    }

    /// Listens to the run's own `error`.
    #[track_caller]
    pub fn on_error<Out: ListenerResult>(
        self,
        f: impl Fn(&Failure, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self {
        self.on(Stage::Error, move |failure: &mut Failure, meta| f(failure, meta))
    }

    /// Listens to the run's own `finish`.
    #[track_caller]
    pub fn on_finish<Out: ListenerResult>(
        self,
        f: impl Fn(&Finish<R::Input, R::Output>, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Self {
        self.on(Stage::Finish, move |finish: &mut Finish<R::Input, R::Output>, meta| f(finish, meta))
    }
}

/// Nothing in a run is pinned but the boxed future in it.
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
