//! The session of one run: what the run has added, and how that is undone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use emitree_emitter::new_id;
use emitree_runtime::{Error, Result, RunContext};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::message::history::{History, HistoryError, check};
use crate::message::turn::CurrentTurn;
use crate::message::{Message, Role};
use crate::place::state::Slices;
use crate::session::entry::SessionEntry;
use crate::session::inbox::{TakenValue, Taker, Waiting};
use crate::session::keys::SessionKey;
use crate::session::live_run::LiveRun;
use crate::session::stopped::{Stopped, Unreturned};
use crate::session::turn_calls::TurnCalls;
use crate::session::{Conversation, Session};
use crate::{ChatOptions, Turn};

/// The session of one run, and the messages that the current attempt of the run added.
///
/// Invariant: every change is made under the session's lock and to the current conversation, because other runs may change
/// the history at any time.
#[derive(Debug)]
pub(crate) struct SessionRun {
    session: Session,
    live: Arc<LiveRun>,
    /// The number of the current attempt, counted from 1; 0 before the first attempt.
    attempt: AtomicU32,
    added: Mutex<Vec<Arc<Message>>>,
    /// The messages of the inbox that the current attempt added, or dropped, as they were sent.
    steered: Mutex<Vec<Waiting>>,
    /// `true` if the current attempt has taken the pause of the session.
    has_paused: AtomicBool,
    rewritten: Mutex<Option<Rewritten>>,
    /// The results of an earlier run that this run has replaced, with the results in their places.
    replaced: Mutex<Vec<(Arc<Message>, Arc<Message>)>>,
    /// `true` if the run has found nothing to do.
    has_left: AtomicBool,
}

/// A history that hooks of a run have rewritten, so that it no longer begins with the messages that the hooks read.
#[derive(Debug)]
struct Rewritten {
    /// The conversation as it would be without this run.
    without: Vec<Arc<Message>>,
    /// The conversation as the hooks changed it.
    history: History,
}

/// The beginning of a resumed run.
pub(crate) enum Resumed {
    /// A run that has ended without returning an answer. `asks` is `true` if it was about to call the model.
    Run { run: Uuid, turn: Turn, asks: bool, answer: Option<Unreturned> },
    /// Messages that no model has answered.
    Conversation,
    /// A conversation that ends with this answer.
    Ended(Arc<Message>),
}

