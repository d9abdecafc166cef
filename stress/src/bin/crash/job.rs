//! A job: steps with effects, a step that asks, a sleep, and an agent with a session of its own.

use std::process;
use std::sync::Arc;
use std::time::Duration;

use emitree::error::Interrupt;
use emitree::middleware::Durable;
use emitree::middleware::durable::AlreadyAnswered;
use emitree::middleware::store::Lease;
use emitree::runnable::BoxRunnable;
use emitree::{Result, RunContext, Runnable, runnable_fn};
use serde_json::{Value, json};

use crate::agents::clerk;
use crate::log::Log;
use crate::points::Points;
use crate::process::LEASE;
use crate::target::Target;

pub(crate) const ID: &str = "job";
/// The output that a person gives a step whose process may still be alive.
const LOST: &str = "it may have had effects";
/// The time that the job sleeps.
const SLEEP: Duration = Duration::from_millis(10);

type Step = Arc<BoxRunnable<String, String>>;

/// A step with an effect.
fn step(target: &Target, log: &Arc<Log>, is_idempotent: bool) -> Step {
    let (target, log) = (target.clone(), Arc::clone(log));
    Arc::new(BoxRunnable::new(runnable_fn("step", move |effect: String, ctx: RunContext| {
        let (target, log) = (target.clone(), Arc::clone(&log));
        async move { target.work(&log, effect, &ctx, is_idempotent).await }
    })))
}

/// A step that asks which process answers.
fn question() -> Step {
    Arc::new(BoxRunnable::new(runnable_fn("question", |name: String, ctx: RunContext| async move {
        ctx.ask::<String>(Interrupt::new("who", json!({"name": name})))
    })))
}

/// A job whose output has the outputs of its steps.
fn job(target: &Target, log: &Arc<Log>) -> Result<BoxRunnable<(), Vec<String>>> {
    let (plain, idempotent, question) = (step(target, log, false), step(target, log, true), question());
    let clerk = Arc::new(clerk(target, log)?);
    let log = Arc::clone(log);
    Ok(BoxRunnable::new(runnable_fn("job", move |(): (), ctx: RunContext| {
        log.add(&["job"]);
        let (plain, idempotent, question) = (Arc::clone(&plain), Arc::clone(&idempotent), Arc::clone(&question));
        let clerk = Arc::clone(&clerk);
        async move {
            let charge = plain.run("charge j".to_owned()).key("charge").await?;
            let who = question.run("k".to_owned()).key("who").await?;
            ctx.sleep("embargo", SLEEP).await?;
            let note = idempotent.run("note l".to_owned()).key("note").idempotent().await?;
            let clerk = clerk.ask("Work.").key("clerk").await?.text();
            let ship = plain.run("ship n".to_owned()).key("ship").await?;
            Ok(vec![charge, who, note, clerk, ship])
        }
    })))
}

/// Goes on with the job: answers its questions, and runs it.
pub(crate) async fn go_on(store: &Points, target: &Target, log: &Arc<Log>) -> Result<()> {
    let durable = Durable::new(store, ID).lease(Lease::new().time(LEASE));
    for question in durable.questions().await? {
        let answer = if question.kind == "durable.began" {
            after_begun(&question, target, log)?
        } else {
            json!(process::id().to_string())
        };
        match durable.answer(&question.id, answer.clone()).await {
            Ok(()) => log.add(&["answered", &question.id, &answer.to_string()]),
            // Another process was first.
            Err(error) if error.find::<AlreadyAnswered>().is_some() => {}
            Err(error) if error.to_string().contains("the job has no open question") => {}
            Err(error) => return Err(error),
        }
    }
    job(target, log)?.run(()).middleware(durable).await.map(drop)
}

/// Decides on a step that had begun, as a careful person would: it is executed again only if all other processes have
/// ended and its effect has not happened.
fn after_begun(question: &Interrupt, target: &Target, log: &Log) -> Result<Value> {
    if log.other_lives()? {
        return Ok(json!({"output": LOST}));
    }
    let key = question.data["key"].as_str().unwrap_or_default();
    if target.has(key)? {
        return Ok(json!({"output": question.data["input"]}));
    }
    log.add(&["again", key]);
    Ok(json!("again"))
}
