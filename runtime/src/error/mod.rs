//! The error of a run: a kind, a message, causes and details (R10, M9).

pub(crate) mod control;
pub(crate) mod convert;
pub(crate) mod interrupt;
pub(crate) mod kind;
pub(crate) mod outcome;
pub(crate) mod report;
pub(crate) mod retry_request;
pub(crate) mod temporary;

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

/// A `Result` whose error is an [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a run: a kind, a message, a chain of causes, and details.
///
/// `?` converts any [`std::error::Error`] into an `Error`, so `Error` does not implement that trait itself. In the
/// other direction, `?` and `into` convert an `Error` into a [`BoxError`]. An `Error` that a listener returns keeps its
/// kind when `?` converts the error of the emit. Clones are cheap: they share their data.
///
/// ```
/// use emitree_runtime::{Error, ErrorKind};
///
/// fn port(text: &str) -> Result<u16, Error> {
///     Ok(text.parse::<u16>().map_err(|error| Error::from(error).message(format!("`{text}` is not a port")))?)
/// }
///
/// let error = port("http").unwrap_err();
/// assert_eq!(error.explain(), "`http` is not a port\n  caused by: invalid digit found in string");
/// assert_eq!(error.kind(), &ErrorKind::Failed);
/// ```
#[derive(Clone)]
pub struct Error(Arc<ErrorData>);

#[derive(Clone)]
struct ErrorData {
    kind: ErrorKind,
    /// `None` if the error displays its source.
    message: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    details: Map<String, Value>,
    /// `None` if nobody has said whether a retry may help: then the causes decide.
    retryable: Option<bool>,
    is_fatal: bool,
    control: Option<ControlData>,
    /// The number of the error's note in [`SwallowedControlFlow`](crate::layer::swallowed::SwallowedControlFlow); 0
    /// without a note.
    note: u64,
    /// Identifies the last call through layers in which a layer or the work returned the error; 0 if there is none.
    returned_in: usize,
}

