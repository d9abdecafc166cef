//! Sessions that several runs can share: a history and the state of middleware.

pub(crate) mod commits;
mod delta;
pub(crate) mod entry;
#[cfg(test)]
mod fold;
mod inbox;
pub(crate) mod keys;
mod live_run;
pub(crate) mod open_turn;
pub(crate) mod questions;
#[cfg(test)]
mod record;
pub(crate) mod run;
pub(crate) mod stopped;
mod stored;
pub(crate) mod turn_calls;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use emitree_emitter::json::to_value_exact;
use emitree_emitter::new_id;
use emitree_runtime::{Error, Result, RunKey};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;
use uuid::Uuid;

use crate::message::Message;
use crate::message::history::{History, HistoryError, check};
use crate::place::state::Slices;
use crate::session::inbox::{CAPACITY, Inbox, Sent};
use crate::session::keys::SessionKey;
use crate::session::live_run::LiveRun;
use crate::session::stopped::{OpenCall, Stopped, Unreturned};
use crate::session::stored::Stored;

/// The maximum length of all values of [`Session::set_meta`], as JSON.
const MAX_META_BYTES: usize = 16 * 1024;

/// A [`History`] that several runs can share and continue. The messages of a run stay in the session, even if the run
/// fails, is aborted or is dropped. A session also keeps the [`State`](crate::State) of middleware.
///
/// Clones of a session share its history and state. Several runs may use one session at the same time: each turn enters
/// the history as a whole, in the order in which the turns end. Before another attempt of a run, the messages of the
/// run's previous attempt are removed, and the messages of other runs stay. If another run has rewritten
/// only a part of a turn, nothing is removed, because the rest of that turn would be invalid. The state of middleware is
/// then reset to its values at the beginning of the run. The reset also undoes changes by other runs.
///
/// # Storing a session
///
/// A session serializes as `{"version": 3, "id": "…", "turns": 2, "history": […], "state": {"<id>": …}}`, with the state
/// of each middleware under the middleware's id. If they are not empty, it also has `meta` ([`set_meta`](Self::set_meta)),
/// `inbox` ([`undelivered`](Self::undelivered), [`undelivered_to`](Self::undelivered_to)), `paused`
/// ([`pause`](Self::pause)), `below` (the sessions of sub-agents whose calls are open) and `open`: where the last run has stopped, with its [`questions`](Self::questions), for
/// [`Agent::resume`](crate::Agent::resume). A session may be stored at any time: during a run, it is what it would be if
/// the run were dropped at that moment. A stored session contains the secrets of its conversation, and a program that can
/// change it can forge results: keep it on the server.
///
/// Serializing fails if a middleware's state cannot be serialized. Deserializing fails if the version is not 1, 2 or 3,
/// or if a part such as the history is not valid, with the path of the fault in `open`. A session of version 1 or 2 has
/// no id, and gets a random one. The state of a middleware is kept as JSON until the middleware first
/// uses the state.
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
/// let error = serde_json::from_str::<Session>(r#"{"version": 7, "history": []}"#).unwrap_err();
/// let expected = "the session is stored in version 7, but only the versions 1 to 3 can be read";
/// assert!(error.to_string().starts_with(expected));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Session {
    shared: Arc<Shared>,
    slices: Slices,
    key: Arc<SessionKey>,
}

/// The part of a session that its clones share.
#[derive(Debug, Default)]
struct Shared {
    conversation: Mutex<Conversation>,
    /// The number of messages in the inbox, and 1 for a pause, for runs that look whether there is anything.
    waiting: AtomicUsize,
    /// The number of turns so far, those of discarded attempts included.
    turns: AtomicU64,
}

