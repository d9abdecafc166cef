//! The messages of `Session::steer` and its siblings, where they enter the history (A15).

use std::future::ready;
use std::sync::Arc;

use emitree_runtime::Result;
use futures_core::future::BoxFuture;

use crate::Message;
use crate::agent::steps::Loop;
use crate::message::history::check;

impl Loop<'_> {
    /// Adds messages that the run has taken from the inbox, as the hooks of `steer.inject` leave them. Returns `true` if
    /// there are any.
    pub(super) fn steer(&mut self, taken: Vec<Arc<Message>>) -> BoxFuture<'_, Result<bool>> {
        if taken.is_empty() {
            return Box::pin(ready(Ok(false)));
        }
        Box::pin(async move {
            let count = taken.len();
            let mut messages: Vec<_> = taken.into_iter().map(Arc::unwrap_or_clone).collect();
            if let Err(error) = self.pass_steering(&mut messages).await {
                if !error.is_halted() {
                    return Err(error);
                }
                self.warnings.push(format!("dropped messages to the run: {count} ({})", error.explain()));
                messages.clear();
            }
            let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
            check(&messages)?;
            let has_entered = !messages.is_empty();
            self.state.session.enter(messages, self.state.number());
            if has_entered {
                self.steered_after = self.turn().number;
                self.announce().await?;
            }
            Ok(has_entered)
        })
    }

    async fn pass_steering(&self, messages: &mut Vec<Message>) -> Result<()> {
        for chains in self.chains() {
            chains.inject.apply(messages, self.ctx).await?;
        }
        Ok(())
    }

    /// Adds the messages of the inbox that start another round where the loop would end. Returns `true` if there are any.
    pub(super) async fn steer_at_end(&mut self) -> Result<bool> {
        if !self.state.session.has_waiting() {
            return Ok(false);
        }
        let taken = self.state.session.take_at_end(self.state.number());
        let has_entered = self.steer(taken).await?;
        if has_entered {
            self.state.answer.forget();
        }
        Ok(has_entered)
    }
}
