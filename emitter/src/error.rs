//! What can go wrong: in registering ([`ListenError`], [`MatcherError`]) and in emitting ([`EmitError`]).

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;

use thiserror::Error;

use crate::NameError;

/// Any error, as listeners return it.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// A matcher that is empty, too long, or does not compile (E4).
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum MatcherError {
    /// The pattern is the empty string.
    #[error("an empty matcher matches nothing; use \"*\" for every own event or \"*.*\" for every event")]
    Empty,
    /// A name without wildcard that is not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A glob that does not compile.
    #[error("`{pattern}` is not a valid glob: {fault}")]
    Glob {
        /// The pattern as it was given.
        pattern: String,
        /// What globset says is wrong with it.
        fault: String,
    },
    /// A glob or regex that is too long.
    #[error("a pattern of {length} bytes is too long, at most {limit} are taken: `{prefix}…`")]
    TooLong {
        /// What the pattern begins with.
        prefix: String,
        /// Its length in bytes.
        length: usize,
        /// The length of the longest pattern that is taken.
        limit: usize,
    },
    /// A regex that does not compile.
    #[error("`{pattern}` is not a valid regex: {fault}")]
    Regex {
        /// The pattern as it was given.
        pattern: String,
        /// What regex says is wrong with it.
        fault: String,
    },
}

/// A registration that was refused; nothing was registered.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The matcher is not one.
    #[error(transparent)]
    Matcher(#[from] MatcherError),
    /// The emitter declares its events, and no event of that name is among them (E7).
    #[error("`{name}` is not declared by this emitter; it declares {declared}")]
    Undeclared {
        /// The name that was asked for.
        name: String,
        /// The names that are declared.
        declared: String,
    },
    /// The emitter declares the event with another type (E7).
    #[error("`{name}` is declared with payload `{declared}`, but the listener takes `{heard}`")]
    DeclaredType {
        /// The name that was asked for.
        name: String,
        /// The type declared for it.
        declared: &'static str,
        /// The type that the listener takes.
        heard: &'static str,
    },
    /// The run has ended whose emitter this is: nothing is heard there any more (R14).
    #[error(
        "this run of `{namespace}` has ended and takes no more listeners; listen before it ends, or on its instance"
    )]
    RunEnded {
        /// The emitter's namespace.
        namespace: String,
    },
}

/// An emitter that was not built.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A namespace or a declared event has no valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An event is declared twice, or not as one of this emitter's own (E7).
    #[error("`{name}` cannot be declared: {fault}")]
    Declared {
        /// The name.
        name: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The context sets the key that belongs to the runtime (R3).
    #[error("context key `{0}` is set by the runtime on its own events only; choose another key")]
    ReservedKey(&'static str),
}

/// An emit that failed.
///
/// It is wrapped once: a listener that returns the `EmitError` of an emit of its own passes it on unchanged, if it
/// names the listener that failed.
#[derive(Debug)]
pub struct EmitError(Box<EmitErrorKind>);

/// Why an emit failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EmitErrorKind {
    /// The event has no valid name.
    #[error(transparent)]
    Name(NameError),
    /// A listener returned an error (E11).
    #[error("a listener of `{path}` failed (registered at {at})")]
    Listener {
        /// The event's path.
        path: String,
        /// Where the listener was registered.
        at: &'static Location<'static>,
        /// What it returned.
        source: BoxError,
    },
    /// A listener panicked (E11).
    #[error("a listener of `{path}` panicked: {message} (registered at {at})")]
    Panicked {
        /// The event's path.
        path: String,
        /// Where the listener was registered.
        at: &'static Location<'static>,
        /// The panic's message.
        message: String,
    },
    /// A listener registered under this very name takes another type (E7).
    #[error("`{path}` carries `{carried}`, but a listener takes `{heard}` (registered at {at})")]
    TypeMismatch {
        /// The event's path.
        path: String,
        /// Where the listener was registered.
        at: &'static Location<'static>,
        /// The type of the payload.
        carried: &'static str,
        /// The type that the listener takes.
        heard: &'static str,
    },
    /// The emitter declares its events, and this is none of them (E7).
    #[error("`{name}` is not declared by this emitter; it declares {declared}")]
    Undeclared {
        /// The name emitted.
        name: String,
        /// The names that are declared.
        declared: String,
    },
    /// The emitter declares the event with another type (E7).
    #[error("`{name}` is declared with payload `{declared}`, not `{carried}`")]
    DeclaredType {
        /// The name emitted.
        name: String,
        /// The type declared for it.
        declared: &'static str,
        /// The type of the payload.
        carried: &'static str,
    },
    /// An async listener would hear an event that is emitted where nothing can be awaited (E17).
    #[error("`{path}` is heard by an async listener (registered at {at}); emit it with `emit(..).await`")]
    WouldAwait {
        /// The event's path.
        path: String,
        /// Where the listener was registered.
        at: &'static Location<'static>,
    },
}

impl EmitError {
    /// Why it failed.
    #[must_use]
    pub fn kind(&self) -> &EmitErrorKind {
        &self.0
    }

    /// Whether it says which listener failed, and need not be wrapped by an outer one.
    pub(crate) fn names_a_listener(&self) -> bool {
        use EmitErrorKind::{Listener, Panicked, TypeMismatch};
        matches!(*self.0, Listener { .. } | Panicked { .. } | TypeMismatch { .. })
    }

    /// The same, owned.
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

/// Returns the message of a panic, as `panic!` and most others leave it.
///
/// [`panic_text`](crate::panic_text) also disposes of the payload, whose `Drop` may panic.
#[must_use]
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is not text".to_owned())
}
