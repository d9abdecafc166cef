//! A run's own future: it binds, and then brings work and announcer forward in turn (R4).
//!
//! Work, middlewares and listeners are user code: their panics are caught, and are errors like others.

use std::mem::{replace, take};
use std::task::{Context as TaskContext, Poll, Waker};

use futures_core::future::BoxFuture;

use crate::abort::watch::Watch;
use crate::abort::{AbortNode, Stop};
use crate::chain::Bindings;
use crate::chain::attempts::attempts;
use crate::context::TypedRun;
use crate::context::current::enter;
use crate::middleware::order::in_order;
use crate::run::config::{PendingBinding, RunConfig, RunnableRef, StartedRun};
use crate::run::lease::{Acquired, Driver};
use crate::run::panic::{calm, calm_async, discard, isolated, logged};
use crate::run::shutdown::Listed;
use crate::run::steps::{Step, begin, give_up};
use crate::run::supervise::supervise;
use crate::runnable::value::Data;
use crate::{Error, Result, RunContext, Runnable};

/// A run, from its plan to its end. Dropped between the two, it is brought there without its work (R8).
pub(crate) struct RunFuture<'a, R: Runnable> {
    /// While it is under way.
    run: Option<StartedRun<R>>,
    work: Work<'a, R>,
    watch: Watch,
    /// Where it has no run above, once it waits.
    listed: Option<Listed>,
}

