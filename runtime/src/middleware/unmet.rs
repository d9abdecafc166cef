//! Middlewares for the runs below a run that handled none of them, probably because a name is misspelled (M12).
//!
//! Only a middleware that selects runs by kind or name is watched, and only until it has handled a run. Other middleware
//! is handed down as it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::middleware::warned::is_first;
use crate::run::panic::isolated;
use crate::{Description, Middleware, Order, Result, RunContext};

/// A middleware that `for_tree` and `for_nested` hand down to the runs below.
#[derive(Debug)]
pub(crate) struct HandedDown<M> {
    pub(crate) middleware: Arc<M>,
    /// `true` once the middleware has handled a run, or was warned of: from then on, it is not watched. Made when a
    /// middleware that selects runs is handed down for the first time, and `true` at once if it names nothing that could
    /// be misspelled.
    is_settled: OnceLock<Arc<AtomicBool>>,
}

impl<M: Middleware> HandedDown<M> {
    pub(crate) fn new(middleware: M) -> Self {
        Self { middleware: Arc::new(middleware), is_settled: OnceLock::new() }
    }

    /// Binds the middleware to the runs below a run.
    pub(crate) fn bind_nested(&self, ctx: &RunContext) {
        let middleware = Arc::clone(&self.middleware);
        // A middleware that handles a run without kind and name does not select runs by them.
        if middleware.handles("", "") {
            return ctx.bind_nested(middleware);
        }
        // The middleware is described once, and not for each run that it is bound to.
        let is_settled = self.is_settled.get_or_init(|| Arc::new(AtomicBool::new(!middleware.describe().may_miss())));
        if is_settled.load(Ordering::Relaxed) {
            return ctx.bind_nested(middleware);
        }
        let watch = Arc::new(Watch { is_settled: Arc::clone(is_settled), ..Watch::default() });
        // Also with `for_nested`, which leaves this run out: a name that this run has is not misspelled.
        watch.see_run(&*middleware, ctx);
        if watch.is_met.load(Ordering::Relaxed) {
            return ctx.bind_nested(middleware);
        }
        let ending = Arc::clone(&middleware);
        let ended = Arc::clone(&watch);
        ctx.on_end(move |ctx, _| ended.warn(&*ending, ctx));
        ctx.bind_nested(Watched { middleware, watch });
    }
}

/// The runs that a middleware has met in one tree.
#[derive(Debug, Default)]
struct Watch {
    /// `true` once the middleware handles a run of the tree, or a run that the tree may start.
    is_met: AtomicBool,
    is_settled: Arc<AtomicBool>,
    near: OnceLock<NearMiss>,
}

/// A kind or name that a middleware selects, and a run that it was probably meant for.
#[derive(Debug)]
struct NearMiss {
    selected: String,
    kind: String,
    name: String,
}

impl Watch {
    fn see(&self, watched: &dyn Middleware, description: &Description<'_>, kind: &str, name: &str) {
        if self.is_met.load(Ordering::Relaxed) {
            return;
        }
        if watched.handles(kind, name) {
            self.is_met.store(true, Ordering::Relaxed);
            self.is_settled.store(true, Ordering::Relaxed);
        } else if self.near.get().is_none()
            && let Some(selected) = description.near_miss(kind, name)
        {
            self.near.set(NearMiss { selected, kind: kind.to_owned(), name: name.to_owned() }).ok();
        }
    }

    /// Sees a run, and the runs that it may start, such as the tools of an agent: a middleware for a tool that exists and
    /// is not called counts as met.
    fn see_run(&self, watched: &dyn Middleware, ctx: &RunContext) {
        let description = watched.describe();
        self.see(watched, &description, ctx.kind(), ctx.name());
        if self.is_met.load(Ordering::Relaxed) {
            return;
        }
        // `describe` is user code: call it on a snapshot, with no lock held.
        let bound = ctx.shared().bindings.middlewares.as_ref().map(|bound| bound.lock().clone()).unwrap_or_default();
        for middleware in &bound {
            middleware.describe().names_below(&mut |kind, name| self.see(watched, &description, kind, name));
        }
    }

    /// Warns at the end of the run that the middleware was bound to, if it has met no run, but one that it was probably
    /// meant for.
    fn warn(&self, watched: &dyn Middleware, ctx: &RunContext) {
        let Some(NearMiss { selected, kind, name }) = self.near.get() else { return };
        if self.is_met.load(Ordering::Relaxed) || !is_first(("unmet", watched.name(), selected, kind, name)) {
            return;
        }
        self.is_settled.store(true, Ordering::Relaxed);
        let description = watched.describe();
        let what = if description.is_guard() { "guard" } else { "middleware" };
        let by = watched.name();
        let summary = description.summary();
        let of = ctx.kind();
        let run = ctx.name();
        // A `tracing` subscriber is user code, and may panic.
        isolated(|| {
            tracing::warn!(
                "the {what} `{by}` ({summary}) has handled no run of {of} `{run}`: it selects `{selected}`, but there is \
                 {kind} `{name}`; check the spelling"
            );
        });
    }
}

/// A middleware that is watched: each run that it is bound to is seen first.
#[derive(Debug)]
struct Watched<M> {
    middleware: Arc<M>,
    watch: Arc<Watch>,
}

impl<M: Middleware> Middleware for Watched<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.watch.see_run(&*self.middleware, ctx);
        self.middleware.bind(ctx)
    }

    fn name(&self) -> &str {
        self.middleware.name()
    }

    fn handles(&self, kind: &str, name: &str) -> bool {
        self.middleware.handles(kind, name)
    }

    fn describe(&self) -> Description<'_> {
        self.middleware.describe()
    }

    fn order(&self) -> Option<&Order> {
        self.middleware.order()
    }
}
