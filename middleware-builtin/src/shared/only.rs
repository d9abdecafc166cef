//! Binds a middleware to selected runs only: [`Only`].

use std::fmt;

use emitree_runtime::{Description, IntoMiddleware, Middleware, Order, Result, RunContext, Summary};

use crate::shared::runs::Runs;

/// A middleware that is bound to selected runs only. Returned by [`Runs::only`].
pub struct Only<M> {
    runs: Runs,
    middleware: M,
}

impl Runs {
    /// Returns a middleware that is bound to these runs only.
    ///
    /// With [`for_tree`](emitree_runtime::for_tree), the middleware is bound to the matching runs among a run and its
    /// descendants. With [`for_nested`](emitree_runtime::for_nested), the middleware is bound to the matching
    /// descendants only. If a predicate panics, the run is denied.
    ///
    /// Without `for_tree` and `for_nested`, the middleware is bound to one run. If that run cannot be selected, and the
    /// middleware has a guard, the run ends before its `start`, with an error that says what to write.
    ///
    /// ```
    /// use emitree_middleware::Runs;
    /// use emitree_runtime::{Error, RunContext, Runnable, for_tree, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let closed = |_: &RunContext| Err(Error::halted("desk", "closed"));
    /// let outer = runnable_fn("outer", |name: String, _: RunContext| async move {
    ///     runnable_fn(name, |(): (), _: RunContext| async { Ok(()) }).run(()).await
    /// })
    /// .middleware(for_tree(Runs::named("write").only(closed)));
    /// assert!(outer.run("read".to_owned()).await.is_ok());
    /// assert!(outer.run("write".to_owned()).await.unwrap_err().is_halted());
    /// # }
    /// ```
    #[must_use]
    pub fn only<Sort, M: IntoMiddleware<Sort>>(self, middleware: M) -> Only<M::Middleware> {
        Only { runs: self, middleware: middleware.into_middleware() }
    }
}

impl<M: Middleware> Middleware for Only<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if self.runs.guards(ctx, self.name())? { self.middleware.bind(ctx) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        self.middleware.name()
    }

    fn handles(&self, kind: &str, name: &str) -> bool {
        self.runs.may_have(kind, name) && self.middleware.handles(kind, name)
    }

    fn describe(&self) -> Description<'_> {
        let near_miss = |kind: &str, name: &str| {
            let own = self.runs.near_miss(kind, name);
            own.or_else(|| self.middleware.describe().near_miss(kind, name))
        };
        self.middleware.describe().with_summary(|| Summary::of(self)).with_near_miss(near_miss)
    }

    fn order(&self) -> Option<&Order> {
        self.middleware.order()
    }
}

impl<M: Middleware> fmt::Debug for Only<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; only runs {:?}", self.middleware.describe().summary(), self.runs)
    }
}
