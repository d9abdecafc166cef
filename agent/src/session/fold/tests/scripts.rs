//! Random legal scripts: up to two runs in any phase, agents below their calls, drops, kills, retries, questions, edits,
//! steering, interjections, rewritten histories, forks, snapshots, handles that are out of date, and lost replies.
//!
//! After each step: the history is valid for a provider; the fold of the JSON of all records equals the fold in memory,
//! and one that has read snapshots at other points; the session is valid if all runs end now; without rewriting, the
//! history equals a naive second model, message by message; each message that was sent is once in the history, or waits;
//! no result says "not executed" of a call that was executed; an answer is read only by the call of its question; a call
//! that is not idempotent is executed once, also over kills, and none after its result was committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use emitree_runtime::{Answer, Interrupt, KeptValue, RunKey};
use serde_json::{Value, json};

use super::{Log, Rng, assert_valid, call, response, user};
use crate::session::fold::search::Search;
use crate::session::fold::spans::Span;
use crate::session::fold::turn::QuestionState;
use crate::session::fold::turn::{Call, OpenTurn, Question};
use crate::session::fold::{Conversation, Fork};
use crate::session::keys::{key_of_call, read_key};
use crate::session::past::{PastError, Point};
use crate::session::record::{Asked, Fact, Input, Line, Record, SettledAs};
use crate::{Message, ToolCall, Turn, Usage};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Between two turns.
    Idle,
    Model(u64),
    Calls(u64),
    /// It holds an answer.
    Held,
}

#[derive(Clone, Debug)]
struct Run {
    number: u32,
    phase: Phase,
    resumed: bool,
    /// What another attempt goes back to.
    base: (BTreeMap<Arc<str>, Arc<Value>>, Turn),
    /// The history before the run, unless another run has used the session meanwhile.
    before: Option<Arc<Vec<Arc<Message>>>>,
}

/// A naive model of the history: groups of texts with the run that can undo them.
#[derive(Clone, Debug, Default)]
struct Model {
    groups: Vec<Group>,
    /// The turns whose answers runs hold.
    held: BTreeMap<u32, u64>,
    stopped_answer: Option<(u32, u64, String)>,
    sent: Vec<String>,
    delivered: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Group {
    run: Option<u32>,
    turn: Option<u64>,
    texts: Vec<String>,
}

fn shown(message: &Message) -> String {
    match message.tool_results().next() {
        Some(result) => format!("result {}", result.id),
        None => message.text(),
    }
}

struct Sim {
    rng: Rng,
    log: Log,
    /// The same records, with snapshots at other points.
    twin: Log,
    /// A process whose last commit was stored, although it was told that it was not.
    lost: Option<Log>,
    runs: Vec<Run>,
    model: Model,
    /// The model after each line of the log.
    models: Vec<Model>,
    rewrites: bool,
    next: u32,
    /// How often each call was executed, by its id.
    effects: BTreeMap<String, u32>,
    settled: BTreeSet<String>,
    counts: BTreeMap<&'static str, u32>,
}

impl Sim {
    fn new(seed: u64, rewrites: bool) -> Self {
        let log = Log::of(Conversation::new("s0"));
        let (twin, model) = (log.clone(), Model::default());
        let models = vec![model.clone(); log.lines.len() + 1];
        Self {
            rng: Rng::new(seed),
            log,
            twin,
            lost: None,
            runs: Vec::new(),
            model,
            models,
            rewrites,
            next: 0,
            effects: BTreeMap::new(),
            settled: BTreeSet::new(),
            counts: BTreeMap::new(),
        }
    }

