//! When an event was emitted, and its id (E14).

use std::sync::OnceLock;
use std::time::SystemTime;

use uuid::Uuid;

use crate::id;

/// Id and time of an event, each made when somebody first looks at it.
///
/// Whoever emits with [`Emitter::emit_begin`](crate::Emitter::emit_begin) has it, and knows afterwards what listeners have
/// seen.
#[derive(Debug, Default)]
pub struct EventStamp {
    time: OnceLock<SystemTime>,
    id: OnceLock<Uuid>,
}

impl EventStamp {
    /// One that nobody has looked at.
    #[must_use]
    pub const fn new() -> Self {
        Self { time: OnceLock::new(), id: OnceLock::new() }
    }

    /// When the event was emitted.
    pub fn time(&self) -> SystemTime {
        *self.time.get_or_init(SystemTime::now)
    }

    /// A version 7 UUID of that time.
    pub fn id(&self) -> Uuid {
        self.id_at(self.time())
    }

    /// When the event was emitted, if somebody has looked.
    pub(crate) fn seen_time(&self) -> Option<SystemTime> {
        self.time.get().copied()
    }

    /// The same time for who looks at the stamp as for those who were awaited.
    pub(crate) fn set_time(&self, time: SystemTime) {
        self.time.get_or_init(|| time);
    }

    pub(crate) fn id_at(&self, time: SystemTime) -> Uuid {
        *self.id.get_or_init(|| id::at(time))
    }
}
