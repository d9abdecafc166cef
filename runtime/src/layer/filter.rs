//! Pipelines that a value passes, and that may be cut short (M3).

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;

use futures_core::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{Result, RunContext};

/// One station of a pipeline: it has the value to itself, and says whether the rest is asked.
pub trait Filter<T>: fmt::Debug + Send + Sync + 'static {
    /// Looks at the value, may change it, and says whether it goes on. What breaks says why.
    fn filter(&self, value: &mut T, ctx: &RunContext) -> impl Future<Output = Result<ControlFlow<String>>> + Send;

    /// Who breaks.
    fn name(&self) -> &str {
        type_name::<Self>()
    }
}

/// A closure as a filter. Made by [`filter_fn`].
pub struct FilterFn<F> {
    name: String,
    f: F,
}

/// Makes a filter of a closure that need not wait.
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

/// Who broke a pipeline, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Broken {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A pipeline: filters in list order. Cheap to clone.
///
/// ```
/// use std::ops::ControlFlow;
/// use emitree_runtime::{Filter, Filters, Result, RunContext};
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
/// async fn prompt(mut text: String, ctx: &RunContext) -> Result<Option<String>> {
///     let filters = Filters::new().with(Polite).with(Short(80));
///     match filters.pass(&mut text, ctx).await? {
///         ControlFlow::Continue(()) => Ok(Some(text)),
///         ControlFlow::Break(broken) => {
///             tracing::info!("{}: {}", broken.by, broken.reason);
///             Ok(None)
///         }
///     }
/// }
/// ```
pub struct Filters<T>(Vec<Arc<dyn DynFilter<T>>>);

impl<T: Send + 'static> Filters<T> {
    /// A pipeline that changes nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a filter, after those that there are.
    #[must_use]
    pub fn with(mut self, filter: impl Filter<T>) -> Self {
        self.0.push(Arc::new(filter));
        self
    }

    /// Has the value pass. After a break the rest is not asked; what was changed until then stays changed.
    ///
    /// # Errors
    ///
    /// That of the first filter that fails: the rest is not asked either.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the value as the filters have changed it until then.
    pub async fn pass(&self, value: &mut T, ctx: &RunContext) -> Result<ControlFlow<Broken>> {
        for filter in &self.0 {
            if let ControlFlow::Break(reason) = filter.filter(value, ctx).await? {
                return Ok(ControlFlow::Break(Broken { by: filter.name().to_owned(), reason }));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// [`pass`](Self::pass) for pipelines where a break only skips the rest, and nobody is to hear of it.
    ///
    /// # Errors
    ///
    /// That of the first filter that fails.
    ///
    /// # Cancel safety
    ///
    /// As [`pass`](Self::pass).
    pub async fn apply(&self, value: &mut T, ctx: &RunContext) -> Result<()> {
        self.pass(value, ctx).await.map(|_| ())
    }

    /// Returns `true` if there are no filters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the filters are called, in order.
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
