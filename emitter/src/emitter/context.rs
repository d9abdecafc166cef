//! Context: a JSON map that every event of an emitter carries (E3, R9).

use std::sync::{Arc, LazyLock, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::BuildError;
use crate::emitter::group::GroupIds;

/// The key that marks the runtime's own events. Users cannot set it (R3).
pub(crate) const RESERVED: &str = "internal";

/// A shared, immutable JSON map that every event of an emitter carries. It is cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context(Option<Arc<Map<String, Value>>>);

/// The context of an emitter, and the group ids that were set after the emitter was created. If neither the context nor
/// the group id was changed, the context is read without a lock.
#[derive(Default)]
pub(crate) struct OwnContext {
    given: Context,
    changed: OnceLock<Box<ChangedContext>>,
}

struct ChangedContext {
    context: Mutex<Context>,
    groups: GroupIds,
}

impl OwnContext {
    pub(crate) const fn new(given: Context) -> Self {
        Self { given, changed: OnceLock::new() }
    }

    pub(crate) fn get(&self) -> Context {
        self.changed.get().map_or_else(|| self.given.clone(), |changed| changed.context.lock().clone())
    }

    pub(crate) fn set(&self, key: String, value: Value) {
        let mut context = self.changed().context.lock();
        *context = std::mem::take(&mut *context).with(key, value);
    }

    pub(crate) fn group(&self) -> Option<&Arc<str>> {
        self.changed.get().and_then(|changed| changed.groups.id())
    }

    pub(crate) fn set_group(&self, id: Arc<str>) {
        self.changed().groups.add(id);
    }

    fn changed(&self) -> &ChangedContext {
        let change = || ChangedContext { context: Mutex::new(self.given.clone()), groups: GroupIds::default() };
        self.changed.get_or_init(|| Box::new(change()))
    }
}

impl Context {
    /// Creates an empty context.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.as_deref()?.get(key)
    }

    /// Returns `true` if the context has no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.as_deref().is_none_or(Map::is_empty)
    }

    /// Iterates over keys and values, in the order of the map.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.as_deref().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns this context with one key set.
    #[must_use]
    pub fn with(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        let mut map = self.0.map(Arc::unwrap_or_clone).unwrap_or_default();
        map.insert(key.into(), value.into());
        Self(Some(Arc::new(map)))
    }

    /// Returns this context with the mark of the runtime's own events (R3).
    pub(crate) fn internal(self) -> Self {
        static INTERNAL_ONLY: LazyLock<Context> = LazyLock::new(|| Context::new().with(RESERVED, true));
        // Most runs have an empty context, so they share one marked map.
        if self.is_empty() { INTERNAL_ONLY.clone() } else { self.with(RESERVED, true) }
    }

    /// Returns this context with the keys of `other` added. If both contain a key, the result has the value of `other`.
    #[must_use]
    #[inline]
    pub fn merged(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            // If one side is empty, no map is copied.
            (_, None) => self.clone(),
            (None, _) => other.clone(),
            (Some(below), Some(above)) => {
                let mut map = Map::clone(below);
                map.extend(above.iter().map(|(key, value)| (key.clone(), value.clone())));
                Self(Some(Arc::new(map)))
            }
        }
    }

    /// Checks that the context sets no reserved key.
    ///
    /// # Errors
    ///
    /// Returns an error if the context sets `internal`, which is reserved for the runtime.
    pub fn refuse_reserved(&self) -> Result<(), BuildError> {
        if self.get(RESERVED).is_some() { Err(BuildError::ReservedKey(RESERVED)) } else { Ok(()) }
    }
}

impl From<Map<String, Value>> for Context {
    fn from(map: Map<String, Value>) -> Self {
        Self((!map.is_empty()).then(|| Arc::new(map)))
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Context {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect::<Map<_, _>>().into()
    }
}

impl Serialize for Context {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(map) => map.serialize(serializer),
            None => Map::new().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Context {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(Self::from)
    }
}
