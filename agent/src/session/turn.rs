//! A turn whose calls are being answered.
//!
//! It is created after the hooks of `turn.action`, and ends in its `Drop`. So a turn that fails, panics, is aborted or is
//! dropped leaves a valid history, without code for each of these ends (A1).

use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::sync::{Arc, OnceLock};

use emitree_emitter::new_id;
use emitree_runtime::{Answer, Answers, Error, Result, RunContext, RunKey};
use futures_util::future::{AbortHandle, Abortable};

use crate::message::history::{HistoryError, check, check_parts};
use crate::message::{Message, Part, Role};
use crate::place::action::CallResult;
use crate::session::Session;
use crate::session::fold::Conversation;
use crate::session::fold::turn::{Call, NOT_EXECUTED, OpenTurn, STOPPED, UNANSWERED};
use crate::session::keys::{key_of_call, key_of_turn};
use crate::session::log::{Live, Locked, LogState, View};
use crate::session::record::{Fact, Record, SettledAs};
use crate::session::run::SessionRun;
use crate::tool::too_late;
use crate::{ToolCall, ToolResult};

/// The reason for which the runs of calls are aborted that an interjection has closed.
const INTERJECTED: &str = "the user interjected";

/// The run that has a turn in hand, and its attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub(super) run: u32,
    pub(super) epoch: u32,
    pub(super) attempt: u32,
}

/// A turn under way, for the tools that its calls run, and for interjections. The fold has all that is known about it.
#[derive(Debug)]
pub(crate) struct LiveTurn {
    session: Session,
    by: By,
    /// The number of the turn in its session.
    pub(super) number: u64,
    response: Arc<Message>,
    /// The positions of the calls that an interjection has closed.
    interjected: OnceLock<BTreeSet<usize>>,
}

/// The gates, and the run of the agent, whose calls an interjection has closed.
pub(super) struct Closed {
    gates: Option<AbortHandle>,
    run: Option<RunContext>,
}

impl Closed {
    /// Aborts the gates, and the runs of the calls.
    pub(super) fn abort(self) {
        self.gates.iter().for_each(AbortHandle::abort);
        // A run that begins later finds its call closed.
        for run in self.run.map(|run| run.children()).unwrap_or_default() {
            if run.own_extension::<CallInTurn>().is_some_and(|call| call.turn.is_interjected(call.position)) {
                run.abort(INTERJECTED);
            }
        }
    }
}

/// A tool call and its place in its turn: an extension of the tool's run alone.
#[derive(Clone, Debug)]
pub(crate) struct CallInTurn {
    pub(crate) turn: Arc<LiveTurn>,
    pub(crate) position: usize,
    /// The answers that the code can read that asks about the call.
    pub(crate) answers: Answers,
}

impl LiveTurn {
    pub(super) const fn by(&self) -> By {
        self.by
    }

