//! What becomes of a listener's failure (E11).

use std::panic::Location;

use crate::error::EmitErrorKind;
use crate::listener::{Fault, Listener};
use crate::panic::{discard, logged};
use crate::{AnyEvent, BoxError, EmitError, Emitter, EventMeta};

/// Says what went wrong, once: the error of an emit inside a listener passes unchanged (E11, R10).
pub(crate) fn explain(listener: &Listener, fault: Fault, event: &dyn AnyEvent, meta: &EventMeta<'_>) -> EmitError {
    let (path, at) = (meta.path().to_owned(), listener.at);
    match fault {
        Fault::Error(source) => wrap(source, path, at),
        Fault::Panic(message) => EmitErrorKind::Panicked { path, at, message }.into(),
        Fault::Mismatch => EmitErrorKind::TypeMismatch {
            path,
            at,
            carried: event.type_name(),
            heard: listener.heard.map_or("any", |heard| heard.name),
        }
        .into(),
    }
}

fn wrap(source: BoxError, path: String, at: &'static Location<'static>) -> EmitError {
    match source.downcast::<EmitError>() {
        Ok(error) if error.names_a_listener() => *error,
        Ok(source) => EmitErrorKind::Listener { path, at, source }.into(),
        Err(source) => EmitErrorKind::Listener { path, at, source }.into(),
    }
}

/// Logs and counts it: the emit goes on as if it had not happened.
pub(crate) fn isolate(listener: &Listener, error: EmitError) {
    logged(|| {
        let cause = std::error::Error::source(&error).map(tracing::field::display);
        tracing::warn!(error = %error, cause, "a listener's failure was isolated");
    });
    if let Some(registry) = listener.home.upgrade().map(Emitter::from).as_ref().and_then(Emitter::registry) {
        registry.count_isolated();
    }
    // The error is the user's, and so is its `Drop`.
    discard("a listener's error", error);
}
