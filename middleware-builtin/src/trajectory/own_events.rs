//! The trajectory's own events: one for each lifecycle event of a shown run. If the lifecycle event has a line, the
//! trajectory emits its own event before it writes the line.

use emitree_emitter::rt::RunLinks;
use emitree_emitter::{Emitter, EventRecord, Trace};
use emitree_runtime::Stage;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use super::tree::Level;

/// An event that a trajectory emits before it writes the line of a `start`, `success` or `error`. Listeners may change
/// the message before it is written.
///
/// A trajectory also emits this event for `finish`, but writes no line for it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TrajectoryEvent {
    /// The line, without the line feed.
    pub message: String,
    /// The level of the line.
    pub level: Level,
    /// The run's event. Its JSON has only the id and the path, because a recording already contains the rest of the
    /// event.
    #[serde(serialize_with = "id_and_path")]
    pub origin: EventRecord,
}

impl TrajectoryEvent {
    /// Emits the event with the ids of the bound run; returns the message as listeners left it.
    pub(super) fn emit(mut self, emitter: &Emitter, bound: Trace, stage: Stage) -> String {
        let emitter = emitter.for_run(RunLinks::new().trace(bound));
        if let Err(error) = emitter.emit_now(stage.as_str(), &mut self) {
            tracing::warn!(%error, "a listener of the trajectory event `{}` failed", stage.as_str());
        }
        self.message
    }
}

fn id_and_path<S: Serializer>(origin: &EventRecord, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct IdAndPath<'a> {
        id: Uuid,
        path: &'a str,
    }
    IdAndPath { id: origin.id, path: &origin.path }.serialize(serializer)
}
