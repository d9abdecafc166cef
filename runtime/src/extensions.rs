//! Typed values that a run carries, and that runs started in it inherit (R9).

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::RunContext;
use crate::current::enter;

/// A typed map; clones share what is in it until one of them is changed.
///
/// ```
/// use emitree_runtime::Extensions;
///
/// struct Tenant(&'static str);
///
/// let mut extensions = Extensions::default();
/// extensions.insert(Tenant("acme"));
/// assert_eq!(extensions.get::<Tenant>().map(|tenant| tenant.0), Some("acme"));
/// ```
#[derive(Clone, Default)]
pub struct Extensions(Option<Arc<Map>>);

/// Identities of types are hashes already.
type Map = FxHashMap<TypeId, Arc<dyn Any + Send + Sync>>;

impl Extensions {
    /// Puts a value in; another of its type goes.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        let map = Arc::make_mut(self.0.get_or_insert_default());
        map.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// The value of a type.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.as_deref()?.get(&TypeId::of::<T>())?).downcast().ok()
    }

    /// The value of a type, which is this one if there was none.
    pub(crate) fn get_or_insert<T: Send + Sync + 'static>(&mut self, value: &Arc<T>) -> Arc<T> {
        self.get().unwrap_or_else(|| {
            Arc::make_mut(self.0.get_or_insert_default()).insert(TypeId::of::<T>(), Arc::clone(value) as Arc<_>);
            Arc::clone(value)
        })
    }

    /// These values, with those of another map over them.
    pub(crate) fn merged(&self, over: &Self) -> Self {
        match (&self.0, &over.0) {
            (_, None) => self.clone(),
            (None, _) => over.clone(),
            (Some(below), Some(above)) => {
                let mut map = Map::clone(below);
                map.extend(above.iter().map(|(id, value)| (*id, Arc::clone(value))));
                Self(Some(Arc::new(map)))
            }
        }
    }
}

/// The values of a run. Those that it began with are read without a lock, until one is set.
#[derive(Default)]
pub(crate) struct OwnExtensions {
    given: Extensions,
    set: OnceLock<Box<Mutex<Extensions>>>,
}

impl OwnExtensions {
    /// Those of the run above, with a run's own over them.
    #[inline]
    pub(crate) fn new(above: Option<&RunContext>, own: Extensions) -> Self {
        let given = match above {
            Some(above) => above.extensions().merged(&own),
            None => own,
        };
        Self { given, set: OnceLock::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.given.0.is_none() && self.set.get().is_none()
    }

    fn look<T>(&self, f: impl FnOnce(&Extensions) -> T) -> T {
        match self.set.get() {
            Some(set) => f(&set.lock()),
            None => f(&self.given),
        }
    }

    /// Changes them under a lock; gives back what they were: to drop that may be user code.
    fn change<T>(&self, f: impl FnOnce(&mut Extensions) -> T) -> (T, Extensions) {
        let mut extensions = self.set.get_or_init(|| Box::new(Mutex::new(self.given.clone()))).lock();
        let before = extensions.clone();
        (f(&mut extensions), before)
    }
}

impl RunContext {
    /// The typed values that the run carries, as they are now.
    #[must_use]
    pub fn extensions(&self) -> Extensions {
        self.own_extensions().look(Extensions::clone)
    }

    /// The typed value of a type.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.own_extensions().look(Extensions::get)
    }

    /// Sets a typed value, for the run and for runs started in it later.
    pub fn set_extension<T: Send + Sync + 'static>(&self, value: T) {
        self.change_extensions(|extensions| extensions.insert(value));
    }

    /// The typed value of a type; where there is none, its default is set. However many ask at the same time, they
    /// get the same one.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let calls = runnable_fn("calls", |(): (), ctx: RunContext| async move {
    ///     ctx.extension_or_default::<AtomicU32>().fetch_add(1, Ordering::Relaxed);
    ///     Ok(ctx.extension_or_default::<AtomicU32>().load(Ordering::Relaxed))
    /// });
    /// assert_eq!(calls.run(()).await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn extension_or_default<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.extension().unwrap_or_else(|| {
            // Making one, and dropping one that comes too late, is user code.
            let made = Arc::new(T::default());
            self.change_extensions(|extensions| extensions.get_or_insert(&made))
        })
    }

    /// What is replaced is dropped in the run, whoever does it (R1).
    pub(crate) fn change_extensions<T>(&self, change: impl FnOnce(&mut Extensions) -> T) -> T {
        let (changed, before) = self.own_extensions().change(change);
        enter(self, || drop(before));
        changed
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").field("len", &self.0.as_deref().map_or(0, Map::len)).finish()
    }
}
