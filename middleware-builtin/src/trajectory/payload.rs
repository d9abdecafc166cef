//! A payload, live or recorded, on its way into a line.

use emitree_emitter::{AnyEvent, Canonical};

use crate::canonical::Canon;

/// What an event carries.
#[derive(Clone, Copy)]
pub(super) enum Payload<'a> {
    Live(&'a dyn AnyEvent),
    Recorded(&'a str),
}

/// Brings payloads into one form; keeps its buffers from one to the next.
#[derive(Debug, Default)]
pub(super) struct Former {
    value: Canonical,
    text: Canon,
}

impl Payload<'_> {
    /// Appends it as it was serialised.
    pub(super) fn push(self, out: &mut Vec<u8>) {
        match self {
            Self::Live(event) => event.write_json(out),
            Self::Recorded(text) => out.extend_from_slice(text.as_bytes()),
        }
    }

    /// Appends it in canonical form: written so, or brought into it as text.
    #[inline]
    pub(super) fn push_canonical(self, out: &mut Vec<u8>, former: &mut Former, leave_out_nulls: bool) {
        if let Self::Live(event) = self
            && event.write_canonical(former.value.leave_out_nulls(leave_out_nulls), out).is_ok()
        {
            return;
        }
        let start = out.len();
        self.push(out);
        former.text.bring(out, start, leave_out_nulls);
    }
}

#[cfg(test)]
mod tests;
