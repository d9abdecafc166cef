//! A run's own future: it binds, and then brings work and announcer forward in turn (R4).
//!
//! Work, middlewares and listeners are user code: their panics are caught, and are errors like others.

use std::mem::{replace, take};
use std::task::{Context as TaskContext, Poll, Waker};

use futures_core::future::BoxFuture;

use crate::abort::watch::Watch;
use crate::abort::{Node, Stop};
use crate::chain::Slot;
use crate::chain::attempts::attempts;
use crate::context::Typed;
use crate::context::current::enter;
use crate::middleware::order::in_order;
use crate::run::config::{Begun, Due, Held, Plan};
use crate::run::lease::{Taken, Who};
use crate::run::panic::{calm, calm_async, discard, isolated, logged};
use crate::run::shutdown::Listed;
use crate::run::steps::{Step, begin, give_up};
use crate::run::supervise::supervise;
use crate::runnable::value::Data;
use crate::{Error, Result, RunContext, Runnable};

/// A run, from its plan to its end. Dropped between the two, it is brought there without its work (R8).
pub(crate) struct Conducted<'a, R: Runnable> {
    /// While it is under way.
    run: Option<Begun<R>>,
    work: Work<'a, R>,
    watch: Watch,
    /// Where it has no run above, once it waits.
    listed: Option<Listed>,
}

