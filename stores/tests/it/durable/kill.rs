//! A job that is killed at each of its points, on all stores. A point is before and after each append, and before and
//! after each effect. In memory, a process that is killed is a tokio runtime that is dropped while it hangs at a point:
//! nothing is stored after that. On a database, it is a process that gets SIGKILL.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::future::pending;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use emitree::agent::workflow::{Goto, Workflow, ask, sub_workflow};
use emitree::agent::{Agent, ChatModel, ChatRequest, Reply, ScriptedModel};
use emitree_middleware::Durable;
use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, Lease, MemoryStore, Post, Posted, Revision, Store, StoreError, StoreId, Take,
    WorkerHead,
};
use emitree_runtime::{BoxRunnable, Interrupt, Result, RunContext, Runnable, runnable_fn};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::ID;
use crate::place::Place;

/// Counts the points of a process, and stops it at one of them.
#[derive(Debug)]
pub(super) struct Killer {
    left: AtomicUsize,
    reached: Notify,
}

impl Killer {
    pub(super) fn at(point: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(point), reached: Notify::new() })
    }

    async fn point(&self) {
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_err() {
            self.reached.notify_one();
            pending::<()>().await;
        }
    }
}

/// The store of one process.
#[derive(Clone, Debug)]
pub(super) struct OfProcess {
    id: StoreId,
    store: Arc<dyn Store>,
    killer: Arc<Killer>,
    /// The time by which the clock of the store is ahead of that of the process.
    ahead: Duration,
}

impl OfProcess {
    pub(super) fn new<S: Store + Clone>(store: &S, killer: &Arc<Killer>) -> Self {
        let ahead = Duration::ZERO;
        Self { id: StoreId::new(), store: Arc::new(store.clone()), killer: Arc::clone(killer), ahead }
    }

    /// Returns a process on a machine whose clock is behind.
    pub(super) fn behind<S: Store + Clone>(store: &S, ahead: Duration) -> Self {
        Self { ahead, ..Self::new(store, &Killer::at(usize::MAX)) }
    }
}

impl Store for OfProcess {
    fn store_id(&self) -> StoreId {
        self.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.store.load(id)
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            self.killer.point().await;
            let revision = self.store.append(append).await?;
            self.killer.point().await;
            Ok(revision)
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        Box::pin(async move {
            self.killer.point().await;
            let posted = self.store.post(id, post).await?;
            self.killer.point().await;
            Ok(posted)
        })
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        self.store.posts(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.store.list(filter)
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.store.take(take)
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        self.store.workers()
    }

    fn now(&self) -> BoxFuture<'_, Result<SystemTime, StoreError>> {
        Box::pin(async { Ok(self.store.now().await? + self.ahead) })
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        self.store.remove(id, after)
    }
}

/// Has an effect outside, for the key of a step.
type Effect = Arc<dyn Fn(&str) + Send + Sync>;

/// Runs a job in its handle.
type Start = Box<dyn Fn(Durable) -> BoxFuture<'static, Result<usize>> + Send + Sync>;
type Step = BoxRunnable<String, usize>;

/// A step with an effect.
fn step(name: &str, effect: &Effect, killer: &Arc<Killer>) -> Arc<Step> {
    let (effect, killer) = (Arc::clone(effect), Arc::clone(killer));
    Arc::new(BoxRunnable::new(runnable_fn(name, move |_: String, ctx: RunContext| {
        let (effect, killer) = (Arc::clone(&effect), Arc::clone(&killer));
        async move {
            let key = ctx.key().expect("a key");
            assert!(key.fence().is_some());
            killer.point().await;
            effect(key.as_str());
            killer.point().await;
            Ok(7)
        }
    })))
}

/// A job, and the check of its effects.
#[derive(Clone, Copy)]
struct Kind {
    job: fn(&Effect, &Arc<Killer>) -> Start,
    check: fn(&[String], killed: bool, again: bool, point: usize),
}

const KINDS: [Kind; 3] = [
    Kind { job: import, check },
    Kind {
        job: saga,
        check: |effects, killed, again, point| {
            check_once(["reserve/hold", "reserve/book", "publish"], effects, killed, again, point);
        },
    },
    Kind {
        job: letter,
        check: |effects, killed, again, point| {
            check_once(["1-write", "3-write", "5-print/1/1-publish"], effects, killed, again, point);
        },
    },
];

