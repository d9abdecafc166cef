//! The entry of a session in a store (A24 to A27).
//!
//! 1. An entry belongs to the session that was opened. The sessions of the agents below its open calls share it, through
//!    their keys.
//! 2. [`Written`] is the session as it was last handed to the journal. A change is the difference to it, so a commit
//!    writes only what has changed, and what is stored is what the handle holds.
//! 3. While a run uses the session, this process holds the entry. A session that another process has changed meanwhile is
//!    read again before a run, or an answer, changes it.

use std::future::IntoFuture;
use std::mem::take;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use emitree_middleware::durable::JobStore;
use emitree_middleware::store::{
    Change, Claim, Entry, EntryHead, EntryStatus, Journal, Journaled, Lease, OpenEntries, OpenQuestion, Revision,
    Store, StoreError, check_id, joined_parts,
};
use emitree_runtime::{Error, RunKey};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::Role;
use crate::place::state::Slices;
use crate::session::delta::{Written, read};
use crate::session::keys::SessionKey;
use crate::session::{Conversation, Session, Shared};

/// The kind of the entries of sessions.
const KIND: &str = "session";

static OPEN: OpenEntries<SessionEntry> = OpenEntries::new();

/// A session in a store. Its key keeps it alive.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    journal: Journal,
    session: WeakSession,
    known: Mutex<Known>,
    this: Weak<Self>,
}

/// The session as it was last handed to the journal.
#[derive(Debug)]
struct Known {
    written: Written,
    /// The inputs that are stored.
    saved: Inputs,
    /// The inputs that were handed over last, and the revision at which they were: they are stored if it has moved.
    handed: (Inputs, Revision),
    listed: Listed,
    /// The status once no run uses the session.
    ended: EntryStatus,
    /// `true` if a message has come while no run used the session.
    has_new: bool,
    /// The number of runs that are about to use the session.
    claiming: usize,
}

impl Known {
    /// Returns the inputs that are stored at the journal's revision.
    fn saved_at(&self, revision: Revision) -> &Inputs {
        let (handed, before) = &self.handed;
        if revision == *before { &self.saved } else { handed }
    }
}

/// The part of a session that changes without a run.
#[derive(Clone, Debug)]
struct Inputs {
    /// The number of messages that the inbox has received.
    sent: u64,
    pause: Option<Uuid>,
    meta: Map<String, Value>,
}

impl Inputs {
    fn of(conversation: &Conversation) -> Self {
        let Conversation { inbox, pause, meta, .. } = conversation;
        Self { sent: inbox.sent(), pause: *pause, meta: meta.clone() }
    }

    /// Adds what a conversation has received since then to a conversation that was read.
    fn move_new(&self, from: &mut Conversation, to: &mut Conversation) {
        to.inbox.take_over(&mut from.inbox, self.sent);
        let pause = from.pause.filter(|pause| self.pause != Some(*pause) && !to.inbox.was_taken(*pause));
        to.pause = to.pause.or(pause);
        let is_new = |(key, value): &(String, Value)| self.meta.get(key) != Some(value);
        to.meta.extend(take(&mut from.meta).into_iter().filter(is_new));
    }
}

/// The part of a head that depends on the session.
#[derive(Clone, Debug, PartialEq)]
struct Listed {
    status: EntryStatus,
    questions: Vec<OpenQuestion>,
    meta: Map<String, Value>,
}

impl Listed {
    fn of(head: &EntryHead) -> Self {
        Self { status: head.status, questions: head.questions.clone(), meta: head.meta.clone() }
    }
}

/// A session that its own entry does not keep alive.
#[derive(Debug)]
struct WeakSession {
    shared: Weak<Shared>,
    slices: Slices,
    key: Weak<SessionKey>,
}

impl WeakSession {
    fn upgrade(&self) -> Option<Session> {
        let (shared, key) = (self.shared.upgrade()?, self.key.upgrade()?);
        Some(Session { shared, slices: self.slices.clone(), key })
    }
}

