//! A service whose agent asks people before it pays, and goes on when they have answered.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use emitree::agent::{Agent, AgentRun, AnswerError, ChatModel, Session, tool_fn};
use emitree::context::Answer;
use emitree::emitter::new_id;
use emitree::middleware::approval::Approval;
use emitree::middleware::store::{EntryStatus, Filter, Store};
use emitree::middleware::{Budget, Redact, Retry, Runs};
use emitree::stores::SqliteStore;
use emitree::{Error, Result, RunContext, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

#[derive(Deserialize, JsonSchema)]
struct Pay {
    to: String,
    amount: u32,
}

/// Builds the agent. A test passes a scripted model.
///
/// # Errors
///
/// Returns an error if a setting is not valid.
pub fn cashier(model: ChatModel) -> Result<Agent> {
    let pay = tool_fn("pay", "Pays an amount to a person", |Pay { to, amount }: Pay, ctx: RunContext| async move {
        // Pass the key to your bank, so that it pays once, however often the call is made.
        let key = ctx.key().map(|key| key.to_string()).unwrap_or_default();
        Ok(json!({"paid": amount, "to": to, "key": key}))
    })?;
    let retry = Retry::builder().max_retries(2).base_delay(Duration::from_millis(500)).build()?;
    Agent::builder("cashier", model)
        .prompt("You pay bills.")
        .tool(pay.idempotent())
        .middleware(for_tree(Runs::of_kind("ChatModel").only(retry)))
        .middleware(Budget::builder().tokens(100_000).build()?)
        .middleware(for_tree(Approval::by_interrupt().runs(Runs::named("pay"))))
        .middleware(for_tree(Redact::new()))
        .build()
}

/// The state of the service.
#[derive(Clone, Debug)]
pub struct Service {
    agent: Agent,
    store: SqliteStore,
    tasks: TaskTracker,
}

impl Service {
    /// Makes the service, and goes on with the sessions that the last process has left.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    pub async fn start(agent: Agent, store: SqliteStore) -> Result<Self> {
        let service = Self { agent, store, tasks: TaskTracker::new() };
        // A closed tracker still takes tasks, and `wait` returns when there are none.
        service.tasks.close();
        let stopped = Filter::of([EntryStatus::Paused, EntryStatus::Running]);
        for head in service.store.list(&stopped).await? {
            service.resume(Session::open(&service.store, &head.id).await?);
        }
        Ok(service)
    }

    /// Returns the routes.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/ask", post(ask))
            .route("/waiting", get(waiting))
            .route("/answer/{session}/{*question}", post(answer))
            .with_state(self.clone())
    }

    /// Waits until no task works on a session.
    pub async fn idle(&self) {
        self.tasks.wait().await;
    }

    /// Goes on with a session in a task. If another task or process works on it, the run fails and changes nothing.
    fn resume(&self, session: Session) {
        let agent = self.agent.clone();
        self.tasks.spawn(async move {
            if let Err(error) = agent.resume(&session).await {
                eprintln!("session {}: {}", session.id(), error.explain());
            }
        });
    }
}

async fn ask(State(service): State<Service>, Json(text): Json<String>) -> Result<Response, Failure> {
    let session = Session::open(&service.store, new_id().to_string()).await?;
    let (agent, of_run) = (service.agent.clone(), session.clone());
    // In a task, so that a client that goes away stops nothing.
    let run = service.tasks.spawn(async move { agent.ask(text).session(&of_run).await });
    match run.await.map_err(Error::from)? {
        Ok(answer) => Ok(Json(json!({"session": session.id(), "answer": answer.text()})).into_response()),
        Err(error) if error.is_interrupted() => Ok((StatusCode::ACCEPTED, Json(questions(&session))).into_response()),
        Err(error) => Err(error.into()),
    }
}

fn questions(session: &Session) -> Value {
    json!({"session": session.id(), "questions": session.questions()})
}

async fn waiting(State(service): State<Service>) -> Result<Json<Vec<Value>>, Failure> {
    let mut waiting = Vec::new();
    for head in service.store.list(&Filter::waiting().limit(50)).await.map_err(Error::from)? {
        waiting.push(questions(&Session::open(&service.store, &head.id).await?));
    }
    Ok(Json(waiting))
}

#[derive(Deserialize)]
struct Reply {
    value: Value,
}

async fn answer(
    State(service): State<Service>,
    Path((id, question)): Path<(String, String)>,
    Json(reply): Json<Reply>,
) -> Result<StatusCode, Failure> {
    let session = Session::open(&service.store, id).await?;
    // Take the author from the login of the request: `Answer::from(…).by(…)`.
    session.answer(&question, Answer::from(reply.value)).await.map_err(|error| {
        let status = match error {
            AnswerError::Unknown { .. } => StatusCode::NOT_FOUND,
            AnswerError::Answered { .. } => StatusCode::CONFLICT,
            AnswerError::NotStored { .. } => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Failure(status, error.to_string())
    })?;
    if session.questions().is_empty() {
        service.resume(session);
    }
    Ok(StatusCode::ACCEPTED)
}

struct Failure(StatusCode, String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if error.is_aborted() {
            return Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        }
        // The log has the cause; clients do not receive it.
        eprintln!("{}", error.explain());
        Self(StatusCode::INTERNAL_SERVER_ERROR, "internal error".to_owned())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}
