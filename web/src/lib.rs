//! An agent's run as the streams that chat libraries of browsers read.
//!
//! Two protocols are spoken: **AG-UI 1.0** (`CopilotKit` and others), and the **UI message stream** of the AI SDK
//! (`useChat`). Both show texts, reasoning, tool calls, approvals, questions and errors, and a page that is loaded again
//! in the middle of a run reads on.
//!
//! ```
//! use axum::Router;
//! use emitree_agent::{Agent, ChatModel, ScriptedModel};
//! use emitree_middleware::store::MemoryStore;
//! use emitree_web::Chat;
//!
//! # fn main() -> emitree_runtime::Result<()> {
//! let agent = Agent::builder("guide", ChatModel::new(ScriptedModel::new("test").text("Everest."))?).build()?;
//! let chat = Chat::new(agent, MemoryStore::new()).public();
//! let app: Router = Router::new().nest("/agent", chat.ag_ui()).nest("/api/chat", chat.ui_messages());
//! # Ok(())
//! # }
//! ```
//!
//! # Every stream ends
//!
//! Clients take a stream that simply ends for a success with half a text. So each stream ends with its last event,
//! however its run ends: an answer, a question, an abort, a timeout, a denial, a failure or a panic. The messages of
//! denials and halts are shown; any other error is logged, and shown as "internal error".
//!
//! # What is taken back
//!
//! Tokens reach a page before the guards have seen the whole reply. If a guard withholds the reply, or an attempt is
//! discarded, the page gets the messages that hold: as `MESSAGES_SNAPSHOT`, or as `reset-step` with the parts that stay.

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc
    )
)]

mod chat;
mod encode;
mod events;
mod fact;
mod fold;
mod live;
mod past;
mod question;
mod serve;
mod step;

pub use self::chat::{Chat, NewChat};
pub use self::events::{Collected, Events, events};
