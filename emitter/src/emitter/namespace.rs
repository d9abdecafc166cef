//! Namespaces of emitters.
//!
//! A chain of emitters would need memory in proportion to the square of its length if each kept its whole namespace.
//! Therefore, an emitter keeps a long namespace as its own name only, and joins it with the names above on demand.

use std::iter::from_fn;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::Emitter;
use crate::name::fingerprint;

/// The longest namespace, in bytes, that each emitter keeps as a whole.
const MAX_WHOLE: usize = 128;

/// The namespace of an emitter that has a name of its own.
pub(crate) enum OwnNamespace {
    Whole(Arc<str>),
    /// A namespace of more than `MAX_WHOLE` bytes.
    Long(Box<LongNamespace>),
}

pub(crate) struct LongNamespace {
    /// The name of the emitter itself.
    last: Box<str>,
    /// The length of the whole namespace.
    length: usize,
    /// The whole namespace, once somebody has borrowed it.
    whole: OnceLock<Arc<str>>,
}

impl OwnNamespace {
    /// Creates the namespace of an emitter with a name, below an emitter with this namespace.
    pub(crate) fn below(above: Option<&Self>, name: &str) -> Self {
        let length = above.map_or(0, |above| above.len() + 1) + name.len();
        match above {
            None if length <= MAX_WHOLE => Self::Whole(name.into()),
            Some(Self::Whole(above)) if length <= MAX_WHOLE => Self::Whole(join_shared(above, name)),
            _ => Self::Long(Box::new(LongNamespace { last: name.into(), length, whole: OnceLock::new() })),
        }
    }

    /// Returns a hash of the whole namespace. `above` is the namespace above and its hash. Equal namespaces have the
    /// same hash, even if they are joined from different names.
    pub(crate) fn hash(&self, above: Option<(&Self, u64)>) -> u64 {
        // FNV-1a, which continues with the hash of the text before.
        let add = |hash: u64, text: &str| {
            text.bytes().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
        };
        match (self, above) {
            (Self::Whole(text), _) => fingerprint(text.as_bytes()),
            (Self::Long(long), None) => add(0xCBF2_9CE4_8422_2325, &long.last),
            (Self::Long(long), Some((Self::Whole(above), _))) => {
                add(add(add(0xCBF2_9CE4_8422_2325, above), "."), &long.last)
            }
            (Self::Long(long), Some((Self::Long(_), hash))) => add(add(hash, "."), &long.last),
        }
    }

    /// Returns the whole namespace of an emitter below `above`.
    pub(crate) fn joined(&self, above: Option<&Emitter>) -> Arc<str> {
        match (self, above) {
            (Self::Whole(text), _) => Arc::clone(text),
            (Self::Long(long), Some(above)) => above.join(&long.last).into(),
            (Self::Long(long), None) => long.last.as_ref().into(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Whole(text) => text.len(),
            Self::Long(long) => long.length,
        }
    }
}

impl Emitter {
    /// Returns the namespace of the nearest emitter that has a name of its own, from here up the tree.
    #[inline]
    pub(crate) fn own_namespace(&self) -> Option<(&Self, &OwnNamespace)> {
        self.upwards().find_map(|emitter| Some((emitter, emitter.node().namespace.as_ref()?)))
    }

    /// Returns the names of the emitters from the root to this emitter, joined by dots. The namespace of a root is
    /// empty.
    ///
    /// An emitter whose namespace is longer than 128 bytes joins it when this method is first called, and keeps it from
    /// then on.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self.own_namespace() {
            None => "",
            Some((_, OwnNamespace::Whole(text))) => text,
            Some((emitter, OwnNamespace::Long(long))) => long.whole.get_or_init(|| emitter.join_parts(&[]).into()),
        }
    }

    /// Returns the namespace as a shared string, or `None` if it is empty. Joins a long namespace without keeping it.
    pub(crate) fn shared_namespace(&self) -> Option<Arc<str>> {
        match self.own_namespace()? {
            (_, OwnNamespace::Whole(text)) => Some(Arc::clone(text)),
            (emitter, OwnNamespace::Long(_)) => Some(emitter.join_parts(&[]).into()),
        }
    }

    /// Joins the namespace and a name with a dot.
    pub(crate) fn join(&self, name: &str) -> String {
        match self.own_namespace() {
            None => name.to_owned(),
            Some((_, OwnNamespace::Whole(namespace))) => [namespace, ".", name].concat(),
            Some((emitter, OwnNamespace::Long(_))) => emitter.join_parts(&[name]),
        }
    }

    /// Joins the parts of the namespace and further names with dots.
    #[cold]
    fn join_parts(&self, names: &[&str]) -> String {
        let mut parts: Vec<&str> = self.namespace_parts().collect();
        parts.reverse();
        parts.extend(names);
        parts.join(".")
    }

    /// Returns the parts that the namespace is joined from, the last part first.
    fn namespace_parts(&self) -> impl Iterator<Item = &str> {
        let mut next = self.own_namespace();
        from_fn(move || {
            let (emitter, own) = next.take()?;
            match own {
                OwnNamespace::Whole(text) => Some(&**text),
                OwnNamespace::Long(long) => {
                    next = emitter.parent().and_then(Self::own_namespace);
                    Some(&*long.last)
                }
            }
        })
    }

    /// Returns `true` if `path` is the namespace and `name`, joined with a dot. Does not allocate.
    pub(crate) fn joins_to(&self, name: &str, path: &str) -> bool {
        is_joined(path, name, self.namespace_parts())
    }

    /// Returns `true` if `text` is the namespace. Does not allocate.
    pub(crate) fn has_namespace(&self, text: &str) -> bool {
        let mut parts = self.namespace_parts();
        match parts.next() {
            Some(last) => is_joined(text, last, parts),
            None => text.is_empty(),
        }
    }
}

/// Returns `true` if `text` is `last` behind the parts above it, joined with dots. The parts are in reverse order.
fn is_joined<'a>(text: &str, last: &str, above: impl Iterator<Item = &'a str>) -> bool {
    let Some(mut rest) = text.strip_suffix(last) else { return false };
    for part in above {
        let before = rest.strip_suffix('.').and_then(|rest| rest.strip_suffix(part));
        let Some(before) = before else { return false };
        rest = before;
    }
    rest.is_empty()
}

/// Joins a namespace and a name into a shared string. The text is joined on the stack, so that only the result is
/// allocated.
fn join_shared(namespace: &str, name: &str) -> Arc<str> {
    let mut joined = SmallVec::<[u8; MAX_WHOLE]>::from_slice(namespace.as_bytes());
    joined.push(b'.');
    joined.extend_from_slice(name.as_bytes());
    match std::str::from_utf8(&joined) {
        Ok(joined) => joined.into(),
        // Unreachable: two strings and a dot are valid UTF-8.
        Err(_) => [namespace, ".", name].concat().into(),
    }
}
