//! Writes, checks and publishes an article in the steps of a workflow.
//!
//! ```text
//! cargo run --example workflow
//! cargo run --example workflow -- "Owls"
//! ```
//!
//! The step `check` asks an agent, whose scripted model finds two faults. The step `publish` is a workflow of its own,
//! whose server is busy at first: a retry applies to the step `send` by its name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree::agent::workflow::{
    Goto, StepFailure, StepStart, StepSuccess, Workflow, WorkflowOutput, ask, sub_workflow,
};
use emitree::agent::{Agent, ChatModel, ChatRequest, Reply, ScriptedModel};
use emitree::middleware::{Retry, Runs};
use emitree::{Error, Result, Runnable, for_tree};
use serde::{Deserialize, Serialize};

#[path = "shared/help.rs"]
mod help;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Article {
    subject: String,
    text: String,
    notes: Vec<String>,
    address: Option<String>,
}

/// An article on its way to the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Page {
    html: String,
    address: Option<String>,
}

/// Finds a fault as a model would.
fn critic(request: &ChatRequest) -> Reply {
    let text = request.messages.first().map(|message| message.text()).unwrap_or_default();
    Reply::text(match text.matches('.').count() {
        1 => "Say why.",
        2 => "Give an example.",
        _ => "ok",
    })
}

/// A workflow that makes a page, and sends it to a server that is busy at first.
fn publishing() -> Result<Workflow<Page>> {
    let was_busy = Arc::new(AtomicBool::new(false));
    Workflow::builder("publishing")
        .step("render", |page: &mut Page, _| {
            Box::pin(async move {
                page.html = format!("<p>{}</p>", page.html);
                Ok(Goto::Next)
            })
        })
        .step("send", move |page: &mut Page, _| {
            let is_busy = !was_busy.swap(true, Ordering::Relaxed);
            Box::pin(async move {
                if is_busy {
                    println!("   ... the server is busy");
                    return Err(Error::new("the server is busy").retryable(true));
                }
                page.address = Some(format!("/articles/{}", page.html.len()));
                Ok(Goto::End)
            })
        })
        .build()
}

fn reviewing(critic: &Agent) -> Result<Workflow<Article>> {
    Workflow::builder("review")
        .step("draft", |article: &mut Article, _| {
            Box::pin(async move {
                let sentence = match article.notes.last().map(String::as_str) {
                    None => format!("{} are quiet.", article.subject),
                    Some("Say why.") => " Their feathers have soft edges.".to_owned(),
                    Some(_) => " For example, a mouse does not notice them.".to_owned(),
                };
                article.text.push_str(&sentence);
                Ok(Goto::Next)
            })
        })
        .step(
            "check",
            ask(
                critic,
                |article: &Article| article.text.clone(),
                |article: &mut Article, answer| {
                    if answer.text() == "ok" {
                        return Goto::Next;
                    }
                    article.notes.push(answer.text());
                    Goto::To("draft".into())
                },
            ),
        )
        .step(
            "publish",
            sub_workflow(
                &publishing()?,
                |article: &Article| Page { html: article.text.clone(), address: None },
                |article: &mut Article, done: WorkflowOutput<Page>| {
                    article.address = done.state.address;
                    Goto::End
                },
            ),
        )
        .max_steps(20)
        .build()
}

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("workflow.rs")) {
        return Ok(());
    }
    let subject = std::env::args().nth(1).unwrap_or_else(|| "Owls".to_owned());
    let critic = Agent::builder("critic", ChatModel::new(ScriptedModel::by("scripted", critic))?).build()?;
    let flow = reviewing(&critic)?;
    let run = flow
        .run(Article { subject, ..Article::default() })
        .middleware(for_tree(Runs::named("send").only(Retry::new())))
        .observe("start", |start: &StepStart, _| println!("{}. {}", start.number, start.step))
        .observe("success", |success: &StepSuccess<Article>, _| {
            if let Some(note) = success.state.notes.last().filter(|_| success.next.as_deref() == Some("draft")) {
                println!("   the critic says: {note}");
            }
        })
        .observe("error", |failure: &StepFailure<Article>, _| println!("   failed: {}", failure.error.message));
    let done = run.await?;
    println!("{}", done.state.text);
    println!("-- published at {}, after {} steps", done.state.address.unwrap_or_default(), done.steps.len());
    Ok(())
}
