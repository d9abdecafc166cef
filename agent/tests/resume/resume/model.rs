//! A session against a small model of it (A1, A15, A22, A23): which questions are open, which answers they have, and
//! which calls were executed how often.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use emitree_agent::{
    Agent, AgentMiddleware, AgentOutput, AgentRun, AnswerError, ChatModel, History, Hooks, Message, Reply,
    ScriptedModel, Session, Tool, hooks_fn, tool_fn,
};
use emitree_middleware::Runs;
use emitree_middleware::approval::{Approval, Decision};
use emitree_runtime::{Answer, Error, Interrupt, Result, RunContext, for_tree, map_output};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::says;
use crate::support::{Log, Text, assert_valid, refuse_bad, results, texts};

type Checked = std::result::Result<(), TestCaseError>;

/// The tool that is called, and so who asks about the call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Nobody.
    Note,
    /// An approval.
    Pay,
    /// A gate.
    Big,
    /// A gate, and then an approval.
    Both,
    /// The function of the tool, which is idempotent.
    Paint,
}

impl Kind {
    fn tool(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Pay => "pay",
            Self::Big => "big",
            Self::Both => "both",
            Self::Paint => "paint",
        }
    }
}

/// An answer of a person.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    Yes,
    No,
    Edit,
    BadEdit,
    Nonsense,
}

/// How a run of `Step::Ask` ends.
#[derive(Clone, Debug)]
enum Ends {
    Naturally,
    /// The run is dropped while one more call, which is not idempotent, is at work.
    Dropped,
    /// The same, and meanwhile another run uses the session.
    Beside(Vec<Kind>),
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Vec<Kind>, Ends),
    Resume,
    /// Answers a question that was asked at any time, or one that never was.
    Answer(usize, Says, bool),
    /// Answers the question that is open at this place.
    AnswerOpen(usize, Says, bool),
    Steer,
    Pause,
    /// Stores the session, and reads it as another process does.
    Restart,
    /// Lets the next model call rewrite the history.
    Rewrite,
    /// Lets the next final answer be refused, so that the run makes another attempt (M7).
    Refuse,
    /// Lets the next final call of the model fail.
    Fail,
}

#[derive(Clone, Debug)]
struct Call {
    kind: Kind,
    gate_passed: bool,
    approved: bool,
    /// The answer to the question that the call waits for.
    answer: Option<(Says, &'static str)>,
    is_settled: bool,
    /// A call that had begun, and is not made again.
    is_lost: bool,
}

/// The question that a call waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asks {
    Gate,
    Approval,
    Function,
}

impl Call {
    fn new(kind: Kind) -> Self {
        Self { kind, gate_passed: false, approved: false, answer: None, is_settled: false, is_lost: false }
    }

    fn asks(&self) -> Option<Asks> {
        match self.kind {
            _ if self.is_settled || self.is_lost => None,
            Kind::Note => None,
            Kind::Big | Kind::Both if !self.gate_passed => Some(Asks::Gate),
            Kind::Pay | Kind::Both if !self.approved => Some(Asks::Approval),
            Kind::Paint if self.answer.is_none() => Some(Asks::Function),
            _ => None,
        }
    }

    /// Makes the call, with its answer if it has one. Returns `true` if it has an effect.
    fn make(&mut self) -> bool {
        while let (Some(asks), Some((says, _))) = (self.asked(), self.answer) {
            self.answer = None;
            match (asks, says) {
                (Asks::Gate, Says::Yes) => self.gate_passed = true,
                (Asks::Approval, Says::Yes) => self.approved = true,
                (Asks::Approval, Says::Edit) => (self.approved, self.gate_passed) = (true, false),
                (Asks::Gate | Asks::Approval, Says::No) => {
                    self.is_settled = true;
                    return false;
                }
                (Asks::Function, _) => {
                    self.is_settled = true;
                    return true;
                }
                // The answer does not fit.
                _ => {}
            }
        }
        self.is_settled = self.is_lost || self.asked().is_none();
        self.is_settled && !self.is_lost
    }

    /// Returns the question, also if it has an answer.
    fn asked(&self) -> Option<Asks> {
        match self.kind {
            Kind::Paint if !self.is_settled => Some(Asks::Function),
            _ => self.asks(),
        }
    }

    fn waits(&self) -> bool {
        self.asked().is_some() && self.answer.is_none()
    }
}

/// A question that was asked.
#[derive(Clone, Debug)]
struct Asked {
    id: String,
    /// The number of the turn, and the position of the call.
    of: (u32, usize),
    first: Option<&'static str>,
}

