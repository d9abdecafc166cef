//! The fold of a run's facts to steps. It is pure: the same facts make the same steps.
//!
//! 1. A reply is *open* until its message enters the history. Its parts are what listeners have received, and guards may
//!    still withhold them, so the fold compares them with the message, and takes back what does not hold (M4).
//! 2. Whatever is taken back, one step says it: a reset, with all parts that hold. Every text is closed before a reset.
//! 3. The last step is the end of the run. Before it, every text is closed, every call is complete or taken back, and
//!    every sub-agent has ended.

mod agents;
mod ends;
mod replies;

use std::collections::HashMap;
use std::sync::Arc;

use emitree_agent::{AgentOutput, ToolCall, ToolResult};
use emitree_runtime::Result;
use serde_json::Value;
use uuid::Uuid;

use crate::fact::{Fact, News};
use crate::fold::agents::Agents;
use crate::past::{CallIds, denied_or};
use crate::step::{Call, CallResult, Content, Owner, Part, Size, Step, TextKind, bytes_of};

/// The state of a page while a run is under way.
#[derive(Debug)]
pub(crate) struct Fold {
    /// Ids of texts and messages begin with it.
    run: Arc<str>,
    /// The number of ids so far.
    ids: u64,
    agents: Agents,
    calls: CallIds,
    /// The conversation before the run.
    before: Arc<[Part]>,
    parts: Vec<Held>,
    /// `true` if the asked agent's model has begun a reply.
    has_begun: bool,
    /// The number of messages that each agent has said.
    said: HashMap<Owner, u32>,
    /// The shown events that a reset repeats: their number, and the bytes of their values.
    shown: Size,
}

/// A part, and what the fold knows about it.
#[derive(Debug)]
struct Held {
    part: Part,
    /// `true` while a text or the arguments of a call arrive.
    is_open: bool,
    /// The number of the message that has the part, or `None` while the reply is open.
    message: Option<u32>,
}

/// The steps that a fact makes.
type Steps = Vec<Step>;

impl Fold {
    /// Begins a run of the agent whose run is known once it has begun. `before` is the conversation before the run.
    pub(crate) fn new(run: Arc<str>, before: Vec<Part>, calls: CallIds) -> Self {
        Self {
            run,
            ids: 0,
            agents: Agents::default(),
            calls,
            before: before.into(),
            parts: Vec::new(),
            has_begun: false,
            said: HashMap::new(),
            shown: Size::default(),
        }
    }

    /// Adds a fact, and returns the steps that it makes.
    pub(crate) fn add(&mut self, fact: Fact) -> Steps {
        let mut steps = Vec::new();
        if let News::Shown { id, path, value } = fact.news {
            self.show(id, path, value, &mut steps);
            return steps;
        }
        if let News::Started { name, call, above } = fact.news {
            self.start_agent(fact.agent, name, call, above, &mut steps);
            return steps;
        }
        let Some(owner) = self.agents.owner(fact.agent) else { return steps };
        match fact.news {
            News::Token { text, is_reasoning } => self.add_text(&owner, &text, TextKind::of(is_reasoning), &mut steps),
            News::CallStarted { id, name } => _ = self.open_call(&owner, &id, &name, &mut steps),
            News::CallDelta { id, text } => self.add_arguments(&owner, &id, text, &mut steps),
            News::Called(call) => _ = self.close_call(&owner, &call, &mut steps),
            News::Returned { call, result } => self.return_call(&owner, &call, result, &mut steps),
            News::Said(message) => self.say(&owner, &message, &mut steps),
            News::Replaced(message) => self.replace(&owner, &message, &mut steps),
            News::ReplyDropped => self.drop_reply(&owner, &mut steps),
            News::RunDropped(run) => self.drop_run(run, &mut steps),
            News::HandsOff { to } => self.agents.expect(owner, to),
            News::Resumed(calls) if owner.is_none() => self.resume(&calls, &mut steps),
            News::Ended(end) => self.end_agent(fact.agent, owner, end, &mut steps),
            News::Resumed(_) | News::Started { .. } | News::Shown { .. } => {}
        }
        steps
    }

