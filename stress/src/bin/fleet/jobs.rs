//! The jobs: what they are, and what they do.

use std::path::Path;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use emitree::error::Interrupt;
use emitree::{Result, RunContext, Runnable, runnable_fn};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::sleep;

use crate::effects::{Deed, Effects};

pub(crate) const QUEUE: &str = "fleet";
/// The kind of the question of a job.
pub(crate) const APPROVE: &str = "approve";
/// The time that a step works before its effect, and after it.
const WORK: Duration = Duration::from_millis(30);
/// The time after which a poisonous job aborts its process, so that its neighbours get on.
const POISON: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Plain,
    /// It asks for an approval at its end.
    Asks,
    /// It aborts its process each time.
    Poison,
}

/// The input of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: String,
    pub(crate) kind: Kind,
    /// The time that it sleeps between its steps, in milliseconds.
    pub(crate) sleep: u64,
    /// The time that its idempotent step takes, in milliseconds.
    pub(crate) note: u64,
}

/// The output of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) charge: String,
    pub(crate) note: String,
    pub(crate) approved_by: Option<String>,
}

/// Returns the output of the plain step of a job, or of the call for a message.
pub(crate) fn charged(id: &str) -> String {
    format!("charged {id}")
}

/// Returns the output of the idempotent step of a job.
pub(crate) fn noted(id: &str) -> String {
    format!("noted {id}")
}

/// Creates the jobs. Every third asks, and some are poisonous.
pub(crate) fn orders(jobs: usize, random: &mut fastrand::Rng) -> Vec<Order> {
    let poison_every = (jobs / 3).clamp(1, 150);
    let kind = |n: usize| match n {
        _ if n % poison_every == poison_every / 2 => Kind::Poison,
        _ if n.is_multiple_of(3) => Kind::Asks,
        _ => Kind::Plain,
    };
    (0..jobs)
        .map(|n| Order {
            id: format!("job-{n:04}"),
            kind: kind(n),
            // Some go back to their queue meanwhile.
            sleep: if random.u8(..8) == 0 { random.u64(2_000..3_000) } else { random.u64(50..800) },
            note: random.u64(0..30),
        })
        .collect()
}

/// Has the effect of a plain step, or of a call, and returns its output.
pub(crate) async fn charge(effects: &Effects, id: &str) -> Result<String> {
    effects.add(Deed::Call, id)?;
    sleep(WORK).await;
    effects.add(Deed::Charge, id)?;
    sleep(WORK).await;
    Ok(charged(id))
}

pub(crate) fn job(folder: &Path) -> impl Runnable<Input = Order, Output = Done> + 'static {
    let effects = Effects::new(folder);
    let charges = Arc::new(runnable_fn("charge", {
        let effects = effects.clone();
        move |id: String, _: RunContext| {
            let effects = effects.clone();
            async move { charge(&effects, &id).await }
        }
    }));
    let note = Arc::new(runnable_fn("note", {
        let effects = effects.clone();
        move |(id, time): (String, u64), _: RunContext| {
            let effects = effects.clone();
            async move {
                sleep(Duration::from_millis(time)).await;
                effects.add(Deed::Note, &id)?;
                sleep(WORK).await;
                Ok(noted(&id))
            }
        }
    }));
    runnable_fn("job", move |order: Order, ctx: RunContext| {
        let effects = effects.clone();
        let charges = Arc::clone(&charges);
        let note = Arc::clone(&note);
        async move {
            effects.add(Deed::Run, &order.id)?;
            if order.kind == Kind::Poison {
                sleep(POISON).await;
                process::abort();
            }
            let charge = charges.run(order.id.clone()).key("charge").await?;
            ctx.sleep("embargo", Duration::from_millis(order.sleep)).await?;
            let note = note.run((order.id.clone(), order.note)).key("note").idempotent().await?;
            let approved_by = match order.kind {
                Kind::Asks => Some(ctx.ask::<String>(Interrupt::new(APPROVE, json!({"job": order.id})))?),
                Kind::Plain | Kind::Poison => None,
            };
            Ok(Done { charge, note, approved_by })
        }
    })
}