/// Returns the start of a job whose input are rows.
fn start(job: BoxRunnable<Vec<String>, usize>) -> Start {
    let job = Arc::new(job);
    Box::new(move |durable| {
        let rows = ["Ada", "Bob", "Eve"].map(str::to_owned).to_vec();
        Box::pin(job.run_shared(rows).middleware(durable))
    })
}

/// An import that writes rows, sleeps, asks, and publishes them.
fn import(effect: &Effect, killer: &Arc<Killer>) -> Start {
    let (write, publish) = (step("write", effect, killer), step("publish", effect, killer));
    start(BoxRunnable::new(runnable_fn("import", move |rows: Vec<String>, ctx: RunContext| {
        let (write, publish) = (Arc::clone(&write), Arc::clone(&publish));
        async move {
            for (n, row) in rows.iter().enumerate() {
                write.run(row.clone()).key(format!("row {n}")).idempotent().await?;
                ctx.publish("rows", &(n + 1))?;
            }
            ctx.sleep("embargo", Duration::from_millis(5)).await?;
            if ctx.ask::<bool>(Interrupt::new("publish", json!({"rows": rows.len()})))? {
                publish.run(String::new()).key("publish").await?;
            }
            Ok(rows.len())
        }
    })))
}

/// A saga that compensates after every error. Its first step asks after an effect, which is a step below.
fn saga(effect: &Effect, killer: &Arc<Killer>) -> Start {
    let effects = step("effect", effect, killer);
    let inner = Arc::clone(&effects);
    let reserve = Arc::new(runnable_fn("reserve", move |_: String, ctx: RunContext| {
        let effects = Arc::clone(&inner);
        async move {
            effects.run(String::new()).key("hold").await?;
            let agreed = ctx.ask::<bool>(Interrupt::new("agree", json!({})));
            effects.run(String::new()).key(if agreed.is_ok() { "book" } else { "release" }).await
        }
    }));
    start(BoxRunnable::new(runnable_fn("saga", move |rows: Vec<String>, ctx: RunContext| {
        let (effects, reserve) = (Arc::clone(&effects), Arc::clone(&reserve));
        async move {
            let reserved = reserve.run(String::new()).key("reserve").await;
            let publishes = ctx.ask::<bool>(Interrupt::new("publish", json!({})));
            let is_done = reserved.is_ok() && publishes.is_ok();
            effects.run(String::new()).key(if is_done { "publish" } else { "refund" }).await?;
            Ok(rows.len())
        }
    })))
}

/// The function of a step that writes its key, and has an effect.
fn written(
    effect: &Effect,
    killer: &Arc<Killer>,
    goto: Goto,
) -> impl for<'a> Fn(&'a mut Vec<String>, &'a RunContext) -> BoxFuture<'a, Result<Goto>> + Send + Sync + use<> {
    let (effect, killer) = (Arc::clone(effect), Arc::clone(killer));
    move |lines, ctx| {
        let (effect, killer, goto) = (Arc::clone(&effect), Arc::clone(&killer), goto.clone());
        Box::pin(async move {
            let key = ctx.key().expect("a key");
            lines.push(key.to_string());
            killer.point().await;
            effect(key.as_str());
            killer.point().await;
            Ok(goto)
        })
    }
}

/// A workflow that writes, asks an agent, writes again, asks a person, and publishes in a workflow below.
fn letter(effect: &Effect, killer: &Arc<Killer>) -> Start {
    let has_effect = |goto| written(effect, killer, goto);
    let script = ScriptedModel::by("test", |request: &ChatRequest| {
        let text = request.messages.last().map(|message| message.text()).unwrap_or_default();
        Reply::text(if text == "1" { "Too short." } else { "ok" })
    });
    let critic = Agent::builder("critic", ChatModel::new(script).expect("a model")).build().expect("an agent");
    let print = Workflow::builder("print").step("publish", has_effect(Goto::End)).build().expect("a workflow");
    let flow = Workflow::builder("letter")
        .step("write", has_effect(Goto::Next))
        .step(
            "check",
            ask(
                &critic,
                |lines: &Vec<String>| lines.len().to_string(),
                |_, answer| if answer.text() == "ok" { Goto::To("print".into()) } else { Goto::Prev },
            ),
        )
        .step(
            "print",
            sub_workflow(&print, Vec::clone, |lines: &mut Vec<String>, done| {
                *lines = done.state;
                Goto::Next
            }),
        )
        .step("agree", |_, ctx| {
            Box::pin(async move {
                ctx.ask::<bool>(Interrupt::new("agree", json!({})))?;
                Ok(Goto::End)
            })
        })
        .build();
    let flow = Arc::new(flow.expect("a workflow"));
    Box::new(move |durable| {
        let run = flow.run_shared(Vec::new()).middleware(durable);
        Box::pin(async move { Ok(run.await?.state.len()) })
    })
}

