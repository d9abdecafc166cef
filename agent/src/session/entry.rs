//! The entry of a session in a store (A24 to A27).
//!
//! 1. An entry belongs to the log of the session that was opened, which has the sessions of the agents below its open
//!    calls too.
//! 2. A commit has the records since the last one, so what is stored is what the handle holds. A part has the records of
//!    one commit, as lines.
//! 3. While a run uses the session, this process holds the entry. A session that another process has changed meanwhile is
//!    read again before a run, or an answer, changes it. Inputs that were not stored yet come behind.

use std::future::IntoFuture;
use std::mem::take;
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use emitree_middleware::durable::JobStore;
use emitree_middleware::store::{
    Change, Claim, Entry, EntryHead, EntryStatus, Journal, Journaled, Lease, Older, OpenEntries, Post, Rest, Revision,
    Store, StoreError, check_id, joined_parts,
};
use emitree_runtime::{Error, RunKey};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::time::sleep;
use uuid::Uuid;

use crate::message::arguments::storing;
use crate::session::Session;
use crate::session::fold::Conversation;
use crate::session::fold::runs::Run;
use crate::session::fold::search::Search;
use crate::session::log::Log;
use crate::session::past::{Keep, PastError, Point};
use crate::session::record::{Line, Record};
use crate::session::status::{End, Known, Listed, Now};

/// The kind of the entries of sessions.
pub(super) const KIND: &str = "session";

/// How often a process that has sent messages looks whether they were taken.
const LOOK: Duration = Duration::from_millis(50);

static OPEN: OpenEntries<Log> = OpenEntries::new();

/// A session in a store. Its log keeps it alive.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    pub(super) journal: Journal,
    pub(super) log: Weak<Log>,
    pub(super) known: Mutex<Known>,
    pub(super) kept: Kept,
}

/// Where a session is kept, and how.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) store: Arc<dyn Store>,
    pub(super) lease: Lease,
    pub(super) keep: Keep,
}

/// A record with the session as a whole.
struct Snapshot {
    older: Older,
    line: Line,
}

impl Kept {
    /// Returns the number of turns at the last snapshot of an entry, if it is needed.
    fn turns_of_snapshot(&self, entry: &Entry) -> Result<u64, StoreError> {
        if !matches!(self.keep, Keep::Turns(_)) {
            return Ok(0);
        }
        let first = texts_of(entry)?.first().and_then(|text| text.lines().next().map(Line::read));
        match first {
            Some(Ok(Line { record: Record::Session(whole), .. })) => Ok(whole.turns),
            _ => Ok(0),
        }
    }
}

impl SessionEntry {
    /// Returns the session that a store keeps under an id, or a new one.
    async fn open(kept: Kept, id: String) -> emitree_runtime::Result<Session> {
        check_id(&id)?;
        let store_id = kept.store.store_id();
        if let Some(log) = OPEN.get(store_id, &id) {
            return Ok(Session::of_log(log));
        }
        let found = kept.store.load(&id).await?;
        let session = match &found {
            // The session of a step of a job has the step's key.
            Some(entry) => Session::of_fold(fold_of(entry)?).map_err(|fault| StoreError::damaged(&id, fault))?,
            None => Session::with_id(&id)?,
        };
        let bytes = found.iter().flat_map(|entry| &entry.parts).map(Bytes::len).sum();
        let snapshot = found.as_ref().map_or(Ok(0), |entry| kept.turns_of_snapshot(entry))?;
        let head = found.map_or_else(|| EntryHead::new(&*id, KIND), |entry| entry.head);
        let has_posts = head.posts > 0;
        let is_free = head.holder.is_none();
        let session = Self::keep(session, kept, head, bytes, snapshot);
        if let Some(entry) = session.log.entry() {
            if has_posts {
                entry.take_answers().await?;
            }
            // The process that has answered may have been killed before it has woken the job.
            if is_free && session.read(Conversation::are_questions_answered) {
                entry.wake_job().await;
            }
        }
        Ok(session)
    }

    /// Returns the session of an agent in a step of a job. It is read when a run claims it.
    pub(crate) fn below_job(key: &RunKey, job: &JobStore) -> Session {
        let kept = Kept { store: Arc::clone(job.store()), lease: job.lease().clone(), keep: Keep::Nothing };
        Self::unread(key, kept)
    }

