//! Draws trees in batches, runs them, waits until their runs are freed, and checks the recordings.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::bad::Bad;
use crate::check::{Rule, check, lives};
use crate::damage::Damage;
use crate::hold::poll_idly;
use crate::memory::{MOST, Memory, resident};
use crate::plan::{draw, rng};
use crate::tally::Tally;
use crate::threads::Threads;
use crate::tree::{Shared, Tree};

pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) runs: u64,
    pub(crate) damage: Option<Damage>,
}

impl Settings {
    fn patience(&self) -> Duration {
        if self.damage.is_some_and(Damage::is_endless) { SHORT_PATIENCE } else { PATIENCE }
    }

    /// Returns the number of bytes per run that the damage keeps: over all runs, twice the allowed growth.
    fn kept_of_a_run(&self) -> usize {
        let is_kept = self.damage == Some(Damage::KeptMemory);
        if is_kept { (2 * MOST as u64 / self.runs) as usize } else { 0 }
    }
}

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) tally: Tally,
    pub(crate) trees: u64,
    /// The number of runtimes that were dropped while they had runs.
    pub(crate) cuts: u64,
    pub(crate) broken: BTreeMap<Rule, u64>,
    /// Descriptions of the first few violations.
    pub(crate) examples: Vec<String>,
    pub(crate) memory: Memory,
    pub(crate) took: Duration,
    /// Memory that `Damage::KeptMemory` leaks on purpose.
    kept: Vec<u8>,
}

/// The number of trees that run concurrently.
const BATCH: u64 = 128;
/// The maximum time for a batch to end once the soak waits for it.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum time if the damage keeps the batch from ending.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);
const EXAMPLES: usize = 8;

/// Runs batches until enough runs have started, or until a batch does not end.
pub(crate) fn soak(settings: &Settings, mut progress: impl FnMut(&Report)) -> Report {
    silence_planned_panics();
    let began = Instant::now();
    let panics = PANICS.load(Relaxed);
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime");
    let threads = Threads::new();
    let mut report = Report::default();
    let hangs = |report: &Report| [Rule::LetsGo, Rule::Over].iter().any(|rule| report.broken.contains_key(rule));
    while report.tally.runs < settings.runs && !hangs(&report) {
        runtime.block_on(batch(settings, &threads, &mut report));
        if report.memory.warm.is_none() && report.tally.runs >= settings.runs / 5 {
            report.memory.warm = resident();
        }
        report.took = began.elapsed();
        progress(&report);
    }
    report.memory.end = resident();
    let memory = report.memory;
    if memory.has_grown() {
        report.breaks(Rule::Memory, || memory.to_string());
    }
    for _ in panics..PANICS.load(Relaxed) {
        report.breaks(Rule::Panic, String::new);
    }
    report
}

impl Report {
    pub(crate) fn is_fine(&self) -> bool {
        self.broken.is_empty()
    }

    fn breaks(&mut self, rule: Rule, example: impl FnOnce() -> String) {
        *self.broken.entry(rule).or_default() += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(format!("{rule}: {}", example()));
        }
    }

    fn take(&mut self, tree: &Tree, settings: &Settings) {
        let mut log = tree.shared.log.take();
        if let Some(damage) = settings.damage {
            // Not every kind of damage fits every tree, so the result is ignored.
            damage.apply(&mut log);
        }
        let lives = lives(&log);
        self.tally.count(&log, &lives, &tree.drawn);
        self.kept.resize(self.kept.len() + lives.len() * settings.kept_of_a_run(), 1);
        for (rule, run) in check(&log, &lives) {
            self.breaks(rule, || format!("tree {}, {run}", tree.number));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tally, trees, cuts, broken, examples, memory, took, kept: _ } = self;
        let runs = tally.runs;
        let seconds = took.as_secs_f64();
        writeln!(f, "{tally}")?;
        writeln!(f, "{runs} runs in {trees} trees, {cuts} runtimes dropped with runs in them")?;
        writeln!(f, "{seconds:.1} s, {:.0} runs/s", runs as f64 / seconds)?;
        write!(f, "{memory}")?;
        broken.iter().try_for_each(|(rule, count)| write!(f, "\nVIOLATED {count} times: {rule}"))?;
        examples.iter().try_for_each(|example| write!(f, "\n  {example}"))
    }
}

