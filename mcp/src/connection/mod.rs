//! One connection to a server: rmcp's service over a transport of ours, and the process behind it.

pub(crate) mod calls;
pub(crate) mod era;
pub(crate) mod handler;
pub(crate) mod signals;
pub(crate) mod slot;
pub(crate) mod tap;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rmcp::RoleClient;
use rmcp::model::{ClientRequest, RequestMetaObject, ServerResult};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RunningService, ServiceError};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use self::handler::Handler;
use self::signals::{End, Signals};
use crate::child::Child;
use crate::connection::era::Era;
use crate::error::Fault;

/// The time in which a process has to end after it has closed its output, for the error of the calls under way.
const DYING: Duration = Duration::from_secs(1);

/// The reason for which a request is cancelled.
const GONE: &str = "the caller has gone";

/// The time in which a process has to end after its input was closed.
const PATIENCE: Duration = Duration::from_secs(3);

/// A connection. Dropping it ends its tasks, and kills its process.
pub(crate) struct Connection {
    service: RunningService<RoleClient, Handler>,
    pub(crate) era: Era,
    pub(crate) signals: Arc<Signals>,
    child: Option<Child>,
    /// The task that listens for changes, in the new era.
    listener: Option<AbortHandle>,
}

impl Connection {
    pub(crate) fn peer(&self) -> &Peer<RoleClient> {
        self.service.peer()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.signals.has_ended()
    }

    /// Sends a request. Dropping the returned [`Pending`] before its answer cancels the request at the server.
    pub(crate) async fn send(
        &self,
        method: &'static str,
        request: ClientRequest,
        meta: RequestMetaObject,
    ) -> Result<Pending<'_>, Fault> {
        let options = PeerRequestOptions::no_options().with_meta(meta);
        match self.peer().send_request_with_option(request, options).await {
            Ok(handle) => Ok(Pending { connection: self, method, handle: Some(handle), hidden: None }),
            Err(error) => Err(self.fault(method, error, None).await),
        }
    }

    /// Waits until the server has read all cancellations, or has not in time.
    pub(crate) async fn settled(&self) {
        tokio::select! {
            () = self.signals.calls.settled() => {}
            _ = self.signals.ended() => {}
        }
    }

    /// Returns the fault of a request. It does not quote the hidden text.
    async fn fault(&self, method: &'static str, error: ServiceError, hidden: Option<&str>) -> Fault {
        match error {
            ServiceError::McpError(mut error) => {
                if let Some(hidden) = hidden.filter(|hidden| !hidden.is_empty()) {
                    error.message = error.message.replace(hidden, "[state]").into();
                }
                Fault::refused(method, &error, &self.signals)
            }
            ServiceError::UnexpectedResponse => Fault::Answer { method, got: "something else".to_owned() },
            #[cfg(feature = "http")]
            ServiceError::TransportSend(error) if self.child.is_none() => crate::http::fault(&error, &self.signals),
            _ => self.end_of_connection().await,
        }
    }

    /// Returns the fault of a connection that has ended, or is about to: the exit of the process, if it has one.
    async fn end_of_connection(&self) -> Fault {
        let end = timeout(DYING, self.signals.ended()).await.unwrap_or(End::Closed);
        match (end, &self.child) {
            (End::Shut, _) => Fault::Shut,
            (End::TooLong { limit }, _) => Fault::TooLong { limit },
            (End::Closed, None) => Fault::Closed,
            (End::Closed, Some(child)) => match timeout(DYING, child.exited()).await {
                Ok(exit) => Fault::Exited { exit },
                Err(_) => Fault::Closed,
            },
        }
    }

    /// Closes the connection, and waits for the end of its process.
    pub(crate) async fn close(&self) {
        self.signals.end(End::Shut);
        // The service's task drops the transport, and with it the input of the process.
        self.service.cancellation_token().cancel();
        if let Some(child) = &self.child {
            child.end(PATIENCE).await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.signals.end(End::Shut);
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

/// A request without its answer.
pub(crate) struct Pending<'a> {
    connection: &'a Connection,
    method: &'static str,
    handle: Option<RequestHandle<RoleClient>>,
    /// A text that no error may quote.
    hidden: Option<String>,
}

impl Pending<'_> {
    /// Hides a text of the request from errors.
    pub(crate) fn hiding(mut self, text: Option<String>) -> Self {
        self.hidden = text;
        self
    }

    pub(crate) fn handle(&self) -> Option<&RequestHandle<RoleClient>> {
        self.handle.as_ref()
    }

    /// Cancels the request, and waits until this is sent.
    pub(crate) async fn cancel(mut self) {
        if let Some(cancelling) = self.cancelling() {
            // A server that has gone needs no notice.
            drop(cancelling.await);
        }
    }

    fn cancelling(&mut self) -> Option<impl Future<Output = Result<(), ServiceError>> + use<>> {
        let handle = self.handle.take()?;
        if self.connection.era == Era::Old {
            self.connection.signals.calls.cancel();
        }
        Some(handle.cancel(Some(GONE.to_owned())))
    }

    /// Waits for the answer. Cancel safe.
    pub(crate) async fn answer(&mut self) -> Result<ServerResult, Fault> {
        let Some(handle) = &mut self.handle else { return Err(Fault::Closed) };
        let answer = tokio::select! {
            biased;
            // An answer that has arrived before the end of the connection counts.
            answer = &mut handle.rx => answer.unwrap_or(Err(ServiceError::TransportClosed)),
            _ = self.connection.signals.ended() => Err(ServiceError::TransportClosed),
        };
        self.handle = None;
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.connection.fault(self.method, error, self.hidden.as_deref()).await),
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(cancelling) = self.cancelling() {
            // The first poll queues the notification, unless the queue is full.
            drop(cancelling.now_or_never());
        }
    }
}

impl Fault {
    /// The fault of a request that the server has answered with an error.
    pub(crate) fn refused(method: &'static str, error: &rmcp::ErrorData, signals: &Signals) -> Self {
        Self::Refused { method, code: error.code.0, message: signals.quoted(&error.message) }
    }

    /// The fault of an answer that is no result of the method.
    pub(crate) fn answer(method: &'static str, got: &ServerResult, signals: &Signals) -> Self {
        let mut got = serde_json::to_value(got).unwrap_or_default();
        if got["resultType"] == "input_required" {
            return Self::Question("it is not of the form that the protocol says".to_owned());
        }
        // The state of a call belongs into no error.
        got.as_object_mut().and_then(|got| got.remove("requestState"));
        Self::Answer { method, got: signals.quoted(&got.to_string()) }
    }
}