#[derive(Debug, Default)]
struct Model {
    /// The calls of the open turn, and the number of this turn.
    open: Option<(u32, Vec<Call>)>,
    turns: u32,
    /// `true` if the last run ended without an answer.
    stopped: bool,
    has_messages: bool,
    executed: BTreeMap<&'static str, usize>,
    asked: Vec<Asked>,
    paused: bool,
    refuses: bool,
    fails: bool,
    rewrites: bool,
    steered: usize,
    delivered: usize,
}

impl Model {
    /// Makes the calls of a turn. Returns `true` if all have settled.
    fn make(&mut self, calls: &mut [Call]) -> bool {
        for call in calls.iter_mut().filter(|call| !call.is_settled) {
            if call.make() {
                *self.executed.entry(call.kind.tool()).or_default() += 1;
            }
        }
        calls.iter().all(|call| call.is_settled)
    }

    /// The model is called for an answer. Returns `true` if the run ends with it.
    fn answer(&mut self) -> bool {
        let is_paused = std::mem::take(&mut self.paused);
        if !is_paused {
            self.delivered = self.steered;
        }
        self.stopped = is_paused || std::mem::take(&mut self.fails);
        !self.stopped
    }

    /// A run asks with a response that has these calls. Returns `true` if it ends with an answer.
    fn ask(&mut self, kinds: &[Kind]) -> bool {
        self.open = None;
        self.has_messages = true;
        if std::mem::take(&mut self.paused) {
            self.stopped = true;
            return false;
        }
        self.delivered = self.steered;
        if kinds.is_empty() {
            return self.answer();
        }
        self.turns += 1;
        let mut calls: Vec<_> = kinds.iter().copied().map(Call::new).collect();
        if self.make(&mut calls) {
            return self.answer();
        }
        self.open = Some((self.turns, calls));
        self.stopped = true;
        false
    }

    /// Returns `None` if there is nothing to do.
    fn resume(&mut self) -> Option<bool> {
        if !self.stopped && (self.delivered == self.steered || !self.has_messages) {
            let has_work = self.delivered != self.steered;
            return has_work.then(|| self.answer());
        }
        if let Some((turn, mut calls)) = self.open.take()
            && !self.make(&mut calls)
        {
            self.open = Some((turn, calls));
            return Some(false);
        }
        Some(self.answer())
    }

    fn waiting(&self) -> Vec<(u32, usize)> {
        let Some((turn, calls)) = &self.open else { return Vec::new() };
        let waits = calls.iter().enumerate().filter(|(_, call)| call.waits());
        waits.map(|(position, _)| (*turn, position)).collect()
    }
}

/// The program under test, with what its tools and hooks read.
#[derive(Clone, Default)]
struct World {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    effects: Log,
    rewrites: Arc<Mutex<bool>>,
    /// `true` if the next call of `hold` waits.
    holds: Arc<Mutex<bool>>,
    held: Arc<Notify>,
    release: Arc<Notify>,
}

impl World {
    fn tool(&self, name: &'static str) -> Tool {
        let world = self.clone();
        let tool = tool_fn(name, "Works", move |_: Text, ctx: RunContext| {
            let world = world.clone();
            async move {
                if name == "paint" {
                    let colour: String = ctx.ask(Interrupt::new("colour", json!({"choices": ["red", "blue"]})))?;
                    assert!(["red", "blue"].contains(&colour.as_str()));
                }
                world.effects.add(ctx.key().expect("a key").as_str());
                if name == "hold" && std::mem::take(&mut *world.holds.lock()) {
                    world.held.notify_one();
                    world.release.notified().await;
                }
                Ok("done")
            }
        });
        let tool = tool.expect("a tool");
        if name == "paint" { tool.idempotent() } else { tool }
    }

    fn hooks(&self) -> impl AgentMiddleware + use<> {
        let rewrites = Arc::clone(&self.rewrites);
        hooks_fn("world", move |hooks: &mut Hooks| {
            let rewrites = Arc::clone(&rewrites);
            hooks.on_state(move |history: &mut History, _| {
                if std::mem::take(&mut *rewrites.lock()) {
                    *history = History::try_from(vec![Message::user("summary")]).expect("valid");
                }
            });
            hooks.on_gate_each(|gated, _| {
                let is_asked = ["big", "both"].contains(&gated.call.name.as_str());
                if is_asked && gated.ask::<bool>(Interrupt::new("large", json!({})))? == Some(false) {
                    gated.deny("world", "no");
                }
                Ok(())
            });
        })
    }

