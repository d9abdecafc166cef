//! The log of a session: the fold of its records, the records that its store does not have yet, and what only this
//! process knows.
//!
//! 1. One lock guards all of it, and no user code runs under it: states are serialized before, and values and contexts of
//!    runs are dropped after.
//! 2. Each change is a record. [`LogState::push`] folds it, and queues it for the store, in one step.
//! 3. The session of an agent below a call is a [`View`] of the same log. When the call has settled, the fold forgets it,
//!    and a handle that somebody keeps has it for itself.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem::take;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use emitree_runtime::{Result, RunContext, RunKey};
use futures_util::future::AbortHandle;
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use crate::Message;
use crate::place::state::Slices;
use crate::session::entry::SessionEntry;
use crate::session::fold::{Conversation, Fault};
use crate::session::keys::{SessionKey, read_key};
use crate::session::record::{Fact, Line, Record};
use crate::session::turn::LiveTurn;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Log {
    root: Arc<View>,
    /// Set if a store keeps the session.
    entry: OnceLock<Arc<SessionEntry>>,
    state: Mutex<LogState>,
}

/// One of the sessions of a log.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) key: SessionKey,
    /// The states of middlewares. The fold has them as they were last [synchronized](Log::sync).
    pub(crate) slices: Slices,
    is_below: bool,
    /// The number of messages in the inbox, and 1 for a pause, for runs that look whether there is anything.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
pub(super) struct LogState {
    pub(super) fold: Conversation,
    /// Counts how often another process's records have replaced those of this process.
    pub(super) epoch: u32,
    /// Counts the attempts that were undone.
    undone: u32,
    local: Local,
    below: BTreeMap<String, (Arc<View>, Local)>,
    /// The sessions that the fold has forgotten, and that somebody still has.
    gone: Vec<Gone>,
    /// Views that nobody has. Their states are dropped when the session is no longer locked.
    unused: Vec<Arc<View>>,
    /// The records that no store has yet, or all records of a session that keeps them in memory. `None` for any other
    /// session.
    queue: Option<Vec<Line>>,
}

/// A session below a call that has settled.
#[derive(Debug)]
struct Gone {
    view: Arc<View>,
    session: Conversation,
    local: Local,
}

/// The part of a session that is never stored.
#[derive(Debug, Default)]
pub(super) struct Local {
    pub(super) live: Vec<Live>,
    /// The turns whose calls an interjection may close, in the order in which they began.
    pub(super) turns: Vec<Arc<LiveTurn>>,
    /// The ids of the middlewares whose hooks of `agent.start` were called.
    pub(super) started: BTreeSet<String>,
}

/// The part of a run that is never stored.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) number: u32,
    /// The epoch of the log in which the run has begun: after a reload, another run may have its number.
    pub(super) epoch: u32,
    /// The run, while an attempt is under way.
    pub(super) ctx: Option<RunContext>,
    /// The numbers of the messages that attempts have taken, and that have not entered the history yet.
    pub(super) taken: Vec<(u64, u32)>,
    /// The messages that the current attempt added, in order.
    pub(super) added: Vec<Arc<Message>>,
    /// The results of an earlier run that this run has replaced, with the results in their places.
    pub(super) replaced: Vec<(Arc<Message>, Arc<Message>)>,
    /// The number of the last turn that had a response.
    pub(super) last_turn: u64,
    /// `true` if the last attempt has ended with an answer.
    pub(super) has_answered: bool,
    /// The gates that the calls of the turn are waiting in.
    pub(super) gates: Option<AbortHandle>,
    /// The ids of the questions whose answers were reported.
    pub(super) reported: HashSet<String>,
}

static NOTHING: LazyLock<Conversation> = LazyLock::new(Conversation::default);

impl View {
    pub(super) fn new(key: SessionKey, slices: Slices, is_below: bool) -> Arc<Self> {
        Arc::new(Self { key, slices, is_below, waiting: AtomicUsize::new(0) })
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    /// Returns `true` for a session below a call of the session of the entry.
    pub(super) const fn is_below(&self) -> bool {
        self.is_below
    }

    fn id(&self) -> &str {
        self.key.get().as_str()
    }
}

impl Log {
    /// Makes the log of a session that was read, or of a new one.
    pub(super) fn of(fold: Conversation, key: SessionKey) -> Arc<Self> {
        let root = View::new(key, Slices::stored(&fold.state), false);
        let state = LogState { fold, ..LogState::default() };
        state.count_waiting(&root);
        Arc::new(Self { root, entry: OnceLock::new(), state: Mutex::new(state) })
    }

