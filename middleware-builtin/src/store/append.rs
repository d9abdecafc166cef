//! One change of an entry: [`Append`].

use std::fmt;

use bytes::Bytes;
use emitree_emitter::new_id;
use uuid::Uuid;

use super::{EntryHead, Lengths, StoreError};

/// The maximum length of a part, in bytes. Longer data is cut over several parts.
pub const MAX_PART_BYTES: usize = 512 * 1024;

/// A change of an entry: a new head, and parts that are added to the entry's parts, hide them or replace them.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Append {
    /// Identifies this change. A change that is repeated keeps its id, so that it is applied at most once.
    pub id: Uuid,
    /// The new head. Its [revision](EntryHead::revision) is the revision that the change is made for.
    pub head: EntryHead,
    /// The parts to add, each with at most [`MAX_PART_BYTES`].
    pub parts: Vec<Bytes>,
    /// If `true`, the parts replace all earlier parts of the entry. Together with
    /// [`hides_older`](Self::hides_older), only those that are hidden already are removed.
    pub replaces: bool,
    /// If `true`, earlier parts of the entry are hidden: [`load`](super::Store::load) returns the parts from this change
    /// on, and [`older_parts`](super::Store::older_parts) those before. A store may remove them instead.
    pub hides_older: bool,
}

impl Append {
    /// Creates a change with a new id, and without parts.
    #[must_use]
    pub fn new(head: EntryHead) -> Self {
        Self { id: new_id(), head, parts: Vec::new(), replaces: false, hides_older: false }
    }

    /// Adds a part.
    #[must_use]
    pub fn part(mut self, part: impl Into<Bytes>) -> Self {
        self.parts.push(part.into());
        self
    }

    /// Replaces all earlier parts of the entry with the parts of this change.
    #[must_use]
    pub fn replacing(mut self) -> Self {
        self.replaces = true;
        self
    }

    /// Hides all earlier parts of the entry.
    #[must_use]
    pub fn hiding(mut self) -> Self {
        self.hides_older = true;
        self
    }

    /// Checks the change, and returns its head as JSON, for a store to keep. [`EntryHead::from_json`] reads it.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Invalid`] for an id that [`check_id`](super::check_id) refuses, for a head with more than
    /// [`MAX_HEAD_BYTES`](super::MAX_HEAD_BYTES) as JSON or with data that is nested too deeply, and for a part with
    /// more than [`MAX_PART_BYTES`].
    pub fn check(&self) -> Result<String, StoreError> {
        let json = self.head.check()?;
        let too_long = self.parts.iter().map(Bytes::len).enumerate().find(|(_, bytes)| *bytes > MAX_PART_BYTES);
        let Some((position, bytes)) = too_long else { return Ok(json) };
        let hint = "cut it over several parts";
        let problem = format!("part {position} has {bytes} bytes, and at most {MAX_PART_BYTES} are allowed: {hint}");
        Err(StoreError::invalid(&self.head.id, problem))
    }
}

/// Shows the lengths of the parts.
impl fmt::Debug for Append {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Append")
            .field("id", &self.id)
            .field("head", &self.head)
            .field("parts", &Lengths(&self.parts))
            .field("replaces", &self.replaces)
            .field("hides_older", &self.hides_older)
            .finish()
    }
}
