//! What is logged: errors that are said, and subscribers that are told of them, are user code.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Has something logged. A panic there changes nothing: what goes on is worth more than a line of a log.
pub(crate) fn logged(log: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(log)).unwrap_or_default();
}