    pub(super) const fn root(&self) -> &Arc<View> {
        &self.root
    }

    pub(super) fn entry(&self) -> Option<&Arc<SessionEntry>> {
        self.entry.get()
    }

    /// Lets a store keep the session. Returns `false` if one does.
    pub(super) fn keep(&self, entry: Arc<SessionEntry>) -> bool {
        self.lock().queue.get_or_insert_default();
        self.entry.set(entry).is_ok()
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        Locked(Some(self.state.lock()))
    }

    /// Brings the states of the middlewares of all sessions into the records.
    ///
    /// # Errors
    ///
    /// Returns an error if a state cannot be serialized, or if a closure on this thread uses it.
    pub(super) fn sync_all(&self) -> Result<()> {
        let below: Vec<_> = self.lock().below.values().map(|(view, _)| Arc::clone(view)).collect();
        below.iter().chain([&self.root]).try_for_each(|view| self.sync(view))
    }

    /// Brings the states of the middlewares of a session into the records.
    ///
    /// # Errors
    ///
    /// As for [`sync_all`](Self::sync_all).
    pub(super) fn sync(&self, view: &View) -> Result<()> {
        loop {
            let undone = self.lock().undone;
            let values = view.slices.snapshot()?;
            let mut state = self.lock();
            if state.undone != undone {
                // The values may be those of an attempt that was undone meanwhile.
                continue;
            }
            let known = &state.session(view).state;
            let gone = known.keys().filter(|id| !values.contains_key(*id));
            let mut records: Vec<_> = gone.map(|id| Record::State { id: Arc::clone(id), value: None }).collect();
            let changed = values.into_iter().filter(|(id, value)| known.get(id).is_none_or(|known| **known != *value));
            records.extend(changed.map(|(id, value)| Record::State { id, value: Some(Arc::new(value)) }));
            records.into_iter().for_each(|record| _ = state.push(view, record));
            return Ok(());
        }
    }
}

/// The lock of a log. Values of users are dropped when it is released.
pub(super) struct Locked<'a>(Option<MutexGuard<'a, LogState>>);

