//! The errors of a file: its path, the cause and a remedy.

use std::path::Path;

use emitree_middleware::store::StoreError;
use rusqlite::ErrorCode;

/// A step of the store with its file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doing {
    Open,
    Read,
    Write,
}

/// Returns the error of a database that failed.
pub(super) fn failed(path: &Path, doing: Doing, error: rusqlite::Error) -> StoreError {
    let verb = match doing {
        Doing::Open => "opened",
        Doing::Read => "read",
        Doing::Write => "written",
    };
    let remedy = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => ": free space on its disk, or raise its size limit",
        Some(ErrorCode::ReadOnly) => ": allow this process to write the file and its folder",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            ": another process has locked it for more than 5 s; end its transaction"
        }
        Some(ErrorCode::CannotOpen) => ": create its folder, and allow this process to write there",
        Some(ErrorCode::NotADatabase) => ": it is not a SQLite database; name another file",
        Some(ErrorCode::DatabaseCorrupt) => ": it is damaged; restore a copy",
        _ => "",
    };
    StoreError::failed(format!("`{}` cannot be {verb}{remedy}", path.display()), error)
}

/// Returns `true` if another process has the lock.
pub(super) fn is_locked(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Returns the error of a store that has to be opened again.
pub(super) fn unusable(path: &Path, reason: &'static str) -> StoreError {
    StoreError::failed(format!("`{}` cannot be used: open it again", path.display()), reason)
}

/// Returns the error of a store whose thread has ended.
pub(super) fn ended(path: &Path) -> StoreError {
    unusable(path, "the thread of its store has ended")
}