/// Returns the output of a step for its input: the state and what follows, for a step of the workflow.
fn output(input: &Value) -> Value {
    let Some(lines) = input.as_array() else { return json!(7) };
    let written = ["1-write", "3-write", "5-print/1/1-publish"].iter().skip(lines.len()).take(1);
    let state: Vec<_> = lines.iter().cloned().chain(written.map(|key| json!(format!("{ID}/{key}")))).collect();
    json!({"state": state, "next": if state.len() < 3 { "next" } else { "end" }})
}

/// Runs the job in one process until it ends, and answers its questions.
async fn process(kind: Kind, store: &OfProcess, effect: &Effect, again: bool) -> Result<usize> {
    let job = Durable::new(store, ID).lease(Lease::new().time(Duration::from_millis(20)));
    let work = (kind.job)(effect, &store.killer);
    loop {
        match work(job.clone()).await {
            Err(error) if error.is_interrupted() => {}
            Err(error) => match error.find::<StoreError>() {
                // The process before was killed.
                Some(StoreError::Held { holder, .. }) => {
                    let left = holder.until.duration_since(SystemTime::now()).unwrap_or_default();
                    tokio::time::sleep(left).await;
                }
                _ => return Err(error),
            },
            ended => {
                let published = job.published().await?;
                assert!(published.get("rows").is_none_or(|rows| *rows == json!(3)), "{published:?}");
                return ended;
            }
        }
        for question in job.questions().await? {
            let answer = match (&*question.kind, again) {
                ("publish" | "agree", _) => json!(true),
                ("durable.began", true) => json!("again"),
                ("durable.began", false) => json!({"output": output(&question.data["input"])}),
                (other, _) => panic!("an unknown question: {other}"),
            };
            job.answer(&question.id, answer).await?;
        }
    }
}

/// Checks the effects of a job that was killed at most once.
fn check(effects: &[String], killed: bool, again: bool, point: usize) {
    let mut by_key = BTreeMap::<_, usize>::new();
    effects.iter().for_each(|key| *by_key.entry(&**key).or_default() += 1);
    let rows = [0, 1, 2].map(|n| format!("{ID}/row {n}"));
    assert!(rows.iter().all(|key| by_key.contains_key(&**key)), "{by_key:?}, killed at {point}");
    let repeated = effects.len() - by_key.len();
    assert!(repeated <= usize::from(killed), "{by_key:?}, killed at {point}");
    // The person who answers with an output knows that the effect is there.
    let published = by_key.get(&*format!("{ID}/publish")).copied().unwrap_or_default();
    assert!(published <= if again { 2 } else { 1 }, "{by_key:?}, killed at {point}");
    assert!(killed || published == 1, "{by_key:?}");
}

/// Checks that a job has had these effects, each once, and no other, such as a compensation.
fn check_once(keys: [&str; 3], effects: &[String], killed: bool, again: bool, point: usize) {
    let counts = keys.map(|key| effects.iter().filter(|effect| **effect == format!("{ID}/{key}")).count());
    assert_eq!(counts.iter().sum::<usize>(), effects.len(), "{effects:?}, killed at {point}");
    // A person who answers with an output knows that the effects are there.
    let [least, most] = if again { [3, 4] } else { [0, 3] };
    let expected = if killed { least..=most } else { 3..=3 };
    assert!(expected.contains(&effects.len()), "{effects:?}, killed at {point}");
    assert!(again || counts.iter().all(|count| *count <= 1), "{effects:?}, killed at {point}");
}

/// M13
#[test]
fn a_job_that_is_killed_at_each_point_has_each_effect_once() {
    for (kind, again) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let mut point = 0;
        loop {
            let (store, effects) = (MemoryStore::new(), Arc::<Mutex<Vec<_>>>::default());
            let effect: Effect = {
                let effects = Arc::clone(&effects);
                Arc::new(move |key| effects.lock().expect("a lock").push(key.to_owned()))
            };
            let live = |killer: Arc<Killer>| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
                let store = OfProcess::new(&store, &killer);
                runtime.block_on(async {
                    tokio::select! {
                        () = killer.reached.notified() => None,
                        ended = process(kind, &store, &effect, again) => Some(ended),
                    }
                })
            };
            let ended = live(Killer::at(point));
            if ended.is_none() {
                let ended = live(Killer::at(usize::MAX)).expect("not killed");
                assert_eq!(ended.expect("an output"), 3, "killed at {point}");
            }
            (kind.check)(&effects.lock().expect("a lock"), ended.is_none(), again, point);
            if ended.is_some() {
                assert!(point > 20, "{point}");
                break;
            }
            point += 1;
        }
    }
}