enum Work<'a, R: Runnable> {
    Planned(RunConfig<'a, R>),
    Running(BoxFuture<'a, Result<R::Output>>),
    Done,
}

/// Binds what belongs to the run, and tells of its start.
fn start<R: Runnable>(
    config: &mut RunConfig<'_, R>,
    run: &StartedRun<R>,
    watch: &mut Watch,
) -> Step<R::Input, R::Output> {
    match (bind(config, run, watch), config.input.take()) {
        (Err(error), input) => {
            discard(input);
            give_up(run, error)
        }
        (Ok(()), None) => Step::Working(None),
        (Ok(()), Some(input)) => begin(run, input),
    }
}

/// The run's limits, then middlewares: those of the runs above, the instance's, and the run's, which its listeners stand among (R4).
fn bind<R: Runnable>(config: &mut RunConfig<'_, R>, ctx: &RunContext, watch: &mut Watch) -> Result<()> {
    config.limit(ctx, watch)?;
    // As the run found them: what is bound below adds to those of the runs in it.
    let inherited = ctx.inherited().all();
    let inherited = inherited.iter().flat_map(|inherited| inherited.iter());
    let bind_all = || {
        let (pending, input) = config.pending();
        let mut pending = in_order(inherited.map(PendingBinding::Middleware).chain(pending))?;
        pending.iter_mut().try_for_each(|pending| pending.bind(ctx))?;
        // Its clone is user code too.
        input.iter().for_each(|input| ctx.keep_input(input));
        Ok(())
    };
    calm(bind_all)
}

impl<'a, R: Runnable> RunFuture<'a, R> {
    pub(crate) fn new(config: RunConfig<'a, R>) -> Self {
        Self { run: None, work: Work::Planned(config), watch: Watch::default(), listed: None }
    }

    pub(crate) const fn is_under_way(&self) -> bool {
        self.run.is_some()
    }

    /// What was said about it. None once it has begun.
    pub(crate) const fn config(&self) -> Option<&RunConfig<'a, R>> {
        match (&self.run, &self.work) {
            (None, Work::Planned(config)) => Some(config),
            _ => None,
        }
    }

    /// The run above, as long as it is not over.
    pub(crate) fn parent(&self) -> Option<&RunContext> {
        self.run.as_ref().map_or_else(|| self.config()?.parent.as_ref(), |run| run.parent())
    }

    pub(crate) const fn config_mut(&mut self) -> Option<&mut RunConfig<'a, R>> {
        match (&self.run, &mut self.work) {
            (None, Work::Planned(config)) => Some(config),
            _ => None,
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<R::Output>> {
        let Some(run) = &self.run else { return self.begin(cx) };
        let polled = match run.core().lease.acquire(Driver::Own, cx.waker()) {
            Acquired::Steps(mut step) => self.work.advance(run, &mut self.watch, &mut step, cx),
            Acquired::ByOther => Poll::Pending,
            Acquired::Over(result) => Poll::Ready(self.work.ended_by_other(run, result)),
        };
        if polled.is_ready() {
            self.over();
        }
        polled
    }

    /// Begins, and goes on as far as that can be done now. Most runs are over then, so what is made on the way is
    /// not moved: it is made where it stays.
    fn begin(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<R::Output>> {
        let Work::Planned(config) = &mut self.work else {
            return Poll::Ready(Err(Error::new("the run was polled again after it had ended")));
        };
        let run: &StartedRun<R> = match calm(|| config.begin()) {
            Ok(run) => self.run.insert(run.into()),
            Err(error) => {
                self.drop_config();
                return Poll::Ready(Err(error));
            }
        };
        if let Some(signal) = config.signal.take() {
            self.watch.add(signal, run);
        }
        let mut step = Step::default();
        // Where it has its input already, there is nothing to bind, and nobody to tell.
        if config.input.is_some() {
            inside(run, &mut step, |step| {
                *step = start(config, run, &mut self.watch);
                config.overrides.take().into_iter().for_each(discard);
            });
        }
        let polled = self.work.advance(run, &mut self.watch, &mut step, cx);
        if polled.is_ready() {
            self.over();
        } else if run.parent().is_none() {
            self.listed = Some(Listed::new(run));
        }
        polled
    }

    /// Lets go of a run that is over.
    fn over(&mut self) {
        let Some(run) = self.run.take() else { return };
        // Nobody but the run above can be waiting for it.
        if run.parent().is_some() {
            run.core().lease.over(None);
        }
        self.watch.end();
        // Work that was begun has been dropped already.
        if let Work::Planned(_) = self.work {
            enter(&run, || discard(replace(&mut self.work, Work::Done)));
        }
        // With it goes what was bound to it.
        discard(run);
        self.listed = None;
    }
}

/// Goes on with a step inside of the run (R9, R12).
fn inside<I: Data, O: Data, T>(run: &TypedRun<I, O>, step: &mut Step<I, O>, f: impl FnOnce(&mut Step<I, O>) -> T) -> T {
    run.holding(step, Driver::Own, |step| run.inside(|| f(step)))
}

impl<R: Runnable> Work<'_, R> {
    /// Goes on from a step, and parks it at the one where it has to wait.
    fn advance(
        &mut self,
        run: &StartedRun<R>,
        watch: &mut Watch,
        step: &mut Step<R::Input, R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let work = |cx: &mut TaskContext<'_>, early: &mut Option<R::Output>| self.poll(run, watch, early, cx);
        let polled = inside(run, step, |step| run.advance(step, None, cx, work));
        if polled.is_pending() {
            run.core().lease.park(take(step), Driver::Own, cx.waker());
        }
        polled
    }

    /// The run above has ended, and this one with it (R13).
    fn ended_by_other(&mut self, run: &StartedRun<R>, result: Option<Result<R::Output>>) -> Result<R::Output> {
        // Who is told of spans may panic.
        isolated(|| run.inside(|| self.drop_work_logged()));
        let stopped = || run.node().stopped().map_or_else(|| Error::new("the run is over"), Stop::error);
        result.unwrap_or_else(|| run.exit_result(Err(stopped())))
    }

    /// Looked at before the work is begun, and each time before and after it is polled: an aborted run's is dropped (R7).
    fn poll(
        &mut self,
        run: &StartedRun<R>,
        watch: &mut Watch,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let polled = self.poll_unstopped(run, watch, early, cx);
        if polled.is_ready() {
            // Inside of the run: what it started and has not ended ends with it.
            let dropped = self.drop_work();
            return polled.map(|result| match (result, dropped) {
                (Ok(output), Err(error)) => {
                    discard(output);
                    Err(error)
                }
                (result, _) => result,
            });
        }
        polled
    }

    /// Drops what is left of it, which is user code.
    fn drop_work(&mut self) -> Result<()> {
        calm(|| {
            *self = Work::Done;
            Ok(())
        })
    }

    /// The same, where it is known how the run ends, whatever panics now.
    fn drop_work_logged(&mut self) {
        if let Err(error) = self.drop_work() {
            logged(|| tracing::warn!(error = %error, "the work of a run panicked while it was dropped"));
        }
    }
}

/// Fails with why the run was stopped.
fn unless_stopped(node: &AbortNode) -> Result<()> {
    node.stopped().map_or(Ok(()), |stop| Err(stop.error()))
}

impl<'a, R: Runnable> Work<'a, R> {
    fn poll_unstopped(
        &mut self,
        run: &StartedRun<R>,
        watch: &mut Watch,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let here = run.here();
        let (node, bindings) = (here.node(), here.bindings());
        watch.look(node, cx)?;
        unless_stopped(node)?;
        let polled = self.poll_work(run, bindings, early, cx);
        match &polled {
            // Where there is a chain, that has shown each of its attempts.
            Poll::Ready(result) if bindings.existing().is_none() => run.show_attempt(result),
            Poll::Ready(_) => {}
            Poll::Pending => {
                node.waker().register(cx.waker());
                unless_stopped(node)?;
            }
        }
        polled
    }

    fn poll_work(
        &mut self,
        run: &StartedRun<R>,
        bindings: &Bindings,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        if bindings.existing().is_none()
            && let Some(output) = early.take()
        {
            bindings.close();
            return Poll::Ready(Ok(output));
        }
        if let Work::Planned(_) = self
            && let Work::Planned(config) = replace(self, Work::Done)
        {
            *self = Work::Running(work(config.runnable, run.clone(), bindings, early.take()));
        }
        match self {
            Work::Running(work) => work.as_mut().poll(cx),
            Work::Planned(_) | Work::Done => Poll::Pending,
        }
    }
}

/// The work of a runnable, or its chain where it has one: an answer that was set passes that too (M6).
fn work<'a, R: Runnable + 'a>(
    runnable: RunnableRef<'a, R>,
    run: StartedRun<R>,
    bindings: &Bindings,
    early: Option<R::Output>,
) -> BoxFuture<'a, Result<R::Output>> {
    if bindings.existing().is_some() {
        return Box::pin(calm_async(async move { through(&*runnable, &run, early).await }));
    }
    bindings.close();
    Box::pin(calm_async(async move { runnable.execute(run.input(), &run).await }))
}

