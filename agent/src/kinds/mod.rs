//! Kinds of agents.
//!
//! | | |
//! |---|---|
//! | [`ReAct`], [`ReActAgent`] | calls tools with text, for models without tool calls of their own |
//! | [`Handoff`] | transfers the conversation to another agent |

pub(crate) mod handoff;
mod react;

pub use handoff::{HandedOff, Handoff};
pub use react::{
    ReAct, ReActAgent, ReActError, ReActPartialUpdate, ReActPrompts, ReActRetry, ReActStart, ReActSuccess, ReActUpdate,
};
