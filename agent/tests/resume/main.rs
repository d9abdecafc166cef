//! Sessions that stop for a question or a kill, and go on.

mod durable;
mod orders;
mod questions;
mod resume;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
