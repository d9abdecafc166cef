//! Errors that may not occur again, because one of their causes is temporary.

use std::error::Error as StdError;
use std::io;

use crate::Error;
use crate::error::convert::StdErrorAdapter;

impl Error {
    /// Returns `true` if a cause is a temporary I/O error, and no nearer cause decides otherwise.
    pub(super) fn chain_is_temporary(&self) -> bool {
        let mut next = self.chain().next();
        while let Some(cause) = next {
            if let Some(StdErrorAdapter(error)) = cause.downcast_ref() {
                // The error has its own causes, of which `source()` may skip the first.
                return error.0.retryable != Some(false)
                    && !error.kind().is_control_flow()
                    && error.chain_is_temporary();
            }
            next = match cause.downcast_ref::<io::Error>() {
                Some(error) if is_temporary(error.kind()) => return true,
                // `source()` of an I/O error skips the error that it was made from.
                Some(error) => error.get_ref().map(|inner| inner as &(dyn StdError + 'static)),
                None => cause.source(),
            };
        }
        false
    }
}

/// Returns `true` if the same operation may succeed a little later.
fn is_temporary(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkDown,
        NetworkUnreachable, ResourceBusy, TimedOut, WouldBlock,
    };
    match kind {
        ConnectionRefused | ConnectionReset | ConnectionAborted | BrokenPipe => true,
        HostUnreachable | NetworkUnreachable | NetworkDown => true,
        TimedOut | Interrupted | WouldBlock | ResourceBusy => true,
        // A file that ends too early, for example, is the same at the next attempt.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io_error(kind: io::ErrorKind) -> io::Error {
        io::Error::new(kind, "a planned failure")
    }

    #[test]
    fn a_temporary_io_error_anywhere_in_the_chain_of_sources_makes_an_error_retryable() {
        let reset = || io_error(io::ErrorKind::ConnectionReset);
        let temporary = [
            ("itself", Error::from(reset())),
            ("with a message", Error::from(reset()).message("no answer").message("no report")),
            ("as a cause", Error::new("no report").caused_by(reset())),
            ("of a cause", Error::new("no report").caused_by(Error::from(reset()))),
            ("of a cause with a message", Error::new("no report").caused_by(Error::from(reset()).message("no answer"))),
            ("in an I/O error", Error::from(io::Error::other(reset()))),
            ("in an I/O error twice", Error::from(io::Error::other(io::Error::other(reset())))),
            ("in an I/O error as an `Error`", Error::from(io::Error::other(Error::from(reset()).message("no answer")))),
        ];
        for (place, error) in temporary {
            assert!(error.is_retryable() && error.report().is_retryable, "{place}: {error:?}");
            assert!(!error.clone().retryable(false).is_retryable(), "{place}: it is said");
            assert_eq!(error.retryable_mark(), None, "{place}");
        }
    }

    #[test]
    fn an_error_is_not_retryable_if_its_io_error_is_permanent_or_a_nearer_cause_says_no() {
        let reset = || Error::from(io_error(io::ErrorKind::ConnectionReset));
        let permanent = [
            Error::from(io_error(io::ErrorKind::NotFound)),
            Error::from(io_error(io::ErrorKind::UnexpectedEof)),
            Error::new("no report"),
            Error::new("no report").caused_by(reset().retryable(false)),
            Error::new("no report").caused_by(Error::denied("policy", "no").caused_by(reset())),
            Error::denied("policy", "not on Sundays").caused_by(reset()),
            Error::timed_out("no answer in 5 s").caused_by(reset()),
        ];
        for error in permanent {
            assert!(!error.is_retryable(), "{error:?}");
        }
    }

    #[test]
    fn a_restored_error_is_as_retryable_as_the_original() {
        let reset = Error::from(io_error(io::ErrorKind::ConnectionReset));
        assert!(Error::from(reset.report()).is_retryable());
        assert_eq!(Error::from(Error::new("wrong").report()).retryable_mark(), Some(false));
    }
}
