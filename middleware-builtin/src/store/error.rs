//! The error of a store: [`StoreError`].

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use emitree_emitter::BoxError;
use thiserror::Error;

use super::head::time_text;
use super::{Holder, MAX_POSTS, Revision};

/// The maximum number of characters of an id that an error quotes.
const QUOTED: usize = 200;

/// An error of a [`Store`](super::Store).
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The entry has another revision than the change was made for. Nothing was changed.
    #[error("{}", Conflict { id, after: *after, current: *current })]
    Conflict {
        /// The id of the entry.
        id: String,
        /// The revision that the change was made for.
        after: Revision,
        /// The revision of the entry, or [`Revision::NONE`] if there is no entry.
        current: Revision,
    },
    /// Another process holds the entry. Nothing was changed.
    #[error("the entry `{id}` is held by `{}` until {}", holder.by, time_text(holder.until))]
    Held {
        /// The id of the entry.
        id: String,
        /// The other process, and the end of its lease.
        holder: Holder,
    },
    /// This process held the entry, and another process has claimed, changed or removed it. Nothing more is stored for
    /// the runs that had the claim.
    #[error("the entry `{id}` lost its claim to {} at {}", new_holder(to), time_text(*at))]
    Lost {
        /// The id of the entry.
        id: String,
        /// The process that holds the entry now, if there is one.
        to: Option<Holder>,
        /// When this process noticed the loss.
        at: SystemTime,
    },
    /// As many posts wait in the entry as are allowed. Nothing was changed.
    #[error("{MAX_POSTS} posts wait in the entry `{id}`, which is the limit: its process has to take them first")]
    Full {
        /// The id of the entry.
        id: String,
    },
    /// The id, the head or a part breaks a limit. Nothing was changed.
    #[error("the entry {id:?} is not valid: {problem}")]
    Invalid {
        /// The id of the entry, cut if it is long.
        id: String,
        /// The reason, and a hint at what would be valid.
        problem: String,
    },
    /// An entry is not as it was stored. The stored bytes stay as they are.
    #[error("the stored entry `{id}` is damaged: {problem}")]
    Damaged {
        /// The id of the entry.
        id: String,
        /// The defect.
        problem: String,
    },
    /// The store could not be used. It is unknown whether a change was made; repeat it with the same id.
    #[error("{message}")]
    Failed {
        /// The place and the reason.
        message: String,
        /// The cause.
        #[source]
        source: Arc<dyn StdError + Send + Sync>,
    },
}

impl StoreError {
    pub(super) fn invalid(id: &str, problem: impl Into<String>) -> Self {
        let cut = id.char_indices().nth(QUOTED).map(|(end, _)| format!("{}…", &id[..end]));
        Self::Invalid { id: cut.unwrap_or_else(|| id.to_owned()), problem: problem.into() }
    }

    /// Creates the error of an entry that is not as it was stored, for code that implements a store.
    pub fn damaged(id: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Damaged { id: id.into(), problem: problem.into() }
    }

    /// Creates the error of a store that cannot be used, for code that implements a store.
    pub fn failed(message: impl Into<String>, source: impl Into<BoxError>) -> Self {
        let source: BoxError = source.into();
        Self::Failed { message: message.into(), source: source.into() }
    }
}

fn new_holder(to: &Option<Holder>) -> String {
    to.as_ref().map_or_else(|| "another process".to_owned(), |holder| format!("`{}`", holder.by))
}

/// The message of a conflict.
struct Conflict<'a> {
    id: &'a str,
    after: Revision,
    current: Revision,
}

impl fmt::Display for Conflict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, after, current } = self;
        match (*after, *current) {
            (_, Revision::NONE) if *after == Revision::NONE => write!(f, "there is no entry `{id}`: store it first"),
            (Revision::NONE, _) => write!(f, "the entry `{id}` exists already, at revision {current}: load it first"),
            (_, Revision::NONE) => {
                write!(f, "there is no entry `{id}`, and the change was made for its revision {after}: it was removed")
            }
            _ => write!(
                f,
                "the entry `{id}` is at revision {current}, and the change was made for revision {after}: load it again"
            ),
        }
    }
}
