//! Who emits: the kind, name and identity behind an emitter.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize, Serializer};

use crate::panic::drop_catching;

/// What an emitter belongs to: a kind (`"Tool"`), a name (`"read_file"`), an identity, and the thing itself
/// where it is shared.
///
/// Two creators are equal when they are the same one, not when they are called the same.
#[derive(Clone)]
pub struct Creator(Arc<CreatorParts>);

struct CreatorParts {
    id: u64,
    kind: Cow<'static, str>,
    name: Cow<'static, str>,
    thing: Option<Arc<dyn Any + Send + Sync>>,
}

impl Creator {
    /// A creator with an identity of its own.
    #[must_use]
    pub fn new(kind: impl Into<Cow<'static, str>>, name: impl Into<Cow<'static, str>>) -> Self {
        Self::make(kind.into(), name.into(), None)
    }

    /// A creator that gives access to the thing itself.
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

    /// What kind of thing it is.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.0.kind
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A number that no other creator of this process has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The thing itself, where it is shared and is a `T`.
    #[must_use]
    pub fn thing<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.thing.as_deref()?.downcast_ref()
    }

    /// What a record keeps of it.
    #[must_use]
    pub fn to_record(&self) -> CreatorRecord {
        CreatorRecord { kind: self.0.kind.clone(), name: self.0.name.clone(), id: self.0.id }
    }
}

/// The thing is the user's, and may panic as it is dropped: at the end of an emit, for example, that was under way when the
/// last handle to the emitter went.
impl Drop for CreatorParts {
    fn drop(&mut self) {
        drop_catching("what a creator shared", self.thing.take());
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

/// A creator as it stands in a record: `{"kind": …, "name": …, "id": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CreatorRecord {
    /// What kind of thing it is.
    pub kind: Cow<'static, str>,
    /// What it is called.
    pub name: Cow<'static, str>,
    /// A number that no other creator of the recording process had.
    pub id: u64,
}
