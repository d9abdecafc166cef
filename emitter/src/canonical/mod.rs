//! Payloads as JSON text in one form: keys sorted, no space, `null` members left out if wanted.
//!
//! What `serde_json` writes would have to be read again to be put into order. Here a member takes its place as soon as
//! it is written: mostly that is where it stands, for fields are few, and their order is known to who declared them.
//! Where there is text of another's making in a payload, it is not written here at all.

mod compound;
mod exotic;
mod key;
mod members;
mod string;
mod writer;

use serde::Serialize;

use self::members::Members;
use self::writer::{Form, Writer};

pub use self::exotic::Exotic;

/// Writes payloads as JSON text whose keys are sorted by their bytes as they are written; keeps its buffer from one
/// payload to the next.
///
/// ```
/// use emitree_emitter::{AnyEvent, Canonical};
///
/// #[derive(serde::Serialize)]
/// struct Answer { question: &'static str, answer: Option<u32>, id: u32 }
///
/// let (mut canonical, mut out) = (Canonical::new(), Vec::new());
/// let answer = Answer { question: "why?", answer: None, id: 7 };
/// answer.write_canonical(canonical.leave_out_nulls(true), &mut out)?;
/// assert_eq!(out, br#"{"id":7,"question":"why?"}"#);
/// # Ok::<(), emitree_emitter::Exotic>(())
/// ```
///
/// What is nested deeper than 128 objects and arrays stays in the order in which it was serialised, `null`s too.
#[derive(Debug)]
pub struct Canonical {
    members: Members,
    form: Form,
}

impl Canonical {
    /// One that keeps `null`s.
    #[must_use]
    pub const fn new() -> Self {
        Self { members: Members::new(), form: Form { sorts: true, leaves_out_nulls: false } }
    }

    /// One that leaves everything where it is serialised, for who only wants the text.
    pub(crate) const fn unsorted() -> Self {
        Self { members: Members::new(), form: Form { sorts: false, leaves_out_nulls: false } }
    }

    /// Whether members of objects that are `null` are left out; those of arrays never are.
    pub const fn leave_out_nulls(&mut self, are_left_out: bool) -> &mut Self {
        self.form.leaves_out_nulls = are_left_out;
        self
    }

    /// Appends a value, or nothing.
    pub(crate) fn write<T: Serialize + ?Sized>(&mut self, value: &T, out: &mut Vec<u8>) -> Result<(), Exotic> {
        let start = out.len();
        self.members.clear();
        let mut writer = Writer { out, members: &mut self.members, depth: 0, form: self.form };
        let written = value.serialize(&mut writer);
        written.inspect_err(|_| out.truncate(start))
    }
}

impl Default for Canonical {
    fn default() -> Self {
        Self::new()
    }
}
