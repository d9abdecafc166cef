//! Descriptions of middlewares, for lists and warnings (M2, M11, M12).

use std::fmt;

use crate::{HookInfo, LayerInfo, MiddlewareInfo, RunContext, Summary};

type SummaryFn<'a> = Box<dyn Fn() -> Summary + 'a>;
type LayersFn<'a> = Box<dyn Fn() -> Vec<LayerInfo> + 'a>;
type HooksFn<'a> = Box<dyn Fn() -> Vec<HookInfo> + 'a>;
type NearMissFn<'a> = Box<dyn Fn(&str, &str) -> Option<String> + 'a>;
type NamesBelowFn<'a> = Box<dyn Fn(&mut dyn FnMut(&str, &str)) + 'a>;
type SummaryInRunFn<'a> = Box<dyn Fn(&[MiddlewareInfo], Option<&RunContext>) -> Option<Summary> + 'a>;

/// The description of a [`Middleware`](crate::Middleware), for [`Explanation`](crate::Explanation)s and warnings. Returned by
/// [`Middleware::describe`](crate::Middleware::describe).
///
/// It computes nothing by itself: it borrows the middleware, and calls a function for each part that is asked for. No
/// part is needed to bind a middleware.
///
/// ```
/// use emitree_runtime::{
///     AnyRun, Description, Guard, Middleware, Op, Result, RunContext, Runnable, Stack, runnable_fn,
/// };
///
/// #[derive(Debug)]
/// struct Watch;
///
/// impl<O: Op> Guard<O> for Watch {}
///
/// /// A guard that is bound to runs with a long name.
/// #[derive(Debug)]
/// struct Watched {
///     longest: usize,
/// }
///
/// impl Watched {
///     fn stack(&self) -> Stack<AnyRun> {
///         Stack::builder().guard(Watch).build()
///     }
/// }
///
/// impl Middleware for Watched {
///     fn bind(&self, ctx: &RunContext) -> Result<()> {
///         if ctx.name().len() > self.longest { self.stack().bind(ctx) } else { Ok(()) }
///     }
///     fn name(&self) -> &str {
///         "watched"
///     }
///     fn describe(&self) -> Description<'_> {
///         Description::of(self)
///             .with_summary(|| format!("names of more than {} bytes", self.longest))
///             .with_layers(|| self.stack().layers())
///     }
/// }
///
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// let explanation = double.run(1).middleware(Watched { longest: 3 }).explain();
/// assert_eq!(explanation.middlewares[0].to_string(), "watched: names of more than 3 bytes");
/// assert_eq!(explanation.chain.len(), 1);
/// ```
#[must_use = "a description does nothing by itself"]
pub struct Description<'a> {
    summary: SummaryFn<'a>,
    summary_in_run: Option<SummaryInRunFn<'a>>,
    layers: Option<LayersFn<'a>>,
    hooks: Option<HooksFn<'a>>,
    near_miss: Option<NearMissFn<'a>>,
    names_below: Option<NamesBelowFn<'a>>,
}

impl<'a> Description<'a> {
    /// Creates the description of a middleware whose summary is its `Debug` output, truncated to
    /// [`Summary::MAX_BYTES`], and which adds no layers and no hooks.
    pub fn of<M: fmt::Debug + ?Sized>(middleware: &'a M) -> Self {
        Self {
            summary: Box::new(|| Summary::of(middleware)),
            summary_in_run: None,
            layers: None,
            hooks: None,
            near_miss: None,
            names_below: None,
        }
    }

    /// Sets the summary, in place of the `Debug` output and of an earlier
    /// [summary in a run](Self::with_summary_in_run).
    pub fn with_summary<S: Into<Summary>>(mut self, summary: impl Fn() -> S + 'a) -> Self {
        self.summary = Box::new(move || summary().into());
        self.summary_in_run = None;
        self
    }

    /// Sets the summary in the explanation of one run, if it depends on that run or on the run's other middlewares.
    /// Where the function returns `None`, the explanation contains the [summary](Self::with_summary).
    ///
    /// The function receives the middlewares of the run, in the order in which they are bound, and the run, or `None` in
    /// the explanation of a run that has not begun.
    pub fn with_summary_in_run(
        mut self,
        summary: impl Fn(&[MiddlewareInfo], Option<&RunContext>) -> Option<Summary> + 'a,
    ) -> Self {
        self.summary_in_run = Some(Box::new(summary));
        self
    }

