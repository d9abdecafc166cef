//! The trajectory's own events, emitted before a line is written.
//!
//! 1. The line is written when everybody has heard the event, and says what they have made of it.
//! 2. A sync listener hears the run's event, so it cannot wait. It polls the telling once; what is not done then is
//!    waited for by an async listener that stands right behind it, and hears only what is left over.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

use emitree_emitter::{Emitter, EventMeta, EventRecord, RunLinks, Trace};
use emitree_runtime::Stage;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use super::{Level, Shared};

/// What the trajectory emits itself: as `start`, `success` and `error` before it writes a line, and as `finish`, of
/// which no line is written.
///
/// A listener may change the message: that is what is written then.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TrajectoryEvent {
    /// What is written, without the line feed.
    pub message: String,
    /// How deep the line stands.
    pub level: Level,
    /// The run's event. In JSON only its id and path: whoever records both has the rest.
    #[serde(serialize_with = "id_and_path")]
    pub origin: EventRecord,
}

fn id_and_path<S: Serializer>(origin: &EventRecord, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Short<'a> {
        id: Uuid,
        path: &'a str,
    }
    Short { id: origin.id, path: &origin.path }.serialize(serializer)
}

/// Emits on behalf of one bound run.
#[derive(Default)]
pub(super) struct Speaker {
    emitter: OnceLock<Emitter>,
    /// How many are left over: looked at for every event.
    count: AtomicUsize,
    left: Mutex<Vec<Left>>,
}

/// A telling that was not done at once.
struct Left {
    run_id: Option<Uuid>,
    telling: Telling,
}

type Telling = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Speaker {
    /// Events of it are the trajectory's own, and carry the bound run's ids.
    fn emitter(&self, shared: &Shared, trace: impl FnOnce() -> Trace) -> &Emitter {
        self.emitter.get_or_init(|| shared.emitter.for_run(RunLinks::new().trace(trace())))
    }

    /// Emits, then writes; what is not done at once is left over.
    pub(super) fn tell(
        &self,
        shared: &Arc<Shared>,
        trace: impl FnOnce() -> Trace,
        stage: Stage,
        event: TrajectoryEvent,
    ) {
        let run_id = event.origin.trace.map(|trace| trace.run_id);
        let emitter = self.emitter(shared, trace).clone();
        let mut telling: Telling = Box::pin(tell(Arc::clone(shared), emitter, stage, event));
        // In order.
        let waits = self.has_left_of(run_id);
        if waits || telling.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.left.lock().push(Left { run_id, telling });
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether the telling of an event is left over, or of one before it in the same run.
    pub(super) fn has_left(&self, meta: &EventMeta<'_>) -> bool {
        self.count.load(Ordering::Acquire) > 0 && Stage::of(meta).is_some() && self.has_left_of(run_id(meta))
    }

    fn has_left_of(&self, run_id: Option<Uuid>) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.left.lock().iter().any(|left| left.run_id == run_id)
    }

    /// Does what is left to do for an event: a run has at most one under way.
    pub(super) fn finish(&self, meta: &EventMeta<'_>) -> impl Future<Output = ()> + Send + use<> {
        let run_id = run_id(meta);
        let left: Vec<Left> = self.left.lock().extract_if(.., |left| left.run_id == run_id).collect();
        self.count.fetch_sub(left.len(), Ordering::Release);
        async move {
            for left in left {
                left.telling.await;
            }
        }
    }
}

fn run_id(meta: &EventMeta<'_>) -> Option<Uuid> {
    meta.trace().map(|trace| trace.run_id)
}

async fn tell(shared: Arc<Shared>, emitter: Emitter, stage: Stage, mut event: TrajectoryEvent) {
    if let Err(error) = emitter.emit(stage.as_str(), &mut event).await {
        tracing::warn!(%error, "a listener of a trajectory's `{}` failed", stage.as_str());
    }
    if stage != Stage::Finish {
        shared.output.write_or_count(event.message);
    }
}
