//! A turn whose calls are being answered.
//!
//! It is created after the hooks of `turn.action`, collects the result of each call as the call settles, and is added to
//! the history in its `Drop`. So a turn that fails, panics, is aborted or is dropped leaves a valid history, without code
//! for each of these ends (A1).

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use emitree_emitter::new_id;
use emitree_runtime::RunContext;

use crate::message::history::{HistoryError, check, check_parts};
use crate::message::{Message, Part, Role, ToolResult};
use crate::place::action::CallResult;
use crate::session::run::SessionRun;
use crate::session::stopped::SettledCall;
use crate::session::turn_calls::{STOPPED, TurnCalls, UNANSWERED};
use crate::tool::started::WorkStarted;

impl SessionRun {
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
        let calls = Arc::new(TurnCalls::new(self.taker(attempt), self.key(), self.turn_number(), response));
        self.begin_turn(&calls);
        Ok(OpenTurn { session: self, attempt, calls })
    }

    /// Goes on with the turn that the resumed run has left open. Returns `None` if there is none, or if its messages were
    /// rewritten. When the turn is dropped, its results replace those in the history.
    pub(crate) fn reopen(&self) -> Option<OpenTurn<'_>> {
        let attempt = self.attempt();
        let calls = self.take_open(attempt)?;
        Some(OpenTurn { session: self, attempt, calls })
    }
}

/// Replaces empty and repeated call ids, which some servers send.
fn give_ids(response: &mut Message) {
    let has_ids = response.tool_calls().all(|call| !call.id.is_empty());
    if has_ids && response.tool_calls().nth(1).is_none() {
        return;
    }
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
    calls: Arc<TurnCalls>,
}

impl OpenTurn<'_> {
    /// Returns the response as it will enter the history, with a unique id for each call.
    pub(crate) fn response(&self) -> &Arc<Message> {
        &self.calls.response
    }

    /// Returns the calls, for the runs of their tools.
    pub(crate) const fn calls(&self) -> &Arc<TurnCalls> {
        &self.calls
    }

    pub(crate) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns `true` if an earlier run has left the turn open.
    pub(crate) fn is_resumed(&self) -> bool {
        self.calls.placed.is_some()
    }

    /// Returns the state that the call at this position shares with the run of its tool. If the call already has a
    /// result, returns a closed state.
    pub(crate) fn work_started(&self, position: usize) -> WorkStarted {
        self.calls.work_started(position)
    }

    /// Sets the result of the call at this position, and replaces an earlier result. From now on, the function of the
    /// call's tool is not called.
    pub(crate) fn answer(&self, position: usize, result: ToolResult) {
        self.calls.settle(position, result);
    }

    /// Sets the result of the call at this position, and keeps how the call has settled.
    pub(crate) fn settle(&self, position: usize, settled: &CallResult, result: ToolResult) {
        let changed = self.calls.read(position, |open| open.call.clone()).flatten();
        self.calls.keep(position, SettledCall::of(settled, changed), result);
    }

    /// Returns the results that the calls had when the turn was resumed, with their positions.
    pub(crate) fn earlier_results(&self) -> Vec<(usize, CallResult)> {
        let Some(placed) = &self.calls.placed else { return Vec::new() };
        let asked = self.response().tool_calls().take(placed.results.len()).enumerate();
        let settled = asked.filter_map(|(position, asked)| {
            let (settled, result) = self.calls.settled_before(position)?;
            Some((position, settled.into_result(asked, result)))
        });
        settled.collect()
    }

    /// Lets interjections close the calls from now on. Interjections that wait do so at once.
    pub(crate) fn listen(&self, agent: &RunContext) {
        if self.session.is_shared() {
            self.session.listen(agent);
        }
    }

    /// Returns `true` if an interjection has closed the call at this position before it had begun.
    pub(crate) fn is_interjected(&self, position: usize) -> bool {
        self.calls.is_interjected(position)
    }

    /// Polls a future until an interjection closes the calls. Returns `None` if one has.
    pub(crate) fn until_interjected<T>(&self, gates: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
        self.calls.until_interjected(gates)
    }

    /// Answers the interrupted call at this position with an error.
    pub(crate) fn interrupt(&self, position: usize) {
        self.calls.interrupt(position, [INTERRUPTED_AT_WORK, INTERRUPTED]);
    }

    /// Sets a text in the place of a result that the hooks of `tool.result` have not let pass yet, and that the history
    /// therefore does not keep if the run ends now.
    pub(crate) fn withhold(&self, position: usize) {
        self.calls.withhold(position, [UNCHECKED, UNANSWERED]);
    }

    /// Closes the call at this position, and returns the text of its result if the run is stopped.
    pub(crate) fn stop(&self, position: usize) -> &'static str {
        if self.work_started(position).close() { STOPPED } else { UNANSWERED }
    }

    /// Appends an answer after the results and the injected messages. It must have no tool calls.
    pub(crate) fn end_with(&self, answer: &Arc<Message>) {
        self.calls.inject([Arc::clone(answer)]);
    }

    /// Ends the turn without its calls, whose results have this text.
    pub(crate) fn leave_out(&self, text: &'static str) {
        self.calls.leave_out(text);
    }

    /// Appends messages after the results. They must be valid by themselves.
    pub(crate) fn inject(&self, messages: Vec<Message>) -> Result<(), HistoryError> {
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        check(&messages)?;
        self.calls.inject(messages);
        Ok(())
    }
}

