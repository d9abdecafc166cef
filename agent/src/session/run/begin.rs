//! How a run, and each attempt of it, begins: with its input, or with what an earlier run has left.

use std::sync::Arc;

use emitree_runtime::{Error, Result, RunContext};
use uuid::Uuid;

use crate::message::history::check;
use crate::message::{Message, Role};
use crate::session::fold::Conversation;
use crate::session::fold::runs::Once;
use crate::session::log::{Live, LogState};
use crate::session::record::{Record, TurnAt};
use crate::session::run::{Begun, SessionRun, millis_now};
use crate::{ChatOptions, Turn};

/// How an attempt begins.
pub(crate) struct Begins<'a> {
    pub(crate) ctx: &'a RunContext,
    pub(crate) messages: Vec<Arc<Message>>,
    pub(crate) options: &'a ChatOptions,
    /// `true` if the run goes on with what the session has left open.
    pub(crate) resumes: bool,
    /// `true` for an agent below a call that is made again: it may have its answer already.
    pub(crate) is_inside: bool,
    /// The id with which several processes ask for the run.
    pub(crate) once: Option<String>,
}

/// The beginning of a resumed run.
pub(crate) enum Resumed {
    /// A run that has ended without returning an answer, or the attempt before.
    Run { run: Uuid, turn: Turn, answer: Option<Arc<Message>> },
    /// Messages that no model has answered.
    Conversation,
    /// A conversation that ends with this answer.
    Ended(Arc<Message>),
}

impl SessionRun {
    /// Begins an attempt: adds the messages of the input, or takes over what an earlier run has left. Another attempt undoes
    /// the one before. Returns `None` for an input.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if the messages are not valid, if there is nothing to do, if another run has
    /// the turn in hand, or if the state of a middleware cannot be serialized.
    pub(crate) fn begin(&self, begins: Begins<'_>) -> Result<Option<Resumed>> {
        check(&begins.messages)?;
        let is_first = self.begun.get().is_none();
        if is_first || self.keeps_turn() {
            self.session.log.sync(self.view())?;
        }
        let mut state = self.lock();
        if is_first {
            return self.begin_first(&mut state, begins);
        }
        let resumed = self.begin_again(&mut state, begins)?;
        let known = state.session(self.view()).state.clone();
        drop(state);
        self.slices().restore(&known);
        Ok(resumed)
    }

    fn keeps_turn(&self) -> bool {
        let state = self.lock();
        self.number(&state).is_some_and(|run| state.session(self.view()).keeps_turn(run))
    }

    fn begin_first(&self, state: &mut LogState, begins: Begins<'_>) -> Result<Option<Resumed>> {
        let Begins { ctx, messages, options, resumes, is_inside, once } = begins;
        let session = state.session(self.view());
        let resumed = if resumes { Some(self.find_left(session)?) } else { None };
        if !resumes && messages.is_empty() && session.messages.is_empty() && !self.has_waiting() {
            return Err(no_messages(ctx));
        }
        if !is_inside && matches!(resumed, Some(Resumed::Ended(_))) {
            return Ok(resumed);
        }
        let options = (*options != ChatOptions::default()).then(|| Box::new(options.clone()));
        self.push_began(state, ctx, options, resumes, once)?;
        if let Some(live) = self.live(state) {
            live.ctx = Some(ctx.clone());
        }
        self.say(state, messages);
        match resumed {
            Some(Resumed::Run { run: id, turn, .. }) => {
                Ok(Some(Resumed::Run { run: id, turn, answer: self.take_held(state) }))
            }
            Some(Resumed::Ended(answer)) => {
                let span = state.session(self.view()).spans.last();
                let turn = span.and_then(|span| span.turn.or(span.behind));
                if let (Some(turn), Some(live)) = (turn, self.live(state)) {
                    live.last_turn = turn;
                }
                Ok(Some(Resumed::Ended(answer)))
            }
            resumed => Ok(resumed),
        }
    }

    /// Begins the run. A run that resumes keeps the id with which the earlier one was asked for.
    fn push_began(
        &self,
        state: &mut LogState,
        ctx: &RunContext,
        options: Option<Box<ChatOptions>>,
        resumes: bool,
        once: Option<String>,
    ) -> Result<()> {
        let run = state.session(self.view()).begun;
        let epoch = state.epoch;
        let once = once.filter(|_| !resumes);
        let began = Record::Began { run, id: ctx.run_id(), once, options, resumes };
        state.push(self.view(), began).map_err(Error::new)?;
        _ = self.begun.set(Begun { run, epoch });
        if let Some(local) = state.local(self.view()) {
            local.live.push(Live { number: run, epoch, ..Live::default() });
        }
        Ok(())
    }

