//! Facets: static values that are attached to events when they are emitted.

use std::any::Any;
use std::fmt;

use serde_json::Value;

use crate::name::bit;
use crate::{AnyEvent, AsName, Context, Event, EventName};

/// A static value that travels beside a payload. With a facet, listeners can read and change a payload whose type they
/// do not know.
///
/// The value, called the *lens*, is usually a struct of functions that take `&dyn AnyEvent` or `&mut dyn AnyEvent`.
/// Listeners get the lens by its type from [`EventMeta::facet`](crate::EventMeta::facet).
#[derive(Clone, Copy)]
pub struct Facet {
    lens: &'static (dyn Any + Send + Sync),
    internal: bool,
    also_named: Option<EventName>,
    isolated: bool,
    head: fn(&dyn AnyEvent) -> Option<Value>,
}

impl Facet {
    /// Creates a facet with a lens.
    #[must_use]
    pub const fn new(lens: &'static (dyn Any + Send + Sync)) -> Self {
        Self { lens, internal: false, also_named: None, isolated: false, head: |_| None }
    }

    /// Returns the facet of a typed event, which has the head of its type.
    pub(crate) const fn of_event<E: Event>() -> &'static Self {
        const { &Self::new(&()).with_head(|event| event.downcast_ref::<E>()?.head()) }
    }

    /// Sets the function that returns the head of the payload, for records of [`Detail::Heads`](crate::Detail::Heads).
    #[must_use]
    pub const fn with_head(mut self, head: fn(&dyn AnyEvent) -> Option<Value>) -> Self {
        self.head = head;
        self
    }

    pub(crate) fn head(&self, event: &dyn AnyEvent) -> Option<Value> {
        (self.head)(event)
    }

    /// Marks the event with `internal: true` in its context. Users cannot set this key.
    #[must_use]
    pub const fn internal(mut self) -> Self {
        self.internal = true;
        self
    }

    /// Gives the event a second name for typed listeners.
    ///
    /// A listener for exactly this name receives the event if it expects exactly the event's type. If the listener
    /// expects another type that is defined in the same module, or the same generic type with other parameters, the emit
    /// fails with an error that names both types. All other listeners, including listeners for any type, are matched by
    /// the name under which the event is emitted. The second name applies on the emitter of the event and, in a run, on
    /// the run's instance.
    ///
    /// ```
    /// use emitree_emitter::rt::{Delivery, Emitted, EventStamp, Facet};
    /// use emitree_emitter::{Emitter, EventName};
    ///
    /// const RUN_START: Facet = Facet::new(&()).also_named(EventName::new("start"));
    ///
    /// let emitter = Emitter::new();
    /// emitter.on("start", |n: &mut Option<u32>, _| *n = Some(1))?;
    /// emitter.on("start", |text: &mut String, _| text.clear())?; // not called: another type
    /// let name = EventName::new("run.start");
    /// let mut n = None::<u32>;
    /// let delivery = Delivery::new();
    /// let stamp = EventStamp::new();
    /// let emitted = emitter.emit_begin(name, &mut n, &RUN_START, &delivery, &stamp);
    /// assert!(matches!(emitted, Emitted::Done(Ok(()))));
    /// assert_eq!(n, Some(1));
    /// let emitted = emitter.emit_begin(name, &mut None::<u64>, &RUN_START, &delivery, &stamp);
    /// assert!(matches!(emitted, Emitted::Done(Err(_))));
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

    /// Returns the bit of the second name, or 0 if there is no second name.
    pub(crate) fn name_bits(&self) -> u64 {
        self.also_named.as_ref().map_or(0, |name| bit(name.as_name().hash()))
    }

    /// Isolates the failures of all listeners, regardless of their [`OnError`](crate::OnError): each failure is logged
    /// and counted, and the other listeners run as usual. Use it for events that only report.
    #[must_use]
    pub const fn isolated(mut self) -> Self {
        self.isolated = true;
        self
    }

    pub(crate) const fn isolates_failures(&self) -> bool {
        self.isolated
    }

    /// Returns `context` with the keys that the facet adds: `internal: true` for an [`internal`](Self::internal) facet.
    #[must_use]
    pub fn over(&self, context: Context) -> Context {
        if self.internal { context.internal() } else { context }
    }

    /// Returns the lens if it is an `L`.
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
