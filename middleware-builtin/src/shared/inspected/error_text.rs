//! Changes the texts of errors, and keeps the kinds of the errors.

use std::error::Error as StdError;
use std::fmt;

use emitree_emitter::json::check_depth;
use emitree_runtime::{Error, ErrorKind};
use serde_json::{Map, Value};

use crate::shared::json::{Path, keys_mut, strings_mut};

/// A cause that was reduced to its text.
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
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Changes the message, the causes and the details of an error. The error keeps its kind and the data of its control
/// flow. If anything was changed, causes lose their types.
pub(crate) fn change_texts(error: Error, change: &mut impl FnMut(&Path<'_>, &mut String)) -> Error {
    if error.details().values().any(|value| check_depth(value).is_err()) {
        return rebuild(error, "the details of the error are nested too deeply to be searched".to_owned(), None);
    }
    let report = error.report();
    let (mut message, mut causes, mut details) =
        (report.message.clone(), Value::from(report.causes.clone()), Value::from(report.details.clone()));
    change(&Path::Key(&Path::Root, "message"), &mut message);
    strings_mut(&mut causes, &Path::Key(&Path::Root, "causes"), change);
    strings_mut(&mut details, &Path::Key(&Path::Root, "details"), change);
    let (Value::Array(causes), Value::Object(details)) = (causes, details) else { return error };
    let same_causes = causes.iter().map(Value::as_str).eq(report.causes.iter().map(|cause| Some(cause.as_str())));
    // Return the same error if nothing was changed, so that `find` still finds its causes.
    if message == report.message && same_causes && details == report.details {
        return error;
    }
    rebuild(error, message, chain(causes)).with_details(details)
}

/// Changes the name of the guard in a denial or halt.
#[allow(dead_code, reason = "only `Redact` changes the name; `ExfilGuard` withholds the whole error")]
pub(crate) fn change_denier(error: Error, change: &mut impl FnMut(&Path<'_>, &mut String)) -> Error {
    let (ErrorKind::Denied { by } | ErrorKind::Halted { by }) = error.kind() else { return error };
    let mut name = by.clone();
    change(&Path::Key(&Path::Key(&Path::Root, "kind"), "by"), &mut name);
    if name == *by {
        return error;
    }
    let mut report = error.report();
    match &mut report.kind {
        ErrorKind::Denied { by } | ErrorKind::Halted { by } => *by = name,
        _ => {}
    }
    report.into()
}

/// Changes the keys of an error's details. If a key was changed, causes lose their types. A request for a retry keeps
/// its keys, because it has to remain the same request.
#[allow(dead_code, reason = "only `ExfilGuard` changes keys")]
pub(crate) fn change_detail_keys(error: Error, change: &mut impl FnMut(&mut String)) -> Error {
    let mut details = Value::from(error.details().clone());
    keys_mut(&mut details, change);
    match details {
        Value::Object(details) if !error.is_retry() && details != *error.details() => {
            let mut report = error.report();
            report.details = details;
            report.into()
        }
        _ => error,
    }
}

fn chain(causes: Vec<Value>) -> Option<Box<TextCause>> {
    let texts = causes.into_iter().rev().filter_map(|cause| cause.as_str().map(ToOwned::to_owned));
    texts.fold(None, |source, text| Some(Box::new(TextCause { text, source })))
}

/// Creates an error of the same kind with other texts. An error that carries data, such as an interrupt, keeps the
/// data, and gets a cause that hides the old texts.
fn rebuild(error: Error, message: String, causes: Option<Box<TextCause>>) -> Error {
    // The new causes are texts, so they no longer decide whether the error is retryable.
    let is_retryable = error.is_retryable();
    let mark = if is_retryable { Some(true) } else { error.retryable_mark() };
    let is_fatal = error.is_fatal();
    let anew = match error.kind() {
        ErrorKind::Failed => Error::new(message),
        ErrorKind::Denied { by } => Error::denied(by, message),
        ErrorKind::Halted { by } => Error::halted(by, message),
        ErrorKind::Aborted => Error::aborted(message),
        ErrorKind::TimedOut => Error::timed_out(message),
        _ => {
            let text = "the original text is withheld".to_owned();
            let hiding = causes.unwrap_or_else(|| Box::new(TextCause { text, source: None }));
            return with_mark(error.message(message).caused_by(hiding), mark);
        }
    };
    let anew = with_mark(anew, mark).fatal(is_fatal);
    match causes {
        Some(causes) => anew.caused_by(causes),
        None => anew,
    }
}

fn with_mark(error: Error, mark: Option<bool>) -> Error {
    match mark {
        Some(is_retryable) => error.retryable(is_retryable),
        None => error,
    }
}

trait WithDetails {
    fn with_details(self, details: Map<String, Value>) -> Self;
}

impl WithDetails for Error {
    fn with_details(self, details: Map<String, Value>) -> Self {
        details.into_iter().fold(self, |error, (key, value)| error.detail(key, value))
    }
}

#[cfg(test)]
mod tests {
    use emitree_runtime::Interrupt;

    use super::*;

    fn hidden(error: Error) -> Error {
        change_texts(error, &mut |_, text| *text = text.replace("hunter2", "***"))
    }

    #[test]
    fn the_texts_of_an_error_are_changed_and_its_kind_stays() {
        let io = || std::io::Error::other("cannot open hunter2");
        let rows = [
            (Error::new("hunter2 is wrong"), "*** is wrong"),
            (Error::from(io()), "cannot open ***"),
            (Error::from(io()).message("hunter2?"), "***?\n  caused by: cannot open ***"),
            (Error::denied("the house", "no hunter2"), "denied by the house: no ***"),
            (Error::halted("the house", "hunter2"), "halted by the house: ***"),
            (Error::aborted("hunter2"), "aborted: ***"),
            (Error::timed_out("hunter2"), "***"),
            (Error::new("x").detail("tried", "hunter2"), "x\n  tried: \"***\""),
            (Error::retry("hunter2"), "retry requested: ***\n  caused by: the original text is withheld"),
        ];
        for (error, expected) in rows {
            let kind = error.kind().clone();
            let error = hidden(error);
            assert_eq!((error.explain().as_str(), error.kind()), (expected, &kind));
        }
    }

    #[test]
    fn the_data_of_an_interrupt_or_retry_request_stays() {
        let interrupt = Interrupt::new("hunter2", "data");
        let error = hidden(Error::interrupted(interrupt.clone()));
        assert_eq!(error.interrupt(), Some(&interrupt));
        assert_eq!(error.to_string(), "interrupted: ***");
        let error = hidden(Error::retry_with("hunter2", 7));
        assert_eq!(error.retry_request().map(|retry| (retry.reason, retry.metadata)), Some(("***".into(), 7.into())));
    }

    #[test]
    fn detail_keys_are_changed_except_in_a_retry_request() {
        let rename = |error: Error| change_detail_keys(error, &mut |key| *key = key.replace("hunter2", "***"));
        let details = |error: Error| error.detail("hunter2", 1).detail("a", 2);
        let changed = rename(details(Error::denied("the house", "no").caused_by("rain")));
        assert_eq!(changed.explain(), "denied by the house: no\n  caused by: rain\n  ***: 1\n  a: 2");
        assert!(rename(details(Error::retry("x"))).details().contains_key("hunter2"));
        let io = rename(Error::from(std::io::Error::other("x")).detail("a", 1));
        assert!(io.find::<std::io::Error>().is_some());
    }

    #[test]
    fn an_error_without_a_secret_keeps_its_types() {
        let error = hidden(Error::from(std::io::Error::other("all is well")).retryable(true));
        assert!(error.find::<std::io::Error>().is_some() && error.is_retryable());
    }
}
