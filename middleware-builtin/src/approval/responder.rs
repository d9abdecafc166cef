//! The responders of an approval: an async function, or an interrupt that is answered later.

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Error, Result};
use futures_util::future::BoxFuture;

use super::{Decision, Request};
use crate::shared::panic::caught_async;

pub(super) type AskFn = dyn Fn(Request) -> BoxFuture<'static, Result<Decision>> + Send + Sync;

/// The source of an answer.
#[derive(Clone)]
pub(super) enum Responder {
    /// An async function. The run waits for its answer.
    Live(Arc<AskFn>),
    /// An interrupt: the run ends with the question.
    Interrupt,
}

/// Asks an async function. Its panic is returned as an error.
pub(super) async fn ask(f: &AskFn, request: &Request) -> Result<Decision> {
    let answered = caught_async(|| f(request.clone())).await;
    answered.unwrap_or_else(|panic| Err(Error::new(format!("it panicked: {panic}"))))
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Live(_) => "asks a responder",
            Self::Interrupt => "interrupts",
        })
    }
}