    /// Returns a session that is open, or one that is read when a run claims it.
    pub(super) fn unread(key: &RunKey, kept: Kept) -> Session {
        if let Some(log) = OPEN.get(kept.store.store_id(), key.as_str()) {
            return Session::of_log(log);
        }
        let (session, head) = (Session::with_key(key), EntryHead::new(key.as_str(), KIND));
        Self::keep(session, kept, head, 0, 0)
    }

    /// Lets a store keep a session, unless another task has opened it meanwhile. Returns the session.
    fn keep(session: Session, kept: Kept, head: EntryHead, bytes: usize, snapshot: u64) -> Session {
        let (store_id, id) = (kept.store.store_id(), head.id.clone());
        let known = Known::new(&head, snapshot);
        let known = Mutex::new(known);
        let log = Arc::downgrade(&session.log);
        let owner: Weak<dyn Journaled> = log.clone();
        let journal = Journal::new(Arc::clone(&kept.store), head, bytes, &kept.lease, owner);
        if session.log.keep(Arc::new(Self { journal, log, known, kept })) {
            session.end_dead();
        }
        Session::of_log(OPEN.insert_or_get(store_id, &id, session.log))
    }

    /// Returns `true` if the store has the session.
    pub(super) fn is_stored(&self) -> bool {
        self.journal.revision() != Revision::NONE
    }

    /// Returns `true` if the store has no entry with this id.
    pub(super) async fn is_free(&self, id: &str) -> Result<bool, StoreError> {
        let store = &self.kept.store;
        Ok(OPEN.get(store.store_id(), id).is_none() && store.load(id).await?.is_none())
    }

    /// Returns the stored session at a point.
    pub(super) async fn search(&self, point: Point) -> Result<Conversation, PastError> {
        let id = self.journal.id();
        let mut search = Search::new(point, Conversation::new(id));
        let Some(texts) = self.all_texts().await? else { return search.end() };
        let mut fault = None;
        for line in texts.iter().flat_map(|text| text.lines()) {
            let line = Line::read(line).map_err(|fault| StoreError::damaged(id, fault))?;
            // Records that the store has refused may be missing before a snapshot.
            if fault.is_none() || matches!(line.record, Record::Session(_)) {
                fault = search.fold_line(line).err();
            }
        }
        match fault {
            Some(fault) => Err(StoreError::damaged(id, fault).into()),
            None => search.end(),
        }
    }