impl SessionEntry {
    /// Returns the session that a store keeps under an id, or a new one.
    async fn open(store: Arc<dyn Store>, id: String, lease: Lease) -> emitree_runtime::Result<Session> {
        check_id(&id)?;
        let store_id = store.store_id();
        if let Some(session) = OPEN.get(store_id, &id).and_then(|entry| entry.session.upgrade()) {
            return Ok(session);
        }
        let found = store.load(&id).await?;
        let session = match &found {
            // The session of a step of a job has the step's key.
            Some(entry) => session_of(entry)?,
            None => Session::with_id(&id)?,
        };
        let bytes = found.iter().flat_map(|entry| &entry.parts).map(Bytes::len).sum();
        let written = found.is_some().then(|| Written::of(&session)).transpose()?.unwrap_or_default();
        let head = found.map_or_else(|| EntryHead::new(&*id, KIND), |entry| entry.head);
        Ok(Self::keep(session, written, store, head, bytes, lease))
    }

    /// Returns the session of an agent in a step of a job. It is read when a run claims it.
    pub(crate) fn below_job(key: &RunKey, job: &JobStore) -> Session {
        let (store, lease) = (Arc::clone(job.store()), job.lease().clone());
        if let Some(session) = OPEN.get(store.store_id(), key.as_str()).and_then(|entry| entry.session.upgrade()) {
            return session;
        }
        let (session, head) = (Session::new().with_key(key.clone()), EntryHead::new(key.as_str(), KIND));
        Self::keep(session, Written::default(), store, head, 0, lease)
    }

    /// Lets a store keep a session, unless another task has opened it meanwhile. Returns the session.
    fn keep(
        session: Session,
        written: Written,
        store: Arc<dyn Store>,
        head: EntryHead,
        bytes: usize,
        lease: Lease,
    ) -> Session {
        let (store_id, id) = (store.store_id(), head.id.clone());
        let saved = Inputs::of(&session.shared.conversation.lock());
        let handed = (saved.clone(), head.revision);
        // A session that no run has begun to use has nothing to go on with.
        let ended = if head.revision == Revision::NONE { EntryStatus::Ended } else { head.status };
        let known =
            Mutex::new(Known { written, saved, handed, listed: Listed::of(&head), ended, has_new: false, claiming: 0 });
        let Session { shared, slices, key } = &session;
        let weak = WeakSession { shared: Arc::downgrade(shared), slices: slices.clone(), key: Arc::downgrade(key) };
        let entry = Arc::new_cyclic(|this: &Weak<Self>| {
            let journal = Journal::new(store, head, bytes, lease, this.clone());
            Self { journal, session: weak, known, this: this.clone() }
        });
        let open = OPEN.insert_or_get(store_id, &id, Arc::clone(&entry));
        if !Arc::ptr_eq(&open, &entry)
            && let Some(session) = open.session.upgrade()
        {
            return session;
        }
        session.share_entry(&entry);
        session
    }

    /// Returns `true` if this is the entry of this session, and not of a session above it.
    pub(crate) fn is_of(&self, session: &Session) -> bool {
        std::ptr::eq(self.session.key.as_ptr(), Arc::as_ptr(&session.key))
    }

    /// Claims the session for a run. In a job, waits for a process that holds it.
    pub(crate) async fn claim(&self, is_in_job: bool) -> emitree_runtime::Result<Claim> {
        let claiming = Claiming::new(&self.known);
        let claim = if is_in_job { self.journal.claim_when_free().await } else { self.journal.claim().await };
        drop(claiming);
        let claim = claim.map_err(not_stored)?;
        self.known.lock().has_new = false;
        Ok(claim)
    }