    fn lock(&self) -> Locked<'_> {
        self.session.log.lock()
    }

    fn view(&self) -> &View {
        &self.session.view
    }

    /// Returns the turn in a session, while its run has it in hand.
    fn find<'a>(&self, session: &'a Conversation) -> Option<&'a OpenTurn> {
        let run = session.find_run(self.by.run)?;
        run.open.as_ref().filter(|open| open.number == self.number)
    }

    /// Changes the session, unless the turn has ended.
    fn push(&self, state: &mut LogState, record: Record) -> bool {
        if state.epoch != self.by.epoch {
            return false;
        }
        let refused = state.push(self.view(), record).err();
        refused.iter().for_each(|fault| tracing::debug!(turn = self.number, fault, "a turn that has ended"));
        refused.is_none()
    }

    fn push_fact(&self, state: &mut LogState, call: usize, fact: Fact) -> bool {
        self.push(state, Record::Call { turn: self.number, call, fact: Box::new(fact) })
    }

    /// Notes a fact about a call, unless the turn has ended.
    pub(crate) fn note(&self, position: usize, fact: Fact) {
        self.push_fact(&mut self.lock(), position, fact);
    }

    /// Notes facts about a call that follow from what is known about it.
    pub(crate) fn note_all(&self, position: usize, facts: impl FnOnce(&Call) -> Vec<Fact>) {
        let state = &mut *self.lock();
        let known = self.find(state.session(self.view())).and_then(|open| open.calls.get(position));
        let facts = known.map(facts).unwrap_or_default();
        facts.into_iter().for_each(|fact| _ = self.push_fact(state, position, fact));
    }

    /// Notes the answer that a live approval has got.
    pub(crate) fn answer(&self, id: &str, answer: Answer) {
        self.push(&mut self.lock(), Record::Answered { id: id.to_owned(), answer });
    }

    /// Reads what is known about a call. Returns `None` if the turn is over.
    pub(crate) fn read<T>(&self, position: usize, read: impl FnOnce(&Call) -> T) -> Option<T> {
        let state = self.lock();
        let open = self.find(state.session(self.view()))?;
        open.calls.get(position).map(read)
    }

    pub(crate) fn is_resolved(&self) -> bool {
        self.find(self.lock().session(self.view())).is_some_and(|open| open.is_resolved)
    }

    /// From now on, a resume does not call the hooks of `tool.resolve` again.
    pub(crate) fn resolve(&self) {
        let state = &mut *self.lock();
        if self.find(state.session(self.view())).is_some_and(|open| !open.is_resolved) {
            self.push(state, Record::Resolved { turn: self.number });
        }
    }

    fn asked(&self, position: usize) -> Option<&ToolCall> {
        self.response.tool_calls().nth(position)
    }

    /// Returns the key of a call, as hooks have changed it, or as the model wrote it.
    pub(crate) fn key(&self, position: usize, changed: Option<&ToolCall>) -> RunKey {
        let session = self.session.view.key.get();
        match changed.or_else(|| self.asked(position)) {
            Some(call) => key_of_call(session, self.number, position, call),
            None => key_of_turn(session, self.number),
        }
    }

    /// Returns `true` if hooks have changed a call.
    pub(crate) fn is_changed(&self, position: usize, call: &ToolCall) -> bool {
        self.asked(position).is_none_or(|asked| asked.name != call.name || asked.arguments != call.arguments)
    }

    /// Returns the facts that a call is changed, and that the questions about it that are still needed are asked about the
    /// new arguments. The function, and runs below the call, ask by themselves. An edit counts without a change too.
    pub(crate) fn change_to(&self, known: &Call, position: usize, call: &ToolCall, edited: bool) -> Vec<Fact> {
        let now = known.changed.as_ref().or_else(|| self.asked(position));
        let is_same = now.is_some_and(|now| now.name == call.name && now.arguments == call.arguments);
        if is_same && !edited {
            return Vec::new();
        }
        let mut facts = vec![Fact::Changed { call: call.clone(), edited }];
        if !is_same {
            let [before, after] = [now, Some(call)].map(|call| self.key(position, call));
            let needed = known.questions.iter().filter(|question| question.is_needed() && !question.asked.in_function);
            let about = needed.filter(|question| question.is_about(&before));
            facts.extend(about.map(|question| Fact::Needed { asked: question.anew(call, &after), approval: None }));
        }
        facts
    }

    /// Returns the session of an agent below a call, by the key of the agent's run, and `true` if a run has begun to use
    /// it. A new session begins with so many messages of this session, or with other messages.
    pub(crate) fn session_below(
        &self,
        position: usize,
        key: &RunKey,
        first: Option<usize>,
        messages: Vec<Arc<Message>>,
    ) -> (Session, bool) {
        let state = &mut *self.lock();
        if let Some(known) = state.fold.below.get(key.as_str()) {
            let has_begun = known.begun > 0;
            if let Some(view) = state.view_below(key) {
                return (Session { log: Arc::clone(&self.session.log), view }, has_begun);
            }
        }
        let (turn, call, id) = (self.number, position, key.to_string());
        if self.push(state, Record::Below { turn, call, id, first })
            && let Some(view) = state.view_below(key)
        {
            if !messages.is_empty() {
                let said = state.push(&view, Record::Said { run: None, messages, turn: None });
                debug_assert_eq!(said, Ok(()), "the messages are valid");
            }
            return (Session { log: Arc::clone(&self.session.log), view }, false);
        }
        // The turn has ended, so nobody goes on with the agent.
        let first = first.map(|first| state.session(self.view()).messages.iter().take(first).cloned().collect());
        (Session::of_messages(first.unwrap_or(messages), Some(key)), false)
    }

    fn live<'a>(&self, state: &'a mut LogState) -> Option<&'a mut Live> {
        state.local(self.view())?.live(self.by.run)
    }

    /// Closes the calls that have not begun. Returns what has to be aborted when the session is no longer locked.
    pub(super) fn close(&self, state: &mut LogState) -> Closed {
        let is_open = |call: &Call| call.result.is_none() && !call.has_begun && !call.is_closed;
        let calls = self.find(state.session(self.view())).map(|open| &open.calls[..]).unwrap_or_default();
        let open: Vec<_> = calls.iter().enumerate().filter(|(_, call)| is_open(call)).map(|(at, _)| at).collect();
        let skipped = || Fact::Settled(Box::new(SettledAs::skipped(NOT_EXECUTED)));
        let closed = open.into_iter().filter(|at| self.push_fact(state, *at, skipped())).collect();
        self.interjected.get_or_init(|| closed);
        let (gates, run) = self.live(state).map(|live| (live.gates.take(), live.ctx.clone())).unwrap_or_default();
        Closed { gates, run }
    }

    /// Returns `true` if an interjection has closed the call at this position before it had begun.
    pub(crate) fn is_interjected(&self, position: usize) -> bool {
        self.interjected.get().is_some_and(|closed| closed.contains(&position))
    }

    /// Returns `true` once for each answer.
    pub(crate) fn report(&self, question: &str) -> bool {
        self.live(&mut self.lock()).is_some_and(|live| live.reported.insert(question.to_owned()))
    }

    /// Notes which answers the code that has asked has read.
    pub(crate) fn use_answers(&self, position: usize, answers: &Answers) {
        self.use_answers_in(&mut self.lock(), position, answers);
    }

    fn use_answers_in(&self, state: &mut LogState, position: usize, answers: &Answers) {
        let known = self.find(state.session(self.view())).and_then(|open| open.calls.get(position));
        let needed = known.into_iter().flat_map(|call| &call.questions).filter(|question| question.is_needed());
        // An answer that came after the run had loaded the answers was not read.
        let read = needed.filter(|question| answers.was_asked(question.id()));
        let read = read.filter_map(|question| {
            Some((question.id().to_owned(), question.answer.is_none(), answers.get(question.id())?))
        });
        for (id, is_given, answer) in read.collect::<Vec<_>>() {
            if is_given {
                // The caller of the run has given it.
                self.push(state, Record::Answered { id: id.clone(), answer });
            }
            self.push_fact(state, position, Fact::Used(id));
        }
    }
}

