//! Workflows, and parsers of lines with known beginnings.

mod parse;
#[path = "../../../agent/tests/support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
mod workflows;
