//! The creator of events: the kind, name and identity of the thing that an emitter belongs to.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize, Serializer};

use crate::panic::discard;

/// Describes the thing that an emitter belongs to: its kind (`"Tool"`), its name (`"read_file"`), its identity, and
/// optionally the thing itself as a shared value.
///
/// Creators are compared by identity, not by kind and name.
#[derive(Clone)]
pub struct Creator(Arc<CreatorParts>);

struct CreatorParts {
    id: u64,
    kind: Cow<'static, str>,
    name: Cow<'static, str>,
    thing: Option<Arc<dyn Any + Send + Sync>>,
}

impl Creator {
    /// Creates a creator with a new identity.
    #[must_use]
    pub fn new(kind: impl Into<Cow<'static, str>>, name: impl Into<Cow<'static, str>>) -> Self {
        Self::make(kind.into(), name.into(), None)
    }

    /// Creates a creator with a new identity and a shared value. [`thing`](Self::thing) returns the value.
    #[must_use]
    pub fn of<T: Any + Send + Sync>(
        kind: impl Into<Cow<'static, str>>,
        name: impl Into<Cow<'static, str>>,
        thing: Arc<T>,
    ) -> Self {
        Self::make(kind.into(), name.into(), Some(thing))
    }

    fn make(kind: Cow<'static, str>, name: Cow<'static, str>, thing: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(CreatorParts { id: NEXT.fetch_add(1, Ordering::Relaxed), kind, name, thing }))
    }

    /// Returns the kind of the thing, such as `"Tool"`.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.0.kind
    }

    /// Returns the name of the thing, such as `"read_file"`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns a number that is unique among the creators of this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the shared value, if there is one and it is a `T`.
    #[must_use]
    pub fn thing<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.thing.as_deref()?.downcast_ref()
    }

    /// Returns the kind, name and id as an owned record.
    #[must_use]
    pub fn to_record(&self) -> CreatorRecord {
        CreatorRecord { kind: self.0.kind.clone(), name: self.0.name.clone(), id: self.0.id }
    }
}

/// The shared value is a user's value, whose drop may panic. The drop may happen at the end of an emit that holds the
/// last handle to the creator.
impl Drop for CreatorParts {
    fn drop(&mut self) {
        discard("the value shared by a creator", self.thing.take());
    }
}

impl PartialEq for Creator {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Creator {}

impl fmt::Debug for Creator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]#{}", self.kind(), self.name(), self.id())
    }
}

impl Serialize for Creator {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_record().serialize(serializer)
    }
}

/// A creator in a record: `{"kind": …, "name": …, "id": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CreatorRecord {
    /// The kind of the creator, such as `Tool`.
    pub kind: Cow<'static, str>,
    /// The name of the creator, such as `read_file`.
    pub name: Cow<'static, str>,
    /// A number that was unique among the creators of the recording process.
    pub id: u64,
}
