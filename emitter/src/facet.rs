//! What an emit may attach to its event (E17).

use std::any::Any;
use std::fmt;

use crate::Context;

/// Something that travels beside the payload: how a library on top gives payloads whose type listeners do not know
/// a second face, without the emitter knowing it.
///
/// A facet is made of a *lens*: a static value, usually a struct of functions that take the event as
/// `&dyn AnyEvent`. Listeners ask for it by type with [`EventMeta::facet`](crate::EventMeta::facet).
#[derive(Clone, Copy)]
pub struct Facet {
    lens: &'static (dyn Any + Send + Sync),
    internal: bool,
}

impl Facet {
    /// A facet that shows a lens.
    #[must_use]
    pub const fn new(lens: &'static (dyn Any + Send + Sync)) -> Self {
        Self { lens, internal: false }
    }

    /// Also marks the event by `internal: true` in its context, which users cannot set (R3).
    #[must_use]
    pub const fn internal(mut self) -> Self {
        self.internal = true;
        self
    }

    /// The context of an event that has it, whose source has that context.
    #[must_use]
    pub fn over(&self, context: Context) -> Context {
        if self.internal { context.internal() } else { context }
    }

    /// What it shows, if that is an `L`.
    #[must_use]
    pub fn lens<L: Send + Sync + 'static>(&self) -> Option<&'static L> {
        self.lens.downcast_ref()
    }
}

impl fmt::Debug for Facet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Facet").field("internal", &self.internal).finish_non_exhaustive()
    }
}
