//! What an emit may attach to its event (E17).

use std::any::Any;
use std::fmt;

use crate::name::bit;
use crate::{AsName, Context, EventName};

/// Something that travels beside the payload: how a library on top gives payloads whose type listeners do not know
/// a second face, without the emitter knowing it.
///
/// A facet is made of a *lens*: a static value, usually a struct of functions that take the event as
/// `&dyn AnyEvent`. Listeners ask for it by type with [`EventMeta::facet`](crate::EventMeta::facet).
#[derive(Clone, Copy)]
pub struct Facet {
    lens: &'static (dyn Any + Send + Sync),
    internal: bool,
    also_named: Option<EventName>,
    isolated: bool,
}

impl Facet {
    /// A facet that shows a lens.
    #[must_use]
    pub const fn new(lens: &'static (dyn Any + Send + Sync)) -> Self {
        Self { lens, internal: false, also_named: None, isolated: false }
    }

    /// Also marks the event by `internal: true` in its context, which users cannot set (R3).
    #[must_use]
    pub const fn internal(mut self) -> Self {
        self.internal = true;
        self
    }

    /// Gives the event a second name, for typed listeners: on the emitter where it is emitted, and on the instance of that run, one that
    /// is registered under this very name receives it if it takes exactly the event's type.
    ///
    /// A listener for the same generic type with other parameters is an error that names both (E7). All others, those for any
    /// type too, know the event by the name that it is emitted under.
    ///
    /// ```
    /// use emitree_emitter::rt::Facet;
    /// use emitree_emitter::{Emitter, EventName};
    ///
    /// const RUN_START: Facet = Facet::new(&()).also_named(EventName::new("start"));
    ///
    /// let emitter = Emitter::new();
    /// emitter.on("start", |n: &mut Option<u32>, _| *n = Some(1))?;
    /// emitter.on("start", |text: &mut String, _| text.clear())?; // knows only events that are emitted as "start"
    /// let mut n = None::<u32>;
    /// emitter.emit_now_with("run.start", &mut n, &RUN_START)?;
    /// assert_eq!(n, Some(1));
    /// assert!(emitter.emit_now_with("run.start", &mut None::<u64>, &RUN_START).is_err());
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub const fn also_named(mut self, name: EventName) -> Self {
        self.also_named = Some(name);
        self
    }

    pub(crate) const fn other_name(&self) -> Option<&EventName> {
        self.also_named.as_ref()
    }

    /// The bit of that name.
    pub(crate) fn name_bits(&self) -> u64 {
        self.also_named.as_ref().map_or(0, |name| bit(name.as_name().hash()))
    }

    /// Also isolates the failures of all listeners: each is logged and counted, and neither ends the changing nor fails
    /// the emit, whatever the listener's [`OnError`](crate::OnError) says (E11). For events that only report.
    #[must_use]
    pub const fn isolated(mut self) -> Self {
        self.isolated = true;
        self
    }

    pub(crate) const fn isolates_failures(&self) -> bool {
        self.isolated
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
        f.debug_struct("Facet")
            .field("internal", &self.internal)
            .field("isolated", &self.isolated)
            .finish_non_exhaustive()
    }
}
