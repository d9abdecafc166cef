//! Pipelines of filters, which a value passes through until a filter returns `Break` (M3).

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;

use futures_core::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{Result, RunContext};

/// A filter of a pipeline: it may change a value, and decides whether the value continues to the next filter.
pub trait Filter<T>: fmt::Debug + Send + Sync + 'static {
    /// Checks the value, and may change it. Returns `Continue` to pass the value to the next filter, or `Break` with a
    /// reason to end the pipeline.
    fn filter(&self, value: &mut T, ctx: &RunContext) -> impl Future<Output = Result<ControlFlow<String>>> + Send;

    /// Returns the name that [`Broken::by`] contains if this filter returns `Break`. By default it is the type name.
    fn name(&self) -> &str {
        type_name::<Self>()
    }
}

/// A closure as a filter. Created by [`filter_fn`].
pub struct FilterFn<F> {
    name: String,
    f: F,
}

/// Creates a filter from a closure that is not async.
///
/// ```
/// use std::ops::ControlFlow;
/// use emitree_runtime::{Filters, filter_fn};
///
/// let trim = filter_fn("trim", |text: &mut String, _| {
///     *text = text.trim().to_owned();
///     Ok(if text.is_empty() { ControlFlow::Break("nothing to say".to_owned()) } else { ControlFlow::Continue(()) })
/// });
/// let filters = Filters::new().with(trim);
/// assert_eq!(filters.names().collect::<Vec<_>>(), ["trim"]);
/// ```
pub fn filter_fn<T, F>(name: impl Into<String>, f: F) -> FilterFn<F>
where
    F: Fn(&mut T, &RunContext) -> Result<ControlFlow<String>> + Send + Sync + 'static,
{
    FilterFn { name: name.into(), f }
}

impl<T, F> Filter<T> for FilterFn<F>
where
    T: Send,
    F: Fn(&mut T, &RunContext) -> Result<ControlFlow<String>> + Send + Sync + 'static,
{
    async fn filter(&self, value: &mut T, ctx: &RunContext) -> Result<ControlFlow<String>> {
        (self.f)(value, ctx)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl<F> fmt::Debug for FilterFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterFn").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The reason why a pipeline ended, and the name of the filter that ended it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Broken {
    /// The name of the filter.
    pub by: String,
    /// The reason that the filter returned.
    pub reason: String,
}

/// A pipeline of filters, which are called in the order in which they were added. Clones share the filters.
///
/// ```
/// use std::ops::ControlFlow;
/// use emitree_runtime::{Error, Filter, Filters, Result, RunContext, Runnable, runnable_fn};
///
/// #[derive(Debug)]
/// struct Polite;
/// impl Filter<String> for Polite {
///     async fn filter(&self, text: &mut String, _: &RunContext) -> Result<ControlFlow<String>> {
///         text.insert_str(0, "please, ");
///         Ok(ControlFlow::Continue(()))
///     }
/// }
///
/// #[derive(Debug)]
/// struct Short(usize);
/// impl Filter<String> for Short {
///     async fn filter(&self, text: &mut String, _: &RunContext) -> Result<ControlFlow<String>> {
///         Ok(if text.len() > self.0 { ControlFlow::Break("too long".to_owned()) } else { ControlFlow::Continue(()) })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let ask = runnable_fn("ask", |mut text: String, ctx: RunContext| async move {
///     let filters = Filters::new().with(Polite).with(Short(20));
///     match filters.pass(&mut text, &ctx).await? {
///         ControlFlow::Continue(()) => Ok(text),
///         ControlFlow::Break(broken) => Err(Error::denied(broken.by, broken.reason)),
///     }
/// });
/// assert_eq!(ask.run("sit down".to_owned()).await?, "please, sit down");
/// assert!(ask.run("do sit down over there".to_owned()).await.unwrap_err().is_denied());
/// # Ok(())
/// # }
/// ```
pub struct Filters<T>(Vec<Arc<dyn DynFilter<T>>>);

impl<T: Send + 'static> Filters<T> {
    /// Creates an empty pipeline, which changes nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a filter at the end.
    #[must_use]
    pub fn with(mut self, filter: impl Filter<T>) -> Self {
        self.0.push(Arc::new(filter));
        self
    }

    /// Passes a value through the filters. If a filter returns [`ControlFlow::Break`], the later filters are not called.
    /// Changes already made to the value stay.
    ///
    /// # Errors
    ///
    /// Returns the error of the first filter that fails. The filters after it are not called.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value keeps the changes that the filters have made so far.
    pub async fn pass(&self, value: &mut T, ctx: &RunContext) -> Result<ControlFlow<Broken>> {
        // The first filter that returns `Break` or an error ends the pipeline: the filters after it are not called (M3).
        for filter in &self.0 {
            if let ControlFlow::Break(reason) = filter.filter(value, ctx).await? {
                return Ok(ControlFlow::Break(Broken { by: filter.name().to_owned(), reason }));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Passes a value through the filters as [`pass`](Self::pass) does, and returns `Ok(())` even if a filter returns
    /// [`ControlFlow::Break`].
    ///
    /// # Errors
    ///
    /// Returns the error of the first filter that fails.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value keeps the changes that the filters have made so far.
    pub async fn apply(&self, value: &mut T, ctx: &RunContext) -> Result<()> {
        self.pass(value, ctx).await.map(|_| ())
    }

    /// Returns `true` if there are no filters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names of the filters, in the order in which they are called.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|filter| filter.name())
    }
}

trait DynFilter<T>: Send + Sync {
    fn filter<'a>(&'a self, value: &'a mut T, ctx: &'a RunContext) -> BoxFuture<'a, Result<ControlFlow<String>>>;
    fn name(&self) -> &str;
}

impl<T: Send + 'static, F: Filter<T>> DynFilter<T> for F {
    fn filter<'a>(&'a self, value: &'a mut T, ctx: &'a RunContext) -> BoxFuture<'a, Result<ControlFlow<String>>> {
        Box::pin(Filter::filter(self, value, ctx))
    }

    fn name(&self) -> &str {
        Filter::name(self)
    }
}

impl<T> Clone for Filters<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Filters<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> fmt::Debug for Filters<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|filter| filter.name())).finish()
    }
}
