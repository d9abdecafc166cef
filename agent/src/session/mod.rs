//! Sessions that several runs can share: a history and the state of middleware.
//!
//! A session is a list of records ([`record`]). [`fold`] is the only code that changes it, and is pure. [`log`] has the
//! lock, what a store does not have yet, and what only this process knows. [`run`] and [`turn`] are the handles of a run
//! of an agent, and of its turn.

pub(crate) mod commits;
pub(crate) mod entry;
pub(crate) mod fold;
pub(crate) mod keys;
mod log;
pub(crate) mod past;
pub(crate) mod posts;
pub(crate) mod questions;
pub(crate) mod record;
pub(crate) mod run;
mod served;
mod status;
pub(crate) mod turn;

use std::sync::Arc;

use emitree_emitter::json::to_value_exact;
use emitree_emitter::new_id;
use emitree_runtime::{Error, Result, RunKey};
use serde::de::DeserializeOwned;
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::message::Message;
use crate::message::arguments::storing;
use crate::message::history::{History, HistoryError, check};
use crate::session::fold::{CAPACITY, Conversation};
use crate::session::keys::{SessionKey, read_key};
use crate::session::log::{Log, View};
use crate::session::posts::close_turn;
use crate::session::record::{Input, Record};
use crate::session::turn::Closed;

/// The maximum length of all values of [`Session::set_meta`], as JSON.
const MAX_META_BYTES: usize = 16 * 1024;

/// A [`History`] that several runs can share and continue. The messages of a run stay in the session, even if the run
/// fails, is aborted or is dropped. A session also keeps the [`State`](crate::State) of middleware.
///
/// Clones of a session share its history and state. Several runs may use one session at the same time: each turn enters
/// the history as a whole, in the order in which the turns end. Before another attempt of a run, the messages of the
/// run's previous attempt are removed, what it has rewritten is put back, and the messages of other runs stay. The state
/// of middleware is then reset to its values at the beginning of the run. The reset also undoes changes by other runs.
///
/// # Storing a session
///
/// A session serializes as `{"format": 1, "id": "…", "turns": 2, "messages": […], "spans": […], "state": {"<id>": …}}`.
/// A span has the number of messages that entered together, and the number of their turn. The state of each middleware
/// is under the middleware's id. If they are not empty, it also has `table` (the last 1,000 turns), `meta`
/// ([`set_meta`](Self::set_meta)), `inbox` ([`undelivered`](Self::undelivered),
/// [`undelivered_to`](Self::undelivered_to)), `paused` ([`pause`](Self::pause)), `runs`: where the last run has stopped,
/// with its [`questions`](Self::questions), for [`Agent::resume`](crate::Agent::resume), and `below`: the sessions of
/// sub-agents whose calls are open. A session may be stored at any time: during a run, it is what it would be if the run
/// were dropped at that moment. A stored session contains the secrets of its conversation, and a program that can change
/// it can forge results: keep it on the server.
///
/// Serializing fails if a middleware's state cannot be serialized. Deserializing fails if the format is not 1, or if a
/// part is not valid, with its path. `{"format": 1, "messages": […]}` is a session too: it gets a random id. The state of
/// a middleware is kept as JSON until the middleware first uses the state.
///
/// ```
/// use emitree_agent::{Message, Session};
///
/// let session = Session::new();
/// session.extend([Message::user("I am Ada.")])?;
/// let stored = serde_json::to_string(&session)?;
/// let restored: Session = serde_json::from_str(&stored)?;
/// assert_eq!(restored.history(), session.history());
///
/// let error = serde_json::from_str::<Session>(r#"{"format": 7, "messages": []}"#).unwrap_err();
/// let expected = "the session is stored in the format 7, but only the format 1 can be read";
/// assert!(error.to_string().starts_with(expected));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Conversation")]
pub struct Session {
    log: Arc<Log>,
    view: Arc<View>,
}

/// The reason why a message was not sent to a running agent. It gives the message back: a [`Message`], or the value of
/// [`Session::send`].
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SendError<T = Message> {
    /// Too many messages wait in the session.
    #[error("the message was not sent: {CAPACITY} messages wait in the session, which is the limit")]
    Full {
        /// The message.
        message: Box<T>,
    },
    /// The message is not valid by itself. See [`History::extend`].
    #[error("the message was not sent: {error}")]
    Invalid {
        /// The message.
        message: Box<T>,
        /// The fault.
        error: HistoryError,
    },
}

impl<T> SendError<T> {
    /// Returns the message.
    #[must_use]
    pub fn into_message(self) -> T {
        let (Self::Full { message } | Self::Invalid { message, .. }) = self;
        *message
    }
}

