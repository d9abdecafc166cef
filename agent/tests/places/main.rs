//! The places of the loop, and the values that pass them.

mod hook_test;
mod places;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
mod values;
