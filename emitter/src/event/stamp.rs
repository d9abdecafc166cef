//! When an event was emitted, its id, and the context that it carries (E14).

use std::sync::OnceLock;
use std::time::SystemTime;

use uuid::Uuid;

use crate::Context;
use crate::emitter::id;

/// Id, time and context of an event, each made when somebody first looks at it.
///
/// Whoever emits with [`Emitter::emit_begin`](crate::Emitter::emit_begin) has it, and knows afterwards what listeners have
/// seen.
#[derive(Debug, Default)]
pub struct EventStamp {
    time: OnceLock<SystemTime>,
    id: OnceLock<Uuid>,
    context: OnceLock<Context>,
}

impl EventStamp {
    /// One that nobody has looked at.
    #[must_use]
    pub const fn new() -> Self {
        Self { time: OnceLock::new(), id: OnceLock::new(), context: OnceLock::new() }
    }

    /// When the event was emitted.
    pub fn time(&self) -> SystemTime {
        *self.time.get_or_init(SystemTime::now)
    }

    /// A version 7 UUID of that time.
    pub fn id(&self) -> Uuid {
        self.id_at(self.time())
    }

    /// The context that the event carries: what it is now, if nobody has looked before.
    pub fn context(&self, now: impl FnOnce() -> Context) -> &Context {
        self.context.get_or_init(now)
    }

    /// What is known of time and context.
    pub(crate) fn seen(&self) -> (Option<SystemTime>, Option<&Context>) {
        (self.time.get().copied(), self.context.get())
    }

    pub(crate) fn put(&self, time: SystemTime, context: Context) {
        self.time.get_or_init(|| time);
        self.context.get_or_init(|| context);
    }

    pub(crate) fn id_at(&self, time: SystemTime) -> Uuid {
        *self.id.get_or_init(|| id::at(time))
    }
}