impl Session {
    /// Makes an empty session with a random id.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an empty session with an id. The keys of model calls and tool calls begin with it
    /// ([`RunContext::key`](emitree_runtime::RunContext::key)), so no other session may have the same id.
    ///
    /// # Errors
    ///
    /// Returns an error if the id is empty, has more than 200 bytes, or contains `/` or control characters.
    pub fn with_id(id: impl AsRef<str>) -> Result<Self> {
        Ok(Self::with_key(&RunKey::new(id.as_ref())?))
    }

    /// Returns the id. The id of the session of a sub-agent is the key of the sub-agent's run.
    #[must_use]
    pub fn id(&self) -> &str {
        self.view.key.get().as_str()
    }

    /// Makes an empty session with a key.
    pub(crate) fn with_key(key: &RunKey) -> Self {
        Self::of_messages(Vec::new(), Some(key))
    }

    fn of_messages(messages: Vec<Arc<Message>>, key: Option<&RunKey>) -> Self {
        let id = key.map(RunKey::as_str).unwrap_or_default();
        let fold = Conversation::of_messages(id, messages);
        Self::of_log(Log::of(fold, key.cloned().map(SessionKey::new).unwrap_or_default()))
    }

    fn of_log(log: Arc<Log>) -> Self {
        let view = Arc::clone(log.root());
        Self { log, view }
    }

    fn read<T>(&self, read: impl FnOnce(&Conversation) -> T) -> T {
        read(self.log.lock().session(&self.view))
    }

    /// Returns the key of the session.
    pub(crate) fn key(&self) -> &RunKey {
        self.view.key.get()
    }

    /// Returns the values that the program keeps in the session, such as the name of its user.
    #[must_use]
    pub fn meta(&self) -> Map<String, Value> {
        self.read(|session| session.meta.clone())
    }

    /// Sets a value that the program keeps in the session. Returns the value that was there before.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if the value cannot be serialized, or if all values together have more than
    /// 16 KiB as JSON: lists have them. A NaN or an infinity is an error, with its path.
    pub fn set_meta(&self, key: impl Into<String>, value: impl Serialize) -> Result<Option<Value>> {
        let key = key.into();
        let value = to_value_exact(&value)?;
        let state = &mut *self.log.lock();
        let mut meta = state.session(&self.view).meta.clone();
        let before = meta.insert(key.clone(), value.clone());
        let bytes = serde_json::to_string(&meta)?.len();
        if bytes > MAX_META_BYTES {
            return Err(Error::new(format!(
                "`{key}` is not set: the values of the session would have {bytes} bytes as JSON, and at most \
                 {MAX_META_BYTES} are allowed: keep large data elsewhere"
            )));
        }
        if before.as_ref() != Some(&value) {
            state.push(&self.view, Record::Meta { key, value }).map_err(Error::new)?;
        }
        Ok(before)
    }

    /// Returns the conversation so far.
    #[must_use]
    pub fn history(&self) -> History {
        self.read(|session| History(Arc::clone(&session.messages)))
    }

    /// Appends messages as [`History::extend`] does.
    ///
    /// A session with a [store](Self::open) stores them with its next commit, or when [`saved`](Self::saved) is called. If
    /// another process has changed the session meanwhile, it is read again without them: call
    /// [`refresh`](Self::refresh) before. Messages of [`steer`](Self::steer) stay.
    ///
    /// # Errors
    ///
    /// Returns an error, and appends nothing, if the messages are not valid by themselves.
    pub fn extend(&self, messages: impl IntoIterator<Item = Message>) -> Result<(), HistoryError> {
        // Messages are collected before the lock is taken, because the iterator is user code.
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        check(&messages)?;
        if messages.is_empty() {
            return Ok(());
        }
        let said = self.log.lock().push(&self.view, Record::Said { run: None, messages, turn: None });
        debug_assert_eq!(said, Ok(()), "the messages are valid");
        self.note_new();
        Ok(())
    }

    /// Returns a copy of the state of a middleware, or `None` if the session has none for this id. Use it outside of
    /// runs; hooks and tools use the [handle](crate::State) of the middleware. If a closure uses a value on another
    /// thread, this method waits.
    ///
    /// ```
    /// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session, hooks_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let counts = hooks_fn("counts", |hooks| {
    ///     let turns = hooks.state::<u32>();
    ///     hooks.on_action(move |_, ctx| turns.with(ctx, |turns| *turns += 1));
    /// });
    /// let agent = Agent::builder("friend", ChatModel::new(ScriptedModel::new("test").text("Hi."))?).with(counts).build()?;
    /// let session = Session::new();
    /// assert_eq!(session.state::<u32>("counts")?, None);
    /// agent.ask("Hello.").session(&session).await?;
    /// assert_eq!(session.state::<u32>("counts")?, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the state is not a `T`, if it cannot be serialized, or if a closure on this thread uses it.
    pub fn state<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>> {
        self.view.slices.read(&id.into())
    }