    fn marker(&mut self, what: &str) -> String {
        self.next += 1;
        format!("{what} {}", self.next)
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn push(&mut self, line: impl Into<Line>) {
        let line = line.into();
        let open: Vec<_> = self.log.fold.runs.iter().filter_map(|run| run.open.clone()).collect();
        let undoes = matches!(line.record, Record::Again { .. } | Record::Rewritten { .. });
        self.twin.push(line.clone()).expect("legal in the twin");
        self.log.push(line).expect("legal");
        for open in open.into_iter().filter(|open| open.is_placed && !undoes) {
            self.check_closed(&open);
        }
        self.models.push(self.model.clone());
    }

    /// If a turn was closed, its results say which question had no answer.
    fn check_closed(&self, open: &OpenTurn) {
        let fold = &self.log.fold;
        let is_open =
            |run: &crate::session::fold::runs::Run| run.open.as_ref().is_some_and(|it| it.number == open.number);
        if fold.turn_at(open.number).is_none() || fold.runs.iter().any(is_open) {
            return;
        }
        for (asked, of) in open.response.tool_calls().zip(&open.calls) {
            if of.result.is_some() || of.has_begun || of.questions.is_empty() {
                continue;
            }
            let mut results = fold.messages.iter().flat_map(|message| message.tool_results());
            let result = results.find(|result| result.id == asked.id).map(|result| result.response.to_string());
            let is_said = result.as_ref().is_none_or(|text| !text.contains("not executed: interrupted"));
            assert!(is_said, "a question was closed silently: {result:?}");
        }
    }

    /// An earlier point is the fold of some of the first records, and each that they reach back to is found (A29).
    fn check_points(&mut self) {
        let lines: Vec<_> = self.log.lines.iter().map(|line| Line::read(line).expect("a line")).collect();
        let mut folds = vec![Conversation::default()];
        for line in &lines {
            let mut fold = folds[folds.len() - 1].clone();
            fold.apply(line.clone()).expect("it was folded before");
            folds.push(fold);
        }
        let is_withheld = |line: &Line| matches!(line.record, Record::Replaced { withheld: true, .. });
        let last_withheld = lines.iter().rposition(is_withheld).map_or(0, |at| at + 1);
        for _ in 0..self.log.fold.turns.min(6) {
            let turn = 1 + self.rng.small::<u64>(usize::try_from(self.log.fold.turns).expect("few"));
            for point in [Point::After(turn), Point::Before(turn)] {
                let mut search = Search::new(point, Conversation::default());
                lines.iter().for_each(|line| search.fold_line(line.clone()).expect("it was folded before"));
                let found = match search.end() {
                    Ok(found) => found,
                    Err(PastError::Forgotten { .. }) => {
                        assert!(folds[last_withheld.max(1)].turns >= turn, "{point} is forgotten");
                        continue;
                    }
                    Err(PastError::Discarded { .. } | PastError::Unfinished { .. }) => continue,
                    Err(other) => panic!("{other}"),
                };
                self.count("point");
                let is_it = |fold: &&Conversation| (&fold.messages, &fold.runs) == (&found.messages, &found.runs);
                assert!(folds.iter().any(|fold| is_it(&fold)), "{point}");
                let in_hand = found.runs.iter().filter_map(|run| run.open.as_ref()).find(|open| open.number == turn);
                match point {
                    Point::After(_) => assert!(found.turns >= turn && in_hand.is_none_or(|open| open.is_ended)),
                    _ => assert_eq!(found.turns, turn - 1),
                }
                assert_valid(&found.fork("fork"), &point);
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..12 if self.runs.len() < 2 => self.begin(),
            12..21 => self.send(),
            21..25 => self.answer(),
            25..28 => self.garbage(),
            28..30 => self.kill(),
            30..31 => self.fork(),
            31..33 => self.lose_a_reply(),
            33..35 => self.twin.snapshot(),
            35..37 => {
                self.log.snapshot();
                self.models = vec![self.model.clone(); self.log.lines.len() + 1];
                self.count("snapshot");
            }
            37..40 => self.drop_run(),
            40..43 => self.retry(),
            43..45 => {
                let (id, value): (Arc<str>, _) = (["a", "b"][self.rng.below(2)].into(), self.rng.below(99));
                self.push(Record::State { id, value: Some(Arc::new(json!(value))) });
            }
            45..50 => self.below(),
            _ if self.runs.is_empty() => self.begin(),
            _ => {
                let at = self.rng.below(self.runs.len());
                self.advance(at);
            }
        }
        self.check();
    }

    fn begin(&mut self) {
        let (run, resumes) = (self.log.fold.begun, self.log.fold.stopped.is_some() && self.rng.chance(60));
        self.count(if resumes { "resume" } else { "run" });
        // An answer that was not returned comes back, or is gone.
        if let Some((of, turn, text)) = self.model.stopped_answer.take()
            && resumes
            && self.log.fold.stopped == Some(of)
        {
            self.model.groups.push(Group { run: Some(run), turn: Some(turn), texts: vec![text] });
            self.model.held.insert(run, turn);
        }
        let id = self.rng.uuid();
        self.push(Record::Began { run, id, once: None, options: None, resumes });
        let begun = self.log.fold.runs.last().expect("the run");
        let phase = match (&begun.open, &begun.answer) {
            (Some(open), _) => Phase::Calls(open.number),
            (None, Some(_)) => Phase::Held,
            (None, None) => Phase::Idle,
        };
        self.runs.iter_mut().for_each(|run| run.before = None);
        let before = (self.runs.is_empty() && !resumes).then(|| self.log.fold.messages.clone());
        if !resumes {
            self.say(run);
        }
        self.log.commit();
        let base = self.now(run);
        self.runs.push(Run { number: run, phase, resumed: resumes, base, before });
    }

    fn now(&self, run: u32) -> (BTreeMap<Arc<str>, Arc<Value>>, Turn) {
        let of = self.log.fold.runs.iter().find(|of| of.number == run).expect("a run");
        (self.log.fold.state.clone(), of.counts)
    }

    fn say(&mut self, run: u32) {
        let text = self.marker("input");
        self.model.groups.push(Group { run: Some(run), turn: None, texts: vec![text.clone()] });
        self.push(Record::Said { run: Some(run), messages: vec![user(text)], turn: None });
    }

    fn input(&mut self) -> Input {
        let text = self.marker("sent");
        self.model.sent.push(text.clone());
        match self.rng.below(4) {
            0 => Input::Steer(user(text)),
            1 => Input::FollowUp(user(text)),
            2 => Input::Interject(user(text)),
            _ => Input::Value { to: "a".into(), value: json!(text) },
        }
    }

    fn send(&mut self) {
        let sent = self.input();
        let interjects = matches!(sent, Input::Interject(_));
        let id = self.rng.uuid();
        self.push(Record::Sent { number: self.log.fold.sent, id, sent });
        if self.rng.chance(50) {
            self.log.commit();
        }
        let turn = self.runs.iter().find_map(|run| match run.phase {
            Phase::Calls(turn) => Some(turn),
            _ => None,
        });
        if interjects && let Some(turn) = turn {
            self.count("interjection");
            for call in self.open_calls(turn) {
                if !self.call(turn, call).has_begun {
                    self.settle(turn, call, "not executed: the user interjected");
                }
            }
        }
    }

    fn open(&self, turn: u64) -> Option<&OpenTurn> {
        let mut open = self.log.fold.runs.iter().filter_map(|run| run.open.as_ref());
        open.find(|open| open.number == turn)
    }

    fn open_calls(&self, turn: u64) -> Vec<usize> {
        let Some(open) = self.open(turn) else { return Vec::new() };
        (0..open.calls.len()).filter(|at| open.calls[*at].result.is_none()).collect()
    }

    fn call(&self, turn: u64, call: usize) -> Call {
        self.open(turn).expect("an open turn").calls[call].clone()
    }

    /// Returns the call as the model has asked for it.
    fn asked(&self, turn: u64, call: usize) -> ToolCall {
        self.open(turn).expect("an open turn").response.tool_calls().nth(call).expect("a call").clone()
    }

    /// Returns the call as it is now.
    fn now_called(&self, turn: u64, call: usize) -> ToolCall {
        self.call(turn, call).changed.unwrap_or_else(|| self.asked(turn, call))
    }

    fn key(&self, turn: u64, position: usize, call: &ToolCall) -> RunKey {
        key_of_call(&read_key(&self.log.fold.id).expect("a key"), turn, position, call)
    }

    fn question(&self, turn: u64, call: usize, n: u32) -> Asked {
        let key = self.key(turn, call, &self.now_called(turn, call));
        let question = Interrupt::new("approval", json!({ "n": n })).about(&key);
        Asked { question, by: "gate".into(), in_function: false }
    }

    fn settle(&mut self, turn: u64, call: usize, text: &str) {
        let settled = SettledAs { content: text.into(), ..SettledAs::default() };
        self.push(Record::Call { turn, call, fact: Fact::Settled(Box::new(settled)).into() });
    }

    fn answer(&mut self) {
        let asked: Vec<_> = self.log.fold.questions().map(|question| question.id().to_owned()).collect();
        if asked.is_empty() {
            return;
        }
        let id = asked[self.rng.below(asked.len())].clone();
        self.count("answer");
        self.push(Record::Answered { answer: json!(format!("for {id}")).into(), id: id.clone() });
        self.log.commit();
        // A second answer changes nothing.
        let before = self.log.fold.clone();
        assert!(self.log.fold.apply(Record::Answered { id, answer: json!("late").into() }).is_err());
        assert_eq!(self.log.fold, before);
    }

    /// Records that may not fit: they are refused and change nothing, or leave a valid session.
    fn garbage(&mut self) {
        let (run, turn, call) = (self.rng.small(4), self.rng.small(6), self.rng.below(3));
        let mut fold = self.log.fold.clone();
        let settled = || Fact::Settled(Box::new(SettledAs { content: "forged".into(), ..SettledAs::default() }));
        for open in self.log.fold.runs.iter().filter_map(|run| run.open.as_ref()) {
            for (call, of) in open.calls.iter().enumerate() {
                let turn = open.number;
                if of.result.is_some() {
                    let fact = if open.is_ended { settled() } else { Fact::Begun { called: true } };
                    assert!(fold.apply(Record::Call { turn, call, fact: fact.into() }).is_err(), "it has settled");
                } else if of.questions.iter().any(|question| question.state == QuestionState::Needed) {
                    // A23
                    let fact = Fact::Begun { called: true };
                    assert!(
                        fold.apply(Record::Call { turn, call, fact: fact.into() }).is_err(),
                        "it was not asked again"
                    );
                }
            }
        }
        let message = || response("forged", []);
        let record = match self.rng.below(13) {
            0 => Record::Placed { turn },
            1 => Record::Call { turn, call, fact: settled().into() },
            2 => Record::Asks { run, turn, at: 0 },
            3 => Record::Rewritten { run, at: call, removed: self.rng.below(6), add: Vec::new() },
            4 => Record::Taken { run, numbers: vec![turn], messages: None },
            5 => Record::Again { run },
            6 => Record::Over { run, returned: true },
            7 => Record::Turn { run, turn, response: message(), unanswered: None },
            8 => Record::Said {
                run: Some(run),
                messages: vec![response("x", [super::call("x", "t", json!({}))])],
                turn: None,
            },
            9 => Record::Injected { turn, messages: vec![user("forged")], answers: false },
            10 => Record::Replaced { run, message: message(), withheld: false },
            11 => Record::NotReturned { run },
            _ => Record::Call { turn, call, fact: Fact::Begun { called: true }.into() },
        };
        match fold.apply(record.clone()) {
            Err(_) => assert_eq!(fold, self.log.fold, "{record:?}"),
            Ok(()) => assert_valid(&fold, &record),
        }
    }

    fn kill(&mut self) {
        self.count("kill");
        let from = self.log.stored.max(1);
        let at = from + self.rng.below(self.log.lines.len() - from + 1);
        self.models.truncate(at + 1);
        self.model = self.models[at].clone();
        let mut found = Log::read(&self.log.lines[..at]);
        self.log = self.log.killed(at);
        for run in found.dead() {
            self.model.die(&mut found, run);
            self.models.push(self.model.clone());
        }
        self.runs.clear();
        self.log.commit();
        self.resync();
    }

    fn resync(&mut self) {
        self.twin = self.log.clone();
        self.models.resize(self.log.lines.len() + 1, self.model.clone());
    }

    fn fork(&mut self) {
        self.count("fork");
        let at = 1 + self.rng.below(self.log.lines.len());
        let mut model = self.models[at].clone();
        let fold = Log::read(&self.log.lines[..at]);
        let mut ends = fold.clone();
        fold.dead().iter().for_each(|run| model.die(&mut ends, *run));
        model.stopped_answer = None;
        let waiting: BTreeSet<_> = fold.inbox.iter().map(|waiting| sent_text(&waiting.sent)).collect();
        model.sent.retain(|text| !waiting.contains(text));
        let id = self.marker("fork").replace(' ', "");
        let fork = fold.fork(&id);
        assert_eq!(fork.from, Some(Fork { session: fold.id.clone(), turn: fold.turns }));
        assert!(fork.inbox.is_empty() && fork.runs.is_empty() && fork.below.is_empty() && fork.paused.is_none());
        assert_valid(&fork, &"a fork");
        if self.rng.chance(50) {
            return self.push(Record::Forked { to: id });
        }
        // The fork goes on, and what was executed behind its point was not executed in it.
        self.log = Log::of(fork);
        self.runs.clear();
        (self.model, self.lost) = (model, None);
        self.effects.clear();
        self.settled.clear();
        self.models.clear();
        self.resync();
    }

    /// An input is stored, but its process is told that it is not. Another process goes on, and later the first one reads
    /// the session again.
    fn lose_a_reply(&mut self) {
        match self.lost.take() {
            None => {
                self.log.commit();
                let mut lost = self.log.clone();
                let pause = Record::Paused { id: self.rng.uuid() };
                if self.log.fold.paused.is_none() {
                    self.push(pause.clone());
                    lost.push(pause).expect("there is no pause");
                }
                let sent = Record::Sent { number: self.log.fold.sent, id: self.rng.uuid(), sent: self.input() };
                self.push(sent.clone());
                self.log.commit();
                lost.push(sent).expect("there is room");
                if self.rng.chance(50) {
                    // This one was not stored.
                    let sent = Record::Sent { number: lost.fold.sent, id: self.rng.uuid(), sent: self.input() };
                    lost.push(sent).expect("there is room");
                    lost.push(Record::Said { run: None, messages: vec![user("read again without it")], turn: None })
                        .expect("valid");
                    self.model.sent.pop().into_iter().for_each(|text| _ = self.model.delivered.insert(text));
                }
                self.lost = Some(lost);
            }
            Some(mut lost) if self.runs.is_empty() => {
                self.count("lost reply");
                self.log.commit();
                lost.reload(&self.log.lines);
                let arrived = lost.fold.inbox.iter().map(|waiting| sent_text(&waiting.sent));
                let new: Vec<_> = arrived.filter(|text| self.model.delivered.remove(text)).collect();
                self.model.sent.extend(new);
                self.log = lost;
                self.log.commit();
                self.resync();
            }
            Some(lost) => self.lost = Some(lost),
        }
    }

    fn drop_run(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        self.count("drop");
        let at = self.rng.below(self.runs.len());
        let run = self.runs.remove(at);
        self.place_open(&run);
        self.over(run.number, false);
        if self.rng.chance(50) {
            self.log.commit();
        }
    }

    /// The turn of a run ends without its remaining results, as in `Drop`.
    fn place_open(&mut self, run: &Run) {
        if let Phase::Calls(turn) = run.phase
            && self.open(turn).is_some()
        {
            self.place(run.number, turn, false);
        }
    }

    fn place(&mut self, run: u32, turn: u64, answers: bool) {
        let open = self.open(turn).expect("an open turn").clone();
        if !open.is_placed {
            self.model.groups.push(group_of(run, &open));
        }
        self.model.held.remove(&run);
        self.push(Record::Placed { turn });
        if answers {
            self.model.held.insert(run, turn);
            self.push(Record::Ends { run, turn });
        }
    }

    fn over(&mut self, run: u32, returned: bool) {
        self.model.over(run, returned || others_turn_is_open(&self.log.fold, run));
        self.push(Record::Over { run, returned });
    }

    fn retry(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        self.count("retry");
        let at = self.rng.below(self.runs.len());
        let run = self.runs[at].clone();
        self.place_open(&run);
        self.push(Record::Left { run: run.number, answered: run.phase == Phase::Held });
        // What the attempt has left behind changes nothing any more (A7).
        let late = [
            Record::Said { run: Some(run.number), messages: vec![user("late")], turn: None },
            Record::Asks { run: run.number, turn: self.log.fold.turns + 1, at: 0 },
            Record::Taken { run: run.number, numbers: Vec::new(), messages: None },
        ];
        late.into_iter().for_each(|late| assert!(self.log.fold.clone().apply(late).is_err(), "a late record"));
        let of = self.log.fold.runs.iter().find(|of| of.number == run.number).expect("it is not over");
        let turn = of.open.as_ref().map(|open| open.number);
        // A turn that an earlier run has left open stays.
        let is_own = |turn: &u64| {
            let span = self.log.fold.spans.iter().find(|span| span.turn == Some(*turn));
            span.is_some_and(|span| span.run == Some(run.number))
        };
        let keeps = turn.filter(|turn| !is_own(turn));
        if keeps.is_none() {
            self.model.groups.retain(|group| group.run != Some(run.number));
        }
        self.model.held.remove(&run.number);
        self.push(Record::Again { run: run.number });
        match keeps {
            Some(turn) => {
                self.runs[at].base.0 = self.log.fold.state.clone();
                self.runs[at].phase = Phase::Calls(turn);
            }
            None => {
                if let Some(before) = &run.before {
                    assert_eq!(self.log.fold.messages, *before, "the history of another attempt");
                }
                assert_eq!(self.now(run.number), run.base, "state and counts of another attempt");
                self.runs[at].phase = Phase::Idle;
            }
        }
        if !run.resumed {
            self.say(run.number);
        }
        self.log.commit();
    }

    fn advance(&mut self, at: usize) {
        let Run { number, phase, .. } = self.runs[at];
        match phase {
            Phase::Idle => self.idle(at, number),
            Phase::Model(turn) => self.respond(at, number, turn),
            Phase::Calls(turn) => self.work(at, number, turn),
            Phase::Held => self.return_answer(at, number),
        }
    }

    fn return_answer(&mut self, at: usize, number: u32) {
        self.runs.remove(at);
        if self.rng.chance(30) {
            // A guard withholds it.
            let held = self.log.fold.runs.iter().find(|of| of.number == number).and_then(|of| of.answer.clone());
            let turn = held.expect("it holds an answer").turn;
            let text = self.marker("withheld");
            self.model.replace_answer(turn, &text);
            self.push(Record::Replaced { run: number, message: response(&text, []), withheld: true });
            self.over(number, true);
        } else {
            self.push(Record::Left { run: number, answered: true });
            let returned = self.rng.chance(80);
            let answer = self.model.held.get(&number).copied();
            self.over(number, returned);
            if returned && self.rng.chance(20) {
                // The last commit has failed.
                self.count("not returned");
                answer.into_iter().for_each(|turn| _ = self.model.held.insert(number, turn));
                self.model.over(number, others_turn_is_open(&self.log.fold, number));
                self.push(Record::NotReturned { run: number });
            }
        }
        self.log.commit();
    }

    fn idle(&mut self, at: usize, run: u32) {
        match self.rng.below(10) {
            0..3 if !self.log.fold.inbox.is_empty() => self.take(run),
            3 if self.rewrites && !self.log.fold.messages.is_empty() => self.rewrite(run),
            4 if self.log.fold.paused.is_some() => {
                self.push(Record::Stopped { run });
                self.runs.remove(at);
                self.over(run, false);
                self.count("paused");
            }
            5 if self.log.fold.paused.is_none() => {
                let id = self.rng.uuid();
                self.push(Record::Paused { id });
            }
            6 => {
                self.push(Record::Kept { run });
                self.runs[at].base = self.now(run);
            }
            _ => {
                let turn = self.log.fold.turns + 1;
                self.model.held.remove(&run);
                self.push(Record::Asks { run, turn, at: 17 });
                if self.rng.chance(10) {
                    self.push(Record::Asks { run, turn, at: 18 });
                }
                self.runs[at].phase = Phase::Model(turn);
            }
        }
    }

    fn take(&mut self, run: u32) {
        let mut taken = self.log.fold.inbox.clone();
        taken.retain(|_| self.rng.chance(70));
        if taken.is_empty() {
            return;
        }
        let numbers = taken.iter().map(|waiting| waiting.number).collect();
        let (messages, values): (Vec<_>, Vec<_>) = taken.iter().partition(|one| one.sent.message().is_some());
        self.model.delivered.extend(values.iter().map(|one| sent_text(&one.sent)));
        self.model.held.remove(&run);
        if !messages.is_empty() {
            let texts = messages.iter().map(|one| sent_text(&one.sent)).collect();
            self.model.groups.push(Group { run: Some(run), turn: None, texts });
        }
        self.push(Record::Taken { run, numbers, messages: None });
        self.count("taken");
    }

    fn rewrite(&mut self, run: u32) {
        let cuts: Vec<_> = (0..=self.log.fold.messages.len()).filter(|at| self.log.fold.is_boundary(*at)).collect();
        let (a, b) = (cuts[self.rng.below(cuts.len())], cuts[self.rng.below(cuts.len())]);
        let text = self.marker("summary");
        let add = if self.rng.chance(80) { vec![user(text)] } else { Vec::new() };
        self.push(Record::Rewritten { run, at: a.min(b), removed: a.max(b) - a.min(b), add });
        self.count("rewrite");
    }

    fn respond(&mut self, at: usize, run: u32, turn: u64) {
        let session = self.log.fold.id.clone();
        let calls = (0..self.rng.below(4)).map(|n| {
            let name = if self.rng.chance(50) { "pay" } else { "read" };
            call(&format!("{session}c{turn}-{n}"), name, json!({ "n": n }))
        });
        let calls: Vec<_> = calls.collect();
        let is_answer = calls.is_empty();
        let unanswered =
            (!is_answer && self.rng.chance(5)).then(|| "not executed: the model is asked again".to_owned());
        let leaves_out = unanswered.is_some();
        let response = response(&self.marker("response"), calls);
        self.push(Record::Replied { run, turn, usage: Some(Usage::new(7, 1)), cost: None });
        self.push(Record::Turn { run, turn, response, unanswered });
        if self.rng.chance(20) {
            let text = self.marker("injected");
            self.push(Record::Injected { turn, messages: vec![user(text)], answers: false });
        }
        self.log.commit();
        if is_answer || leaves_out {
            self.place(run, turn, is_answer);
            self.runs[at].phase = if is_answer { Phase::Held } else { Phase::Idle };
            self.log.commit();
        } else {
            self.runs[at].phase = Phase::Calls(turn);
        }
    }

    fn work(&mut self, at: usize, run: u32, turn: u64) {
        let open: Vec<_> = self.open_calls(turn).into_iter().filter(|call| !self.waits(turn, *call)).collect();
        if open.is_empty() {
            return self.end_turn(at, run, turn);
        }
        let call = open[self.rng.below(open.len())];
        let (of, asked) = (self.call(turn, call), self.asked(turn, call));
        let fact = |fact: Fact| Record::Call { turn, call, fact: fact.into() };
        if self.rng.chance(5) {
            return self.inject(run, turn);
        }
        if of.has_begun {
            // The work of an earlier run, or of this one.
            if asked.name == "pay" {
                return self.settle(turn, call, "it was not called again: it may have had effects");
            }
        } else if self.rng.chance(20) && of.passed.len() < 2 {
            return self.push(fact(Fact::Passed(format!("gate {}", of.passed.len()))));
        }
        let is_unread = |question: &&Question| question.state == QuestionState::Needed;
        if let Some(unread) = of.questions.iter().filter(|it| it.answer.is_some()).find(is_unread) {
            return self.read_answer(turn, call, unread);
        }
        let pending = of.questions.iter().find(|question| question.answer.is_none());
        if pending.is_some() || (!of.has_begun && self.rng.chance(25)) {
            self.next += 1;
            let asked = pending.map_or_else(|| self.question(turn, call, self.next), |known| known.asked.clone());
            if self.rng.chance(50) {
                self.push(fact(Fact::Kept(KeptValue::new(self.next))));
            }
            self.push(fact(Fact::Asked(asked)));
            self.count("asked");
            return;
        }
        if !of.begins() && self.rng.chance(5) {
            self.push(fact(Fact::Begun { called: true }));
            self.push(fact(Fact::NotBegun));
            let now = self.call(turn, call);
            let [now, before] = [(now.has_begun, now.kept), (of.has_begun, of.kept)];
            assert_eq!(now, before, "as before the commit that has failed");
            return;
        }
        self.execute(turn, call, &asked);
    }

    fn read_answer(&mut self, turn: u64, call: usize, unread: &Question) {
        let (id, key) = (unread.id().to_owned(), self.key(turn, call, &self.now_called(turn, call)));
        let answer = unread.answer.clone().expect("an answer");
        let is_of_edit = answer.value == json!("approve");
        assert!(is_of_edit || answer.value == json!(format!("for {id}")), "the answer to another question");
        assert!(id.starts_with(&format!("{key}/")), "the answer serves another call");
        self.count("used");
        let fact = |fact: Fact| Record::Call { turn, call, fact: fact.into() };
        match self.rng.below(10) {
            0 => {
                // It does not fit: the question is open again.
                let mut question = unread.asked.question.clone();
                question.data["refused"] = json!("why");
                self.push(fact(Fact::Unfit(question.clone())));
                self.push(fact(Fact::Asked(Asked { question, ..unread.asked.clone() })));
            }
            1..4 if !is_of_edit => {
                self.count("edit");
                self.push(fact(Fact::Used(id)));
                self.next += 1;
                let asked = self.asked(turn, call);
                let edited = super::call(&asked.id, &asked.name, json!({ "edited": self.next }));
                self.push(fact(Fact::Changed { call: edited, edited: true }));
                let (asked, approval) = (self.question(turn, call, 0), Some(Answer::from(json!("approve"))));
                self.push(fact(Fact::Needed { asked, approval }));
                let now = self.call(turn, call);
                assert!(now.passed.is_empty() && now.is_edited, "it passes all gates again");
            }
            _ => self.push(fact(Fact::Used(id))),
        }
    }

    fn execute(&mut self, turn: u64, call: usize, asked: &ToolCall) {
        let fact = |fact: Fact| Record::Call { turn, call, fact: fact.into() };
        self.push(fact(Fact::Begun { called: true }));
        self.log.commit();
        // The effect.
        assert!(!self.settled.contains(&asked.id), "{} had a result that was committed", asked.id);
        let times = self.effects.entry(asked.id.clone()).or_default();
        *times += 1;
        assert!(asked.name == "read" || *times == 1, "{} was executed twice", asked.id);
        self.count("executed");
        if self.rng.chance(30) {
            return; // It is still at work.
        }
        if self.rng.chance(20) {
            self.push(fact(Fact::Unchecked));
        }
        self.settle(turn, call, "done");
        if self.rng.chance(80) {
            self.log.commit();
            self.settled.insert(asked.id.clone());
        }
    }

    /// Messages behind the results: behind those that an earlier run has left, they belong to this run.
    fn inject(&mut self, run: u32, turn: u64) {
        let text = self.marker("injected");
        if self.open(turn).is_some_and(|open| open.is_placed) {
            let of_turn = self.model.groups.iter().rposition(|group| group.turn == Some(turn));
            let at = of_turn.map_or(self.model.groups.len(), |at| at + 1);
            self.model.groups.insert(at, Group { run: Some(run), turn: Some(turn), texts: vec![text.clone()] });
        }
        self.push(Record::Injected { turn, messages: vec![user(text)], answers: false });
    }

    fn waits(&self, turn: u64, call: usize) -> bool {
        let of = self.call(turn, call);
        of.waits && of.questions.iter().any(|question| question.answer.is_none())
    }

    fn end_turn(&mut self, at: usize, run: u32, turn: u64) {
        let waits = !self.open_calls(turn).is_empty();
        if self.open(turn).is_some() {
            self.place(run, turn, false);
        }
        self.log.commit();
        if waits {
            self.runs.remove(at);
            self.over(run, false);
            self.count("interrupted");
            self.log.commit();
        } else {
            self.runs[at].phase = Phase::Idle;
        }
    }

    /// An agent below a call that has begun takes a step of its own.
    fn below(&mut self) {
        let in_hand = |run: &Run| if let Phase::Calls(turn) = run.phase { Some(turn) } else { None };
        let turns: Vec<_> = self.runs.iter().filter_map(in_hand).collect();
        let calls = |turn: u64| self.open_calls(turn).into_iter().map(move |call| (turn, call));
        let calls: Vec<_> = turns.into_iter().flat_map(calls).collect();
        let begun: Vec<_> = calls.into_iter().filter(|(turn, call)| self.call(*turn, *call).has_begun).collect();
        if begun.is_empty() {
            return;
        }
        let (turn, call) = begun[self.rng.below(begun.len())];
        let id = format!("{}/agent", self.key(turn, call, &self.now_called(turn, call)));
        if !self.log.fold.below.contains_key(&id) {
            self.count("session below");
            let first = self.rng.chance(30).then_some(self.log.fold.messages.len());
            return self.push(Record::Below { turn, call, id, first });
        }
        let record = self.step_below(&id);
        self.push(Line { session: Some(id), record });
        if self.rng.chance(50) {
            self.log.commit();
        }
    }

    fn step_below(&mut self, id: &str) -> Record {
        self.next += 1;
        let (text, at) = (format!("below {}", self.next), 17);
        let fold = &self.log.fold.below[id];
        let Some(run) = fold.runs.iter().find(|run| run.undo.is_some()) else {
            let (run, resumes) = (fold.begun, fold.begun > 0);
            return Record::Began { run, id: self.rng.uuid(), once: None, options: None, resumes };
        };
        let (run, turn) = (run.number, fold.turns + 1);
        let of = fold.runs.iter().find(|of| of.number == run).expect("the run");
        if of.is_left {
            return Record::Over { run, returned: true };
        }
        match (of.asks, &of.open, &of.answer) {
            (Some(turn), ..) => {
                let calls = (0..self.rng.below(3)).map(|n| call(&format!("{turn}-{n}"), "t", json!({})));
                let response = response(&text, calls.collect::<Vec<_>>());
                Record::Turn { run, turn, response, unanswered: None }
            }
            (None, Some(open), _) => match open.calls.iter().position(|call| call.result.is_none()) {
                Some(call) if self.rng.chance(80) => {
                    let settled = SettledAs { content: text.into(), ..SettledAs::default() };
                    Record::Call { turn: open.number, call, fact: Fact::Settled(Box::new(settled)).into() }
                }
                _ if open.is_ended => Record::Left { run, answered: false },
                _ => Record::Placed { turn: open.number },
            },
            (None, None, Some(_)) => Record::Left { run, answered: true },
            (None, None, None) if self.rng.chance(20) => Record::Left { run, answered: false },
            (None, None, None) => Record::Asks { run, turn, at },
        }
    }

    fn check(&mut self) {
        let fold = &self.log.fold;
        assert_valid(fold, &"a step");
        assert_eq!(Log::read(&self.log.lines), *fold, "read again");
        assert_eq!(self.twin.fold, *fold, "snapshots change nothing");
        let ended = fold.as_if_ended();
        assert_valid(&ended, &"all runs have ended");
        assert!(ended.dead().is_empty() && ended.runs.len() <= 2);
        let mut all: Vec<_> = fold.messages.iter().collect();
        fold.spans.iter().for_each(|span| replaced(span, &mut all));
        for result in all.iter().flat_map(|message| message.tool_results()) {
            let is_denied = result.response.as_str().is_some_and(|text| text.starts_with("not executed"));
            assert!(!is_denied || !self.effects.contains_key(&result.id), "{result:?}, but it was executed");
        }
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        for text in all.iter().map(|message| message.text()) {
            *found.entry(text).or_default() += 1;
        }
        for text in fold.inbox.iter().map(|waiting| sent_text(&waiting.sent)) {
            *found.entry(text).or_default() += 1;
        }
        for text in &self.model.sent {
            let (is_value, count) = (self.model.delivered.contains(text), found.get(text).copied().unwrap_or_default());
            let may_be_gone = is_value || self.rewrites;
            assert!(count == 1 || may_be_gone && count == 0, "`{text}` is there {count} times");
        }
        if !self.rewrites {
            let expected: Vec<_> = self.model.groups.iter().flat_map(|group| group.texts.clone()).collect();
            let now: Vec<_> = fold.messages.iter().map(|message| shown(message)).collect();
            assert_eq!(now, expected, "the history");
        }
    }
}

/// Adds what hooks have replaced by a span.
fn replaced<'a>(span: &'a Span, all: &mut Vec<&'a Arc<Message>>) {
    for (inner, messages) in &span.replaced {
        all.extend(messages);
        replaced(inner, all);
    }
}

impl Model {
    /// A run ends, and its turn enters the history.
    fn die(&mut self, fold: &mut Conversation, number: u32) {
        let run = fold.runs.iter().find(|run| run.number == number).expect("a run");
        if let Some(open) = run.open.as_ref().filter(|open| !open.is_placed) {
            self.groups.push(group_of(number, open));
        }
        self.over(number, others_turn_is_open(fold, number));
        fold.apply(Record::Over { run: number, returned: false }).expect("it is not over");
    }

