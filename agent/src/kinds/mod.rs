//! Kinds of agents.
//!
//! | | |
//! |---|---|
//! | [`ReAct`], [`ReActAgent`] | calls tools with text, for models without tool calls of their own |
//! | [`Requirements`] | decides which tools may be called, which have to be, and when the run may end |
//! | [`Handoff`] | transfers the conversation to another agent |

mod react;
mod requirements;

pub use crate::handoff::{HandedOff, Handoff};
pub use react::{
    ReAct, ReActAgent, ReActError, ReActPartialUpdate, ReActPrompts, ReActRetry, ReActStart, ReActSuccess, ReActUpdate,
};
pub use requirements::{
    FinalAnswer, Requirement, Requirements, RequirementsInit, RequirementsStart, RequirementsSuccess, Rule, Rules, Step,
};