    /// Sends a message to the run that uses the session: the model reads it at its next call. If the last call is over,
    /// the message starts another round. While no run is under way, messages wait for the next one, and enter the
    /// history after its input.
    ///
    /// The message passes through the hooks of [`steer.inject`](crate::Place::SteerInject). If the session has several
    /// runs, one of them takes it. A discarded attempt of a run gives it to the next one.
    ///
    /// ```
    /// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let script = ScriptedModel::new("test").text("8,849 m.").text("Everest.");
    /// let agent = Agent::builder("guide", ChatModel::new(script)?).build()?;
    /// let session = Session::new();
    /// session.steer("Use metres.")?;
    /// session.follow_up("Its name only.")?;
    /// let answer = agent.ask("What is the highest mountain?").session(&session).await?;
    /// assert_eq!(answer.text(), "Everest.");
    /// let texts: Vec<_> = session.history().messages().iter().map(|message| message.text()).collect();
    /// assert_eq!(texts, ["What is the highest mountain?", "Use metres.", "8,849 m.", "Its name only.", "Everest."]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error that gives the message back if it is not valid by itself, or if 1,000 messages wait.
    pub fn steer(&self, message: impl Into<Message>) -> Result<(), SendError> {
        self.put(message.into(), Input::Steer)
    }

    /// Sends a message for the end of the loop: where a run would end, the message starts another round. Each follow-up
    /// starts a round of its own, and waits until no message of [`steer`](Self::steer) does.
    ///
    /// # Errors
    ///
    /// As for [`steer`](Self::steer).
    pub fn follow_up(&self, message: impl Into<Message>) -> Result<(), SendError> {
        self.put(message.into(), Input::FollowUp)
    }

    /// Sends a message as [`steer`](Self::steer) does, and stops calls that have not begun. The message belongs to the
    /// first run of this session whose tool calls are under way, or that next begins a turn or the calls of a turn.
    ///
    /// A call of that run that has not begun is not executed, and the model reads "not executed: the user interjected".
    /// If it waits in a gate, in a guard or for an approval, this wait is aborted. Calls that have begun go on. The hooks
    /// of [`steer.skip`](crate::Place::SteerSkip) receive the calls that are not executed.
    ///
    /// # Errors
    ///
    /// As for [`steer`](Self::steer).
    pub fn interject(&self, message: impl Into<Message>) -> Result<(), SendError> {
        self.put(message.into(), Input::Interject)?;
        let closed = close_turn(&mut self.log.lock(), &self.view);
        closed.into_iter().for_each(Closed::abort);
        Ok(())
    }

    /// Sends a value to one middleware, by its id. Before its next model call, the run that uses the session calls the
    /// hooks of [`on_message`](crate::Hooks::on_message) of this middleware with the value, and before the messages of
    /// [`steer`](Self::steer) enter the history. The value starts no further round, so it may wait for the next run, as
    /// it does while no run is under way. If the session has several runs, one of them takes it. A discarded attempt
    /// gives it to the next one, and an attempt that is dropped while a hook has the value leaves it to the next run.
    ///
    /// If no middleware of the run has the id and a hook for messages, or if the hook fails, a warning is logged, the
    /// event `message_dropped` ([`MessageDropped`](crate::steering::MessageDropped)) reports it, and the value is gone.
    ///
    /// # Errors
    ///
    /// Returns an error that gives the value back if 1,000 messages wait, also those of [`steer`](Self::steer).
    pub fn send(&self, id: impl Into<Arc<str>>, value: impl Into<Value>) -> Result<(), SendError<Value>> {
        let (to, value) = (id.into(), value.into());
        if !self.send_input(|| Input::Value { to, value: value.clone() }) {
            return Err(SendError::Full { message: Box::new(value) });
        }
        self.save_soon();
        Ok(())
    }