    /// A build of the program: nothing of it survives a restart.
    fn agent(&self) -> Agent {
        let replies = Arc::clone(&self.replies);
        let model = ScriptedModel::by("test", move |_| replies.lock().pop_front().unwrap_or_else(|| Reply::text("ok")));
        let tools = ["note", "pay", "big", "both", "paint", "hold"].map(|name| self.tool(name));
        let builder = Agent::builder("tester", ChatModel::new(model).expect("a model"));
        let approval = Approval::by_interrupt().runs(Runs::named("pay")).runs(Runs::named("both"));
        let builder = tools.into_iter().fold(builder, emitree_agent::AgentBuilder::tool);
        let builder = builder.with(self.hooks()).middleware(for_tree(approval)).middleware(map_output(refuse_bad));
        let builder = builder.max_middleware_retries(1);
        builder.build().expect("an agent")
    }

    /// Sets what the model replies in the next run.
    fn script(&self, calls: &[&'static str], model: &mut Model) {
        let mut replies = self.replies.lock();
        replies.clear();
        if !calls.is_empty() {
            replies.push_back(Reply::calls(calls.iter().map(|name| (*name, says("x")))));
        }
        if model.fails {
            replies.push_back(Reply::error(Error::new("no network")));
        } else if std::mem::take(&mut model.refuses) {
            replies.push_back(Reply::text("bad"));
        }
        *self.rewrites.lock() = model.rewrites;
    }
}

struct Driver {
    world: World,
    session: Session,
    model: Model,
    has_rewritten: bool,
}

impl Driver {
    fn new() -> Self {
        let session = Session::with_id("s").expect("an id");
        Self { world: World::default(), session, model: Model::default(), has_rewritten: false }
    }

    fn expect(&mut self, is_answered: bool, result: &Result<AgentOutput>) -> Checked {
        // A rewriting that was not used waits for the next run.
        self.has_rewritten |= self.model.rewrites && !*self.world.rewrites.lock();
        self.model.rewrites = *self.world.rewrites.lock();
        prop_assert_eq!(result.is_ok(), is_answered, "{:?}", result.as_ref().err().map(ToString::to_string));
        if let Ok(output) = result {
            prop_assert_eq!(output.text(), "ok");
        }
        Ok(())
    }

