//! Middlewares, kinds of agents, parsers and workflows that agents often need beside the loop.
//!
//! This crate uses only the public API of [`emitree_agent`] and of the crates below it, so everything here could be in a
//! crate of yours.
//!
//! - [`built_in`]: middlewares that limit a conversation, judge replies, or make the model answer with JSON;
//! - [`react`]: agents whose model calls tools with text;
//! - [`requirements`]: rules for the order of tool calls;
//! - [`parse`]: a parser for replies whose lines begin with known words;
//! - [`workflow`]: named steps that change one state, some of which may ask agents.

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

pub mod built_in;
pub mod parse;
pub mod react;
pub mod requirements;
pub mod workflow;
