//! What a run can fail with (R10, M9).

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::{BoxError, EmitError, EmitErrorKind, panic_message};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// The result of a run.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run did not succeed: a kind, a message, what caused it, and what was known when it happened.
///
/// Made from any [`std::error::Error`] by `?`, so it is not one itself; it becomes a [`BoxError`] by `?` or `into`,
/// and keeps its kind on the way through a listener and back. Clones share everything.
///
/// ```
/// use emitree_runtime::{Error, ErrorKind};
///
/// fn port(text: &str) -> Result<u16, Error> {
///     Ok(text.parse::<u16>().map_err(|error| Error::from(error).message(format!("`{text}` is no port")))?)
/// }
///
/// let error = port("http").unwrap_err();
/// assert_eq!(error.explain(), "`http` is no port\n  caused by: invalid digit found in string");
/// assert_eq!(error.kind(), &ErrorKind::Failed);
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    /// None where the source speaks for itself.
    message: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    context: Map<String, Value>,
    is_retryable: bool,
    is_fatal: bool,
}

/// What sort of end it is. Denial, halt, abort, time-out and interrupt are control flow: a layer that catches
/// failures does not catch them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The work, or a listener, failed.
    Failed,
    /// The work, or a listener, panicked.
    Panicked,
    /// A value does not fit the type that it was given for.
    Invalid,
    /// Something that guards said no.
    Denied {
        /// Who said no.
        by: String,
    },
    /// Something stopped the run on purpose.
    Halted {
        /// Who stopped it.
        by: String,
    },
    /// The run was aborted.
    Aborted,
    /// The run took too long.
    TimedOut,
    /// The run was interrupted, and can be resumed.
    Interrupted,
    /// The run's future was dropped.
    Dropped,
}

impl ErrorKind {
    /// Whether it is control flow, and not a failure.
    #[must_use]
    pub const fn is_control_flow(&self) -> bool {
        !matches!(self, Self::Failed | Self::Panicked | Self::Invalid)
    }

    const fn of_emit(kind: &EmitErrorKind) -> Self {
        match kind {
            EmitErrorKind::Panicked { .. } => Self::Panicked,
            _ => Self::Failed,
        }
    }
}

