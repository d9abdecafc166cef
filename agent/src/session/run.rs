//! The session of one run: what the run changes, and how that is undone.

use std::future::ready;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use emitree_runtime::{Error, Result, RunContext};
use futures_core::future::BoxFuture;
use rust_decimal::Decimal;
use serde_json::Value;
use uuid::Uuid;

use crate::message::history::{History, HistoryError, check};
use crate::message::{Message, Role};
use crate::place::state::Slices;
use crate::session::Session;
use crate::session::entry::SessionEntry;
use crate::session::fold::runs::{Once, Run};
use crate::session::fold::turn::OpenTurn;
use crate::session::fold::{Conversation, Waiting};
use crate::session::log::{Live, Local, Locked, LogState, View};
use crate::session::record::{Input, Record, TurnAt};
use crate::session::turn::{By, Closed, LiveTurn};
use crate::{ChatOptions, Turn, Usage};

/// The session of one run.
#[derive(Debug)]
pub(crate) struct SessionRun {
    session: Session,
    /// Set once the run has begun to use the session.
    begun: OnceLock<Begun>,
    /// The number of the current attempt, counted from 1; 0 before the first attempt.
    attempt: AtomicU32,
    /// The counts of a run that is over, or that a test has set.
    last: OnceLock<Turn>,
}

#[derive(Debug)]
struct Begun {
    run: u32,
    epoch: u32,
}

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

/// A value for a middleware that an attempt has taken.
pub(crate) struct TakenValue {
    number: u64,
    pub(crate) to: Arc<str>,
    pub(crate) value: Value,
}

impl SessionRun {
    pub(crate) const fn new(session: Session) -> Self {
        Self { session, begun: OnceLock::new(), attempt: AtomicU32::new(0), last: OnceLock::new() }
    }

