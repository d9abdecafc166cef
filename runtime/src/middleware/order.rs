//! In which order middlewares are bound: as they were given, but for what they say of each other.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::{Error, ErrorKind, IntoMiddleware, LayerInfo, Middleware, Result, RunContext, Summary};

type Name = Cow<'static, str>;

/// What a middleware says of where it stands among the others, by their names.
///
/// A name that nobody has says nothing; one that several have speaks of all of them. Layers stand by
/// [`Phase`](crate::Phase) first: the order of their middlewares counts within a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    before: Vec<Name>,
    after: Vec<Name>,
}

impl Order {
    /// Says nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { before: Vec::new(), after: Vec::new() }
    }

    /// It is bound before those of that name: its listeners are asked before theirs, its layers stand outside of theirs.
    #[must_use]
    pub fn before(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.before.push(name.into());
        self
    }

    /// It is bound after those of that name.
    #[must_use]
    pub fn after(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.after.push(name.into());
        self
    }
}

/// As `before cache, after redact`.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.before.iter().map(|name| ("before", name));
        let all = before.chain(self.after.iter().map(|name| ("after", name)));
        all.enumerate().try_for_each(|(i, (place, name))| {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{place} {name}")
        })
    }
}

/// A middleware, and where it stands. Made by [`ordered`].
#[derive(Debug)]
pub struct Ordered<M> {
    middleware: M,
    order: Order,
}

/// Says where a middleware stands among those that are bound to the same run, whoever gave them: the runs above, the
/// instance, or the run. What it [hands down](RunContext::bind_nested) stands there in the runs below, unless that says
/// otherwise itself.
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
///     println!("for {:?}", ctx.get("tenant"));
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// // A function is named as its type is.
/// let double = double.middleware(ordered(greet, Order::new().after(std::any::type_name_of_val(&tenant))));
/// assert_eq!(double.run(2).middleware(tenant).await?, 4);
/// # Ok(())
/// # }
/// ```
///
/// Orders that contradict each other are an error that names the circle; the run has not started then.
pub fn ordered<Sort, M: IntoMiddleware<Sort>>(middleware: M, order: Order) -> Ordered<M::Middleware> {
    Ordered { middleware: middleware.into_middleware(), order }
}

impl<M: Middleware> Middleware for Ordered<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let before = ctx.count_inherited();
        self.middleware.bind(ctx)?;
        ctx.order_inherited(before, &self.order);
        Ok(())
    }

    fn name(&self) -> &str {
        self.middleware.name()
    }

    fn debug_summary(&self) -> Summary {
        let summary = self.middleware.debug_summary().to_string();
        if summary == self.name() {
            return self.order.to_string().into();
        }
        format!("{summary} ({})", self.order).into()
    }

    fn layers(&self) -> Vec<LayerInfo> {
        self.middleware.layers()
    }

    fn order(&self) -> Option<&Order> {
        Some(&self.order)
    }
}

/// Something that is put in order among others: a middleware, or what says nothing about its place.
pub(crate) trait InOrder {
    fn middleware(&self) -> Option<&Arc<dyn Middleware>>;
}

impl InOrder for &Arc<dyn Middleware> {
    fn middleware(&self) -> Option<&Arc<dyn Middleware>> {
        Some(self)
    }
}

/// What is to be bound: each as early as what middlewares say of each other lets it, in the order given.
pub(crate) fn in_order<T: InOrder>(given: impl Iterator<Item = T>) -> Result<SmallVec<[T; 8]>> {
    let given: SmallVec<[T; 8]> = given.collect();
    if given.iter().all(|item| item.middleware().and_then(|middleware| middleware.order()).is_none()) {
        return Ok(given);
    }
    let sorted = OrderGraph::of(&given).sort()?;
    let mut given: SmallVec<[Option<T>; 8]> = given.into_iter().map(Some).collect();
    Ok(sorted.into_iter().filter_map(|i| given[i].take()).collect())
}

/// Who has to stand before whom.
struct OrderGraph<'a> {
    names: Vec<&'a str>,
    /// Of each, those that stand before it.
    earlier: Vec<Vec<usize>>,
}

impl<'a> OrderGraph<'a> {
    fn of(given: &'a [impl InOrder]) -> Self {
        let said = |item: &'a _| InOrder::middleware(item).map(|middleware| (middleware.name(), middleware.order()));
        let (names, orders): (Vec<_>, Vec<_>) = given.iter().map(|item| said(item).unwrap_or_default()).unzip();
        let stands_before = |a: usize, b: usize| {
            let (first, second): (Option<&Order>, Option<&Order>) = (orders[a], orders[b]);
            let said = first.is_some_and(|order| order.before.iter().any(|name| name == names[b]));
            a != b && (said || second.is_some_and(|order| order.after.iter().any(|name| name == names[a])))
        };
        let all = 0..names.len();
        let earlier = all.clone().map(|b| all.clone().filter(|&a| stands_before(a, b)).collect()).collect();
        Self { names, earlier }
    }

    fn sort(&self) -> Result<Vec<usize>> {
        let mut sorted = Vec::with_capacity(self.names.len());
        while sorted.len() < self.names.len() {
            let mut left = (0..self.names.len()).filter(|i| !sorted.contains(i));
            let next = left.find(|&i| self.earlier[i].iter().all(|before| sorted.contains(before)));
            sorted.push(next.ok_or_else(|| self.cycle(&sorted))?);
        }
        Ok(sorted)
    }

    /// Each of those that are left has one before it that is left: walking back comes to the same one again.
    fn cycle(&self, sorted: &[usize]) -> Error {
        let left = |i: &usize| !sorted.contains(i);
        let mut walked: Vec<usize> = (0..self.names.len()).find(left).into_iter().collect();
        while let Some(before) = walked.last().and_then(|&last| self.earlier[last].iter().copied().find(left)) {
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
