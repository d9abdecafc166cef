//! The plan of a tree, drawn from a seed: its runs, their intended ends, and interference from outside.

use std::time::Duration;

use emitree::lifecycle::Stage;
use fastrand::Rng;

use crate::bad::Payload;
use crate::listed::listed;

/// A tree of runs, and the listeners above all of them.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) top: Node,
    /// Listeners at the root, each with its maximum number of calls.
    pub(crate) above: Vec<(Listening, usize)>,
}

/// A run and its children.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) holder: Holder,
    pub(crate) yields: u32,
    pub(crate) end: End,
    /// `true` if a listener of `start` answers instead of the work.
    pub(crate) is_answered: bool,
    pub(crate) stop: Option<Stop>,
    pub(crate) listening: Vec<Listening>,
    pub(crate) children: Vec<Self>,
    /// `true` if the children run concurrently.
    pub(crate) at_once: bool,
    /// If set, the work panics with this payload when it is dropped.
    pub(crate) drops_badly: Option<Payload>,
    pub(crate) bindings: Vec<Binding>,
    /// `true` if the failure of this run fails the run above.
    pub(crate) is_passed_on: bool,
}

/// The code that holds a run's future, and how it treats the future.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holder {
    Awaited,
    /// Dropped after at most this many polls.
    Dropped {
        polls: u32,
    },
    /// Spawned as a task of the run above.
    Spawned {
        is_awaited: bool,
    },
    /// Spawned as a plain tokio task.
    Task {
        then: Then,
    },
    /// Polled up to `polls` times, and then moved to a thread that polls it up to `polls_there` times and drops it.
    Thread {
        polls: u32,
        polls_there: u32,
    },
    /// Polled up to `polls` times, and then kept until everything else is over.
    Kept {
        polls: u32,
    },
}

/// How a task is handled after it is spawned.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    Awaited,
    Detached,
    AbortedAfter(u32),
}

/// The intended end of the work of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Succeeds,
    Fails,
    Panics(Payload),
    IsDenied,
    IsHalted,
    IsInterrupted,
    /// The work never ends: another cause has to end the run.
    Hangs,
}

/// The cause of a run's abort or timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    /// A handle that was aborted before the run began.
    Before,
    /// A listener of the run's `start`.
    AtStart,
    /// The run itself, in its work.
    Itself,
    /// Another thread, with a handle, possibly before the run begins.
    Thread,
    /// Another thread, with the run's own handle.
    ThreadInWork,
    /// A separate thread, with a handle, after `working` runs of the tree, including this run, have begun their work.
    ThreadAmid {
        working: u32,
    },
    TokenBefore,
    Token,
    /// A separate thread, with a token, after `working` runs of the tree, including this run, have begun their work.
    TokenAmid {
        working: u32,
    },
    After(Duration),
}

#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) at: At,
    pub(crate) stage: Stage,
    pub(crate) nested: bool,
    pub(crate) verb: Verb,
    pub(crate) act: Act,
}

/// The emitter on which a listener is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Instance,
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    On,
    OnAsync,
    Observe,
    ObserveAsync,
}

/// The action of a listener when it is called. The number is how often an async listener yields before it acts.
#[derive(Debug)]
pub(crate) enum Act {
    Yields(u32),
    Fails(u32),
    Panics(u32, Payload),
    /// An async listener that starts runs.
    Runs(Box<Node>),
}

/// A binding of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    pub(crate) place: Place,
    pub(crate) manner: Manner,
}

listed! {
    /// The kind of a binding. The strings are rows of the printed table.
    pub(crate) enum Place {
        /// A middleware that calls its value when it is bound, and binds nothing.
        Bind = "a middleware",
        Listener = "a listener",
        Persistent = "a persistent listener",
        Layer = "a layer",
        Observer = "an observer",
        MapError = "`map_error`",
        MapContext = "`map_context`",
        Nested = "`bind_nested`",
        AtEnd = "`on_end`",
    }
}

listed! {
    /// The behavior of a binding when it is called or dropped.
    pub(crate) enum Manner {
        Quiet = "quiet",
        Panics = "panics",
        /// Panics with a payload that panics when it is dropped.
        PanicsBadly = "badly",
        /// Panics when it is dropped.
        DropsBadly = "drop",
        /// Panics when it is dropped, with a payload that panics when it is dropped.
        DropsWorse = "drop badly",
    }
}

