//! Repairs the end of a recording after a crash, before anything is appended.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use emitree_emitter::SinkRecord;

/// The number of bytes that are read at a time, from the end backwards.
const CHUNK: u64 = 8 * 1024;

/// The state of the last line when a [`JsonlFile`](super::JsonlFile) opened a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tail {
    /// The last line ended with a newline, or the file was empty.
    Whole,
    /// The last line was a whole record that lacked only its newline. The newline was added.
    Completed,
    /// The last line was torn, and was moved to the file `to`.
    SetAside {
        /// The number of bytes that were moved.
        bytes: u64,
        /// The file that the torn line was appended to.
        to: PathBuf,
    },
}

/// Makes the file end with a whole line. No record is lost: even a torn record is moved to another file.
pub(super) fn repair(file: &mut File, path: &Path) -> io::Result<Tail> {
    let end = file.seek(SeekFrom::End(0))?;
    let begin = begin_of_last_line(file, end)?;
    if begin == end {
        return Ok(Tail::Whole);
    }
    let mut line = Vec::new();
    file.seek(SeekFrom::Start(begin))?;
    file.take(end - begin).read_to_end(&mut line)?;
    // A truncated JSON object never parses, so a line that parses lacks only its newline.
    if is_record(&line) {
        file.write_all(b"\n")?;
        return Ok(Tail::Completed);
    }
    set_aside(file, path, begin, line)
}

/// Returns the position where the last line begins. If the file ends with a newline, this position is `end`.
fn begin_of_last_line(file: &mut File, end: u64) -> io::Result<u64> {
    // Read from the end backwards, so that a long recording is not read as a whole.
    let mut chunk = Vec::new();
    let mut before = end;
    while before > 0 {
        let from = before.saturating_sub(CHUNK);
        chunk.clear();
        file.seek(SeekFrom::Start(from))?;
        file.take(before - from).read_to_end(&mut chunk)?;
        if let Some(at) = chunk.iter().rposition(|byte| *byte == b'\n') {
            return Ok(from + at as u64 + 1);
        }
        before = from;
    }
    Ok(0)
}

fn is_record(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|text| SinkRecord::from_json(text).is_ok())
}

fn set_aside(file: &File, path: &Path, begin: u64, mut line: Vec<u8>) -> io::Result<Tail> {
    let to = torn_path(path);
    let bytes = line.len() as u64;
    line.push(b'\n');
    let mut torn = open_torn(&to, &file.metadata()?)?;
    torn.write_all(&line)?;
    // Sync the copy before the original is cut off: a crash between these two steps leaves the line in both files, and
    // never loses it.
    torn.sync_data()?;
    file.set_len(begin)?;
    Ok(Tail::SetAside { bytes, to })
}

/// Opens the file for torn lines. A new file gets the mode of the recording, regardless of the umask. An existing file
/// loses the permissions that the recording does not grant.
#[cfg(unix)]
fn open_torn(to: &Path, recording: &Metadata) -> io::Result<File> {
    use std::fs::Permissions;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

    let mode = recording.permissions().mode() & 0o7777;
    // Create the file for its owner alone: no other user may open it before its mode is set.
    let created = OpenOptions::new().append(true).create_new(true).mode(mode & 0o600).open(to);
    let (torn, mode) = match created {
        Ok(torn) => (torn, mode),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let torn = OpenOptions::new().append(true).open(to)?;
            let now = torn.metadata()?.permissions().mode() & 0o7777;
            (torn, now & mode)
        }
        Err(error) => return Err(error),
    };
    if torn.metadata()?.permissions().mode() & 0o7777 != mode {
        torn.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(torn)
}

/// Opens the file for torn lines. A new file gets the permissions that its folder gives to new files, as the recording
/// did.
#[cfg(not(unix))]
fn open_torn(to: &Path, _: &Metadata) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(to)
}

/// Returns `<path>.torn`.
fn torn_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".torn");
    name.into()
}