impl CallInTurn {
    /// Returns the key of the call, as hooks have changed it, or as the model wrote it.
    pub(crate) fn key(&self, changed: Option<&ToolCall>) -> RunKey {
        self.turn.key(self.position, changed)
    }

    /// Returns the attempt in which the call was made.
    pub(crate) fn attempt(&self) -> u32 {
        self.turn.by.attempt
    }

    /// Returns `true` if a store keeps the session.
    pub(crate) fn is_stored(&self) -> bool {
        self.turn.session.log.entry().is_some()
    }

    /// Returns `true` if the function of the call must not be called any more.
    pub(crate) fn is_closed(&self) -> bool {
        let state = self.turn.lock();
        let open = self.turn.find(state.session(self.turn.view()));
        let call = open.filter(|open| !open.is_ended).and_then(|open| open.calls.get(self.position));
        state.epoch != self.turn.by.epoch || call.is_none_or(|call| call.result.is_some() || call.is_closed)
    }

    /// Notes that the call begins: before its function is called, or before a run below is started that may do the work
    /// itself (A1).
    ///
    /// # Errors
    ///
    /// Returns an error if the call is closed, or if a question about the call, which an earlier run had asked, was not
    /// asked again before the function is called (A23).
    pub(crate) fn begin(&self, called: bool) -> Result<Begins> {
        let turn = &self.turn;
        let state = &mut *turn.lock();
        if called {
            turn.use_answers_in(state, self.position, &self.answers);
        }
        let open = turn.find(state.session(turn.view())).filter(|open| !open.is_ended && state.epoch == turn.by.epoch);
        let call = open.and_then(|open| open.calls.get(self.position));
        let call = call.filter(|call| call.result.is_none() && !call.is_closed).ok_or_else(too_late)?;
        if let Some(unread) = call.unread().filter(|_| called) {
            let (by, kind) = (&unread.asked.by, &unread.asked.question.kind);
            return Err(Error::new(format!(
                "not executed: `{by}` had asked the question `{kind}` about this call, and nobody has asked it again"
            )));
        }
        let begins = match call.begins() {
            false => Begins::First,
            true if called && (!call.is_called || call.kept.is_some()) => Begins::Again,
            true => return Ok(Begins::Known),
        };
        if turn.push_fact(state, self.position, Fact::Begun { called }) { Ok(begins) } else { Err(too_late()) }
    }

