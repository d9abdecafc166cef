//! A transport whose messages are seen before rmcp handles them, in their order.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::Either;
use rmcp::RoleClient;
use rmcp::model::{
    ClientNotification, ClientRequest, GetExtensions, JsonRpcMessage, JsonRpcNotification, PingRequest, RequestId,
    ServerNotification,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;

use crate::connection::era::Era;
use crate::connection::signals::{End, Signals};

/// Passes progress to its call, finds the calls of questions, sends a `ping` behind each cancellation of the old era, and notes the end of the
/// connection. rmcp would handle each notification in a task of its own, so that progress might follow the result.
pub(crate) struct Tap<T> {
    pub(crate) transport: T,
    pub(crate) signals: Arc<Signals>,
    pub(crate) era: Era,
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Tap<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        if self.era == Era::New || !is_cancellation(&message) {
            return Either::Left(self.transport.send(message));
        }
        let ping = JsonRpcMessage::request(ClientRequest::PingRequest(PingRequest::default()), ping_id());
        let sent = self.transport.send(message).boxed();
        let pinged = self.transport.send(ping).boxed();
        Either::Right(async move {
            sent.await?;
            pinged.await
        })
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let Some(mut message) = self.transport.receive().await else {
                self.signals.end(End::Closed);
                return None;
            };
            if let JsonRpcMessage::Request(question) = &mut message {
                question.request.extensions_mut().insert(self.signals.calls.asker());
            }
            match message {
                JsonRpcMessage::Notification(JsonRpcNotification {
                    notification: ServerNotification::ProgressNotification(progress),
                    ..
                }) => self.signals.progress(progress.params),
                message if answers_ping(&message) => self.signals.calls.settle(),
                message => return Some(message),
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.transport.close().await
    }
}

fn is_cancellation(message: &TxJsonRpcMessage<RoleClient>) -> bool {
    let JsonRpcMessage::Notification(JsonRpcNotification { notification, .. }) = message else { return false };
    matches!(notification, ClientNotification::CancelledNotification(_))
}

/// Returns the id of each `ping` behind a cancellation. rmcp gives numbers to its own requests.
fn ping_id() -> RequestId {
    RequestId::String("after-cancelled".into())
}

fn answers_ping(message: &RxJsonRpcMessage<RoleClient>) -> bool {
    let id = match message {
        JsonRpcMessage::Response(response) => Some(&response.id),
        // A server that does not know `ping` has read it all the same.
        JsonRpcMessage::Error(error) => error.id.as_ref(),
        _ => None,
    };
    id == Some(&ping_id())
}