    async fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Ask(kinds, Ends::Naturally) => {
                let tools: Vec<_> = kinds.iter().map(|kind| kind.tool()).collect();
                self.world.script(&tools, &mut self.model);
                let result = self.world.agent().ask("go").session(&self.session).await;
                let is_answered = self.model.ask(&kinds);
                self.expect(is_answered, &result)?;
            }
            Step::Ask(kinds, Ends::Dropped) if !self.model.paused => self.ask_held(&kinds, None).await?,
            Step::Ask(kinds, Ends::Beside(others)) if !self.model.paused => self.ask_held(&kinds, Some(others)).await?,
            Step::Ask(..) => {}
            Step::Resume => {
                self.world.script(&[], &mut self.model);
                let result = self.world.agent().resume(&self.session).await;
                let is_answered = self.model.resume().unwrap_or(false);
                self.expect(is_answered, &result)?;
            }
            Step::Answer(at, says, is_ada) => {
                let asked = self.model.asked.len();
                let id = self.model.asked.get(at % (asked + 1)).map_or("no such", |asked| asked.id.as_str()).to_owned();
                self.answer(&id, says, is_ada).await?;
            }
            Step::AnswerOpen(at, says, is_ada) => {
                let questions = self.session.questions();
                if !questions.is_empty() {
                    self.answer(&questions[at % questions.len()].id, says, is_ada).await?;
                }
            }
            Step::Steer => {
                self.session.steer(format!("<{}>", self.model.steered)).expect("it is sent");
                self.model.steered += 1;
            }
            Step::Pause => {
                self.session.pause();
                self.model.paused = true;
            }
            Step::Restart => self.session = reread(&self.session),
            Step::Rewrite => self.model.rewrites = true,
            Step::Refuse => self.model.refuses = true,
            Step::Fail => self.model.fails = true,
        }
        self.check()
    }

    /// Asks, and drops the run while a last call is held, or lets another run use the session meanwhile.
    async fn ask_held(&mut self, kinds: &[Kind], others: Option<Vec<Kind>>) -> Checked {
        let tools: Vec<_> = kinds.iter().map(|kind| kind.tool()).chain(["hold"]).collect();
        (self.model.refuses, self.model.fails) = (false, false);
        self.world.script(&tools, &mut self.model);
        *self.world.holds.lock() = true;
        let agent = self.world.agent();
        let mut run = Box::pin(agent.ask("go").session(&self.session));
        tokio::select! {
            biased;
            result = &mut run => return Err(TestCaseError::fail(format!("not held: {result:?}"))),
            () = self.world.held.notified() => {}
        }
        self.has_rewritten |= self.model.rewrites;
        self.model.rewrites = false;
        // The calls of this run, with the call that is held.
        self.model.open = None;
        self.model.has_messages = true;
        self.model.delivered = self.model.steered;
        self.model.turns += 1;
        let turn = self.model.turns;
        let mut calls: Vec<_> = kinds.iter().copied().map(Call::new).collect();
        let all_settled = self.model.make(&mut calls);
        *self.model.executed.entry("hold").or_default() += 1;
        let Some(others) = others else {
            let during = serde_json::to_value(&self.session).expect("JSON");
            drop(run);
            prop_assert_eq!(serde_json::to_value(&self.session).expect("JSON"), during);
            calls.push(Call { is_lost: true, ..Call::new(Kind::Note) });
            (self.model.open, self.model.stopped) = (Some((turn, calls)), true);
            return Ok(());
        };
        let others_tools: Vec<_> = others.iter().map(|kind| kind.tool()).collect();
        self.world.script(&others_tools, &mut self.model);
        let result = self.world.agent().ask("go").session(&self.session).await;
        let is_answered = self.model.ask(&others);
        self.expect(is_answered, &result)?;
        // A session that is stored now is what it would be if both runs were dropped: the later one leaves its turn.
        let waiting = calls.iter().filter(|call| call.waits()).count();
        prop_assert_eq!(reread(&self.session).questions().len(), waiting);
        let both = self.session.questions().len();
        prop_assert_eq!(both, waiting + self.model.waiting().len());
        self.world.release.notify_one();
        let result = run.await;
        if all_settled {
            // This run ends with an answer, and what the other run has left stays.
            let (stopped, open) = (self.model.stopped, self.model.open.take());
            let is_answered = self.model.answer();
            (self.model.stopped, self.model.open) = (stopped, open);
            self.expect(is_answered, &result)?;
        } else {
            (self.model.open, self.model.stopped) = (Some((turn, calls)), true);
            self.expect(false, &result)?;
        }
        Ok(())
    }

    async fn answer(&mut self, id: &str, says: Says, is_ada: bool) -> Checked {
        let by = if is_ada { "ada" } else { "bob" };
        let known = self.model.asked.iter().rposition(|asked| asked.id == id);
        let of = known.map(|at| self.model.asked[at].of);
        let call = self.model.open.as_mut().and_then(|(turn, calls)| {
            let (of_turn, position) = of.filter(|(of_turn, _)| of_turn == turn)?;
            let _ = of_turn;
            calls.get_mut(position).filter(|call| !call.is_settled)
        });
        let asks = call.as_ref().and_then(|call| call.asked());
        let value = match (asks, says) {
            (Some(Asks::Approval) | None, Says::Yes) => Answer::from(Decision::Approve),
            (Some(Asks::Approval) | None, Says::No) => Answer::from(Decision::reject("no")),
            (Some(Asks::Gate), Says::Yes) => json!(true).into(),
            (Some(Asks::Gate), Says::No) => json!(false).into(),
            (Some(Asks::Function), Says::Yes) => json!("red").into(),
            (Some(Asks::Function), Says::No) => json!("blue").into(),
            (_, Says::Edit) => Answer::from(Decision::Edit(says_edited())),
            (_, Says::BadEdit) => Answer::from(Decision::Edit(json!({"text": 4}))),
            (_, Says::Nonsense) => json!("maybe").into(),
        };
        let is_asked_now = self.session.questions().iter().any(|question| question.id == id);
        let before = serde_json::to_value(&self.session).expect("JSON");
        let result = self.session.answer(id, value.by(by)).await;
        match (call, known) {
            (Some(call), Some(known)) if call.answer.is_none() && is_asked_now => {
                if asks == Some(Asks::Function) && !matches!(says, Says::Yes | Says::No) {
                    prop_assert!(matches!(result, Err(AnswerError::NotAllowed { .. })), "{:?}", result);
                } else {
                    prop_assert!(result.is_ok(), "{:?}", result);
                    call.answer = Some((says, by));
                    self.model.asked[known].first = Some(by);
                    return Ok(());
                }
            }
            (Some(_), Some(known)) => {
                // This question, or an earlier one about the call, was answered.
                let first = self.model.asked[known].first;
                prop_assert!(first.is_some(), "{:?}", result);
                let is_first = |answer: &Answer| answer.by.as_deref() == first;
                let is_refused = matches!(&result, Err(AnswerError::Answered { first, .. }) if is_first(first));
                prop_assert!(is_refused, "{:?}, expected {:?}", result, first);
            }
            _ => prop_assert!(matches!(result, Err(AnswerError::Unknown { .. })), "{:?}", result),
        }
        prop_assert_eq!(serde_json::to_value(&self.session).expect("JSON"), before);
        Ok(())
    }

    fn check(&mut self) -> Checked {
        assert_valid(&self.session);
        let questions = self.session.questions();
        let waiting = self.model.waiting();
        prop_assert_eq!(questions.len(), waiting.len(), "{:?}", questions);
        for (question, of) in questions.iter().zip(waiting) {
            match self.model.asked.iter_mut().find(|asked| asked.id == question.id) {
                Some(asked) => {
                    prop_assert_eq!(asked.of, of);
                    // If it was answered, the answer did not fit.
                    prop_assert!(asked.first.is_none() || !question.data["refused"].is_null());
                    asked.first = None;
                }
                None => self.model.asked.push(Asked { id: question.id.clone(), of, first: None }),
            }
        }
        let restored = reread(&self.session);
        prop_assert_eq!(restored.questions(), questions);
        let json = |session: &Session| serde_json::to_value(session).expect("JSON");
        prop_assert_eq!(json(&restored), json(&self.session));

        let mut effects = self.world.effects.lines();
        let mut executed = BTreeMap::new();
        for key in &effects {
            let last = key.rsplit('/').next().unwrap_or_default();
            *executed.entry(last.split('-').next().unwrap_or_default()).or_default() += 1;
        }
        let expected: BTreeMap<&str, usize> = self.model.executed.iter().map(|(name, count)| (*name, *count)).collect();
        prop_assert_eq!(executed, expected);
        effects.sort();
        let all = effects.len();
        effects.dedup();
        prop_assert_eq!(effects.len(), all, "a call had its effect twice");

        let said = texts(&self.session).concat();
        let waiting: String = self.session.undelivered().iter().map(|message| message.text()).collect();
        for number in 0..self.model.steered {
            let text = format!("<{number}>");
            let count = said.matches(&text).count() + waiting.matches(&text).count();
            prop_assert!(count == 1 || (self.has_rewritten && count == 0), "{} is there {} times", text, count);
        }
        prop_assert!(
            results(self.session.history().messages()).len() >= self.model.open.as_ref().map_or(0, |it| it.1.len())
        );
        Ok(())
    }
}

