//! An agent that books a trip: tools at the same time, a retry, a denial and a question.
//!
//! ```text
//! cargo run --example trip -- trip.jsonl
//! ```
//!
//! It prints the first run and records all events to the file; `emitree-view trip.jsonl` shows them in the browser. A
//! scripted model plays the model. The flights are found in the second attempt, a guard denies the dear one, and a
//! person is asked about the other: the first run ends with the question, and a second goes on with the answer.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use emitree::agent::{Agent, AgentRun, ChatModel, Reply, ScriptedModel, Session, Usage, tool_fn};
use emitree::middleware::approval::{Approval, Decision};
use emitree::middleware::{Retry, Runs, Trajectory, map_input};
use emitree::sinks::JsonlFile;
use emitree::{Emitter, Error, Result, RunContext, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[path = "shared/help.rs"]
mod help;

#[derive(Deserialize, JsonSchema)]
struct City {
    city: String,
}

#[derive(Deserialize, JsonSchema)]
struct Flight {
    flight: String,
    price: u32,
}

/// Works for so many milliseconds.
async fn work(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// The answers of the model, each after a while and with the tokens of the call.
fn script() -> ScriptedModel {
    let city = json!({"city": "Lima"});
    let answers = [
        Reply::calls(["weather", "flights", "hotels"].map(|tool| (tool, city.clone()))),
        Reply::calls([("book", json!({"flight": "LA 2695", "price": 740}))]),
        Reply::calls([("book", json!({"flight": "IB 6659", "price": 420}))]),
        Reply::text("You fly to Lima with IB 6659, and stay at the Hotel B."),
    ];
    let mut script = ScriptedModel::new("scripted");
    for (reply, tokens) in answers.into_iter().zip([310, 540, 610, 680]) {
        script = script.reply(reply.usage(Usage::new(tokens, 40)).slow(Duration::from_millis(tokens), Duration::ZERO));
    }
    script
}

fn traveller() -> Result<Agent> {
    let weather = tool_fn("weather", "The weather", |City { city }: City, _: RunContext| async move {
        work(150).await;
        Ok(format!("{city}: drizzle"))
    })?;
    let searches = AtomicU32::new(0);
    let flights = tool_fn("flights", "Finds flights", move |City { city }: City, _: RunContext| {
        let search = searches.fetch_add(1, Ordering::Relaxed);
        async move {
            work(250).await;
            if search == 0 {
                return Err(Error::new("the server is busy").retryable(true));
            }
            Ok(format!("{city}: LA 2695 for 740, IB 6659 for 420"))
        }
    })?;
    let hotels = tool_fn("hotels", "Finds hotels", |City { city }: City, _: RunContext| async move {
        work(400).await;
        Ok(format!("{city}: Hotel B"))
    })?;
    let book = tool_fn("book", "Books a flight", |Flight { flight, price }: Flight, _: RunContext| async move {
        work(300).await;
        Ok(format!("{flight} is booked for {price}"))
    })?;

    let retry = Retry::builder().base_delay(Duration::from_millis(200)).without_jitter().build()?;
    let cheap = map_input(|flight: &mut Value, _: &RunContext| {
        if flight["price"].as_u64() > Some(500) { Err(Error::denied("policy", "at most 500 a flight")) } else { Ok(()) }
    });
    Agent::builder("traveller", ChatModel::new(script())?)
        .tool(weather)
        .tool(flights)
        .tool(hotels)
        .tool(book)
        .middleware(for_tree(Runs::named("flights").only(retry)))
        .middleware(for_tree(Runs::named("book").only(cheap.guard())))
        .middleware(for_tree(Approval::by_interrupt().runs(Runs::named("book"))))
        .build()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("trip.rs")) {
        return Ok(());
    }
    let path = std::env::args().nth(1).unwrap_or_else(|| "trip.jsonl".to_owned());
    std::fs::write(&path, "")?; // a recorder appends
    let recording = Emitter::root().pipe_to(JsonlFile::open(&path)?)?;

    let (agent, session) = (traveller()?, Session::with_id("trip-7")?);
    let run = agent.ask("Book me a trip to Lima.").session(&session).middleware(Trajectory::stdout());
    if run.await.is_ok() {
        return Err(Error::new("nobody was asked"));
    }
    // Minutes or days later, perhaps in another process.
    for question in session.questions() {
        println!("-- {} is approved", question.data["input"]);
        session.answer(&question.id, Decision::Approve).await?;
    }
    println!("-- {}", agent.resume(&session).await?.text());
    recording.close(Duration::from_secs(5)).await.complete()?;
    Ok(())
}
