//! The loop of an agent: its answers, attempts, hooks, sums and events.

mod agents;
mod answers;
mod attempts;
mod built_ins;
mod empty;
mod explain;
mod handoff;
mod heads;
mod inspected_parts;
#[path = "../../../tests/support/journal.rs"]
mod journal;
mod names;
mod own_hooks;
mod sums;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