    /// Ends the run.
    pub(crate) fn end(&mut self, result: &Result<AgentOutput>) -> Steps {
        let mut steps = Vec::new();
        self.finish(result, &mut steps);
        steps
    }

    /// Closes all texts, and returns a step with all parts that hold.
    pub(crate) fn reset(&mut self) -> Step {
        self.close_texts(|_| true, &mut Vec::new());
        self.parts_that_hold()
    }

    /// Returns `true` if the agent has begun.
    pub(crate) fn has_agent(&self) -> bool {
        !self.agents.is_empty()
    }

    fn next_id(&mut self) -> Arc<str> {
        self.ids += 1;
        format!("{}-{}", self.run, self.ids).into()
    }

    /// Notes that the asked agent's model begins a reply.
    fn begin(&mut self, owner: &Owner, steps: &mut Steps) {
        if owner.is_none() && !self.has_begun {
            self.has_begun = true;
            steps.push(Step::Began);
        }
    }

    fn add_text(&mut self, owner: &Owner, text: &str, kind: TextKind, steps: &mut Steps) {
        if text.is_empty() {
            return;
        }
        let last = self.parts.iter().rposition(|held| held.part.owner == *owner && held.is_open && held.is_text());
        let is_same = |at: &usize| self.parts[*at].part.kind() == Some(kind);
        let at = last.filter(is_same).unwrap_or_else(|| {
            self.begin(owner, steps);
            self.close_texts(|held| held.part.owner == *owner, steps);
            let id = self.next_id();
            steps.push(Step::Opened { id: Arc::clone(&id), kind, owner: owner.clone() });
            let content = Content::Text { kind, text: String::new() };
            let part = Part { id, owner: owner.clone(), content };
            self.parts.push(Held { part, is_open: true, message: None });
            self.parts.len() - 1
        });
        let part = &mut self.parts[at].part;
        if let Content::Text { text: so_far, .. } = &mut part.content {
            so_far.push_str(text);
        }
        let id = Arc::clone(&part.id);
        steps.push(Step::Delta { id, kind, owner: owner.clone(), text: text.to_owned() });
    }

    /// Closes the open texts that `of` selects.
    fn close_texts(&mut self, of: impl Fn(&Held) -> bool, steps: &mut Steps) {
        for held in self.parts.iter_mut().filter(|held| held.is_open && of(held)) {
            if let Some(kind) = held.part.kind() {
                held.is_open = false;
                steps.push(Step::Closed { id: Arc::clone(&held.part.id), kind, owner: held.part.owner.clone() });
            }
        }
    }

    /// Opens a call, and returns its position.
    fn open_call(&mut self, owner: &Owner, given: &str, name: &str, steps: &mut Steps) -> usize {
        self.begin(owner, steps);
        self.close_texts(|held| held.part.owner == *owner, steps);
        let message = self.message_of_reply(owner).unwrap_or_else(|| self.next_id());
        let (id, name) = (self.calls.next(owner, given), Arc::<str>::from(name));
        steps.push(Step::CallOpened {
            id: Arc::clone(&id),
            name: Arc::clone(&name),
            message: Arc::clone(&message),
            owner: owner.clone(),
        });
        let call = Call { given: given.into(), name, message, text: String::new(), input: None, result: None };
        let part = Part { id, owner: owner.clone(), content: Content::Call(call) };
        self.parts.push(Held { part, is_open: true, message: None });
        self.parts.len() - 1
    }

    /// Returns the id of the message that the calls of the open reply belong to.
    fn message_of_reply(&self, owner: &Owner) -> Option<Arc<str>> {
        let open = || self.parts.iter().rev().filter(|held| held.part.owner == *owner && held.message.is_none());
        open().find_map(|held| match &held.part.content {
            Content::Call(call) => Some(Arc::clone(&call.message)),
            Content::Text { kind: TextKind::Answer, .. } => Some(Arc::clone(&held.part.id)),
            _ => None,
        })
    }

