//! A page that talks to an agent, with the AI SDK's protocol and with AG-UI side by side. It needs no build step.
//!
//! ```text
//! cargo run -p emitree-web --example chat_page               prints the address of the page
//! cargo run -p emitree-web --example chat_page -- --port 8080
//! ```
//!
//! The model is scripted: it tells a story, and pays or paints if it is asked to.

use std::time::Duration;

use axum::Router;
use axum::response::Html;
use axum::routing::get;
use emitree_agent::{Agent, ChatModel, ChatRequest, Reply, Role, ScriptedModel, tool_fn};
use emitree_middleware::Runs;
use emitree_middleware::approval::Approval;
use emitree_middleware::store::MemoryStore;
use emitree_runtime::{Interrupt, Result, RunContext, for_tree};
use emitree_web::Chat;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;

#[derive(Deserialize, JsonSchema)]
struct Pay {
    to: String,
    amount: u32,
}

#[derive(Deserialize, JsonSchema)]
struct Paint {
    thing: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port = match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => 0,
        (Some("--port"), Some(port)) => port.parse::<u16>()?,
        _ => {
            println!("cargo run -p emitree-web --example chat_page -- [--port PORT]");
            return Ok(());
        }
    };
    let chat = Chat::new(agent()?, MemoryStore::new()).public().keep_running();
    let app = Router::new()
        .route("/", get(|| async { Html(include_str!("page.html")) }))
        .nest("/api/chat", chat.ui_messages())
        .nest("/agent", chat.ag_ui());
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

fn agent() -> Result<Agent> {
    let pay =
        tool_fn(
            "pay",
            "Pays",
            |Pay { to, amount }: Pay, _: RunContext| async move { Ok(format!("paid {to} {amount}")) },
        )?;
    let paint = tool_fn("paint", "Paints", |Paint { thing }: Paint, ctx: RunContext| async move {
        let question = json!({"message": format!("Which colour for {thing}?"), "choices": ["red", "blue"]});
        let colour: String = ctx.ask(Interrupt::new("colour", question))?;
        Ok(format!("painted {thing} {colour}"))
    })?;
    Agent::builder("guide", ChatModel::new(ScriptedModel::by("scripted", reply))?)
        .tool(pay.idempotent())
        .tool(paint.idempotent())
        .middleware(for_tree(Approval::by_interrupt().runs(Runs::named("pay"))))
        .build()
}

/// Answers the last message.
fn reply(request: &ChatRequest) -> Reply {
    let Some(last) = request.messages.last() else { return Reply::text("") };
    let between = Duration::from_millis(60);
    if last.role == Role::Tool {
        let results: Vec<_> = last.tool_results().map(|result| result.response.to_string()).collect();
        return Reply::text(format!("Done: {}.", results.join(", "))).in_pieces(6).slow(between, between);
    }
    let text = last.text().to_lowercase();
    if text.contains("pay") {
        return Reply::calls([("pay", json!({"to": "Ada", "amount": 5}))]);
    }
    if text.contains("paint") {
        return Reply::calls([("paint", json!({"thing": "the door"}))]);
    }
    let story: Vec<_> = (1..=40).map(|day| format!("On day {day} the climbers went on.")).collect();
    let story =
        if text.contains("story") { story.join(" ") } else { "Ask me to pay, to paint, or for a story.".to_owned() };
    Reply::text(story).in_pieces(6).slow(between, between)
}
