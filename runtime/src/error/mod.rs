//! What a run can fail with (R10, M9).

pub(crate) mod control;
pub(crate) mod convert;
pub(crate) mod interrupt;
pub(crate) mod kind;
pub(crate) mod outcome;
pub(crate) mod report;
pub(crate) mod retry_request;

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::{BoxError, panic_text};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::error::control::ControlData;
use crate::error::convert::StdErrorAdapter;
use crate::{ErrorKind, ErrorReport};

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
pub struct Error(Arc<ErrorData>);

#[derive(Clone)]
struct ErrorData {
    kind: ErrorKind,
    /// None where the source speaks for itself.
    message: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    context: Map<String, Value>,
    is_retryable: bool,
    is_fatal: bool,
    extra: Option<ControlData>,
    /// The number of its note, where it is control flow that a layer got; 0 before.
    note: u64,
}

impl Error {
    /// A failure that a message says all about.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Failed, message)
    }

    pub(crate) fn carrying(self, extra: ControlData) -> Self {
        self.with(|data| data.extra = Some(extra))
    }

    pub(crate) fn extra(&self) -> Option<&ControlData> {
        self.0.extra.as_ref()
    }

    pub(crate) fn of_kind(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(ErrorData { message: Some(message.into()), ..ErrorData::of(kind) }))
    }

    pub(crate) fn of_panic(payload: Box<dyn Any + Send>) -> Self {
        Self::of_kind(ErrorKind::Panicked, panic_text(payload))
    }

    /// Says what caused it, in place of what was known of that.
    #[must_use]
    pub fn caused_by(self, cause: impl Into<BoxError>) -> Self {
        let cause: BoxError = cause.into();
        self.with(|data| data.source = Some(cause.into()))
    }

    /// Says it in other words; what was said before becomes a cause.
    #[must_use]
    pub fn message(self, message: impl Into<String>) -> Self {
        let source = match &self.0.message {
            None => self.0.source.clone(),
            Some(_) => Some(Arc::new(StdErrorAdapter(self.clone())) as Arc<_>),
        };
        self.with(|data| {
            data.message = Some(message.into());
            data.source = source;
        })
    }

    /// Adds what was known when it happened.
    #[must_use]
    pub fn context(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.with(|data| {
            data.context.insert(key.into(), value.into());
        })
    }

    /// Adds it unless it is known: however many listeners pass an error on, it tells of the first.
    fn first(self, key: &str, value: impl FnOnce() -> String) -> Self {
        if self.0.context.contains_key(key) { self } else { self.context(key, value()) }
    }

    /// Says whether trying again may help. Control flow is never retryable, except for a time-out.
    #[must_use]
    pub fn retryable(self, is_retryable: bool) -> Self {
        self.with(|data| data.is_retryable = is_retryable)
    }

    /// Says whether nothing that depends on the run can go on. Control flow is never fatal.
    #[must_use]
    pub fn fatal(self, is_fatal: bool) -> Self {
        self.with(|data| data.is_fatal = is_fatal)
    }

    /// The same end as another error, in the words of this one (R7).
    pub(crate) fn ending_as(self, other: &Self) -> Self {
        let ErrorData { kind, extra, .. } = &*other.0;
        if self.0.kind == *kind && Arc::ptr_eq(&self.0, &other.0) {
            return self;
        }
        // Who denied or halted is said in the words of this one, too.
        let kind = match (&self.0.kind, kind) {
            (said @ ErrorKind::Denied { .. }, ErrorKind::Denied { .. })
            | (said @ ErrorKind::Halted { .. }, ErrorKind::Halted { .. }) => said.clone(),
            _ => kind.clone(),
        };
        self.with(|data| (data.kind, data.extra) = (kind, extra.clone()))
    }

    /// The same end, of which nothing else is said than this.
    pub(crate) fn withheld(&self, message: String) -> Self {
        Self::of_kind(self.0.kind.clone(), message).ending_as(self)
    }

    fn with(mut self, change: impl FnOnce(&mut ErrorData)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The same, and the number of its note.
    pub(crate) fn noted(self, note: u64) -> Self {
        if self.0.note == note { self } else { self.with(|data| data.note = note) }
    }

    pub(crate) fn note(&self) -> u64 {
        self.0.note
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.0.note != 0
    }

    pub(crate) fn is_same_note(&self, other: &Self) -> bool {
        self.is_noted() && self.0.note == other.0.note
    }

    pub(crate) fn is_same_kind(&self, other: &Self) -> bool {
        self.0.kind == other.0.kind
    }

    pub(crate) fn is_as_severe(&self, other: &Self) -> bool {
        self.0.kind.severity() == other.0.kind.severity()
    }

    pub(crate) fn is_more_severe(&self, other: &Self) -> bool {
        self.0.kind.severity() < other.0.kind.severity()
    }

    /// What sort of end it is.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Whether trying again may help. Not unless it was said so.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.is_retryable && self.0.kind.may_be_retryable()
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
        self.chain().find_map(|cause| match cause.downcast_ref::<StdErrorAdapter>() {
            // Speaks for its source, which is no cause of its own.
            Some(adapter) => adapter.0.find(),
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
            interrupt: self.interrupt().cloned(),
            retry: self.retry_request(),
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

impl ErrorData {
    fn of(kind: ErrorKind) -> Self {
        let context = Map::new();
        Self { kind, message: None, source: None, context, is_retryable: false, is_fatal: false, extra: None, note: 0 }
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
