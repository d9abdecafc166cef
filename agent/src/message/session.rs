//! Sessions that several runs can share: a history and the state of middleware.

use std::collections::HashSet;
use std::mem::{replace, take};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use emitree_emitter::new_id;
use emitree_runtime::Result;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::message::history::{History, HistoryError, check, check_parts};
use crate::message::stored::Stored;
use crate::message::{Message, Part, Role, ToolResult};
use crate::place::state::Slices;
use crate::tool::started::WorkStarted;

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
/// A session serializes as `{"version": 2, "history": […], "state": {"<id>": …}}`, with the state of each middleware
/// under the middleware's id. Store a session between runs: during a run, the state already has the changes of the
/// current turn, but the history does not have the turn's messages yet. Serializing fails if a middleware's state
/// cannot be serialized. Deserializing fails if the version is neither 1 nor 2 or if the history is not valid. The
/// state of a middleware is kept as JSON until the middleware first uses the state.
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
/// assert_eq!(error.to_string(), "the session is stored in version 7, but only the versions 1 to 2 can be read");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Session {
    pub(super) history: Arc<Mutex<History>>,
    pub(super) slices: Slices,
}

impl Session {
    /// Makes an empty session.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the conversation so far.
    #[must_use]
    pub fn history(&self) -> History {
        self.history.lock().clone()
    }

    /// Appends messages as [`History::extend`] does.
    ///
    /// # Errors
    ///
    /// Returns an error, and appends nothing, if the messages are not valid by themselves.
    pub fn extend(&self, messages: impl IntoIterator<Item = Message>) -> Result<(), HistoryError> {
        // Messages are collected before the lock is taken, because the iterator is user code.
        let messages: Vec<_> = messages.into_iter().collect();
        self.history.lock().extend(messages)
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

    /// Returns the state of middleware.
    pub(crate) const fn slices(&self) -> &Slices {
        &self.slices
    }
}

impl From<History> for Session {
    fn from(history: History) -> Self {
        Self { history: Arc::new(Mutex::new(history)), slices: Slices::default() }
    }
}

/// The session of one run, and the messages that the current attempt of the run added.
///
/// Invariant: every change is made under the session's lock and to the current history, because other runs may change
/// the history at any time.
#[derive(Debug)]
pub(crate) struct SessionRun {
    session: Session,
    /// The number of the current attempt, counted from 1; 0 before the first attempt.
    attempt: AtomicU32,
    added: Mutex<Vec<Arc<Message>>>,
    rewritten: Mutex<Option<Rewritten>>,
}

/// A history that hooks of a run have rewritten, so that it no longer begins with the messages that the hooks read.
#[derive(Debug)]
struct Rewritten {
    /// The conversation as it would be without this run.
    without: Vec<Arc<Message>>,
    /// The conversation as the hooks changed it.
    history: History,
}

impl SessionRun {
    pub(crate) const fn new(session: Session) -> Self {
        Self { session, attempt: AtomicU32::new(0), added: Mutex::new(Vec::new()), rewritten: Mutex::new(None) }
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

    /// Appends messages as [`History::extend`] does.
    pub(crate) fn extend(&self, messages: impl IntoIterator<Item = Message>) -> Result<(), HistoryError> {
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
        let mut current = self.session.history.lock();
        replace(&mut self.added.lock());
        replace(Arc::make_mut(&mut current.0))
    }

    /// Appends messages of an attempt, unless another attempt has begun.
    pub(crate) fn append(&self, messages: Vec<Arc<Message>>, attempt: u32) {
        // All messages are added under one lock, so no message of another run comes between them. Another attempt first
        // counts itself, and then undoes the attempt before under the same lock. So the messages of that attempt are
        // either removed, or not added here (A7).
        let mut history = self.session.history.lock();
        if attempt == self.attempt() {
            self.added.lock().extend(messages.iter().cloned());
            Arc::make_mut(&mut history.0).extend(messages);
        }
    }

    /// Replaces the conversation that hooks have read with the changed conversation. Messages that another run has
    /// appended meanwhile stay, after the changed messages. Returns `false`, and changes nothing, if another run has
    /// rewritten the conversation meanwhile.
    pub(crate) fn update(&self, read: &History, changed: History) -> bool {
        if Arc::ptr_eq(&read.0, &changed.0) {
            return true;
        }
        let mut current = self.session.history.lock();
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

    /// Undoes the attempt's changes to the history, so that the next attempt begins without them.
    pub(crate) fn give_up(&self) {
        let mut current = self.session.history.lock();
        // The history is read and written under one lock, so that no message of another run is lost.
        let without = self.without(&current);
        // If another run has rewritten a part of a turn of this run, removing the rest of the turn would make the
        // history invalid, so the history stays unchanged.
        if check(&without).is_ok() {
            *current = History(Arc::new(without));
        }
        self.added.lock().clear();
        *self.rewritten.lock() = None;
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

    /// Begins a turn with a model's response, which enters the history when the turn is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the response's role is not `assistant`, or if the response has a part that this role does
    /// not allow, such as a tool result.
    pub(crate) fn open(&self, mut response: Message) -> Result<OpenTurn<'_>, HistoryError> {
        if response.role != Role::Assistant {
            return Err(HistoryError::Response { role: response.role });
        }
        check_parts(0, &response)?;
        give_ids(&mut response);
        let attempt = self.attempt();
        let results = response.tool_calls().map(|_| CallState::Open(WorkStarted::in_attempt(attempt))).collect();
        Ok(OpenTurn {
            session: self,
            attempt,
            response: Arc::new(response),
            results: Mutex::new(results),
            unanswered: "not executed: the run was stopped",
            injected: Vec::new(),
        })
    }
}

/// Replaces empty and repeated call ids, which some servers send.
fn give_ids(response: &mut Message) {
    let mut ids = HashSet::new();
    for part in &mut response.parts {
        if let Part::ToolCall(call) = part
            && (call.id.is_empty() || ids.contains(&call.id))
        {
            call.id = format!("call_{}", new_id().simple());
        }
        if let Part::ToolCall(call) = part {
            ids.insert(call.id.clone());
        }
    }
}

/// A response whose calls are being answered. It is created before the first call is executed, and dropping it
/// completes the turn, so that the history stays valid if the run fails, is aborted or is dropped.
///
/// A result is assigned to its call by position, because the provider's ids are not reliable.
#[derive(Debug)]
pub(crate) struct OpenTurn<'a> {
    session: &'a SessionRun,
    /// The attempt to which the turn belongs.
    attempt: u32,
    response: Arc<Message>,
    /// The state of each call, by position. The mutex is needed because calls that run concurrently share the turn.
    results: Mutex<Vec<CallState>>,
    unanswered: &'static str,
    injected: Vec<Arc<Message>>,
}

/// The state of a call of an [`OpenTurn`].
#[derive(Clone, Debug)]
enum CallState {
    Open(WorkStarted),
    Answered(ToolResult),
}

impl OpenTurn<'_> {
    /// Returns the response as it will enter the history, with a unique id for each call.
    pub(crate) const fn response(&self) -> &Arc<Message> {
        &self.response
    }