    /// Returns the position of the last call with this id that `of` selects.
    fn call_at(&self, owner: &Owner, given: &str, of: impl Fn(&Held, &Call) -> bool) -> Option<usize> {
        self.parts.iter().rposition(|held| {
            let call = held.part.call().filter(|call| *call.given == *given && held.part.owner == *owner);
            call.is_some_and(|call| of(held, call))
        })
    }

    fn add_arguments(&mut self, owner: &Owner, given: &str, text: String, steps: &mut Steps) {
        let Some(at) = self.call_at(owner, given, |held, _| held.is_open).filter(|_| !text.is_empty()) else { return };
        let part = &mut self.parts[at].part;
        if let Content::Call(call) = &mut part.content {
            call.text.push_str(&text);
        }
        steps.push(Step::CallDelta { id: Arc::clone(&part.id), owner: owner.clone(), text });
    }

    /// Notes that the arguments of a call are complete, and returns its position.
    fn close_call(&mut self, owner: &Owner, call: &ToolCall, steps: &mut Steps) -> usize {
        let input = input_of(call);
        let at = self.call_at(owner, &call.id, |held, _| held.is_open);
        let at = at.unwrap_or_else(|| self.open_call(owner, &call.id, &call.name, steps));
        let held = &mut self.parts[at];
        held.is_open = false;
        let id = Arc::clone(&held.part.id);
        let Some(known) = held.part.call_mut() else { return at };
        if known.text.is_empty() {
            // The model has not streamed the arguments.
            known.text = call.arguments.to_string();
            steps.push(Step::CallDelta { id: Arc::clone(&id), owner: owner.clone(), text: known.text.clone() });
        }
        let is_same = *known.name == call.name && known.has_arguments(call);
        if !is_same {
            known.text = call.arguments.to_string();
        }
        (known.name, known.input) = (call.name.as_str().into(), Some(input.clone()));
        let malformed = call.arguments.json().is_none().then(|| known.text.clone());
        steps.push(Step::CallClosed { id, name: Arc::clone(&known.name), input, malformed, owner: owner.clone() });
        if !is_same {
            // A hook has changed the call that the model has written: the page shows the one that is made.
            self.push_reset(steps);
        }
        at
    }

    fn return_call(&mut self, owner: &Owner, call: &ToolCall, result: ToolResult, steps: &mut Steps) {
        let result = CallResult { kind: denied_or(&result), response: result.response };
        let given = &*call.id;
        let is_earlier = |part: &Part| part.call().is_some_and(|call| *call.given == *given);
        let waits = |held: &Held, call: &Call| !held.is_open && call.result.is_none();
        let id = if let Some(at) = self.call_at(owner, given, waits) {
            self.parts[at].settle(&result)
        } else if owner.is_none() && self.before.iter().any(is_earlier) {
            let id = self.calls.last(owner, given);
            let part = Part { id: Arc::clone(&id), owner: None, content: Content::Result(result.clone()) };
            self.parts.push(Held { part, is_open: false, message: Some(0) });
            id
        } else {
            // An earlier run of a sub-agent has made the call.
            let at = self.close_call(owner, call, steps);
            self.parts[at].message = Some(0);
            self.parts[at].settle(&result)
        };
        steps.push(Step::Returned { id, result, owner: owner.clone() });
    }

    fn show(&mut self, id: Uuid, path: Arc<str>, value: Value, steps: &mut Steps) {
        let id: Arc<str> = id.to_string().into();
        let content = Content::Shown { path: Arc::clone(&path), value: value.clone() };
        let part = Part { id: Arc::clone(&id), owner: None, content };
        self.parts.push(Held { part, is_open: false, message: Some(0) });
        self.shown.add(bytes_of(&value));
        if self.shown.is_full() {
            self.forget_shown();
        }
        steps.push(Step::Shown { id, path, value });
    }