/// One lock holds all parts, because a message moves from the inbox to the history, and a turn from its run to the
/// history, in one step.
#[derive(Debug, Default)]
struct Conversation {
    history: History,
    inbox: Inbox,
    /// The id of the pause, if a run has to end before its next model call.
    pause: Option<Uuid>,
    /// The runs that use the session.
    live: Vec<Arc<LiveRun>>,
    /// The last run that has ended without an answer, until another run goes on or begins anew.
    stopped: Option<Stopped>,
    /// The answers in the history that their runs have not returned yet, if a store keeps the session.
    unreturned: Vec<(Arc<LiveRun>, Arc<Message>)>,
    /// The ids of the middlewares whose hooks of `agent.start` were called in this process.
    started: BTreeSet<String>,
    /// Values of the user.
    meta: Map<String, Value>,
}

impl Conversation {
    /// Keeps where a run has stopped. A session has one open turn: an older one is closed.
    fn stop(&mut self, stopped: Stopped) {
        let run = stopped.run;
        if let Some(older) = stopped.take_place_of(&mut self.stopped) {
            tracing::warn!(
                earlier_run = %older.run, %run,
                "a run leaves open calls, so those of an earlier run of its session are closed"
            );
            older.close(&mut self.history);
        }
    }

    /// Returns `true` if a run has ended, or would end now, without returning its answer.
    fn holds_answer(&self) -> bool {
        self.stopped.as_ref().is_some_and(|stopped| stopped.answer.is_some())
            || self.unreturned.iter().any(|(live, _)| !live.returns())
    }

    /// Returns the history, and where the last run has stopped, as they would be if all runs ended now.
    fn as_if_ended(&self) -> (History, Option<Stopped>) {
        let mut history = self.history.clone();
        let mut stopped = self.stopped.clone();
        for live in &self.live {
            if let Some(older) = live.stop_now(&mut history).take_place_of(&mut stopped) {
                older.close(&mut history);
            }
        }
        for (live, answer) in self.unreturned.iter().filter(|(live, _)| !live.returns()) {
            let Some(answer) = Unreturned::take(answer, &mut history) else { continue };
            live.stop_with(answer).take_place_of(&mut stopped);
        }
        let stopped = stopped.filter(|stopped| stopped.is_placed(&history));
        (history, stopped)
    }
}

