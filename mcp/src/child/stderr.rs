//! The lines that a process writes to stderr.

use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;

use crate::child::LastLine;
use crate::events::ServerLog;
use crate::server::report::Report;
use crate::text::{QUOTED, quoted};

/// Reads stderr, keeps its last line, and reports each line. A line is cut after [`QUOTED`] bytes, and the rest of it
/// is not kept.
pub(super) struct Stderr {
    pipe: ChildStderr,
    line: Vec<u8>,
    last: LastLine,
    report: Report,
}

impl Stderr {
    pub(super) fn new(pipe: ChildStderr, report: Report) -> Self {
        Self { pipe, line: Vec::new(), last: Arc::default(), report }
    }

    pub(super) fn last_line(&self) -> LastLine {
        Arc::clone(&self.last)
    }

    /// Reads until the end. If the future is dropped, what it has read of an incomplete line is lost.
    pub(super) async fn read(mut self) {
        let mut buffer = vec![0; 4096];
        while let Ok(count @ 1..) = self.pipe.read(&mut buffer).await {
            for piece in buffer[..count].split_inclusive(|byte| *byte == b'\n') {
                // One byte more than is quoted shows that the line is longer.
                let room = (QUOTED + 1).saturating_sub(self.line.len());
                self.line.extend(piece.iter().filter(|byte| !matches!(byte, b'\n' | b'\r')).take(room));
                if piece.ends_with(b"\n") {
                    self.end_line();
                }
            }
        }
        self.end_line();
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.iter().any(|byte| !byte.is_ascii_whitespace()) {
            let line = quoted(&String::from_utf8_lossy(&line));
            *self.last.lock() = Some(line.clone());
            self.report.send(ServerLog { level: "stderr".to_owned(), data: line.into() });
        }
    }
}
