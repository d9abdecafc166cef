//! Handles the failures of listeners (E11). A failure becomes the error of the emit, or is logged and counted.

use std::panic::Location;

use super::sync::DispatchProgress;
use crate::error::EmitErrorKind;
use crate::panic::{discard, logged};
use crate::registry::listener::{Failure, Listener, OnError, Role};
use crate::rt::Facet;
use crate::{AnyEvent, BoxError, EmitError, Emitter, EventMeta};

impl DispatchProgress {
    /// Handles the failure of one listener. The first failure that is not isolated becomes the error of the emit.
    #[cold]
    #[expect(
        clippy::boxed_local,
        reason = "unboxing the failure here keeps that code out of the loop that every emit runs"
    )]
    pub(super) fn handle_failure(
        &mut self,
        listener: &Listener,
        failure: Box<Failure>,
        event: &dyn AnyEvent,
        meta: &EventMeta<'_>,
    ) {
        listener.remove_if_spent();
        let error = explain(listener, *failure, event, meta);
        if listener.on_error == OnError::Isolate || meta.emit.facet.is_some_and(Facet::isolates_failures) {
            return isolate(listener, error);
        }
        match self.failed {
            None => self.failed = Some(error),
            // An emit returns only the first error. Later errors are logged and counted.
            Some(_) => isolate(listener, error),
        }
        // The event may be half changed, so no other listener may change it. Observers receive it in this state.
        if listener.call.role() == Role::Change {
            self.skip_changing();
        }
    }
}

/// Converts a failure into the error of an emit. If the listener returns the error of a nested emit, and this error
/// already names a listener, it is not wrapped again (E11, R10).
fn explain(listener: &Listener, failure: Failure, event: &dyn AnyEvent, meta: &EventMeta<'_>) -> EmitError {
    let path = meta.path().to_owned();
    let at = listener.at;
    match failure {
        Failure::Error(source) => wrap(source, path, at),
        Failure::Panic(message) => EmitErrorKind::Panicked { path, at, message }.into(),
        Failure::Mismatch => EmitErrorKind::TypeMismatch {
            path,
            at,
            carried: event.type_name(),
            expected: listener.expected.map_or("any", |expected| expected.name),
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

/// Logs and counts an error that the emit does not return.
fn isolate(listener: &Listener, error: EmitError) {
    logged(|| {
        let cause = std::error::Error::source(&error).map(tracing::field::display);
        tracing::warn!(error = %error, cause, "a listener's failure was isolated");
    });
    if let Some(registry) = listener.home.upgrade().map(Emitter::from).as_ref().and_then(Emitter::registry) {
        registry.count_isolated();
    }
    // The error may contain a user's value, whose drop may panic.
    discard("a listener's error", error);
}
