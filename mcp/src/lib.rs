//! The tools of MCP servers, as tools of agents.
//!
//! ```no_run
//! use emitree_agent::{Agent, ChatModel, ScriptedModel};
//! use emitree_mcp::McpServer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> emitree_runtime::Result<()> {
//! # let model = ChatModel::new(ScriptedModel::new("test"))?;
//! let bank = McpServer::command("bank-mcp", ["--stdio"]).env("LANG", "C").connect().await?;
//! let agent = Agent::builder("clerk", model)
//!     .with(bank.tools().only(["balance", "transfer"]).prefix("bank_").ask_before(["transfer"]))
//!     .build()?;
//! agent.ask("How much is on my account?").await?;
//! bank.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Concepts
//!
//! - An [`McpServer`] is a handle of a server: a program that this process starts, or an address (feature `http`). Its
//!   process is started again by a call after it has ended.
//! - An [`Era`] of the protocol is found by asking. In the *old* era, to 2025-11-25, a connection begins with a handshake.
//!   In the *new* one, from 2026-07-28, there is none.
//! - [`McpServer::tools`] are a middleware for agents. Each call is a run of the kind `Tool`, so guards, budgets,
//!   approvals and redaction hold over it.
//! - Servers are strangers: [`Limits`] bound what they send, hidden characters are removed from their tools, and their
//!   processes see only named variables of the environment.
//!
//! # Questions of servers
//!
//! A server may ask in the middle of a call. Without a function that answers at once
//! ([`elicit`](McpServerBuilder::elicit)), the question is kept with the agent's session: the run is interrupted with a
//! question of the kind `mcp.elicitation`, and its process may end. [`Session::answer`](emitree_agent::Session::answer)
//! takes an [`ElicitAnswer`], and [`Agent::resume`](emitree_agent::Agent::resume) goes on with the call. A wrong answer
//! opens the question again, before anything is sent.
//!
//! The data of the question is `{"server", "tool", "requests": {KEY: {"mode", "message", "schema" or "url"}}}`, with
//! `round` from the second round on. In the new era, the server's state is kept with the call. In the old era, the call
//! is cancelled, and made again with the answer, so only [idempotent](McpTools::idempotent) tools can wait; others get
//! `decline`.

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

mod call;
mod child;
mod connection;
mod error;
#[cfg(feature = "http")]
mod http;
mod limits;
mod server;
mod text;
mod tools;

pub mod events;

pub use self::call::question::{ElicitAnswer, ElicitQuestion};
pub use self::connection::era::Era;
pub use self::error::{Exit, Fault, McpError};
#[cfg(feature = "http")]
pub use self::http::Http;
pub use self::limits::Limits;
pub use self::server::McpServer;
pub use self::server::builder::{Command, McpServerBuilder};
pub use self::tools::McpTools;