impl Error {
    /// A failure that a message says all about.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Failed, message)
    }

    /// A denial, by whom and why.
    #[must_use]
    pub fn denied(by: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Denied { by: by.into() }, reason)
    }

    /// A halt, by whom and why.
    #[must_use]
    pub fn halted(by: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Halted { by: by.into() }, reason)
    }

    pub(crate) fn of_kind(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { message: Some(message.into()), ..Inner::of(kind) }))
    }

    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        Self::of_kind(ErrorKind::Panicked, panic_message(panic))
    }

    /// Makes one of a boxed error, which `?` cannot.
    ///
    /// What was an `Error` before it was boxed is that error again; so is what a listener returned, once the emit
    /// has wrapped it.
    #[must_use]
    pub fn from_boxed(error: BoxError) -> Self {
        match error.downcast::<Carrier>() {
            Ok(carrier) => carrier.0,
            Err(error) => match error.downcast::<EmitError>() {
                Ok(error) => Self::from_emit(*error),
                Err(error) => Self(Arc::new(Inner { source: Some(error.into()), ..Inner::of(ErrorKind::Failed) })),
            },
        }
    }

    fn from_emit(error: EmitError) -> Self {
        match error.into_kind() {
            EmitErrorKind::Listener { path, at, source } if source.is::<Carrier>() => {
                let error = Self::from_boxed(source);
                // Control flow says by itself who wanted it; of a failure one wants to know where it was.
                if error.kind().is_control_flow() {
                    return error;
                }
                error.first("listener", || format!("{at}")).first("event", || path)
            }
            kind => {
                let of_emit = ErrorKind::of_emit(&kind);
                Self(Arc::new(Inner { source: Some(Arc::new(EmitError::from(kind))), ..Inner::of(of_emit) }))
            }
        }
    }

    /// Says it in other words; what was said before becomes a cause.
    #[must_use]
    pub fn message(self, message: impl Into<String>) -> Self {
        let source = match &self.0.message {
            None => self.0.source.clone(),
            Some(_) => Some(Arc::new(Carrier(self.clone())) as Arc<_>),
        };
        self.with(|inner| {
            inner.message = Some(message.into());
            inner.source = source;
        })
    }

    /// Adds what was known when it happened.
    #[must_use]
    pub fn context(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.with(|inner| {
            inner.context.insert(key.into(), value.into());
        })
    }

    /// Adds it unless it is known: however many listeners pass an error on, it tells of the first.
    fn first(self, key: &str, value: impl FnOnce() -> String) -> Self {
        if self.0.context.contains_key(key) { self } else { self.context(key, value()) }
    }

    /// Says whether trying again may help. Control flow is never retryable.
    #[must_use]
    pub fn retryable(self, is_retryable: bool) -> Self {
        self.with(|inner| inner.is_retryable = is_retryable)
    }

    /// Says whether nothing that depends on the run can go on. Control flow is never fatal.
    #[must_use]
    pub fn fatal(self, is_fatal: bool) -> Self {
        self.with(|inner| inner.is_fatal = is_fatal)
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// What sort of end it is.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Whether trying again may help. Not unless it was said so.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.is_retryable && !self.0.kind.is_control_flow()
    }

    /// Whether nothing that depends on the run can go on. Not unless it was said so.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.0.is_fatal && !self.0.kind.is_control_flow()
    }

    /// What was known when it happened.
    #[must_use]
    pub fn details(&self) -> &Map<String, Value> {
        &self.0.context
    }

    /// The first error of that type along the chain of causes.
    #[must_use]
    pub fn find<E: StdError + 'static>(&self) -> Option<&E> {
        self.chain().find_map(|cause| match cause.downcast_ref::<Carrier>() {
            // Speaks for its source, which is no cause of its own.
            Some(carrier) => carrier.0.find(),
            None => cause.downcast_ref(),
        })
    }

    /// What caused it, nearest first.
    fn chain(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        let first = self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static));
        std::iter::successors(first, |&cause| cause.source())
    }

    /// Everything about it, as data.
    #[must_use]
    pub fn report(&self) -> ErrorReport {
        let spoken = usize::from(self.0.message.is_none());
        ErrorReport {
            kind: self.0.kind.clone(),
            message: self.to_string(),
            causes: self.chain().skip(spoken).map(ToString::to_string).collect(),
            context: self.0.context.clone(),
            is_retryable: self.is_retryable(),
            is_fatal: self.is_fatal(),
        }
    }

    /// Everything about it for a person: the message, then each cause and each known fact on a line of its own.
    #[must_use]
    pub fn explain(&self) -> String {
        self.report().explain()
    }
}

impl Inner {
    fn of(kind: ErrorKind) -> Self {
        Self { kind, message: None, source: None, context: Map::new(), is_retryable: false, is_fatal: false }
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Self::from_boxed(Box::new(error))
    }
}

impl From<Error> for BoxError {
    fn from(error: Error) -> Self {
        Box::new(Carrier(error))
    }
}

/// The message; [`explain`](Error::explain) says the rest.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.message, &self.0.source) {
            (Some(message), _) => f.write_str(message),
            (None, Some(source)) => source.fmt(f),
            (None, None) => write!(f, "{:?}", self.0.kind),
        }
    }
}

/// What `main` prints of it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.explain())
    }
}

/// Serialises as its [`ErrorReport`].
impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.report().serialize(serializer)
    }
}

/// An [`Error`] on its way through a [`BoxError`].
#[derive(Debug)]
struct Carrier(Error);

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Carrier {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let spoken = usize::from(self.0.0.message.is_none());
        self.0.chain().nth(spoken)
    }
}

/// An error as data, as it stands in an event or a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ErrorReport {
    /// What sort of end it is.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// What caused it, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What was known when it happened.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub context: Map<String, Value>,
    /// Whether trying again may help.
    pub is_retryable: bool,
    /// Whether nothing that depends on the run can go on.
    pub is_fatal: bool,
}

impl ErrorReport {
    /// Everything about it for a person, as [`Error::explain`] has it.
    #[must_use]
    pub fn explain(&self) -> String {
        let who = match &self.kind {
            ErrorKind::Denied { by } => format!("denied by {by}: "),
            ErrorKind::Halted { by } => format!("halted by {by}: "),
            ErrorKind::Panicked => "panicked: ".to_owned(),
            ErrorKind::Aborted => "aborted: ".to_owned(),
            _ => String::new(),
        };
        let causes = self.causes.iter().map(|cause| format!("\n  caused by: {cause}"));
        let facts = self.context.iter().map(|(key, value)| format!("\n  {key}: {value}"));
        [who, self.message.clone()].into_iter().chain(causes).chain(facts).collect()
    }
}
