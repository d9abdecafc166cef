//! Namespaces: arguments that name a child, and functions that join names.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::Namespace;

/// Joins a namespace and a name with a dot.
pub(crate) fn join(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { [namespace, ".", name].concat() }
}

/// Joins a namespace and a name into a shared string. Up to 128 bytes are joined on the stack, so that only the result
/// is allocated.
pub(crate) fn join_shared(namespace: &str, name: &str) -> Arc<str> {
    let mut joined = SmallVec::<[u8; 128]>::from_slice(namespace.as_bytes());
    joined.extend_from_slice(if namespace.is_empty() { b"" } else { b"." });
    joined.extend_from_slice(name.as_bytes());
    match std::str::from_utf8(&joined) {
        Ok(joined) => joined.into(),
        // Unreachable: two strings and a dot are valid UTF-8.
        Err(_) => join(namespace, name).into(),
    }
}

/// A value that names a child: one dotted name, several segments, or `()` for the namespace of the parent.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a child",
    label = "expected text, several segments, a `Namespace`, or `()` for the same namespace"
)]
pub trait IntoNamespace {
    /// Returns the dotted name, which is checked when it is used. `None` stands for the namespace of the parent.
    fn namespace(&self) -> Option<Cow<'_, str>>;
}

impl IntoNamespace for () {
    fn namespace(&self) -> Option<Cow<'_, str>> {
        None
    }
}

impl IntoNamespace for str {
    fn namespace(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(self))
    }
}

impl IntoNamespace for String {
    fn namespace(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(self))
    }
}

impl IntoNamespace for Namespace {
    fn namespace(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(self.as_str()))
    }
}

impl<S: AsRef<str>> IntoNamespace for [S] {
    fn namespace(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Owned(self.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(".")))
    }
}

impl<S: AsRef<str>, const N: usize> IntoNamespace for [S; N] {
    fn namespace(&self) -> Option<Cow<'_, str>> {
        self.as_slice().namespace()
    }
}

impl<N: IntoNamespace + ?Sized> IntoNamespace for &N {
    fn namespace(&self) -> Option<Cow<'_, str>> {
        (**self).namespace()
    }
}
