//! The hooks of `agent.start` and of `agent.message`, whose failure a run survives (A3, A15).

use std::sync::Arc;

use emitree_runtime::{Error, Filters, Result};
use futures_core::future::BoxFuture;
use serde_json::Value;

use crate::agent::events::MessageDropped;
use crate::agent::middleware::Installed;
use crate::agent::steps::Loop;
use crate::model::emit;
use crate::place::filters::apply_caught;
use crate::session::run::SessionRun;

impl Loop<'_> {
    /// Returns `true` if a middleware has hooks of `agent.start`.
    pub(super) fn has_starts(&self) -> bool {
        self.chains().any(|chains| !chains.start.is_empty())
    }

    /// Calls the hooks of `agent.start` that were not called yet for the session in this process.
    pub(super) fn start(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            for installed in &self.installed {
                let hooks = &installed.hooks.chains.start;
                if hooks.is_empty() || !self.state.session.start(&installed.id) {
                    continue;
                }
                let mut started = Started { session: &self.state.session, id: &installed.id, has_ended: false };
                let called = self.call_or_undo(installed, hooks, &mut ()).await;
                started.has_ended = true;
                if let Err(error) = called {
                    let id = &installed.id;
                    let agent = self.ctx.name();
                    tracing::warn!("the middleware `{id}` of the agent `{agent}` failed to start: {}", error.explain());
                }
                // The hooks are not called again, so another attempt keeps what they have changed.
                self.state.session.keep()?;
            }
            Ok(())
        })
    }

    /// Calls the hooks of `agent.message` with the values that wait for middlewares.
    pub(super) fn deliver(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            // Values that hooks send meanwhile wait for the next model call, so hooks cannot keep the model from being
            // called.
            for mut taken in self.state.session.take_values(self.state.number()) {
                let delivered = self.deliver_to(&taken.to, &mut taken.value).await;
                self.state.session.remove_value(&taken, self.state.number());
                if let Err(error) = delivered {
                    let to = taken.to.to_string();
                    let error = error.explain().to_string();
                    tracing::warn!("a message to the middleware `{to}` was dropped: {error}");
                    emit(self.ctx, &mut MessageDropped { to, error }).await?;
                }
            }
            Ok(())
        })
    }

    async fn deliver_to(&self, to: &str, value: &mut Value) -> Result<()> {
        let has_hooks = |installed: &&Arc<Installed>| !installed.hooks.chains.message.is_empty();
        let receivers = || self.installed.iter().filter(has_hooks);
        if let Some(receiver) = receivers().find(|receiver| receiver.id == to) {
            return self.call_or_undo(receiver, &receiver.hooks.chains.message, value).await;
        }
        let ids: Vec<_> = receivers().map(|receiver| format!("`{}`", receiver.id)).collect();
        let others = if ids.is_empty() { "none does".to_owned() } else { format!("only {}", ids.join(", ")) };
        let agent = self.ctx.name();
        Err(Error::new(format!("no middleware `{to}` of the agent `{agent}` receives messages: {others}")))
    }

    /// Calls hooks of one middleware with a value. If they fail, or if the run is dropped meanwhile, the state of the
    /// middleware is as before.
    async fn call_or_undo<T: Send + 'static>(
        &self,
        installed: &Installed,
        hooks: &Filters<T>,
        value: &mut T,
    ) -> Result<()> {
        let session = &self.state.session;
        let id = Arc::from(installed.id.as_str());
        let copy = session.slices().copy(&id)?;
        let mut undo = Undo { session, attempt: self.state.number(), id, copy, is_needed: true };
        let called = apply_caught(hooks, value, self.ctx).await;
        undo.is_needed = called.is_err();
        called
    }
}

/// The hooks of `agent.start` of a middleware. If this is dropped before they have ended, they are called again.
struct Started<'a> {
    session: &'a SessionRun,
    id: &'a str,
    has_ended: bool,
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.session.undo_start(self.id);
        }
    }
}

/// Puts the state of a middleware back when it is dropped, unless another attempt has begun (A7).
struct Undo<'a> {
    session: &'a SessionRun,
    attempt: u32,
    id: Arc<str>,
    copy: Option<Value>,
    is_needed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.is_needed {
            let is_current = || self.session.attempt() == self.attempt;
            self.session.slices().put_back(&self.id, self.copy.take(), is_current);
        }
    }
}