    pub(crate) const fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.attempt.load(Ordering::SeqCst)
    }

    /// Counts another attempt, and returns its number.
    pub(crate) fn next_attempt(&self) -> u32 {
        self.attempt.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn history(&self) -> History {
        self.session.history()
    }

    pub(crate) fn slices(&self) -> &Slices {
        &self.session.view.slices
    }

    fn lock(&self) -> Locked<'_> {
        self.session.log.lock()
    }

    fn view(&self) -> &View {
        &self.session.view
    }

    /// Returns the number of the run, if it has begun, and no other process has changed the session since then.
    fn number(&self, state: &LogState) -> Option<u32> {
        self.begun.get().filter(|begun| begun.epoch == state.epoch).map(|begun| begun.run)
    }

    /// Returns the run in its session.
    fn find<'a>(&self, state: &'a LogState) -> Option<&'a Run> {
        state.session(self.view()).find_run(self.number(state)?)
    }

    /// Returns what only this process knows about the run.
    fn live<'a>(&self, state: &'a mut LogState) -> Option<&'a mut Live> {
        let run = self.number(state)?;
        state.local(self.view())?.live(run)
    }

    /// Changes the session for an attempt, unless another attempt has begun or the attempt has ended (A7). Another attempt
    /// first counts itself, and then undoes the attempt before under the same lock.
    fn push(&self, state: &mut LogState, attempt: u32, record: impl FnOnce(u32) -> Record) -> bool {
        let Some(run) = self.find(state).filter(|run| run.is_live()).map(|run| run.number) else { return false };
        attempt == self.attempt() && self.push_of(state, record(run))
    }

    fn push_of(&self, state: &mut LogState, record: Record) -> bool {
        let refused = state.push(self.view(), record).err();
        refused.iter().for_each(|fault| tracing::error!(fault, "a change of a session was refused"));
        debug_assert_eq!(refused, None, "the record of a run under way fits");
        refused.is_none()
    }

    /// Returns the counts of the run.
    pub(crate) fn turn(&self) -> Turn {
        let counts = self.find(&self.lock()).map(|run| run.counts);
        counts.or_else(|| self.last.get().copied()).unwrap_or_default()
    }

    /// Sets the counts of a run that does not begin, for a test of hooks.
    pub(crate) fn set_turn(&self, turn: Turn) {
        _ = self.last.set(turn);
    }

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
        let (run, epoch) = (session.begun, state.epoch);
        let options = (*options != ChatOptions::default()).then(|| Box::new(options.clone()));
        let once = once.filter(|_| !resumes);
        let began = Record::Began { run, id: ctx.run_id(), once, options, resumes };
        state.push(self.view(), began).map_err(Error::new)?;
        _ = self.begun.set(Begun { run, epoch });
        if let Some(local) = state.local(self.view()) {
            local.live.push(Live { number: run, epoch, ctx: Some(ctx.clone()), ..Live::default() });
        }
        self.say(state, messages);
        match resumed {
            Some(Resumed::Run { run: id, turn, .. }) => {
                Ok(Some(Resumed::Run { run: id, turn, answer: self.take_held(state) }))
            }
            Some(Resumed::Ended(answer)) => {
                let session = state.session(self.view());
                let span = session.spans.last().and_then(|span| span.turn.or(span.behind));
                span.into_iter().for_each(|turn| self.live(state).into_iter().for_each(|live| live.last_turn = turn));
                Ok(Some(Resumed::Ended(answer)))
            }
            resumed => Ok(resumed),
        }
    }

    /// Returns what is known of a run that several processes ask for, with its answer.
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
    fn held(&self, state: &LogState) -> Option<(u64, Arc<Message>)> {
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

    fn say(&self, state: &mut LogState, messages: Vec<Arc<Message>>) {
        if messages.is_empty() {
            return;
        }
        let said = |run| Record::Said { run: Some(run), messages: messages.clone(), turn: None };
        if self.push(state, self.attempt(), said) {
            self.add(state, messages);
        }
    }

    /// Ends an attempt of the run. Unless the run has an answer, the session keeps where it stopped.
    pub(crate) fn leave(&self, attempt: u32, answered: bool) {
        let ctx = {
            let state = &mut *self.lock();
            if attempt != self.attempt() {
                return;
            }
            self.push(state, attempt, |run| Record::Left { run, answered });
            self.live(state).and_then(|live| {
                live.taken.clear();
                live.has_answered = answered;
                live.ctx.take()
            })
        };
        // A context may call user code when it is dropped.
        drop(ctx);
    }

    /// Ends the run: nothing of it can be undone any more. An answer that it has not returned leaves the history, and a
    /// resume returns it (A26).
    pub(crate) fn end(&self, returned: bool) {
        let ctx = {
            let state = &mut *self.lock();
            let Some(run) = self.find(state).filter(|run| run.undo.is_some()) else { return };
            _ = self.last.set(run.counts);
            let run = run.number;
            self.push_of(state, Record::Over { run, returned });
            self.live(state).and_then(|live| live.ctx.take())
        };
        drop(ctx);
    }

    /// The end of the run was not stored, so a resume returns the answer.
    pub(crate) fn take_back(&self) {
        let state = &mut *self.lock();
        if let Some(run) = self.find(state).filter(|run| run.undo.is_none() && run.answer.is_some()) {
            let run = run.number;
            self.push_of(state, Record::NotReturned { run });
        }
    }

    /// Returns `true` if the run is over, and has returned its answer.
    pub(crate) fn has_returned(&self) -> bool {
        let state = self.lock();
        let Some(number) = self.number(&state) else { return false };
        let stopped = state.session(self.view()).stopped;
        stopped != Some(number) && self.find(&state).is_none_or(|run| run.undo.is_none())
    }

    /// Returns `true` if the run has begun to use the session.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.get().is_some()
    }

    /// Another attempt goes back to the state and the counts of now.
    ///
    /// # Errors
    ///
    /// Returns an error if the state of a middleware cannot be serialized.
    pub(crate) fn keep(&self) -> Result<()> {
        self.session.log.sync(self.view())?;
        self.push(&mut self.lock(), self.attempt(), |run| Record::Kept { run });
        Ok(())
    }

    /// Returns the options of the run that has stopped, or of the attempt before.
    pub(crate) fn stopped_options(&self) -> Option<ChatOptions> {
        let state = self.lock();
        let session = state.session(self.view());
        let run = self.find(&state).or_else(|| session.stopped.and_then(|run| session.find_run(run)))?;
        Some(run.options.as_deref().cloned().unwrap_or_default())
    }

    /// Returns the history before the turn whose calls are being made.
    pub(crate) fn history_before_turn(&self) -> History {
        let state = self.lock();
        let session = state.session(self.view());
        let open = self.find(&state).and_then(|run| run.open.as_ref());
        let at = open.filter(|open| open.is_placed).and_then(|open| session.turn_at(open.number));
        let at = at.map_or(session.messages.len(), |(_, at)| at);
        History(Arc::new(session.messages[..at].to_vec()))
    }

    /// Returns the messages that the current attempt added, in order.
    pub(crate) fn added(&self) -> Vec<Arc<Message>> {
        self.added_after(0)
    }

    /// Returns the number of messages that the current attempt added.
    pub(crate) fn count_added(&self) -> usize {
        self.live(&mut self.lock()).map_or(0, |live| live.added.len())
    }

    /// Returns the messages that the current attempt added, in order, without the first `known` messages.
    pub(crate) fn added_after(&self, known: usize) -> Vec<Arc<Message>> {
        self.live(&mut self.lock()).and_then(|live| live.added.get(known..).map(<[_]>::to_vec)).unwrap_or_default()
    }

    /// Notes messages that the current attempt has added.
    pub(super) fn add(&self, state: &mut LogState, messages: Vec<Arc<Message>>) {
        if let Some(live) = self.live(state) {
            live.added.extend(messages);
        }
    }

    /// Notes results of an earlier run that this run has replaced.
    pub(super) fn note_replaced(&self, state: &mut LogState, replaced: Vec<(Arc<Message>, Arc<Message>)>) {
        if let Some(live) = self.live(state) {
            live.replaced.extend(replaced);
        }
    }

    /// Takes the results of an earlier run that this run has replaced, with the results in their places.
    pub(crate) fn take_replaced(&self) -> Vec<(Arc<Message>, Arc<Message>)> {
        self.live(&mut self.lock()).map(|live| std::mem::take(&mut live.replaced)).unwrap_or_default()
    }

    /// Appends messages as [`History::extend`] does.
    pub(crate) fn extend(&self, messages: impl IntoIterator<Item = Message>) -> std::result::Result<(), HistoryError> {
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        check(&messages)?;
        self.say(&mut self.lock(), messages);
        Ok(())
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
            let (run, epoch) = (state.session(self.view()).begun, state.epoch);
            let once = once.filter(|_| !resumes);
            let began = Record::Began { run, id: ctx.run_id(), once, options: None, resumes };
            state.push(self.view(), began).map_err(Error::new)?;
            _ = self.begun.set(Begun { run, epoch });
            if let Some(local) = state.local(self.view()) {
                local.live.push(Live { number: run, epoch, ..Live::default() });
            }
        }
        let Some(run) = self.number(state) else { return Ok(()) };
        let turn = TurnAt { number: state.session(self.view()).turns + 1, at: millis_now() };
        let said = Record::Said { run: Some(run), messages: messages.clone(), turn: Some(turn) };
        if self.push_of(state, said) {
            self.add(state, messages);
        }
        Ok(())
    }

    /// Replaces the answer that the run holds. Returns `false`, and changes nothing, if the history does not have it any
    /// more. The new message must have the same tool calls.
    pub(crate) fn replace_answer(&self, message: &Arc<Message>, withheld: bool) -> bool {
        let state = &mut *self.lock();
        if self.held(state).is_none() {
            return false;
        }
        let Some(run) = self.number(state) else { return false };
        let replaced = self.push_of(state, Record::Replaced { run, message: Arc::clone(message), withheld });
        let added = self.live(state).and_then(|live| live.added.iter_mut().rfind(|one| one.role == Role::Assistant));
        added.into_iter().for_each(|added| added.clone_from(message));
        replaced
    }

    /// The run would end with the last message of its last turn.
    pub(crate) fn hold_answer(&self) {
        let state = &mut *self.lock();
        let Some(turn) = self.live(state).map(|live| live.last_turn) else { return };
        let is_held = self.find(state).and_then(|run| run.answer.as_ref()).is_some_and(|held| held.turn == turn);
        // A hook may have rewritten the turn.
        if !is_held && state.session(self.view()).answer_at(turn).is_some() {
            self.push(state, self.attempt(), |run| Record::Ends { run, turn });
        }
    }

    /// Returns the number of the turn that is about to be asked for.
    pub(crate) fn asked_turn(&self) -> u64 {
        self.find(&self.lock()).and_then(|run| run.asks).unwrap_or_default()
    }

    /// Numbers another turn: the model is about to be asked.
    pub(crate) fn ask(&self) {
        let at = millis_now();
        let state = &mut *self.lock();
        let turn = state.session(self.view()).turns + 1;
        self.push(state, self.attempt(), |run| Record::Asks { run, turn, at });
    }

    /// Counts a reply of the model.
    pub(crate) fn count_reply(&self, usage: Option<Usage>, cost: Option<Decimal>) {
        if usage.is_none() && cost.is_none() {
            return;
        }
        let state = &mut *self.lock();
        let Some(turn) = self.find(state).and_then(|run| run.asks) else { return };
        self.push(state, self.attempt(), |run| Record::Replied { run, turn, usage, cost });
    }

    /// Begins the turn of a response.
    pub(super) fn respond(&self, response: &Arc<Message>, unanswered: Option<String>) -> (By, u64) {
        let state = &mut *self.lock();
        let (attempt, epoch) = (self.attempt(), state.epoch);
        let (run, turn) = self.find(state).map_or((u32::MAX, 0), |run| (run.number, run.asks.unwrap_or_default()));
        let response = Arc::clone(response);
        self.push(state, attempt, |run| Record::Turn { run, turn, response, unanswered });
        self.live(state).into_iter().for_each(|live| live.last_turn = turn);
        (By { run, epoch, attempt }, turn)
    }

    /// Takes up the turn that an earlier run has left open, with its messages in the history.
    pub(super) fn take_open(&self) -> Option<(By, OpenTurn, Vec<Arc<Message>>)> {
        let state = &mut *self.lock();
        let (attempt, epoch) = (self.attempt(), state.epoch);
        let run = self.find(state)?;
        let (run, open) = (run.number, run.open.clone().filter(|open| open.is_resumed && !open.is_ended)?);
        let session = state.session(self.view());
        let (span, at) = session.turn_at(open.number)?;
        let before = session.messages[at..at + session.spans[span].len].to_vec();
        self.live(state).into_iter().for_each(|live| live.last_turn = open.number);
        Some((By { run, epoch, attempt }, open, before))
    }

    /// Lets interjections close the calls of a turn. One that waits does so at once.
    pub(super) fn listen(&self, turn: &Arc<LiveTurn>) -> Option<Closed> {
        let (state, view) = (&mut *self.lock(), self.view());
        state.local(view)?.turns.push(Arc::clone(turn));
        (self.has_waiting() && take_interjections(state, view, turn.by())).then(|| turn.close(state))
    }

    /// Notes the states of middlewares if the session keeps its records in memory. Otherwise, returns `None`.
    pub(crate) fn note_states(&self) -> Option<BoxFuture<'static, Result<()>>> {
        let log = &self.session.log;
        let keeps = log.lock().lines().is_some();
        keeps.then(|| Box::pin(ready(log.sync_all())) as BoxFuture<'static, Result<()>>)
    }

    /// Returns the entry of the session, or of the session above it.
    pub(crate) fn entry(&self) -> Option<&Arc<SessionEntry>> {
        self.session.log.entry()
    }

    /// Returns the entry of the session, unless it belongs to a session above.
    pub(crate) fn own_entry(&self) -> Option<&Arc<SessionEntry>> {
        self.entry().filter(|_| !self.view().is_below())
    }

    /// Returns `true` if a run has begun to use the session.
    pub(crate) fn is_used(&self) -> bool {
        let state = self.lock();
        let session = state.session(self.view());
        session.begun > 0 || !session.messages.is_empty()
    }

    /// Returns `true` if the inbox has messages, also those that another run has taken.
    pub(crate) fn has_waiting(&self) -> bool {
        self.view().has_waiting()
    }

    /// Returns `true` if the hooks of `agent.start` of this middleware were not called yet. From now on, they were.
    pub(crate) fn start(&self, middleware: &str) -> bool {
        let state = &mut *self.lock();
        state.local(self.view()).is_none_or(|local| local.started.insert(middleware.to_owned()))
    }

    /// The hooks of `agent.start` of this middleware are called again.
    pub(crate) fn undo_start(&self, middleware: &str) {
        let state = &mut *self.lock();
        state.local(self.view()).into_iter().for_each(|local| _ = local.started.remove(middleware));
    }

    /// Returns `true` if the session has a pause.
    pub(crate) fn is_paused(&self) -> bool {
        self.has_waiting() && self.lock().session(self.view()).paused.is_some()
    }

    /// Takes the pause of the session. Returns `false` if there is none.
    pub(crate) fn take_pause(&self) -> bool {
        if !self.has_waiting() {
            return false;
        }
        let state = &mut *self.lock();
        state.session(self.view()).paused.is_some() && self.push(state, self.attempt(), |run| Record::Stopped { run })
    }

    /// Takes messages of the inbox, and returns those that this attempt has taken.
    fn take<T>(&self, attempt: u32, mut take: impl FnMut(&Waiting) -> Option<T>) -> Vec<T> {
        let state = &mut *self.lock();
        let Some(run) = self.find(state).map(|run| run.number) else { return Vec::new() };
        let inbox: Vec<_> = state.session(self.view()).inbox.clone();
        let Some(local) = state.local(self.view()) else { return Vec::new() };
        let mut taken = Vec::new();
        for waiting in &inbox {
            if local.is_free(waiting.number, run)
                && let Some(value) = take(waiting)
            {
                claim(local, run, waiting.number, attempt);
                taken.push(value);
            }
        }
        taken
    }

    /// Takes the values for middlewares.
    pub(crate) fn take_values(&self, attempt: u32) -> Vec<TakenValue> {
        self.take(attempt, |waiting| match &waiting.sent {
            Input::Value { to, value } => {
                Some(TakenValue { number: waiting.number, to: Arc::clone(to), value: value.clone() })
            }
            _ => None,
        })
    }

    /// Removes a value with which the hooks of its middleware were called in an attempt.
    pub(crate) fn remove_value(&self, taken: &TakenValue, attempt: u32) {
        let state = &mut *self.lock();
        let numbers = vec![taken.number];
        if self.push(state, attempt, |run| Record::Taken { run, numbers, messages: Some(Vec::new()) }) {
            self.live(state).into_iter().for_each(|live| live.taken.retain(|(number, _)| *number != taken.number));
        }
    }

    /// Takes the messages that enter before a model call.
    pub(crate) fn take_steering(&self, attempt: u32) -> Vec<Arc<Message>> {
        self.take(attempt, |waiting| match &waiting.sent {
            Input::Steer(message) | Input::Interject(message) => Some(Arc::clone(message)),
            _ => None,
        })
    }

    /// Takes the messages that enter where the loop would end: those for the next model call, or else a follow-up.
    pub(crate) fn take_at_end(&self, attempt: u32) -> Vec<Arc<Message>> {
        let taken = self.take_steering(attempt);
        if !taken.is_empty() {
            return taken;
        }
        let mut has_one = false;
        self.take(attempt, |waiting| match &waiting.sent {
            Input::FollowUp(message) if !has_one => {
                has_one = true;
                Some(Arc::clone(message))
            }
            _ => None,
        })
    }

    /// Replaces the messages that an attempt has taken, in the inbox, by these messages, in the history. They must be
    /// valid by themselves.
    pub(crate) fn enter(&self, messages: Vec<Arc<Message>>, attempt: u32) {
        let state = &mut *self.lock();
        let Some(live) = self.live(state) else { return };
        let of_attempt = |taken: &&(u64, u32)| taken.1 == attempt;
        let numbers: Vec<_> = live.taken.iter().filter(of_attempt).map(|(number, _)| *number).collect();
        let inbox = &state.session(self.view()).inbox;
        let sent = inbox.iter().filter(|waiting| numbers.contains(&waiting.number));
        let is_as_sent = sent.filter_map(|waiting| waiting.sent.message()).eq(&messages);
        let record = |run| Record::Taken { run, numbers, messages: (!is_as_sent).then(|| messages.clone()) };
        if self.push(state, attempt, record) {
            self.live(state).into_iter().for_each(|live| live.taken.clear());
            self.add(state, messages);
        }
    }

    /// Frees the messages that an attempt has taken, and that it has not added.
    pub(crate) fn free_taken(&self, attempt: u32) {
        if self.has_waiting() {
            let state = &mut *self.lock();
            self.live(state).into_iter().for_each(|live| live.taken.retain(|(_, by)| *by != attempt));
        }
    }

    /// Returns the conversation for hooks that change it, and the number of its edits.
    pub(crate) fn read(&self) -> (History, u64) {
        let state = self.lock();
        let session = state.session(self.view());
        (History(Arc::clone(&session.messages)), session.edits.0)
    }

    /// Replaces the conversation that hooks have read with the changed conversation. Messages that another run has
    /// appended meanwhile stay, after the changed messages. Returns `false`, and changes nothing, if messages of the
    /// conversation were changed meanwhile.
    pub(crate) fn update(&self, (read, edits): &(History, u64), changed: &History) -> bool {
        let state = &mut *self.lock();
        if state.session(self.view()).edits.0 != *edits {
            return false;
        }
        let Some((from, to, add)) = difference(read, changed) else { return true };
        let is_appended = from == read.0.len();
        if is_appended && from == state.session(self.view()).messages.len() {
            self.say(state, add);
            return true;
        }
        let added = if is_appended { add.clone() } else { Vec::new() };
        if self.push(state, self.attempt(), |run| Record::Rewritten { run, at: from, removed: to - from, add }) {
            self.add(state, added);
        }
        true
    }
}