impl SessionRun {
    pub(crate) fn new(session: Session) -> Self {
        let attempt = AtomicU32::new(0);
        Self {
            session,
            live: LiveRun::new(),
            attempt,
            added: Mutex::new(Vec::new()),
            steered: Mutex::new(Vec::new()),
            has_paused: AtomicBool::new(false),
            rewritten: Mutex::new(None),
            replaced: Mutex::new(Vec::new()),
            has_left: AtomicBool::new(false),
        }
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

    /// Returns the history before the turn whose calls are being made.
    pub(crate) fn history_before_turn(&self) -> History {
        let history = self.history();
        let calls = self.live.parts.lock().calls.clone();
        let resumed = calls.as_ref().and_then(|calls| calls.placed.as_ref()?.position(&calls.response, &history));
        resumed.map_or_else(|| history.clone(), |at| History(Arc::new(history.messages()[..at].to_vec())))
    }

    pub(crate) const fn slices(&self) -> &Slices {
        self.session.slices()
    }

    /// Returns the messages that the current attempt added, in order.
    pub(crate) fn added(&self) -> Vec<Arc<Message>> {
        self.added.lock().clone()
    }

    /// Returns the number of messages that the current attempt added.
    pub(crate) fn count_added(&self) -> usize {
        self.added.lock().len()
    }

    /// Returns the messages that the current attempt added, in order, without the first `known` messages.
    pub(crate) fn added_after(&self, known: usize) -> Vec<Arc<Message>> {
        self.added.lock()[known..].to_vec()
    }

    /// Takes the results of an earlier run that this run has replaced, with the results in their places.
    pub(crate) fn take_replaced(&self) -> Vec<(Arc<Message>, Arc<Message>)> {
        std::mem::take(&mut *self.replaced.lock())
    }

    /// Appends messages as [`History::extend`] does.
    pub(crate) fn extend(&self, messages: impl IntoIterator<Item = Message>) -> std::result::Result<(), HistoryError> {
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        check(&messages)?;
        self.append(messages, self.attempt());
        Ok(())
    }

    /// Replaces a message of this run. Returns `false`, and changes nothing, if the history does not have the message any
    /// more. The new message must have the same tool calls.
    pub(crate) fn replace(&self, before: &Arc<Message>, after: &Arc<Message>) -> bool {
        // Messages are compared by address, because an equal message may be another message.
        let replace = |messages: &mut Vec<Arc<Message>>| {
            let found = messages.iter_mut().rfind(|message| Arc::ptr_eq(message, before));
            found.map(|message| *message = Arc::clone(after)).is_some()
        };
        let mut current = self.session.shared.conversation.lock();
        replace(&mut self.added.lock());
        replace(Arc::make_mut(&mut current.history.0))
    }

    /// Appends messages of an attempt, unless another attempt has begun.
    pub(crate) fn append(&self, messages: Vec<Arc<Message>>, attempt: u32) {
        // All messages are added under one lock, so no message of another run comes between them. Another attempt first
        // counts itself, and then undoes the attempt before under the same lock. So the messages of that attempt are
        // either removed, or not added here (A7).
        self.append_to(&mut self.session.shared.conversation.lock().history, messages, attempt);
    }

    /// Lets interjections close the calls of the current turn. Interjections that wait do so at once.
    pub(super) fn listen(&self, agent: &RunContext) {
        let interjected = {
            let inbox = &mut self.session.shared.conversation.lock().inbox;
            // `end_turn` removes the calls under the same lock, so that no turn that has ended is added.
            let calls = self.live.parts.lock().calls.clone().filter(|calls| !calls.is_listening());
            calls.filter(|calls| {
                calls.listen(agent);
                inbox.turns.push(Arc::clone(calls));
                inbox.take_interjections(calls.taker())
            })
        };
        if let Some(calls) = interjected {
            calls.interject();
        }
    }

    /// Returns the session to code in the run. From now on, interjections can close the calls of the current turn, even
    /// if nobody else had the session when they began.
    pub(crate) fn share(&self, agent: &RunContext) -> Session {
        let session = self.session.clone();
        self.listen(agent);
        session
    }

    /// Ends a turn: its messages enter the history, as [`append`](Self::append) does, or replace an earlier run's messages.
    /// From now on, interjections cannot close its calls. If calls are open, the session keeps the turn.
    pub(super) fn end_turn(&self, calls: &Arc<TurnCalls>, attempt: u32) {
        // Under the lock, so that nobody who stores the session sees the turn in between.
        let conversation = &mut *self.session.shared.conversation.lock();
        let ends = calls.end();
        if calls.is_listening() {
            conversation.inbox.turns.retain(|turn| !Arc::ptr_eq(turn, calls));
        }
        self.live.parts.lock().calls.take_if(|live| Arc::ptr_eq(live, calls));
        if attempt != self.attempt() {
            return;
        }
        let entered = calls.enter(ends, &mut conversation.history);
        self.added.lock().extend(entered.added);
        if !entered.replaced.is_empty() {
            self.replaced.lock().extend(entered.replaced);
        }
        if let Some(open) = entered.open {
            conversation.stop(self.live.stop(Some(open)));
        }
    }

    /// Keeps the options of the run's input, for a run that goes on with this run.
    pub(crate) fn set_options(&self, options: &ChatOptions) {
        self.live.parts.lock().options.clone_from(options);
    }

    /// Registers the run.
    pub(crate) fn begin_run(&self, ctx: &RunContext) {
        self.has_left.store(false, Ordering::Relaxed);
        self.live.parts.lock().run = Some(ctx.clone());
        let live = &mut self.session.shared.conversation.lock().live;
        if !live.iter().any(|live| Arc::ptr_eq(live, &self.live)) {
            live.push(Arc::clone(&self.live));
        }
    }

    /// Ends an attempt of the run. Unless the run has an answer, the session keeps where it stopped.
    pub(crate) fn end_run(&self, attempt: u32, has_answer: bool) {
        if attempt != self.attempt() {
            return;
        }
        self.session.shared.change_inbox(|conversation| {
            let before = conversation.live.len();
            conversation.live.retain(|live| !Arc::ptr_eq(live, &self.live));
            if before == conversation.live.len() {
                // The attempt ended before it began.
                return;
            }
            let resumed = self.live.parts.lock().resumed.take();
            if let Some(resumed) = resumed {
                conversation.stop(resumed);
            } else if !has_answer && conversation.stopped.as_ref().is_none_or(|stopped| stopped.run != self.live.id()) {
                conversation.stop(self.live.stop(None));
            }
            if has_answer && conversation.live.is_empty() {
                self.take_pause_of(conversation);
            }
        });
        self.live.forget();
    }

    pub(crate) fn turn(&self) -> &CurrentTurn {
        &self.live.turn
    }

    /// Returns the key of the session.
    pub(crate) fn key(&self) -> Arc<SessionKey> {
        Arc::clone(&self.session.key)
    }

    /// Returns the number of the current turn in its session.
    pub(crate) fn turn_number(&self) -> u64 {
        self.live.number.load(Ordering::Relaxed)
    }

    /// Numbers another turn.
    pub(crate) fn next_turn(&self) {
        let number = self.session.shared.turns.fetch_add(1, Ordering::Relaxed) + 1;
        self.live.number.store(number, Ordering::Relaxed);
    }

    /// The run is about to call the model.
    pub(crate) fn ask(&self) {
        self.live.number.store(0, Ordering::Relaxed);
        self.live.asks.store(true, Ordering::Relaxed);
    }

    /// The model has responded.
    pub(super) fn begin_turn(&self, calls: &Arc<TurnCalls>) {
        self.live.asks.store(false, Ordering::Relaxed);
        self.live.parts.lock().calls = Some(Arc::clone(calls));
    }

    /// The run has an answer, which is in the history, and has not returned it yet.
    pub(crate) fn hold_answer(&self, answer: &Arc<Message>) {
        if !self.is_stored() {
            return;
        }
        // Read while the run is known, because its id is needed after its loop has ended.
        self.live.id();
        let unreturned = &mut self.session.shared.conversation.lock().unreturned;
        unreturned.retain(|(live, _)| !Arc::ptr_eq(live, &self.live));
        unreturned.push((Arc::clone(&self.live), Arc::clone(answer)));
    }

    /// The end of the run is about to be stored, with its answer in the history.
    pub(crate) fn return_answer(&self) -> Returns<'_> {
        self.live.returns.store(true, Ordering::Relaxed);
        Returns(self)
    }

