//! The metric handles of runs with the same labels.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use emitree_runtime::Status;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Recorder, with_recorder};

use super::names::{METADATA, MetricNames};
use crate::shared::own_events::OwnEvents;
use crate::shared::panic::caught;

/// The number of statuses. If the runtime adds a status, its handles are registered anew whenever a run ends with that
/// status.
const STATUSES: usize = 9;

/// The address of a recorder, by which recorders are compared.
pub(super) type RecorderAddress = usize;

pub(super) fn address(recorder: &dyn Recorder) -> RecorderAddress {
    std::ptr::from_ref(recorder).cast::<()>().addr()
}

/// The metric handles of runs with the same labels.
pub(super) struct Series {
    recorder: RecorderAddress,
    names: Arc<MetricNames>,
    /// The emitter of [`Counted`](super::Counted). It is kept here, so that a run holds a single `Arc`.
    pub(super) own_events: OwnEvents,
    labels: Vec<Label>,
    started: Counter,
    active: Gauge,
    /// The handles of each outcome. They are registered when a run first ends with that outcome, so that an outcome
    /// that never occurs has no series.
    ended: [OnceLock<EndedSeries>; STATUSES],
}

#[derive(Clone)]
struct EndedSeries {
    count: Counter,
    duration: Histogram,
}

impl Series {
    pub(super) fn register(
        names: &Arc<MetricNames>,
        own_events: &OwnEvents,
        labels: Vec<Label>,
        recorder: &dyn Recorder,
    ) -> Self {
        let key = |name: &KeyName| Key::from_parts(name.clone(), labels.clone());
        Self {
            recorder: address(recorder),
            started: recorder.register_counter(&key(&names.started), &METADATA),
            active: recorder.register_gauge(&key(&names.active), &METADATA),
            ended: Default::default(),
            names: Arc::clone(names),
            own_events: own_events.clone(),
            labels,
        }
    }

    pub(super) fn begin(&self) {
        call_user_code(|| self.started.increment(1));
        call_user_code(|| self.active.increment(1.0));
    }

    /// Updates the three metrics separately, so that a panic in one update does not prevent the other updates.
    pub(super) fn end(&self, status: Status, duration: Duration) {
        call_user_code(|| self.active.decrement(1.0));
        match self.ended.get(status as usize).and_then(OnceLock::get) {
            Some(ended) => ended.record(duration),
            None => call_user_code(|| self.ended(status)).iter().for_each(|ended| ended.record(duration)),
        }
    }

    /// Registers the handles of an outcome, and keeps them if the current recorder is the recorder of this series.
    fn ended(&self, status: Status) -> EndedSeries {
        with_recorder(|recorder| {
            let ended = self.register_ended(status, recorder);
            // When a run ends, its recorder may have been replaced or removed: keep only handles of the recorder that
            // this series belongs to.
            let slot = self.ended.get(status as usize).filter(|_| address(recorder) == self.recorder);
            slot.map_or(&ended, |slot| slot.get_or_init(|| ended.clone())).clone()
        })
    }

    fn register_ended(&self, status: Status, recorder: &dyn Recorder) -> EndedSeries {
        let outcome = Label::from_static_parts("outcome", status.as_str());
        let labels: Vec<_> = self.labels.iter().cloned().chain([outcome]).collect();
        let key = |name: &KeyName| Key::from_parts(name.clone(), labels.clone());
        EndedSeries {
            count: recorder.register_counter(&key(&self.names.ended), &METADATA),
            duration: recorder.register_histogram(&key(&self.names.duration), &METADATA),
        }
    }
}

impl EndedSeries {
    fn record(&self, duration: Duration) {
        call_user_code(|| self.count.increment(1));
        call_user_code(|| self.duration.record(duration));
    }
}

/// Calls code of the recorder or of the user; a panic is logged (M5).
pub(super) fn call_user_code<T>(f: impl FnOnce() -> T) -> Option<T> {
    caught(f).map_err(|panic| tracing::warn!("a recorder or a label function of metrics panicked: {panic}")).ok()
}
