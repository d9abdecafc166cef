//! The file of a recording: locked for one recorder, which notices when the file is removed, renamed or replaced.
//!
//! 1. The lock is taken before the file is read or changed: a second opener changes nothing.
//! 2. The lock belongs to the open file. The operating system releases it when the process ends, even by a crash.
//! 3. Only regular files are locked and checked: a device or a pipe may have any number of writers.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::JsonlError;

/// A file that is open for appending. A regular file is also locked.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: File,
    /// The absolute path, which stays valid if the process changes its directory.
    at: PathBuf,
    /// The metadata at the time of opening; `None` if this is not a regular file.
    opened: Option<Metadata>,
}

/// The state of the path of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathState {
    InPlace,
    Removed,
    Replaced,
}

impl LockedFile {
    /// Opens or creates a file for appending, and locks it if it is a regular file.
    pub(super) fn open(path: &Path) -> Result<Self, JsonlError> {
        let failed = |source| JsonlError::Open { path: path.to_owned(), source };
        let at = std::path::absolute(path).map_err(failed)?;
        let file = platform::options().open(&at).map_err(|source| match source {
            source if platform::is_taken(&source) => JsonlError::InUse { path: path.to_owned() },
            source => failed(source),
        })?;
        let opened = Some(file.metadata().map_err(failed)?).filter(Metadata::is_file);
        // A device or a pipe is not locked (3).
        if opened.is_some() {
            platform::lock(&file).map_err(|error| match error {
                TryLockError::WouldBlock => JsonlError::InUse { path: path.to_owned() },
                TryLockError::Error(source) => JsonlError::Lock { path: path.to_owned(), source },
            })?;
        }
        let file = Self { file, at, opened };
        // Another process may have moved the file between the opening and the lock: a lock on a file that is no longer
        // at its path would let a second recorder open the path (1).
        match file.path_state() {
            PathState::InPlace => Ok(file),
            PathState::Removed => Err(JsonlError::Removed { path: path.to_owned() }),
            PathState::Replaced => Err(JsonlError::Replaced { path: path.to_owned() }),
        }
    }

    /// Checks whether the path still leads to this file.
    pub(super) fn path_state(&self) -> PathState {
        let Some(opened) = &self.opened else { return PathState::InPlace };
        match fs::metadata(&self.at) {
            Ok(found) if platform::is_same(opened, &found) => PathState::InPlace,
            Ok(_) => PathState::Replaced,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                PathState::Removed
            }
            // If the path cannot be followed, for example because the process has given up privileges, the link count
            // of the open file still shows whether the file was removed.
            Err(_) if platform::is_unlinked(&self.file) => PathState::Removed,
            Err(_) => PathState::InPlace,
        }
    }

    pub(super) const fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Waits until all written data is on disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Waits until the directory entry of a new file is on disk. Otherwise, a power failure could remove the whole
    /// file.
    pub(super) fn sync_name(&self) -> io::Result<()> {
        let is_new = self.opened.as_ref().is_some_and(|opened| opened.len() == 0);
        match self.at.parent() {
            Some(folder) if is_new => platform::sync_folder(folder),
            _ => Ok(()),
        }
    }

    /// Releases the lock, so that another recorder can open the file.
    pub(super) fn unlock(&self) -> io::Result<()> {
        if self.opened.is_some() { platform::unlock(&self.file) } else { Ok(()) }
    }
}

impl Write for LockedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn append() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    options
}

#[cfg(unix)]
mod platform {
    use std::fs::{File, Metadata, OpenOptions, TryLockError};
    use std::io;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    pub(super) fn options() -> OpenOptions {
        super::append()
    }

    pub(super) const fn is_taken(_: &io::Error) -> bool {
        false
    }

    /// Takes an advisory lock: programs that do not take it, such as readers, are not blocked.
    pub(super) fn lock(file: &File) -> Result<(), TryLockError> {
        file.try_lock()
    }

    pub(super) fn unlock(file: &File) -> io::Result<()> {
        file.unlock()
    }

    /// Compares device and inode. No other file gets the same numbers while this file is open.
    pub(super) fn is_same(opened: &Metadata, found: &Metadata) -> bool {
        (opened.dev(), opened.ino()) == (found.dev(), found.ino())
    }

    pub(super) fn is_unlinked(file: &File) -> bool {
        file.metadata().is_ok_and(|now| now.nlink() == 0)
    }

    pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

#[cfg(windows)]
mod platform {
    use std::fs::{File, Metadata, OpenOptions, TryLockError};
    use std::io;
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::Path;

    const FILE_SHARE_READ: u32 = 1;
    const ERROR_SHARING_VIOLATION: i32 = 32;

    /// Lets other programs read the file while it is open, but not write, remove or rename it. A lock would block
    /// readers, too.
    pub(super) fn options() -> OpenOptions {
        let mut options = super::append();
        options.share_mode(FILE_SHARE_READ);
        options
    }

    pub(super) fn is_taken(error: &io::Error) -> bool {
        error.raw_os_error() == Some(ERROR_SHARING_VIOLATION)
    }

    pub(super) const fn lock(_: &File) -> Result<(), TryLockError> {
        Ok(())
    }

    pub(super) const fn unlock(_: &File) -> io::Result<()> {
        Ok(())
    }

    pub(super) const fn is_same(_: &Metadata, _: &Metadata) -> bool {
        true
    }

    pub(super) const fn is_unlinked(_: &File) -> bool {
        false
    }

    pub(super) const fn sync_folder(_: &Path) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(not(any(unix, windows)))]
mod platform {
    use std::fs::{File, Metadata, OpenOptions, TryLockError};
    use std::io;
    use std::path::Path;

    pub(super) fn options() -> OpenOptions {
        super::append()
    }

    pub(super) const fn is_taken(_: &io::Error) -> bool {
        false
    }

    pub(super) fn lock(file: &File) -> Result<(), TryLockError> {
        file.try_lock()
    }

    pub(super) fn unlock(file: &File) -> io::Result<()> {
        file.unlock()
    }

    /// Returns `true`: here the standard library cannot check whether two files are the same.
    pub(super) const fn is_same(_: &Metadata, _: &Metadata) -> bool {
        true
    }

    pub(super) const fn is_unlinked(_: &File) -> bool {
        false
    }

    pub(super) const fn sync_folder(_: &Path) -> io::Result<()> {
        Ok(())
    }
}
