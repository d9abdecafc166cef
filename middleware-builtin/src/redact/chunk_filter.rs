//! The redaction of text in chunks.

use std::sync::Arc;

use emitree_runtime::{Result, TextFilter};
use emitree_secrets::Chunks;

use super::redactor::Redactor;
use crate::shared::run_part::RunPart;

/// Replaces secrets in text that arrives in chunks.
pub(super) struct RedactFilter {
    name: String,
    redactor: Arc<Redactor>,
    chunks: Chunks,
}

impl RedactFilter {
    /// Creates the filter for events with this name.
    pub(super) fn new(name: &str, redactor: &Arc<Redactor>) -> Self {
        let chunks = redactor.options.scanner.chunks();
        Self { name: name.to_owned(), redactor: Arc::clone(redactor), chunks }
    }
}

impl TextFilter for RedactFilter {
    fn push(&mut self, text: &str) -> Result<String> {
        let Self { name, redactor, chunks } = self;
        let mut clear = String::new();
        chunks.push(text, |piece| redactor.put(&mut clear, piece, |kind| redactor.note(RunPart::Event, name, kind)));
        Ok(clear)
    }

    fn finish(&mut self) -> Result<String> {
        let Self { name, redactor, chunks } = self;
        let mut clear = String::new();
        chunks.finish(|piece| redactor.put(&mut clear, piece, |kind| redactor.note(RunPart::Event, name, kind)));
        Ok(clear)
    }
}
