//! Errors of registering ([`ListenError`], [`MatcherError`]), building ([`BuildError`]) and emitting ([`EmitError`]).

use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;

use thiserror::Error;

use crate::NameError;

/// The error type of listeners: any error, boxed.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// The error returned for a matcher that is empty, is too long, is not a valid name, or does not compile.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum MatcherError {
    /// The pattern is the empty string.
    #[error("an empty matcher matches nothing; use \"*\" for every own event or \"*.*\" for every event")]
    Empty,
    /// The pattern has no wildcards, and is not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The glob does not compile.
    #[error("`{pattern}` is not a valid glob: {fault}")]
    Glob {
        /// The pattern.
        pattern: String,
        /// The message of `globset`.
        fault: String,
    },
    /// The glob or regex is too long.
    #[error("a pattern of {length} bytes is too long (at most {limit} are allowed): `{prefix}…`")]
    TooLong {
        /// The beginning of the pattern.
        prefix: String,
        /// The length of the pattern in bytes.
        length: usize,
        /// The length of the longest pattern that is accepted.
        limit: usize,
    },
    /// The regex does not compile.
    #[error("`{pattern}` is not a valid regex: {fault}")]
    Regex {
        /// The pattern.
        pattern: String,
        /// The message of `regex`.
        fault: String,
    },
}

/// The error returned when a listener cannot be registered.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The matcher is not valid.
    #[error(transparent)]
    Matcher(#[from] MatcherError),
    /// The emitter declares the event with another type.
    #[error("`{name}` is declared with payload `{declared}`, but the listener takes `{expected}`")]
    DeclaredType {
        /// The event name in the listener's matcher.
        name: String,
        /// The declared type.
        declared: &'static str,
        /// The type that the listener takes.
        expected: &'static str,
    },
    /// The emitter belongs to a run that has ended.
    #[error(
        "this run of `{namespace}` has ended and accepts no more listeners; register listeners before it ends, or on its instance"
    )]
    RunEnded {
        /// The namespace of the emitter.
        namespace: String,
    },
}

/// The error returned when an emitter cannot be built.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A namespace, or the name of a declared event, is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An event is declared twice, or under a name with a dot.
    #[error("`{name}` cannot be declared: {fault}")]
    Declared {
        /// The name of the event.
        name: String,
        /// The reason.
        fault: &'static str,
    },
    /// The context sets the key `internal`, which is reserved for the runtime.
    #[error("context key `{0}` is set by the runtime on its own events only; choose another key")]
    ReservedKey(&'static str),
}

/// The error returned when an emit fails.
///
/// A listener may return the `EmitError` of an emit that it made itself. If that error names the listener that failed,
/// it is passed on unchanged instead of being wrapped again.
#[derive(Debug)]
pub struct EmitError(Box<EmitErrorKind>);

/// The reason for the failure of an emit.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EmitErrorKind {
    /// The name of the event is not valid.
    #[error(transparent)]
    Name(NameError),
    /// A listener returned an error.
    #[error("a listener of `{path}` failed (registered at {at})")]
    Listener {
        /// The path of the event.
        path: String,
        /// The source location of the listener's registration.
        at: &'static Location<'static>,
        /// The listener's error.
        source: BoxError,
    },
    /// A listener panicked.
    #[error("a listener of `{path}` panicked: {message} (registered at {at})")]
    Panicked {
        /// The path of the event.
        path: String,
        /// The source location of the listener's registration.
        at: &'static Location<'static>,
        /// The message of the panic.
        message: String,
    },
    /// A listener with an exact matcher, such as the name of the event, takes another type.
    #[error("`{path}` carries `{carried}`, but a listener takes `{expected}` (registered at {at})")]
    TypeMismatch {
        /// The path of the event.
        path: String,
        /// The source location of the listener's registration.
        at: &'static Location<'static>,
        /// The type of the payload.
        carried: &'static str,
        /// The type that the listener takes.
        expected: &'static str,
    },
    /// The emitter declares the event with another type.
    #[error("`{name}` is declared with payload `{declared}`, not `{carried}`")]
    DeclaredType {
        /// The emitted name.
        name: String,
        /// The declared type.
        declared: &'static str,
        /// The type of the payload.
        carried: &'static str,
    },
    /// An event was emitted by code that cannot await, but an async listener or a full sink would receive it.
    #[error("`{path}` is received by an async listener (registered at {at}); emit it with `emit(..).await`")]
    WouldAwait {
        /// The path of the event.
        path: String,
        /// The source location of the listener's registration.
        at: &'static Location<'static>,
    },
    /// A listener has tried to [consume](crate::EventMeta::consume) an event of a run's lifecycle.
    #[error(
        "`{path}` cannot be consumed, because an event of a run's lifecycle reaches all its listeners; to answer a run \
         early, bind a layer"
    )]
    NotConsumable {
        /// The path of the event.
        path: String,
    },
}

impl EmitError {
    /// Returns the reason for the failure.
    #[must_use]
    pub fn kind(&self) -> &EmitErrorKind {
        &self.0
    }

    /// Returns `true` if the error names the listener that failed, so that an outer emit need not wrap it.
    pub(crate) fn names_a_listener(&self) -> bool {
        use EmitErrorKind::{Listener, Panicked, TypeMismatch};
        matches!(*self.0, Listener { .. } | Panicked { .. } | TypeMismatch { .. })
    }

    /// Converts the error into the reason for the failure.
    #[must_use]
    pub fn into_kind(self) -> EmitErrorKind {
        *self.0
    }
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for EmitError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

impl From<EmitErrorKind> for EmitError {
    fn from(kind: EmitErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

impl From<NameError> for EmitError {
    fn from(error: NameError) -> Self {
        EmitErrorKind::Name(error).into()
    }
}