    /// Notes that the call begins, and stores this (A25). The error of the store ends the run of the agent, and the call
    /// stays open.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin), and if the store fails.
    pub(crate) async fn store_begin(&self, called: bool, run: &RunContext) -> Result<()> {
        let begins = self.begin(called)?;
        let Some(entry) = self.turn.session.log.entry() else { return Ok(()) };
        if begins == Begins::Known {
            // Another run below the call may have noted it, and may still be storing it.
            return entry.commit().await;
        }
        let fence = entry.commit_begin().await.inspect_err(|_| {
            if begins == Begins::First {
                self.turn.note(self.position, Fact::NotBegun);
            }
        })?;
        fence.into_iter().for_each(|fence| run.set_fence(fence));
        Ok(())
    }
}

/// The beginning of a call in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    First,
    /// Runs below it had begun, and now its function is called.
    Again,
    /// Nothing is new.
    Known,
}

impl SessionRun {
    /// Begins a turn with a model's response, which enters the history when the turn is dropped. `unanswered` is the text
    /// of the results if the calls are not made.
    ///
    /// # Errors
    ///
    /// Returns an error if the response's role is not `assistant`, or if the response has a part that this role does
    /// not allow, such as a tool result.
    pub(crate) fn open(&self, mut response: Message, unanswered: Option<&str>) -> Result<TurnHandle<'_>, HistoryError> {
        if response.role != Role::Assistant {
            return Err(HistoryError::Response { role: response.role });
        }
        check_parts(0, &response)?;
        give_ids(&mut response);
        let (response, unanswered) = (Arc::new(response), unanswered.map(str::to_owned));
        let (by, number) = self.respond(&response, unanswered);
        Ok(TurnHandle { calls: self.live_turn(by, number, response), resumed: None, run: self })
    }

    /// Goes on with the turn that the resumed run has left open. Returns `None` if there is none. The results of the calls
    /// replace those in the history.
    pub(crate) fn reopen(&self) -> Option<TurnHandle<'_>> {
        let (by, open, before) = self.take_open()?;
        let calls = self.live_turn(by, open.number, Arc::clone(&open.response));
        let asked = open.response.tool_calls().zip(&open.calls).enumerate();
        let earlier = asked.filter_map(|(position, (asked, call))| {
            let settled = call.result.as_ref()?;
            let result = settled.message.tool_results().next().cloned()?;
            let call = call.changed.clone().unwrap_or_else(|| asked.clone());
            Some((position, settled.how.as_deref().cloned().unwrap_or_default().into_result(call, result)))
        });
        let resumed = Resumed { earlier: earlier.collect(), before };
        // An earlier run has reported these.
        let used = open.calls.iter().flat_map(|call| &call.questions).filter(|question| !question.is_needed());
        used.for_each(|question| _ = calls.report(question.id()));
        Some(TurnHandle { calls, resumed: Some(Box::new(resumed)), run: self })
    }

    fn live_turn(&self, by: By, number: u64, response: Arc<Message>) -> Arc<LiveTurn> {
        Arc::new(LiveTurn { session: self.session().clone(), by, number, response, interjected: OnceLock::new() })
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
pub(crate) struct TurnHandle<'a> {
    run: &'a SessionRun,
    calls: Arc<LiveTurn>,
    /// Set if an earlier run has left the turn open.
    resumed: Option<Box<Resumed>>,
}

