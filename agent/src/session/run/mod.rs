//! The session of one run: what the run changes, and how that is undone.

mod begin;
mod inbox;

use std::future::ready;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use emitree_runtime::Result;
use futures_core::future::BoxFuture;
use rust_decimal::Decimal;

use crate::message::history::{History, HistoryError, check};
use crate::message::{Message, Role};
use crate::place::state::Slices;
use crate::session::Session;
use crate::session::entry::SessionEntry;
use crate::session::fold::runs::Run;
use crate::session::fold::turn::OpenTurn;
use crate::session::log::{Live, Locked, LogState, View};
use crate::session::record::Record;
use crate::session::turn::{By, Closed, LiveTurn};
use crate::{ChatOptions, Turn, Usage};

pub(crate) use begin::{Begins, Resumed, no_messages};
pub(super) use inbox::take_interjections;

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

    /// Returns the part of the run that is never stored.
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

    /// The run would end with the answer of its last turn.
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

#[cfg(test)]
pub(super) mod tests {
    use emitree_runtime::{RunContext, Runnable, runnable_fn};

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
