//! State of middlewares, kept beside the history of a session.

use std::any::{Any, TypeId, type_name};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use emitree_runtime::{Error, Result, RunContext};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A value that a middleware keeps for a session. Made by [`Hooks::state`](crate::Hooks::state).
pub struct State<T> {
    key: Arc<str>,
    of: PhantomData<fn() -> T>,
}

impl<T: Default + Serialize + DeserializeOwned + Send + 'static> State<T> {
    pub(crate) fn new(owner: &str) -> Self {
        Self { key: format!("{owner}/{}", type_name::<T>()).into(), of: PhantomData }
    }

    /// Lends the value of the nearest agent: of this run, or of a run above it. It begins as the type's default.
    ///
    /// The value is locked meanwhile: the closure must not wait for anything that locks it too.
    ///
    /// # Errors
    ///
    /// Returns an error outside of an agent's run, and if a stored value does not fit the type.
    pub fn with<R>(&self, ctx: &RunContext, f: impl FnOnce(&mut T) -> R) -> Result<R> {
        let slices = ctx.extension::<Slices>().ok_or_else(|| {
            Error::new(format!(
                "the state `{}` belongs to an agent, and `{}` is not in a run of one",
                self.key,
                ctx.name()
            ))
        })?;
        slices.with(&self.key, f)
    }
}

impl<T> Clone for State<T> {
    fn clone(&self) -> Self {
        Self { key: Arc::clone(&self.key), of: PhantomData }
    }
}

impl<T> fmt::Debug for State<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("State").field(&self.key).finish()
    }
}

/// The state of all middlewares of a session. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Slices(Arc<Mutex<BTreeMap<Arc<str>, Slice>>>);

/// A value as it is stored, or as it is in use.
enum Slice {
    Stored(Value),
    Live(Box<dyn Live>),
}

trait Live: Send {
    fn as_any(&mut self) -> &mut dyn Any;
    fn to_json(&self) -> serde_json::Result<Value>;
}

impl<T: Serialize + Send + 'static> Live for T {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn to_json(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self)
    }
}

impl Slices {
    fn with<T, R>(&self, key: &Arc<str>, f: impl FnOnce(&mut T) -> R) -> Result<R>
    where
        T: Default + Serialize + DeserializeOwned + Send + 'static,
    {
        let mut slices = self.0.lock();
        let slice = slices.entry(Arc::clone(key)).or_insert_with(|| Slice::Live(Box::new(T::default())));
        if let Slice::Stored(value) = slice {
            let value: T = serde_path_to_error::deserialize(&*value)
                .map_err(|error| Error::new(format!("the stored state `{key}` does not fit: {error}")))?;
            *slice = Slice::Live(Box::new(value));
        }
        let live = match slice {
            Slice::Live(live) => live.as_mut().as_any().downcast_mut::<T>(),
            Slice::Stored(_) => None,
        };
        // Two types of one name, of two versions of a crate, say.
        let live = live.ok_or_else(|| Error::new(format!("the state `{key}` has another type")))?;
        debug_assert_eq!((*live).type_id(), TypeId::of::<T>());
        Ok(f(live))
    }

    /// Returns all values as JSON.
    pub(crate) fn snapshot(&self) -> Result<BTreeMap<Arc<str>, Value>> {
        let slices = self.0.lock();
        let json = |slice: &Slice| match slice {
            Slice::Stored(value) => Ok(value.clone()),
            Slice::Live(live) => live.to_json(),
        };
        slices.iter().map(|(key, slice)| Ok((Arc::clone(key), json(slice)?))).collect()
    }

    /// Puts all values back as they were.
    pub(crate) fn restore(&self, snapshot: &BTreeMap<Arc<str>, Value>) {
        let stored = snapshot.iter().map(|(key, value)| (Arc::clone(key), Slice::Stored(value.clone())));
        let before = std::mem::replace(&mut *self.0.lock(), stored.collect());
        // Dropping values is foreign code: not under the lock.
        drop(before);
    }
}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}
