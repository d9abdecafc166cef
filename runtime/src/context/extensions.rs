//! Typed values of a run, which runs started in it may inherit (R9).

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::RunContext;
use crate::context::current::enter;
use crate::run::panic::discard_all;

/// A map from types to values. Clones share one map until one of them is changed.
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

/// A map with a cheap hasher, because a `TypeId` is a hash already.
type Map = FxHashMap<TypeId, Arc<dyn Any + Send + Sync>>;

impl Extensions {
    /// Inserts a value, replacing any value of the same type.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        drop(self.replace(value));
    }

    /// Inserts a value. Returns the value of the same type that it replaces.
    fn replace<T: Send + Sync + 'static>(&mut self, value: T) -> Option<Arc<dyn Any + Send + Sync>> {
        Arc::make_mut(self.0.get_or_insert_default()).insert(TypeId::of::<T>(), Arc::new(value))
    }

    /// Returns the value of type `T`.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.as_deref()?.get(&TypeId::of::<T>())?).downcast().ok()
    }

    /// Returns the value of type `T`; if there is none, inserts and returns `value`.
    pub(crate) fn get_or_insert<T: Send + Sync + 'static>(&mut self, value: &Arc<T>) -> Arc<T> {
        self.get().unwrap_or_else(|| {
            Arc::make_mut(self.0.get_or_insert_default()).insert(TypeId::of::<T>(), Arc::clone(value) as Arc<_>);
            Arc::clone(value)
        })
    }

    /// Returns the values of both maps. If both have a value of the same type, the value in `over` is taken.
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

/// The typed values of a run: the values that nested runs inherit, and the values of the run alone.
#[derive(Clone, Default)]
pub(crate) struct Values {
    /// Values for the run and the runs started in it.
    pub(crate) inherited: Extensions,
    /// Values for the run alone.
    pub(crate) own: Extensions,
}

impl Values {
    pub(crate) const NONE: Self = Self { inherited: Extensions(None), own: Extensions(None) };
}

/// The typed values of a run. The initial values are read without a lock; once a value is set, a copy behind a lock
/// replaces them.
pub(crate) struct RunExtensions {
    given: Values,
    set: OnceLock<Box<Mutex<Values>>>,
}

impl RunExtensions {
    /// Merges `given` with the values that the parent passes on: a value in `given` replaces a parent's value of the
    /// same type.
    #[inline]
    pub(crate) fn new(above: Option<&RunContext>, mut given: Values) -> Self {
        if let Some(above) = above {
            given.inherited = above.extensions().merged(&given.inherited);
        }
        Self { given, set: OnceLock::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.given.inherited.0.is_none() && self.given.own.0.is_none() && self.set.get().is_none()
    }

    /// Drops the values. If the drop of one value panics, the others are still dropped.
    pub(crate) fn discard(self) {
        let set = self.set.into_inner().map(|set| set.into_inner());
        for values in [Some(self.given), set].into_iter().flatten() {
            for extensions in [values.inherited, values.own] {
                let map = extensions.0.and_then(Arc::into_inner).unwrap_or_default();
                discard_all(map.into_values());
            }
        }
    }

    fn look<T>(&self, f: impl FnOnce(&Values) -> T) -> T {
        match self.set.get() {
            Some(set) => f(&set.lock()),
            None => f(&self.given),
        }
    }
}

impl RunContext {
    /// Returns a snapshot of the typed values that nested runs inherit.
    #[must_use]
    pub fn extensions(&self) -> Extensions {
        self.shared().extensions.look(|values| values.inherited.clone())
    }

    /// Returns the value of type `T` that was set for the run, or that the run inherits from its parent.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// struct Tenant(&'static str);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let outer = runnable_fn("outer", |(): (), _: RunContext| async move {
    ///     let inner = runnable_fn("inner", |(): (), ctx: RunContext| async move {
    ///         Ok(ctx.extension::<Tenant>().map(|tenant| tenant.0.to_owned()))
    ///     });
    ///     inner.run(()).await
    /// });
    /// assert_eq!(outer.run(()).extension(Tenant("acme")).await?.as_deref(), Some("acme"));
    /// assert_eq!(outer.run(()).await?, None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.shared().extensions.look(|values| values.inherited.get())
    }

    /// Sets a typed value for the run, and for runs that are started in it later. A replaced value that was set after
    /// the run began is dropped at once, unless it is still shared, for example with a run below or a snapshot. A value
    /// that the run began with is kept until the run itself is dropped.
    ///
    /// A value that holds a context of this run is never dropped, because the context keeps the run's values alive.
    pub fn set_extension<T: Send + Sync + 'static>(&self, value: T) {
        self.set_value(|values| values.inherited.replace(value));
    }

    /// Returns the value of type `T`. If there is none, sets and returns `T::default()`. Concurrent callers get the
    /// same value.
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
        self.extension().unwrap_or_else(|| self.keep_first(Arc::new(T::default()), |values| &mut values.inherited))
    }

    /// Returns the value of type `T` that was set for this run alone: runs started in it do not inherit the value.
    ///
    /// Own values and inherited values are separate: a run may have one of each with the same type.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// struct CallId(u32);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let id = |ctx: &RunContext| ctx.own_extension::<CallId>().map(|id| id.0);
    /// let outer = runnable_fn("outer", move |(): (), ctx: RunContext| async move {
    ///     let inner = runnable_fn("inner", move |(): (), ctx: RunContext| async move { Ok(id(&ctx)) });
    ///     Ok((id(&ctx), inner.run(()).await?))
    /// });
    /// assert_eq!(outer.run(()).own_extension(CallId(7)).await?, (Some(7), None));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn own_extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.shared().extensions.look(|values| values.own.get())
    }

    /// Sets a typed value for this run alone: runs started in it do not inherit the value.
    pub fn set_own_extension<T: Send + Sync + 'static>(&self, value: T) {
        self.set_value(|values| values.own.replace(value));
    }

    /// Returns the value of type `T` that was set for this run alone. If there is none, sets and returns `T::default()`.
    /// Concurrent callers get the same value.
    #[must_use]
    pub fn own_extension_or_default<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.own_extension().unwrap_or_else(|| self.keep_first(Arc::new(T::default()), |values| &mut values.own))
    }

    /// Sets `made`, unless another thread has set a value of this type in the meantime. Returns the value that is now
    /// set. If this is not `made`, then `made` is dropped inside the run.
    fn keep_first<T: Send + Sync + 'static>(&self, made: Arc<T>, of: fn(&mut Values) -> &mut Extensions) -> Arc<T> {
        let kept = self.change_values(|values| of(values).get_or_insert(&made));
        enter(self, || drop(made));
        kept
    }

    /// Sets a value. The value that it replaces is dropped inside the run, whichever thread drops it (R1), and without
    /// the lock, because the drop may call user code.
    fn set_value(&self, set: impl FnOnce(&mut Values) -> Option<Arc<dyn Any + Send + Sync>>) {
        if let Some(replaced) = self.change_values(set) {
            enter(self, || drop(replaced));
        }
    }

    /// Changes the values under the lock.
    fn change_values<T>(&self, change: impl FnOnce(&mut Values) -> T) -> T {
        let RunExtensions { given, set } = &self.shared().extensions;
        change(&mut set.get_or_init(|| Box::new(Mutex::new(given.clone()))).lock())
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").field("len", &self.0.as_deref().map_or(0, Map::len)).finish()
    }
}
