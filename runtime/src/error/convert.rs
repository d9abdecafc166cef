//! Conversions between [`Error`] and the errors of other crates.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::{BoxError, EmitError, EmitErrorKind};

use crate::error::ErrorData;
use crate::error::control::ControlData;
use crate::{Error, ErrorKind, ErrorReport};

impl Error {
    /// Makes one of a boxed error, which `?` cannot.
    ///
    /// What was an `Error` before it was boxed is that error again; so is what a listener returned, once the emit
    /// has wrapped it. Control flow that stands deeper among the causes keeps its kind; the message is the outer one's.
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

    /// Makes one of anyhow's, which `?` cannot: `.map_err(Error::from_anyhow)?`. In feature `anyhow`.
    ///
    /// What was an `Error` before is that error again, and so is what a listener returned, as with [`from_boxed`](Self::from_boxed).
    /// Control flow that context was added to keeps its kind, and says so in the words of that context; a failure that context was added to
    /// is one of its causes. A backtrace is lost.
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
        // Only so can it be found by its type.
        Self::from_boxed(error.reallocate_into_boxed_dyn_error_without_backtrace())
    }

    fn from_emit(error: EmitError) -> Self {
        match error.into_kind() {
            EmitErrorKind::Listener { path, at, source } if source.is::<StdErrorAdapter>() => {
                let error = Self::from_boxed(source);
                // Control flow says by itself who wanted it; of a failure one wants to know where it was.
                if error.kind().is_control_flow() {
                    return error;
                }
                error.first("listener", || format!("{at}")).first("event", || path)
            }
            kind => Self::of_source(ErrorKind::of_emit(&kind), Arc::new(EmitError::from(kind))),
        }
    }

    /// Speaks as its source does; of control flow among the causes it is the same sort of end (M9).
    pub(crate) fn of_source(kind: ErrorKind, source: Arc<dyn StdError + Send + Sync>) -> Self {
        let error = Self(Arc::new(ErrorData { source: Some(source), ..ErrorData::of(kind) }));
        let carried =
            |cause: &(dyn StdError + 'static)| cause.downcast_ref::<StdErrorAdapter>().map(|adapter| adapter.0.clone());
        let deeper = error.chain().filter_map(carried).find(|error| error.kind().is_control_flow());
        match deeper {
            Some(deeper) => error.with(|data| {
                data.kind = deeper.0.kind.clone();
                data.extra = deeper.0.extra.clone();
                data.is_retryable = deeper.0.is_retryable;
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

/// An error that was kept as data: it is of the same kind, and explains itself as it did. What caused it is text now, and
/// the request for a retry has been met or refused: nobody is asked again.
///
/// ```
/// use emitree_runtime::{Error, ErrorReport};
///
/// let error = Error::denied("policy", "not on Sundays").context("day", 7);
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
            context: report.context,
            is_retryable: report.is_retryable,
            is_fatal: report.is_fatal,
            extra: interrupt.or(retry),
            note: 0,
        }))
    }
}

/// A cause of which only the text was kept.
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

/// As `main` may return it.
impl From<Error> for Box<dyn StdError> {
    fn from(error: Error) -> Self {
        Box::new(StdErrorAdapter(error))
    }
}

/// In feature `anyhow`. It keeps its kind, whatever context is added there.
#[cfg(feature = "anyhow")]
impl From<Error> for anyhow::Error {
    fn from(error: Error) -> Self {
        Self::new(StdErrorAdapter(error))
    }
}

/// An [`Error`] on its way through a [`BoxError`].
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
        let spoken = usize::from(self.0.0.message.is_none());
        self.0.chain().nth(spoken)
    }
}