    fn over(&mut self, run: u32, returned: bool) {
        if let Some(turn) = self.held.remove(&run)
            && !returned
        {
            let group = self.groups.iter_mut().rfind(|group| group.turn == Some(turn)).expect("the answer");
            self.stopped_answer = Some((run, turn, group.texts.remove(0)));
        }
        self.groups.iter_mut().filter(|group| group.run == Some(run)).for_each(|group| group.run = None);
        self.groups.retain(|group| !group.texts.is_empty());
    }

    fn replace_answer(&mut self, turn: u64, text: &str) {
        let group = self.groups.iter_mut().rfind(|group| group.turn == Some(turn)).expect("the answer");
        text.clone_into(&mut group.texts[0]);
    }
}

/// Returns `true` if another run has left an open turn, which is resumed first, so that an answer stays.
fn others_turn_is_open(fold: &Conversation, run: u32) -> bool {
    let stopped = fold.stopped.filter(|stopped| *stopped != run).and_then(|stopped| fold.find_run(stopped));
    stopped.is_some_and(|stopped| stopped.open.is_some())
}

fn group_of(run: u32, open: &OpenTurn) -> Group {
    let mut texts = vec![open.response.text()];
    texts.extend(open.response.tool_calls().map(|call| format!("result {}", call.id)));
    texts.extend(open.injected.iter().map(|message| message.text()));
    Group { run: Some(run), turn: Some(open.number), texts }
}

fn sent_text(sent: &Input) -> String {
    match sent {
        Input::Value { value, .. } => value.as_str().unwrap_or_default().to_owned(),
        sent => sent.message().map(|message| message.text()).unwrap_or_default(),
    }
}

fn run_scripts(rewrites: bool) {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let cases = if std::env::var_os("EMITREE_LONG").is_some() { 400 } else { 60 };
    let seeds = number("SEED").map_or(1..1 + number("CASES").unwrap_or(cases), |seed| seed..seed + 1);
    let mut counts: BTreeMap<&'static str, u32> = BTreeMap::new();
    for seed in seeds.clone() {
        let script = std::panic::catch_unwind(|| {
            let mut sim = Sim::new(seed, rewrites);
            (0..80).for_each(|_| sim.step());
            sim.check_points();
            sim.counts
        });
        match script {
            Ok(of) => of.into_iter().for_each(|(what, n)| *counts.entry(what).or_default() += n),
            Err(panic) => {
                eprintln!("SEED={seed} rewrites={rewrites}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{counts:?}");
    if seeds.end - seeds.start >= 60 {
        let rare = [
            "kill",
            "fork",
            "point",
            "edit",
            "used",
            "lost reply",
            "not returned",
            "session below",
            "interjection",
            "paused",
        ];
        rare.iter()
            .for_each(|what| assert!(counts.get(what).is_some_and(|n| *n > 0), "{what} is too rare: {counts:?}"));
    }
}

#[test]
fn random_scripts_agree_with_a_naive_model() {
    run_scripts(false);
}

#[test]
fn random_scripts_that_rewrite_the_history_stay_valid() {
    run_scripts(true);
}