    /// The run has ended without returning its answer: it is no longer in the history, and a resume returns it (A26). If
    /// another run has left an open turn, that one is resumed, and the answer stays.
    pub(crate) fn hold_back(&self, answer: &Arc<Message>, run: Uuid) {
        let conversation = &mut *self.session.shared.conversation.lock();
        conversation.unreturned.retain(|(live, _)| !Arc::ptr_eq(live, &self.live));
        if conversation.stopped.as_ref().is_some_and(|stopped| stopped.open.is_some()) {
            return;
        }
        if let Some(answer) = Unreturned::take(answer, &mut conversation.history) {
            conversation.stop(Stopped { run, ..self.live.stop_with(answer) });
        }
    }

    /// Another answer takes the place of one that an earlier run has not returned.
    pub(crate) fn forget_held(&self) {
        self.session.shared.conversation.lock().stopped.take_if(|stopped| stopped.answer.is_some());
    }

    /// The run has returned its answer, or has none any more.
    pub(crate) fn forget_answer(&self) {
        if self.is_stored() {
            let unreturned = &mut self.session.shared.conversation.lock().unreturned;
            unreturned.retain(|(live, _)| !Arc::ptr_eq(live, &self.live));
        }
    }

    /// Takes up the answer that the resumed run has not returned. It is in the history from now on.
    pub(crate) fn take_answer(&self, answer: Unreturned) -> Option<Arc<Message>> {
        match answer {
            Unreturned::Message(answer) => {
                self.append(vec![Arc::clone(&answer)], self.attempt());
                Some(answer)
            }
            Unreturned::InHistory => {
                self.history().messages().iter().rfind(|message| message.role == Role::Assistant).cloned()
            }
        }
    }

    /// Returns `true` if a store keeps the session.
    pub(crate) fn is_stored(&self) -> bool {
        self.entry().is_some()
    }

    /// Returns the entry of the session, or of the session above it.
    pub(crate) fn entry(&self) -> Option<&Arc<SessionEntry>> {
        self.session.key.entry()
    }