fn says_edited() -> Value {
    says("edited")
}

fn reread(session: &Session) -> Session {
    let json = serde_json::to_string(session).expect("JSON");
    serde_json::from_str(&json).expect(&json)
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = prop_oneof![Just(Kind::Note), Just(Kind::Pay), Just(Kind::Big), Just(Kind::Both), Just(Kind::Paint)];
    vec(kind, 0..4)
}

fn step() -> impl Strategy<Value = Step> {
    let says = || {
        prop_oneof![
            4 => Just(Says::Yes),
            1 => Just(Says::No),
            2 => Just(Says::Edit),
            1 => Just(Says::BadEdit),
            1 => Just(Says::Nonsense)
        ]
    };
    let ends = prop_oneof![
        3 => Just(Ends::Naturally),
        1 => Just(Ends::Dropped),
        1 => kinds().prop_map(Ends::Beside)
    ];
    prop_oneof![
        3 => (kinds(), ends).prop_map(|(kinds, ends)| Step::Ask(kinds, ends)),
        6 => Just(Step::Resume),
        3 => (any::<usize>(), says(), any::<bool>()).prop_map(|(at, says, by)| Step::Answer(at, says, by)),
        9 => (any::<usize>(), says(), any::<bool>()).prop_map(|(at, says, by)| Step::AnswerOpen(at, says, by)),
        1 => Just(Step::Steer),
        1 => Just(Step::Pause),
        3 => Just(Step::Restart),
        1 => Just(Step::Rewrite),
        1 => Just(Step::Refuse),
        1 => Just(Step::Fail),
    ]
}

proptest! {
    #[test]
    fn a_session_does_what_its_model_does(steps in vec(step(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let mut driver = Driver::new();
            for step in steps {
                driver.step(step).await?;
            }
            Ok::<_, TestCaseError>(())
        })?;
    }
}
