//! The calls of a turn that has not ended. Another task may close them (an interjection), or read them (a session that is
//! stored in the middle of a turn).

use std::future::Future;
use std::mem::{replace, take};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_runtime::{Answers, RunContext, RunKey};
use futures_util::future::{AbortHandle, Abortable};
use parking_lot::Mutex;

use crate::ToolCall;
use crate::message::history::History;
use crate::message::{Message, ToolResult};
use crate::session::Session;
use crate::session::inbox::Taker;
use crate::session::keys::{CallInTurn, SessionKey};
use crate::session::stopped::{OpenCall, SettledCall, StoppedCall, StoppedTurn};
use crate::tool::started::WorkStarted;

/// The reason for which the runs of calls are aborted that an interjection has closed.
const INTERJECTED: &str = "the user interjected";

/// The result of a call whose tool was running when the run ended.
pub(super) const STOPPED: &str = "the run was stopped while the tool was running: it may have had effects";

/// The result of a call that had not begun when the run ended.
pub(crate) const UNANSWERED: &str = "not executed: the run was stopped";

/// The result of a call that had not begun when the user interjected.
pub(crate) const NOT_EXECUTED: &str = "not executed: the user interjected";

/// The state of a call.
#[derive(Clone, Debug)]
enum CallState {
    Open(WorkStarted),
    /// The call has a result.
    Settled(ToolResult),
    /// The call has ended without a result. The history has this text until a resume replaces it.
    Waiting {
        text: &'static str,
        has_begun: bool,
    },
    /// An interjection has closed the call before it had begun.
    Interjected,
}

#[derive(Debug)]
struct Call {
    state: CallState,
    /// `true` if the call had settled when the turn was resumed.
    is_earlier: bool,
    /// `true` once the call was announced to the store as begun.
    is_announced: bool,
    /// How the call has settled, for a resume of its turn.
    settled: Option<Box<SettledCall>>,
    /// The facts about the call that a resume of its turn needs.
    open: Option<Box<OpenCall>>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct TurnCalls {
    taker: Taker,
    pub(super) session: Arc<SessionKey>,
    /// The number of the turn in its session.
    pub(super) number: u64,
    pub(super) response: Arc<Message>,
    /// The messages of the turn that an earlier run has left in the history.
    pub(super) placed: Option<Placed>,
    parts: Mutex<Parts>,
    /// The run of the agent, once interjections may close calls.
    agent: Mutex<Option<RunContext>>,
    is_interjected: AtomicBool,
    /// The gates that the calls are waiting in.
    gates: Mutex<Option<AbortHandle>>,
}

/// The part of a turn that other tasks may change or read.
#[derive(Debug)]
struct Parts {
    /// By position. The mutex is needed because calls that run concurrently share the turn.
    calls: Vec<Call>,
    /// `true` once the hooks of `tool.resolve` have seen all calls.
    is_resolved: bool,
    /// Messages after the results.
    injected: Vec<Arc<Message>>,
    /// The text of the results for calls that have not begun.
    unanswered: &'static str,
    /// `false` if the turn ends without its calls: then none of them stays open.
    executes: bool,
}

/// The messages of a turn that an earlier run has left in the history, directly after the response.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) results: Vec<Arc<Message>>,
    /// The number of messages that follow the results.
    pub(super) injected: usize,
}

impl Placed {
    /// Returns the position of the response. Returns `None` if a message of the turn was rewritten, so that the turn
    /// cannot go on.
    pub(super) fn position(&self, response: &Arc<Message>, history: &History) -> Option<usize> {
        let messages = history.messages();
        let at = messages.iter().rposition(|message| Arc::ptr_eq(message, response))?;
        let results = messages.get(at + 1..at + 1 + self.results.len())?;
        let is_same = results.iter().zip(&self.results).all(|(one, other)| Arc::ptr_eq(one, other));
        is_same.then_some(at)
    }
}

