//! State of middleware, kept beside the history of a session.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use emitree_emitter::json::to_value_exact;
use emitree_runtime::{Error, Result, RunContext};
use parking_lot::ReentrantMutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::turn::LoopState;

/// A handle to the value that a middleware keeps for a session. Created by [`Hooks::state`](crate::Hooks::state).
///
/// The id of the middleware identifies the value, even in a stored [`Session`](crate::Session). All handles of a
/// middleware share the value.
pub struct State<T> {
    key: Arc<str>,
    of: PhantomData<fn() -> T>,
}

impl<T: Default + Serialize + DeserializeOwned + Send + 'static> State<T> {
    pub(crate) fn new(owner: &str) -> Self {
        Self { key: owner.into(), of: PhantomData }
    }

    /// Calls a closure with the value from the session of the nearest agent, in this run or a run above. If the session
    /// has no value yet, the value is the type's default.
    ///
    /// All values of the session are locked while the closure runs, so other threads that use a value wait. The closure
    /// may call `with` for other values. If the closure panics, its changes so far stay.
    ///
    /// # Errors
    ///
    /// Returns an error if `ctx` is outside any agent's run, if the value in the session has another type or cannot be
    /// deserialized, or if the closure of another `with` already uses the value on this thread. Returns an error of kind
    /// `Aborted` in and below the run of a tool that was called in a discarded attempt of the agent.
    pub fn with<R>(&self, ctx: &RunContext, f: impl FnOnce(&mut T) -> R) -> Result<R> {
        let state = ctx.extension::<LoopState>().ok_or_else(|| {
            Error::new(format!(
                "the state `{}` belongs to an agent, but the run `{}` is neither an agent's run nor nested in one",
                self.key,
                ctx.name()
            ))
        })?;
        let call = state.call_around(ctx);
        let admit = || match call.as_ref().filter(|(_, call)| call.attempt() != state.session.attempt()) {
            None => Ok(()),
            Some((tool, _)) => Err(Error::aborted(format!(
                "the state `{}` cannot be used: the attempt in which `{}` was called was discarded",
                self.key,
                tool.name()
            ))),
        };
        state.session.slices().with(&self.key, admit, f)
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

/// The state of all middlewares of a session.
///
/// Invariant: user code (a closure of `with`, or an implementation of `Default`, `Serialize` or `Deserialize`) may run
/// while the mutex is held, but never while the map is borrowed. While user code has a value, the value is not in the
/// map. Therefore, a nested `with` of another value works, and a nested `with` of the same value returns an error
/// instead of deadlocking.
#[derive(Default)]
pub(crate) struct Slices(ReentrantMutex<Map>);

type Map = RefCell<BTreeMap<Arc<str>, Slice>>;

/// An entry of the map: a value, or a mark that the value is in use.
enum Slice {
    Stored(Value),
    Live(Box<dyn Live>),
    /// The value is in use, on the thread that holds the mutex.
    Lent,
}

/// A value that was taken out of the map. Dropping the loan puts the value back, even during a panic.
struct Loan<'a> {
    map: &'a Map,
    key: &'a Arc<str>,
    /// `None` until there is a value. If it is still `None` on drop, the key is removed from the map.
    slice: Option<Slice>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let replaced = match self.slice.take() {
            Some(slice) => self.map.borrow_mut().insert(Arc::clone(self.key), slice),
            None => self.map.borrow_mut().remove(self.key),
        };
        // If the closure let another attempt restore the session, the replaced entry is a value, whose drop may call user
        // code. The map is no longer borrowed here.
        drop(replaced);
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
        // The state is read back, so a number that JSON does not have must not become `null`.
        to_value_exact(self)
    }
}

