//! Conversions between [`Error`] and the errors of other crates.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::{BoxError, EmitError, EmitErrorKind};

use crate::error::ErrorData;
use crate::error::control::ControlData;
use crate::{Error, ErrorKind, ErrorReport};

impl Error {
    /// Converts a boxed error, which `?` cannot convert.
    ///
    /// - A boxed `Error` is returned unchanged.
    /// - An `Error` that a listener returned is taken out of the [`EmitError`]. If the error is a failure, it receives
    ///   the details `event`, with the path of the event, and `listener`, with the source location at which the
    ///   listener was registered, unless it already has them.
    /// - Any other error becomes the source of a new `Error`, which displays the message of its source. If a cause of
    ///   the source is control flow, the new error gets the kind of that cause.
    ///
    /// ```
    /// use emitree_emitter::BoxError;
    /// use emitree_runtime::Error;
    ///
    /// let boxed = BoxError::from(Error::halted("desk", "closed"));
    /// assert!(Error::from_boxed(boxed).is_halted());
    /// ```
    #[must_use]
    pub fn from_boxed(error: BoxError) -> Self {
        match error.downcast::<StdErrorAdapter>() {
            Ok(adapter) => adapter.0,
            Err(error) => match error.downcast::<EmitError>() {
                Ok(error) => Self::from_emit(*error),
                Err(error) => Self::of_source(ErrorKind::Failed, error.into()),
            },
        }
    }

    /// Converts an `anyhow::Error`, which `?` cannot convert: `.map_err(Error::from_anyhow)?`. Needs the feature
    /// `anyhow`.
    ///
    /// An `Error` that became an `anyhow::Error` is returned unchanged; an [`EmitError`] is converted as
    /// [`from_boxed`](Self::from_boxed) converts it. If anyhow added context to an `Error`, the new error has the
    /// context as its message and the `Error` as a cause; control flow also keeps its kind. The backtrace is lost.
    ///
    /// ```
    /// use emitree_runtime::Error;
    ///
    /// fn ask() -> anyhow::Result<()> {
    ///     Err(anyhow::Error::from(Error::denied("policy", "not on Sundays")).context("no answer"))
    /// }
    ///
    /// let error = ask().map_err(Error::from_anyhow).unwrap_err();
    /// assert!(error.is_denied());
    /// assert_eq!(error.explain(), "denied by policy: no answer\n  caused by: not on Sundays");
    /// ```
    #[cfg(feature = "anyhow")]
    #[must_use]
    pub fn from_anyhow(error: anyhow::Error) -> Self {
        // A boxed error can be downcast to the adapter; anyhow's own error type hides the adapter.
        Self::from_boxed(error.reallocate_into_boxed_dyn_error_without_backtrace())
    }

    fn from_emit(error: EmitError) -> Self {
        match error.into_kind() {
            EmitErrorKind::Listener { path, at, source } if source.is::<StdErrorAdapter>() => {
                let error = Self::from_boxed(source);
                // Control flow is returned unchanged. The message of a failure need not name the event or the listener,
                // so add both as details.
                if error.kind().is_control_flow() {
                    return error;
                }
                error.detail_if_absent("listener", || format!("{at}")).detail_if_absent("event", || path)
            }
            kind => Self::of_source(ErrorKind::of_emit(&kind), Arc::new(EmitError::from(kind))),
        }
    }

    /// Creates an error that displays its source. If one of its causes is control flow, the new error gets the kind and
    /// the control data of that cause (M9).
    pub(crate) fn of_source(kind: ErrorKind, source: Arc<dyn StdError + Send + Sync>) -> Self {
        let error = Self(Arc::new(ErrorData { source: Some(source), ..ErrorData::of(kind) }));
        let carried =
            |cause: &(dyn StdError + 'static)| cause.downcast_ref::<StdErrorAdapter>().map(|adapter| adapter.0.clone());
        let deeper = error.chain().filter_map(carried).find(|error| error.kind().is_control_flow());
        match deeper {
            // Copy the note as well: without it, the layers would treat this error as new control flow, and note it a
            // second time (M9).
            Some(deeper) => error.with(|data| {
                data.kind = deeper.0.kind.clone();
                data.control = deeper.0.control.clone();
                data.retryable = deeper.0.retryable;
                data.note = deeper.0.note;
            }),
            None => error,
        }
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Self::from_boxed(Box::new(error))
    }
}

/// Restores an error from a report. The kind and the text of [`explain`](Error::explain) stay the same. The causes are
/// restored as text. A restored request for a retry starts no further attempt.
///
/// ```
/// use emitree_runtime::{Error, ErrorReport};
///
/// let error = Error::denied("policy", "not on Sundays").detail("day", 7);
/// let kept = serde_json::to_string(&error)?;
/// let back = Error::from(serde_json::from_str::<ErrorReport>(&kept)?);
/// assert!(back.is_denied());
/// assert_eq!(back.explain(), error.explain());
/// # Ok::<(), serde_json::Error>(())
/// ```
impl From<ErrorReport> for Error {
    fn from(report: ErrorReport) -> Self {
        let caused_by = |source: Option<Box<TextCause>>, text: String| Some(Box::new(TextCause { text, source }));
        let causes = report.causes.into_iter().rev().fold(None, caused_by);
        let interrupt = report.interrupt.map(ControlData::Interrupt);
        let retry = report.retry.map(|retry| ControlData::Retry { metadata: retry.metadata, is_spent: true });
        Self(Arc::new(ErrorData {
            kind: report.kind,
            message: Some(report.message),
            source: causes.map(|cause| Arc::new(*cause) as Arc<_>),
            details: report.details,
            retryable: Some(report.is_retryable),
            is_fatal: report.is_fatal,
            control: interrupt.or(retry),
            note: 0,
            returned_in: 0,
        }))
    }
}

/// A cause that was restored from a report.
#[derive(Debug)]
struct TextCause {
    text: String,
    source: Option<Box<Self>>,
}

impl fmt::Display for TextCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for TextCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<Error> for BoxError {
    fn from(error: Error) -> Self {
        Box::new(StdErrorAdapter(error))
    }
}

/// Lets `main` return `Result<(), Box<dyn std::error::Error>>`.
impl From<Error> for Box<dyn StdError> {
    fn from(error: Error) -> Self {
        Box::new(StdErrorAdapter(error))
    }
}

/// Converts into an `anyhow::Error`; [`Error::from_anyhow`] converts back. Needs the feature `anyhow`.
#[cfg(feature = "anyhow")]
impl From<Error> for anyhow::Error {
    fn from(error: Error) -> Self {
        Self::new(StdErrorAdapter(error))
    }
}

/// Wraps an [`Error`] as a [`std::error::Error`], so that it fits into a [`BoxError`].
pub(super) struct StdErrorAdapter(pub(super) Error);

impl fmt::Debug for StdErrorAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for StdErrorAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for StdErrorAdapter {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // An error without a message displays its first cause, so its source is the second cause.
        let spoken = usize::from(self.0.0.message.is_none());
        self.0.chain().nth(spoken)
    }
}