impl Drop for SessionRun {
    fn drop(&mut self) {
        let Some(begun) = self.begun.get() else { return };
        self.end(false);
        let gone = {
            let state = &mut *self.lock();
            let local = state.local(self.view());
            let is_of = |live: &mut Live| live.number == begun.run && live.epoch == begun.epoch;
            local.map(|local| local.live.extract_if(.., is_of).collect::<Vec<_>>())
        };
        drop(gone);
    }
}

/// Returns the time in milliseconds since 1970.
fn millis_now() -> u64 {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(at).unwrap_or(u64::MAX)
}

/// Lets a run take a message.
fn claim(local: &mut Local, run: u32, number: u64, attempt: u32) {
    if let Some(live) = local.live(run) {
        live.taken.retain(|(taken, _)| *taken != number);
        live.taken.push((number, attempt));
    }
}

/// Lets a turn take the interjections that no attempt has taken. Returns `false` if there are none.
pub(super) fn take_interjections(state: &mut LogState, view: &View, by: By) -> bool {
    let inbox = state.session(view).inbox.iter();
    let interjections = inbox.filter(|waiting| matches!(waiting.sent, Input::Interject(_)));
    let numbers: Vec<_> = interjections.map(|waiting| waiting.number).collect();
    let Some(local) = state.local(view) else { return false };
    let is_free = |number: &u64| local.live.iter().all(|live| live.taken.iter().all(|(taken, _)| taken != number));
    let free: Vec<_> = numbers.into_iter().filter(is_free).collect();
    free.iter().for_each(|number| claim(local, by.run, *number, by.attempt));
    !free.is_empty()
}

