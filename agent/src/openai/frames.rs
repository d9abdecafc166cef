//! The framing of events that some servers leave out.
//!
//! The parser of events follows the [standard], and ignores a line that is not a field of an event. Some servers send
//! such lines anyway, mostly errors, so a stream would end as if nothing had happened:
//!
//! - `error: {…}` and no `data:`: llama.cpp until September 2025 (<https://github.com/ggml-org/llama.cpp/pull/16109>);
//! - JSON of the server behind a gateway, on one line or on several, and nothing around it: Lemonade
//!   (<https://github.com/lemonade-sdk/lemonade/issues/2826>);
//! - chunks as lines of JSON, mostly labelled `application/x-ndjson`.
//!
//! [`Frames`] writes the framing around these lines before the parser sees them.
//!
//! [standard]: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;

/// The name of the field that becomes an event of this name.
const ERROR: &[u8] = b"error:";

/// The names of the fields of an event. A comment has an empty name, and a colon.
const FIELDS: [&[u8]; 5] = [b"data", b"event", b"id", b"retry", b":"];

/// Facts about the bytes of a stream, for its errors.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// `true` after the last byte from the server. An event that is read afterwards was not terminated, so its text may be
    /// cut off.
    pub(super) has_ended: AtomicBool,
    /// The beginning of the first text that is neither an event nor JSON.
    pub(super) ignored: OnceLock<String>,
}

/// Returns `true` if bytes at the beginning of a body are a stream of events, or `None` if more bytes are needed. Servers
/// label such streams as `text/plain`, `application/octet-stream`, `application/json` or `application/x-ndjson`:
///
/// - <https://github.com/Lightning-AI/LitServe/issues/359>
/// - <https://github.com/microsoft/foundry-dev-tools/issues/195>
/// - <https://github.com/vllm-project/vllm-ascend/pull/5033>
pub(super) fn is_framed(head: &[u8]) -> Option<bool> {
    let text = head.strip_prefix(BOM).unwrap_or(head).trim_ascii_start();
    let mut is_open = text.is_empty() || BOM.starts_with(head);
    for name in FIELDS.into_iter().chain([ERROR]) {
        match text.get(name.len()) {
            // A comment has no name, so its colon is enough.
            _ if name == b":" && text.starts_with(name) => return Some(true),
            Some(next) if text.starts_with(name) && (name == ERROR || *next == b':') => return Some(true),
            Some(_) => {}
            None => is_open |= name.starts_with(text) || text == name,
        }
    }
    if is_open { None } else { Some(false) }
}

/// The mark with which some programs begin UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Adds the framing to a stream of bytes. A stream of events passes unchanged.
///
/// Invariant: what comes out, taken together, does not depend on how the bytes are cut.
#[derive(Debug, Default)]
pub(super) struct Frames {
    line: Line,
    /// `true` if the last byte was a CR, so an LF belongs to the same end of a line.
    after_cr: bool,
    /// `true` in an event that began without framing. Its event ends before the next field or unframed JSON, and at an
    /// empty line. Other lines continue its text.
    is_open: bool,
}

/// The place in a line.
#[derive(Debug, Default)]
enum Line {
    #[default]
    Start,
    /// The line begins with so many bytes of `error:`, which are withheld.
    Error(usize),
    Inside,
}

/// The output for a piece: the piece itself, as long as nothing is written into it.
struct Output<'a> {
    piece: &'a [u8],
    framed: Vec<u8>,
    /// The number of bytes of the piece that are in `framed`, or withheld.
    taken: usize,
}

impl Output<'_> {
    /// Writes bytes before this position of the piece.
    fn insert(&mut self, at: usize, bytes: &[u8]) {
        self.framed.extend_from_slice(&self.piece[self.taken..at]);
        self.framed.extend_from_slice(bytes);
        self.taken = at;
    }
}

impl Frames {
    /// Adds the framing to the next piece of the stream.
    pub(super) fn frame(&mut self, bytes: Bytes, seen: &Seen) -> Bytes {
        let piece = &*bytes;
        let mut output = Output { piece, framed: Vec::new(), taken: 0 };
        let mut at = 0;
        while let Some(&byte) = piece.get(at) {
            match self.line {
                Line::Inside => {
                    let end = piece[at..].iter().position(|byte| matches!(byte, b'\n' | b'\r'));
                    let Some(end) = end else { break };
                    at += end + 1;
                    self.after_cr = piece[at - 1] == b'\r';
                    self.line = Line::Start;
                }
                Line::Start if byte == b'\n' && self.after_cr => {
                    self.after_cr = false;
                    at += 1;
                }
                Line::Start if matches!(byte, b'\n' | b'\r') => {
                    self.is_open = false;
                    self.after_cr = byte == b'\r';
                    at += 1;
                }
                Line::Start if byte == ERROR[0] => {
                    output.insert(at, b"");
                    at += 1;
                    output.taken = at;
                    self.line = Line::Error(1);
                }
                Line::Start => {
                    self.begin_line(&mut output, at, seen);
                    self.line = Line::Inside;
                }
                Line::Error(known) if byte == ERROR[known] => {
                    at += 1;
                    output.taken = at;
                    self.line = Line::Error(known + 1);
                    if known + 1 == ERROR.len() {
                        output.insert(at, b"\nevent: error\ndata:");
                        self.is_open = true;
                        self.line = Line::Inside;
                    }
                }
                // Another line that begins with `e`, such as `event:`.
                Line::Error(known) => {
                    if std::mem::take(&mut self.is_open) {
                        output.insert(at, b"\n");
                    }
                    output.insert(at, &ERROR[..known]);
                    self.line = Line::Inside;
                }
            }
            if !matches!(self.line, Line::Start) {
                self.after_cr = false;
            }
        }
        if output.framed.is_empty() && output.taken == 0 {
            return bytes;
        }
        output.insert(piece.len(), b"");
        output.framed.into()
    }

