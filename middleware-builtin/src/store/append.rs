//! One change of an entry: [`Append`].

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use emitree_emitter::new_id;
use uuid::Uuid;

use super::{EntryHead, Lengths, StoreError, check_id};

/// The longest lease, and the longest time until an entry is due. Longer times count as this one: ten years.
pub const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
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
    /// The name of the process that makes the change, which no other process has. It may be empty.
    pub by: String,
    /// For how long `by` holds the entry from now on, by the clock of the store. `None` releases the entry.
    pub lease: Option<Duration>,
    /// In how long the workers of the entry's queue [take](super::Store::take) the entry if nobody holds it, by the
    /// clock of the store. `None`: they do not. An entry that is held is due at the end of the lease.
    pub due: Option<Duration>,
    /// The ids of posts that the parts have now: they no longer wait. Others are ignored.
    pub takes: Vec<Uuid>,
}

impl Append {
    /// Creates a change with a new id, and without parts.
    #[must_use]
    pub fn new(head: EntryHead) -> Self {
        Self {
            id: new_id(),
            head,
            parts: Vec::new(),
            replaces: false,
            hides_older: false,
            by: String::new(),
            lease: None,
            due: None,
            takes: Vec::new(),
        }
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

    /// Sets the name of the process that makes the change.
    #[must_use]
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = by.into();
        self
    }

    /// Lets the process that makes the change hold the entry for a time.
    #[must_use]
    pub fn holding(mut self, lease: Duration) -> Self {
        self.lease = Some(lease.min(LONGEST));
        self
    }

    /// Lets workers take the entry after a time.
    #[must_use]
    pub fn due(mut self, due: Duration) -> Self {
        self.due = Some(due.min(LONGEST));
        self
    }

    /// Takes posts of the entry.
    #[must_use]
    pub fn taking(mut self, posts: impl IntoIterator<Item = Uuid>) -> Self {
        self.takes.extend(posts);
        self
    }

    /// Checks the change, and returns its head as JSON, for a store to keep. [`EntryHead::from_json`] reads it.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Invalid`] for an id that [`check_id`](super::check_id) refuses, for a head with more than
    /// [`MAX_HEAD_BYTES`](super::MAX_HEAD_BYTES) as JSON or with data that is nested too deeply, for a part with
    /// more than [`MAX_PART_BYTES`], for a lease without a name, and for names of processes and queues that are no ids.
    pub fn check(&self) -> Result<String, StoreError> {
        let json = self.head.check()?;
        self.check_names()?;
        let too_long = self.parts.iter().map(Bytes::len).enumerate().find(|(_, bytes)| *bytes > MAX_PART_BYTES);
        let Some((position, bytes)) = too_long else { return Ok(json) };
        let hint = "cut it over several parts";
        let problem = format!("part {position} has {bytes} bytes, and at most {MAX_PART_BYTES} are allowed: {hint}");
        Err(StoreError::invalid(&self.head.id, problem))
    }

    fn check_names(&self) -> Result<(), StoreError> {
        if self.lease.is_some() && self.by.is_empty() {
            return Err(StoreError::invalid(&self.head.id, "a process without a name cannot hold it: set `by`"));
        }
        let by = Some(&self.by).filter(|by| !by.is_empty());
        for (what, name) in
            by.map(|by| ("process", by)).into_iter().chain(self.head.queue.as_ref().map(|q| ("queue", q)))
        {
            check_id(name).map_err(|error| {
                StoreError::invalid(&self.head.id, format!("the name of its {what} is none: {error}"))
            })?;
        }
        Ok(())
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
            .field("by", &self.by)
            .field("lease", &self.lease)
            .field("due", &self.due)
            .field("takes", &self.takes)
            .finish()
    }
}