/// The changes that a turn has made in a history.
pub(super) struct Entered {
    pub(super) added: Vec<Arc<Message>>,
    /// Pairs of a message and the message in its place.
    pub(super) replaced: Vec<(Arc<Message>, Arc<Message>)>,
    /// The turn, if calls are open.
    pub(super) open: Option<StoppedTurn>,
}

/// The messages and open calls that the turn leaves at its end.
pub(super) struct Ends {
    pub(super) results: Vec<Arc<Message>>,
    pub(super) injected: Vec<Arc<Message>>,
    /// `None` if no call is open.
    pub(super) calls: Option<Vec<StoppedCall>>,
}

impl TurnCalls {
    pub(super) fn new(taker: Taker, session: Arc<SessionKey>, number: u64, response: Message) -> Self {
        let open = || {
            let state = CallState::Open(WorkStarted::in_attempt(taker.attempt));
            Call { state, is_earlier: false, is_announced: false, settled: None, open: None }
        };
        let calls = response.tool_calls().map(|_| open()).collect();
        Self::of(taker, session, number, Arc::new(response), calls, None)
    }

    /// Makes the calls of a turn that an earlier run has left open.
    pub(super) fn again(taker: Taker, session: Arc<SessionKey>, stopped: StoppedTurn) -> Self {
        let StoppedTurn { number, response, placed, is_resolved, calls } = stopped;
        let call = |(call, placed): (StoppedCall, &Arc<Message>)| match call {
            StoppedCall::Settled(settled) => {
                let result = placed.tool_results().next().cloned().unwrap_or_else(|| ToolResult::error("", ""));
                Call {
                    state: CallState::Settled(result),
                    is_earlier: true,
                    is_announced: false,
                    settled: Some(settled),
                    open: None,
                }
            }
            StoppedCall::Open(open) => {
                let state = CallState::Open(WorkStarted::in_attempt(taker.attempt));
                Call { state, is_earlier: false, is_announced: false, settled: None, open: Some(open) }
            }
        };
        let calls = calls.into_iter().zip(&placed.results).map(call).collect();
        let again = Self::of(taker, session, number, response, calls, Some(placed));
        again.parts.lock().is_resolved = is_resolved;
        again
    }

    fn of(
        taker: Taker,
        session: Arc<SessionKey>,
        number: u64,
        response: Arc<Message>,
        calls: Vec<Call>,
        placed: Option<Placed>,
    ) -> Self {
        let parts = Parts { calls, is_resolved: false, injected: Vec::new(), unanswered: UNANSWERED, executes: true };
        Self {
            taker,
            session,
            number,
            response,
            placed,
            parts: Mutex::new(parts),
            agent: Mutex::new(None),
            is_interjected: AtomicBool::new(false),
            gates: Mutex::new(None),
        }
    }

    pub(super) const fn taker(&self) -> Taker {
        self.taker
    }

    /// Returns the state that a call shares with the run of its tool. If the call has a result, returns a closed state.
    pub(super) fn work_started(&self, position: usize) -> WorkStarted {
        match &self.parts.lock().calls[position].state {
            CallState::Open(started) => started.clone(),
            CallState::Settled(_) | CallState::Waiting { .. } | CallState::Interjected => {
                let closed = WorkStarted::in_attempt(self.taker.attempt);
                closed.close();
                closed
            }
        }
    }

    /// Sets the state of a call, which is closed from now on.
    fn close(&self, position: usize, state: CallState) {
        let before = replace(&mut self.parts.lock().calls[position].state, state);
        if let CallState::Open(started) = before {
            started.close();
        }
    }

    pub(super) fn settle(&self, position: usize, result: ToolResult) {
        self.close(position, CallState::Settled(result));
    }

    /// Sets the result of a call, and keeps how it has settled.
    pub(super) fn keep(&self, position: usize, settled: Option<Box<SettledCall>>, result: ToolResult) {
        if settled.is_some() {
            self.parts.lock().calls[position].settled = settled;
        }
        self.settle(position, result);
    }

