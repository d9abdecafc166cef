//! Tests of the public API, in one binary.

mod agent;
mod approvals;
mod collector;
mod delivery;
mod dialects;
mod documented;
#[path = "../../../tests/support/journal.rs"]
mod journal;
mod limits;
mod outcomes;
mod records;
mod secrets;
mod services;
mod settings;
mod spans;
