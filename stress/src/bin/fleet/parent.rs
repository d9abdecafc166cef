//! The parent: it submits the jobs and the sessions, disturbs the workers, answers the questions, and checks what has
//! become of all this.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use emitree::middleware::Durable;
use emitree::middleware::store::{EntryHead, EntryStatus, Filter, Store};
use emitree_stores::PostgresStore;
use futures_util::future::{join_all, try_join_all};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::Options;
use crate::answers::{AUTHORS, Decision, Told, accepted, answer, decide};
use crate::check::ATTEMPTS;
use crate::disturb::{Counts, Disturber};
use crate::effects::Effects;
use crate::histories::Called;
use crate::jobs::{APPROVE, Done, Order, QUEUE};
use crate::processes::{Gone, Place, Start, log};
use crate::proxy::Proxy;
use crate::server::Server;
use crate::work::{Outcome, Work};
use crate::worker::connect;

/// How often the jobs are listed.
const LOOK: Duration = Duration::from_millis(200);
/// The number of leases after which a fleet that does not get on has failed.
const STALLED: u32 = 30;
const BEGAN: &str = "durable.began";
pub(crate) const STUCK: &str = "worker.stuck";
/// The kind of the entries of sessions.
const SESSION: &str = "session";

/// The parent's notes about the jobs.
#[derive(Default)]
pub(crate) struct Notes {
    /// All that is wrong.
    pub(crate) faults: Vec<String>,
    /// The decisions about plain steps, by the ids of their jobs.
    pub(crate) decisions: BTreeMap<String, Decision>,
    /// The authors whose answers were accepted, by the ids of jobs and the texts of messages.
    pub(crate) approved: BTreeMap<String, String>,
    /// The jobs that wait because their processes were gone again and again.
    pub(crate) stuck: BTreeSet<String>,
    /// The numbers of the processes that were told to end, and gave their jobs back.
    pub(crate) shut_down: BTreeSet<u32>,
    /// The number of answers that were given.
    pub(crate) answers: usize,
    /// The results of the calls of sessions.
    pub(crate) results: Vec<Called>,
}

