//! The questions of a server, and their answers.

use std::sync::Arc;

use emitree_runtime::{Answer, Error, Result};
use futures_core::future::BoxFuture;
use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Fault;
use crate::events::{ElicitationRefused, QuestionCleaned};
use crate::server::Setup;
use crate::text::{clean, clean_texts, quoted};

/// The function of [`McpServerBuilder::elicit`](crate::McpServerBuilder::elicit).
pub(crate) type Elicit = Arc<dyn Fn(ElicitQuestion) -> BoxFuture<'static, Result<ElicitAnswer>> + Send + Sync>;

/// A question of a server, in the middle of a call, for the function of
/// [`McpServerBuilder::elicit`](crate::McpServerBuilder::elicit).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ElicitQuestion {
    /// The name of the server.
    pub server: String,
    /// The server's name of the tool, if the question belongs to one call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The question, without invisible and control characters.
    pub message: String,
    /// The schema of the answer, if the server asks for values. Its titles and descriptions have no such characters either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// The address that the user should open, if the server asks for that. It is never opened by this crate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// The answer to a question of a server.
///
/// It converts into the [`Answer`] to a stored question that has one request. The answer to several requests is an
/// object with an answer for each key.
///
/// ```
/// use emitree_mcp::ElicitAnswer;
/// use emitree_runtime::Answer;
/// use serde_json::json;
///
/// let answer = ElicitAnswer::accept(json!({"account": "savings"}));
/// let one = Answer::from(answer.clone());
/// assert_eq!(one.value, json!({"action": "accept", "content": {"account": "savings"}}));
/// let several = Answer::from(json!({"from": answer, "receipt": ElicitAnswer::Decline}));
/// assert_eq!(several.value["receipt"], json!({"action": "decline"}));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ElicitAnswer {
    /// The user has answered.
    Accept {
        /// The values, or nothing for an address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Value>,
    },
    /// The user has refused.
    Decline,
    /// The user has made no choice.
    Cancel,
}

impl ElicitAnswer {
    /// Makes an answer with values. Missing ones get the defaults of the schema.
    pub fn accept(content: impl Into<Value>) -> Self {
        Self::Accept { content: Some(content.into()) }
    }

    /// Adds the defaults of the request's schema to the values, and checks them.
    pub(super) fn fit(self, request: &Request) -> Result<ElicitResult> {
        let content = match (self, request) {
            (Self::Decline, _) => return Ok(ElicitResult::new(ElicitationAction::Decline)),
            (Self::Cancel, _) => return Ok(ElicitResult::new(ElicitationAction::Cancel)),
            (Self::Accept { content }, _) => content,
        };
        let result = ElicitResult::new(ElicitationAction::Accept);
        match request {
            Request::Form { schema, .. } => Ok(result.with_content(fit(schema, content.unwrap_or_else(|| json!({})))?)),
            Request::Url { .. } => Ok(result),
        }
    }
}

impl From<ElicitAnswer> for Answer {
    fn from(answer: ElicitAnswer) -> Self {
        json!(answer).into()
    }
}

/// A request for an answer of the user, as a question has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub(crate) enum Request {
    Form { message: String, schema: Value },
    Url { message: String, url: String },
}

impl Request {
    /// Reads the request of a server, without hidden characters in its texts. Their number is reported.
    ///
    /// # Errors
    ///
    /// Returns an error if no answer could fit.
    pub(crate) fn of(params: ElicitRequestParams, setup: &Setup) -> Result<Self, Fault> {
        let (request, removed) = match params {
            ElicitRequestParams::FormElicitationParams { mut message, requested_schema, .. } => {
                let mut schema = json!(requested_schema);
                validator(&schema).map_err(|error| Fault::Question(quoted(&error.to_string())))?;
                let removed = clean(&mut message) + clean_texts(&mut schema);
                (Self::Form { message, schema }, removed)
            }
            ElicitRequestParams::UrlElicitationParams { mut message, mut url, .. } => {
                let removed = clean(&mut message) + clean(&mut url);
                (Self::Url { message, url }, removed)
            }
            _ => return Err(Fault::Question("it is of a mode that this client does not know".to_owned())),
        };
        if removed > 0 {
            setup.report.send(QuestionCleaned { message: quoted(request.message()), removed });
        }
        Ok(request)
    }

    fn message(&self) -> &str {
        match self {
            Self::Form { message, .. } | Self::Url { message, .. } => message,
        }
    }

    /// Asks the function of the server.
    pub(crate) async fn elicit(&self, elicit: &Elicit, setup: &Setup, tool: Option<&str>) -> Result<ElicitResult> {
        let (schema, url) = match self.clone() {
            Self::Form { schema, .. } => (Some(schema), None),
            Self::Url { url, .. } => (None, Some(url)),
        };
        let (server, message) = (setup.name.to_string(), self.message().to_owned());
        let question = ElicitQuestion { server, tool: tool.map(str::to_owned), message, schema, url };
        elicit(question).await?.fit(self)
    }

    /// Declines, and reports the reason.
    pub(crate) fn decline(&self, setup: &Setup, reason: String) -> ElicitResult {
        setup.report.send(ElicitationRefused { message: quoted(self.message()), reason });
        ElicitResult::new(ElicitationAction::Decline)
    }
}

fn validator(schema: &Value) -> Result<jsonschema::Validator> {
    let validator = jsonschema::options().offline().build(schema);
    validator.map_err(|fault| Error::new(format!("the schema of the question is wrong: {fault}")))
}

/// Adds the defaults of a schema to values, and checks them.
fn fit(schema: &Value, mut content: Value) -> Result<Value> {
    if let (Some(fields), Some(properties)) = (content.as_object_mut(), schema["properties"].as_object()) {
        for (name, property) in properties {
            if let Some(default) = property.get("default").filter(|_| !fields.contains_key(name)) {
                fields.insert(name.clone(), default.clone());
            }
        }
    }
    match validator(schema)?.validate(&content) {
        Ok(()) => Ok(content),
        Err(fault) => {
            Err(Error::new(format!("the answer does not fit the question, at `{}`: {fault}", fault.instance_path())))
        }
    }
}
