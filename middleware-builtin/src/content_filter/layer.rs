//! The layer that checks input and output.

use std::sync::Arc;

use emitree_emitter::json::check_depth;
use emitree_runtime::{Error, JsonRun, Layer, Next, Result, RunContext};
use serde_json::{Value, json};

use super::{ContentFilterInner, FilterAction, Filtered, MARK, NAME, RunPart};
use crate::shared::built_in::debug_as;
use crate::shared::json::texts;

pub(super) struct ContentFilterLayer(pub(super) Arc<ContentFilterInner>);

impl ContentFilterLayer {
    /// Checks a value. Returns the answer that replaces the value, if any.
    async fn check(&self, part: RunPart, value: &Value, ctx: &RunContext) -> Result<Option<Value>> {
        // Reading the strings recurses: a value that is nested too deeply cannot be checked.
        if let Err(error) = check_depth(value) {
            self.handle_unreadable(part, error.into())?;
            return Ok(None);
        }
        for (at, text) in texts(value) {
            match self.0.rules.first_label(text).await {
                Ok(None) => {}
                Ok(Some(label)) => return self.apply_action(part, &at, &label, ctx).await,
                Err(error) => self.handle_unreadable(part, error)?,
            }
        }
        Ok(None)
    }

    /// Handles a value that could not be checked: returns an error, or, if the filter only marks, logs the failure and
    /// lets the value pass (M5).
    fn handle_unreadable(&self, part: RunPart, error: Error) -> Result<()> {
        if matches!(self.0.action, FilterAction::Mark) {
            tracing::warn!(%error, "a content filter could not check the {}", part.as_str());
            return Ok(());
        }
        // Return control flow of the classifier unchanged (M9), except a time-out, which becomes a denial: otherwise a
        // `Fallback` that catches time-outs would answer the run.
        if error.is_control_flow() && !error.is_timed_out() {
            return Err(error);
        }
        Err(Error::denied(NAME, format!("the {} could not be checked", part.as_str())).caused_by(error))
    }

    async fn apply_action(&self, part: RunPart, at: &str, label: &str, ctx: &RunContext) -> Result<Option<Value>> {
        let event = Filtered { part, at: at.to_owned(), label: label.to_owned(), action: self.0.action.name() };
        self.0.own_events.emit(ctx, || event).await;
        match &self.0.action {
            FilterAction::Deny(message) => Err(Error::denied(NAME, message.clone()).detail("label", label)),
            FilterAction::Answer(answer) => Ok(Some(answer.clone())),
            FilterAction::Mark => {
                mark(ctx, part, at, label)?;
                Ok(None)
            }
        }
    }
}

/// Appends a finding to the list in the run's context.
fn mark(ctx: &RunContext, part: RunPart, at: &str, label: &str) -> Result<()> {
    let mut marks = match ctx.get(MARK) {
        Some(Value::Array(marks)) => marks,
        // If other code has set this key, its value becomes the first item, so that neither the value nor the finding
        // is lost.
        Some(other) => vec![other],
        None => Vec::new(),
    };
    marks.push(json!({"part": part.as_str(), "at": at, "label": label}));
    Ok(ctx.set(MARK, marks)?)
}

impl Layer<JsonRun> for ContentFilterLayer {
    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        if self.0.inputs
            && let Some(answer) = self.check(RunPart::Input, input, ctx).await?
        {
            return Ok(answer);
        }
        // Errors of the work are not checked.
        let output = next.run(input).await?;
        let answer = if self.0.outputs { self.check(RunPart::Output, &output, ctx).await? } else { None };
        Ok(answer.unwrap_or(output))
    }

    fn name(&self) -> &str {
        NAME
    }
}

debug_as!(ContentFilterLayer, |this| this.0);
