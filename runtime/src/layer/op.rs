//! Kinds of work (M1).

use std::any::type_name;

/// A kind of work: a name, what it takes, and what it gives. Layers are laid around it.
///
/// Every [`Runnable`](crate::Runnable) that borrows nothing is one. So is every place where something can be intercepted: a marker type
/// stands for it.
///
/// ```
/// use emitree_runtime::Op;
///
/// /// A key is read from a store.
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
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kind of work",
    label = "expected an `Op`: a `Runnable` that is `'static`, or a marker type with an `In` and an `Out`"
)]
pub trait Op: 'static {
    /// What the work takes.
    type In: Send + Sync + 'static;
    /// What it gives.
    type Out: Send + Sync + 'static;

    /// What it is called where kinds of work are listed.
    #[must_use]
    fn name() -> &'static str {
        type_name::<Self>()
    }
}
