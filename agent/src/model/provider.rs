//! The trait that a backend implements.

use std::future::Future;
use std::pin::Pin;

use emitree_runtime::{Result, RunContext};
use futures_core::Stream;
use futures_core::future::BoxFuture;
use futures_util::stream;

use crate::{ChatRequest, ChatResponse, Delta, ToolSpec};

/// The pieces of a reply, as they arrive.
pub type DeltaStream = Pin<Box<dyn Stream<Item = Result<Delta>> + Send>>;

/// A backend of [`ChatModel`](crate::ChatModel)s: it sends a request and returns the pieces of the reply.
///
/// A provider only translates requests into a server's protocol, and the server's replies into pieces. Retries,
/// timeouts, limits and caches are middleware around the run.
///
/// ```
/// use emitree_agent::{ChatModel, ChatRequest, ChatResponse, DeltaStream, Message, Provider, whole};
/// use emitree_runtime::{Result, RunContext, Runnable};
///
/// struct Parrot;
///
/// impl Provider for Parrot {
///     fn name(&self) -> &str {
///         "parrot"
///     }
///
///     fn model(&self) -> &str {
///         "green"
///     }
///
///     async fn chat(&self, request: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
///         Ok(whole(ChatResponse::new(Message::assistant(request.last_user_text()))))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// assert_eq!(ChatModel::new(Parrot)?.run("hello".into()).await?.text(), "hello");
/// # Ok(())
/// # }
/// ```
pub trait Provider: Send + Sync + 'static {
    /// Returns the provider's name, which must consist of ASCII letters, digits and `_`. The provider's models emit
    /// their events in the namespace `backend.chat.<name>`.
    fn name(&self) -> &str;

    /// Returns the model's name.
    fn model(&self) -> &str;

    /// Returns the host name or the IP address of the server, and its port, for the event
    /// [`ChatStart`](crate::ChatStart). By default, returns `None`.
    fn server(&self) -> Option<(&str, u16)> {
        None
    }

    /// Checks that the server accepts these tools. By default, all tools are accepted.
    ///
    /// An agent checks its own tools when it is built, with the providers of all alternatives of its model. The tools of
    /// each request are checked before the request is sent.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tool and the part of its schema that the server refuses.
    fn check(&self, tools: &[ToolSpec]) -> Result<()> {
        let _ = tools;
        Ok(())
    }

    /// Sends a request.
    ///
    /// The reply is always a stream of pieces. If [`stream`](crate::ChatOptions::stream) is not `Some(true)`, a
    /// provider may return the reply with [`whole`]. Dropping the future or the stream must end the call.
    ///
    /// # Errors
    ///
    /// An error, here or in the stream, fails the attempt. Mark temporary errors as
    /// [`retryable`](emitree_runtime::Error::retryable).
    fn chat(&self, request: &ChatRequest, ctx: &RunContext) -> impl Future<Output = Result<DeltaStream>> + Send;
}

/// Converts a complete response into a stream of pieces.
#[must_use]
pub fn whole(response: ChatResponse) -> DeltaStream {
    Box::pin(stream::iter(Delta::of_response(response).into_iter().map(Ok)))
}

/// A [`Provider`] as a trait object.
pub(crate) trait DynProvider: Send + Sync {
    fn name(&self) -> &str;
    fn server(&self) -> Option<(&str, u16)>;
    fn check(&self, tools: &[ToolSpec]) -> Result<()>;
    fn chat<'a>(&'a self, request: &'a ChatRequest, ctx: &'a RunContext) -> BoxFuture<'a, Result<DeltaStream>>;
}

impl<P: Provider> DynProvider for P {
    fn name(&self) -> &str {
        Provider::name(self)
    }

    fn server(&self) -> Option<(&str, u16)> {
        Provider::server(self)
    }

    fn check(&self, tools: &[ToolSpec]) -> Result<()> {
        Provider::check(self, tools)
    }

    fn chat<'a>(&'a self, request: &'a ChatRequest, ctx: &'a RunContext) -> BoxFuture<'a, Result<DeltaStream>> {
        Box::pin(Provider::chat(self, request, ctx))
    }
}