    /// Ends an interrupted call. Until a resume, the history has one of these texts: the first if the call had begun.
    pub(super) fn interrupt(&self, position: usize, texts: [&'static str; 2]) {
        let started = self.work_started(position);
        let text = texts[usize::from(!started.close())];
        // Layers that were entered have let the call wait, so only its function counts.
        self.close(position, CallState::Waiting { text, has_begun: started.is_called() });
    }

    /// Ends a call whose result has not passed the hooks of `tool.result`. Until a resume, the history has one of these
    /// texts: the first if the call had begun.
    pub(super) fn withhold(&self, position: usize, texts: [&'static str; 2]) {
        let has_begun = self.work_started(position).close();
        self.close(position, CallState::Waiting { text: texts[usize::from(!has_begun)], has_begun });
    }

    /// Returns `true` unless the call was announced before. From now on, the session is stored as if the call had begun.
    pub(super) fn announce(&self, position: usize) -> bool {
        !replace(&mut self.parts.lock().calls[position].is_announced, true)
    }

    /// The call was announced, but not stored as begun.
    pub(super) fn take_back(&self, position: usize) {
        self.parts.lock().calls[position].is_announced = false;
    }

    /// Changes what is known about an open call.
    pub(crate) fn change<T>(&self, position: usize, change: impl FnOnce(&mut OpenCall) -> T) -> T {
        change(self.parts.lock().calls[position].open.get_or_insert_default())
    }

    /// Returns the session of an agent below a call, by the key of the agent's run, and `true` if a run has begun to use it.
    pub(crate) fn session_below(
        &self,
        position: usize,
        key: &RunKey,
        make: impl FnOnce() -> Session,
    ) -> (Session, bool) {
        let known = self.read(position, |open| open.sessions.get(key.as_str()).cloned()).flatten();
        if let Some(session) = known {
            let has_begun = session.has_begun();
            return (session, has_begun);
        }
        let session = make().with_key(key.clone());
        if let Some(entry) = self.session.entry() {
            session.key.set_entry(entry);
        }
        self.change(position, |open| open.sessions.insert(key.to_string(), session.clone()));
        (session, false)
    }

    /// Keeps that a gate has let a call pass, and how the gate has left it.
    pub(crate) fn pass(&self, position: usize, gate: &str, call: &ToolCall, answers: &Answers) {
        let changed = self.changed(position, call);
        self.change(position, |open| {
            open.passed.push(gate.to_owned());
            // The gate is not called again, so it does not ask again.
            open.use_answers(answers);
            self.replace(position, open, changed, call);
        });
    }

    /// Changes an open call: what has to be asked about it is asked about the new arguments.
    pub(crate) fn replace(&self, position: usize, open: &mut OpenCall, changed: Option<ToolCall>, call: &ToolCall) {
        let before = open.call.clone();
        open.replace(changed, call, || [self.key(position, before.as_ref()), self.key(position, Some(call))]);
    }

    /// Reads what is known about a call.
    pub(crate) fn read<T>(&self, position: usize, read: impl FnOnce(&OpenCall) -> T) -> Option<T> {
        self.parts.lock().calls[position].open.as_deref().map(read)
    }

    /// Calls a function with what is known about each open call, in order, until it returns a value.
    pub(super) fn change_open<T>(&self, change: &mut impl FnMut(&mut OpenCall) -> Option<T>) -> Option<T> {
        let parts = &mut *self.parts.lock();
        let is_open = |call: &&mut Call| matches!(call.state, CallState::Open(_) | CallState::Waiting { .. });
        parts.calls.iter_mut().filter(is_open).find_map(|call| change(call.open.as_deref_mut()?))
    }

    /// Returns how a call had settled when the turn was resumed, with its result.
    pub(crate) fn settled_before(&self, position: usize) -> Option<(SettledCall, ToolResult)> {
        let parts = self.parts.lock();
        let call = &parts.calls[position];
        match &call.state {
            CallState::Settled(result) if call.is_earlier => {
                Some((call.settled.as_deref().cloned().unwrap_or_default(), result.clone()))
            }
            _ => None,
        }
    }

    pub(crate) fn is_resolved(&self) -> bool {
        self.parts.lock().is_resolved
    }

    /// From now on, a resume does not call the hooks of `tool.resolve` again.
    pub(crate) fn resolve(&self) {
        self.parts.lock().is_resolved = true;
    }

    pub(super) fn inject(&self, messages: impl IntoIterator<Item = Arc<Message>>) {
        self.parts.lock().injected.extend(messages);
    }

    /// Ends the turn without its calls, which get this text.
    pub(super) fn leave_out(&self, text: &'static str) {
        let mut parts = self.parts.lock();
        (parts.unanswered, parts.executes) = (text, false);
    }

    /// Ends the turn: its calls are closed.
    pub(super) fn end(&self) -> Ends {
        let mut parts = self.parts.lock();
        for call in &parts.calls {
            if let CallState::Open(started) = &call.state {
                // The call is closed before its result enters the history, so "not executed" stays true.
                started.close();
            }
        }
        let calls = parts.stop();
        let (injected, unanswered) = (take(&mut parts.injected), parts.unanswered);
        // The calls stay, because a tool that outlives its turn still looks for its call.
        let states = parts.calls.iter_mut().map(|call| match &call.state {
            CallState::Open(started) => CallState::Open(started.clone()),
            _ => replace(&mut call.state, CallState::Waiting { text: unanswered, has_begun: false }),
        });
        Ends { results: results(&self.response, states, unanswered), calls, injected }
    }

    /// Returns what the turn would leave if it ended now.
    pub(super) fn peek(&self) -> Ends {
        let parts = self.parts.lock();
        let states = parts.calls.iter().map(|call| call.state.clone());
        let results = results(&self.response, states, parts.unanswered);
        Ends { results, calls: parts.stop(), injected: parts.injected.clone() }
    }

    /// Adds the messages of the turn to a history, or replaces those that an earlier run has left there. Returns the
    /// added and the replaced messages, and the turn if calls are open.
    pub(super) fn enter(&self, Ends { results, injected, calls }: Ends, history: &mut History) -> Entered {
        let Some(placed) = &self.placed else {
            let placed = calls.is_some().then(|| Placed { results: results.clone(), injected: injected.len() });
            let mut added = Vec::with_capacity(1 + results.len() + injected.len());
            added.push(Arc::clone(&self.response));
            added.extend(results.into_iter().chain(injected));
            Arc::make_mut(&mut history.0).extend(added.iter().cloned());
            return Entered { added, replaced: Vec::new(), open: placed.and_then(|placed| self.stop(placed, calls)) };
        };
        let Some(at) = placed.position(&self.response, history) else {
            // The turn was rewritten meanwhile, so only new messages enter.
            Arc::make_mut(&mut history.0).extend(injected.iter().cloned());
            return Entered { added: injected, replaced: Vec::new(), open: None };
        };
        let mut placed = placed.clone();
        let mut replaced = Vec::new();
        for (place, result) in placed.results.iter_mut().zip(results).filter(|(place, result)| *place != result) {
            replaced.push((replace(place, Arc::clone(&result)), result));
        }
        let messages = Arc::make_mut(&mut history.0);
        let behind = at + 1 + placed.results.len();
        messages[at + 1..behind].clone_from_slice(&placed.results);
        // Another run may have rewritten the messages behind the results.
        let end = (behind + placed.injected).min(messages.len());
        placed.injected += injected.len();
        messages.splice(end..end, injected.iter().cloned());
        Entered { added: injected, replaced, open: self.stop(placed, calls) }
    }

    fn stop(&self, placed: Placed, calls: Option<Vec<StoppedCall>>) -> Option<StoppedTurn> {
        let (number, response, calls) = (self.number, Arc::clone(&self.response), calls?);
        Some(StoppedTurn { number, response, placed, is_resolved: self.is_resolved(), calls })
    }

    /// Lets interjections close the calls of this run of an agent from now on.
    pub(super) fn listen(&self, agent: &RunContext) {
        *self.agent.lock() = Some(agent.clone());
    }

    pub(super) fn is_listening(&self) -> bool {
        self.agent.lock().is_some()
    }

    /// Returns `true` if an interjection has closed the call at this position.
    pub(super) fn is_interjected(&self, position: usize) -> bool {
        self.is_interjected.load(Ordering::Acquire)
            && matches!(self.parts.lock().calls[position].state, CallState::Interjected)
    }

    /// Closes the calls that have not begun, and aborts their runs and gates.
    pub(super) fn interject(&self) {
        for call in &mut self.parts.lock().calls {
            if let CallState::Open(started) = &call.state
                && !started.close()
            {
                call.state = CallState::Interjected;
            }
        }
        self.is_interjected.store(true, Ordering::Release);
        let gates = self.gates.lock().take();
        if let Some(gates) = gates {
            gates.abort();
        }
        // A run that begins later finds its call closed.
        let agent = self.agent.lock().clone();
        for run in agent.map(|agent| agent.children()).unwrap_or_default() {
            if run.own_extension::<CallInTurn>().is_some_and(|call| call.started.is_closed()) {
                run.abort(INTERJECTED);
            }
        }
    }

    /// Polls a future until an interjection closes the calls. Returns `None` if one has.
    pub(super) async fn until_interjected<T>(&self, gates: impl Future<Output = T>) -> Option<T> {
        // A gate may be the first that has the session, so the wait can end even if nobody else has it yet.
        let (abort, registration) = AbortHandle::new_pair();
        *self.gates.lock() = Some(abort);
        // An interjection sets this mark before it looks for the handle.
        if self.is_interjected.load(Ordering::Acquire) {
            return None;
        }
        Abortable::new(gates, registration).await.ok()
    }
}

impl Parts {
    /// Returns the calls that a session keeps, unless all of them have settled.
    fn stop(&self) -> Option<Vec<StoppedCall>> {
        let is_open = |call: &Call| matches!(call.state, CallState::Open(_) | CallState::Waiting { .. });
        let stops = self.executes && self.calls.iter().any(is_open);
        stops.then(|| self.calls.iter().map(Call::stop).collect())
    }
}

/// Returns the results of the calls of a response, as messages.
fn results(response: &Message, states: impl Iterator<Item = CallState>, unanswered: &'static str) -> Vec<Arc<Message>> {
    let results = response.tool_calls().zip(states).map(|(asked, state)| {
        let mut result = match state {
            CallState::Settled(result) => result,
            CallState::Waiting { text, .. } => ToolResult::error("", text),
            CallState::Interjected => ToolResult::error("", NOT_EXECUTED),
            CallState::Open(started) => ToolResult::error("", if started.has_started() { STOPPED } else { unanswered }),
        };
        // A hook may have changed the id, but the result belongs to this call.
        result.id.clone_from(&asked.id);
        Arc::new(Message::tool([result]))
    });
    results.collect()
}

impl Call {
    fn stop(&self) -> StoppedCall {
        let has_begun = match &self.state {
            CallState::Settled(_) | CallState::Interjected => {
                return StoppedCall::Settled(self.settled.clone().unwrap_or_default());
            }
            // Until the function is called, the handle and the store may disagree, but never after the turn (A25).
            CallState::Open(started) => started.has_started() || self.is_announced && !started.is_closed(),
            CallState::Waiting { has_begun, .. } => *has_begun,
        };
        let mut open = self.open.clone().unwrap_or_default();
        open.has_begun |= has_begun;
        StoppedCall::Open(open)
    }
}
