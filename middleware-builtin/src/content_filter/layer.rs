//! The guard that checks input and output, and the layer that answers its denials.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::json::check_depth;
use emitree_runtime::{Error, Guard, JsonRun, Layer, Next, Result, RunContext};
use serde_json::{Value, json};

use super::{ContentFilterInner, FilterAction, Filtered, MARK, NAME, RunPart};
use crate::shared::built_in::debug_as;
use crate::shared::json::{Path, texts};

/// The guard of one binding. A check returns an error if the value has a finding or cannot be checked.
pub(super) struct ContentFilterGuard {
    pub(super) filter: Arc<ContentFilterInner>,
    pub(super) finding: Finding,
}

/// The cause of a denial that an [`AnswerLayer`] turns into its answer. Each binding has a finding of its own, so that
/// no layer answers the denial of another filter or of another run.
#[derive(Clone, Debug, Default)]
pub(super) struct Finding(Arc<()>);

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unwanted content was found")
    }
}

impl std::error::Error for Finding {}

impl ContentFilterGuard {
    async fn check(&self, part: RunPart, value: &Value, ctx: &RunContext) -> Result<()> {
        // Reading the strings recurses: a value that is nested too deeply cannot be checked.
        check_depth(value)?;
        let mut failure = None;
        for (at, text) in texts(value, &Path::root_of(ctx.kind(), part == RunPart::Input)) {
            match self.filter.rules.first_label(text).await {
                Ok(None) => {}
                Ok(Some(label)) => return self.apply_action(part, &at, &label, ctx).await,
                // A filter that only marks goes on to the next text: a failure must not hide a finding.
                Err(error) if matches!(self.filter.action, FilterAction::Mark) => _ = failure.get_or_insert(error),
                Err(error) => return Err(error),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn apply_action(&self, part: RunPart, at: &str, label: &str, ctx: &RunContext) -> Result<()> {
        let event = Filtered { part, at: at.to_owned(), label: label.to_owned(), action: self.filter.action.name() };
        self.filter.own_events.emit(ctx, || event).await;
        match &self.filter.action {
            FilterAction::Deny(message) => Err(Error::denied(NAME, message.clone()).detail("label", label)),
            FilterAction::Answer(_) => {
                Err(Error::denied(NAME, "the content is not allowed").caused_by(self.finding.clone()))
            }
            FilterAction::Mark => mark(ctx, part, at, label),
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

impl Guard<JsonRun> for ContentFilterGuard {
    async fn check_input(&self, input: &Value, ctx: &RunContext) -> Result<()> {
        if self.filter.inputs { self.check(RunPart::Input, input, ctx).await } else { Ok(()) }
    }

    async fn check_output(&self, output: &Value, ctx: &RunContext) -> Result<()> {
        if self.filter.outputs { self.check(RunPart::Output, output, ctx).await } else { Ok(()) }
    }

    fn name(&self) -> &str {
        NAME
    }
}

debug_as!(ContentFilterGuard, |this| this.filter);

/// The layer outside of the guard that answers its denials. A guard cannot change a value.
pub(super) struct AnswerLayer {
    pub(super) answer: Value,
    pub(super) finding: Finding,
}

impl Layer<JsonRun> for AnswerLayer {
    async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        match next.run(input).await {
            Err(denial) if denial.find::<Finding>().is_some_and(|Finding(by)| Arc::ptr_eq(by, &self.finding.0)) => {
                // The answer replaces the denial: absorb it, because it would overrule any other result (M9).
                next.absorb(&denial);
                Ok(self.answer.clone())
            }
            result => result,
        }
    }

    fn name(&self) -> &str {
        "content_filter.answer"
    }
}

impl fmt::Debug for AnswerLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("answers findings")
    }
}
