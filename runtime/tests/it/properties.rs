//! R4 as a property: in any tree of runs, with any ends and any behavior of listeners, every run that has started ends
//! once, after its children, and with the result that its caller receives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::support::{Any, Manner, Verb, silence_planned_panics};
use emitree_emitter::{Emitter, EventMeta, Options, Trace};
use emitree_runtime::{Error, LifecycleRef, Outcome, Result, Run, RunContext, RunEvent, Runnable, Stage, Status};
use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use uuid::Uuid;

/// The end of a run, unless a listener changes it.
#[derive(Clone, Copy, Debug)]
enum End {
    Succeeds,
    IsAnswered,
    Fails,
    Panics,
    IsDenied,
    IsHalted,
}

const ENDS: [End; 6] = [End::Succeeds, End::IsAnswered, End::Fails, End::Panics, End::IsDenied, End::IsHalted];
const STAGES: [Stage; 4] = [Stage::Start, Stage::Success, Stage::Error, Stage::Finish];
const VERBS: [Verb; 4] = [Verb::On, Verb::OnAsync, Verb::Observe, Verb::ObserveAsync];

impl End {
    fn act(self, output: usize) -> Result<usize> {
        match self {
            Self::Succeeds | Self::IsAnswered => Ok(output),
            Self::Fails => Err(Error::new("a planned failure")),
            Self::Panics => panic!("a planned panic"),
            Self::IsDenied => Err(Error::denied("desk", "closed")),
            Self::IsHalted => Err(Error::halted("budget", "spent")),
        }
    }
}

/// The emitter on which a listener is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Root,
    Instance,
    Run,
}

#[derive(Clone, Copy, Debug)]
struct Listening {
    place: Place,
    stage: Stage,
    nested: bool,
    verb: Verb,
    manner: Manner,
}

impl Listening {
    fn registration(self) -> emitree_emitter::Registration {
        self.verb.registration(Options::new().nested(self.nested), self.stage, self.manner)
    }
}

/// A run, and the runs in it.
#[derive(Clone, Debug)]
struct Node {
    end: End,
    /// `true` if the run is in a task of its parent.
    spawned: bool,
    /// `true` if the parent fails with the error of this run.
    passed_on: bool,
    listening: Vec<Listening>,
    children: Vec<Self>,
}

fn listening() -> impl Strategy<Value = Listening> {
    let place = prop_oneof![1 => Just(Place::Root), 4 => Just(Place::Instance), 4 => Just(Place::Run)];
    let manner = prop_oneof![3 => Just(Manner::Fine), 1 => Just(Manner::Fails), 1 => Just(Manner::Panics)];
    let (stage, verb) = (proptest::sample::select(&STAGES[..]), proptest::sample::select(&VERBS[..]));
    (place, stage, any::<bool>(), verb, manner).prop_map(|(place, stage, nested, verb, manner)| Listening {
        place,
        stage,
        nested,
        verb,
        manner,
    })
}

fn node(children: impl Strategy<Value = Vec<Node>>) -> impl Strategy<Value = Node> {
    let end = prop_oneof![4 => Just(End::Succeeds), 4 => proptest::sample::select(&ENDS[..])];
    (end, any::<bool>(), any::<bool>(), vec(listening(), 0..3), children).prop_map(
        |(end, spawned, passed_on, listening, children)| Node { end, spawned, passed_on, listening, children },
    )
}

fn tree() -> impl Strategy<Value = Node> {
    node(Just(Vec::new())).prop_recursive(3, 24, 3, |inner| node(vec(inner, 0..4)))
}

/// A recorded entry: an event of a run, the beginning of its work, or the result that its caller received.
#[derive(Clone, Debug)]
enum Entry {
    Event { run: Uuid, parent: Option<Uuid>, node: String, stage: Stage, ended: Option<(Status, Value)> },
    Worked { run: Uuid },
    Returned { node: String, ended: (Status, Value) },
}

#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<Entry>>>);

impl Log {
    fn add(&self, entry: Entry) {
        self.0.lock().expect("nobody panics here").push(entry);
    }

    fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.0.lock().expect("nobody panics here"))
    }

    fn watch(&self, root: &Emitter) {
        let log = self.clone();
        root.observe("*.*", move |event: &Any, meta| log.event(event, meta)).expect("a valid matcher");
    }

    fn event(&self, event: &Any, meta: &EventMeta<'_>) {
        let (stage, trace) = (Stage::of(meta).expect("only runs emit"), meta.trace().expect("only runs emit"));
        self.told(trace, meta.source().namespace(), stage, LifecycleRef::of(event, meta).as_ref());
    }

    fn shown(&self, event: &RunEvent<'_>) {
        let run = event.run();
        self.told(run.trace(), run.instance().emitter().namespace(), event.stage(), event.lifecycle().as_ref());
    }

    fn told(&self, trace: Trace, node: &str, stage: Stage, event: Option<&LifecycleRef<'_>>) {
        let ended = match event {
            Some(LifecycleRef::Finish(finish)) => Some((finish.status(), finish.outcome_json()["output"].clone())),
            _ => None,
        };
        let Trace { run_id, parent_run_id, .. } = trace;
        self.add(Entry::Event { run: run_id, parent: parent_run_id, node: node.to_owned(), stage, ended });
    }

    fn returned(&self, node: &str, result: &Result<usize>) {
        let ended = match result {
            Ok(output) => (Status::Success, (*output).into()),
            Err(error) => (Outcome::<()>::of_error(error).status(), Value::Null),
        };
        self.add(Entry::Returned { node: node.to_owned(), ended });
    }
}

/// A node with an emitter.
struct Branch {
    emitter: Emitter,
    index: usize,
    node: Node,
    children: Vec<Arc<Self>>,
    log: Log,
}

impl Branch {
    fn grow(root: &Emitter, log: &Log, node: &Node, next: &mut usize) -> Arc<Self> {
        let index = std::mem::replace(next, *next + 1);
        let emitter = root.child(format!("node{index}")).expect("a valid name");
        for listening in &node.listening {
            let at = match listening.place {
                Place::Root => root,
                Place::Instance => &emitter,
                Place::Run => continue,
            };
            at.register(listening.registration()).expect("a valid matcher");
        }
        let children = node.children.iter().map(|child| Self::grow(root, log, child, next)).collect();
        Arc::new(Self { emitter, index, node: node.clone(), children, log: log.clone() })
    }

    fn built(&self) -> Run<'_, Self> {
        let run = self.run(());
        let index = self.index;
        let run = match self.node.end {
            End::IsAnswered => run.on_start(move |start, _| start.output = Some(index)),
            _ => run,
        };
        let here = self.node.listening.iter().filter(|listening| listening.place == Place::Run);
        here.fold(run, |run, listening| run.register(listening.registration()))
    }

    async fn call(self: Arc<Self>) -> Result<usize> {
        let result = self.built().await;
        self.returned(result)
    }

    /// Runs the node as `call` does, with a subscriber.
    async fn call_observed(self: Arc<Self>) -> Result<usize> {
        let log = self.log.clone();
        let observe = move |ctx: &RunContext| {
            let log = log.clone();
            ctx.subscribe(move |event: &RunEvent<'_>| log.shown(event));
            Ok(())
        };
        let result = self.built().middleware(observe).await;
        self.returned(result)
    }

    fn returned(&self, result: Result<usize>) -> Result<usize> {
        self.log.returned(self.emitter.namespace(), &result);
        result
    }

    async fn call_child(child: &Arc<Self>, ctx: &RunContext) -> Result<()> {
        let run = Arc::clone(child).call();
        let result = if child.node.spawned { ctx.spawn(run).await.and_then(|result| result) } else { run.await };
        if child.node.passed_on { result.map(drop) } else { Ok(()) }
    }
}

impl Runnable for Branch {
    type Input = ();
    type Output = usize;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, (): &(), ctx: &RunContext) -> Result<usize> {
        self.log.add(Entry::Worked { run: ctx.run_id() });
        let children = join_all(self.children.iter().map(|child| Self::call_child(child, ctx))).await;
        children.into_iter().collect::<Result<()>>()?;
        self.node.end.act(self.index)
    }
}

/// The recorder of the events of all runs in a tree.
#[derive(Clone, Copy, Debug)]
enum By {
    /// A listener on the root.
    Listening,
    /// A subscriber of the outermost run.
    Observing,
}

/// Runs a tree, and returns the recorded entries.
fn record(node: &Node, by: By) -> Vec<Entry> {
    silence_planned_panics();
    let (root, log) = (Emitter::new(), Log::default());
    let branch = Branch::grow(&root, &log, node, &mut 0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let result = match by {
        By::Listening => {
            log.watch(&root);
            runtime.block_on(branch.call())
        }
        By::Observing => runtime.block_on(branch.call_observed()),
    };
    drop(result);
    log.take()
}

/// The record of one run. The indexes are positions in the log.
#[derive(Debug, Default)]
struct Life {
    node: String,
    parent: Option<Uuid>,
    stages: Vec<(usize, Stage)>,
    worked: Vec<usize>,
    ended: Option<(Status, Value)>,
}

fn lives(log: &[Entry]) -> BTreeMap<Uuid, Life> {
    let mut lives = BTreeMap::<Uuid, Life>::new();
    for (at, entry) in log.iter().enumerate() {
        match entry {
            Entry::Event { run, parent, node, stage, ended } => {
                let life = lives.entry(*run).or_default();
                (life.node, life.parent) = (node.clone(), *parent);
                life.stages.push((at, *stage));
                life.ended = ended.clone().or(life.ended.take());
            }
            Entry::Worked { run } => lives.entry(*run).or_default().worked.push(at),
            Entry::Returned { .. } => {}
        }
    }
    lives
}

type Checked = std::result::Result<(), String>;

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(otherwise()) }
}

