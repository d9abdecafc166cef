//! Replaces pseudonyms with their secrets, for the caller.
//!
//! The output is restored when the run has succeeded, after all layers and output functions: a layer that stores outputs
//! for other callers, such as a cache, and the session of an agent store pseudonyms. Each run then replaces the
//! pseudonyms with its own secrets.

use std::sync::Arc;

use emitree_emitter::{AnyEvent, BoxError, EventMeta, Options};
use emitree_runtime::{LifecycleMut, Result, RunContext, Stage};

use super::redactor::Redactor;
use crate::shared::json::{Path, strings_mut};

/// Registers the first listener of `success`, so that all other listeners receive the restored output.
///
/// Secrets that first occur in the output stay hidden: the redactor replaces them through a handle that hides them.
pub(super) fn restore_on_success(redactor: &Arc<Redactor>, ctx: &RunContext) -> Result<()> {
    let redactor = Arc::clone(redactor);
    let listener = move |event: &mut dyn AnyEvent, meta: &EventMeta<'_>| -> Result<(), BoxError> {
        let Some(LifecycleMut::Success(success)) = LifecycleMut::of(event, meta) else { return Ok(()) };
        let mut output = success.try_output_json()?;
        let mut is_changed = false;
        strings_mut(&mut output, &Path::Root, &mut |_, text| {
            if let Some(restored) = redactor.pseudonyms.restore(text) {
                *text = restored;
                is_changed = true;
            }
        });
        if is_changed { Ok(success.set_output_json(output)?) } else { Ok(()) }
    };
    ctx.emitter().with(Options::new().priority(i32::MAX)).on(Stage::Success, listener)?;
    Ok(())
}
