//! The redaction of whole event payloads: JSON, text, and payloads of registered types.

use std::any::type_name;
use std::borrow::Cow;
use std::sync::Arc;

use emitree_emitter::json::{check_depth, to_value};
use emitree_emitter::{AnyEvent, BoxError, Event, EventMeta, Options};
use emitree_runtime::{AttemptDiscarded, Error, Result, RunContext, WouldDeny};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::redactor::Redactor;

/// A function that registers, on a run, the redaction of events with one name and type.
pub(super) type PayloadRedaction = Arc<dyn Fn(&Arc<Redactor>, &RunContext) -> Result<()> + Send + Sync>;

/// The options of a listener that receives the run's events, but no nested events, before other listeners do.
const fn first() -> Options {
    Options::new().priority(i32::MAX).nested(false)
}

/// Redacts events with one name whose payload is a `T`.
pub(super) fn of_type<T: Serialize + DeserializeOwned + Send + Sync + 'static>(name: String) -> PayloadRedaction {
    Arc::new(move |redactor, ctx| {
        let redactor = Arc::clone(redactor);
        ctx.emitter()
            .with(first())
            .on(&*name, move |event: &mut T, meta: &EventMeta<'_>| redact(event, meta, &redactor))?;
        Ok(())
    })
}

fn redact<T: Serialize + DeserializeOwned>(
    event: &mut T,
    meta: &EventMeta<'_>,
    redactor: &Redactor,
) -> Result<(), BoxError> {
    let mut value = to_value(&*event)?;
    // Read the event back only if something was replaced: an event without secrets passes even if it cannot be read
    // from its JSON.
    if redactor.event(meta.name(), &mut value) {
        *event = serde_json::from_value(value).map_err(|error| {
            let name = meta.name();
            let of = type_name::<T>();
            Error::new(format!("`{of}` does not accept the replacement of a secret in `{name}`: {error}"))
        })?;
    }
    Ok(())
}

/// Redacts payloads of text or JSON, and of events that are declared as data, in events of the run's emitter and of the
/// emitters below it. Nested events are not redacted here.
pub(super) fn of_data(redactor: &Arc<Redactor>, ctx: &RunContext) -> Result<()> {
    let redactor = Arc::clone(redactor);
    ctx.emitter()
        .with(first())
        .on("*.*", move |event: &mut dyn AnyEvent, meta: &EventMeta<'_>| redact_data(event, meta, &redactor))?;
    Ok(())
}

/// Redacts the payload if its event is declared as data, or if it is text or JSON.
fn redact_data(event: &mut dyn AnyEvent, meta: &EventMeta<'_>, redactor: &Redactor) -> Result<(), BoxError> {
    let name = meta.name();
    let is_changed = meta.change_data(event, |value| redactor.event(name, value)).map_err(|error| {
        let of = meta.payload_type();
        Error::new(format!("secrets in `{of}`, the payload of `{name}`, cannot be replaced: {error}"))
    })?;
    if is_changed { Ok(()) } else { redact_text(event, name, redactor) }
}

/// Redacts the payload if it is JSON or has one of the text types.
fn redact_text(event: &mut dyn AnyEvent, name: &str, redactor: &Redactor) -> Result<(), BoxError> {
    let redacted = |text: &str| redactor.event_text(name, text);
    redact_as::<String>(event, &redacted);
    redact_as::<Cow<'static, str>>(event, &redacted);
    redact_as::<Box<str>>(event, &redacted);
    redact_as::<Arc<str>>(event, &redacted);
    if let Some(text) = event.downcast_mut::<&'static str>() {
        // A `&'static str` cannot be made from the redacted text: replace the whole text.
        redacted(text).into_iter().for_each(|_| *text = "[REDACTED]");
    } else if let Some(value) = event.downcast_mut::<Value>() {
        check_depth(value)?;
        redactor.event(name, value);
    }
    Ok(())
}

fn redact_as<T: AsRef<str> + From<String> + 'static>(
    event: &mut dyn AnyEvent,
    redacted: &impl Fn(&str) -> Option<String>,
) {
    if let Some(text) = event.downcast_mut::<T>()
        && let Some(redacted) = redacted((*text).as_ref())
    {
        *text = redacted.into();
    }
}

/// Redacts the runtime's events [`AttemptDiscarded`] and [`WouldDeny`].
pub(super) fn of_runtime(redactor: &Arc<Redactor>, ctx: &RunContext) -> Result<()> {
    let of_attempt = Arc::clone(redactor);
    ctx.emitter().with(first()).on(
        AttemptDiscarded::NAME,
        move |event: &mut AttemptDiscarded, meta: &EventMeta<'_>| {
            check_depth(&event.metadata)?;
            of_attempt.event_string(meta.name(), &mut event.reason);
            of_attempt.event(meta.name(), &mut event.metadata);
            Ok::<_, BoxError>(())
        },
    )?;
    let of_guard = Arc::clone(redactor);
    ctx.emitter().with(first()).on(WouldDeny::NAME, move |event: &mut WouldDeny, meta: &EventMeta<'_>| {
        of_guard.event_string(meta.name(), &mut event.guard);
        of_guard.event_string(meta.name(), &mut event.reason);
    })?;
    Ok(())
}