impl Shared {
    fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    /// Changes the inbox or the pause, and counts both.
    fn change_inbox<T>(&self, change: impl FnOnce(&mut Conversation) -> T) -> T {
        let mut conversation = self.conversation.lock();
        let changed = change(&mut conversation);
        let waiting = conversation.inbox.len() + usize::from(conversation.pause.is_some());
        self.waiting.store(waiting, Ordering::Release);
        changed
    }
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
        Ok(Self::new().with_key(RunKey::new(id.as_ref())?))
    }

    /// Returns the id. The id of the session of a sub-agent is the key of the sub-agent's run.
    #[must_use]
    pub fn id(&self) -> &str {
        self.key.get().as_str()
    }

    /// Sets the key, before the session is used.
    pub(crate) fn with_key(mut self, key: RunKey) -> Self {
        self.key = SessionKey::new(key);
        self
    }

    /// Returns the values that the program keeps in the session, such as the name of its user.
    #[must_use]
    pub fn meta(&self) -> Map<String, Value> {
        self.shared.conversation.lock().meta.clone()
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
        let meta = &mut self.shared.conversation.lock().meta;
        let before = meta.insert(key.clone(), value);
        let bytes = serde_json::to_string(meta)?.len();
        if bytes <= MAX_META_BYTES {
            return Ok(before);
        }
        match before {
            Some(before) => meta.insert(key.clone(), before),
            None => meta.remove(&key),
        };
        Err(Error::new(format!(
            "`{key}` is not set: the values of the session would have {bytes} bytes as JSON, and at most {MAX_META_BYTES} \
             are allowed: keep large data elsewhere"
        )))
    }

    /// Returns the conversation so far.
    #[must_use]
    pub fn history(&self) -> History {
        self.shared.conversation.lock().history.clone()
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
        let messages: Vec<_> = messages.into_iter().collect();
        self.shared.conversation.lock().history.extend(messages)?;
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
        self.slices.read(&id.into())
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
        self.put(message.into(), |message| Sent::Steer { message })
    }

    /// Sends a message for the end of the loop: where a run would end, the message starts another round. Each follow-up
    /// starts a round of its own, and waits until no message of [`steer`](Self::steer) does.
    ///
    /// # Errors
    ///
    /// As for [`steer`](Self::steer).
    pub fn follow_up(&self, message: impl Into<Message>) -> Result<(), SendError> {
        self.put(message.into(), |message| Sent::FollowUp { message })
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
        self.put(message.into(), |message| Sent::Interject { message })?;
        let turn = self.shared.conversation.lock().inbox.interrupted_turn();
        if let Some(turn) = turn {
            turn.interject();
        }
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
        let sent = |value| Sent::Value { to, value };
        let pushed = self.shared.change_inbox(|conversation| conversation.inbox.push(value, sent));
        pushed.map_err(|value| SendError::Full { message: Box::new(value) })?;
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
        self.shared.change_inbox(|conversation| _ = conversation.pause.get_or_insert_with(new_id));
        self.save_soon();
    }

    /// Returns the values that were sent to a middleware, and whose hooks were not called yet, in the order in which they
    /// were sent.
    #[must_use]
    pub fn undelivered_to(&self, id: &str) -> Vec<Value> {
        self.shared.conversation.lock().inbox.values(id).cloned().collect()
    }

    /// Returns the messages that were sent, and that the history does not have yet, in the order in which they were
    /// sent.
    #[must_use]
    pub fn undelivered(&self) -> Vec<Arc<Message>> {
        self.shared.conversation.lock().inbox.messages().cloned().collect()
    }

    fn put(&self, message: Message, sent: impl FnOnce(Arc<Message>) -> Sent) -> Result<(), SendError> {
        let message = Arc::new(message);
        let boxed = |message| Box::new(Arc::unwrap_or_clone(message));
        if let Err(error) = check(std::slice::from_ref(&message)) {
            return Err(SendError::Invalid { message: boxed(message), error });
        }
        let pushed = self.shared.change_inbox(|conversation| conversation.inbox.push(message, sent));
        pushed.map_err(|message| SendError::Full { message: boxed(message) })?;
        self.note_new();
        self.save_soon();
        Ok(())
    }

    fn of(history: History) -> Self {
        let conversation = Mutex::new(Conversation { history, ..Conversation::default() });
        Self {
            shared: Arc::new(Shared { conversation, ..Shared::default() }),
            slices: Slices::default(),
            key: Arc::default(),
        }
    }

    /// Returns copies of what is known about the calls that are open, in order.
    fn open_calls(&self) -> Vec<OpenCall> {
        let mut calls = Vec::new();
        self.change_open_calls(|call| {
            calls.push(call.clone());
            None::<()>
        });
        calls
    }

    /// Calls a function with each call that is open, in order, until it returns a value.
    fn change_open_calls<T>(&self, mut change: impl FnMut(&mut OpenCall) -> Option<T>) -> Option<T> {
        let conversation = &mut *self.shared.conversation.lock();
        let stopped = conversation.stopped.as_mut().filter(|stopped| stopped.is_placed(&conversation.history));
        if let Some(changed) = stopped.and_then(|stopped| stopped.change_open_calls(&mut change)) {
            return Some(changed);
        }
        conversation.live.iter().find_map(|live| live.change_open_calls(&mut change))
    }

    /// Returns `true` if a run has begun to use the session.
    fn has_begun(&self) -> bool {
        self.shared.turns.load(Ordering::Relaxed) > 0 || self.shared.conversation.lock().stopped.is_some()
    }

    /// Returns the state of middleware.
    pub(crate) const fn slices(&self) -> &Slices {
        &self.slices
    }
}

impl From<History> for Session {
    fn from(history: History) -> Self {
        Self::of(history)
    }
}
