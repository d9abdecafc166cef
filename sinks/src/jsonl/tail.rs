//! The end of a recording, after a crash: made whole before anything is appended.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use emitree_emitter::SinkRecord;

/// How many bytes are read at a time, from the end.
const STRIDE: u64 = 8 * 1024;

/// How the recording ended that a [`JsonlFile`](super::JsonlFile) goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tail {
    /// With a whole line, or it was empty.
    Whole,
    /// With a whole record that lacked its newline; it was given one.
    Completed,
    /// With a torn line, which was moved to another file.
    SetAside {
        /// How many bytes were moved.
        bytes: u64,
        /// The file to whose end they were moved, as a line.
        to: PathBuf,
    },
}

/// Makes the file end with a whole line. No whole record is lost, and no torn one either: it is set aside.
pub(super) fn mend(file: &mut File, path: &Path) -> io::Result<Tail> {
    let end = file.seek(SeekFrom::End(0))?;
    let begin = begin_of_last_line(file, end)?;
    if begin == end {
        return Ok(Tail::Whole);
    }
    let mut line = Vec::new();
    file.seek(SeekFrom::Start(begin))?;
    file.take(end - begin).read_to_end(&mut line)?;
    if is_record(&line) {
        file.write_all(b"\n")?;
        return Ok(Tail::Completed);
    }
    set_aside(file, path, begin, line)
}

/// Where the line begins that the file ends with: the end itself if that follows a newline.
fn begin_of_last_line(file: &mut File, end: u64) -> io::Result<u64> {
    let mut chunk = Vec::new();
    let mut before = end;
    while before > 0 {
        let from = before.saturating_sub(STRIDE);
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
    // On disk before it is cut off here: a crash in between leaves it in both files, never in none.
    torn.sync_data()?;
    file.set_len(begin)?;
    Ok(Tail::SetAside { bytes, to })
}

/// Opens the file for torn lines. A new file gets the recording's mode, whatever the umask is; an existing one loses the
/// permissions that the recording does not grant.
#[cfg(unix)]
fn open_torn(to: &Path, recording: &Metadata) -> io::Result<File> {
    use std::fs::Permissions;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

    let mode = recording.permissions().mode() & 0o7777;
    // Narrow from its first moment on, so that nobody has it open when it is written.
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

/// Opens the file for torn lines. Its permissions are those that its folder gives to new files, as the recording's were.
#[cfg(not(unix))]
fn open_torn(to: &Path, _: &Metadata) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(to)
}

/// `<path>.torn`
fn torn_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".torn");
    name.into()
}
