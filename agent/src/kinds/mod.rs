//! Kinds of agents.

pub(crate) mod handoff;

pub use handoff::{HandedOff, Handoff};