impl Deref for Locked<'_> {
    type Target = LogState;

    fn deref(&self) -> &LogState {
        self.0.as_ref().expect("locked until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut LogState {
        self.0.as_mut().expect("locked until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.0.take().filter(|state| !state.unused.is_empty()) else { return };
        let unused = take(&mut state.unused);
        drop(state);
        drop(unused);
    }
}

impl LogState {
    /// Returns a session.
    pub(super) fn session(&self, view: &View) -> &Conversation {
        if !view.is_below {
            return &self.fold;
        }
        let gone = || self.gone.iter().find(|gone| gone.session.id == view.id()).map(|gone| &gone.session);
        self.fold.below.get(view.id()).or_else(gone).unwrap_or(&NOTHING)
    }

    /// Returns the part of a session that is never stored.
    pub(super) fn local(&mut self, view: &View) -> Option<&mut Local> {
        if !view.is_below {
            return Some(&mut self.local);
        }
        let gone = self.gone.iter_mut().find(|gone| gone.session.id == view.id()).map(|gone| &mut gone.local);
        self.below.get_mut(view.id()).map(|(_, local)| local).or(gone)
    }

    /// Changes a session.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if the record does not fit.
    pub(super) fn push(&mut self, view: &View, record: Record) -> Result<(), Fault> {
        if self.fold.id.is_empty() && needs_id(&record) {
            self.identify(view);
        }
        self.undone += u32::from(matches!(record, Record::Again { .. }));
        if view.is_below
            && !self.fold.below.contains_key(view.id())
            && let Some(gone) = self.gone.iter_mut().find(|gone| gone.session.id == view.id())
        {
            // It is no part of the entry any more.
            gone.session.apply(record)?;
            self.count_waiting(view);
            return Ok(());
        }
        let session = view.is_below.then(|| view.id());
        let queued = self.queue.is_some().then(|| Line { session: session.map(str::to_owned), record: record.clone() });
        let gone = self.fold.fold(session, record)?;
        if let (Some(queue), Some(line)) = (&mut self.queue, queued) {
            queue.push(line);
        }
        self.forget(gone);
        self.count_waiting(view);
        Ok(())
    }

    /// The fold knows the id of the session from now on.
    pub(super) fn identify(&mut self, root: &View) {
        if self.fold.id.is_empty() && !root.is_below {
            self.fold.id = root.id().to_owned();
        }
    }

    fn count_waiting(&self, view: &View) {
        let session = self.session(view);
        view.waiting.store(session.inbox.len() + usize::from(session.paused.is_some()), Ordering::Release);
    }

    /// Keeps the last state of sessions that the fold has forgotten, for their handles.
    fn forget(&mut self, gone: Vec<Conversation>) {
        if gone.is_empty() && self.gone.is_empty() {
            return;
        }
        for session in gone {
            if let Some((view, local)) = self.below.remove(&session.id) {
                self.gone.push(Gone { view, session, local });
            }
        }
        let unused = self.gone.extract_if(.., |gone| Arc::strong_count(&gone.view) == 1);
        self.unused.extend(unused.map(|gone| gone.view));
    }

    /// Returns the view of a session below a call, which the fold has.
    pub(super) fn view_below(&mut self, key: &RunKey) -> Option<Arc<View>> {
        if let Some((view, _)) = self.below.get(key.as_str()) {
            return Some(Arc::clone(view));
        }
        let session = self.fold.below.get(key.as_str())?;
        let view = View::new(SessionKey::new(key.clone()), Slices::stored(&session.state), true);
        self.count_waiting(&view);
        self.below.insert(key.to_string(), (Arc::clone(&view), Local::default()));
        Some(view)
    }

    /// Keeps all records in memory from now on, behind these.
    pub(super) fn keep_lines(&mut self, lines: Vec<Line>) {
        self.queue = Some(lines);
    }

    /// Returns the records that no store has yet, or those that are kept in memory.
    pub(super) fn lines(&self) -> Option<&[Line]> {
        self.queue.as_deref()
    }

    /// Returns the records that the store does not have yet.
    pub(super) fn take_queue(&mut self) -> Vec<Line> {
        self.queue.as_mut().map(take).unwrap_or_default()
    }

    /// Returns the contexts of all runs under way.
    pub(super) fn runs(&self) -> Vec<RunContext> {
        let locals = self.below.values().map(|(_, local)| local).chain([&self.local]);
        locals.flat_map(|local| &local.live).filter_map(|live| live.ctx.clone()).collect()
    }

    /// Replaces the session by one that was read. Its runs belong to other processes.
    pub(super) fn reload(&mut self, root: &View, fold: Conversation) {
        self.epoch += 1;
        let before = std::mem::replace(&mut self.fold, fold);
        self.take_queue();
        // Their states, and the runs that use them, are those of before.
        self.forget(before.below.into_values().collect());
        self.end_dead(root);
        self.count_waiting(root);
    }

    /// Adds inputs that were not stored. Returns `true` if a message is new.
    pub(super) fn push_again(&mut self, root: &Arc<View>, inputs: Vec<Line>) -> bool {
        let known = self.fold.inbox.len();
        for Line { session, record } in inputs {
            let Some(view) = self.view_of_line(root, session.as_deref()) else {
                tracing::warn!(session, "an input is lost: the agent of this session has ended in another process");
                continue;
            };
            let input = match record {
                Record::Sent { id, sent, .. } => Record::Sent { number: self.session(&view).sent, id, sent },
                input => input,
            };
            // An input whose commit had an unknown outcome is refused if it has arrived.
            _ = self.push(&view, input);
        }
        self.fold.inbox.len() > known
    }

    /// Puts inputs that were posted before the others that the store does not have, which this process has sent later.
    /// `posted` has the ids of the posts, in their order, and keeps those of inputs that the store does not have.
    pub(super) fn put_first(&mut self, root: &Arc<View>, posted: &mut Vec<Uuid>) {
        let is_used = !self.runs().is_empty();
        let Some(queue) = &mut self.queue else { return };
        let id = |line: &Line| match line.record {
            Record::Sent { id, .. } if line.session.is_none() => Some(id),
            _ => None,
        };
        posted.retain(|post| queue.iter().any(|line| id(line) == Some(*post)));
        // A run that is under way may know the numbers of its inputs.
        if is_used || posted.is_empty() {
            return;
        }
        // No later record has the number of an input behind this one.
        let from = queue.iter().rposition(|line| matches!(line.record, Record::Taken { .. })).map_or(0, |at| at + 1);
        let mut inputs: Vec<_> = queue.extract_if(from.., |line| id(line).is_some()).collect();
        let ids: Vec<_> = inputs.iter().filter_map(id).collect();
        self.fold.inbox.retain(|waiting| !ids.contains(&waiting.id));
        self.fold.sent -= ids.len() as u64;
        inputs.sort_by_key(|line| posted.iter().position(|post| id(line) == Some(*post)).unwrap_or(posted.len()));
        self.push_again(root, inputs);
    }

    /// Returns the session that a line is about.
    pub(super) fn view_of_line(&mut self, root: &Arc<View>, session: Option<&str>) -> Option<Arc<View>> {
        match session {
            None => Some(Arc::clone(root)),
            Some(id) => read_key(id).ok().and_then(|key| self.view_below(&key)),
        }
    }

    /// Ends the runs that belong to processes that are gone, or that hold the session.
    pub(super) fn end_dead(&mut self, root: &View) {
        let below: Vec<_> = self.fold.below.iter().filter(|(_, session)| !session.dead().is_empty()).collect();
        let below = below.into_iter().map(|(id, session)| (Some(id.clone()), session.dead()));
        let dead: Vec<_> = below.chain([(None, self.fold.dead())]).collect();
        for (session, run) in dead.into_iter().flat_map(|(id, runs)| runs.into_iter().map(move |run| (id.clone(), run)))
        {
            let line = Line { session, record: Record::Over { run, returned: false } };
            let queued = self.queue.is_some().then(|| line.clone());
            if let Ok(gone) = self.fold.fold(line.session.as_deref(), line.record) {
                self.forget(gone);
                self.queue.iter_mut().for_each(|queue| queue.extend(queued.clone()));
            }
        }
        self.count_waiting(root);
    }
}

impl Local {
    pub(super) fn live(&mut self, run: u32) -> Option<&mut Live> {
        self.live.iter_mut().rfind(|live| live.number == run)
    }

    /// Returns `true` if no attempt of another run has taken the message.
    pub(super) fn is_free(&self, number: u64, run: u32) -> bool {
        self.live
            .iter()
            .filter(|live| live.number != run)
            .all(|live| live.taken.iter().all(|(taken, _)| *taken != number))
    }
}

/// The ids of questions, and of sessions below, begin with the id of the session.
fn needs_id(record: &Record) -> bool {
    match record {
        Record::Below { .. } => true,
        Record::Call { fact, .. } => matches!(**fact, Fact::Asked(_) | Fact::Needed { .. } | Fact::Unfit(_)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::ToolCall;
    use crate::session::Session;
    use crate::session::record::Input;
    use crate::session::run::tests::{begin, in_run};

    // A27
    #[test]
    fn a_message_to_a_session_below_that_was_not_stored_comes_behind_a_reload() {
        in_run(|ctx| {
            let session = Session::with_id("talk").expect("an id");
            session.log.lock().keep_lines(Vec::new());
            let run = begin(&session, &ctx, "go");
            run.ask();
            let call = ToolCall::new("a", "t", json!({}));
            let turn = run.open(Message::assistant("so").with_call(call), None).expect("a response");
            let key = turn.calls().key(0, None);
            let (below, _) = turn.calls().session_below(0, &key, None, Vec::new());
            let mut state = session.log.lock();
            let stored = state.fold.clone();
            state.take_queue();
            let sent = Input::Steer(Arc::new(Message::user("left")));
            state.push(&below.view, Record::Sent { number: 0, id: Uuid::nil(), sent }).expect("it fits");
            let inputs = state.take_queue();
            assert_eq!(inputs.len(), 1);

            // Twice: the commit before had an unknown outcome.
            let root = session.log.root();
            for _ in 0..2 {
                state.reload(root, stored.clone());
                state.push_again(root, inputs.clone());
                state.push_again(root, inputs.clone());
                assert_eq!(state.fold.below[below.id()].inbox.len(), 1);
            }
            // Another process has ended the call.
            state.reload(root, Conversation::new("talk"));
            assert!(!state.push_again(root, inputs));
            drop(state);
        });
    }
}
