//! Text that guards and redactions inspect: in events whose text arrives in chunks, and in errors.

pub(crate) mod chunked_events;
pub(crate) mod error_text;
