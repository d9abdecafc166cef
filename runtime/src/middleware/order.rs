//! The order in which middlewares are bound: the order of registration, changed by [`Order`]s.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::{Description, Error, ErrorKind, IntoMiddleware, Middleware, Result, RunContext, Summary};

type Name = Cow<'static, str>;

/// The position of a middleware relative to other middlewares, which are referred to by name.
///
/// A name that no middleware has is ignored; a name that several middlewares have refers to all of them. Layers are
/// sorted by [`Phase`](crate::Phase) first, so the order of middlewares only affects the order of layers within a
/// phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    before: Vec<Name>,
    after: Vec<Name>,
    is_last: bool,
}

impl Order {
    /// Creates an order without constraints.
    #[must_use]
    pub const fn new() -> Self {
        Self { before: Vec::new(), after: Vec::new(), is_last: false }
    }

    /// Creates an order that binds the middleware after all middlewares and listeners that are not last.
    #[must_use]
    pub const fn last() -> Self {
        Self { before: Vec::new(), after: Vec::new(), is_last: true }
    }

    /// Binds the middleware before the middlewares with this name. At equal priority, its listeners are called before
    /// theirs, and within a phase, its layers wrap theirs.
    #[must_use]
    pub fn before(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.before.push(name.into());
        self
    }

    /// Binds the middleware after the middlewares with this name. At equal priority, its listeners are called after
    /// theirs, and within a phase, their layers wrap its layers.
    #[must_use]
    pub fn after(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.after.push(name.into());
        self
    }
}

/// Displays as `before cache, after redact`.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.before.iter().map(|name| ("before", name));
        let all = before.chain(self.after.iter().map(|name| ("after", name)));
        if self.is_last {
            f.write_str(if self.before.is_empty() && self.after.is_empty() { "last" } else { "last, " })?;
        }
        all.enumerate().try_for_each(|(i, (place, name))| {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{place} {name}")
        })
    }
}

/// A middleware with an [`Order`]. Created by [`ordered`].
#[derive(Debug)]
pub struct Ordered<M> {
    middleware: M,
    order: Order,
}

/// Gives a middleware a position among all middlewares of the same run, including the inherited middlewares and the
/// runnable's.
///
/// The middlewares that it [binds to runs below](RunContext::bind_nested) have the same order there, unless they already
/// have an order.
///
/// ```
/// use emitree_runtime::{Order, RunContext, Runnable, ordered, runnable_fn};
///
/// fn tenant(ctx: &RunContext) -> emitree_runtime::Result<()> {
///     ctx.set("tenant", "acme")?;
///     Ok(())
/// }
///
/// fn greet(ctx: &RunContext) -> emitree_runtime::Result<()> {
///     assert_eq!(ctx.get("tenant"), Some("acme".into()));
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// // A function is a middleware with the name of its type.
/// let double = double.middleware(ordered(greet, Order::new().after(std::any::type_name_of_val(&tenant))));
/// assert_eq!(double.run(2).middleware(tenant).await?, 4);
/// # Ok(())
/// # }
/// ```
///
/// If orders contradict each other, the run ends before its `start`, with an error that names the cycle.
pub fn ordered<Sort, M: IntoMiddleware<Sort>>(middleware: M, order: Order) -> Ordered<M::Middleware> {
    Ordered { middleware: middleware.into_middleware(), order }
}

impl<M: Middleware> Ordered<M> {
    /// Appends the order to a description of the middleware.
    fn with_order(&self, summary: &Summary) -> Summary {
        let summary = summary.to_string();
        if summary == self.name() {
            return self.order.to_string().into();
        }
        format!("{summary} ({})", self.order).into()
    }
}

impl<M: Middleware> Middleware for Ordered<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // `bind` appends the middlewares that it hands down, so the middlewares from index `before` on get the order.
        let before = ctx.count_inherited();
        self.middleware.bind(ctx)?;
        ctx.order_inherited(before, &self.order);
        Ok(())
    }

    fn name(&self) -> &str {
        self.middleware.name()
    }

    fn handles(&self, kind: &str, name: &str) -> bool {
        self.middleware.handles(kind, name)
    }

    fn describe(&self) -> Description<'_> {
        self.middleware
            .describe()
            .with_summary(|| self.with_order(&self.middleware.describe().summary()))
            .with_summary_in_run(|bound, ctx| {
                let summary = self.middleware.describe().summary_in_run(bound, ctx)?;
                Some(self.with_order(&summary))
            })
    }

    fn order(&self) -> Option<&Order> {
        Some(&self.order)
    }
}