/// Returns the part of a conversation that was replaced, and by what. It begins and ends between two turns.
fn difference(read: &History, changed: &History) -> Option<(usize, usize, Vec<Arc<Message>>)> {
    if Arc::ptr_eq(&read.0, &changed.0) {
        return None;
    }
    let is_same = |(one, other): (&Arc<Message>, &Arc<Message>)| Arc::ptr_eq(one, other) || one == other;
    let mut from = read.0.iter().zip(&*changed.0).take_while(|pair| is_same(*pair)).count();
    while !read.is_boundary(from) || !changed.is_boundary(from) {
        from -= 1;
    }
    let (rest, new) = (&read.0[from..], &changed.0[from..]);
    let mut behind = rest.iter().rev().zip(new.iter().rev()).take_while(|pair| is_same(*pair)).count();
    while !read.is_boundary(read.0.len() - behind) {
        behind -= 1;
    }
    let (to, end) = (read.0.len() - behind, changed.0.len() - behind);
    (from < to || from < end).then(|| (from, to, changed.0[from..end].to_vec()))
}

pub(crate) fn no_messages(ctx: &RunContext) -> Error {
    Error::new(format!("the input of the agent `{}` has no messages", ctx.name()))
}

#[cfg(test)]
pub(super) mod tests {
    use emitree_runtime::{Runnable, runnable_fn};

