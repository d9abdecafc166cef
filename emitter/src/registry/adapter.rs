//! Adapters that convert async functions and structs into arguments of `on_async` and `observe_async`.

use std::future::Future;
use std::sync::Arc;

use futures_core::future::BoxFuture;

use crate::{BoxError, EventMeta};

/// A listener that is a struct with an async method. [`listener`] converts it into an argument of `on_async`.
pub trait AsyncListener<T: ?Sized>: Send + Sync + 'static {
    /// Receives an event and may change it.
    fn receive(&self, event: &mut T, meta: &EventMeta<'_>) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// An observer that is a struct with an async method. [`observer`] converts it into an argument of `observe_async`.
pub trait AsyncObserver<T: ?Sized>: Send + Sync + 'static {
    /// Receives an event.
    fn observe(&self, event: &T, meta: &EventMeta<'_>) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// Converts an [`AsyncListener`] into an argument of `on_async`.
///
/// ```
/// use emitree_emitter::{AsyncListener, BoxError, Emitter, EventMeta, listener};
///
/// struct Doubler;
///
/// impl AsyncListener<u32> for Doubler {
///     async fn receive(&self, n: &mut u32, _: &EventMeta<'_>) -> Result<(), BoxError> {
///         *n *= 2;
///         Ok(())
///     }
/// }
///
/// Emitter::new().on_async("number", listener(Doubler))?;
/// # Ok::<(), emitree_emitter::ListenError>(())
/// ```
pub fn listener<T, L>(
    listener: L,
) -> impl for<'a> Fn(&'a mut T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static
where
    T: Send + ?Sized + 'static,
    L: AsyncListener<T>,
{
    let listener = Arc::new(listener);
    move |event, meta| {
        // The future owns its listener, because it cannot borrow from the closure.
        let listener = Arc::clone(&listener);
        Box::pin(async move { listener.receive(event, meta).await })
    }
}

/// Converts an [`AsyncObserver`] into an argument of `observe_async`.
pub fn observer<T, L>(
    observer: L,
) -> impl for<'a> Fn(&'a T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static
where
    T: Sync + ?Sized + 'static,
    L: AsyncObserver<T>,
{
    let observer = Arc::new(observer);
    move |event, meta| {
        // The future owns its observer, because it cannot borrow from the closure.
        let observer = Arc::clone(&observer);
        Box::pin(async move { observer.observe(event, meta).await })
    }
}

/// An async function of an event and its meta. Every function with this signature implements the trait; see
/// [`async_fn`].
pub trait AsyncItem<'a, T: ?Sized + 'a>: Fn(&'a mut T, &'a EventMeta<'a>) -> Self::Future {
    /// The future that the function returns.
    type Future: Future<Output = Result<(), BoxError>> + Send + 'a;
}

impl<'a, T, F, Fut> AsyncItem<'a, T> for F
where
    T: ?Sized + 'a,
    F: Fn(&'a mut T, &'a EventMeta<'a>) -> Fut,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'a,
{
    type Future = Fut;
}

/// Converts an `async fn` item, or an async closure that captures nothing, into an argument of `on_async`.
///
/// ```
/// use emitree_emitter::{BoxError, Emitter, EventMeta, async_fn};
///
/// async fn double(n: &mut u32, _: &EventMeta<'_>) -> Result<(), BoxError> {
///     *n *= 2;
///     Ok(())
/// }
///
/// Emitter::new().on_async("number", async_fn(double))?;
/// # Ok::<(), emitree_emitter::ListenError>(())
/// ```
pub fn async_fn<T, F>(
    f: F,
) -> impl for<'a> Fn(&'a mut T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static
where
    T: ?Sized + 'static,
    F: for<'a> AsyncItem<'a, T> + Send + Sync + 'static,
{
    move |event, meta| Box::pin(f(event, meta))
}
