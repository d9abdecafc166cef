//! What a run is while it lasts, shared by all who may bring it to its end (R4, R8, R13).
//!
//! A run has two halves: its *work*, which only the run's own future has and polls, and its *announcer*, the future that
//! emits its events, which anybody can poll to the end without the work. So whoever ends a run, its own future, its
//! drop, the run above or a supervised task, goes through the same sequence.
//!
//! 1. Whoever polls a run has taken its seat; nobody else touches the announcer meanwhile.
//! 2. Nothing is polled under the lock.
//! 3. A seat is `Over` once, for good: after the run has ended.
//! 4. Once somebody else has asked for the seat, the run's own future does not get it again; once the run is supervised,
//!    neither does the run above. Whoever cannot have it is woken when it can, or when the run is over.

use std::any::Any;
use std::future::poll_fn;
use std::sync::OnceLock;
use std::task::{Context as TaskContext, Poll, Waker};

use emitree_emitter::Delivery;
use futures_core::future::BoxFuture;
use parking_lot::Mutex;

use crate::announce;
use crate::context::Typed;
use crate::lifecycle::{Data, Stages};
use crate::{Error, Result, RunContext};

/// The part of a run that knows its types.
pub(crate) struct Life<I, O> {
    pub(crate) stages: &'static Stages,
    /// As `start` left it: known before the work begins, or the run ends.
    input: Input<I>,
    pub(crate) delivery: Delivery,
    state: Mutex<State<O>>,
}

enum Input<I> {
    /// Nobody was asked about it.
    Known(I),
    Later(OnceLock<I>),
}

/// The announcer: everything of a run but its work, to the run's result.
pub(crate) type Announcer<O> = BoxFuture<'static, Result<O>>;

/// What passes between the announcer and the work.
enum Handoff<O> {
    Nothing,
    /// `start` has been emitted: the work is due, or this answers for it (R5).
    Due(Option<O>),
    Done(Result<O>),
}

struct State<O> {
    seat: Seat<O>,
    /// Who gets it at least.
    lowest: Who,
    waiting: Vec<Waiting>,
    /// What the announcer waits for, once `start` has been emitted.
    handoff: Handoff<O>,
}

/// Who is woken when the run is over, if not before, when the seat is free.
struct Waiting {
    who: Who,
    for_seat: bool,
    waker: Waker,
}

impl<O> State<O> {
    fn wait(&mut self, who: Who, for_seat: bool, waker: &Waker) {
        // Of the run's own future, the last waker counts.
        let same = |waiting: &&mut Waiting| waiting.who == who && (who == Who::Own || waiting.waker.will_wake(waker));
        match self.waiting.iter_mut().find(same) {
            Some(waiting) => {
                waiting.for_seat |= for_seat;
                waiting.waker.clone_from(waker);
            }
            None => self.waiting.push(Waiting { who, for_seat, waker: waker.clone() }),
        }
    }
}

enum Seat<O> {
    Taken,
    Free(Progress<O>),
    /// With the result, if nobody has fetched it.
    Over(Option<Result<O>>),
}

/// How far a run has come.
pub(crate) struct Progress<O> {
    pub(crate) step: Step<O>,
    /// None while nobody hears the run, who does not listen to it need not be told.
    pub(crate) announcer: Option<Announcer<O>>,
}

pub(crate) enum Step<O> {
    Starting,
    /// With the answer that was set at the start, until the work begins.
    Working(Option<O>),
    Ending,
}

/// Who asks for the seat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// The run's own future.
    Own,
    /// The run above, which ends.
    Above,
    /// The task that ends it, or whoever has no more patience.
    Supervisor,
}

pub(crate) enum Taken<O> {
    Seat(Progress<O>),
    ByOther,
    Over(Option<Result<O>>),
}

/// What has come of ending a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drive {
    Over,
    Pending,
    /// Somebody else does it, and wakes who asked when there is something to do.
    Elsewhere,
}

impl<I: Data, O: Data> Life<I, O> {
    /// A run whose seat is taken by who makes it. Its input is known if nobody will be asked about it.
    pub(crate) fn new(stages: &'static Stages, input: Option<I>) -> Self {
        Self {
            stages,
            input: input.map_or_else(|| Input::Later(OnceLock::new()), Input::Known),
            delivery: Delivery::new(),
            state: Mutex::new(State {
                seat: Seat::Taken,
                lowest: Who::Own,
                waiting: Vec::new(),
                handoff: Handoff::Nothing,
            }),
        }
    }

    pub(crate) fn take(&self, who: Who, waker: &Waker) -> Taken<O> {
        let mut state = self.state.lock();
        let outranked = who < state.lowest;
        state.lowest = state.lowest.max(who.min(Who::Above));
        match std::mem::replace(&mut state.seat, Seat::Taken) {
            Seat::Over(result) => Taken::Over(result),
            Seat::Free(progress) if !outranked => Taken::Seat(progress),
            seat => {
                state.seat = seat;
                state.wait(who, !outranked, waker);
                Taken::ByOther
            }
        }
    }

    /// Gives the seat up, with the run not over.
    pub(crate) fn park(&self, progress: Progress<O>, who: Who, waker: &Waker) {
        let woken: Vec<_> = {
            let mut state = self.state.lock();
            state.seat = Seat::Free(progress);
            let woken = state.waiting.extract_if(.., |waiting| waiting.for_seat).collect();
            state.wait(who, false, waker);
            woken
        };
        woken.into_iter().for_each(|waiting: Waiting| waiting.waker.wake());
    }

