//! A run's own future: it binds, and then brings work and announcer forward in turn (R4).
//!
//! Work, middlewares and listeners are user code: their panics are caught, and are errors like others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context as TaskContext, Poll};

use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use crate::abort::Stop;
use crate::announce::{Step, begin, give_up};
use crate::attempt::attempts;
use crate::discard::discard;
use crate::middleware::Inherited;
use crate::order::in_order;
use crate::plan::{Begun, Held, Plan};
use crate::seat::{Taken, Who};
use crate::supervise::supervise;
use crate::watch::Watch;
use crate::{Error, Result, RunContext, Runnable};

/// A run that has begun. Dropped before its end, it is brought to it without its work (R8).
pub(crate) struct Conducted<'a, R: Runnable> {
    run: Begun<R>,
    work: Work<'a, R>,
    watch: Watch,
    /// Taken from the beginning, until it is parked for the first time.
    seat: Option<Step<R::Input, R::Output>>,
    is_over: bool,
}

enum Work<'a, R: Runnable> {
    Due(Held<'a, R>),
    Doing(BoxFuture<'a, Result<R::Output>>),
    Over,
}

/// Begins a run. Nothing has been emitted yet.
pub(crate) fn conduct<R: Runnable>(mut plan: Plan<'_, R>) -> Result<Conducted<'_, R>> {
    let run: Begun<R> = calm(|| plan.begin())?.into();
    let mut watch = Watch::default();
    if let Some(signal) = plan.signal.take() {
        watch.add(signal, &run);
    }
    // Where it has its input already, there is nothing to bind, and nobody to tell.
    let seat = match plan.input {
        None => Step::Working(None),
        Some(_) => run.inside(|| start(&mut plan, &run, &mut watch)),
    };
    Ok(Conducted { run, work: Work::Due(plan.runnable), watch, seat: Some(seat), is_over: false })
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

/// The run's own listeners and limits, then middlewares: those of the runs above, the instance's, the run's.
fn bind<R: Runnable>(plan: &mut Plan<'_, R>, ctx: &RunContext, watch: &mut Watch) -> Result<()> {
    plan.listen(ctx)?;
    plan.limit(ctx, watch)?;
    // As the run found them: what is bound below adds to those of the runs in it.
    let inherited = ctx.extension::<Inherited>();
    let inherited = inherited.iter().flat_map(|inherited| &inherited.0);
    let bind_all = || {
        let middlewares = in_order(inherited.chain(plan.middlewares()))?;
        middlewares.iter().try_for_each(|middleware| middleware.bind(ctx))?;
        // Its clone is user code too.
        plan.input.iter().for_each(|input| ctx.slot().start(input, &middlewares));
        Ok(())
    };
    calm(bind_all)
}

/// Calls user code; a panic is an error like others.
pub(crate) fn calm<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(Error::of_panic(&*panic)))
}

impl<R: Runnable> Conducted<'_, R> {
    /// Goes on, inside of the run (R9, R12).
    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<R::Output>> {
        let Self { run, work, watch, seat, is_over } = self;
        let polled = run.inside(|| {
            let taken = seat.take().map_or_else(|| run.typed_life().seat.take(Who::Own, cx.waker()), Taken::Seat);
            match taken {
                Taken::Seat(seat) => run.advance(seat, Who::Own, cx, |cx, early| work.poll(run, watch, early, cx)),
                Taken::ByOther => Poll::Pending,
                Taken::Over(result) => Poll::Ready(ended_by_other(run, work, result)),
            }
        });
        if polled.is_ready() {
            *is_over = true;
            // Nobody but the run above can be waiting for it.
            if run.parent().is_some() {
                run.typed_life().seat.over(None);
            }
        }
        polled
    }
}

/// The run above has ended, and this one with it (R13).
fn ended_by_other<R: Runnable>(
    ctx: &RunContext,
    work: &mut Work<'_, R>,
    result: Option<Result<R::Output>>,
) -> Result<R::Output> {
    work.leave();
    let stopped = || Err(ctx.node().stopped().map_or_else(|| Error::new("the run is over"), Stop::error));
    result.unwrap_or_else(stopped)
}

impl<R: Runnable> Work<'_, R> {
    /// Looked at before the work is begun, and each time before and after it is polled: an aborted run's is dropped (R7).
    fn poll(
        &mut self,
        run: &Begun<R>,
        watch: &mut Watch,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        let looked = watch.look(run.node(), cx);
        let mut polled = looked.map_or_else(|error| Poll::Ready(Err(error)), |()| Self::stopped(run));
        if polled.is_pending() {
            polled = self.poll_unstopped(run, early, cx);
            if let Poll::Ready(result) = &polled
                && run.slot().existing().is_none()
            {
                // Where there is a chain, that has shown each of its attempts.
                run.show_attempt(result);
            }
        }
        if polled.is_pending() {
            run.node().waker().register(cx.waker());
            polled = Self::stopped(run);
        }
        if polled.is_ready() {
            // Inside of the run: what it started and has not ended ends with it.
            let dropped = self.let_go();
            return polled.map(|result| result.and_then(|output| dropped.map(|()| output)));
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
            tracing::warn!(error = %error, "the work of a run panicked while it was dropped");
        }
    }

    fn stopped(run: &Begun<R>) -> Poll<Result<R::Output>> {
        run.node().stopped().map_or(Poll::Pending, |stop| Poll::Ready(Err(stop.error())))
    }
}

impl<'a, R: Runnable> Work<'a, R> {
    fn poll_unstopped(
        &mut self,
        run: &Begun<R>,
        early: &mut Option<R::Output>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<R::Output>> {
        if run.slot().existing().is_none()
            && let Some(output) = early.take()
        {
            return Poll::Ready(Ok(output));
        }
        if let Work::Due(_) = self
            && let Work::Due(runnable) = std::mem::replace(self, Work::Over)
        {
            *self = Work::Doing(work(runnable, run.clone(), early.take()));
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
    early: Option<R::Output>,
) -> BoxFuture<'a, Result<R::Output>> {
    if run.slot().existing().is_some() {
        return Box::pin(contained(async move { through(&*runnable, &run, early).await }));
    }
    run.slot().close();
    Box::pin(contained(async move { runnable.execute(run.input(), &run).await }))
}

async fn through<R: Runnable>(runnable: &R, run: &Begun<R>, early: Option<R::Output>) -> Result<R::Output> {
    match run.slot().existing_of() {
        Some(chain) => attempts(chain, runnable, run.input(), early, run).await,
        None => runnable.execute(run.input(), run).await,
    }
}

/// Not an `async fn`: that would hold its work twice, as what it is given and as what it awaits.
fn contained<O>(work: impl Future<Output = Result<O>>) -> impl Future<Output = Result<O>> {
    let flat = |caught: std::thread::Result<_>| caught.unwrap_or_else(|panic| Err(Error::of_panic(&*panic)));
    AssertUnwindSafe(work).catch_unwind().map(flat)
}

impl<R: Runnable> Drop for Conducted<'_, R> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let Self { run, work, seat, .. } = self;
        run.node().stop(Stop::Dropped);
        run.inside(|| work.leave());
        if let Some(seat) = seat.take() {
            run.typed_life().seat.park(seat, Who::Own, std::task::Waker::noop());
        }
        supervise(run);
    }
}
