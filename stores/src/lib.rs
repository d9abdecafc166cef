//! Databases for sessions, jobs and values that survive a kill, and tests for stores of your own.
//!
//! The trait is [`Store`](emitree_middleware::store::Store). If you implement it for another database, call
//! [`conformance()`] in a test.

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc
    )
)]

mod conformance;

pub use conformance::conformance;
