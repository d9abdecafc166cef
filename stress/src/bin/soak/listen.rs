//! Listeners that yield, fail, panic, or start runs themselves.

use std::sync::Arc;

use emitree::emitter::{BoxError, Registration};
use emitree::lifecycle::Stage;
use emitree::{AnyEvent, EventMeta, Options};
use tokio::task::yield_now;

use crate::bad::Payload;
use crate::hold::hold;
use crate::plan::Verb;
use crate::record::Log;
use crate::tree::Branch;

/// The planned action of a listener. The number is how often an async listener yields before it acts.
pub(crate) enum Acting {
    Yields(u32),
    Fails(u32),
    Panics(u32, Payload),
    Runs(Arc<Branch>),
}

struct Listener {
    acting: Acting,
    verb: Verb,
    log: Log,
}

type Heard = Result<(), BoxError>;

/// Creates the registration of a listener for a stage.
pub(crate) fn registration(options: Options, stage: Stage, verb: Verb, acting: Acting, log: &Log) -> Registration {
    let listener = Arc::new(Listener { acting, verb, log: log.clone() });
    match verb {
        Verb::On => options.on(stage, move |_: &mut dyn AnyEvent, meta| listener.act(meta)),
        Verb::Observe => options.observe(stage, move |_: &dyn AnyEvent, meta| listener.act(meta)),
        Verb::OnAsync => options.on_async(stage, move |_: &mut dyn AnyEvent, meta| {
            let listener = Arc::clone(&listener);
            Box::pin(async move { listener.act_slowly(meta).await })
        }),
        Verb::ObserveAsync => options.observe_async(stage, move |_: &dyn AnyEvent, meta| {
            let listener = Arc::clone(&listener);
            Box::pin(async move { listener.act_slowly(meta).await })
        }),
    }
}

impl Listener {
    fn act(&self, meta: &EventMeta<'_>) -> Heard {
        match self.acting {
            Acting::Yields(_) | Acting::Runs(_) => Ok(()),
            Acting::Fails(_) => {
                self.log.raised(meta, self.verb, false);
                Err("planned".into())
            }
            Acting::Panics(_, payload) => {
                self.log.raised(meta, self.verb, true);
                payload.panic()
            }
        }
    }

    async fn act_slowly(&self, meta: &EventMeta<'_>) -> Heard {
        match &self.acting {
            Acting::Yields(yields) | Acting::Fails(yields) | Acting::Panics(yields, _) => {
                for _ in 0..*yields {
                    yield_now().await;
                }
            }
            Acting::Runs(branch) => drop(hold(branch).await),
        }
        self.act(meta)
    }
}
