//! Tool calls: what is offered, gated, executed, and in which order.

mod actions;
mod exclusive;
mod gates;
#[path = "../../../tests/support/journal.rs"]
mod journal;
mod offers;
mod parts;
mod repeated;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
mod tools;