    use super::*;

    /// Calls a function with the context of a run.
    pub(in crate::session) fn in_run<T: Send + 'static>(f: impl FnOnce(RunContext) -> T + Send + 'static) -> T {
        let (f, output) = (parking_lot::Mutex::new(Some(f)), Arc::new(parking_lot::Mutex::new(None)));
        let kept = Arc::clone(&output);
        let run = runnable_fn("test", move |(): (), ctx: RunContext| {
            let value = f.lock().take().map(|f| f(ctx));
            *kept.lock() = value;
            async { Ok(()) }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async { run.run(()).await }).expect("a run");
        output.lock().take().expect("the run has called the function")
    }

    /// Begins a run of a session.
    pub(in crate::session) fn begin(session: &Session, ctx: &RunContext, input: &str) -> SessionRun {
        let run = SessionRun::new(session.clone());
        attempt(&run, ctx, input);
        run
    }

    fn attempt(run: &SessionRun, ctx: &RunContext, input: &str) {
        run.next_attempt();
        let (messages, options) = (vec![Arc::new(Message::user(input))], ChatOptions::default());
        let begins = Begins { ctx, messages, options: &options, resumes: false, is_inside: false, once: None };
        assert!(run.begin(begins).expect("a message").is_none());
    }

    fn says(history: &[Arc<Message>]) -> Vec<String> {
        history.iter().map(|message| message.text()).collect()
    }

    // A7
    #[test]
    fn another_attempt_undoes_the_messages_and_the_rewriting_of_the_one_before_and_nothing_else() {
        in_run(|ctx| {
            let session = Session::new();
            session.extend([Message::user("old")]).expect("valid");
            let ours = begin(&session, &ctx, "ours");
            let theirs = begin(&session, &ctx, "theirs");

            // Hooks rewrite the messages that they read. Messages that are added meanwhile stay, behind these.
            let read = ours.read();
            theirs.extend([Message::user("meanwhile")]).expect("valid");
            let summary = History::try_from(vec![Message::user("summary")]).expect("valid");
            assert!(ours.update(&read, &summary));
            ours.extend([Message::user("more")]).expect("valid");
            assert_eq!(says(session.history().messages()), ["summary", "meanwhile", "more"]);
            assert_eq!(says(&ours.added()), ["ours", "more"]);

            // An update by another run that has read the old history changes nothing.
            assert!(!theirs.update(&read, &History::new()));
            attempt(&ours, &ctx, "again");
            assert_eq!(says(session.history().messages()), ["old", "theirs", "meanwhile", "again"]);
            assert_eq!(says(&ours.added()), ["again"]);
        });
    }

    #[test]
    fn the_difference_of_two_histories_begins_and_ends_between_two_turns() {
        let asks = |id: &str| Message::assistant("").with_call(crate::ToolCall::new(id, "t", serde_json::json!({})));
        let result = |id: &str, text: &str| Message::tool([crate::ToolResult::new(id, text)]);
        let read = History::try_from(vec![asks("a"), result("a", "1"), Message::user("x")]).expect("valid");
        let changed = History::try_from(vec![asks("a"), result("a", "2"), Message::user("x")]).expect("valid");
        assert_eq!(difference(&read, &read.clone()), None);
        let (from, to, add) = difference(&read, &changed).expect("another result");
        assert_eq!((from, to, &add[..]), (0, 2, &changed.messages()[..2]));
        let longer = History::try_from(
            read.messages().iter().cloned().chain([Arc::new(Message::user("y"))]).collect::<Vec<_>>(),
        );
        let (from, to, add) = difference(&read, &longer.expect("valid")).expect("one more");
        assert_eq!((from, to, says(&add)), (3, 3, vec!["y".to_owned()]));
    }
}