    /// Writes what a line needs before its first byte.
    fn begin_line(&mut self, output: &mut Output<'_>, at: usize, seen: &Seen) {
        let rest = &output.piece[at..];
        if matches!(rest[0], b'{' | b'[') {
            // The empty line ends the event before, if there is one.
            output.insert(at, b"\ndata: ");
            self.is_open = true;
            return;
        }
        if self.is_open {
            // The rest of the line may not have arrived, so its first byte decides: no line of JSON begins so.
            if FIELDS.iter().any(|name| name[0] == rest[0]) {
                output.insert(at, b"\n");
                self.is_open = false;
            } else {
                output.insert(at, b"data: ");
            }
            return;
        }
        let text = rest.strip_prefix(BOM).unwrap_or(rest);
        if !FIELDS.iter().any(|name| text.starts_with(name) || name.starts_with(text)) {
            // Only the first text counts.
            let _ = seen.ignored.set(String::from_utf8_lossy(&text[..text.len().min(1000)]).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, Option<String>) {
        let (mut frames, seen) = (Frames::default(), Seen::default());
        let pieces = pieces.into_iter().map(|piece| frames.frame(Bytes::copy_from_slice(piece), &seen));
        let output: Vec<u8> = pieces.flatten().collect();
        (String::from_utf8(output).expect("UTF-8"), seen.ignored.into_inner())
    }

    const EVENTS: &str = ": wait\n\nevent: e\nid: 1\ndata: {\ndata: }\n\nretry: 5\r\n\r\nerr: x\rdata:[DONE]\n\n";

    #[test]
    fn a_stream_of_events_passes_unchanged_and_without_a_copy() {
        assert_eq!(framed([EVENTS.as_bytes()]).0, EVENTS);
        let piece = Bytes::from_static(b": wait\n\ndata: {\n\nid: 1\ndata: }\n\n");
        let output = Frames::default().frame(piece.clone(), &Seen::default());
        assert_eq!(output.as_ptr(), piece.as_ptr());
    }

    #[test]
    fn lines_of_json_and_errors_are_framed_however_they_are_cut() {
        let table = [
            ("{\"a\": 1}\n", "\ndata: {\"a\": 1}\n"),
            ("data: x\n{}\n\ndata: y\n\n", "data: x\n\ndata: {}\n\ndata: y\n\n"),
            ("{\n  \"a\":\n1\n}\ndata: y\n", "\ndata: {\ndata:   \"a\":\ndata: 1\ndata: }\n\ndata: y\n"),
            ("{\r\n \"a\": 1\r\n}\r\n\r\nx: y\r\n", "\ndata: {\r\ndata:  \"a\": 1\r\ndata: }\r\n\r\nx: y\r\n"),
            ("{}\r{}\rid: 1\r", "\ndata: {}\r\ndata: {}\r\nid: 1\r"),
            ("error: {}\ndata: [DONE]\n", "\nevent: error\ndata: {}\n\ndata: [DONE]\n"),
            ("error:{\n}\nevent: x\n", "\nevent: error\ndata:{\ndata: }\n\nevent: x\n"),
            ("{}\nerror: 1\nerror", "\ndata: {}\n\nevent: error\ndata: 1\n"),
            (EVENTS, EVENTS),
        ];
        for (text, expected) in table {
            let bytes = text.as_bytes();
            assert_eq!(framed([bytes]).0, expected, "{text:?}");
            assert_eq!(framed(bytes.chunks(1)).0, expected, "{text:?}, byte by byte");
            for cut in 0..bytes.len() {
                let (begin, end) = bytes.split_at(cut);
                assert_eq!(framed([begin, end]).0, expected, "{text:?}, cut at {cut}");
            }
        }
    }

    #[test]
    fn the_first_text_that_is_ignored_is_kept() {
        assert_eq!(framed([b"data: x\n\n".as_slice(), b"<html>\nother\n"]).1.as_deref(), Some("<html>\nother\n"));
        assert_eq!(framed([EVENTS.replace("err: x", "").as_bytes()]).1, None);
    }

    #[test]
    fn a_body_is_framed_if_it_begins_with_a_field_of_an_event() {
        let table = [
            (&["data: x", "data:", ":", "\n\n: x", "\u{feff}id:1", "event: x", "retry: 1", "error: x"][..], Some(true)),
            (&["", "\n", "d", "data", "\u{feff}", "error", "retr"], None),
            (&["{", "[1]", "<html>", "date", "data x", "errors:", "ids", "Hello: x"], Some(false)),
        ];
        for (heads, expected) in table {
            for head in heads {
                assert_eq!(is_framed(head.as_bytes()), expected, "{head:?}");
            }
        }
    }
}