    /// Lets the run that uses the session end after its current turn, before the next model call. The calls of the turn
    /// settle, and the turn enters the history. The run then ends with an error for which
    /// [`is_interrupted`](emitree_runtime::Error::is_interrupted) is `true`, with an interrupt of the kind `agent.paused`.
    /// [`Agent::resume`](crate::Agent::resume) goes on with the model call. Messages of [`steer`](Self::steer) and its
    /// siblings wait for it.
    ///
    /// The first run that is about to call the model takes the pause. While no run is under way, the pause waits for the
    /// next run. A run that ends with an answer takes the pause with it, unless another run uses the session. A run that
    /// ends in any other way leaves the pause for the run that goes on. A discarded attempt gives it to the next one.
    ///
    /// A sub-agent below a call of the turn is paused with it, before its own next model call, if the tool of the call is
    /// [idempotent](crate::Tool::idempotent), as [`Agent::as_tool`](crate::Agent::as_tool) is. The call stays open, and
    /// the sub-agent goes on inside. A sub-agent in another tool, or with a session of your own, ends its run first.
    ///
    /// ```
    /// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let script = ScriptedModel::new("test").text("Everest.");
    /// let agent = Agent::builder("guide", ChatModel::new(script)?).build()?;
    /// let session = Session::new();
    /// session.pause();
    /// let error = agent.ask("What is the highest mountain?").session(&session).await.unwrap_err();
    /// assert_eq!(error.interrupt().unwrap().kind, "agent.paused");
    /// assert_eq!(agent.resume(&session).await?.text(), "Everest.");
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause(&self) {
        {
            let state = &mut *self.log.lock();
            if state.session(&self.view).paused.is_none() {
                let paused = state.push(&self.view, Record::Paused { id: new_id() });
                debug_assert_eq!(paused, Ok(()), "the session is not paused");
            }
        }
        self.save_soon();
    }

    /// Returns the values that were sent to a middleware, and whose hooks were not called yet, in the order in which they
    /// were sent.
    #[must_use]
    pub fn undelivered_to(&self, id: &str) -> Vec<Value> {
        let value = |sent: &Input| match sent {
            Input::Value { to, value } if **to == *id => Some(value.clone()),
            _ => None,
        };
        self.read(|session| session.inbox.iter().filter_map(|waiting| value(&waiting.sent)).collect())
    }

    /// Returns the messages that were sent, and that the history does not have yet, in the order in which they were
    /// sent.
    #[must_use]
    pub fn undelivered(&self) -> Vec<Arc<Message>> {
        self.read(|session| session.inbox.iter().filter_map(|waiting| waiting.sent.message().cloned()).collect())
    }

    fn put(&self, message: Message, sent: impl FnOnce(Arc<Message>) -> Input) -> Result<(), SendError> {
        let message = Arc::new(message);
        let boxed = |message| Box::new(Arc::unwrap_or_clone(message));
        if let Err(error) = check(std::slice::from_ref(&message)) {
            return Err(SendError::Invalid { message: boxed(message), error });
        }
        if !self.send_input(|| sent(Arc::clone(&message))) {
            return Err(SendError::Full { message: boxed(message) });
        }
        self.note_new();
        self.save_soon();
        Ok(())
    }

    /// Puts a message into the inbox. Returns `false` if it is full.
    fn send_input(&self, sent: impl FnOnce() -> Input) -> bool {
        let state = &mut *self.log.lock();
        let (number, waiting) = {
            let session = state.session(&self.view);
            (session.sent, session.inbox.len())
        };
        waiting < CAPACITY && state.push(&self.view, Record::Sent { number, id: new_id(), sent: sent() }).is_ok()
    }
}

impl Default for Session {
    fn default() -> Self {
        Self::of_messages(Vec::new(), None)
    }
}

impl From<History> for Session {
    fn from(History(messages): History) -> Self {
        Self::of_messages(Arc::unwrap_or_clone(messages), None)
    }
}

/// As if all runs of the session ended now.
impl Serialize for Session {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.log.sync_all().map_err(S::Error::custom)?;
        let session = {
            let state = &mut *self.log.lock();
            state.identify(&self.view);
            let below = if self.view.is_below() { state.fold.below(self.id()) } else { None };
            below.unwrap_or_else(|| state.session(&self.view).clone())
        };
        storing(|| session.as_if_ended().serialize(serializer))
    }
}

impl TryFrom<Conversation> for Session {
    type Error = String;

    fn try_from(read: Conversation) -> Result<Self, String> {
        let session = Self::of_fold(read.checked()?)?;
        session.end_dead();
        Ok(session)
    }
}

impl Session {
    fn of_fold(fold: Conversation) -> Result<Self, String> {
        let key = if fold.id.is_empty() { SessionKey::default() } else { SessionKey::new(read_key(&fold.id)?) };
        Ok(Self::of_log(Log::of(fold, key)))
    }

    /// Ends the runs of a session that was read.
    fn end_dead(&self) {
        self.log.lock().end_dead(self.log.root());
    }
}
