//! M1, M2: an executor can be built from kinds of work and layers: credentials are added to the environment, usage is
//! metered, and jobs without a sandbox are denied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::Recorder;
use emitree_runtime::{Error, Guard, Observe, Op, Result, RunContext, Runnable, Stack, Transform, runnable_fn};

/// The kind of work that executes a command in an environment.
struct Execute;

impl Op for Execute {
    type In = Job;
    type Out = Done;

    fn name() -> &'static str {
        "execute"
    }
}

#[derive(Clone, Debug)]
struct Job {
    command: String,
    environment: Environment,
}

#[derive(Clone, Debug, Default)]
struct Environment {
    sandboxed: bool,
    variables: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Done {
    output: String,
    cost: u64,
}

/// Adds up the cost of all jobs. Jobs that are denied or fail cost nothing.
#[derive(Debug)]
struct Meter(Arc<AtomicU64>, Recorder);

impl Observe<Execute> for Meter {
    type Memo = ();

    fn before(&self, job: &Job, _: &RunContext) {
        self.1.note(format!("meter {} with {} variables", job.command, job.environment.variables.len()));
    }

    fn after(&self, (): (), result: &Result<Done>, _: &RunContext) {
        let cost = result.as_ref().map_or(0, |done| done.cost);
        self.0.fetch_add(cost, Ordering::Relaxed);
        self.1.note(format!("meter {cost}"));
    }
}

/// Adds a token to the environment, and removes it from the output.
#[derive(Debug)]
struct Credentials(&'static str, Recorder);

impl Transform<Execute> for Credentials {
    async fn input(&self, job: &Job, _: &RunContext) -> Result<Option<Job>> {
        self.1.note("inject");
        let mut job = job.clone();
        job.environment.variables.insert("TOKEN".to_owned(), self.0.to_owned());
        Ok(Some(job))
    }

    async fn output(&self, done: Done, _: &RunContext) -> Result<Done> {
        self.1.note("redact");
        Ok(Done { output: done.output.replace(self.0, "***"), ..done })
    }
}

/// Denies jobs without a sandbox.
#[derive(Debug)]
struct Sandboxed(Recorder);

impl Guard<Execute> for Sandboxed {
    async fn check_input(&self, job: &Job, _: &RunContext) -> Result<()> {
        self.0.note(format!("guard sees {:?}", job.environment.variables.keys().collect::<Vec<_>>()));
        if job.environment.sandboxed { Ok(()) } else { Err(Error::new("not sandboxed")) }
    }

    fn name(&self) -> &str {
        "sandboxed"
    }
}

async fn execute(sandboxed: bool) -> (Result<String>, u64, Recorder) {
    let (recorder, spent) = (Recorder::new(), Arc::new(AtomicU64::new(0)));
    let stack = Stack::<Execute>::builder()
        .guard(Sandboxed(recorder.clone()))
        .transform(Credentials("s3cret", recorder.clone()))
        .observe(Meter(Arc::clone(&spent), recorder.clone()))
        .build();
    let notes = recorder.clone();
    let run = runnable_fn("executor", move |sandboxed: bool, ctx: RunContext| {
        let (stack, notes) = (stack.clone(), notes.clone());
        let environment = Environment { sandboxed, ..Environment::default() };
        let job = Job { command: "deploy".to_owned(), environment };
        async move { Ok(stack.call_with(&job, &ctx, &notes, |notes, job, _| Box::pin(work(notes, job))).await?.output) }
    });
    let result = run.run(sandboxed).await;
    (result, spent.load(Ordering::Relaxed), recorder)
}

async fn work(notes: &Recorder, job: &Job) -> Result<Done> {
    notes.note(format!("work {}", job.command));
    Ok(Done { output: format!("{} with {}", job.command, job.environment.variables["TOKEN"]), cost: 3 })
}

// M2
#[tokio::test]
async fn a_job_is_metered_gets_its_credentials_is_checked_and_executed() {
    let (result, spent, recorder) = execute(true).await;
    assert_eq!((result.expect("it is sandboxed").as_str(), spent), ("deploy with ***", 3));
    recorder.expect([
        "meter deploy with 0 variables",
        "inject",
        r#"guard sees ["TOKEN"]"#,
        "work deploy",
        "redact",
        "meter 3",
    ]);
}

// M2, M5
#[tokio::test]
async fn a_job_without_a_sandbox_is_denied_and_costs_nothing() {
    let (result, spent, recorder) = execute(false).await;
    let error = result.expect_err("it is not sandboxed");
    assert!(error.explain().starts_with("denied by sandboxed: not sandboxed"), "{error:?}");
    assert_eq!(spent, 0);
    recorder.expect(["meter deploy with 0 variables", "inject", r#"guard sees ["TOKEN"]"#, "meter 0"]);
}