async fn through<R: Runnable>(runnable: &R, run: &StartedRun<R>, early: Option<R::Output>) -> Result<R::Output> {
    match run.bindings().existing_of() {
        Some(chain) => attempts(chain, runnable, run.input(), early, run).await,
        None => runnable.execute(run.input(), run).await,
    }
}

impl<R: Runnable> RunFuture<'_, R> {
    /// Ends a run that is under way without its work (R8).
    fn abandon(&mut self) {
        let Some(run) = &self.run else { return };
        // A token that was cancelled before came first (R7).
        isolated(|| _ = self.watch.look(run.node(), &mut TaskContext::from_waker(Waker::noop())));
        run.node().stop(Stop::Dropped);
        // Who is told of spans may panic.
        isolated(|| run.inside(|| self.work.drop_work_logged()));
        supervise(run);
    }
}

impl<R: Runnable> RunFuture<'_, R> {
    /// Drops what was to be run, and with what, in the run that it was made in: what that starts belongs there (R1).
    fn drop_config(&mut self) {
        let parent = self.config_mut().and_then(|config| config.parent.take());
        let config = replace(&mut self.work, Work::Done);
        match parent {
            Some(parent) => {
                enter(&parent, || discard(config));
                // It may be the last to hold that run, whose values go with it.
                discard(parent);
            }
            None => discard(config),
        }
    }
}

impl<R: Runnable> Drop for RunFuture<'_, R> {
    fn drop(&mut self) {
        // Mostly nothing is left.
        if self.run.is_none() && matches!(self.work, Work::Done) {
            return;
        }
        self.abandon();
        // What is left holds values of the user. They may panic while somebody unwinds already, and two panics abort the process.
        self.drop_config();
        discard(self.run.take());
        discard(take(&mut self.watch));
    }
}