impl Drop for OpenTurn<'_> {
    fn drop(&mut self) {
        self.session.end_turn(&self.calls, self.attempt);
    }
}

/// The result of a call that was interrupted after the tool's function had been called.
pub(super) const INTERRUPTED_AT_WORK: &str = "interrupted while the tool was running: it may have had effects";

/// The result of a call that was interrupted before.
pub(super) const INTERRUPTED: &str = "not executed: interrupted";

/// The result of a call whose tool was called, and whose own result had not passed the hooks of `tool.result` when the
/// run ended.
pub(super) const UNCHECKED: &str =
    "the tool was called, but the run ended before its result was checked: it may have had effects";

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{History, Session, ToolCall};

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
                            let turn = run.open(response).expect("a response");
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

    #[test]
    fn a_tool_that_outlives_its_turn_finds_its_call_closed() {
        let run = SessionRun::new(Session::new());
        let turn =
            run.open(Message::assistant("so").with_call(ToolCall::new("a", "t", json!({})))).expect("a response");
        turn.answer(0, ToolResult::new("a", "done"));
        let calls = Arc::clone(turn.calls());
        drop(turn);
        assert!(!calls.work_started(0).call());
        assert!(calls.settled_before(0).is_none());
        let key = calls.key(0, None);
        let (session, has_begun) = calls.session_below(0, &key, Session::new);
        assert_eq!((session.id(), has_begun), (key.as_str(), false));
    }

    #[test]
    fn the_messages_behind_a_turn_that_goes_on_may_have_been_rewritten() {
        let session = Session::new();
        let [first, other, second] = [(); 3].map(|()| SessionRun::new(session.clone()));
        let turn =
            first.open(Message::assistant("so").with_call(ToolCall::new("a", "t", json!({})))).expect("a response");
        turn.inject(vec![Message::user("and")]).expect("text is valid");
        drop(turn);
        let read = session.history();
        let without = History(Arc::new(read.messages()[..2].to_vec()));
        assert!(other.update(&read, without));

        second.resume().expect("a call is open");
        let turn = second.reopen().expect("a turn");
        turn.answer(0, ToolResult::new("a", "done"));
        turn.inject(vec![Message::user("more")]).expect("text is valid");
        drop(turn);
        let history = session.history();
        assert_eq!(check(history.messages()), Ok(()));
        assert_eq!((history.messages().len(), history.messages()[2].text().as_str()), (3, "more"));
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
