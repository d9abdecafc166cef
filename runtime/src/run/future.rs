//! The future of a run. The first poll makes the run, and binds its middlewares and listeners. Each poll advances the
//! run's steps and its work. Dropping the future ends the run without the work (R4, R8).
//!
//! Work, middlewares and listeners are user code. Their panics are caught, and become errors.

use std::future::Future;
use std::mem::{replace, take};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};

use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use crate::abort::Stop;
use crate::abort::watch::Watch;
use crate::chain::attempts::attempts;
use crate::context::current::enter;
use crate::run::config::{RunConfig, RunnableRef, StartedRun};
use crate::run::lease::{Acquired, Driver};
use crate::run::panic::{caught, caught_async, discard, isolated, logged};
use crate::run::shutdown::Listed;
use crate::run::steps::{Step, begin, give_up};
use crate::run::supervise::supervise;
use crate::{Error, Result, Run, RunContext, Runnable};

/// The work of a run, which only the run's own future holds.
pub(super) enum WorkState<'a, R: Runnable> {
    Planned(RunConfig<'a, R>),
    Running(BoxFuture<'a, Result<R::Output>>),
    Done,
}

impl<'a, R: Runnable> Run<'a, R> {
    pub(crate) fn new(runnable: RunnableRef<'a, R>, input: R::Input) -> Self {
        let parent = RunContext::to_start_in();
        let config = RunConfig { runnable, input: Some(input), parent, signal: None, key: None, overrides: None };
        Self { run: None, work: WorkState::Planned(config), watch: None, listed: None }
    }

    /// Begins the run, and advances it until it has to wait. Most runs are over without waiting, so their parts are
    /// made in place and never moved.
    fn begin(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<R::Output>> {
        let WorkState::Planned(config) = &mut self.work else {
            return Poll::Ready(Err(Error::new("the run was polled again after it had ended")));
        };
        let run: &StartedRun<R> = match caught(|| config.begin()).flatten() {
            Ok(run) => self.run.insert(run.into()),
            Err(error) => {
                self.drop_config();
                return Poll::Ready(Err(error));
            }
        };
        if let Some(signal) = config.signal.take() {
            self.watch.get_or_insert_default().add(signal, run);
        }
        let polled = self.work.advance(run, &mut self.watch, Step::default(), cx);
        if polled.is_ready() {
            self.over();
        } else if run.parent().is_none() {
            // The run has to wait, and has no parent that would end it: list it, so that a shutdown finds it.
            self.listed = Some(Listed::new(run));
        }
        polled
    }

    /// Releases a run that is over.
    fn over(&mut self) {
        let Some(run) = self.run.take() else { return };
        // The parent may be waiting for the run, a shutdown if the run is listed, and any code that has a handle
        // (`ended`).
        if run.parent().is_some() || self.listed.is_some() || !run.is_last() {
            run.core().lease.over(None);
        }
        self.watch = None;
        // Work that has begun was dropped already. Work that has not begun is dropped inside the run, because runs that
        // its drop starts belong to the nearest run above that accepts runs (R14).
        if let WorkState::Planned(_) = self.work {
            enter(&run, || discard(replace(&mut self.work, WorkState::Done)));
        }
        // If this is the last handle to the run, this also drops the run's values.
        discard(run);
        self.listed = None;
    }

    /// Ends a run that is under way, without its work (R8).
    fn abandon(&mut self) {
        let Some(run) = &self.run else { return };
        // If a token was canceled before the drop, the run ends with the token's reason and not as dropped (R7).
        if let Some(watch) = &mut self.watch {
            isolated(|| _ = watch.look(run.node(), &mut TaskContext::from_waker(Waker::noop())));
        }
        run.node().stop(Stop::Dropped);
        // Entering the run's span calls the `tracing` subscriber, which may panic.
        isolated(|| run.inside(|| self.work.drop_work_logged()));
        supervise(run);
    }

    /// Drops the configuration of a run that has not begun, inside the run's parent, because runs that the drop starts
    /// belong to the parent, or to a run above that still accepts runs (R1).
    fn drop_config(&mut self) {
        let parent = self.config_mut().and_then(|config| config.parent.take());
        let config = replace(&mut self.work, WorkState::Done);
        match parent {
            Some(parent) => {
                enter(&parent, || discard(config));
                // If this is the last handle to the parent, this also drops the parent's values.
                discard(parent);
            }
            None => discard(config),
        }
    }
}

impl<R: Runnable> Future for Run<'_, R> {
    type Output = Result<R::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(run) = &this.run else { return this.begin(cx) };
        let polled = match run.core().lease.acquire(Driver::Own, cx.waker()) {
            Acquired::Steps(step) => this.work.advance(run, &mut this.watch, step, cx),
            Acquired::ByOther => Poll::Pending,
            Acquired::Over(result) => Poll::Ready(this.work.ended_by_other(run, result)),
        };
        if polled.is_ready() {
            this.over();
        }
        polled
    }
}

impl<R: Runnable> Drop for Run<'_, R> {
    fn drop(&mut self) {
        // A run that was polled to its end has nothing left to drop.
        if self.run.is_none() && matches!(self.work, WorkState::Done) {
            return;
        }
        self.abandon();
        // Each of these drops may call user code. A panic is caught, because a second panic during an unwind aborts the
        // process.
        self.drop_config();
        discard(self.run.take());
        discard(self.watch.take());
    }
}

