//! A run's own future: it binds, and then brings work and announcer forward in turn (R4).
//!
//! Work, middlewares and listeners are user code: their panics are caught, and are errors like others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use crate::abort::Stop;
use crate::announce::{give_up, lifecycle};
use crate::context::Inner;
use crate::life::{Life, Progress, Step, Taken, Who};
use crate::lifecycle::{Data, Holds};
use crate::middleware::Inherited;
use crate::plan::{Begun, Held, Plan};
use crate::supervise::supervise;
use crate::watch::Watch;
use crate::{Error, Result, RunContext, Runnable};

/// A run that has begun. Dropped before its end, it is brought to it without its work (R8).
pub(crate) struct Conducted<'a, R: Runnable> {
    run: Begun<R>,
    ctx: RunContext,
    work: Work<'a, R>,
    watch: Watch,
    /// Taken from the beginning, until it is parked for the first time.
    seat: Option<Progress<R::Output>>,
    is_over: bool,
}

enum Work<'a, R: Runnable> {
    Due(Held<'a, R>),
    Doing(BoxFuture<'a, Result<R::Output>>),
    Over,
}

/// Begins a run. Nothing has been emitted yet.
pub(crate) fn conduct<R: Runnable>(mut plan: Plan<'_, R>) -> Result<Conducted<'_, R>> {
    let run = calm(|| plan.begin())?;
    let ctx = RunContext::of(&run);
    let mut watch = Watch::default();
    let bound = plan
        .listen(&ctx)
        .and_then(|()| plan.watch(&ctx, &mut watch))
        .and_then(|()| ctx.inside(|| bind_middlewares(&plan, &ctx)));
    let Plan { runnable, input, .. } = plan;
    let seat = match bound {
        Err(error) => announced(Step::Ending, give_up(Arc::clone(&run), error)),
        Ok(()) => begun(&run, input),
    };
    Ok(Conducted { run, ctx, work: Work::Due(runnable), watch, seat: Some(seat), is_over: false })
}

fn begun<I: Data, O: Data>(run: &Arc<Inner<Life<I, O>>>, input: Option<I>) -> Progress<O> {
    match input {
        Some(input) if run.emitter.is_heard() => announced(Step::Starting, lifecycle(Arc::clone(run), input)),
        input => {
            // Set already, if there is none here.
            input.map(|input| run.life.input.set(input));
            Progress { step: Step::Working(None), announcer: None }
        }
    }
}

fn announced<O>(step: Step<O>, announcer: impl Future<Output = Result<O>> + Send + 'static) -> Progress<O> {
    Progress { step, announcer: Some(Box::pin(announcer)) }
}

fn bind_middlewares<R: Runnable>(plan: &Plan<'_, R>, ctx: &RunContext) -> Result<()> {
    // As the run found them: what is bound below adds to those of the runs in it.
    let inherited = ctx.extension::<Inherited>();
    let inherited = inherited.iter().flat_map(|inherited| &inherited.0);
    calm(|| inherited.chain(plan.middlewares()).try_for_each(|middleware| middleware.bind(ctx)))
}

/// Calls user code; a panic is an error like others.
pub(crate) fn calm<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(Error::of_panic(&*panic)))
}

impl<R: Runnable> Conducted<'_, R> {
    /// Goes on, inside of the run (R9, R12).
    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<R::Output>> {
        let ctx = self.ctx.clone();
        let polled = ctx.inside(|| self.poll_inside(cx));
        self.is_over = polled.is_ready();
        polled
    }

    fn poll_inside(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<R::Output>> {
        let seat = match self.seat.take() {
            Some(seat) => seat,
            None => match self.run.life.take(Who::Own, cx.waker()) {
                Taken::Seat(progress) => progress,
                Taken::ByOther => return Poll::Pending,
                Taken::Over(result) => return Poll::Ready(self.ended_by_other(result)),
            },
        };
        let Self { run, ctx, work, watch, .. } = self;
        let polled = run.life.advance(seat, Who::Own, cx, |cx, early| work.poll(run, ctx, watch, early, cx));
        if polled.is_ready() {
            run.life.over(None);
        }
        polled
    }

    /// The run above has ended, and this one with it (R13).
    fn ended_by_other(&mut self, result: Option<Result<R::Output>>) -> Result<R::Output> {
        self.run.life.over(None);
        self.work = Work::Over;
        let stopped = || Err(self.ctx.node().stopped().map_or_else(|| Error::new("the run is over"), Stop::error));
        result.unwrap_or_else(stopped)
    }
}

impl<R: Runnable> Work<'_, R> {
    /// Looked at before the work is begun, and each time before and after it is polled: an aborted run's is dropped (R7).
    fn poll(
        &mut self,
        run: &Begun<R>,
        ctx: &RunContext,
        watch: &mut Watch,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        watch.look(ctx, cx);
        let mut polled = self.stopped(ctx);
        if polled.is_pending() {
            polled = self.poll_unstopped(run, ctx, early, cx);
        }
        if polled.is_pending() {
            ctx.node().waker().register(cx.waker());
            polled = self.stopped(ctx);
        }
        if polled.is_ready() {
            // Inside of the run: what it started and has not ended ends with it.
            *self = Work::Over;
        }
        polled
    }

    fn stopped(&self, ctx: &RunContext) -> Poll<Result<R::Output>> {
        ctx.node().stopped().map_or(Poll::Pending, |stop| Poll::Ready(Err(stop.error())))
    }
}

impl<'a, R: Runnable> Work<'a, R> {
    fn poll_unstopped(
        &mut self,
        run: &Begun<R>,
        ctx: &RunContext,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        if let Some(output) = early.take() {
            return Poll::Ready(Ok(output));
        }
        if let Work::Due(_) = self
            && let Work::Due(runnable) = std::mem::replace(self, Work::Over)
        {
            *self = Work::Doing(work(runnable, Arc::clone(run), ctx.clone()));
        }
        match self {
            Work::Doing(work) => work.as_mut().poll(cx),
            Work::Due(_) | Work::Over => Poll::Pending,
        }
    }
}

fn work<'a, R: Runnable + 'a>(
    runnable: Held<'a, R>,
    run: Begun<R>,
    ctx: RunContext,
) -> BoxFuture<'a, Result<R::Output>> {
    Box::pin(async move {
        let work = AssertUnwindSafe(async { runnable.execute(run.input(), &ctx).await });
        work.catch_unwind().await.unwrap_or_else(|panic| Err(Error::of_panic(&*panic)))
    })
}

impl<R: Runnable> Drop for Conducted<'_, R> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.ctx.node().stop(Stop::Dropped);
        let ctx = self.ctx.clone();
        ctx.inside(|| self.work = Work::Over);
        if let Some(seat) = self.seat.take() {
            self.run.life.park(seat, Who::Own, std::task::Waker::noop());
        }
        supervise(&ctx);
    }
}