    /// Forgets the older half of the shown events: a tool that reports its progress for hours fills no memory. All other
    /// parts are in the history too, so the session bounds them.
    fn forget_shown(&mut self) {
        let mut forgotten = self.shown.count / 2;
        self.parts.retain(|held| {
            let is_forgotten = forgotten > 0 && held.part.is_shown();
            forgotten -= usize::from(is_forgotten);
            !is_forgotten
        });
        self.shown = Size::default();
        for held in &self.parts {
            if let Content::Shown { value, .. } = &held.part.content {
                self.shown.add(bytes_of(value));
            }
        }
    }

    /// Goes on with the calls of an earlier run: the conversation so far has no result of them.
    fn resume(&mut self, calls: &[String], steps: &mut Steps) {
        let mut before = self.before.to_vec();
        for given in calls {
            let last = before.iter_mut().rev().filter_map(Part::call_mut).find(|call| *call.given == **given);
            last.into_iter().for_each(|call| call.result = None);
        }
        self.before = before.into();
        steps.push(Step::Resumed(Arc::clone(&self.before)));
    }

    fn push_reset(&mut self, steps: &mut Steps) {
        self.close_texts(|_| true, steps);
        steps.push(self.parts_that_hold());
    }

    fn parts_that_hold(&self) -> Step {
        let parts = self.parts.iter().map(|held| held.part.clone()).collect();
        Step::Reset { before: Arc::clone(&self.before), parts, has_begun: self.has_begun }
    }
}

impl Held {
    /// Adds the result of a call, and returns the id of the call.
    fn settle(&mut self, result: &CallResult) -> Arc<str> {
        self.part.call_mut().into_iter().for_each(|call| call.result = Some(result.clone()));
        Arc::clone(&self.part.id)
    }

    fn is_text(&self) -> bool {
        self.part.kind().is_some()
    }
}

impl Part {
    /// Returns the kind of a text.
    fn kind(&self) -> Option<TextKind> {
        match self.content {
            Content::Text { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// Returns the text of an answer or a reasoning.
    fn text_of(&self, kind: TextKind) -> Option<&str> {
        match &self.content {
            Content::Text { kind: own, text } if *own == kind => Some(text),
            _ => None,
        }
    }
}

impl Call {
    /// Returns `true` if the text has the arguments of a call.
    fn has_arguments(&self, call: &ToolCall) -> bool {
        match call.arguments.json() {
            Some(json) => serde_json::from_str::<Value>(&self.text).is_ok_and(|own| own == *json),
            None => self.text == call.arguments.to_string(),
        }
    }
}

impl TextKind {
    const fn of(is_reasoning: bool) -> Self {
        if is_reasoning { Self::Reasoning } else { Self::Answer }
    }
}

/// Returns the arguments of a call as JSON.
pub(crate) fn input_of(call: &ToolCall) -> Value {
    call.arguments.json().cloned().unwrap_or_else(|| Value::String(call.arguments.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::AgentEnd;

    const ASKED: Uuid = Uuid::from_u128(1);
    const WRITER: Uuid = Uuid::from_u128(2);

    // W2
    #[test]
    fn a_text_that_is_withheld_is_taken_back_before_anything_else_is_said() {
        let withheld = [
            (ASKED, News::ReplyDropped),
            (ASKED, News::RunDropped(ASKED)),
            (WRITER, News::ReplyDropped),
            (WRITER, News::RunDropped(WRITER)),
            (WRITER, News::Ended(AgentEnd::Withheld)),
        ];
        for (agent, news) in withheld {
            let mut fold = Fold::new("r".into(), Vec::new(), CallIds::default());
            let started = |above| News::Started { name: "guide".into(), call: None, above };
            fold.add(Fact { agent: ASKED, news: started(Vec::new()) });
            fold.add(Fact { agent: WRITER, news: started(vec![ASKED]) });
            fold.add(Fact { agent, news: News::Token { text: "1815".to_owned(), is_reasoning: false } });
            let steps = fold.add(Fact { agent, news: news.clone() });
            let [Step::Closed { .. }, Step::Reset { parts, .. }, ..] = &*steps else { panic!("{news:?}: {steps:?}") };
            assert!(parts.is_empty(), "{news:?}: {parts:?}");
        }
    }
}
