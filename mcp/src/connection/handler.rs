//! The requests and the notifications of a server: its questions, its log, and changes of its tools.

#![expect(deprecated, reason = "servers of the old era still ask for roots and send logs")]

use std::sync::Arc;

use rmcp::ErrorData;
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationCapability,
    FormElicitationCapability, Implementation, ListRootsRequestMethod, ListRootsResult,
    LoggingMessageNotificationParam, ProtocolVersion, UrlElicitationCapability,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::call::question::Request;
use crate::connection::calls::{Asked, pass};
use crate::connection::signals::Signals;
use crate::events::ServerLog;
use crate::server::Setup;
use crate::text::{QUOTED, quoted};

/// Answers the requests and takes the notifications of a server.
pub(crate) struct Handler {
    pub(crate) setup: Arc<Setup>,
    pub(crate) signals: Arc<Signals>,
}

/// Returns the description of this client. Sampling and roots are not declared.
fn config() -> ClientConfig {
    let elicitation = ElicitationCapability::new()
        .with_form(FormElicitationCapability::default())
        .with_url(UrlElicitationCapability::default());
    let mut capabilities = ClientCapabilities::default();
    capabilities.elicitation = Some(elicitation);
    ClientConfig::new(capabilities, Implementation::new("emitree", env!("CARGO_PKG_VERSION")))
        .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        config()
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let request =
            Request::of(request, &self.setup).map_err(|fault| ErrorData::invalid_params(fault.to_string(), None))?;
        if let Some(elicit) = &self.setup.elicit {
            let answer = request.elicit(elicit, &self.setup, None).await;
            return answer.map_err(|error| ErrorData::invalid_params(quoted(&error.to_string()), None));
        }
        let (reply, answer) = oneshot::channel();
        if let Err((asked, reason)) = pass(Asked { request, reply }, context.extensions.get()) {
            return Ok(asked.request.decline(&self.setup, reason));
        }
        answer.await.map_err(|_| ErrorData::internal_error("the call was cancelled".to_owned(), None))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListRootsRequestMethod>())
    }

    async fn on_logging_message(&self, log: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        let level = serde_json::to_value(log.level).ok().and_then(|level| level.as_str().map(str::to_owned));
        // A long message would fill the queue of events, and a short one may be structured.
        let data = match log.data {
            Value::String(text) => self.signals.quoted(&text).into(),
            data => match data.to_string() {
                text if text.len() <= QUOTED && self.signals.quoted(&text) == text => data,
                text => self.signals.quoted(&text).into(),
            },
        };
        self.signals.report().send(ServerLog { level: level.unwrap_or_default(), data });
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.signals.set_stale();
    }
}