    /// Gives the seat up for good.
    pub(crate) fn over(&self, result: Option<Result<O>>) {
        let woken = {
            let mut state = self.state.lock();
            state.seat = Seat::Over(result);
            std::mem::take(&mut state.waiting)
        };
        woken.into_iter().for_each(|waiting| waiting.waker.wake());
    }

    /// What the work gets; none before it is due.
    pub(crate) fn input(&self) -> Option<&I> {
        match &self.input {
            Input::Known(input) => Some(input),
            Input::Later(input) => input.get(),
        }
    }

    /// Says what the work gets, once.
    pub(crate) fn set_input(&self, input: I) {
        if let Input::Later(later) = &self.input {
            later.set(input).ok();
        }
    }

    /// Waits, in the announcer, until somebody has brought the work to its end.
    pub(crate) async fn work(&self, early: Option<O>) -> Result<O> {
        self.state.lock().handoff = Handoff::Due(early);
        poll_fn(|_| {
            let mut state = self.state.lock();
            match std::mem::replace(&mut state.handoff, Handoff::Nothing) {
                Handoff::Done(result) => Poll::Ready(result),
                waiting => {
                    state.handoff = waiting;
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The announcer waits for the work: gives what answers for it.
    fn due(&self) -> Option<Option<O>> {
        match &mut self.state.lock().handoff {
            Handoff::Due(early) => Some(early.take()),
            Handoff::Nothing | Handoff::Done(_) => None,
        }
    }
}

impl<I: Data, O: Data> Typed<I, O> {
    /// Goes on as far as it can: announces, works if `work` does, announces. Gives the result, or parks.
    pub(crate) fn advance(
        &self,
        mut progress: Progress<O>,
        who: Who,
        cx: &mut TaskContext<'_>,
        mut work: impl FnMut(&mut TaskContext<'_>, &mut Option<O>) -> Poll<Result<O>>,
    ) -> Poll<Result<O>> {
        loop {
            let polled = match &mut progress.step {
                Step::Working(early) => work(cx, early).map(|result| self.worked(&mut progress, result)),
                Step::Starting | Step::Ending => self.announce(&mut progress, cx),
            };
            match polled {
                Poll::Pending => {
                    self.typed_life().park(progress, who, cx.waker());
                    return Poll::Pending;
                }
                Poll::Ready(None) => {}
                Poll::Ready(Some(result)) => return Poll::Ready(result),
            }
        }
    }

    /// Polls the announcer: to the result, or to where the work is due.
    fn announce(&self, progress: &mut Progress<O>, cx: &mut TaskContext<'_>) -> Poll<Option<Result<O>>> {
        let Some(announcer) = &mut progress.announcer else { return Poll::Pending };
        if let Poll::Ready(result) = announcer.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        match (&progress.step, self.typed_life().due()) {
            (Step::Starting, Some(early)) => {
                progress.step = Step::Working(early);
                Poll::Ready(None)
            }
            _ => Poll::Pending,
        }
    }

    /// The work is over: hands the result to the announcer, if there is one or somebody has begun to listen.
    fn worked(&self, progress: &mut Progress<O>, result: Result<O>) -> Option<Result<O>> {
        progress.step = Step::Ending;
        if progress.announcer.is_some() {
            self.typed_life().state.lock().handoff = Handoff::Done(result);
            return None;
        }
        match announce::end_unheard(self, result) {
            Ok(result) => Some(result),
            Err(result) => {
                progress.announcer = Some(Box::pin(announce::end(self.clone(), result)));
                None
            }
        }
    }
}

/// What can be done with a run whose types are not known.
pub(crate) trait AnyLife: Any + Send + Sync {
    /// Brings the run to its end without its work: as far as that can be done now.
    fn drive(&self, run: &RunContext, who: Who, cx: &mut TaskContext<'_>) -> Drive;

    /// From now on a task brings it to its end.
    fn supervised(&self);

    fn delivery(&self) -> &Delivery;

    /// What the work gets, if that is known yet.
    fn any_input(&self) -> Option<&dyn Any>;
}

impl<I: Data, O: Data> AnyLife for Life<I, O> {
    fn supervised(&self) {
        self.state.lock().lowest = Who::Supervisor;
    }

    fn drive(&self, run: &RunContext, who: Who, cx: &mut TaskContext<'_>) -> Drive {
        let run: Typed<I, O> = run.clone().typed();
        let progress = match self.take(who, cx.waker()) {
            Taken::Seat(progress) => progress,
            Taken::ByOther => return Drive::Elsewhere,
            Taken::Over(result) => {
                self.over(result);
                return Drive::Over;
            }
        };
        let stopped = |_: &mut TaskContext<'_>, _: &mut Option<O>| {
            let error = run.node().stopped().map_or_else(|| Error::new("the run was left"), |stop| stop.error());
            Poll::Ready(Err(error))
        };
        match run.advance(progress, who, cx, stopped) {
            Poll::Pending => Drive::Pending,
            Poll::Ready(result) => {
                self.over(Some(result));
                Drive::Over
            }
        }
    }

    fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    fn any_input(&self) -> Option<&dyn Any> {
        self.input().map(|input| input as &dyn Any)
    }
}
