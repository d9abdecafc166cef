//! Typed values that a run carries, and that runs started in it inherit (R9).

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

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

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
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

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").field("len", &self.0.as_deref().map_or(0, Map::len)).finish()
    }
}
