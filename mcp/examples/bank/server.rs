//! The server of a bank, on rmcp. The tests of the crate use it too.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use emitree_mcp::Era;
use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientResult, ContentBlock, DiscoverResult, ElicitRequest,
    ElicitRequestParams, ElicitResult, ErrorCode, InitializeRequestParams, InitializeResult, InputRequest,
    InputRequiredResult, JsonObject, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ServerCapabilities, ServerConfig, ServerRequest, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};

/// The state of a transfer that waits for an answer.
const STATE: &str = "transfer-1-s3cr3t";

/// A bank with two accounts. One that was paid from has less.
///
/// If the variable `BANK_LEDGER` names a file, each payment is a line of it.
pub(crate) struct Bank {
    era: Option<Era>,
    paid: AtomicU32,
    has_loans: AtomicBool,
}

impl Bank {
    pub(crate) fn new(era: Option<Era>) -> Self {
        Self { era, paid: AtomicU32::new(0), has_loans: AtomicBool::new(false) }
    }

    fn tools(&self) -> Vec<Tool> {
        let none = json!({"type": "object"});
        let mut tools = vec![
            tool("balance", "Returns the balance", &none).with_annotations(ToolAnnotations::new().read_only(true)),
            tool(
                "transfer",
                "Sends money",
                &json!({
                    "type": "object",
                    "properties": {"to": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}},
                    "required": ["to", "amount"],
                }),
            ),
            tool("statement", "Returns a picture of the account", &none),
            tool("audit", "Counts all payments, which takes long", &none),
            tool("trace", "Returns the trace of the call", &none),
            tool("offer_loans", "Adds the tool `loan`", &none),
            tool("crash", "Ends the server", &none),
        ];
        if self.has_loans.load(Ordering::Relaxed) {
            tools.push(tool("loan", "Lends money", &none));
        }
        tools
    }

    /// Pays from the account that the user chooses.
    async fn transfer(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let amount = request.arguments.as_ref().and_then(|arguments| arguments["amount"].as_u64()).unwrap_or_default();
        let is_old = context.protocol_version().is_some_and(|version| version.has_initialize());
        let answer = if is_old {
            let request = ServerRequest::ElicitRequest(ElicitRequest::new(question()));
            match context.peer.send_request(request).await.map_err(|error| internal(&error.to_string()))? {
                ClientResult::ElicitResult(answer) => answer,
                _ => return Err(internal("the answer is another one")),
            }
        } else if let Some(answers) = &request.input_responses {
            if request.request_state.as_deref() != Some(STATE) {
                return Err(internal("the state is another one"));
            }
            let answer = answers.get("account").cloned().unwrap_or_default();
            serde_json::from_value::<ElicitResult>(answer).map_err(|error| internal(&error.to_string()))?
        } else {
            let requests = [("account".to_owned(), InputRequest::Elicitation(ElicitRequest::new(question())))];
            return Ok(InputRequiredResult::new(Some(requests.into()), Some(STATE.to_owned())).into());
        };
        let Some(account) = answer.content.as_ref().and_then(|content| content["account"].as_str()) else {
            return Ok(CallToolResult::error(vec![ContentBlock::text("nothing was sent: no account")]).into());
        };
        self.paid.fetch_add(u32::try_from(amount).unwrap_or(u32::MAX), Ordering::Relaxed);
        if let Ok(ledger) = std::env::var("BANK_LEDGER") {
            let ledger = OpenOptions::new().create(true).append(true).open(ledger);
            let written = ledger.and_then(|mut ledger| writeln!(ledger, "{amount} from {account}"));
            written.map_err(|error| internal(&error.to_string()))?;
        }
        Ok(text(&format!("sent {amount} from {account}")))
    }
}

fn tool(name: &'static str, description: &'static str, schema: &Value) -> Tool {
    Tool::new(name, description, schema.as_object().cloned().unwrap_or_else(JsonObject::new))
}

fn text(text: &str) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

fn internal(message: &str) -> ErrorData {
    ErrorData::internal_error(message.to_owned(), None)
}

fn question() -> ElicitRequestParams {
    let schema = json!({
        "type": "object",
        "properties": {
            "account": {"type": "string", "enum": ["savings", "giro"]},
            "note": {"type": "string", "default": "none"},
        },
        "required": ["account"],
    });
    let params = json!({"mode": "form", "message": "From which account?", "requestedSchema": schema});
    serde_json::from_value(params).expect("the question is valid")
}

impl ServerHandler for Bank {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if self.era == Some(Era::New) {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "initialize", None));
        }
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn discover(&self, _: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        if self.era == Some(Era::Old) {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "server/discover", None));
        }
        Ok(DiscoverResult::from_server_info(self.supported_protocol_versions().into_owned(), self.get_info()))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match &*request.name {
            "balance" => {
                let savings = 100 - i64::from(self.paid.load(Ordering::Relaxed));
                Ok(CallToolResult::structured(json!({"savings": savings})).into())
            }
            "transfer" => self.transfer(&request, &context).await,
            "statement" => {
                let image = ContentBlock::image("iVBORw0KGgoA".repeat(1024), "image/png");
                Ok(CallToolResult::success(vec![ContentBlock::text("the account:"), image]).into())
            }
            "audit" => {
                let token = context.meta.get_progress_token();
                for done in 1..=3_u8 {
                    let Some(token) = token.clone() else { continue };
                    let progress = ProgressNotificationParam::new(token, f64::from(done)).with_total(3.0);
                    context.peer.notify_progress(progress).await.map_err(|error| internal(&error.to_string()))?;
                }
                // A call that is cancelled says so on stderr.
                tokio::select! {
                    () = context.ct.cancelled() => eprintln!("the audit was cancelled"),
                    () = tokio::time::sleep(Duration::from_millis(300)) => {}
                }
                Ok(text("3 payments"))
            }
            "trace" => Ok(text(context.meta.get("traceparent").and_then(Value::as_str).unwrap_or("none"))),
            "offer_loans" => {
                self.has_loans.store(true, Ordering::Relaxed);
                context.peer.notify_tool_list_changed().await.map_err(|error| internal(&error.to_string()))?;
                Ok(text("loans are offered"))
            }
            "crash" => {
                eprintln!("out of money");
                std::process::exit(3);
            }
            name => Err(ErrorData::invalid_params(format!("there is no tool `{name}`"), None)),
        }
    }
}