    /// Returns the state of a run that several processes ask for, and its answer.
    pub(crate) fn once(&self, id: &str) -> (Once, Option<Arc<Message>>) {
        let state = self.lock();
        let session = state.session(self.view());
        let once = session.once(id);
        let answer = match once {
            Once::Ended(turn) => session.answer_at(turn).map(|(_, at)| Arc::clone(&session.messages[at])),
            _ => None,
        };
        (once, answer)
    }

    /// Returns what an earlier run has left.
    fn find_left(&self, session: &Conversation) -> Result<Resumed> {
        if let Some(stopped) = session.stopped.and_then(|run| session.find_run(run)) {
            if stopped.undo.is_some() {
                // Another attempt may follow.
                return Err(Error::new(format!("the session cannot be resumed: the run {} has not ended", stopped.id)));
            }
            return Ok(Resumed::Run { run: stopped.id, turn: stopped.counts, answer: None });
        }
        if let Some(other) = session.runs.iter().find(|run| run.is_live()) {
            return Err(Error::new(format!(
                "the session cannot be resumed: the run {} is using it, and has its turn in hand",
                other.id
            )));
        }
        let is_over = !session.inbox.iter().any(|waiting| waiting.sent.message().is_some());
        match session.messages.last() {
            Some(last) if last.role == Role::Assistant && is_over => Ok(Resumed::Ended(Arc::clone(last))),
            None if is_over => Err(Error::new("the session cannot be resumed: it has no messages")),
            _ => Ok(Resumed::Conversation),
        }
    }

    /// Returns the answer that the run holds, and its turn.
    pub(super) fn held(&self, state: &LogState) -> Option<(u64, Arc<Message>)> {
        let turn = self.find(state)?.answer.as_ref()?.turn;
        let session = state.session(self.view());
        session.answer_at(turn).map(|(_, at)| (turn, Arc::clone(&session.messages[at])))
    }

    fn begin_again(&self, state: &mut LogState, begins: Begins<'_>) -> Result<Option<Resumed>> {
        let Begins { ctx, messages, resumes, .. } = begins;
        let lost = || Error::new("another process has changed the session, so the run cannot go on");
        let run = self.number(state).ok_or_else(lost)?;
        let keeps = state.session(self.view()).keeps_turn(run);
        state.push(self.view(), Record::Again { run }).map_err(Error::new)?;
        let mut had_answered = false;
        if let Some(live) = self.live(state) {
            live.ctx = Some(ctx.clone());
            live.taken.clear();
            live.replaced.clear();
            had_answered = std::mem::take(&mut live.has_answered);
            if !keeps {
                live.added.clear();
            }
        }
        if !resumes {
            self.say(state, messages);
            return Ok(None);
        }
        let turn = self.find(state).map(|run| run.counts).unwrap_or_default();
        if had_answered {
            return Ok(Some(Resumed::Conversation));
        }
        Ok(Some(Resumed::Run { run: ctx.run_id(), turn, answer: self.take_held(state) }))
    }

    /// Takes over the answer that an earlier run has not returned. If it was not in the history, this attempt adds it.
    fn take_held(&self, state: &mut LogState) -> Option<Arc<Message>> {
        let (turn, message) = self.held(state)?;
        let taken = self.find(state).and_then(|run| run.undo.as_ref()?.held.as_ref());
        if taken.is_some_and(|held| held.message.is_some()) {
            self.add(state, vec![Arc::clone(&message)]);
        }
        self.live(state).into_iter().for_each(|live| live.last_turn = turn);
        Some(message)
    }

    /// Adds the question and the answer of a layer that has answered instead of the loop.
    ///
    /// # Errors
    ///
    /// Returns an error if the messages are not valid.
    pub(crate) fn answer_instead(
        &self,
        ctx: &RunContext,
        messages: Vec<Arc<Message>>,
        once: Option<String>,
        resumes: bool,
    ) -> Result<()> {
        check(&messages)?;
        if !self.has_begun() {
            self.session.log.sync(self.view())?;
        }
        let state = &mut *self.lock();
        if !self.has_begun() {
            self.push_began(state, ctx, None, resumes, once)?;
        }
        let Some(run) = self.number(state) else { return Ok(()) };
        let turn = TurnAt { number: state.session(self.view()).turns + 1, at: millis_now() };
        let said = Record::Said { run: Some(run), messages: messages.clone(), turn: Some(turn) };
        if self.push_of(state, said) {
            self.add(state, messages);
        }
        Ok(())
    }
}

pub(crate) fn no_messages(ctx: &RunContext) -> Error {
    Error::new(format!("the input of the agent `{}` has no messages", ctx.name()))
}
