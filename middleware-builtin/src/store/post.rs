//! A message of any process to an entry: [`Post`].

use std::fmt;

use bytes::Bytes;
use emitree_emitter::new_id;
use uuid::Uuid;

use super::{MAX_PART_BYTES, StoreError, check_id};

/// The maximum number of posts that wait in an entry.
pub const MAX_POSTS: usize = 1_000;

/// Something that any process sends to an entry, also while another one holds it: [`Store::post`](super::Store::post).
///
/// The process that holds the entry, or the next one that does, takes it into the parts of the entry
/// ([`Append::takes`](super::Append::takes)).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Post {
    /// Identifies this post. A post that is repeated keeps its id, so that the entry gets it once.
    pub id: Uuid,
    /// If set, the entry gets no other post with this key, as long as it is stored: a question gets one answer.
    pub key: Option<String>,
    /// If set, the queue that the entry belongs to from now on.
    pub queue: Option<String>,
    /// The bytes that the code above the store reads, with at most [`MAX_PART_BYTES`].
    pub body: Bytes,
}

impl Post {
    /// Creates a post with a new id, and without a key.
    #[must_use]
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { id: new_id(), key: None, queue: None, body: body.into() }
    }

    /// Sets the id.
    #[must_use]
    pub fn id(mut self, id: Uuid) -> Self {
        self.id = id;
        self
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the queue.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Checks a post to an entry, for code that implements a store.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Invalid`] for the id of an entry, a key or a queue that [`check_id`] refuses, and for a body
    /// with more than [`MAX_PART_BYTES`].
    pub fn check(&self, entry: &str) -> Result<(), StoreError> {
        check_id(entry)?;
        for (what, name) in [("key", &self.key), ("queue", &self.queue)] {
            let checked = name.as_ref().map_or(Ok(()), |name| check_id(name));
            checked.map_err(|error| StoreError::invalid(entry, format!("the {what} of a post is none: {error}")))?;
        }
        let bytes = self.body.len();
        if bytes <= MAX_PART_BYTES {
            return Ok(());
        }
        let problem = format!("a post has {bytes} bytes, and at most {MAX_PART_BYTES} are allowed");
        Err(StoreError::invalid(entry, problem))
    }

    /// Returns the error of a post to an entry of another queue, for code that implements a store.
    #[must_use]
    pub fn other_queue(&self, entry: &str, stored: &str) -> StoreError {
        let posted = self.queue.as_deref().unwrap_or_default();
        let problem =
            format!("it belongs to the queue `{stored}`, and a post names the queue `{posted}`: use another id");
        StoreError::invalid(entry, problem)
    }
}

/// Shows the length of the body, because it may be secret.
impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Post")
            .field("id", &self.id)
            .field("key", &self.key)
            .field("queue", &self.queue)
            .field("body", &self.body.len())
            .finish()
    }
}

/// The result of [`Store::post`](super::Store::post).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The entry has the post, from this call or from an earlier one.
    Kept,
    /// The entry has another post with the same key: the first one. Its body is empty once it was taken.
    Refused(Post),
}