    /// Returns the entry of the session, unless it belongs to a session above.
    pub(crate) fn own_entry(&self) -> Option<&Arc<SessionEntry>> {
        self.entry().filter(|entry| entry.is_of(&self.session))
    }

    /// Returns `true` if a run has begun to use the session.
    pub(crate) fn has_begun(&self) -> bool {
        self.session.has_begun() || !self.history().messages().is_empty()
    }

    /// Closes what an earlier run has left open: its questions are not answered, and its calls not executed.
    pub(crate) fn close_stopped(&self) {
        let Conversation { history, stopped, .. } = &mut *self.session.shared.conversation.lock();
        if let Some(stopped) = stopped.take() {
            stopped.close(history);
        }
    }

    /// The run has nothing to do, so the session keeps nothing of it.
    pub(crate) fn leave(&self) {
        let live = &mut self.session.shared.conversation.lock().live;
        live.retain(|live| !Arc::ptr_eq(live, &self.live));
        self.live.forget();
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the run has found nothing to do, so that its end is no end of the session.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Takes over what an earlier run has left.
    ///
    /// # Errors
    ///
    /// Returns an error if there is nothing to do, or if another run uses the session.
    pub(crate) fn resume(&self) -> Result<Resumed> {
        let conversation = &mut *self.session.shared.conversation.lock();
        if let Some(mut stopped) = conversation.stopped.take() {
            // A turn that was rewritten is over.
            stopped.open = stopped.open.filter(|open| open.position(&conversation.history).is_some());
            let is_own = stopped.run == self.live.id();
            if is_own && stopped.open.is_none() {
                // An attempt of this run has ended after the resumed turn: its own turns are undone (A7).
                stopped.turn = self.live.turn.get();
            } else if let Some(number) = stopped.calling {
                // The call is made again, with the same key, unless another run has numbered a turn meanwhile.
                let turns = &self.session.shared.turns;
                _ = turns.compare_exchange(number, number - 1, Ordering::Relaxed, Ordering::Relaxed);
            }
            let Stopped { run, turn, asks, ref answer, .. } = stopped;
            let resumed = Resumed::Run { run, turn, asks, answer: answer.clone() };
            self.live.parts.lock().resumed = Some(stopped);
            return Ok(resumed);
        }
        if let Some(other) = conversation.live.iter().find(|live| !Arc::ptr_eq(live, &self.live)) {
            return Err(Error::new(format!(
                "the session cannot be resumed: the run {} is using it, and has its turn in hand",
                other.id()
            )));
        }
        // Another attempt calls the model again: the first one has found something to do.
        let is_over = conversation.inbox.messages().next().is_none() && self.attempt() == 1;
        match conversation.history.messages().last() {
            Some(last) if last.role == Role::Assistant && is_over => Ok(Resumed::Ended(Arc::clone(last))),
            None if conversation.inbox.messages().next().is_none() => {
                Err(Error::new("the session cannot be resumed: it has no messages"))
            }
            _ => Ok(Resumed::Conversation),
        }
    }

    /// Returns the turn of the run that has stopped.
    pub(crate) fn stopped_turn(&self) -> Option<Turn> {
        self.session.shared.conversation.lock().stopped.as_ref().map(|stopped| stopped.turn)
    }

    /// Returns the options of the run that has stopped.
    pub(crate) fn stopped_options(&self) -> Option<ChatOptions> {
        let conversation = self.session.shared.conversation.lock();
        conversation.stopped.as_ref().map(|stopped| stopped.options.clone())
    }

    /// Returns `true` if calls were left open that this run has not taken up yet.
    pub(crate) fn has_open_turn(&self) -> bool {
        let has_open = |stopped: &Stopped| stopped.open.is_some();
        self.live.parts.lock().resumed.as_ref().is_some_and(has_open)
            || self.session.shared.conversation.lock().stopped.as_ref().is_some_and(has_open)
    }

    /// Takes up the turn that the resumed run has left open.
    pub(super) fn take_open(&self, attempt: u32) -> Option<Arc<TurnCalls>> {
        // In one step, so that a session that is stored meanwhile has the turn.
        let mut parts = self.live.parts.lock();
        let stopped = parts.resumed.take()?.open?;
        let calls = Arc::new(TurnCalls::again(self.taker(attempt), self.key(), stopped));
        self.live.asks.store(false, Ordering::Relaxed);
        parts.calls = Some(Arc::clone(&calls));
        Some(calls)
    }

    fn append_to(&self, history: &mut History, messages: Vec<Arc<Message>>, attempt: u32) {
        if attempt == self.attempt() {
            self.added.lock().extend(messages.iter().cloned());
            Arc::make_mut(&mut history.0).extend(messages);
        }
    }

    /// Identifies an attempt of this run to the inbox.
    pub(super) fn taker(&self, attempt: u32) -> Taker {
        Taker { run: std::ptr::from_ref(self).addr(), attempt }
    }

    /// Returns `false` if nobody else has the session, so that nobody can send a message to this run.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.session.shared) > 1
    }