/// A client of the store that submits and answers, by a network that fails, and one that looks, by a sound one.
pub(crate) struct Parent {
    pub(crate) stores: [PostgresStore; 2],
    pub(crate) sound: PostgresStore,
    pub(crate) lease: Duration,
    effects: Effects,
    gone: Gone,
    pub(crate) random: Mutex<fastrand::Rng>,
    pub(crate) notes: Mutex<Notes>,
    /// The number of jobs and sessions that have ended.
    ended: Arc<AtomicUsize>,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Parent {
    pub(crate) fn fault(&self, text: String) {
        locked(&self.notes).faults.push(text);
    }

    /// Submits a job twice at once (F3).
    pub(crate) async fn submit(self: Arc<Self>, order: Order) {
        let submitted = self.stores.each_ref().map(|store| {
            let (job, order) = (Durable::new(store, &*order.id), order.clone());
            tokio::spawn(async move { job.submit(QUEUE, &order).await })
        });
        let mut new = 0;
        for submitted in join_all(submitted).await {
            match submitted {
                Ok(Ok(submitted)) => new += usize::from(submitted.is_new),
                Ok(Err(error)) => self.fault(format!("{} was not submitted: {}", order.id, error.explain())),
                Err(error) => self.fault(format!("a submission of {} has panicked: {error}", order.id)),
            }
        }
        if new != 1 {
            self.fault(format!("{new} of two submissions of {} were told that it is new", order.id));
        }
    }

    /// Answers the questions of a job that waits.
    async fn answer(self: Arc<Self>, id: String) {
        let questions = match Durable::new(&self.sound, &*id).questions().await {
            Ok(questions) => questions,
            Err(error) => return self.fault(format!("the questions of {id}: {}", error.explain())),
        };
        for question in questions {
            let answered = match &*question.kind {
                APPROVE => self.approve(&id, &question.id).await,
                BEGAN => self.answer_begun(&id, &question.id).await,
                STUCK => {
                    // A worker that is killed before it asks has made one more.
                    if question.data["attempts"].as_u64() < Some(ATTEMPTS as u64) {
                        self.fault(format!("{id} waits after {} attempts", question.data["attempts"]));
                    }
                    locked(&self.notes).stuck.insert(id.clone());
                    Ok(())
                }
                other => Err(format!("{id} has asked `{other}`").into()),
            };
            match answered {
                Ok(()) => locked(&self.notes).answers += 1,
                Err(error) => self.fault(format!("an answer to {id}: {error}")),
            }
        }
    }

    /// Answers a question twice at once (F5).
    async fn approve(&self, id: &str, question: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        let jobs = self.stores.each_ref().map(|store| Durable::new(store, id));
        let answers = jobs.iter().zip(AUTHORS).map(|(job, author)| answer(job, question, json!(author), author));
        let told = try_join_all(answers).await?;
        let first = accepted(&told)?;
        let before = locked(&self.notes).approved.insert(id.to_owned(), first.to_owned());
        match before {
            Some(before) => Err(format!("{before} and {first} have answered").into()),
            None => Ok(()),
        }
    }

    /// Decides about a step that had begun, once, and answers.
    async fn answer_begun(&self, id: &str, question: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut decision = locked(&self.notes).decisions.get(id).cloned().unwrap_or_default();
        if let Some(output) = &decision.output {
            return Err(format!("its step was given the output `{output}`, and has asked again").into());
        }
        let wants_again = locked(&self.random).u8(..4) > 0;
        let value = decide(id, &mut decision, &self.effects, &self.gone, wants_again)?;
        locked(&self.notes).decisions.insert(id.to_owned(), decision);
        let store = &self.stores[locked(&self.random).usize(..2)];
        match answer(&Durable::new(store, id), question, value, AUTHORS[0]).await? {
            Told::Accepted => Ok(()),
            told => Err(format!("nobody else has answered, and the author was told {told:?}").into()),
        }
    }

    /// Answers and waits until jobs and sessions have ended, or wait for ever. Returns `false` if something is wrong.
    async fn watch(
        self: &Arc<Self>,
        ids: &BTreeSet<String>,
        submitting: &mut JoinSet<()>,
    ) -> Result<bool, Box<dyn Error>> {
        let mut answering = JoinSet::new();
        let mut asked = BTreeSet::new();
        let mut last = (Instant::now(), Vec::new());
        loop {
            while submitting.try_join_next().or_else(|| answering.try_join_next()).transpose()?.is_some() {}
            let is_submitted = submitting.is_empty();
            let statuses = Filter::unfinished().statuses.into_iter().chain([EntryStatus::Failed, EntryStatus::Ended]);
            let heads = self.sound.list(&Filter::of(statuses)).await?;
            for head in &heads {
                if matches!(head.status, EntryStatus::Failed | EntryStatus::Paused) {
                    self.fault(self.stopped(head).await);
                }
                for question in &head.questions {
                    if head.status == EntryStatus::Waiting && asked.insert((head.id.clone(), question.id.clone())) {
                        let parent = Arc::clone(self);
                        let id = head.id.clone();
                        if head.kind == SESSION {
                            answering.spawn(parent.answer_session(id));
                        } else {
                            answering.spawn(parent.answer(id));
                        }
                    }
                }
            }
            // A message that has just come has not changed the status yet.
            let is_over =
                |head: &EntryHead| head.status == EntryStatus::Ended && head.holder.is_none() && head.posts == 0;
            let of = |head: &&EntryHead| ids.contains(&head.id) && !is_over(head);
            let left: Vec<_> =
                heads.iter().filter(of).filter(|head| !locked(&self.notes).stuck.contains(&head.id)).collect();
            let state = (left.len(), answering.len(), submitting.len(), locked(&self.notes).answers);
            self.ended.store(ids.len().saturating_sub(left.len() + submitting.len()), Ordering::Relaxed);
            if !locked(&self.notes).faults.is_empty() {
                return Ok(false);
            }
            if is_submitted && left.is_empty() && answering.is_empty() {
                return Ok(true);
            }
            if last.1 != [state] {
                last = (Instant::now(), vec![state]);
            }
            if last.0.elapsed() > self.lease * STALLED {
                let left: Vec<_> = left.iter().take(5).map(|head| format!("{head:?}")).collect();
                self.fault(format!("nothing has ended or was answered for {STALLED} leases; left are {left:#?}"));
            }
            sleep(LOOK).await;
        }
    }

    /// Describes a job or a session that has stopped.
    async fn stopped(&self, head: &EntryHead) -> String {
        if head.kind == SESSION {
            return format!("{} is {}", head.id, head.status.as_str());
        }
        let job = Durable::new(&self.sound, &*head.id);
        let error = timeout(self.lease, job.ended::<Done>()).await;
        let error = error.map(|ended| ended.map_err(|error| error.explain().to_string()));
        format!("{} is {}: {error:?}", head.id, head.status.as_str())
    }

    /// Returns the ends of jobs and the histories of sessions. Jobs that are stuck are given up.
    async fn outcome(&self, work: &Work) -> Result<Outcome, Box<dyn Error>> {
        let mut ends = BTreeMap::new();
        for Order { id, .. } in &work.jobs {
            let job = Durable::new(&self.sound, &**id);
            for question in job.questions().await? {
                job.answer(&question.id, json!("fail")).await?;
            }
            ends.insert(id.clone(), job.ended::<Done>().await.map_err(|error| error.to_string()));
        }
        Ok(Outcome { ends, histories: self.histories(&work.talks).await? })
    }
}

/// Runs the test in a folder. Returns what has happened, and what is wrong.
async fn run(options: &Options, folder: &Path) -> Result<(Counts, Notes), Box<dyn Error>> {
    let Options { lease, .. } = *options;
    let mut random = fastrand::Rng::with_seed(options.seed);
    let server = Arc::new(Server::start(folder)?);
    server.create_tables(options.flaw).await?;
    let network = Arc::new(Proxy::start(&server.url).await);
    let gone = Gone::default();
    let ended = Arc::<AtomicUsize>::default();
    let parent = Arc::new(Parent {
        stores: [connect(&network.url, lease).await?, connect(&network.url, lease).await?],
        sound: connect(&server.url, lease).await?,
        lease,
        effects: Effects::new(folder),
        gone: gone.clone(),
        random: Mutex::new(random.fork()),
        notes: Mutex::default(),
        ended: Arc::clone(&ended),
    });
    let mut places = Vec::new();
    for n in 0..options.workers {
        let wrong_clock = options.wrong_clock.clone().filter(|_| n == 0);
        let (folder, url) = (folder.to_owned(), server.url.clone());
        places.push(Place::start(Start { folder, url, lease, gone: gone.clone(), wrong_clock }).await?);
    }
    let stops = (1..=options.server_stops).rev().map(|n| n * options.jobs / (options.server_stops + 1)).collect();
    let disturber = Disturber {
        places,
        network,
        server,
        lease,
        random: random.fork(),
        server_stops: stops,
        ended,
        counts: Counts::default(),
        shut_down: BTreeSet::new(),
        faults: Vec::new(),
    };
    let end = CancellationToken::new();
    let disturbing = tokio::spawn(disturber.disturb(end.clone()));
    let mut submitting = JoinSet::new();

    let mut work = Work::new(options, &mut random);
    work.submit(&parent, &mut submitting, |before| {
        lease.mul_f64(random.f64() * 1.2 / options.workers as f64) * before as u32
    });
    let mut is_right = parent.watch(&work.ids(), &mut submitting).await?;
    end.cancel();
    let disturber = disturbing.await??;

    let end = CancellationToken::new();
    let resting = tokio::spawn(disturber.rest(end.clone()));
    if is_right {
        // Calls may still wait on connections that were cut.
        sleep(lease * 2).await;
        let undisturbed = Work::undisturbed(options, &mut random);
        undisturbed.submit(&parent, &mut submitting, |_| Duration::ZERO);
        is_right = parent.watch(&undisturbed.ids(), &mut submitting).await?;
        work.extend(undisturbed);
    }
    let outcome = if is_right { parent.outcome(&work).await? } else { Outcome::default() };
    end.cancel();
    let disturber = resting.await??;
    let mut notes = std::mem::take(&mut *locked(&parent.notes));
    notes.faults.extend(disturber.faults.iter().cloned());
    notes.shut_down.clone_from(&disturber.shut_down);
    work.check(&outcome, parent.effects.read()?, &mut notes);
    Ok((disturber.counts.clone(), notes))
}

/// Runs the test, and prints its result.
pub(crate) async fn test(options: &Options) -> Result<bool, Box<dyn Error>> {
    println!("seed {}", options.seed);
    let began = Instant::now();
    let folder = tempfile::tempdir()?;
    let mut ends = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
    let [interrupt, terminate] = &mut ends;
    // The drop of the workers ends their processes.
    let ran = tokio::select! {
        ran = run(options, folder.path()) => ran,
        _ = interrupt.recv() => Err("interrupted".into()),
        _ = terminate.recv() => Err("terminated".into()),
    };
    let (counts, mut notes) =
        ran.inspect_err(|_| println!("the processes have written {}", log(folder.path()).display()))?;
    let text = fs::read_to_string(log(folder.path())).unwrap_or_default();
    let panics = text.lines().filter(|line| line.contains("panicked at"));
    notes.faults.extend(panics.map(|line| format!("a worker: {line}")));

    println!("{} jobs in {} s: {counts}, {} shutdowns", options.jobs, began.elapsed().as_secs(), notes.shut_down.len());
    let again: usize = notes.decisions.values().map(|decision| decision.again).sum();
    let given = notes.decisions.values().filter(|decision| decision.output.is_some()).count();
    println!(
        "{} jobs had a step with an unknown effect: {again} steps were executed again, {given} were given an output",
        notes.decisions.len()
    );
    let results = |of| notes.results.iter().filter(|result| **result == of).count();
    println!(
        "{} calls for messages to sessions: {} had their effect, {} were rejected, {} may have had effects",
        notes.results.len(),
        results(Called::Charged),
        results(Called::Rejected),
        results(Called::Unknown)
    );
    for fault in &notes.faults {
        println!("fault: {fault}");
    }
    if !notes.faults.is_empty() {
        let folder = folder.keep();
        println!("the effects and what the processes have written are in {}", folder.display());
    }
    Ok(notes.faults.is_empty())
}