    pub(crate) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the state that the call at this position shares with the run of its tool. If the call already has a
    /// result, returns a closed state.
    pub(crate) fn work_started(&self, position: usize) -> WorkStarted {
        match &self.results.lock()[position] {
            CallState::Open(started) => started.clone(),
            CallState::Answered(_) => {
                let closed = WorkStarted::in_attempt(self.attempt);
                closed.close();
                closed
            }
        }
    }

    /// Sets the result of the call at this position, and replaces an earlier result. From now on, the function of the
    /// call's tool is not called.
    pub(crate) fn answer(&self, position: usize, result: ToolResult) {
        let before = replace(&mut self.results.lock()[position], CallState::Answered(result));
        if let CallState::Open(started) = before {
            started.close();
        }
    }

    /// Answers the interrupted call at this position with an error.
    pub(crate) fn interrupt(&self, position: usize) {
        let has_started = self.work_started(position).close();
        let text = if has_started { INTERRUPTED_AT_WORK } else { "not executed: interrupted" };
        self.answer(position, ToolResult::error("", text));
    }

    /// Closes the call at this position, and returns the text of its result if the run is stopped.
    pub(crate) fn stop(&self, position: usize) -> &'static str {
        if self.work_started(position).close() { STOPPED } else { self.unanswered }
    }

    /// Appends an answer after the results and the injected messages. It must have no tool calls.
    pub(crate) fn end_with(&mut self, answer: &Arc<Message>) {
        self.injected.push(Arc::clone(answer));
    }

    /// Sets the text of the results for unanswered calls whose tools have not started when the turn is dropped.
    pub(crate) const fn answer_others(&mut self, text: &'static str) {
        self.unanswered = text;
    }

