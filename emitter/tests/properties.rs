//! Random trees, runs, pipes, listeners and emits, compared with a model of the rules. The model covers the order of
//! listeners, at most one delivery per emitter, and claims (E5, E6, E8). Of E4, E9 and E17, it covers the parts that
//! select listeners.

mod support;

use std::collections::HashMap;

use emitree_emitter::{AnyEvent, EmitErrorKind, Emitter, EventMeta, Matcher, Options, PipeHandle, Subscription};
use emitree_emitter::{IntoMatcher, MatcherError};
use futures_util::FutureExt;
use proptest::prelude::*;
use proptest::sample::select;

use crate::support::{Recorder, block_on, emit, run_of, run_within, yield_once};

/// Numbers that select an item of a list: the index is the number modulo the length of the list.
const WHICH: std::ops::Range<usize> = 0..2520;

const NAMES: [&str; 5] = ["x", "xy", "y", "r.x", "a.y"];

/// An emitter that is two such names deep keeps only its own name.
const LONG: &str = "a_name_of_seventy_letters_that_is_longer_than_half_of_what_is_kept_x_y";

/// An emitter to be created below an earlier emitter. Emitter 0 is the root.
#[derive(Clone, Debug)]
enum Node {
    Child { of: usize, segment: &'static str },
    Run { of: usize, within: Option<usize> },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    On,
    OnAsync,
    Observe,
    ObserveAsync,
}

/// A matcher. [`Pattern::takes`] models which events the matcher takes.
#[derive(Clone, Debug, PartialEq)]
enum Pattern {
    Own,
    Every,
    Name(&'static str),
    Path(&'static str),
    NameStartsWith(&'static str),
    LastSegment(&'static str),
    FirstSegment(&'static str),
    Regex(&'static str),
    Function(&'static str),
}

impl Pattern {
    fn matcher(&self) -> Result<Matcher, MatcherError> {
        match *self {
            Self::Own => "*".into_matcher(),
            Self::Every => "*.*".into_matcher(),
            Self::Name(text) | Self::Path(text) => text.into_matcher(),
            Self::NameStartsWith(start) => format!("{start}*").into_matcher(),
            Self::LastSegment(name) => format!("**.{name}").into_matcher(),
            Self::FirstSegment(segment) => format!("{segment}.**").into_matcher(),
            Self::Regex(end) => Matcher::regex(&format!("{end}$")),
            Self::Function(end) => (move |meta: &EventMeta<'_>| meta.path().ends_with(end)).into_matcher(),
        }
    }

    /// E4.
    fn takes(&self, own: bool, path: &str, name: &str) -> bool {
        match *self {
            Self::Own => own,
            Self::Every => true,
            Self::Name(text) => own && name == text,
            Self::Path(text) => path == text,
            Self::NameStartsWith(start) => own && name.starts_with(start),
            Self::LastSegment(last) => path.split('.').next_back() == Some(last),
            Self::FirstSegment(first) => path.contains('.') && path.split('.').next() == Some(first),
            Self::Regex(end) | Self::Function(end) => path.ends_with(end),
        }
    }

    fn nested_by_default(&self) -> bool {
        !matches!(self, Self::Own | Self::Name(_) | Self::NameStartsWith(_) | Self::Function(_))
    }
}

#[derive(Clone, Debug)]
struct Listening {
    at: usize,
    pattern: Pattern,
    verb: Verb,
    priority: i32,
    times: Option<usize>,
    nested: Option<bool>,
    persistent: bool,
}

#[derive(Clone, Debug)]
enum Act {
    Emit {
        on: usize,
        name: &'static str,
        now: bool,
    },
    Listen(Listening),
    Off(usize),
    OffMatching(usize, Pattern),
    Reset(usize),
    Close(usize),
    Pipe {
        from: usize,
        to: usize,
    },
    Unpipe(usize),
    /// Registers this many patterns that match no event, emits an event, and removes the patterns.
    Churn {
        at: usize,
        patterns: usize,
    },
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        2 => (WHICH, select(vec!["a", "b", "a.b", LONG])).prop_map(|(of, segment)| Node::Child { of, segment }),
        3 => (WHICH, prop::option::weighted(0.8, WHICH)).prop_map(|(of, within)| Node::Run { of, within }),
    ]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    use Pattern::{Every, FirstSegment, Function, LastSegment, Name, NameStartsWith, Own, Path, Regex};
    select(vec![
        Own,
        Every,
        Every,
        Name("x"),
        Name("y"),
        Path("a.x"),
        Path("a.b.y"),
        Path("a.r.x"),
        NameStartsWith("x"),
        NameStartsWith(""),
        LastSegment("x"),
        LastSegment("y"),
        FirstSegment("a"),
        FirstSegment("b"),
        Regex("y"),
        Regex("b.x"),
        Function("y"),
        Function("x"),
    ])
    .prop_map(|pattern| if pattern == NameStartsWith("") { Own } else { pattern })
}

fn listening() -> impl Strategy<Value = Listening> {
    let verb = select(vec![Verb::On, Verb::On, Verb::OnAsync, Verb::Observe, Verb::ObserveAsync]);
    let times = prop_oneof![3 => Just(None), 1 => (0..4_usize).prop_map(Some)];
    let nested = prop_oneof![3 => Just(None), 1 => any::<bool>().prop_map(Some)];
    (WHICH, pattern(), verb, -1..2, times, nested, prop::bool::weighted(0.2)).prop_map(
        |(at, pattern, verb, priority, times, nested, persistent)| Listening {
            at,
            pattern,
            verb,
            priority,
            times,
            nested,
            persistent,
        },
    )
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => (WHICH, select(NAMES.to_vec()), prop::bool::weighted(0.3))
            .prop_map(|(on, name, now)| Act::Emit { on, name, now }),
        8 => listening().prop_map(Act::Listen),
        2 => WHICH.prop_map(Act::Off),
        1 => (WHICH, pattern()).prop_map(|(at, pattern)| Act::OffMatching(at, pattern)),
        1 => WHICH.prop_map(Act::Reset),
        1 => WHICH.prop_map(Act::Close),
        4 => (WHICH, WHICH).prop_map(|(from, to)| Act::Pipe { from, to }),
        1 => WHICH.prop_map(Act::Unpipe),
        1 => (WHICH, select(vec![1_usize, 12, 40])).prop_map(|(at, patterns)| Act::Churn { at, patterns }),
    ]
}

/// The model: emitters, listeners and pipes in plain lists.
#[derive(Debug, Default)]
struct Model {
    emitters: Vec<Place>,
    listeners: Vec<Heard>,
    pipes: Vec<Piped>,
}

#[derive(Debug, Default)]
struct Place {
    parent: Option<usize>,
    run_parent: Option<usize>,
    is_run: bool,
    namespace: String,
}

#[derive(Debug)]
struct Heard {
    at: usize,
    left: Option<usize>,
    there: bool,
    options: Listening,
}

#[derive(Debug)]
struct Piped {
    from: usize,
    to: usize,
    there: bool,
}

impl Model {
    fn path(&self, source: usize, name: &str) -> String {
        match self.emitters[source].namespace.as_str() {
            "" => name.to_owned(),
            namespace => format!("{namespace}.{name}"),
        }
    }

    /// E4: returns `true` if the event was emitted on this emitter or on one of its runs.
    fn is_here(&self, at: usize, source: usize) -> bool {
        let run_of_it = self.emitters[source].is_run && self.emitters[source].parent == Some(at);
        source == at || run_of_it
    }

    fn is_own(&self, at: usize, source: usize, name: &str) -> bool {
        !name.contains('.') && self.is_here(at, source)
    }

    fn run(&self, at: usize) -> Option<usize> {
        if self.emitters[at].is_run { Some(at) } else { self.emitters[at].parent.and_then(|parent| self.run(parent)) }
    }

    /// E4: returns `true` if the event is nested for the emitter `at`. A nested event was not emitted here. For an
    /// emitter in a run, a nested event happened outside that run. For an emitter outside runs, it happened below one
    /// of the emitter's runs, in a run of another emitter.
    fn is_nested(&self, at: usize, source: usize) -> bool {
        let is_run_of = |run: usize| self.emitters[run].is_run && self.emitters[run].parent == Some(at);
        let is_below = match (self.run(at), self.run(source)) {
            (Some(run), source) => source != Some(run),
            (None, Some(run)) => !is_run_of(run) && self.above(run).into_iter().any(is_run_of),
            (None, None) => false,
        };
        !self.is_here(at, source) && is_below
    }

    /// Returns all emitters above an emitter: its parent, its run parent, and all emitters above these.
    fn above(&self, e: usize) -> Vec<usize> {
        let Place { parent, run_parent, .. } = &self.emitters[e];
        let next = [*parent, *run_parent].into_iter().flatten();
        next.flat_map(|next| [vec![next], self.above(next)].concat()).collect()
    }

    fn takes(&self, pattern: &Pattern, nested: Option<bool>, at: usize, source: usize, name: &str) -> bool {
        let nested = nested.unwrap_or_else(|| pattern.nested_by_default());
        (nested || !self.is_nested(at, source))
            && pattern.takes(self.is_own(at, source, name), &self.path(source, name), name)
    }

    /// E5: e, then order(tree parent), then order(run parent), then order of each pipe. An emitter that occurs several
    /// times keeps its last place. Cycles are cut.
    fn order(&self, e: usize, below: &[usize]) -> Vec<usize> {
        if below.contains(&e) {
            return Vec::new();
        }
        let place = &self.emitters[e];
        let pipes = self.pipes.iter().filter(|pipe| pipe.there && pipe.from == e);
        let next = place.parent.into_iter().chain(place.run_parent).chain(pipes.map(|pipe| pipe.to));
        let below = [below, &[e]].concat();
        let mut order = vec![e];
        for part in next {
            let part = self.order(part, &below);
            order.retain(|earlier| !part.contains(earlier));
            order.extend(part);
        }
        order
    }

    /// Returns the listeners that receive an event, in order.
    fn plan(&self, source: usize, name: &str) -> Vec<usize> {
        let (mut changing, mut observing) = (Vec::new(), Vec::new());
        for at in self.order(source, &[]) {
            let takes = |&i: &usize| {
                let Heard { options, .. } = &self.listeners[i];
                let here = self.listeners[i].there && self.listeners[i].left != Some(0) && self.listeners[i].at == at;
                here && self.takes(&options.pattern, options.nested, at, source, name)
            };
            let mut here: Vec<usize> = (0..self.listeners.len()).filter(takes).collect();
            here.sort_by_key(|&i| std::cmp::Reverse(self.listeners[i].options.priority));
            for i in here {
                match self.listeners[i].options.verb {
                    Verb::On | Verb::OnAsync => changing.push(i),
                    Verb::Observe | Verb::ObserveAsync => observing.push(i),
                }
            }
        }
        [changing, observing].concat()
    }

    /// E17.
    fn would_await(&self, plan: &[usize]) -> bool {
        plan.iter().any(|&i| matches!(self.listeners[i].options.verb, Verb::OnAsync | Verb::ObserveAsync))
    }

    /// E8.
    fn call(&mut self, plan: Vec<usize>) -> Vec<String> {
        let mut called = Vec::new();
        for i in plan {
            let listener = &mut self.listeners[i];
            called.push(i.to_string());
            listener.left = listener.left.map(|left| left - 1);
            listener.there = listener.left != Some(0);
        }
        called
    }

    /// E9.
    fn remove(&mut self, goes: impl Fn(&Heard) -> bool) {
        for listener in &mut self.listeners {
            listener.there &= !goes(listener);
        }
    }
}

/// The model and the emitters, side by side.
#[derive(Default)]
struct World {
    model: Model,
    emitters: Vec<Emitter>,
    subscriptions: Vec<Subscription>,
    pipes: Vec<PipeHandle>,
    recorder: Recorder,
}

impl World {
    fn new(nodes: &[Node]) -> Self {
        let mut world = Self::default();
        world.place(Emitter::new(), Place::default());
        for node in nodes {
            let pick = |index: &usize| index % world.emitters.len();
            match node {
                Node::Child { of, segment } => {
                    let parent = pick(of);
                    let emitter = world.emitters[parent].child(*segment).expect("a name");
                    let namespace = world.model.path(parent, segment);
                    world.place(emitter, Place { parent: Some(parent), namespace, ..Place::default() });
                }
                Node::Run { of, within } => {
                    let (instance, run_parent) = (pick(of), within.as_ref().map(pick));
                    let emitter = match run_parent {
                        Some(parent) => run_within(&world.emitters[instance], &world.emitters[parent]),
                        None => run_of(&world.emitters[instance]),
                    };
                    let namespace = world.model.emitters[instance].namespace.clone();
                    world.place(emitter, Place { parent: Some(instance), run_parent, is_run: true, namespace });
                }
            }
        }
        world
    }

    fn place(&mut self, emitter: Emitter, place: Place) {
        assert_eq!(emitter.namespace(), place.namespace);
        self.emitters.push(emitter);
        self.model.emitters.push(place);
    }

    fn pick(&self, index: &usize) -> usize {
        index % self.emitters.len()
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Emit { on, name, now } => self.emit(self.pick(on), name, *now),
            Act::Listen(listening) => self.listen(listening),
            Act::Off(which) if !self.subscriptions.is_empty() => {
                let which = which % self.subscriptions.len();
                self.subscriptions[which].off();
                self.model.listeners[which].there = false;
            }
            Act::OffMatching(at, pattern) => {
                let at = self.pick(at);
                self.emitters[at].off_matching(pattern.matcher().expect("a matcher")).expect("a matcher");
                let equal = |other: &Pattern| other == pattern && !matches!(pattern, Pattern::Function(_));
                self.model.remove(|l| l.at == at && !l.options.persistent && equal(&l.options.pattern));
            }
            Act::Reset(at) => {
                let at = self.pick(at);
                self.emitters[at].reset();
                self.model.remove(|l| l.at == at && !l.options.persistent);
            }
            Act::Close(at) => {
                let at = self.pick(at);
                self.emitters[at].close();
                self.model.remove(|l| l.at == at);
                self.model.pipes.iter_mut().for_each(|pipe| pipe.there &= pipe.from != at);
            }
            Act::Pipe { from, to } if self.pipes.len() < 7 => {
                let (from, to) = (self.pick(from), self.pick(to));
                self.pipes.push(self.emitters[from].pipe(&self.emitters[to]));
                self.model.pipes.push(Piped { from, to, there: true });
            }
            Act::Unpipe(which) if !self.pipes.is_empty() => {
                let which = which % self.pipes.len();
                assert_eq!(self.pipes[which].unpipe(), self.model.pipes[which].there);
                self.model.pipes[which].there = false;
            }
            Act::Churn { at, patterns } => {
                let emitter = &self.emitters[self.pick(at)];
                let deaf = |i| emitter.on(format!("deaf_{i}_*"), |_: &mut dyn AnyEvent, _| ()).expect("a matcher");
                let deaf: Vec<_> = (0..*patterns).map(deaf).collect();
                self.emit(0, "x", false);
                deaf.iter().for_each(|subscription| assert!(subscription.off()));
            }
            Act::Off(_) | Act::Pipe { .. } | Act::Unpipe(_) => {}
        }
    }

    fn listen(&mut self, listening: &Listening) {
        let (id, at) = (self.subscriptions.len(), self.pick(&listening.at));
        let mut options = Options::new().priority(listening.priority);
        if let Some(times) = listening.times {
            options = options.times(times);
        }
        if let Some(nested) = listening.nested {
            options = options.nested(nested);
        }
        if listening.persistent {
            options = options.persistent();
        }
        let (with, recorder) = (self.emitters[at].with(options), self.recorder.clone());
        let note = move || recorder.note(id.to_string());
        let matcher = listening.pattern.matcher().expect("a matcher");
        let subscription = match listening.verb {
            Verb::On => with.on(matcher, move |_: &mut dyn AnyEvent, _| note()),
            Verb::Observe => with.observe(matcher, move |_: &dyn AnyEvent, _| note()),
            Verb::OnAsync => with.on_async(matcher, move |_: &mut dyn AnyEvent, _| {
                note();
                Box::pin(yield_once().map(Ok))
            }),
            Verb::ObserveAsync => with.observe_async(matcher, move |_: &dyn AnyEvent, _| {
                note();
                Box::pin(yield_once().map(Ok))
            }),
        };
        self.subscriptions.push(subscription.expect("nothing is declared"));
        let there = true;
        self.model.listeners.push(Heard { at, left: listening.times, there, options: listening.clone() });
    }

    fn emit(&mut self, on: usize, name: &str, now: bool) {
        let plan = self.model.plan(on, name);
        let awaits = self.model.would_await(&plan);
        let result = if now {
            self.emitters[on].emit_now(name, &mut ())
        } else {
            block_on(self.emitters[on].emit(name, &mut ()))
        };
        if now && awaits {
            let error = result.expect_err("an async listener would hear it");
            assert!(matches!(error.kind(), EmitErrorKind::WouldAwait { .. }), "{error}");
            self.recorder.expect([]);
        } else {
            result.expect("no listener fails");
            let expected = self.model.call(plan);
            self.recorder.expect(expected.iter().map(String::as_str));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// E5, E6, E8.
    #[test]
    fn listeners_are_called_in_the_order_of_the_model_once_and_within_their_limits(
        nodes in prop::collection::vec(node(), 0..7),
        acts in prop::collection::vec(act(), 1..60),
    ) {
        let mut world = World::new(&nodes);
        acts.iter().for_each(|act| world.act(act));
    }

    /// E5, E6: each emitter has a listener, and an event is emitted on each emitter.
    #[test]
    fn each_emitter_receives_an_event_once_in_the_order_of_the_model(
        nodes in prop::collection::vec(node(), 4..10),
        pipes in prop_oneof![Just(Vec::new()), prop::collection::vec((WHICH, WHICH), 1..6)],
    ) {
        let mut world = World::new(&nodes);
        for at in 0..world.emitters.len() {
            let pattern = Pattern::Every;
            world.listen(&Listening { at, pattern, verb: Verb::On, priority: 0, times: None, nested: None, persistent: false });
        }
        pipes.into_iter().for_each(|(from, to)| world.act(&Act::Pipe { from, to }));
        for on in 0..world.emitters.len() {
            world.emit(on, "x", true);
        }
    }

    /// E5, E6, E8: all listeners after the first nine are on one emitter, where a table and sets match them.
    #[test]
    fn many_listeners_on_one_emitter_are_called_as_in_the_model(
        hub in 0..4_usize,
        mut listeners in prop::collection::vec(listening(), 9..60),
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let below = Node::Child { of: 0, segment: "a" };
        let (run, nested) = (Node::Run { of: 1, within: None }, Node::Run { of: 1, within: Some(2) });
        let mut world = World::new(&[below, run, nested]);
        listeners.iter_mut().skip(9).for_each(|listening| listening.at = hub);
        listeners.into_iter().for_each(|listening| world.act(&Act::Listen(listening)));
        acts.iter().for_each(|act| world.act(act));
    }

    /// E8: concurrent emits may reach a listener in any order.
    #[test]
    fn interleaved_emits_share_the_limit_of_a_listener(
        limits in prop::collection::vec(1..5_usize, 1..4),
        emits in 1..8_usize,
        schedule in prop::collection::vec(WHICH, 0..40),
    ) {
        let (recorder, emitter) = (Recorder::new(), Emitter::new());
        for (i, &limit) in limits.iter().enumerate() {
            let limited = emitter.with(Options::new().times(limit));
            limited.on_async("*", recorder.hears_async(format!("blocking {i}"))).expect("a matcher");
            limited.on("*", recorder.hears(format!("sync {i}"))).expect("a matcher");
            limited.observe_async("*", recorder.sees_async(format!("observing {i}"))).expect("a matcher");
        }
        let mut payloads = vec![(); emits];
        let mut under_way: Vec<_> = payloads.iter_mut().map(|payload| Some(Box::pin(emitter.emit("x", payload)))).collect();
        for which in schedule {
            let which = which % emits;
            if under_way[which].as_mut().is_some_and(|emit| emit.as_mut().now_or_never().is_some()) {
                under_way[which] = None;
            }
        }
        under_way.into_iter().flatten().for_each(|emit| block_on(emit).expect("no listener fails"));
        let mut calls: HashMap<String, usize> = HashMap::new();
        for line in recorder.take() {
            *calls.entry(line).or_default() += 1;
        }
        for (i, &limit) in limits.iter().enumerate() {
            for verb in ["blocking", "sync", "observing"] {
                prop_assert_eq!(calls[&format!("{verb} {i} x")], limit.min(emits));
            }
        }
    }
}

/// E4, E5: a full table of matches is replaced by a larger one. A full table of the largest size is replaced by an
/// empty one.
#[test]
fn events_are_received_even_with_more_names_than_the_cache_of_matches_holds() {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let emitter = root.child("a").expect("a name");
    let ends = |end: &str| Matcher::regex(&format!("{end}$")).expect("a regex");
    for end in 0..10 {
        root.with(Options::new().priority(-end))
            .observe(ends(&end.to_string()), recorder.sees(end))
            .expect("a matcher");
    }
    root.on("**.n1*", recorder.hears("glob")).expect("a matcher");
    for i in (0..20_000).chain(0..50) {
        emit(&emitter, &format!("n{i}"));
        let glob = (i.to_string().starts_with('1')).then(|| format!("glob a.n{i}"));
        let expected: Vec<_> = glob.into_iter().chain([format!("{} a.n{i}", i % 10)]).collect();
        recorder.expect(expected.iter().map(String::as_str));
    }
}

/// E4, E5: sets of patterns are kept, extended and compiled again as patterns are added and removed.
#[test]
fn a_listener_receives_events_exactly_while_its_pattern_is_registered() {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    let mut there: Vec<(usize, Subscription)> = Vec::new();
    let mut next = 0;
    for (round, (add, remove)) in [(100, 0), (3, 5), (20, 1), (0, 60), (1, 0), (40, 40), (0, 90), (9, 0), (300, 200)]
        .into_iter()
        .cycle()
        .take(36)
        .enumerate()
    {
        for _ in 0..add {
            let subscription = emitter.on(format!("[m-n]{}_*", next % 7), recorder.hears(next)).expect("a matcher");
            there.push((next, subscription));
            next += 1;
        }
        for i in 0..remove.min(there.len()) {
            let (_, subscription) = there.remove((i * 7919 + round) % there.len());
            assert!(subscription.off());
        }
        let name = format!("n{}_x", round % 7);
        emit(&emitter, &name);
        let hear = there.iter().filter(|(i, _)| i % 7 == round % 7);
        let expected: Vec<_> = hear.map(|(i, _)| format!("{i} {name}")).collect();
        recorder.expect(expected.iter().map(String::as_str));
    }
}
