//! Who answers: a function that is awaited, or whoever finds the interrupt.

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Error, Result};
use futures_util::future::BoxFuture;

use super::{Decision, Request};
use crate::shared::panic::caught_async;

type AskFn = dyn Fn(Request) -> BoxFuture<'static, Result<Decision>> + Send + Sync;

/// Who answers.
#[derive(Clone)]
pub(super) enum Responder {
    /// A function.
    Live(Arc<AskFn>),
    /// The run ends with the question.
    Interrupt,
}

impl Responder {
    /// Asks; a panic is a failure like others.
    pub(super) async fn ask(&self, request: &Request) -> Result<Decision> {
        match self {
            Self::Interrupt => Err(Error::interrupted(request.to_interrupt())),
            Self::Live(f) => {
                let answered = caught_async(|| f(request.clone())).await;
                answered.unwrap_or_else(|panic| Err(Error::new(format!("it panicked: {panic}"))))
            }
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Live(_) => "asks a responder",
            Self::Interrupt => "interrupts",
        })
    }
}
