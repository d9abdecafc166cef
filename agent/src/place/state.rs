//! State of middleware, kept beside the history of a session.

use std::any::{Any, type_name};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use emitree_runtime::{Error, Result, RunContext};
use parking_lot::ReentrantMutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::turn::LoopState;

/// A value that a middleware keeps for a session. Made by [`Hooks::state`](crate::Hooks::state).
///
/// The id of the middleware and the name of the type identify the value: two handles of one middleware for one type are
/// the same value.
pub struct State<T> {
    key: Arc<str>,
    of: PhantomData<fn() -> T>,
}

impl<T: Default + Serialize + DeserializeOwned + Send + 'static> State<T> {
    pub(crate) fn new(owner: &str) -> Self {
        Self { key: format!("{owner}/{}", type_name::<T>()).into(), of: PhantomData }
    }

    /// Calls a closure with the value that the nearest agent keeps: the agent of this run, or of a run above it. A value
    /// that was never used is the type's default.
    ///
    /// All values of the session are locked while the closure runs, so other threads wait. The closure may use other
    /// states. If it panics, the value stays as the closure left it.
    ///
    /// # Errors
    ///
    /// Returns an error outside of an agent's run, if a stored value does not fit the type, and if the closure of a call
    /// asks for the same value again.
    pub fn with<R>(&self, ctx: &RunContext, f: impl FnOnce(&mut T) -> R) -> Result<R> {
        let state = ctx.extension::<LoopState>().ok_or_else(|| {
            Error::new(format!(
                "the state `{}` belongs to an agent, and `{}` is not in a run of one",
                self.key,
                ctx.name()
            ))
        })?;
        state.session.slices().with(&self.key, f)
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

/// The state of all middlewares of a session. Clones share it.
///
/// Invariant: user code (a closure of `with`, a `Default`, a `Deserialize`) runs while the mutex is held, but never while
/// the map is borrowed: the value that it gets is taken out of the map for the time. So a nested `with` of another value
/// works, and one of the same value is an error instead of a deadlock.
#[derive(Clone, Default)]
pub(crate) struct Slices(Arc<ReentrantMutex<Map>>);

type Map = RefCell<BTreeMap<Arc<str>, Slice>>;

/// A value as it is stored, or as it is in use.
enum Slice {
    Stored(Value),
    Live(Box<dyn Live>),
    /// A closure has the value, on the thread that holds the mutex.
    Lent,
}

/// A value taken out of the map, which returns when the closure that has it returns or panics.
struct Loan<'a> {
    map: &'a Map,
    key: &'a Arc<str>,
    /// `None` until there is a value. If it is still `None` on drop, the key is removed from the map.
    slice: Option<Slice>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut map = self.map.borrow_mut();
        // The map holds the mark `Slice::Lent` here, whose drop runs no user code.
        match self.slice.take() {
            Some(slice) => map.insert(Arc::clone(self.key), slice),
            None => map.remove(self.key),
        };
    }
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
        // One mutex for all values: with one for each, two threads that nest `with` in opposite order would deadlock.
        let map = self.0.lock();
        let taken = map.borrow_mut().insert(Arc::clone(key), Slice::Lent);
        if matches!(taken, Some(Slice::Lent)) {
            return Err(Error::new(format!(
                "the state `{key}` is in use by the closure that asks for it again: use the value that the closure has"
            )));
        }
        // From here on the value returns to the map, even if user code panics.
        let mut loan = Loan { map: &map, key, slice: taken };
        if let Some(Slice::Stored(value)) = &loan.slice {
            let value: T = serde_path_to_error::deserialize(value)
                .map_err(|error| Error::new(format!("the stored state `{key}` does not fit: {error}")))?;
            loan.slice = Some(Slice::Live(Box::new(value)));
        }
        let live = match loan.slice.get_or_insert_with(|| Slice::Live(Box::new(T::default()))) {
            Slice::Live(live) => live.as_mut().as_any().downcast_mut::<T>(),
            Slice::Stored(_) | Slice::Lent => None,
        };
        // Two types can share a name, for example in two versions of a crate.
        let live = live.ok_or_else(|| Error::new(format!("the state `{key}` has another type")))?;
        Ok(f(live))
    }

    /// Returns all values as JSON.
    pub(crate) fn snapshot(&self) -> Result<BTreeMap<Arc<str>, Value>> {
        let map = self.0.lock();
        // A `Serialize` may use a state itself, so each value is lent to it as to a closure.
        let keys: Vec<_> = map.borrow().keys().cloned().collect();
        let mut values = BTreeMap::new();
        for key in keys {
            let taken = map.borrow_mut().insert(Arc::clone(&key), Slice::Lent);
            let loan = Loan { map: &map, key: &key, slice: taken };
            let value = match &loan.slice {
                Some(Slice::Stored(value)) => value.clone(),
                Some(Slice::Live(live)) => live.to_json()?,
                // A closure of this thread has it. Nothing takes a snapshot there.
                Some(Slice::Lent) | None => continue,
            };
            drop(loan);
            values.insert(key, value);
        }
        Ok(values)
    }

    /// Puts all values back as they were.
    pub(crate) fn restore(&self, snapshot: &BTreeMap<Arc<str>, Value>) {
        let stored = snapshot.iter().map(|(key, value)| (Arc::clone(key), Slice::Stored(value.clone()))).collect();
        let before = self.0.lock().replace(stored);
        // Dropping values is user code: without the mutex.
        drop(before);
    }
}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().borrow().keys()).finish()
    }
}