/// A turn as an earlier run has left it.
#[derive(Debug)]
struct Resumed {
    /// The results that calls had, with the positions of the calls.
    earlier: Vec<(usize, CallResult)>,
    /// The messages of the turn in the history.
    before: Vec<Arc<Message>>,
}

impl TurnHandle<'_> {
    /// Returns the response as it will enter the history, with a unique id for each call.
    pub(crate) fn response(&self) -> &Arc<Message> {
        &self.calls.response
    }

    /// Returns the calls, for the runs of their tools.
    pub(crate) const fn calls(&self) -> &Arc<LiveTurn> {
        &self.calls
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.calls.by.attempt
    }

    /// Returns `true` if an earlier run has left the turn open.
    pub(crate) const fn is_resumed(&self) -> bool {
        self.resumed.is_some()
    }

    /// Returns `true` if all calls have results.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.calls.lock();
        self.calls.find(state.session(self.calls.view())).is_none_or(OpenTurn::is_over)
    }

    /// Sets the result of the call at this position, and replaces an earlier result. From now on, the function of the
    /// call's tool is not called.
    pub(crate) fn settle(&self, position: usize, settled: &CallResult, answer: &ToolResult) {
        self.calls.note(position, Fact::Settled(Box::new(SettledAs::of(settled, answer))));
    }

    /// Returns the results that the calls had when the turn was resumed, with their positions.
    pub(crate) fn earlier_results(&self) -> Vec<(usize, CallResult)> {
        self.resumed.as_ref().map(|resumed| resumed.earlier.clone()).unwrap_or_default()
    }

    /// Lets interjections close the calls from now on. Interjections that wait do so at once.
    pub(crate) fn listen(&self) {
        let closed = self.run.listen(&self.calls);
        closed.into_iter().for_each(Closed::abort);
    }

    /// Returns `true` if an interjection has closed the call at this position before it had begun.
    pub(crate) fn is_interjected(&self, position: usize) -> bool {
        self.calls.is_interjected(position)
    }

    /// Polls a future until an interjection closes the calls. Returns `None` if one has.
    pub(crate) async fn until_interjected<T>(&self, gates: impl Future<Output = T>) -> Option<T> {
        // A gate may be the first that has the session, so the wait can end even if nobody else has it yet.
        let (abort, registration) = AbortHandle::new_pair();
        {
            let state = &mut *self.calls.lock();
            if self.calls.interjected.get().is_some() {
                return None;
            }
            self.calls.live(state).into_iter().for_each(|live| live.gates = Some(abort.clone()));
        }
        Abortable::new(gates, registration).await.ok()
    }

    /// Sets a text in the place of a result that the hooks of `tool.result` have not let pass yet, and that the history
    /// therefore does not keep if the run ends now.
    pub(crate) fn withhold(&self, position: usize) {
        self.calls.note(position, Fact::Unchecked);
    }

    /// Closes the call at this position, and returns the text of its result if the run is stopped.
    pub(crate) fn stop(&self, position: usize) -> &'static str {
        self.calls.note(position, Fact::Stopped);
        let has_begun = self.calls.read(position, |call| call.has_begun);
        if has_begun == Some(true) { STOPPED } else { UNANSWERED }
    }

    /// Appends an answer after the results and the injected messages. It must have no tool calls.
    pub(crate) fn end_with(&self, answer: &Arc<Message>) {
        self.inject_all(vec![Arc::clone(answer)], true);
    }

    /// Appends messages after the results. They must be valid by themselves.
    pub(crate) fn inject(&self, messages: Vec<Message>) -> Result<(), HistoryError> {
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        check(&messages)?;
        self.inject_all(messages, false);
        Ok(())
    }

    fn inject_all(&self, messages: Vec<Arc<Message>>, answers: bool) {
        if messages.is_empty() {
            return;
        }
        let state = &mut *self.calls.lock();
        if self.calls.push(state, Record::Injected { turn: self.calls.number, messages: messages.clone(), answers })
            && self.is_resumed()
        {
            self.run.add(state, messages);
        }
    }
}