    /// Returns all parts of the stored session, older ones included, from the first snapshot on.
    async fn all_texts(&self) -> Result<Option<Vec<String>>, StoreError> {
        let (store, id) = (&self.kept.store, self.journal.id());
        loop {
            let Some(mut entry) = store.load(id).await? else { return Ok(None) };
            match store.older_parts(id, entry.head.revision).await {
                Ok(older) => {
                    entry.parts.splice(..0, older);
                    return texts_of(&entry).map(Some);
                }
                // There is another snapshot.
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Stores another session in the same store.
    pub(super) async fn fork(&self, fork: Session) -> Result<Session, PastError> {
        Self::create(fork, self.kept.clone()).await
    }

    /// Stores a session, unless the store has one with its id.
    async fn create(session: Session, kept: Kept) -> Result<Session, PastError> {
        let id = session.id().to_owned();
        let turns = session.read(|session| session.turns);
        let open = Self::keep(session.clone(), kept, EntryHead::new(&*id, KIND), 0, turns);
        // Another task, or another process, may be faster.
        let entry = session.log.entry().filter(|_| Arc::ptr_eq(&open.log, &session.log));
        let Some(entry) = entry else { return Err(PastError::Exists { id }) };
        match entry.journal.commit().await {
            Ok(_) => Ok(session),
            Err(StoreError::Conflict { .. }) => Err(PastError::Exists { id }),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a snapshot, and decides what it does to the parts before it.
    fn snapshot(&self, known: &mut Known, fold: &Conversation) -> Snapshot {
        let older = match self.kept.keep {
            Keep::Everything if !known.forgets => Older::Hidden,
            Keep::Turns(turns) if !known.forgets => match fold.turns_after(known.snapshot) < turns {
                true => Older::Hidden,
                false => Older::HiddenOnce,
            },
            _ => Older::Removed,
        };
        known.snapshot = fold.turns;
        Snapshot { older, line: Record::Session(Box::new(fold.clone())).into() }
    }

    /// Claims the session for a run. In a job, waits for a process that holds it.
    pub(crate) async fn claim(&self, is_in_job: bool) -> emitree_runtime::Result<Claim> {
        let claiming = Claiming::new(&self.known);
        {
            let known = &mut *self.known.lock();
            (known.is_stopped, known.is_handed_over) = (false, false);
            known.guards.clear();
        }
        let claim = if is_in_job { self.journal.claim_when_free().await } else { self.journal.claim().await };
        let claim = claim.map_err(not_stored)?;
        if let Some(log) = self.log.upgrade() {
            Session::of_log(log).meet_deadlines(self).await;
        }
        drop(claiming);
        if let Some(reason) = self.take_stop() {
            claim.release().await.map_err(not_stored)?;
            return Err(Error::aborted(reason));
        }
        let known = &mut *self.known.lock();
        known.had_new |= take(&mut known.has_new);
        (known.is_reloaded, known.comes_back) = (false, false);
        Ok(claim)
    }

    /// A message has come while no run uses the session, so a run can go on with it (A27).
    pub(super) fn note_new(&self) {
        self.known.lock().has_new = true;
    }

    /// Stores all changes so far.
    pub(crate) async fn commit(&self) -> emitree_runtime::Result<()> {
        self.journal.commit().await.map(drop).map_err(not_stored)
    }

    /// Stores that a call begins, also if that is known, so that a claim that was lost is noticed. Returns the number of
    /// the commit.
    pub(super) async fn commit_begin(&self) -> emitree_runtime::Result<Option<NonZeroU64>> {
        let revision = self.journal.confirm().await.map_err(not_stored)?;
        Ok(NonZeroU64::new(revision.get()))
    }

    /// Stores all changes so far, and releases the claim of a run that has ended. Without an end, the run has changed
    /// nothing.
    pub(crate) async fn release(&self, claim: Option<Claim>, end: Option<End>) -> Result<(), StoreError> {
        {
            let known = &mut *self.known.lock();
            let had_new = take(&mut known.had_new);
            match end {
                // The status is that of the process that has taken the claim.
                Some(_) if known.is_reloaded => {}
                // It is paused.
                Some(End { status: EntryStatus::Running, .. }) if known.is_stopped => {}
                Some(End { status, comes_back }) => (known.ended, known.comes_back) = (status, comes_back),
                None => known.has_new |= had_new,
            }
        }
        match claim {
            Some(claim) => claim.release().await?,
            None => self.journal.commit().await?,
        };
        Ok(())
    }
}

/// A run that is about to use the session. Its drop ends this, also if the run is dropped meanwhile.
struct Claiming<'a>(&'a Mutex<Known>);

impl<'a> Claiming<'a> {
    fn new(known: &'a Mutex<Known>) -> Self {
        known.lock().claiming += 1;
        Self(known)
    }
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        self.0.lock().claiming -= 1;
    }
}

/// The error of a commit. It ends the run of the agent, because the run must not go on before it is stored.
pub(super) fn not_stored(error: StoreError) -> Error {
    Error::from(error).fatal(true)
}

/// Returns the session that the records of an entry make.
fn fold_of(entry: &Entry) -> Result<Conversation, StoreError> {
    let EntryHead { id, kind, .. } = &entry.head;
    if kind != KIND {
        let problem = format!("it is a `{kind}`, and not a `{KIND}`");
        return Err(StoreError::Invalid { id: id.clone(), problem });
    }
    let texts = texts_of(entry)?;
    let fold = Conversation::read(texts.iter().flat_map(|text| text.lines()));
    let fold = fold.map_err(|fault| StoreError::damaged(id, fault))?;
    if fold.id == *id {
        return Ok(fold);
    }
    Err(StoreError::damaged(id, format!("it has the session `{}`", fold.id)))
}

/// Returns the parts of an entry, each of which has records as lines. The first one begins with its snapshot: records
/// before it belong to older parts.
fn texts_of(entry: &Entry) -> Result<Vec<String>, StoreError> {
    let text = |part: Bytes| String::from_utf8(part.into()).map_err(|fault| fault.to_string());
    let texts = joined_parts(entry)?.into_iter().map(text).collect::<Result<Vec<_>, _>>();
    let mut texts = texts.map_err(|fault| StoreError::damaged(&entry.head.id, fault))?;
    if let Some(first) = texts.first_mut()
        && let Some(end) = first.rfind("\n{\"session\":")
    {
        first.drain(..=end);
    }
    Ok(texts)
}

/// Returns the JSON of records, as lines.
fn lines_of<'a>(lines: impl IntoIterator<Item = &'a Line>) -> serde_json::Result<Bytes> {
    let mut json = Vec::new();
    storing(|| {
        for line in lines {
            if !json.is_empty() {
                json.push(b'\n');
            }
            serde_json::to_writer(&mut json, line)?;
        }
        Ok(json.into())
    })
}

/// The journal asks the log, which lives until its last changes are stored.
impl Journaled for Log {
    fn change(&self, whole: bool) -> Result<Option<Change>, StoreError> {
        self.entry().map_or(Ok(None), |entry| entry.change(self, whole))
    }

    fn reload(&self, entry: &Entry) -> Result<(), StoreError> {
        self.entry().map_or(Ok(()), |kept| kept.reload(self, entry))
    }

    fn take(&self, posts: &[Post]) -> Vec<Uuid> {
        let Some(entry) = self.entry() else { return Vec::new() };
        let Some(log) = entry.log.upgrade() else { return Vec::new() };
        entry.take_posts(&log, posts)
    }

    fn rest(&self, attempts: u32) -> Rest {
        self.entry().map_or(Rest { due: None, attempts }, |entry| entry.rest(attempts))
    }

    fn lost(&self, error: &StoreError) {
        let runs = self.lock().runs();
        runs.iter().for_each(|run| _ = run.abort(error.to_string()));
    }
}

impl SessionEntry {
    fn change(&self, log: &Log, whole: bool) -> Result<Option<Change>, StoreError> {
        let failed =
            |error: Error| StoreError::failed(format!("the session `{}` cannot be written", self.journal.id()), error);
        log.sync_all().map_err(failed)?;
        let revision = self.journal.revision();
        let (queue, taken, now) = {
            let known = &mut *self.known.lock();
            let state = &mut *log.lock();
            state.identify(log.root());
            let queue = state.take_queue();
            // The inputs that were handed over are stored once the revision has moved.
            known.forgets &= known.handed.1 == revision;
            known.forgets |= queue.iter().any(|line| matches!(line.record, Record::Replaced { withheld: true, .. }));
            let snapshot = (whole || known.forgets).then(|| self.snapshot(known, &state.fold));
            (queue, snapshot, Now::of(&state.fold))
        };
        let known = &mut *self.known.lock();
        // A run is under way as soon as it claims the session, unless it is stopped.
        let is_used = (now.is_live || known.claiming > 0) && !known.is_stopped;
        let status = if is_used {
            EntryStatus::Running
        } else {
            known.status(&now, self.journal.queue().is_some() || known.queue.is_some())
        };
        let Now { questions, meta, .. } = now;
        let listed = Listed { status, questions, meta };
        let (handed, before) = &mut known.handed;
        if *before != revision {
            handed.clear();
        }
        *before = revision;
        handed.extend(queue.iter().filter(|line| line.record.is_input()).cloned());
        if queue.is_empty() && taken.is_none() && known.listed == listed {
            return Ok(None);
        }
        known.listed = listed.clone();
        let queue_named = known.queue.take();
        let (older, lines) = match taken {
            None => (Older::Stay, queue),
            // The older parts go on until the snapshot.
            Some(Snapshot { older: older @ (Older::Hidden | Older::HiddenOnce), line }) => {
                (older, queue.into_iter().chain([line]).collect())
            }
            Some(Snapshot { older, line }) => (older, vec![line]),
        };
        let gets_on = lines.iter().any(|line| line.record.gets_on());
        let parts =
            if lines.is_empty() { Vec::new() } else { vec![lines_of(&lines).map_err(|error| failed(error.into()))?] };
        let Listed { status, questions, meta } = listed;
        Ok(Some(Change { status, questions, meta, parts, older, gets_on, queue: queue_named }))
    }

    fn reload(&self, log: &Log, entry: &Entry) -> Result<(), StoreError> {
        let (fold, snapshot) = (fold_of(entry)?, self.kept.turns_of_snapshot(entry)?);
        let root = log.root();
        // Values of users are dropped below, so `known` is not locked meanwhile. The journal calls one method at a time.
        let (mut inputs, before) = {
            let known = &mut *self.known.lock();
            (known.forgets, known.snapshot) = (false, snapshot);
            (take(&mut known.handed.0), known.handed.1)
        };
        let (stored, has_new) = {
            let state = &mut *log.lock();
            if before != self.journal.revision() {
                inputs.clear();
            }
            inputs.extend(state.take_queue().into_iter().filter(|line| line.record.is_input()));
            state.reload(root, fold);
            let has_new = state.push_again(root, inputs);
            (state.fold.state.clone(), has_new)
        };
        let (revision, listed) = (entry.head.revision, Listed::of(&entry.head));
        {
            let known = &mut *self.known.lock();
            (known.has_new, known.had_new, known.is_reloaded) = (has_new, false, true);
            (known.handed, known.listed, known.ended) = ((Vec::new(), revision), listed, entry.head.status);
        }
        root.slices.restore(&stored);
        Ok(())
    }

    fn rest(&self, attempts: u32) -> Rest {
        let known = &*self.known.lock();
        known.rest(known.listed.status, &known.listed.questions, attempts, self.journal.now())
    }
}

impl Session {
    /// Opens the session with this id in a store: reads it, or makes a new one. From now on, each run of the session
    /// stores it before it goes on, and [`answer`](Self::answer) stores the answer.
    ///
    /// Opening does not change it. A run claims the session before it reads it, and releases it at its end; a second process
    /// that runs it gets an error that names the holder ([`StoreError::Held`]). A session that is open in this process,
    /// through this store or a clone of it, is returned as a clone, so that one request can steer the run of another.
    ///
    /// ```
    /// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
    /// use emitree_middleware::store::{Filter, MemoryStore, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let store = MemoryStore::new();
    /// let agent = Agent::builder("guide", ChatModel::new(ScriptedModel::new("test").text("Everest."))?).build()?;
    /// let session = Session::open(&store, "tour-1").await?;
    /// agent.ask("What is the highest mountain?").session(&session).await?;
    /// drop(session);
    ///
    /// let session = Session::open(&store, "tour-1").await?;
    /// assert_eq!(session.history().messages().len(), 2);
    /// assert!(store.list(&Filter::unfinished()).await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the id cannot be the id of a session ([`with_id`](Self::with_id)), if the store cannot be read,
    /// or if its entry is not a session, or damaged. The entry stays as it is.
    ///
    /// # When it is stored
    ///
    /// A run claims the session before it reads it, and goes on only after these commits: its input, or the beginning
    /// of another attempt; a response, before the gates and the calls; a call that begins; the result of a call, the last
    /// one with the end of its turn; the questions of an interrupt; the answer. A commit has all records since the last
    /// one, so the
    /// stored session is the one that the handle holds, also after a run that was aborted or dropped. The commit that
    /// ends a run releases the claim, and `shutdown` waits for it. A run that loses its claim is aborted. If a commit
    /// fails, the run fails, the call that it was about stays open, and nothing of it is executed. A run that ends
    /// before it has claimed the session leaves the stored session as it is.
    ///
    /// The function of a call is called, and a run below it is started, only after a commit says that the call has begun,
    /// also if an earlier run had begun it. The work of a layer before that may happen again. In another process the
    /// function of such a call is called again only if the tool is idempotent, and then with the same key, whose fence is
    /// the number of the commit. Otherwise its result says that it may have had effects.
    ///
    /// An answer that layers and output functions have not returned yet is not in the stored history: a resume calls
    /// them again, and not the model. Lists of unfinished sessions have the session until its run has ended or failed. A
    /// message that comes afterwards lists it as paused, unless it is an answer.
    /// A message that was sent is stored by the next commit of the run, or by one of its own ([`saved`](Self::saved));
    /// if another process holds the session, it is sent to that process, and so are a [pause](Self::pause) and answers. The
    /// values of [`set_meta`](Self::set_meta) stay in the handle until the session is free.
    pub fn open<S: Store + Clone>(store: &S, id: impl Into<String>) -> OpenSession {
        OpenSession {
            kept: Kept { store: Arc::new(store.clone()), lease: Lease::new(), keep: Keep::Nothing },
            id: id.into(),
        }
    }

    /// Waits until all that was sent to the session, and all that has changed, is stored. If another process holds the
    /// session, this waits until that process has taken what was sent, at most a second, or until its lease is over, unless
    /// the session has a queue, whose workers go on with it. Without a store, returns at once.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Held`] if another process holds the session, and values of [`set_meta`](Self::set_meta) are
    /// not stored: they stay here until it is free. Returns [`StoreError::Full`] if 1,000 messages wait in the store.
    /// Returns the error of the store if it fails; the next commit tries again.
    pub async fn saved(&self) -> Result<(), StoreError> {
        let Some(entry) = self.log.entry() else { return Ok(()) };
        loop {
            match entry.journal.commit().await {
                // The session was read again, with the messages that were not stored.
                Err(StoreError::Conflict { current, .. }) if current != Revision::NONE => {}
                Err(held @ StoreError::Held { .. }) => {
                    if !entry.post_inputs(&self.log).await? {
                        return Err(held);
                    }
                    if entry.are_posts_safe(&self.log).await? {
                        return Ok(());
                    }
                    // If the process has ended without them, the next commit takes them.
                    sleep(LOOK).await;
                }
                stored => return stored.map(drop),
            }
        }
    }

    /// Reads the session again if another process has changed it, and no run of this process uses it.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, and the errors of [`open`](Self::open).
    pub async fn refresh(&self) -> Result<(), StoreError> {
        match self.log.entry() {
            Some(entry) => entry.journal.refresh().await.map(drop),
            None => Ok(()),
        }
    }

    fn is_live(&self) -> bool {
        self.read(|session| session.runs.iter().any(Run::is_live))
    }

    /// A message has come: if no run uses the session, lists have it (A27).
    pub(super) fn note_new(&self) {
        if let Some(entry) = self.log.entry().filter(|_| !self.is_live()) {
            entry.note_new();
        }
    }

    /// Stores what was sent to the session. A run that is under way stores it with its next commit.
    pub(super) fn save_soon(&self) {
        let Some(entry) = self.log.entry().filter(|_| !self.is_live()) else { return };
        let session = self.clone();
        let save = async move {
            if let Err(error) = session.saved().await {
                tracing::warn!(%error, "a message to a session is not stored yet");
            }
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(save)),
            Err(_) => tracing::warn!(
                id = entry.journal.id(),
                "a message to a session is not stored: there is no tokio runtime"
            ),
        }
    }
}

/// Opens a session when it is awaited. Returned by [`Session::open`].
#[must_use = "a session is opened when this is awaited"]
#[derive(Debug)]
pub struct OpenSession {
    kept: Kept,
    id: String,
}

impl OpenSession {
    /// Sets for how long a process that was killed holds the session, and the name of this process. If the session is
    /// open in this process already, it keeps its lease.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.kept.lease = lease;
        self
    }

