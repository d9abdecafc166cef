//! Payloads: the values that events carry (E7).
//!
//! `meta` describes an event to its listeners, `record` is its owned form for sinks, and `stamp` has its id, time and
//! context. `declared` checks the events that an emitter declares, and a `facet` travels beside a payload.

pub(crate) mod declared;
pub(crate) mod facet;
pub(crate) mod meta;
pub(crate) mod record;
pub(crate) mod stamp;

use std::any::{Any, TypeId, type_name};
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::EventName;
use crate::json::{bounded, to_value};

/// A payload of any type. It can be read as JSON or downcast to its type.
///
/// This trait is implemented for every `Serialize + Send + Sync + 'static` type.
pub trait AnyEvent: Any + Send + Sync {
    /// Returns the payload as JSON.
    ///
    /// A payload that cannot be serialized, or is nested deeper than [`MAX_DEPTH`](crate::json::MAX_DEPTH), becomes a
    /// string that contains the reason.
    ///
    /// Call [`to_json`](#method.to_json) on a `dyn AnyEvent` instead. This method has another name because every
    /// serializable type has it, also the record of an event, whose own JSON is not its payload.
    fn payload_to_json(&self) -> Value;

    /// Returns the payload as JSON text, written without an intermediate [`Value`]. Payloads that cannot be serialized
    /// become a string, as in [`payload_to_json`](Self::payload_to_json).
    fn to_raw_json(&self) -> Box<RawValue>;

    /// Returns the name of the payload's type, as [`std::any::type_name`] does.
    fn type_name(&self) -> &'static str;
}

impl<T: Serialize + Send + Sync + 'static> AnyEvent for T {
    fn payload_to_json(&self) -> Value {
        to_value(self).unwrap_or_else(|error| Value::String(error_text::<T>(&error)))
    }

    fn to_raw_json(&self) -> Box<RawValue> {
        bounded(self, |value| to_raw_value(value))
            // The reason replaces the payload, so that the event is still delivered.
            .or_else(|error| to_raw_value(&error_text::<T>(&error)))
            .unwrap_or_else(|_| RawValue::NULL.to_owned())
    }

    fn type_name(&self) -> &'static str {
        type_name::<T>()
    }
}

fn error_text<T>(error: &serde_json::Error) -> String {
    format!("<{} cannot be serialized: {error}>", type_name::<T>())
}

impl dyn AnyEvent {
    /// Returns the payload as JSON.
    ///
    /// A payload that cannot be serialized, or is nested deeper than [`MAX_DEPTH`](crate::json::MAX_DEPTH), becomes a
    /// string that contains the reason.
    #[must_use]
    pub fn to_json(&self) -> Value {
        self.payload_to_json()
    }

    /// Returns `true` if the payload is a `T`.
    #[must_use]
    pub fn is<T: 'static>(&self) -> bool {
        (self as &dyn Any).is::<T>()
    }

    /// Returns the payload if it is a `T`.
    #[must_use]
    pub fn downcast_ref<T: 'static>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }

    /// Returns a mutable reference to the payload if it is a `T`.
    #[must_use]
    pub fn downcast_mut<T: 'static>(&mut self) -> Option<&mut T> {
        (self as &mut dyn Any).downcast_mut()
    }
}

impl fmt::Debug for dyn AnyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.type_name(), self.to_json())
    }
}

/// A payload type that carries the name of its event, so that [`Emitter::emit_event`](crate::Emitter::emit_event) and
/// [`Emitter::on_event`](crate::Emitter::on_event) need no name.
///
/// ```
/// use emitree_emitter::{Emitter, Event, EventName};
///
/// #[derive(serde::Serialize)]
/// struct FetchData { url: String }
///
/// impl Event for FetchData {
///     const NAME: EventName = EventName::new("fetch_data");
/// }
///
/// let emitter = Emitter::new();
/// emitter.on_event(|data: &mut FetchData, _| data.url = "https://example.org".into())?;
/// let mut data = FetchData { url: String::new() };
/// emitter.emit_event_now(&mut data)?;
/// assert_eq!(data.url, "https://example.org");
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not carry the name of an event",
    label = "expected a payload type that implements `Event`",
    note = "implement `Event` to give it a name:\nimpl Event for {Self} {{\n    const NAME: EventName = EventName::new(\"name_of_the_event\");\n}}",
    note = "or pass the name with the payload: `emit(\"name\", &mut payload)`, `on(\"name\", |payload: &mut {Self}, _| …)`"
)]
pub trait Event: Serialize + Send + Sync + 'static {
    /// The name under which the event is emitted.
    const NAME: EventName;

    /// Returns the head of the payload: the few members that a record of [`Detail::Heads`](crate::Detail::Heads) has,
    /// in the shape of the whole payload. By default, there is no head.
    ///
    /// A head has facts, such as ids, counts and settings, and no texts or values of the work. It is used if the event
    /// is emitted with [`emit_event`](crate::Emitter::emit_event) or
    /// [`emit_event_now`](crate::Emitter::emit_event_now).
    fn head(&self) -> Option<Value> {
        None
    }
}