enum Work<'a, R: Runnable> {
    Due(Plan<'a, R>),
    Doing(BoxFuture<'a, Result<R::Output>>),
    Over,
}

/// Binds what belongs to the run, and tells of its start.
fn start<R: Runnable>(plan: &mut Plan<'_, R>, run: &Begun<R>, watch: &mut Watch) -> Step<R::Input, R::Output> {
    match (bind(plan, run, watch), plan.input.take()) {
        (Err(error), input) => {
            discard(input);
            give_up(run, error)
        }
        (Ok(()), None) => Step::Working(None),
        (Ok(()), Some(input)) => begin(run, input),
    }
}

/// The run's limits, then middlewares: those of the runs above, the instance's, and the run's, which its listeners stand among (R4).
fn bind<R: Runnable>(plan: &mut Plan<'_, R>, ctx: &RunContext, watch: &mut Watch) -> Result<()> {
    plan.limit(ctx, watch)?;
    // As the run found them: what is bound below adds to those of the runs in it.
    let inherited = ctx.inherited().all();
    let inherited = inherited.iter().flat_map(|inherited| inherited.iter());
    let bind_all = || {
        let (due, input) = plan.due();
        let mut due = in_order(inherited.map(Due::Middleware).chain(due))?;
        due.iter_mut().try_for_each(|due| due.bind(ctx))?;
        // Its clone is user code too.
        input.iter().for_each(|input| ctx.keep_input(input));
        Ok(())
    };
    calm(bind_all)
}

impl<'a, R: Runnable> Conducted<'a, R> {
    pub(crate) fn new(plan: Plan<'a, R>) -> Self {
        Self { run: None, work: Work::Due(plan), watch: Watch::default(), listed: None }
    }

    pub(crate) const fn is_under_way(&self) -> bool {
        self.run.is_some()
    }

    /// What was said about it. None once it has begun.
    pub(crate) const fn plan(&self) -> Option<&Plan<'a, R>> {
        match (&self.run, &self.work) {
            (None, Work::Due(plan)) => Some(plan),
            _ => None,
        }
    }

    pub(crate) const fn plan_mut(&mut self) -> Option<&mut Plan<'a, R>> {
        match (&self.run, &mut self.work) {
            (None, Work::Due(plan)) => Some(plan),
            _ => None,
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<R::Output>> {
        let Some(run) = &self.run else { return self.begin(cx) };
        let polled = match run.typed_life().seat.take(Who::Own, cx.waker()) {
            Taken::Seat(mut step) => self.work.advance(run, &mut self.watch, &mut step, cx),
            Taken::ByOther => Poll::Pending,
            Taken::Over(result) => Poll::Ready(self.work.ended_by_other(run, result)),
        };
        if polled.is_ready() {
            self.over();
        }
        polled
    }

    /// Begins, and goes on as far as that can be done now. Most runs are over then, so what is made on the way is
    /// not moved: it is made where it stays.
    fn begin(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<R::Output>> {
        let Work::Due(plan) = &mut self.work else {
            return Poll::Ready(Err(Error::new("the run was polled again after it had ended")));
        };
        let run: &Begun<R> = match calm(|| plan.begin()) {
            Ok(run) => self.run.insert(run.into()),
            Err(error) => {
                self.drop_plan();
                return Poll::Ready(Err(error));
            }
        };
        if let Some(signal) = plan.signal.take() {
            self.watch.add(signal, run);
        }
        let mut step = Step::default();
        // Where it has its input already, there is nothing to bind, and nobody to tell.
        if plan.input.is_some() {
            inside(run, &mut step, |step| {
                *step = start(plan, run, &mut self.watch);
                plan.extras.take().into_iter().for_each(discard);
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
            run.typed_life().seat.over(None);
        }
        self.watch.end();
        // Work that was begun has been dropped already.
        if let Work::Due(_) = self.work {
            enter(&run, || discard(replace(&mut self.work, Work::Over)));
        }
        // With it goes what was bound to it.
        discard(run);
        self.listed = None;
    }
}

/// Goes on with a step inside of the run (R9, R12).
fn inside<I: Data, O: Data, T>(run: &Typed<I, O>, step: &mut Step<I, O>, f: impl FnOnce(&mut Step<I, O>) -> T) -> T {
    run.holding(step, Who::Own, |step| run.inside(|| f(step)))
}

impl<R: Runnable> Work<'_, R> {
    /// Goes on from a step, and parks it at the one where it has to wait.
    fn advance(
        &mut self,
        run: &Begun<R>,
        watch: &mut Watch,
        step: &mut Step<R::Input, R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let work = |cx: &mut TaskContext<'_>, early: &mut Option<R::Output>| self.poll(run, watch, early, cx);
        let polled = inside(run, step, |step| run.advance(step, None, cx, work));
        if polled.is_pending() {
            run.typed_life().seat.park(take(step), Who::Own, cx.waker());
        }
        polled
    }

    /// The run above has ended, and this one with it (R13).
    fn ended_by_other(&mut self, run: &Begun<R>, result: Option<Result<R::Output>>) -> Result<R::Output> {
        // Who is told of spans may panic.
        isolated(|| run.inside(|| self.leave()));
        let stopped = || run.node().stopped().map_or_else(|| Error::new("the run is over"), Stop::error);
        result.unwrap_or_else(|| run.slot().outgoing().result(Err(stopped())))
    }

    /// Looked at before the work is begun, and each time before and after it is polled: an aborted run's is dropped (R7).
    fn poll(
        &mut self,
        run: &Begun<R>,
        watch: &mut Watch,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let polled = self.poll_unstopped(run, watch, early, cx);
        if polled.is_ready() {
            // Inside of the run: what it started and has not ended ends with it.
            let dropped = self.let_go();
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
    fn let_go(&mut self) -> Result<()> {
        calm(|| {
            *self = Work::Over;
            Ok(())
        })
    }

    /// The same, where it is known how the run ends, whatever panics now.
    fn leave(&mut self) {
        if let Err(error) = self.let_go() {
            logged(|| tracing::warn!(error = %error, "the work of a run panicked while it was dropped"));
        }
    }
}

/// Fails with why the run was stopped.
fn unless_stopped(node: &Node) -> Result<()> {
    node.stopped().map_or(Ok(()), |stop| Err(stop.error()))
}

impl<'a, R: Runnable> Work<'a, R> {
    fn poll_unstopped(
        &mut self,
        run: &Begun<R>,
        watch: &mut Watch,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let here = run.here();
        let (node, slot) = (here.node(), here.slot());
        watch.look(node, cx)?;
        unless_stopped(node)?;
        let polled = self.poll_due(run, slot, early, cx);
        match &polled {
            // Where there is a chain, that has shown each of its attempts.
            Poll::Ready(result) if slot.existing().is_none() => run.show_attempt(result),
            Poll::Ready(_) => {}
            Poll::Pending => {
                node.waker().register(cx.waker());
                unless_stopped(node)?;
            }
        }
        polled
    }

    fn poll_due(
        &mut self,
        run: &Begun<R>,
        slot: &Slot,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        if slot.existing().is_none()
            && let Some(output) = early.take()
        {
            return Poll::Ready(Ok(output));
        }
        if let Work::Due(_) = self
            && let Work::Due(plan) = replace(self, Work::Over)
        {
            *self = Work::Doing(work(plan.runnable, run.clone(), slot, early.take()));
        }
        match self {
            Work::Doing(work) => work.as_mut().poll(cx),
            Work::Due(_) | Work::Over => Poll::Pending,
        }
    }
}

/// The work of a runnable, or its chain where it has one: an answer that was set passes that too (M6).
fn work<'a, R: Runnable + 'a>(
    runnable: Held<'a, R>,
    run: Begun<R>,
    slot: &Slot,
    early: Option<R::Output>,
) -> BoxFuture<'a, Result<R::Output>> {
    if slot.existing().is_some() {
        return Box::pin(calm_async(async move { through(&*runnable, &run, early).await }));
    }
    slot.close();
    Box::pin(calm_async(async move { runnable.execute(run.input(), &run).await }))
}

async fn through<R: Runnable>(runnable: &R, run: &Begun<R>, early: Option<R::Output>) -> Result<R::Output> {
    match run.slot().existing_of() {
        Some(chain) => attempts(chain, runnable, run.input(), early, run).await,
        None => runnable.execute(run.input(), run).await,
    }
}

impl<R: Runnable> Conducted<'_, R> {
    /// Ends a run that is under way without its work (R8).
    fn abandon(&mut self) {
        let Some(run) = &self.run else { return };
        // A token that was cancelled before came first (R7).
        isolated(|| _ = self.watch.look(run.node(), &mut TaskContext::from_waker(Waker::noop())));
        run.node().stop(Stop::Dropped);
        // Who is told of spans may panic.
        isolated(|| run.inside(|| self.work.leave()));
        supervise(run);
    }
}

impl<R: Runnable> Conducted<'_, R> {
    /// Drops what was to be run, and with what, in the run that it was made in: what that starts belongs there (R1).
    fn drop_plan(&mut self) {
        let parent = self.plan_mut().and_then(|plan| plan.parent.take());
        let plan = replace(&mut self.work, Work::Over);
        match parent {
            Some(parent) => {
                enter(&parent, || discard(plan));
                // It may be the last to hold that run, whose values go with it.
                discard(parent);
            }
            None => discard(plan),
        }
    }
}

impl<R: Runnable> Drop for Conducted<'_, R> {
    fn drop(&mut self) {
        // Mostly nothing is left.
        if self.run.is_none() && matches!(self.work, Work::Over) {
            return;
        }
        self.abandon();
        // What is left holds values of the user. They may panic while somebody unwinds already, and two panics abort the process.
        self.drop_plan();
        discard(self.run.take());
        discard(take(&mut self.watch));
    }
}