impl Error {
    /// Creates an error of the kind [`ErrorKind::Failed`].
    ///
    /// ```
    /// use emitree_runtime::{Error, ErrorKind};
    ///
    /// let error = Error::new("the disk is full").detail("path", "/var");
    /// assert_eq!(error.kind(), &ErrorKind::Failed);
    /// assert_eq!(error.to_string(), "the disk is full");
    /// assert_eq!(error.explain(), "the disk is full\n  path: \"/var\"");
    /// ```
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Failed, message)
    }

    pub(crate) fn with_control(self, control: ControlData) -> Self {
        self.with(|data| data.control = Some(control))
    }

    pub(crate) fn control(&self) -> Option<&ControlData> {
        self.0.control.as_ref()
    }

    pub(crate) fn of_kind(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(ErrorData { message: Some(message.into()), ..ErrorData::of(kind) }))
    }

    pub(crate) fn of_panic(payload: Box<dyn Any + Send>) -> Self {
        Self::of_kind(ErrorKind::Panicked, panic_text(payload))
    }

    /// Sets the cause, replacing any earlier cause.
    ///
    /// ```
    /// use emitree_runtime::Error;
    ///
    /// let error = Error::new("no answer").caused_by(std::fmt::Error);
    /// assert!(error.find::<std::fmt::Error>().is_some());
    /// assert_eq!(error.report().causes, [std::fmt::Error.to_string()]);
    /// ```
    #[must_use]
    pub fn caused_by(self, cause: impl Into<BoxError>) -> Self {
        let cause: BoxError = cause.into();
        self.with(|data| data.source = Some(cause.into()))
    }

    /// Replaces the message, and keeps the kind. If the error already has a message, the previous error becomes the
    /// cause.
    ///
    /// ```
    /// use emitree_runtime::Error;
    ///
    /// let error = Error::denied("policy", "not on Sundays").message("no mail was sent");
    /// assert!(error.is_denied());
    /// assert_eq!(error.explain(), "denied by policy: no mail was sent\n  caused by: not on Sundays");
    /// ```
    #[must_use]
    pub fn message(self, message: impl Into<String>) -> Self {
        let source = match &self.0.message {
            // Until now the error displayed its source. Keep the source as the first cause: if this error became a
            // cause, the same message would be listed twice.
            None => self.0.source.clone(),
            Some(_) => Some(Arc::new(StdErrorAdapter(self.clone())) as Arc<_>),
        };
        self.with(|data| {
            data.message = Some(message.into());
            data.source = source;
        })
    }

    /// Adds a detail, such as a path or a user id. A second detail with a key replaces the first.
    ///
    /// ```
    /// use emitree_runtime::Error;
    ///
    /// let error = Error::new("no such file").detail("path", "/tmp/x").detail("attempts", 3);
    /// assert_eq!(error.details()["attempts"], 3);
    /// assert_eq!(error.explain(), "no such file\n  attempts: 3\n  path: \"/tmp/x\"");
    /// ```
    #[must_use]
    pub fn detail(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.with(|data| {
            data.details.insert(key.into(), value.into());
        })
    }

    /// Adds the name of the code that returned the error, as the detail `by`. An error that already has this detail
    /// keeps it. A denial or a halt stays unchanged, because its kind contains a name.
    ///
    /// ```
    /// use emitree_runtime::Error;
    ///
    /// let error = Error::new("no such shelf").by("librarian").by("desk");
    /// assert_eq!(error.details()["by"], "librarian");
    /// assert!(Error::denied("policy", "not on Sundays").by("desk").details().is_empty());
    /// ```
    #[must_use]
    pub fn by(self, name: &str) -> Self {
        let is_named = matches!(self.0.kind, ErrorKind::Denied { .. } | ErrorKind::Halted { .. });
        if is_named { self } else { self.detail_if_absent("by", || name.to_owned()) }
    }

    /// Adds a detail unless the key already has one, so that an error that passes through several listeners
    /// keeps the values of the first listener.
    fn detail_if_absent(self, key: &str, value: impl FnOnce() -> String) -> Self {
        if self.0.details.contains_key(key) { self } else { self.detail(key, value()) }
    }

    /// Sets whether a retry may help, whatever the causes of the error are. Control flow is never retryable, except for
    /// a timeout.
    ///
    /// ```
    /// use emitree_runtime::Error;
    ///
    /// assert!(Error::new("the server is busy").retryable(true).is_retryable());
    /// assert!(Error::timed_out("no answer in 5 s").retryable(true).is_retryable());
    /// assert!(!Error::denied("policy", "not on Sundays").retryable(true).is_retryable());
    /// ```
    #[must_use]
    pub fn retryable(self, is_retryable: bool) -> Self {
        self.with(|data| data.retryable = Some(is_retryable))
    }

    /// Sets whether the error is fatal, which means that all work that depends on the run must stop. The caller of the
    /// run checks this with [`is_fatal`](Self::is_fatal). Control flow is never fatal.
    #[must_use]
    pub fn fatal(self, is_fatal: bool) -> Self {
        self.with(|data| data.is_fatal = is_fatal)
    }

    /// Returns this error with the kind and control data of another error. Message, causes and details stay the same.
    /// If both are denials, or both are halts, this error keeps its kind (R7).
    pub(crate) fn ending_as(self, other: &Self) -> Self {
        let ErrorData { kind, control, .. } = &*other.0;
        // Do not copy the data if both are the same error.
        if self.0.kind == *kind && Arc::ptr_eq(&self.0, &other.0) {
            return self;
        }
        // If both are denials, or both are halts, keep the name in this error's kind: it belongs to this error's
        // message.
        let kind = match (&self.0.kind, kind) {
            (own @ ErrorKind::Denied { .. }, ErrorKind::Denied { .. })
            | (own @ ErrorKind::Halted { .. }, ErrorKind::Halted { .. }) => own.clone(),
            _ => kind.clone(),
        };
        self.with(|data| (data.kind, data.control) = (kind, control.clone()))
    }

    /// Returns an error with another message, and without causes or details. The kind and the control data stay the
    /// same.
    pub(crate) fn withheld(&self, message: String) -> Self {
        Self::of_kind(self.0.kind.clone(), message).ending_as(self)
    }

    fn with(mut self, change: impl FnOnce(&mut ErrorData)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Sets the number of the error's note. Copies the data only if the number changes.
    pub(crate) fn noted(self, note: u64) -> Self {
        if self.0.note == note { self } else { self.with(|data| data.note = note) }
    }

    /// Marks the error as returned in a call through layers. If the error does not have the mark of this call yet, the
    /// layer or the work that returns the error is its origin. If the origin has a name `by`, the name becomes the
    /// detail `by`, unless the error already has a name.
    pub(crate) fn returned_in(self, call: usize, by: Option<&str>) -> Self {
        if self.0.returned_in == call {
            return self;
        }
        by.into_iter().fold(self, Self::by).with(|data| data.returned_in = call)
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

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Returns `true` if a retry may help. [`retryable`](Self::retryable) sets the value. By default, a failure is
    /// retryable if one of its causes is a temporary [`std::io::Error`], such as a refused or reset connection, unless a
    /// nearer cause is an `Error` that is set to be not retryable.
    ///
    /// ```
    /// use std::io;
    /// use emitree_runtime::Error;
    ///
    /// let refused = Error::from(io::Error::from(io::ErrorKind::ConnectionRefused)).message("no answer");
    /// assert!(refused.is_retryable());
    /// assert!(!refused.retryable(false).is_retryable());
    /// assert!(!Error::from(io::Error::from(io::ErrorKind::NotFound)).is_retryable());
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self.0.retryable {
            Some(is_retryable) => is_retryable && self.0.kind.may_be_retryable(),
            None => !self.0.kind.is_control_flow() && self.chain_is_temporary(),
        }
    }

    /// Returns the value that [`retryable`](Self::retryable) has set, or `None` if it was not called. A retry of all
    /// errors except those that are known to be permanent selects errors whose value is not `Some(false)`.
    #[must_use]
    pub fn retryable_mark(&self) -> Option<bool> {
        self.0.retryable
    }

    /// Returns `true` if all work that depends on the run must stop. The default is `false`; [`fatal`](Self::fatal)
    /// sets the value.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.0.is_fatal && !self.0.kind.is_control_flow()
    }

    /// Returns the values that were added with [`detail`](Self::detail).
    #[must_use]
    pub fn details(&self) -> &Map<String, Value> {
        &self.0.details
    }

    /// Returns the nearest cause of type `E`.
    ///
    /// ```
    /// use std::num::ParseIntError;
    /// use emitree_runtime::Error;
    ///
    /// let error = Error::from("x".parse::<u8>().unwrap_err()).message("no port").message("no server");
    /// assert!(error.find::<ParseIntError>().is_some());
    /// assert!(error.find::<std::io::Error>().is_none());
    /// ```
    #[must_use]
    pub fn find<E: StdError + 'static>(&self) -> Option<&E> {
        self.chain().find_map(|cause| match cause.downcast_ref::<StdErrorAdapter>() {
            // If the error in an adapter has no message, the adapter displays the error's first cause and skips it in
            // `source()`. Search inside the adapter, so that this cause is found too.
            Some(adapter) => adapter.0.find(),
            None => cause.downcast_ref(),
        })
    }

    /// Iterates over the causes, nearest first.
    fn chain(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        let first = self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static));
        std::iter::successors(first, |&cause| cause.source())
    }

    /// Returns the kind, message, causes, details and flags of the error as data.
    #[must_use]
    pub fn report(&self) -> ErrorReport {
        // An error without a message displays its first cause, so do not list that cause again.
        let spoken = usize::from(self.0.message.is_none());
        ErrorReport {
            kind: self.0.kind.clone(),
            message: self.to_string(),
            causes: self.chain().skip(spoken).map(ToString::to_string).collect(),
            details: self.0.details.clone(),
            interrupt: self.interrupt().cloned(),
            retry: self.retry_request(),
            is_retryable: self.is_retryable(),
            is_fatal: self.is_fatal(),
        }
    }

    /// Returns the error as data, without the data of a question or of a request for a retry.
    pub(crate) fn head(&self) -> ErrorReport {
        let mut report = self.report();
        report.interrupt.iter_mut().for_each(|interrupt| interrupt.data = Value::Null);
        report.retry.iter_mut().for_each(|retry| retry.metadata = Value::Null);
        report
    }

    /// Returns a human-readable text: the message with its kind, then each cause and each detail on its own
    /// line. Leaves out a cause without text, and a cause that repeats the text before it.
    ///
    /// ```
    /// use emitree_runtime::Error;
    ///
    /// let error = Error::from(std::fmt::Error).message("no report").detail("day", 7);
    /// assert_eq!(error.explain(), format!("no report\n  caused by: {}\n  day: 7", std::fmt::Error));
    /// ```
    #[must_use]
    pub fn explain(&self) -> String {
        self.report().explain()
    }
}

impl ErrorData {
    fn of(kind: ErrorKind) -> Self {
        let details = Map::new();
        Self {
            kind,
            message: None,
            source: None,
            details,
            retryable: None,
            is_fatal: false,
            control: None,
            note: 0,
            returned_in: 0,
        }
    }
}

/// Displays the message alone; [`explain`](Error::explain) adds kind, causes and details.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.message, &self.0.source) {
            (Some(message), _) => f.write_str(message),
            (None, Some(source)) => source.fmt(f),
            (None, None) => write!(f, "{:?}", self.0.kind),
        }
    }
}

/// Prints [`explain`](Error::explain), so that an error that `main` returns is readable.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.explain())
    }
}

/// Serializes as its [`ErrorReport`].
impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.report().serialize(serializer)
    }
}
