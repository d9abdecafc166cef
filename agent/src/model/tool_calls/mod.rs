//! The tool calls of a streamed reply, while they arrive.

pub(crate) mod events;
mod json_text;
pub(crate) mod partial_json;
pub(crate) mod stream;