impl Life {
    /// Checks the order: `start`, then exactly one of `success` and `error`, then `finish`; the work, if any, comes
    /// between `start` and `success` or `error`.
    fn check(&self) -> Checked {
        let stages: Vec<_> = self.stages.iter().map(|(_, stage)| *stage).collect();
        let ends_once = matches!(stages[..], [Stage::Start, Stage::Success | Stage::Error, Stage::Finish]);
        ensure(ends_once, || format!("{}: {stages:?}", self.node))?;
        let (start, end) = (self.stages[0].0, self.stages[1].0);
        ensure(self.worked.len() <= 1, || format!("{} worked more than once", self.node))?;
        ensure(self.worked.iter().all(|at| (start..end).contains(at)), || format!("{} worked untimely", self.node))
    }

    /// Checks that the run starts after its parent's work has begun, and finishes before the `success` or `error` of
    /// its parent.
    fn check_within(&self, parent: &Self) -> Checked {
        let began = parent.worked.first().is_some_and(|worked| self.stages[0].0 > *worked);
        let ended = self.stages[2].0 < parent.stages[1].0;
        ensure(began && ended, || format!("{} is not within {}", self.node, parent.node))
    }

    /// Checks that the caller received, after `finish`, the result that `finish` reported.
    fn check_returned(&self, log: &[Entry]) -> Checked {
        let returned = log[self.stages[2].0..].iter().filter_map(|entry| match entry {
            Entry::Returned { node, ended } if *node == self.node => Some(ended),
            _ => None,
        });
        let returned: Vec<_> = returned.collect();
        let said = self.ended.iter().collect::<Vec<_>>();
        ensure(returned == said, || format!("{} returned {returned:?}, finish said {said:?}", self.node))
    }
}

fn check(log: &[Entry]) -> Checked {
    let lives = lives(log);
    for life in lives.values() {
        life.check()?;
        life.check_returned(log)?;
    }
    for life in lives.values() {
        if let Some(parent) = life.parent {
            let parent = lives.get(&parent).ok_or_else(|| format!("{} has an unknown parent", life.node))?;
            life.check_within(parent)?;
        }
    }
    let returned = log.iter().filter(|entry| matches!(entry, Entry::Returned { .. })).count();
    ensure(returned == lives.len(), || format!("{returned} results of {} runs", lives.len()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    // R4
    #[test]
    fn every_start_is_followed_by_one_end_and_one_finish_children_first(node in tree()) {
        let log = record(&node, By::Listening);
        if let Err(fault) = check(&log) {
            prop_assert!(false, "{fault}\n{log:#?}");
        }
    }

    #[test]
    fn a_subscriber_receives_start_one_end_and_finish_of_every_run_children_first(node in tree()) {
        let log = record(&node, By::Observing);
        if let Err(fault) = check(&log) {
            prop_assert!(false, "{fault}\n{log:#?}");
        }
    }
}

// A test of the checker itself, with faulty records.
#[test]
fn the_checker_finds_a_missing_a_doubled_and_a_late_end() {
    let of = |children| Node { end: End::Succeeds, spawned: false, passed_on: true, listening: Vec::new(), children };
    let node = of(vec![of(Vec::new())]);
    let log = record(&node, By::Listening);
    assert!(check(&log).is_ok());
    for left_out in 0..log.len() {
        let worked = matches!(log[left_out], Entry::Worked { .. });
        let mut broken = log.clone();
        let entry = broken.remove(left_out);
        let childs_work = worked && check(&broken).is_ok();
        assert!(check(&broken).is_err() || childs_work, "without {entry:?}");
        broken.push(entry.clone());
        let may_be_late = matches!(entry, Entry::Returned { .. }) || left_out + 1 == log.len();
        assert!(check(&broken).is_err() || may_be_late, "with {entry:?} at the end");
        let mut doubled = log.clone();
        doubled.push(entry);
        assert!(check(&doubled).is_err(), "with {:?} twice", log[left_out]);
    }
}