pub(crate) const STAGES: [Stage; 4] = [Stage::Start, Stage::Success, Stage::Error, Stage::Finish];
pub(crate) const VERBS: [Verb; 4] = [Verb::On, Verb::OnAsync, Verb::Observe, Verb::ObserveAsync];
/// The maximum number of children of a run, by depth.
const CHILDREN: [usize; 7] = [5, 4, 3, 3, 2, 2, 0];
/// The share of trees that are wide.
const WIDE: f64 = 0.02;

/// Returns a separate random generator for each number, so that the draws for one number do not affect the others.
pub(crate) fn rng(seed: u64, number: u64) -> Rng {
    Rng::with_seed(seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Draws the tree with this number. With `is_cut`, runs may wait forever, because their runtime will be dropped.
pub(crate) fn draw(seed: u64, number: u64, is_cut: bool) -> Plan {
    let mut draw = Draw { rng: rng(seed, number), is_cut };
    if draw.chance(WIDE) && !is_cut {
        return Plan { top: draw.wide(), above: Vec::new() };
    }
    let top = draw.node(0);
    let above = draw.up_to(8, 0.2, |draw| (draw.listening_above(), draw.rng.usize(1..4)));
    Plan { top, above }
}

struct Draw {
    rng: Rng,
    is_cut: bool,
}

impl Draw {
    fn chance(&mut self, chance: f64) -> bool {
        self.rng.f64() < chance
    }

    /// Draws a number of yields or polls, which is usually small.
    fn few(&mut self) -> u32 {
        if self.chance(0.1) { self.rng.u32(4..16) } else { self.rng.u32(0..4) }
    }

    fn up_to<T>(&mut self, most: usize, chance: f64, mut draw: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let mut drawn = Vec::new();
        while drawn.len() < most && self.chance(chance) {
            drawn.push(draw(self));
        }
        drawn
    }

    /// Draws a run. A tree has only one top run, so that run gets more listeners.
    fn node(&mut self, depth: usize) -> Node {
        let holder = if depth == 0 { self.holder_of_top() } else { self.holder() };
        let stop = self.chance(0.15).then(|| self.stop());
        let children = self.rng.usize(0..=CHILDREN[depth]);
        Node {
            holder,
            yields: self.few(),
            end: self.end(stop.is_some()),
            is_answered: self.chance(0.08),
            stop,
            listening: self.up_to(4, if depth == 0 { 0.6 } else { 0.3 }, |draw| draw.listening(depth)),
            children: (0..children).map(|_| self.node(depth + 1)).collect(),
            at_once: self.chance(0.6),
            drops_badly: self.drops_badly(),
            bindings: self.up_to(3, 0.1, Self::binding),
            is_passed_on: self.chance(0.2),
        }
    }

    /// Draws a run with many runs below it. None of them ends by itself: all must end when a thread aborts the top run.
    fn wide(&mut self) -> Node {
        let children: Vec<_> = (0..self.rng.usize(30..80)).map(|_| self.waiting(2)).collect();
        let begin = children.iter().filter(|child| matches!(child.holder, Holder::Awaited | Holder::Spawned { .. }));
        // The top run counts too.
        let begin = begin.count() as u32 + 1;
        let working = self.rng.u32(1..=begin);
        let stop = if self.rng.bool() { Stop::ThreadAmid { working } } else { Stop::TokenAmid { working } };
        Node { holder: Holder::Awaited, stop: Some(stop), children, ..self.waiting(0) }
    }

    /// Draws a run that waits forever, with children that wait forever. None of them is dropped before the abort, and none
    /// fails.
    fn waiting(&mut self, levels: usize) -> Node {
        let holder = match self.rng.u32(0..8) {
            0..4 => Holder::Awaited,
            4..6 => Holder::Spawned { is_awaited: self.rng.bool() },
            6 => Holder::Task { then: if self.rng.bool() { Then::Awaited } else { Then::Detached } },
            _ => Holder::Kept { polls: self.few() },
        };
        let children = if levels == 0 || self.chance(0.6) { 0 } else { self.rng.usize(1..4) };
        Node {
            holder,
            yields: self.few(),
            end: End::Hangs,
            is_answered: false,
            stop: None,
            listening: self.up_to(1, 0.2, |draw| Listening { act: Act::Yields(draw.few()), ..draw.listening_above() }),
            children: (0..children).map(|_| self.waiting(levels - 1)).collect(),
            at_once: true,
            drops_badly: self.drops_badly(),
            bindings: self.up_to(3, 0.1, |draw| Binding { manner: Manner::Quiet, ..draw.binding() }),
            is_passed_on: self.chance(0.2),
        }
    }

    fn drops_badly(&mut self) -> Option<Payload> {
        self.chance(0.03).then(|| self.payload())
    }

    fn payload(&mut self) -> Payload {
        if self.rng.bool() { Payload::Text } else { Payload::Bad }
    }

    fn binding(&mut self) -> Binding {
        let place = self.rng.usize(0..Place::ALL.len());
        let manner = self.rng.usize(0..Manner::ALL.len());
        Binding { place: Place::ALL[place], manner: Manner::ALL[manner] }
    }

    fn holder_of_top(&mut self) -> Holder {
        match self.rng.u32(0..20) {
            0..12 => Holder::Awaited,
            12..15 => Holder::Dropped { polls: self.few() },
            15..17 => Holder::Task { then: self.then() },
            17..19 => Holder::Thread { polls: self.few(), polls_there: self.few() },
            _ => Holder::Kept { polls: self.few() },
        }
    }

    fn holder(&mut self) -> Holder {
        match self.rng.u32(0..20) {
            0..8 => Holder::Awaited,
            8..9 => Holder::Dropped { polls: self.few() },
            9..14 => Holder::Spawned { is_awaited: self.chance(0.7) },
            14..17 => Holder::Task { then: self.then() },
            17..19 => Holder::Thread { polls: self.few(), polls_there: self.few() },
            _ => Holder::Kept { polls: self.few() },
        }
    }

    fn then(&mut self) -> Then {
        match self.rng.u32(0..4) {
            0..2 => Then::Awaited,
            2 => Then::Detached,
            _ => Then::AbortedAfter(self.few()),
        }
    }

    fn end(&mut self, is_stopped: bool) -> End {
        let may_hang = (is_stopped && self.chance(0.7)) || (self.is_cut && self.chance(0.05));
        match self.rng.u32(0..20) {
            _ if may_hang => End::Hangs,
            0..2 => End::Fails,
            2..4 => End::Panics(self.payload()),
            4..6 => End::IsDenied,
            6..8 => End::IsHalted,
            8 => End::IsInterrupted,
            _ => End::Succeeds,
        }
    }

    fn stop(&mut self) -> Stop {
        match self.rng.u32(0..11) {
            0 => Stop::Before,
            1 => Stop::AtStart,
            2 => Stop::Itself,
            3..5 => Stop::Thread,
            5 => Stop::ThreadInWork,
            6 => Stop::TokenBefore,
            7..9 => Stop::Token,
            _ => Stop::After(Duration::from_micros(self.rng.u64(0..2000))),
        }
    }

    fn listening(&mut self, depth: usize) -> Listening {
        let at = if self.chance(0.4) { At::Instance } else { At::Run };
        let stage = STAGES[self.rng.usize(0..4)];
        let verb = VERBS[self.rng.usize(0..4)];
        let is_own = at == At::Run && stage != Stage::Start && verb.is_async();
        if is_own && self.chance(0.3) {
            return Listening { at, stage, nested: false, verb, act: Act::Runs(Box::new(self.leaf(depth))) };
        }
        Listening { at, stage, nested: self.chance(0.3), verb, act: self.act() }
    }

    fn listening_above(&mut self) -> Listening {
        let stage = STAGES[self.rng.usize(0..4)];
        let verb = VERBS[self.rng.usize(0..4)];
        Listening { at: At::Instance, stage, nested: true, verb, act: self.act() }
    }

    fn act(&mut self) -> Act {
        match self.rng.u32(0..4) {
            0..2 => Act::Yields(self.few()),
            2 => Act::Fails(self.few()),
            _ => Act::Panics(self.few(), self.payload()),
        }
    }

    fn leaf(&mut self, depth: usize) -> Node {
        Node { children: Vec::new(), listening: Vec::new(), ..self.node(depth.max(CHILDREN.len() - 1)) }
    }
}

impl Verb {
    pub(crate) const fn is_async(self) -> bool {
        matches!(self, Self::OnAsync | Self::ObserveAsync)
    }

    /// Returns `true` if a failure of a listener with this verb makes the emit fail.
    pub(crate) const fn may_fail(self) -> bool {
        matches!(self, Self::On | Self::OnAsync)
    }
}
