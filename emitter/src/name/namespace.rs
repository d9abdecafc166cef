//! Arguments that name a child.

use std::borrow::Cow;

use crate::Namespace;

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