    /// Returns `true` if the inbox has messages, also those that another run has taken.
    pub(crate) fn has_waiting(&self) -> bool {
        self.session.shared.has_waiting()
    }

    /// Returns `true` if the hooks of `agent.start` of this middleware were not called yet. From now on, they were.
    pub(crate) fn start(&self, middleware: &str) -> bool {
        self.session.shared.conversation.lock().started.insert(middleware.to_owned())
    }

    /// The hooks of `agent.start` of this middleware are called again.
    pub(crate) fn undo_start(&self, middleware: &str) {
        self.session.shared.conversation.lock().started.remove(middleware);
    }

    /// Returns `true` if the session has a pause.
    pub(crate) fn is_paused(&self) -> bool {
        self.has_waiting() && self.session.shared.conversation.lock().pause.is_some()
    }

    /// Takes the pause of the session. Returns `false` if there is none.
    pub(crate) fn take_pause(&self) -> bool {
        self.has_waiting() && self.session.shared.change_inbox(|conversation| self.take_pause_of(conversation))
    }

    fn take_pause_of(&self, conversation: &mut Conversation) -> bool {
        let pause = conversation.pause.take();
        conversation.inbox.take_ids(pause);
        self.has_paused.fetch_or(pause.is_some(), Ordering::Relaxed);
        pause.is_some()
    }

    /// Takes the values for middlewares.
    pub(crate) fn take_values(&self, attempt: u32) -> Vec<TakenValue> {
        self.session.shared.conversation.lock().inbox.take_values(self.taker(attempt))
    }

    /// Removes a value with which the hooks of its middleware were called in an attempt.
    pub(crate) fn remove_value(&self, taken: &TakenValue, attempt: u32) {
        self.session.shared.change_inbox(|conversation| {
            if attempt == self.attempt() {
                self.steered.lock().extend(conversation.inbox.remove_value(taken));
            }
        });
    }

    /// Takes the messages that enter before a model call.
    pub(crate) fn take_steering(&self, attempt: u32) -> Vec<Arc<Message>> {
        self.session.shared.conversation.lock().inbox.take_steering(self.taker(attempt))
    }

    /// Takes the messages that enter where the loop would end: those for the next model call, or else a follow-up.
    pub(crate) fn take_at_end(&self, attempt: u32) -> Vec<Arc<Message>> {
        let taker = self.taker(attempt);
        let inbox = &mut self.session.shared.conversation.lock().inbox;
        let taken = inbox.take_steering(taker);
        if taken.is_empty() { inbox.take_follow_up(taker).into_iter().collect() } else { taken }
    }

    /// Replaces the messages that an attempt has taken, in the inbox, by these messages, in the history. They must be
    /// valid by themselves.
    pub(crate) fn enter(&self, messages: Vec<Arc<Message>>, attempt: u32) {
        self.session.shared.change_inbox(|Conversation { history, inbox, .. }| {
            if attempt == self.attempt() {
                self.steered.lock().append(&mut inbox.remove(self.taker(attempt)));
                self.append_to(history, messages, attempt);
            }
        });
    }

    /// Frees the messages that an attempt has taken, and that it has not added.
    pub(crate) fn free_taken(&self, attempt: u32) {
        if self.has_waiting() {
            let taker = self.taker(attempt);
            self.session.shared.conversation.lock().inbox.free(|other| other == taker);
        }
    }