    /// Appends messages after the results. They must be valid by themselves.
    pub(crate) fn inject(&mut self, messages: Vec<Message>) -> Result<(), HistoryError> {
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        check(&messages)?;
        self.injected.extend(messages);
        Ok(())
    }
}

impl Drop for OpenTurn<'_> {
    fn drop(&mut self) {
        let states = take(self.results.get_mut());
        let results = self.response.tool_calls().zip(states).map(|(call, state)| {
            let mut result = match state {
                CallState::Answered(result) => result,
                // The call is closed before its result enters the history, so "not executed" stays true.
                CallState::Open(started) => {
                    ToolResult::error("", if started.close() { STOPPED } else { self.unanswered })
                }
            };
            // A hook may have changed the id, but the result belongs to this call.
            result.id.clone_from(&call.id);
            Arc::new(Message::tool([result]))
        });
        let mut messages = vec![Arc::clone(&self.response)];
        messages.extend(results);
        messages.append(&mut self.injected);
        self.session.append(messages, self.attempt);
    }
}

/// The result of a call whose tool was running when the run ended.
const STOPPED: &str = "the run was stopped while the tool was running: it may have had effects";

/// The result of a call that was interrupted after the tool's function had been called.
const INTERRUPTED_AT_WORK: &str = "interrupted while the tool was running: it may have had effects";

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::ToolCall;

    /// One step of a conversation in which runs may fail.
    #[derive(Clone, Debug)]
    enum Step {
        Says(String),
        /// A response with calls. For each call, `calls` has its id, and `true` if the call is answered before the turn
        /// ends. If `injects` is set, a message follows the results. If `panics` is set, the turn panics at its end.
        Turn {
            calls: Vec<(String, bool)>,
            panics: bool,
            injects: bool,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let id = prop_oneof![Just(String::new()), "[ab]".prop_map(|id| id)];
        let turn = (vec((id, any::<bool>()), 0..5), any::<bool>(), any::<bool>());
        prop_oneof![
            "[a-z]{1,3}".prop_map(Step::Says),
            turn.prop_map(|(calls, panics, injects)| Step::Turn { calls, panics, injects }),
        ]
    }

    proptest! {
        // A1
        #[test]
        fn each_call_has_exactly_one_result_however_its_turn_ends(steps in vec(step(), 0..12)) {
            let session = Session::new();
            let run = SessionRun::new(session.clone());
            let mut expected = 0;
            for step in steps {
                match step {
                    Step::Says(text) => {
                        session.extend([Message::user(text)]).expect("text is valid");
                        expected += 1;
                    }
                    Step::Turn { calls, panics, injects } => {
                        let response = calls.iter().fold(Message::assistant("so"), |message, (id, _)| {
                            message.with_call(ToolCall::new(id, "t", json!({})))
                        });
                        let turn = std::panic::AssertUnwindSafe(|| {
                            let mut turn = run.open(response).expect("a response");
                            for (at, (_, is_answered)) in calls.iter().enumerate() {
                                if *is_answered {
                                    turn.answer(at, ToolResult::new("another id", at));
                                }
                            }
                            if injects {
                                turn.inject(vec![Message::user("and")]).expect("text is valid");
                            }
                            assert!(!panics, "this turn ends with a panic");
                        });
                        let _ = std::panic::catch_unwind(turn);
                        expected += 1 + calls.len() + usize::from(injects);
                    }
                }
            }
            let history = session.history();
            prop_assert_eq!(history.messages().len(), expected);
            prop_assert_eq!(check(history.messages()), Ok(()));
            let json = serde_json::to_value(&history).expect("JSON");
            prop_assert_eq!(serde_json::from_value::<History>(json).expect("a valid history"), history);
        }
    }

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

    #[test]
    fn only_a_valid_assistant_message_begins_a_turn() {
        let run = SessionRun::new(Session::new());
        let error = run.open(Message::user("x")).expect_err("a user's message").to_string();
        assert_eq!(error, "a model's response has the role `user` instead of `assistant`");
        let result = Part::ToolCallResponse(ToolResult::new("a", 1));
        let error = run.open(Message::new(Role::Assistant, [result])).expect_err("a result").to_string();
        assert_eq!(error, "message 0 has the role `assistant`, which does not allow a tool result");
        assert!(run.history().messages().is_empty());
    }
}
