//! The cache of emitters without listeners, compared with a walk over all emitters above (E15).

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use emitree_emitter::{AnyEvent, Emitter, ListenError, Matcher, Options, PipeHandle, Subscription};
use proptest::prelude::*;

use crate::support::{TestResult, run_of, run_within};

const WHICH: std::ops::Range<usize> = 0..2520;

#[derive(Clone, Debug)]
enum Node {
    Child { of: usize },
    Run { of: usize, within: Option<usize> },
}

#[derive(Clone, Debug)]
enum Act {
    Make(Node),
    /// Registers a listener. `times` is the maximum number of its calls; `None` means no maximum.
    Listen {
        at: usize,
        times: Option<usize>,
    },
    Remove {
        which: usize,
    },
    Pipe {
        from: usize,
        to: usize,
    },
    Unpipe {
        which: usize,
    },
    Reset {
        at: usize,
    },
    Close {
        at: usize,
    },
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        3 => WHICH.prop_map(|of| Node::Child { of }),
        2 => (WHICH, proptest::option::of(WHICH)).prop_map(|(of, within)| Node::Run { of, within }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => node().prop_map(Act::Make),
        3 => (WHICH, proptest::option::of(0..2_usize)).prop_map(|(at, times)| Act::Listen { at, times }),
        3 => WHICH.prop_map(|which| Act::Remove { which }),
        1 => (WHICH, WHICH).prop_map(|(from, to)| Act::Pipe { from, to }),
        1 => WHICH.prop_map(|which| Act::Unpipe { which }),
        1 => WHICH.prop_map(|at| Act::Reset { at }),
        1 => WHICH.prop_map(|at| Act::Close { at }),
    ]
}

/// The emitters, and the data from which the expected result of `has_listeners` is computed.
struct World {
    emitters: Vec<Emitter>,
    /// The emitters above each emitter: its parent in the tree and, for a run, the run in which it was started.
    above: Vec<Vec<usize>>,
    pipes: Vec<usize>,
    subscriptions: Vec<Subscription>,
    handles: Vec<(usize, PipeHandle)>,
}

impl World {
    fn new() -> Self {
        let (emitters, above, pipes) = (vec![Emitter::new()], vec![Vec::new()], vec![0]);
        Self { emitters, above, pipes, subscriptions: Vec::new(), handles: Vec::new() }
    }

    fn one(&self, which: usize) -> usize {
        which % self.emitters.len()
    }

    fn make(&mut self, node: &Node) -> TestResult {
        let (made, above) = match *node {
            Node::Child { of } => (self.emitters[self.one(of)].child("x")?, vec![self.one(of)]),
            Node::Run { of, within: None } => (run_of(&self.emitters[self.one(of)]), vec![self.one(of)]),
            Node::Run { of, within: Some(within) } => {
                let (of, within) = (self.one(of), self.one(within));
                (run_within(&self.emitters[of], &self.emitters[within]), vec![of, within])
            }
        };
        self.emitters.push(made);
        self.above.push(above);
        self.pipes.push(0);
        Ok(())
    }

    fn act(&mut self, act: &Act) -> TestResult {
        match *act {
            Act::Make(ref node) => self.make(node)?,
            Act::Listen { at, times } => {
                let options = times.into_iter().fold(Options::new(), Options::times);
                let listens =
                    self.emitters[self.one(at)].with(options).on(Matcher::every(), |_: &mut dyn AnyEvent, _| ());
                self.subscriptions.push(listens?);
            }
            Act::Remove { which } if !self.subscriptions.is_empty() => {
                let which = which % self.subscriptions.len();
                self.subscriptions.swap_remove(which).off();
            }
            Act::Pipe { from, to } => {
                let (from, to) = (self.one(from), self.one(to));
                self.handles.push((from, self.emitters[from].pipe(&self.emitters[to])));
                self.pipes[from] += 1;
            }
            Act::Unpipe { which } if !self.handles.is_empty() => {
                let which = which % self.handles.len();
                let (from, handle) = self.handles.swap_remove(which);
                if handle.unpipe() {
                    self.pipes[from] -= 1;
                }
            }
            Act::Reset { at } => {
                self.emitters[self.one(at)].reset();
            }
            Act::Close { at } => {
                let at = self.one(at);
                self.emitters[at].close();
                self.pipes[at] = 0;
            }
            Act::Remove { .. } | Act::Unpipe { .. } => {}
        }
        Ok(())
    }

    fn has_listeners(&self, at: usize) -> bool {
        self.emitters[at].listener_count() + self.pipes[at] > 0
            || self.above[at].iter().any(|&above| self.has_listeners(above))
    }
}

proptest! {
    /// E15: every emitter is checked after every step, so that each cache is filled as often as possible.
    #[test]
    fn has_listeners_is_true_if_and_only_if_a_listener_or_pipe_is_on_the_emitter_or_above(acts in prop::collection::vec(act(), 1..40)) {
        let mut world = World::new();
        for act in acts {
            world.act(&act).expect("names are valid");
            for at in 0..world.emitters.len() {
                prop_assert_eq!(world.emitters[at].has_listeners(), world.has_listeners(at), "emitter {} after {:?}", at, &act);
            }
        }
    }
}

/// E15.
#[test]
fn a_new_listener_is_found_at_once_even_if_other_threads_fill_the_cache_meanwhile() -> TestResult {
    let top = Emitter::new();
    let leaf = top.child("a.b.c")?;
    let is_over = AtomicBool::new(false);
    let found = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // Fills the cache if there are no listeners now.
                    std::hint::black_box(leaf.has_listeners());
                }
            });
        }
        let found = (0..20_000).map(|_| {
            let listens = top.on("x", |_: &mut u32, _| ())?;
            let found = leaf.has_listeners();
            listens.off();
            Ok::<_, ListenError>(found && !leaf.has_listeners())
        });
        let found = found.collect::<Result<Vec<_>, _>>();
        is_over.store(true, Ordering::Relaxed);
        found
    });
    assert!(found?.into_iter().all(|found| found));
    Ok(())
}