    /// Sets the layers that the middleware adds to a run. Without them, a guard is not known to be a guard
    /// ([`handles`](crate::Middleware::handles)).
    pub fn with_layers(mut self, layers: impl Fn() -> Vec<LayerInfo> + 'a) -> Self {
        self.layers = Some(Box::new(layers));
        self
    }

    /// Sets the hooks that the middleware registers: its listeners and layers at named places of a runnable's work, such as
    /// the places of an agent's loop.
    pub fn with_hooks(mut self, hooks: impl Fn() -> Vec<HookInfo> + 'a) -> Self {
        self.hooks = Some(Box::new(hooks));
        self
    }

    /// Sets a function that takes a kind and a name, and returns the kind or name that the middleware selects and that
    /// was probably meant to be this kind or name.
    ///
    /// If a middleware that is bound with [`for_tree`](crate::for_tree) or [`for_nested`](crate::for_nested) has
    /// [handled](crate::Middleware::handles) no run, this function distinguishes a misspelled name from a run
    /// that did not occur.
    pub fn with_near_miss(mut self, near_miss: impl Fn(&str, &str) -> Option<String> + 'a) -> Self {
        self.near_miss = Some(Box::new(near_miss));
        self
    }

    /// Sets a function that calls another with the kind and the name of each run that a run with this middleware may
    /// start, as far as they are known. The middleware of an agent lists the agent's tools.
    ///
    /// A middleware for a run that is listed is not taken for one with a misspelled name, even if that run is never
    /// started.
    pub fn with_names_below(mut self, names: impl Fn(&mut dyn FnMut(&str, &str)) + 'a) -> Self {
        self.names_below = Some(Box::new(names));
        self
    }

    /// Returns the summary. See [`with_summary`](Self::with_summary).
    #[must_use]
    pub fn summary(&self) -> Summary {
        (self.summary)()
    }

    /// Returns the summary in a run, if there is one. See [`with_summary_in_run`](Self::with_summary_in_run).
    #[must_use]
    pub fn summary_in_run(&self, bound: &[MiddlewareInfo], ctx: Option<&RunContext>) -> Option<Summary> {
        self.summary_in_run.as_ref()?(bound, ctx)
    }

    /// Returns the layers. See [`with_layers`](Self::with_layers).
    #[must_use]
    pub fn layers(&self) -> Vec<LayerInfo> {
        self.layers.as_ref().map_or_else(Vec::new, |layers| layers())
    }

    /// Returns the hooks. See [`with_hooks`](Self::with_hooks).
    #[must_use]
    pub fn hooks(&self) -> Vec<HookInfo> {
        self.hooks.as_ref().map_or_else(Vec::new, |hooks| hooks())
    }

    /// Returns the kind or name that was probably meant. See [`with_near_miss`](Self::with_near_miss).
    #[must_use]
    pub fn near_miss(&self, kind: &str, name: &str) -> Option<String> {
        self.near_miss.as_ref()?(kind, name)
    }

    /// Returns `true` if the middleware may have a misspelled kind or name.
    pub(crate) const fn may_miss(&self) -> bool {
        self.near_miss.is_some()
    }

    /// Calls a function with the runs that may be started. See [`with_names_below`](Self::with_names_below).
    pub fn names_below(&self, see: &mut dyn FnMut(&str, &str)) {
        if let Some(names) = &self.names_below {
            names(see);
        }
    }

    /// Returns `true` if the middleware adds a guard: a layer, a function that changes values, or a hook.
    pub(crate) fn is_guard(&self) -> bool {
        self.layers().iter().any(|layer| layer.position.is_guard()) || self.hooks().iter().any(|hook| hook.is_guard)
    }
}

impl fmt::Debug for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Description")
            .field("summary", &self.summary())
            .field("layers", &self.layers())
            .field("hooks", &self.hooks())
            .finish_non_exhaustive()
    }
}
