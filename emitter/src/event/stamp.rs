//! The stamp of an event: its time, id and context (E14).

use std::sync::OnceLock;
use std::time::SystemTime;

use uuid::Uuid;

use crate::Context;
use crate::emitter::id;

/// The id, time and context of an event, each computed on first use.
///
/// Pass it to [`Emitter::emit_begin`](crate::Emitter::emit_begin), and afterwards read from it the id, time and context
/// that listeners have seen.
#[derive(Debug, Default)]
pub struct EventStamp {
    time: OnceLock<SystemTime>,
    id: OnceLock<Uuid>,
    context: OnceLock<Context>,
}

impl EventStamp {
    /// Creates an empty stamp.
    #[must_use]
    pub const fn new() -> Self {
        Self { time: OnceLock::new(), id: OnceLock::new(), context: OnceLock::new() }
    }

    /// Returns the time of the event, which is read from the clock on first use.
    pub fn time(&self) -> SystemTime {
        *self.time.get_or_init(SystemTime::now)
    }

    /// Returns the id of the event, a version 7 UUID of its time.
    pub fn id(&self) -> Uuid {
        self.id_at(self.time())
    }

    /// Returns the context of the event. The first call computes it with `now`.
    pub fn context(&self, now: impl FnOnce() -> Context) -> &Context {
        self.context.get_or_init(now)
    }

    /// Returns the time and the context, if they have been computed.
    pub(crate) fn known(&self) -> (Option<SystemTime>, Option<&Context>) {
        (self.time.get().copied(), self.context.get())
    }

    pub(crate) fn fix(&self, time: SystemTime, context: Context) {
        self.time.get_or_init(|| time);
        self.context.get_or_init(|| context);
    }

    pub(crate) fn id_at(&self, time: SystemTime) -> Uuid {
        *self.id.get_or_init(|| id::at(time))
    }
}