async fn batch(settings: &Settings, threads: &Threads, report: &mut Report) {
    let numbers = report.trees..report.trees + BATCH;
    report.trees = numbers.end;
    // The runtime of every fourth batch is dropped while it has runs.
    let cut = (numbers.start / BATCH % 4 == 3).then(|| Cut::draw(settings.seed, numbers.start));
    let grow = |number| Tree::grow(number, draw(settings.seed, number, cut.is_some()), threads);
    let mut trees: Vec<_> = numbers.map(grow).collect();
    match cut {
        None => run_out(&mut trees).await,
        Some(cut) => {
            report.cuts += 1;
            cut.run(&mut trees).await;
        }
    }
    let held_up = settings.damage.and_then(|damage| damage.hold_up(&trees[0]));
    settle(&trees, settings.patience(), report).await;
    drop(held_up);
    trees.iter().for_each(|tree| report.take(tree, settings));
}

/// Runs each tree in a task, and waits for all tasks.
async fn run_out(trees: &mut [Tree]) {
    let mut tops: JoinSet<()> = trees.iter_mut().map(Tree::run).collect();
    while tops.join_next().await.is_some() {}
}

/// Waits until all runs of the trees are freed.
async fn settle(trees: &[Tree], patience: Duration, report: &mut Report) {
    let deadline = Instant::now() + patience;
    loop {
        trees.iter().for_each(|tree| let_go(&tree.shared));
        let ends = emitree::wait_for_ends(patience).await;
        if !ends.is_complete() {
            report.breaks(Rule::Ends, || ends.to_string());
        }
        let left = |is_done: fn(&Tree) -> bool| -> Vec<_> {
            trees.iter().filter(|tree| !is_done(tree)).map(|tree| tree.number).collect()
        };
        // Bindings must be dropped while the runs are still held.
        let (rule, left) = match left(Tree::is_bare) {
            none if none.is_empty() => (Rule::Over, left(Tree::is_over)),
            some => (Rule::LetsGo, some),
        };
        if left.is_empty() {
            return;
        }
        if Instant::now() > deadline {
            report.breaks(rule, || format!("trees {left:?}"));
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

/// Polls some of the kept futures again, and drops all of them.
fn let_go(shared: &Arc<Shared>) {
    for (index, run) in (0..).zip(shared.kept()) {
        poll_idly(run, index % 3);
    }
}

/// Settings for the runtime of a batch. The runtime is dropped while it has runs.
#[derive(Clone, Copy)]
struct Cut {
    /// The number of worker threads; `None` for a current-thread runtime.
    workers: Option<usize>,
    after: Duration,
    yields: u32,
    /// `true` if runs whose futures were dropped are ended immediately before the runtime is dropped.
    shuts_down: bool,
    /// `true` if kept futures are dropped before the runtime.
    lets_go: bool,
}

impl Cut {
    fn draw(seed: u64, number: u64) -> Self {
        let mut rng = rng(!seed, number);
        Self {
            workers: [None, Some(1), Some(3)][rng.usize(0..3)],
            after: Duration::from_micros(rng.u64(0..3000)),
            yields: rng.u32(0..40),
            shuts_down: rng.bool(),
            lets_go: rng.bool(),
        }
    }

    async fn run(self, trees: &mut [Tree]) {
        let tops: Vec<_> = trees.iter_mut().map(Tree::run).collect();
        let shared: Vec<_> = trees.iter().map(|tree| Arc::clone(&tree.shared)).collect();
        let (done, is_done) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = self.runtime();
            tops.into_iter().for_each(|top| drop(runtime.spawn(top)));
            runtime.block_on(self.wait());
            if self.lets_go {
                shared.iter().for_each(let_go);
            }
            shared.iter().for_each(|shared| shared.log.runtime_goes());
            drop(runtime);
            shared.iter().for_each(|shared| shared.log.runtime_gone());
            shared.iter().for_each(let_go);
            drop(shared);
            done.send(())
        });
        is_done.await.expect("the thread does not panic");
    }

    fn runtime(self) -> Runtime {
        let runtime = match self.workers {
            None => Builder::new_current_thread().enable_all().build(),
            Some(workers) => Builder::new_multi_thread().worker_threads(workers).enable_all().build(),
        };
        runtime.expect("a runtime")
    }

    async fn wait(self) {
        match self.workers {
            Some(_) => tokio::time::sleep(self.after).await,
            None => {
                for _ in 0..self.yields {
                    tokio::task::yield_now().await;
                }
            }
        }
        if self.shuts_down {
            emitree::wait_for_ends(Duration::ZERO).await;
        }
    }
}

/// The number of panics that were not planned.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Installs a panic hook that prints and counts only panics that were not planned.
fn silence_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let text = panic.payload_as_str().unwrap_or_default();
            let is_planned = text == "planned" || panic.payload().is::<Bad>();
            // Tokio panics if code that needs a runtime is polled without a runtime.
            if !is_planned && !text.contains("Tokio") {
                PANICS.fetch_add(1, Relaxed);
                print(panic);
            }
        }));
    });
}
