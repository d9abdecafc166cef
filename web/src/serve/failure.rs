//! Requests that are refused.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use emitree_agent::AnswerError;
use emitree_agent::past::PastError;
use emitree_middleware::store::StoreError;
use emitree_runtime::Error;

/// A status, and a text that says what would be right.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// The thread does not exist, or is another owner's: a stranger cannot tell the two apart by this answer.
    pub(crate) fn no_thread(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no thread {id:?}"))
    }

    pub(crate) fn under_way(id: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            format!("a run of the thread {id:?} is under way: stop it, or wait for its end"),
        )
    }

    fn internal(error: &dyn std::fmt::Display) -> Self {
        tracing::error!(%error, "a request of a page has failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, self.text).into_response()
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::internal(&error.explain())
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Held { id, .. } => Self::under_way(&id),
            error => Self::internal(&error),
        }
    }
}

impl From<PastError> for Refusal {
    fn from(error: PastError) -> Self {
        match error {
            PastError::Failed(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}

impl From<AnswerError> for Refusal {
    fn from(error: AnswerError) -> Self {
        let status = match &error {
            AnswerError::Unknown { .. } => StatusCode::NOT_FOUND,
            AnswerError::Answered { .. } => StatusCode::CONFLICT,
            AnswerError::NotStored { error: StoreError::Held { id, .. }, .. } => return Self::under_way(id),
            AnswerError::NotStored { error, .. } => return Self::internal(error),
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, error.to_string())
    }
}