/// The argument type of a listener: a payload type, or [`dyn AnyEvent`](AnyEvent) for all payloads.
///
/// # Events of another type
///
/// A listener that names an event must take its type: if the event has a payload of another type, the emit fails with
/// an error that names both types. This applies to:
///
/// - a listener under an exact name or path, for own events, and for events with a dot in their name that are emitted
///   in the same places;
/// - a listener of a stage of a run's life, or of all of them, for own events;
/// - a listener of the lifecycle of one instance, for the runs of that instance, on any emitter;
/// - a listener for `"start"`, `"success"`, `"error"` or `"finish"` that takes the payload of another stage, or the
///   stage's payload with other type parameters.
///
/// If the listener is an observer, the emit does not fail by default: the error is logged and counted. A listener skips
/// all other events that are not of its type. With [`nested(true)`](crate::Options::nested) or `of_types`, a listener of
/// a stage or a lifecycle matcher also skips own events of another type.
///
/// This trait is implemented for every payload type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the payload of an event",
    label = "payloads are `Serialize + Send + Sync + 'static`",
    note = "derive `serde::Serialize`, or wrap a value that cannot be serialized: `Opaque<{Self}>`"
)]
pub trait Payload {
    /// Returns the expected payload type, or `None` if any type is accepted.
    #[doc(hidden)]
    fn expected() -> Option<ExpectedType>;
    /// Returns the event as a listener's argument, if it has the expected type.
    #[doc(hidden)]
    fn of_mut(event: &mut dyn AnyEvent) -> Option<&mut Self>;
    /// Returns the event as an observer's argument, if it has the expected type.
    #[doc(hidden)]
    fn of_ref(event: &dyn AnyEvent) -> Option<&Self>;
}

/// The payload type that a listener expects.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct ExpectedType {
    pub(crate) id: TypeId,
    pub(crate) name: &'static str,
}

impl ExpectedType {
    pub(crate) fn of<T: 'static>() -> Self {
        Self { id: TypeId::of::<T>(), name: type_name::<T>() }
    }
}

/// The payload type of an emit. It is stored as one constant per type, so that an emit only passes a single pointer.
#[derive(Debug)]
pub(crate) struct CarriedType {
    pub(crate) id: TypeId,
    name: fn() -> &'static str,
}

impl CarriedType {
    pub(crate) const fn of<T: 'static>() -> Self {
        Self { id: TypeId::of::<T>(), name: type_name::<T> }
    }

    pub(crate) fn name(&self) -> &'static str {
        (self.name)()
    }
}

impl<T: Serialize + Send + Sync + 'static> Payload for T {
    fn expected() -> Option<ExpectedType> {
        Some(ExpectedType::of::<T>())
    }

    fn of_mut(event: &mut dyn AnyEvent) -> Option<&mut Self> {
        event.downcast_mut()
    }

    fn of_ref(event: &dyn AnyEvent) -> Option<&Self> {
        event.downcast_ref()
    }
}

impl Payload for dyn AnyEvent {
    fn expected() -> Option<ExpectedType> {
        None
    }

    fn of_mut(event: &mut dyn AnyEvent) -> Option<&mut Self> {
        Some(event)
    }

    fn of_ref(event: &dyn AnyEvent) -> Option<&Self> {
        Some(event)
    }
}

/// Wraps a payload that cannot be serialized. In JSON, the payload becomes a string with the name of its type.
///
/// ```
/// use emitree_emitter::{AnyEvent, Opaque};
///
/// struct Connection;
/// assert_eq!(Opaque(Connection).payload_to_json().as_str().map(|s| s.ends_with("Connection>")), Some(true));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opaque<T>(
    /// The wrapped value.
    pub T,
);

impl<T> Serialize for Opaque<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("<{}>", type_name::<T>()))
    }
}
