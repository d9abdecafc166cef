//! The last stage of a reply: its text and its reasoning pass through the text filters of the run.

use std::mem::take;

use emitree_emitter::Event;
use emitree_runtime::{Result, RunContext, TextFilter};

use crate::{ChunkStage, Chunks, Delta, NewToken};

/// Passes the text and the reasoning of a reply through the filters that middleware has added with
/// [`RunContext::filter_text`]. What the filters return reaches the listeners and the response alike. The arguments of
/// calls are filtered in their events only, because a part of JSON cannot be changed safely.
#[derive(Default)]
pub(crate) struct TextStage {
    /// The filter of the part that is being received.
    part: Option<TextPart>,
}

struct TextPart {
    is_reasoning: bool,
    filter: Box<dyn TextFilter>,
}

fn delta(is_reasoning: bool, text: String) -> Delta {
    if is_reasoning { Delta::Reasoning(text) } else { Delta::Text(text) }
}

impl TextStage {
    /// Returns the stage of an attempt, if the run has text filters.
    pub(crate) fn of(ctx: &RunContext) -> Option<Self> {
        ctx.text_filter(NewToken::NAME.as_str()).map(|_| Self::default())
    }

    fn push(&mut self, text: String, is_reasoning: bool, ctx: &RunContext, passed: &mut Vec<Delta>) -> Result<()> {
        // Another part begins: each part of a message is a text of its own.
        if self.part.as_ref().is_some_and(|part| part.is_reasoning != is_reasoning) {
            self.finish(passed)?;
        }
        if self.part.is_none() {
            let filter = ctx.text_filter(NewToken::NAME.as_str());
            self.part = filter.map(|filter| TextPart { is_reasoning, filter });
        }
        let clear = match &mut self.part {
            Some(part) => part.filter.push(&text)?,
            None => text,
        };
        // A piece that is held back as a whole needs no event.
        if !clear.is_empty() {
            passed.push(delta(is_reasoning, clear));
        }
        Ok(())
    }

    /// Ends the part that is being received.
    fn finish(&mut self, passed: &mut Vec<Delta>) -> Result<()> {
        if let Some(mut part) = self.part.take() {
            let rest = part.filter.finish()?;
            passed.extend((!rest.is_empty()).then(|| delta(part.is_reasoning, rest)));
        }
        Ok(())
    }
}

impl ChunkStage for TextStage {
    fn pass(&mut self, chunks: &mut Chunks, ctx: &RunContext) -> Result<()> {
        let mut passed = Vec::with_capacity(chunks.deltas.len() + 1);
        for delta in take(&mut chunks.deltas) {
            match delta {
                Delta::Text(text) => self.push(text, false, ctx, &mut passed)?,
                Delta::Reasoning(text) => self.push(text, true, ctx, &mut passed)?,
                // The data belongs to the reasoning before it: nothing of that may follow the data.
                signature @ Delta::Signature { index: None, .. } => {
                    self.finish(&mut passed)?;
                    passed.push(signature);
                }
                other => passed.push(other),
            }
        }
        if chunks.ended {
            self.finish(&mut passed)?;
        }
        chunks.deltas = passed;
        Ok(())
    }
}