impl Drop for TurnHandle<'_> {
    fn drop(&mut self) {
        let state = &mut *self.calls.lock();
        let (view, by, number) = (self.calls.view(), self.calls.by, self.calls.number);
        if let Some(local) = state.local(view) {
            local.turns.retain(|turn| (turn.by.run, turn.number) != (by.run, number));
        }
        if by.attempt != self.run.attempt() || !self.calls.push(state, Record::Placed { turn: number }) {
            return;
        }
        let session = state.session(view);
        match &self.resumed {
            None => {
                let added = session
                    .turn_at(number)
                    .map(|(span, at)| session.messages[at..at + session.spans[span].len].to_vec());
                self.run.add(state, added.unwrap_or_default());
            }
            Some(resumed) => {
                let now = session.turn_at(number).map(|(_, at)| &session.messages[at..]).unwrap_or_default();
                let both = resumed.before.iter().zip(now).filter(|(before, now)| before != now);
                let replaced = both.map(|(before, now)| (Arc::clone(before), Arc::clone(now))).collect();
                self.run.note_replaced(state, replaced);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::place::action::How;
    use crate::session::run::tests::{begin, in_run};
    use crate::{History, ToolOutput};

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

    fn answer(turn: &TurnHandle<'_>, position: usize, text: &str) {
        let call = turn.response().tool_calls().nth(position).cloned().expect("a call");
        let result = CallResult { call, how: How::Executed, output: ToolOutput::new(text) };
        turn.settle(position, &result, &ToolResult::new("another id", text));
    }

    fn calls(ids: &[&str]) -> Message {
        ids.iter().fold(Message::assistant("so"), |message, id| message.with_call(ToolCall::new(*id, "t", json!({}))))
    }

    /// Makes a turn. Returns the number of its messages.
    fn make_turn(run: &SessionRun, of: &[(String, bool)], panics: bool, injects: bool) -> usize {
        let ids: Vec<_> = of.iter().map(|(id, _)| id.as_str()).collect();
        let turn = AssertUnwindSafe(|| {
            run.ask();
            let turn = run.open(calls(&ids), None).expect("a response");
            for (at, (_, is_answered)) in of.iter().enumerate() {
                if *is_answered {
                    answer(&turn, at, "done");
                }
            }
            if injects {
                turn.inject(vec![Message::user("and")]).expect("text is valid");
            }
            assert!(!panics, "this turn ends with a panic");
        });
        let _ = catch_unwind(turn);
        1 + of.len() + usize::from(injects)
    }

    proptest! {
        // A1
        #[test]
        fn each_call_has_exactly_one_result_however_its_turn_ends(steps in vec(step(), 0..12)) {
            let (expected, history) = in_run(move |ctx| {
                let session = Session::new();
                let mut expected = 1;
                let mut run = begin(&session, &ctx, "go");
                for step in steps {
                    match step {
                        Step::Says(text) => {
                            session.extend([Message::user(text)]).expect("text is valid");
                            expected += 1;
                        }
                        Step::Turn { calls, panics, injects } => {
                            expected += make_turn(&run, &calls, panics, injects);
                            if calls.iter().any(|(_, is_answered)| !is_answered) {
                                // A turn with open calls is the last one of its run.
                                run = begin(&session, &ctx, "go on");
                                expected += 1;
                            }
                        }
                    }
                }
                (expected, session.history())
            });
            prop_assert_eq!(history.messages().len(), expected);
            prop_assert_eq!(check(history.messages()), Ok(()));
            let json = serde_json::to_value(&history).expect("JSON");
            prop_assert_eq!(serde_json::from_value::<History>(json).expect("a valid history"), history);
        }
    }

    #[test]
    fn a_tool_that_outlives_its_turn_finds_its_call_closed() {
        in_run(|ctx| {
            let session = Session::new();
            let run = begin(&session, &ctx, "go");
            run.ask();
            let turn = run.open(calls(&["a"]), None).expect("a response");
            answer(&turn, 0, "done");
            let call = CallInTurn { turn: Arc::clone(turn.calls()), position: 0, answers: Answers::new() };
            drop(turn);
            assert!(call.is_closed());
            call.begin(true).expect_err("it is closed");
            let key = call.key(None);
            let (below, has_begun) = call.turn.session_below(0, &key, None, Vec::new());
            assert_eq!((below.id(), has_begun), (key.as_str(), false));
        });
    }

    // A1: the lock decides whether a call begins or is closed by an interjection.
    #[test]
    fn a_call_has_begun_or_is_not_executed_whichever_thread_is_first() {
        let (mut begun, mut closed) = (0, 0);
        in_run(move |ctx| {
            for _ in 0..200 {
                let session = Session::new();
                let run = begin(&session, &ctx, "go");
                run.ask();
                let turn = run.open(calls(&["a"]), None).expect("a response");
                turn.listen();
                let call = CallInTurn { turn: Arc::clone(turn.calls()), position: 0, answers: Answers::new() };
                let has_begun = std::thread::scope(|threads| {
                    let tool = threads.spawn(|| call.begin(true).is_ok());
                    session.interject("stop").expect("a message");
                    tool.join().expect("no panic")
                });
                assert_eq!(has_begun, !turn.is_interjected(0));
                drop(turn);
                let history = session.history();
                let said = history.messages().iter().flat_map(|message| message.tool_results());
                let expected = if has_begun { STOPPED } else { NOT_EXECUTED };
                assert_eq!(said.map(|result| result.response.clone()).collect::<Vec<_>>(), [json!(expected)]);
                *if has_begun { &mut begun } else { &mut closed } += 1;
            }
            assert_eq!(begun + closed, 200);
        });
    }

    #[test]
    fn the_messages_behind_a_turn_that_goes_on_may_have_been_rewritten() {
        in_run(|ctx| {
            let session = Session::new();
            let first = begin(&session, &ctx, "go");
            first.ask();
            let turn = first.open(calls(&["a"]), None).expect("a response");
            turn.inject(vec![Message::user("and")]).expect("text is valid");
            drop(turn);
            first.leave(first.attempt(), false);
            first.end(false);
            let other = begin(&session, &ctx, "other");
            other.leave(other.attempt(), true);
            let second = SessionRun::new(session.clone());
            second.next_attempt();
            let options = crate::ChatOptions::default();
            let resumes = crate::session::run::Begins {
                ctx: &ctx,
                messages: Vec::new(),
                options: &options,
                resumes: true,
                is_inside: false,
                once: None,
            };
            let resumed = second.begin(resumes).map(|resumed| resumed.is_some());
            // The other run has closed the turn.
            assert!(resumed.is_ok() && second.reopen().is_none());
            assert_eq!(check(session.history().messages()), Ok(()));
        });
    }

    #[test]
    fn only_a_valid_assistant_message_begins_a_turn() {
        in_run(|ctx| {
            let run = begin(&Session::new(), &ctx, "go");
            run.ask();
            let error = run.open(Message::user("x"), None).expect_err("a user's message").to_string();
            assert_eq!(error, "a model's response has the role `user` instead of `assistant`");
            let result = Part::ToolCallResponse(ToolResult::new("a", 1));
            let error = run.open(Message::new(Role::Assistant, [result]), None).expect_err("a result").to_string();
            assert_eq!(error, "message 0 has the role `assistant`, which does not allow a tool result");
            assert_eq!(run.history().messages().len(), 1);
        });
    }
}
