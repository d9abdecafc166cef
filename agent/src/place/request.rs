//! The request of one model call, before the model is asked.

use crate::{ChatModel, ChatRequest};

/// The request of one model call, and the model that receives it: the value at
/// [`Place::ModelRequest`](crate::Place::ModelRequest). Changes apply to this call only.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelRequest {
    /// The request, with the messages as the hooks of `model.wire` left them. If a hook removes a tool, a call of this
    /// tool in the reply is not executed: its result is an error that says so.
    pub request: ChatRequest,
    /// The model. With another model, the call is a run of that model, with its own middlewares and options, inside of
    /// the layers of `model.call`.
    pub model: ChatModel,
}

impl ModelRequest {
    /// Makes the value for a test of hooks ([`HookTest::request`](crate::HookTest::request)).
    #[must_use]
    pub const fn new(request: ChatRequest, model: ChatModel) -> Self {
        Self { request, model }
    }
}
