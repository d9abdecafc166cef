//! `OpenAi` against a server on loopback that writes given bytes.

#![cfg(feature = "openai")]

mod dialects;
mod failures;
mod loops;
mod real;
mod requests;
mod secrets;
mod server;
mod signatures;
mod streams;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
mod wire;