const FOLDER: &str = "EMITREE_TEST_FOLDER";
const PLACE: &str = "EMITREE_TEST_PLACE";
const POINT: &str = "EMITREE_TEST_POINT";
const AGAIN: &str = "EMITREE_TEST_AGAIN";
const KIND: &str = "EMITREE_TEST_KIND";

#[tokio::test]
#[ignore = "the process that the test starts"]
async fn run_a_job_to_a_point() {
    let (Ok(folder), Some(place)) = (std::env::var(FOLDER), Place::of_process(PLACE)) else { return };
    let number = |name: &str| std::env::var(name).expect("a number").parse::<usize>().expect("a number");
    let folder = Path::new(&folder);
    let store = place.open().await;
    let file = OpenOptions::new().create(true).append(true).open(folder.join("effects")).expect("a file");
    let file = Mutex::new(file);
    let effect: Effect = Arc::new(move |key| {
        let mut file: std::sync::MutexGuard<'_, File> = file.lock().expect("a lock");
        writeln!(file, "{key}").and_then(|()| file.sync_all()).expect("written");
    });
    let killer = Killer::at(number(POINT));
    let store = OfProcess::new(&store, &killer);
    let line = tokio::select! {
        () = killer.reached.notified() => "at the point".to_owned(),
        ended = process(KINDS[number(KIND)], &store, &effect, number(AGAIN) == 1) => format!("ended {ended:?}"),
    };
    println!("{line}");
    std::io::stdout().flush().expect("written");
    pending::<()>().await;
}

/// Starts a process that runs the job to a point, or to its end, and kills it there.
fn kill_at(folder: &Path, place: &Place, kind: usize, point: usize, again: bool) -> String {
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "--nocapture", "--ignored", "durable::kill::run_a_job_to_a_point"])
        .env(FOLDER, folder)
        .env(PLACE, place.as_str())
        .env(KIND, kind.to_string())
        .env(POINT, point.to_string())
        .env(AGAIN, usize::from(again).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut lines = BufReader::new(child.stdout.take().expect("an output")).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("at the point") || line.starts_with("ended"));
    child.kill().expect("killed");
    child.wait().expect("an end");
    line.expect("the process reaches the point, or ends")
}

/// Kills a job at each `step`th of its points, from a first one on, and checks its effects.
fn kill_at_points(kind: usize, again: bool, mut point: usize, step: usize, place: impl Fn(&Path) -> Option<Place>) {
    loop {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(place) = place(folder.path()) else { return };
        let ended = kill_at(folder.path(), &place, kind, point, again);
        let killed = ended == "at the point";
        let ended = if killed { kill_at(folder.path(), &place, kind, usize::MAX, again) } else { ended };
        assert_eq!(ended, "ended Ok(3)", "killed at {point}");
        let effects = fs::read_to_string(folder.path().join("effects")).expect("effects");
        (KINDS[kind].check)(&effects.lines().map(str::to_owned).collect::<Vec<_>>(), killed, again, point);
        if !killed {
            assert!(point > 20, "{point}");
            break;
        }
        point += step;
    }
}

/// M13
#[test]
fn a_job_in_a_file_whose_process_is_killed_at_each_point_has_each_effect_once() {
    // One answer for the even points, and the other for the odd ones, because each takes two processes.
    let cases = [(0, false, 0), (0, true, 1), (1, false, 1), (1, true, 0), (2, false, 0), (2, true, 3)];
    for (kind, again, first) in cases {
        kill_at_points(kind, again, first, if kind == 2 { 6 } else { 2 }, |folder| Some(Place::file(folder)));
    }
}

/// M13, F8
#[test]
fn a_job_on_a_server_whose_process_is_killed_has_each_effect_once() {
    for (kind, again, first) in [(0, false, 0), (0, true, 3), (1, false, 1), (1, true, 4), (2, false, 0)] {
        kill_at_points(kind, again, first, 7, |_| Place::server());
    }
}