    /// Sets which turns can still be read ([`Session::at`]) when the store has made a snapshot, by default none. If the
    /// session is open in this process already, it keeps what it was opened with. [Forks](Session::fork) keep the same.
    pub fn keep(mut self, keep: Keep) -> Self {
        self.kept.keep = keep;
        self
    }

    /// Makes the session instead of opening it, with values of [`set_meta`](Session::set_meta), such as its owner. The
    /// store has it when this returns. Of several processes that make a session with one id, one succeeds.
    ///
    /// # Errors
    ///
    /// Returns [`PastError::Exists`] if the store has an entry with this id, or if a session with this id is open in this
    /// process. Returns an error if the id or the values are not valid, or if the store fails.
    pub async fn create(self, meta: Map<String, Value>) -> Result<Session, PastError> {
        let Self { kept, id } = self;
        let session = match Session::with_id(&id) {
            Ok(session) => session,
            Err(error) => return Err(PastError::InvalidId { id, problem: error.to_string() }),
        };
        for (key, value) in meta {
            let set = session.set_meta(key, value);
            set.map_err(|error| StoreError::failed(format!("the session `{id}` cannot be made"), error))?;
        }
        SessionEntry::create(session, kept).await
    }
}

impl IntoFuture for OpenSession {
    type Output = emitree_runtime::Result<Session>;
    type IntoFuture = BoxFuture<'static, emitree_runtime::Result<Session>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(SessionEntry::open(self.kept, self.id))
    }
}
