//! Starts runs in batches, waits for their ends, and checks them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::Poll;
use std::time::Duration;

use emitree::abort::AbortHandle;
use emitree::agent::{Agent, AgentOutput, AgentRun, Session};
use emitree::{Emitter, Outcome, Result, Run, wait_for_ends};
use futures_util::StreamExt;
use tokio::task::JoinSet;

use crate::agents::{Begun, agents};
use crate::history::check;
use crate::lives::Lives;
use crate::plan::{Plan, Use};

/// The number of sessions in a batch. Each has two runs, one after the other.
const BATCH: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(30);
const EXAMPLES: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The runs of agents that were asked, by their outcome.
    pub(crate) asked: BTreeMap<&'static str, u64>,
    /// All runs that started: agents, models and tools.
    pub(crate) started: u64,
    pub(crate) violations: u64,
    examples: Vec<String>,
}

impl Report {
    pub(crate) const fn is_fine(&self) -> bool {
        self.violations == 0
    }

    fn add(&mut self, broken: Vec<String>) {
        self.violations += broken.len() as u64;
        let free = EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(broken.into_iter().take(free));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} runs of agents, models and tools started", self.started)?;
        self.asked.iter().try_for_each(|(outcome, runs)| writeln!(f, "{runs:>8} agents: {outcome}"))?;
        self.examples.iter().try_for_each(|example| writeln!(f, "FAILED: {example}"))?;
        write!(f, "{} violations", self.violations)
    }
}

/// The result of one session.
struct Ended {
    session: Session,
    outcomes: [&'static str; 2],
    broken: Vec<String>,
}

/// Asks agents `runs` times, and checks each run.
pub(crate) fn soak(seed: u64, runs: u64) -> Report {
    silence_planned_panics();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime");
    let begun = Begun::default();
    let lives = Lives::default();
    let mut report = Report::default();
    let agents = Arc::new(agents(seed, &begun).expect("valid agents"));
    let observer = lives.observe(&Emitter::root()).expect("a valid matcher");
    for first in (0..runs.div_ceil(2)).step_by(BATCH as usize) {
        let sessions = first..(first + BATCH).min(runs.div_ceil(2));
        let ended = runtime.block_on(batch(seed, &agents, sessions, &mut report));
        for Ended { session, outcomes, broken } in ended {
            outcomes.into_iter().for_each(|outcome| *report.asked.entry(outcome).or_default() += 1);
            report.add(broken);
            report.add(check(session.history().messages(), &begun));
        }
        let (started, broken) = lives.settle();
        report.started = started;
        report.add(broken);
        begun.clear();
    }
    observer.off();
    report.add(vec!["a panic was not planned".to_owned(); PANICS.swap(0, Relaxed) as usize]);
    report
}

/// Runs sessions concurrently, and waits until all runs below them have ended.
async fn batch(seed: u64, agents: &Arc<[Agent; 2]>, sessions: std::ops::Range<u64>, report: &mut Report) -> Vec<Ended> {
    let mut tasks = JoinSet::new();
    for session in sessions {
        let agents = Arc::clone(agents);
        tasks.spawn(async move { converse(seed, &agents, session).await });
    }
    let mut ended = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        match joined {
            Ok(session) => ended.push(session),
            Err(error) => report.add(vec![format!("a panic escaped: {error}")]),
        }
    }
    let undelivered = wait_for_ends(PATIENCE).await.undelivered;
    report.add(undelivered.iter().map(|run| format!("not ended: {run:?}")).collect());
    ended
}

/// Asks twice in one session, so that the second run reads the history that the first run left.
async fn converse(seed: u64, agents: &[Agent; 2], number: u64) -> Ended {
    let session = Session::new();
    let mut broken = Vec::new();
    let mut outcomes = ["never polled"; 2];
    for (number, outcome) in (2 * number..).zip(&mut outcomes) {
        let plan = Plan::draw(seed, number);
        let run = agents[usize::from(plan.spawns_tools)].ask(number.to_string()).session(&session);
        let text = Arc::new(Mutex::new(String::new()));
        let ended = use_run(run, plan.usage, &text).await;
        if let (Use::Streams, Some(Ok(answer))) = (plan.usage, &ended) {
            let text = text.lock().unwrap_or_else(PoisonError::into_inner);
            if !text.ends_with(&answer.text()) {
                broken.push(format!("run {number} streamed `{text}` and answered `{}`", answer.text()));
            }
        }
        *outcome = ended.map_or("dropped", |result| match result {
            Ok(_) => "success",
            Err(error) => Outcome::<()>::of_error(&error).status().as_str(),
        });
    }
    Ended { session, outcomes, broken }
}

/// Uses a run as planned. Returns `None` if it was dropped.
async fn use_run(run: Run<'_, Agent>, usage: Use, text: &Arc<Mutex<String>>) -> Option<Result<AgentOutput>> {
    match usage {
        Use::Awaits => Some(run.await),
        Use::Streams => {
            let text = Arc::clone(text);
            let add = move |token: &str| text.lock().unwrap_or_else(PoisonError::into_inner).push_str(token);
            Some(run.on_token(move |token| add(&token.text)).await)
        }
        Use::ReadsItems(items) => {
            let mut items = pin!(run.on_token(|_| ()).into_stream().take(items));
            while items.next().await.is_some() {}
            None
        }
        Use::DropsAfterPolls(polls) => {
            let mut run = pin!(run);
            let mut left = polls;
            poll_fn(|cx| match left.checked_sub(1) {
                None => Poll::Ready(None),
                Some(fewer) => {
                    left = fewer;
                    run.as_mut().poll(cx).map(Some)
                }
            })
            .await
        }
        Use::AbortsAfterYields(yields) => {
            let handle = AbortHandle::new();
            let aborts = handle.clone();
            tokio::spawn(async move {
                for _ in 0..yields {
                    tokio::task::yield_now().await;
                }
                aborts.abort("planned");
            });
            Some(run.abort_on(&handle).await)
        }
        Use::TimesOut(after) => Some(run.timeout(after).await),
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
            if panic.payload_as_str() != Some("planned") {
                PANICS.fetch_add(1, Relaxed);
                print(panic);
            }
        }));
    });
}
