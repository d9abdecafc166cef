//! The file of a recording: one recorder at a time has it, and notices if it is no longer where it was opened.
//!
//! 1. The lock is taken before the file is looked at or changed: a second opener changes nothing.
//! 2. The lock belongs to the open file. The operating system releases it with the process, however that ends.
//! 3. Only regular files are locked and looked for: a device or a pipe may have any number of writers.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::JsonlError;

/// A locked file.
#[derive(Debug)]
pub(super) struct Exclusive {
    file: File,
    /// Where it was opened, also if the process changes its directory.
    at: PathBuf,
    /// As it was opened; none if it is no regular file.
    opened: Option<Metadata>,
}

/// Where the file is that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    InPlace,
    Removed,
    Replaced,
}

impl Exclusive {
    /// Opens a file for appending, makes it if there is none, and locks it.
    pub(super) fn open(path: &Path) -> Result<Self, JsonlError> {
        let failed = |source| JsonlError::Open { path: path.to_owned(), source };
        let at = std::path::absolute(path).map_err(failed)?;
        let file = platform::options().open(&at).map_err(|source| match source {
            source if platform::is_taken(&source) => JsonlError::InUse { path: path.to_owned() },
            source => failed(source),
        })?;
        let opened = Some(file.metadata().map_err(failed)?).filter(Metadata::is_file);
        if opened.is_some() {
            platform::lock(&file).map_err(|error| match error {
                TryLockError::WouldBlock => JsonlError::InUse { path: path.to_owned() },
                TryLockError::Error(source) => JsonlError::Lock { path: path.to_owned(), source },
            })?;
        }
        let file = Self { file, at, opened };
        // Between the opening and the lock somebody may have moved it away.
        match file.whereabouts() {
            Whereabouts::InPlace => Ok(file),
            Whereabouts::Removed => Err(JsonlError::Removed { path: path.to_owned() }),
            Whereabouts::Replaced => Err(JsonlError::Replaced { path: path.to_owned() }),
        }
    }

    /// Looks whether the path still leads to this file.
    pub(super) fn whereabouts(&self) -> Whereabouts {
        let Some(opened) = &self.opened else { return Whereabouts::InPlace };
        match fs::metadata(&self.at) {
            Ok(found) if platform::is_same(opened, &found) => Whereabouts::InPlace,
            Ok(_) => Whereabouts::Replaced,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Whereabouts::Removed
            }
            // The path cannot be followed any more, as after giving up privileges: the file itself knows if it has no
            // name left.
            Err(_) if platform::is_unlinked(&self.file) => Whereabouts::Removed,
            Err(_) => Whereabouts::InPlace,
        }
    }

    pub(super) const fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Waits until the disk has what was written.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Waits until the disk has the name of a new file: without that a power failure could take the whole file.
    pub(super) fn sync_name(&self) -> io::Result<()> {
        let is_new = self.opened.as_ref().is_some_and(|opened| opened.len() == 0);
        match self.at.parent() {
            Some(folder) if is_new => platform::sync_folder(folder),
            _ => Ok(()),
        }
    }

    /// Lets others record to the file.
    pub(super) fn unlock(&self) -> io::Result<()> {
        if self.opened.is_some() { platform::unlock(&self.file) } else { Ok(()) }
    }
}

impl Write for Exclusive {
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

    /// Advisory: whoever takes no lock, a reader for one, is not kept out.
    pub(super) fn lock(file: &File) -> Result<(), TryLockError> {
        file.try_lock()
    }

    pub(super) fn unlock(file: &File) -> io::Result<()> {
        file.unlock()
    }

    /// No other file gets these numbers while this one is open.
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

    /// Others may read the file while it is open, and neither write, remove nor rename it. A lock would keep readers out
    /// as well.
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

    /// The standard library cannot tell two files apart here.
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
