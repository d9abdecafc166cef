//! `ReAct` and requirements, by themselves and in one agent.

mod handoffs;
mod react;
mod requirements;
#[path = "../../../agent/tests/support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
mod together;
