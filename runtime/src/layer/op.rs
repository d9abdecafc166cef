//! Kinds of work (M1).

use std::any::type_name;

/// A kind of work that layers can wrap: a name, an input type and an output type.
///
/// Every [`Runnable`](crate::Runnable) that is `'static` is an `Op`. To let layers intercept another operation, define
/// a marker type, and call the operation through a [`Stack`](crate::Stack).
///
/// ```
/// use emitree_runtime::Op;
///
/// /// Reads a key from a store.
/// struct Read;
///
/// impl Op for Read {
///     type In = String;
///     type Out = Option<Vec<u8>>;
///
///     fn name() -> &'static str {
///         "store.read"
///     }
/// }
/// assert_eq!(Read::name(), "store.read");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kind of work that layers can wrap",
    label = "expected an `Op`: a `Runnable` that is `'static`, or a marker type with an `In` and an `Out`"
)]
pub trait Op: 'static {
    /// The input of the work.
    type In: Send + Sync + 'static;
    /// The output of the work.
    type Out: Send + Sync + 'static;

    /// Returns the name that lists and errors show. By default it is the type name.
    #[must_use]
    fn name() -> &'static str {
        type_name::<Self>()
    }
}