impl<R: Runnable> WorkState<'_, R> {
    /// Advances the run from a step, inside the run (R9, R12). Parks the step at which the run has to wait.
    fn advance(
        &mut self,
        run: &StartedRun<R>,
        watch: &mut Option<Watch>,
        mut step: Step<R::Input, R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let mut advance = |step: &mut Step<_, _>| {
            // The configuration keeps the input until the run has started. A run with no listeners, subscribers or
            // bindings has already taken the input.
            if let WorkState::Planned(config) = self
                && config.input.is_some()
            {
                *step = start(config, run, watch);
            }
            run.advance(step, None, cx, |cx, early| self.poll(run, watch, early, cx))
        };
        let polled = run.holding(&mut step, Driver::Own, |step| run.inside(|| advance(step)));
        if polled.is_pending() {
            run.core().lease.park(take(&mut step), Driver::Own, cx.waker());
        }
        polled
    }

    /// Polls the work. When the work is over, drops it inside the run and before the run's next step, so that runs that
    /// the work still holds are dropped first.
    fn poll(
        &mut self,
        run: &StartedRun<R>,
        watch: &mut Option<Watch>,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let polled = self.poll_unstopped(run, watch, early, cx);
        if polled.is_pending() {
            return Poll::Pending;
        }
        let dropped = caught(|| *self = WorkState::Done);
        polled.map(|result| match (result, dropped) {
            (Ok(output), Err(error)) => {
                discard(output);
                Err(error)
            }
            (result, _) => result,
        })
    }

    /// Begins and polls the work. Returns an error if the run was stopped before the poll, or if it was stopped during
    /// the poll and the work has to wait. The caller then drops the work (R7).
    fn poll_unstopped(
        &mut self,
        run: &StartedRun<R>,
        watch: &mut Option<Watch>,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let node = run.node();
        if let Some(watch) = watch {
            watch.look(node, cx)?;
        }
        if let Some(stop) = node.state.stopped() {
            return Poll::Ready(Err(stop.error()));
        }
        if let WorkState::Planned(_) = self {
            // Another thread may bind a layer meanwhile: either the work uses the chain with that layer, or the layer is
            // refused.
            let has_chain = node.state.begin_work();
            if !has_chain && let Some(answer) = early.take() {
                let answered = Ok(answer);
                run.show_attempt(&answered);
                return Poll::Ready(answered);
            }
            if let WorkState::Planned(RunConfig { runnable, .. }) = replace(self, WorkState::Done) {
                *self = WorkState::Running(make_work(runnable, run.clone(), early.take(), has_chain));
            }
        }
        let WorkState::Running(work) = self else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        match &polled {
            // With a chain, each attempt was shown to the subscribers already.
            Poll::Ready(result) if !node.state.has_chain() => run.show_attempt(result),
            Poll::Ready(_) => {}
            Poll::Pending => {
                // Register the waker before the second check: a stop is either seen by the check, or wakes the task.
                node.waker.register(cx.waker());
                if let Some(stop) = node.state.stopped() {
                    return Poll::Ready(Err(stop.error()));
                }
            }
        }
        polled
    }

    /// Returns the result of a run that another driver has ended (R13).
    fn ended_by_other(&mut self, run: &StartedRun<R>, result: Option<Result<R::Output>>) -> Result<R::Output> {
        // Entering the run's span calls the `tracing` subscriber, which may panic.
        isolated(|| run.inside(|| self.drop_work_logged()));
        result.unwrap_or_else(|| {
            let error = run.node().state.stopped().map_or_else(|| Error::new("the run has ended"), Stop::error);
            Err(run.exit_error(error))
        })
    }

    /// Drops the work of a run whose outcome is fixed. A panic is logged.
    fn drop_work_logged(&mut self) {
        if let Err(error) = caught(|| *self = WorkState::Done) {
            logged(|| tracing::warn!(error = %error, "the work of a run panicked while it was dropped"));
        }
    }
}

/// Makes the future of the work. This is a function of its own, because in a debug build the frame of a function has
/// room for each future that it makes, and the frames of `poll` are on the stack once for each nested run.
fn make_work<'a, R: Runnable>(
    runnable: RunnableRef<'a, R>,
    run: StartedRun<R>,
    answer: Option<R::Output>,
    has_chain: bool,
) -> BoxFuture<'a, Result<R::Output>> {
    if has_chain {
        // An answer passes through the chain too (M6).
        let work = async move { attempts(&run, &*runnable, answer).await };
        Box::pin(caught_async(work).map(Result::flatten))
    } else {
        let work = async move { runnable.execute(run.input(), &run).await };
        Box::pin(caught_async(work).map(Result::flatten))
    }
}

/// Binds middlewares and listeners to the run, and emits `start`.
fn start<R: Runnable>(
    config: &mut RunConfig<'_, R>,
    run: &StartedRun<R>,
    watch: &mut Option<Watch>,
) -> Step<R::Input, R::Output> {
    let is_bound = config.overrides.is_some() || run.shared().bindings.middlewares.is_some();
    let bound = if is_bound { caught(|| config.bind(run, watch)).flatten() } else { Ok(()) };
    let step = match (bound, config.input.take()) {
        (Err(error), input) => {
            discard(input);
            give_up(run, error)
        }
        (Ok(()), Some(input)) => begin(run, input),
        (Ok(()), None) => Step::Working(None),
    };
    config.overrides.take().into_iter().for_each(discard);
    step
}
