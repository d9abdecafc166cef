//! The layer that ends the work of the run that holds an account, and the middleware that counts the runs below.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use emitree_runtime::{Error, Layer, Middleware, Next, Op, Result, RunContext};
use futures_util::future::join;
use tokio::time::{Instant, timeout_at};

use super::account::{Account, RefusingAccount};
use super::charge::LimitReport;
use super::events::{BudgetClosed, StartDenied};
use crate::shared::at_start::{Refusal, at_start};
use crate::shared::built_in::debug_as;

/// Ends the work when the account closes or its time is over.
pub(super) struct BudgetLayer(pub(super) Arc<Account>);

impl<O: Op> Layer<O> for BudgetLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let account = &self.0;
        let options = &self.0.options;
        let end = account.deadline(options.most.wall_time);
        // When the time is over, `by_deadline` drops the work before `closed` is emitted.
        let work = async {
            let result = next.run(input).await;
            if let Err(error) = &result
                && account.closed().is_some()
            {
                // A denial would overrule the halt: the work may return the denial of the call that closed the account.
                next.absorb(error);
            }
            result
        };
        let mut inside = pin!(by_deadline(end, account.stop.unless(work)));
        // Poll the work alone until the warning is due, and then together with the listeners of the warning.
        let result = match account.deadline(options.warn_from.wall_time) {
            None => inside.await,
            Some(soon) => match timeout_at(soon, &mut inside).await {
                Ok(result) => result,
                Err(_) => self.warn_during(inside, ctx).await,
            },
        };
        match result {
            Some(result) => result,
            None => Err(Box::pin(self.end_out_of_time(ctx)).await),
        }
    }

    fn name(&self) -> &str {
        "budget"
    }
}

impl BudgetLayer {
    /// Polls the work while listeners of the warning are awaited.
    async fn warn_during<T: Send>(&self, inside: impl Future<Output = T> + Send, ctx: &RunContext) -> T {
        let report = LimitReport::of(&self.0, self.0.check_limits());
        Box::pin(join(report.emit(ctx), inside)).await.1
    }

    async fn end_out_of_time(&self, ctx: &RunContext) -> Error {
        let account = &self.0;
        let closed = account.close_out_of_time();
        if let Some(closed) = &closed {
            account.options.own_events.emit(ctx, || closed.clone()).await;
        }
        // If another run has just closed the account, return the reason for that closing.
        let closed = closed.or_else(|| account.closed());
        closed.as_ref().map_or_else(|| Error::halted("budget", "the time has run out"), BudgetClosed::error)
    }
}

/// Awaits the future until the deadline. If the deadline passes first, drops the future and returns `None`.
async fn by_deadline<T>(end: Option<Instant>, inside: impl Future<Output = T>) -> Option<T> {
    match end {
        Some(end) => timeout_at(end, inside).await.ok(),
        None => Some(inside.await),
    }
}

debug_as!(BudgetLayer, |this| this.0.options);

/// A middleware that counts the run to which it is bound, or denies the run if an account is closed.
pub(super) struct CallCounter(pub(super) Arc<Account>);

impl Middleware for CallCounter {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // Each run is counted once, from its nearest account upwards: the counters of accounts further up skip it.
        // Look the account up from the parent, because the run's own account counts only the runs below.
        let nearest = ctx.parent().and_then(Account::of);
        if !nearest.is_some_and(|nearest| Arc::ptr_eq(&nearest, &self.0)) {
            return Ok(());
        }
        match self.0.count_start(ctx)? {
            Ok(warnings) => {
                let own_events = &self.0.options.own_events;
                // Nothing can be awaited while binding, so events are emitted at the run's `start`.
                warnings.into_iter().try_for_each(|warning| at_start(ctx, own_events, warning, None))
            }
            Err(refusing) => refusing.refuse(ctx),
        }
    }

    fn name(&self) -> &str {
        "budget"
    }
}

debug_as!(CallCounter, |this| this.0.options);

impl RefusingAccount {
    /// Denies the run at its `start`. If this run closed the account, also stops the work of the run that holds the
    /// account.
    fn refuse(self, ctx: &RunContext) -> Result<()> {
        let Self { account, closed, is_new } = self;
        let error = closed.denial();
        let own_events = &account.options.own_events;
        if is_new {
            let stops = Some((Arc::clone(&account.stop), closed.error()));
            return at_start(ctx, own_events, closed, Some(Refusal { error, stops }));
        }
        let denied = StartDenied { reason: closed.reason, holder: account.holder() };
        at_start(ctx, own_events, denied, Some(Refusal { error, stops: None }))
    }
}