    /// Replaces the conversation that hooks have read with the changed conversation. Messages that another run has
    /// appended meanwhile stay, after the changed messages. Returns `false`, and changes nothing, if another run has
    /// rewritten the conversation meanwhile.
    pub(crate) fn update(&self, read: &History, changed: History) -> bool {
        if Arc::ptr_eq(&read.0, &changed.0) {
            return true;
        }
        let current = &mut self.session.shared.conversation.lock().history;
        let Some(appended) = current.strip_prefix(read) else { return false };
        // Both parts are valid by themselves, so the joined history is valid.
        let whole = History(Arc::new(changed.0.iter().chain(appended).cloned().collect()));
        match changed.strip_prefix(read) {
            Some(new) => self.added.lock().extend(new.iter().cloned()),
            None => {
                let without = self.without(read);
                *self.rewritten.lock() = Some(Rewritten { without, history: changed });
            }
        }
        *current = whole;
        true
    }

    /// Undoes the attempt's changes to the history, so that the next attempt begins without them, and gives back what
    /// the attempt took from the inbox.
    pub(crate) fn give_up(&self) {
        self.session.shared.change_inbox(|Conversation { history, inbox, pause, stopped, .. }| {
            if self.has_paused.swap(false, Ordering::Relaxed) {
                pause.get_or_insert_with(new_id);
            }
            // The history is read and written under one lock, so that no message of another run is lost.
            let without = self.without(history);
            let steered = std::mem::take(&mut *self.steered.lock());
            // If another run has rewritten a part of a turn of this run, removing the rest of the turn would make the
            // history invalid, so the history stays unchanged, and keeps the messages of the inbox.
            if check(&without).is_ok() {
                *history = History(Arc::new(without));
                inbox.put_back(steered);
            }
            // What this attempt left open is no longer there.
            let is_gone = |open: &mut Stopped| open.run == self.live.id() && !open.is_placed(history);
            stopped.take_if(is_gone);
            // A layer may keep the attempt, whose turn would take interjections.
            inbox.free_run(self.taker(0).run);
            self.added.lock().clear();
            *self.rewritten.lock() = None;
        });
    }

    /// Returns the messages of a history as they would be if this run had added and rewritten nothing.
    fn without(&self, history: &History) -> Vec<Arc<Message>> {
        let (added, rewritten) = (self.added.lock(), self.rewritten.lock());
        // Messages are compared by address, because another run may add an equal message.
        let of_others = |message: &&Arc<Message>| !added.iter().any(|other| Arc::ptr_eq(other, message));
        let rewritten = rewritten.as_ref().and_then(|it| Some((&it.without, history.strip_prefix(&it.history)?)));
        match rewritten {
            Some((without, appended)) => without.iter().chain(appended.iter().filter(of_others)).cloned().collect(),
            None => history.0.iter().filter(of_others).cloned().collect(),
        }
    }
}

/// Stores the end of a run. If it is dropped, the run has not returned its answer.
pub(crate) struct Returns<'a>(&'a SessionRun);

impl Returns<'_> {
    /// The end of the run is stored.
    pub(crate) fn returned(self) {
        self.0.forget_answer();
    }
}

impl Drop for Returns<'_> {
    fn drop(&mut self) {
        self.0.live.returns.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(history: &[Arc<Message>]) -> Vec<String> {
        history.iter().map(|message| message.text()).collect()
    }

    #[test]
    fn giving_up_a_run_removes_its_messages_and_its_rewriting_and_nothing_else() {
        let session = Session::new();
        session.extend([Message::user("old")]).expect("valid");
        let (ours, theirs) = (SessionRun::new(session.clone()), SessionRun::new(session.clone()));
        ours.extend([Message::user("ours")]).expect("valid");
        theirs.extend([Message::user("theirs")]).expect("valid");

        // Hooks rewrite the messages that they read. Messages that are added meanwhile stay, after the rewritten
        // messages.
        let read = session.history();
        theirs.extend([Message::user("meanwhile")]).expect("valid");
        let summary = History::try_from(vec![Message::user("summary")]).expect("valid");
        assert!(ours.update(&read, summary));
        ours.extend([Message::user("more")]).expect("valid");
        assert_eq!(says(session.history().messages()), ["summary", "meanwhile", "more"]);
        assert_eq!(says(&ours.added()), ["ours", "more"]);

        // An update by another run that has read the old history changes nothing.
        assert!(!theirs.update(&read, History::new()));
        ours.give_up();
        assert_eq!(says(session.history().messages()), ["old", "theirs", "meanwhile"]);
        assert!(ours.added().is_empty());
    }
}
