//! Layers that only look (M2, M5).

use std::any::type_name;
use std::fmt;

use crate::run::panic::{caught, logged};
use crate::{Error, Layer, Next, Op, Result, RunContext, Summary};

/// A layer that looks at what goes in and at what comes out, and can neither stop nor change it.
///
/// It fails open: a panic of its is logged, and the call goes on as if it were not there (M5).
///
/// ```
/// use emitree_runtime::{Observe, Op, Result, RunContext};
/// use tokio::time::Instant;
///
/// /// Says how long work took.
/// #[derive(Debug)]
/// struct Timed;
///
/// impl<O: Op> Observe<O> for Timed {
///     type Memo = Instant;
///
///     fn before(&self, _: &O::In, _: &RunContext) -> Instant {
///         Instant::now()
///     }
///
///     fn after(&self, began: Instant, _: &Result<O::Out>, _: &RunContext) {
///         tracing::info!(took = ?began.elapsed(), "{}", O::name());
///     }
/// }
/// ```
pub trait Observe<O: Op>: fmt::Debug + Send + Sync + 'static {
    /// What `after` has to know from `before`.
    type Memo: Send;

    /// Looks at what goes in.
    fn before(&self, input: &O::In, ctx: &RunContext) -> Self::Memo;

    /// Looks at what comes out. Not called if the call was dropped, or `before` panicked.
    fn after(&self, memo: Self::Memo, result: &Result<O::Out>, ctx: &RunContext);

    /// What it is called where layers are listed, and in its span.
    fn name(&self) -> &str {
        type_name::<Self>()
    }

    /// What it says of itself where layers are listed: by default its `Debug`, of at most [`Summary::MAX_BYTES`].
    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

#[derive(Debug)]
pub(crate) struct ObserveLayer<T>(pub(crate) T);

impl<O: Op, T: Observe<O>> Layer<O> for ObserveLayer<T> {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let memo = isolated(self.0.name(), || self.0.before(input, ctx));
        let result = next.run(input).await;
        if let Some(memo) = memo {
            isolated(self.0.name(), || self.0.after(memo, &result, ctx));
        }
        result
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn debug_summary(&self) -> Summary {
        self.0.debug_summary()
    }
}

fn isolated<T>(name: &str, look: impl FnOnce() -> T) -> Option<T> {
    let log = |panic: &Error| logged(|| tracing::warn!("`{name}`, which observes, panicked: {panic}"));
    caught(look).inspect_err(log).ok()
}