/// An item to be sorted: a middleware, or a listener, which has no order.
pub(crate) trait InOrder {
    fn middleware(&self) -> Option<&dyn Middleware>;
}

impl InOrder for &Arc<dyn Middleware> {
    fn middleware(&self) -> Option<&dyn Middleware> {
        Some(&***self)
    }
}

/// Sorts items by the orders of their middlewares. Of several items that may come next, the first registered item is
/// taken.
pub(crate) fn in_order<T: InOrder>(given: impl Iterator<Item = T>) -> Result<SmallVec<[T; 8]>> {
    let given: SmallVec<[T; 8]> = given.collect();
    // Most runs have no orders, and need no sorting.
    if given.iter().all(|item| item.middleware().and_then(|middleware| middleware.order()).is_none()) {
        return Ok(given);
    }
    let sorted = OrderGraph::of(&given).sort()?;
    let mut given: SmallVec<[Option<T>; 8]> = given.into_iter().map(Some).collect();
    Ok(sorted.into_iter().filter_map(|i| given[i].take()).collect())
}

/// The constraints among the middlewares of a run.
struct OrderGraph<'a> {
    names: Vec<&'a str>,
    /// For each item, the items that must come before it.
    earlier: Vec<Vec<usize>>,
}

impl<'a> OrderGraph<'a> {
    fn of(given: &'a [impl InOrder]) -> Self {
        let node = |item: &'a _| InOrder::middleware(item).map(|middleware| (middleware.name(), middleware.order()));
        let (names, orders): (Vec<_>, Vec<_>) = given.iter().map(|item| node(item).unwrap_or_default()).unzip();
        let is_before = |a: usize, b: usize| {
            let first: Option<&Order> = orders[a];
            let second: Option<&Order> = orders[b];
            let is_listed = first.is_some_and(|order| order.before.iter().any(|name| name == names[b]));
            let is_last = |order: Option<&Order>| order.is_some_and(|order| order.is_last);
            let is_in_front = is_listed || (is_last(second) && !is_last(first));
            a != b && (is_in_front || second.is_some_and(|order| order.after.iter().any(|name| name == names[a])))
        };
        let all = 0..names.len();
        let earlier = all.clone().map(|b| all.clone().filter(|&a| is_before(a, b)).collect()).collect();
        Self { names, earlier }
    }

    fn sort(&self) -> Result<Vec<usize>> {
        let mut sorted = Vec::with_capacity(self.names.len());
        // Take the first item whose predecessors are all sorted. This is slow for long lists, but a run has only a few
        // middlewares.
        while sorted.len() < self.names.len() {
            let mut left = (0..self.names.len()).filter(|i| !sorted.contains(i));
            let next = left.find(|&i| self.earlier[i].iter().all(|before| sorted.contains(before)));
            sorted.push(next.ok_or_else(|| self.cycle(&sorted))?);
        }
        Ok(sorted)
    }

    /// Returns an error that names a cycle. Every unsorted item has an unsorted predecessor, so walking back eventually
    /// reaches an item twice.
    fn cycle(&self, sorted: &[usize]) -> Error {
        let left = |i: &usize| !sorted.contains(i);
        let mut walked: Vec<usize> = (0..self.names.len()).find(left).into_iter().collect();
        while let Some(before) = walked.last().and_then(|&last| self.earlier[last].iter().copied().find(left)) {
            // Remove the path that leads into the cycle.
            if let Some(from) = walked.iter().position(|&i| i == before) {
                walked.drain(..from);
                walked.push(before);
                break;
            }
            walked.push(before);
        }
        let names: Vec<_> = walked.iter().rev().map(|&i| format!("`{}`", self.names[i])).collect();
        let message = format!("middlewares cannot be put in order: {}", names.join(" before "));
        Error::of_kind(ErrorKind::Invalid, message)
    }
}