impl Slices {
    /// Calls a closure with a value, if `admit` returns `Ok` once the values are locked. Another attempt first counts
    /// itself, and then restores the values under the lock. So a write of the attempt before is either undone, or refused
    /// by `admit` (A7).
    fn with<T, R>(&self, key: &Arc<str>, admit: impl FnOnce() -> Result<()>, f: impl FnOnce(&mut T) -> R) -> Result<R>
    where
        T: Default + Serialize + DeserializeOwned + Send + 'static,
    {
        // All values share one mutex. If each value had a mutex, two threads that nest `with` in opposite order would
        // deadlock.
        let map = self.0.lock();
        admit()?;
        let taken = map.borrow_mut().insert(Arc::clone(key), Slice::Lent);
        if matches!(taken, Some(Slice::Lent)) {
            return Err(Error::new(format!(
                "the state `{key}` is already borrowed by a closure on this thread: use the value that the closure received"
            )));
        }
        // When `loan` is dropped, it puts the value back into the map, even if user code panics.
        let mut loan = Loan { map: &map, key, slice: taken };
        if let Some(Slice::Stored(value)) = &loan.slice {
            let value: T = serde_path_to_error::deserialize(value)
                .map_err(|error| Error::new(format!("the stored state `{key}` cannot be deserialized: {error}")))?;
            loan.slice = Some(Slice::Live(Box::new(value)));
        }
        let live = match loan.slice.get_or_insert_with(|| Slice::Live(Box::new(T::default()))) {
            Slice::Live(live) => live.as_mut().as_any().downcast_mut::<T>(),
            Slice::Stored(_) | Slice::Lent => None,
        };
        // Two agents that share a session may have middlewares with the same id and different types.
        let live = live.ok_or_else(|| {
            Error::new(format!(
                "the state `{key}` has another type: middlewares with the same id must keep the same type in a session"
            ))
        })?;
        Ok(f(live))
    }

    /// Returns a copy of a value, or `None` if there is none.
    pub(crate) fn read<T: DeserializeOwned>(&self, key: &Arc<str>) -> Result<Option<T>> {
        let json = self.copy(key)?;
        let value = json.map(serde_path_to_error::deserialize);
        value.transpose().map_err(|error| Error::new(format!("the state `{key}` has another type: {error}")))
    }

    /// Returns a value as JSON. An implementation of `Serialize` may use another state, so the value is taken out of the
    /// map while it is serialized, as in `with`.
    fn to_json(map: &Map, key: &Arc<str>) -> Result<Option<Value>> {
        let taken = map.borrow_mut().insert(Arc::clone(key), Slice::Lent);
        let loan = Loan { map, key, slice: taken };
        match &loan.slice {
            Some(Slice::Stored(value)) => Ok(Some(value.clone())),
            Some(Slice::Live(live)) => {
                let json = live.to_json();
                json.map(Some).map_err(|error| Error::new(format!("the state `{key}` cannot be stored: {error}")))
            }
            Some(Slice::Lent) => Err(Error::new(format!(
                "the state `{key}` is borrowed by a closure on this thread: read or store the session after the closure"
            ))),
            // The value was removed by user code meanwhile.
            None => Ok(None),
        }
    }

    /// Returns all values as JSON.
    ///
    /// # Errors
    ///
    /// Returns an error if a value cannot be serialized, or if a closure on this thread is using a value.
    pub(crate) fn snapshot(&self) -> Result<BTreeMap<Arc<str>, Value>> {
        let map = self.0.lock();
        let keys: Vec<_> = map.borrow().keys().cloned().collect();
        let mut values = BTreeMap::new();
        for key in keys {
            if let Some(value) = Self::to_json(&map, &key)? {
                values.insert(key, value);
            }
        }
        Ok(values)
    }

    /// Returns a state whose values are deserialized when they are first used. A value that no middleware uses is kept
    /// unchanged.
    pub(crate) fn stored(values: &BTreeMap<Arc<str>, Arc<Value>>) -> Self {
        Self(ReentrantMutex::new(RefCell::new(slices(values))))
    }

    /// Returns a copy of a value as JSON, or `None` if there is none.
    pub(crate) fn copy(&self, key: &Arc<str>) -> Result<Option<Value>> {
        Self::to_json(&self.0.lock(), key)
    }

    /// Replaces a value with a copy, if `admits` returns `true` once the values are locked (A7).
    pub(crate) fn put_back(&self, key: &Arc<str>, copy: Option<Value>, admits: impl FnOnce() -> bool) {
        let map = self.0.lock();
        if !admits() {
            return;
        }
        let before = match copy {
            Some(value) => map.borrow_mut().insert(Arc::clone(key), Slice::Stored(value)),
            None => map.borrow_mut().remove(key),
        };
        // Dropping a value may call user code, so the mutex is unlocked first.
        drop(map);
        drop(before);
    }

    /// Replaces all values with the values of a snapshot.
    pub(crate) fn restore(&self, snapshot: &BTreeMap<Arc<str>, Arc<Value>>) {
        let before = self.0.lock().replace(slices(snapshot));
        // Dropping values may call user code, so the mutex is unlocked first.
        drop(before);
    }
}

fn slices(values: &BTreeMap<Arc<str>, Arc<Value>>) -> BTreeMap<Arc<str>, Slice> {
    values.iter().map(|(key, value)| (Arc::clone(key), Slice::Stored(Value::clone(value)))).collect()
}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().borrow().keys()).finish()
    }
}
