//! Events that are redacted whole, as JSON: those that are JSON or text, and those whose type was told.

use std::any::type_name;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, BoxError, EventMeta, Options};
use emitree_runtime::{Error, Result, RunContext};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::core::Redactor;

/// Has a run's events of one name and type redacted.
pub(super) type Whole = Arc<dyn Fn(&Arc<Redactor>, &RunContext) -> Result<()> + Send + Sync>;

/// Before anybody else hears it.
const fn first() -> Options {
    Options::new().priority(i32::MAX).nested(false)
}

/// Events of a name, whose payload is a `T`.
pub(super) fn of_type<T: Serialize + DeserializeOwned + Send + Sync + 'static>(name: String) -> Whole {
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
    let mut value = serde_json::to_value(&*event)?;
    if redactor.event(meta.name(), &mut value) {
        *event = serde_json::from_value(value).map_err(|error| {
            let (name, of) = (meta.name(), type_name::<T>());
            Error::new(format!("`{of}` does not take what stands in place of secrets in `{name}`: {error}"))
        })?;
    }
    Ok(())
}

/// Events of any name whose payload is text, or JSON.
pub(super) fn of_json(redactor: &Arc<Redactor>, ctx: &RunContext) -> Result<()> {
    let redactor = Arc::clone(redactor);
    ctx.emitter().with(first()).on("*", move |event: &mut dyn AnyEvent, meta: &EventMeta<'_>| {
        if let Some(text) = event.downcast_mut::<String>() {
            let mut value = Value::String(std::mem::take(text));
            redactor.event(meta.name(), &mut value);
            if let Value::String(redacted) = value {
                *text = redacted;
            }
        } else if let Some(value) = event.downcast_mut::<Value>() {
            redactor.event(meta.name(), value);
        }
    })?;
    Ok(())
}