    /// A message has come while no run uses the session, so a run can go on with it (A27).
    fn note_new(&self) {
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

    /// Stores the answer to a question. Nobody has to have a claim.
    pub(super) async fn store_answer(&self) -> Result<(), StoreError> {
        self.journal.commit().await.map(drop)
    }

    /// Stores all changes so far, and releases the claim of a run that has ended. Without a status, the run has changed
    /// nothing.
    pub(crate) async fn release(&self, claim: Option<Claim>, status: Option<EntryStatus>) -> Result<(), StoreError> {
        if let Some(status) = status {
            self.known.lock().ended = status;
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

fn session_of(entry: &Entry) -> Result<Session, StoreError> {
    let EntryHead { id, kind, meta, .. } = &entry.head;
    if kind != KIND {
        let problem = format!("it is a `{kind}`, and not a `{KIND}`");
        return Err(StoreError::Invalid { id: id.clone(), problem });
    }
    let changes = joined_parts(entry)?;
    let session = read(id, changes.iter().map(|change| &**change)).map_err(|fault| StoreError::damaged(id, fault))?;
    session.shared.conversation.lock().meta.clone_from(meta);
    Ok(session)
}

impl Journaled for SessionEntry {
    fn change(&self, whole: bool) -> Result<Option<Change>, StoreError> {
        let Some(session) = self.session.upgrade() else { return Ok(None) };
        let failed =
            |error: Error| StoreError::failed(format!("the session `{}` cannot be written", session.id()), error);
        let handed = Inputs::of(&session.shared.conversation.lock());
        let (written, questions, meta) = (Written::of(&session).map_err(failed)?, session.questions(), session.meta());
        let (is_live, has_messages, is_held, is_answered) = {
            let conversation = session.shared.conversation.lock();
            let last = conversation.history.messages().last();
            (
                !conversation.live.is_empty(),
                conversation.inbox.messages().next().is_some(),
                conversation.holds_answer(),
                last.is_none_or(|last| last.role == Role::Assistant),
            )
        };
        let known = &mut *self.known.lock();
        let nothing = Written::default();
        let changed = written.since(if whole { &nothing } else { &known.written });
        let changed = changed.map_err(|error| failed(error.into()))?;
        let status = match known.ended {
            // A run is under way as soon as it claims the session.
            _ if is_live || known.claiming > 0 => EntryStatus::Running,
            _ if !questions.is_empty() => EntryStatus::Waiting,
            // The questions have answers, or messages wait, so a run can go on.
            EntryStatus::Waiting => EntryStatus::Running,
            EntryStatus::Ended if has_messages || is_held => EntryStatus::Running,
            EntryStatus::Failed if known.has_new => EntryStatus::Paused,
            EntryStatus::Ended if known.has_new && !is_answered => EntryStatus::Paused,
            ended => ended,
        };
        let questions = questions.into_iter().map(|question| OpenQuestion { id: question.id, kind: question.kind });
        let listed = Listed { status, questions: questions.collect(), meta };
        let is_same = changed.is_none() && known.listed == listed;
        let revision = self.journal.revision();
        known.saved = if is_same { handed.clone() } else { known.saved_at(revision).clone() };
        known.handed = (handed, revision);
        (known.written, known.listed) = (written, listed.clone());
        let Listed { status, questions, meta } = listed;
        let parts = changed.into_iter().map(Bytes::from).collect();
        Ok((!is_same).then_some(Change { status, questions, meta, parts }))
    }

    fn reload(&self, entry: &Entry) -> Result<(), StoreError> {
        let Some(session) = self.session.upgrade() else { return Ok(()) };
        let stored = session_of(entry)?;
        let failed = |error: Error| StoreError::failed(format!("the session `{}` cannot be read", session.id()), error);
        let (written, state) = (Written::of(&stored).map_err(failed)?, stored.slices.snapshot().map_err(failed)?);
        let turns = stored.shared.turns.load(Ordering::Relaxed);
        let mut stored = take(&mut *stored.shared.conversation.lock());
        let saved = Inputs::of(&stored);
        session.shared.turns.store(turns, Ordering::Relaxed);
        session.slices.restore(&state);
        let known = &mut *self.known.lock();
        let before = known.saved_at(self.journal.revision());
        let has_new = session.shared.change_inbox(|conversation| {
            // Changes that were not stored yet stay.
            let known = stored.inbox.len();
            before.move_new(conversation, &mut stored);
            let has_new = stored.inbox.len() > known;
            let Conversation { history, inbox, pause, stopped, meta, .. } = stored;
            (conversation.history, conversation.inbox, conversation.pause) = (history, inbox, pause);
            (conversation.stopped, conversation.meta) = (stopped, meta);
            has_new
        });
        let claiming = known.claiming;
        let handed = (saved.clone(), entry.head.revision);
        *known = Known {
            written,
            saved,
            handed,
            listed: Listed::of(&entry.head),
            ended: entry.head.status,
            has_new,
            claiming,
        };
        if let Some(this) = self.this.upgrade() {
            session.share_entry(&this);
        }
        Ok(())
    }

    fn lost(&self, error: &StoreError) {
        let Some(session) = self.session.upgrade() else { return };
        let live = session.shared.conversation.lock().live.clone();
        for live in live {
            let run = live.parts.lock().run.clone();
            run.inspect(|run| _ = run.abort(error.to_string()));
        }
    }
}

impl Session {
    /// Opens the session with this id in a store: reads it, or makes a new one. From now on, each run of the session
    /// stores it before it goes on, and [`answer`](Self::answer) stores the answer.
    ///
    /// Opening only reads. A run claims the session before it reads it, and releases it at its end; a second process
    /// that runs it, or answers, gets an error that names the holder ([`StoreError::Held`]). A session that is open in
    /// this process, through this store or a clone of it, is returned as a clone, so that one request can steer the run
    /// of another.
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
    /// of another attempt; a response, before the gates and the calls; a call that begins; the result of a call; the
    /// questions of an interrupt; the end of a turn; the answer. A commit has all changes since the last one, so the
    /// stored session is the one that the handle holds, also after a run that was aborted or dropped. The commit that
    /// ends a run releases the claim, and `shutdown` waits for it. A run that loses its claim is aborted. If a commit
    /// fails, the run fails, the call that it was about stays open, and nothing of it is executed. A run that ends
    /// before it has claimed the session leaves the stored session as it is.
    ///
    /// The function of a call, or a layer that may do its work, is entered only after a commit says that the call has
    /// begun, also if an earlier run had begun it. In another process the function of such a call is called again only
    /// if the tool is idempotent, and then with the same key, whose fence is the number of the commit. Otherwise its
    /// result says that it may have had effects.
    ///
    /// An answer that layers and output functions have not returned yet is not in the stored history: a resume calls
    /// them again, and not the model. Lists of unfinished sessions have the session until its run has ended or failed. A
    /// message that comes afterwards lists it as paused, unless it is an answer.
    /// A message that was sent is stored by the next commit of the run, or by one of its own ([`saved`](Self::saved));
    /// if another process has the session, or has changed it, the message stays in the handle, and so do a
    /// [pause](Self::pause) and the values of [`set_meta`](Self::set_meta).
    pub fn open<S: Store + Clone>(store: &S, id: impl Into<String>) -> OpenSession {
        OpenSession { store: Arc::new(store.clone()), id: id.into(), lease: Lease::new() }
    }

    /// Waits until all that was sent to the session, and all that has changed, is stored. Without a store, returns at
    /// once.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Held`] if another process has claimed the session: the message stays in
    /// [`undelivered`](Self::undelivered). Returns the error of the store if it fails; the next commit tries again.
    pub async fn saved(&self) -> Result<(), StoreError> {
        let Some(entry) = self.key.entry() else { return Ok(()) };
        loop {
            match entry.journal.commit().await {
                // The session was read again, with the messages that were not stored.
                Err(StoreError::Conflict { current, .. }) if current != Revision::NONE => {}
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
        match self.key.entry() {
            Some(entry) => entry.journal.refresh().await.map(drop),
            None => Ok(()),
        }
    }

    /// Lets the sessions below the open calls be written with this session.
    fn share_entry(&self, entry: &Arc<SessionEntry>) {
        self.key.set_entry(entry);
        let below = self.open_calls().into_iter().flat_map(|call| call.sessions.into_values());
        below.for_each(|session| session.share_entry(entry));
    }

    /// A message has come: if no run uses the session, lists have it (A27).
    pub(super) fn note_new(&self) {
        if let Some(entry) = self.key.entry().filter(|_| self.shared.conversation.lock().live.is_empty()) {
            entry.note_new();
        }
    }

    /// Stores what was sent to the session. A run that is under way stores it with its next commit.
    pub(super) fn save_soon(&self) {
        let Some(entry) = self.key.entry() else { return };
        if !self.shared.conversation.lock().live.is_empty() {
            return;
        }
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
    store: Arc<dyn Store>,
    id: String,
    lease: Lease,
}

impl OpenSession {
    /// Sets for how long a process that was killed holds the session, and the name of this process. If the session is
    /// open in this process already, it keeps its lease.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }
}

impl IntoFuture for OpenSession {
    type Output = emitree_runtime::Result<Session>;
    type IntoFuture = BoxFuture<'static, emitree_runtime::Result<Session>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(SessionEntry::open(self.store, self.id, self.lease))
    }
}
