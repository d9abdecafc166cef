//! Dispatch for a [`Delivery`] that is less than patient: who need not be awaited is called first.

use std::sync::Arc;

use crate::dispatch::awaited::{await_change, await_observe};
use crate::dispatch::route::{Cursor, Route};
use crate::dispatch::sync::Called;
use crate::dispatch::{Progress, settle};
use crate::listener::{Call, Listener, Role, panicked};
use crate::panic::catch;
use crate::{AnyEvent, Delivery, EmitError, EventMeta};

impl Progress {
    /// Calls all that need not be awaited, then awaits the others: for a [`Delivery`] that is less than patient.
    pub(crate) async fn sync_first(
        &mut self,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        route: &Route,
        delivery: &Delivery,
    ) -> Result<(), EmitError> {
        let changing = self.call_sync(Role::Change, event, meta, route);
        self.observe();
        let observing = self.call_sync(Role::Observe, event, meta, route);
        for listener in changing {
            if let Err(fault) = await_change(listener, event, meta, delivery).await
                && self.judge(listener, fault, event, meta)
            {
                break;
            }
        }
        let event: &dyn AnyEvent = event;
        let answers = observing.into_iter().map(|listener| async move {
            let answer = await_observe(listener, event, meta, delivery).await;
            (listener, answer)
        });
        Box::pin(settle(answers.collect(), event, meta, self, delivery)).await;
        self.result()
    }

    /// Calls those of a role that need not be awaited; gives the others. After a failure nobody else may change (E11).
    fn call_sync<'r>(
        &mut self,
        role: Role,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        route: &'r Route,
    ) -> Vec<&'r Arc<Listener>> {
        let (mut cursor, mut later) = (Cursor::default(), Vec::new());
        while let Some(listener) = route.next(role, &mut cursor).filter(|_| self.changed || role == Role::Change) {
            match catch(|| call_one(listener, event, meta)).map_err(panicked) {
                Ok(Called::Now(Ok(())) | Called::Skipped) => listener.leave_if_spent(),
                Ok(Called::Later) => later.push(listener),
                Ok(Called::Now(Err(fault))) | Err(fault) => {
                    listener.leave_if_spent();
                    self.judge(listener, fault, event, meta);
                    if self.changed && role == Role::Change {
                        return Vec::new();
                    }
                }
            }
        }
        later
    }
}

fn call_one(listener: &Listener, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> Called {
    match &listener.call {
        _ if !listener.matcher.says(meta) => Called::Skipped,
        Call::Change(change) => Called::now(listener, || change.call(event, meta)),
        Call::Observe(call) => Called::now(listener, || call(event, meta)),
        Call::TryObserve { now, .. } if !listener.claims.is_spent() && now(event, meta) => Called::Now(Ok(())),
        _ => Called::later(listener),
    }
}
