//! Secrets that are too long for a pattern: the pattern matches their beginning, and this module reads the rest.

/// The form of the text after the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// The text up to the end of a block of key data.
    Block,
    /// The rest of the first part, and two or four more parts, each after a dot.
    Jwt,
    /// More base64, of either alphabet.
    Run,
}

/// The end of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailEnd {
    At(usize),
    /// The match is not a secret.
    Never,
    /// More text is needed.
    Open,
}

/// The maximum number of bytes that are read. If no end is found, all of these bytes are part of the secret.
pub(super) const LONGEST: usize = 16 * 1024;

impl Tail {
    /// Reads the text after the pattern; `is_whole` is `true` if no more text will come.
    pub(super) fn read(self, text: &str, from: usize, is_whole: bool) -> TailEnd {
        match self {
            Self::Block => block(text, from, is_whole),
            Self::Jwt => jwt(text, from, is_whole),
            Self::Run => run(text, from, is_whole),
        }
    }
}

/// Reads to the end of the block, or to the maximum. A block without key data is not a secret.
fn block(text: &str, from: usize, is_whole: bool) -> TailEnd {
    let bound = from + LONGEST;
    let within = &text.as_bytes()[from..text.len().min(bound)];
    let end = match end_of_block(within) {
        Some(end) => from + end,
        // Without an end, all text that was read is the secret: the block may be cut off.
        None if text.len() >= bound => bound,
        None if is_whole => text.len(),
        None => return TailEnd::Open,
    };
    let end = text.floor_char_boundary(end);
    if holds_key(&text[from..end]) { TailEnd::At(end) } else { TailEnd::Never }
}

fn end_of_block(within: &[u8]) -> Option<usize> {
    const END: &[u8] = b"-----END ";
    const LINE: usize = 64;
    let at = memchr::memmem::find(within, END)? + END.len();
    let line = &within[at..within.len().min(at + LINE)];
    memchr::memmem::find(line, b"-----").map(|dashes| at + dashes + 5)
}

/// Returns `true` if the text contains key data: 24 consecutive base64 characters.
fn holds_key(body: &str) -> bool {
    let mut runs = body.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=')));
    runs.any(|run| run.len() >= 24)
}

fn run(text: &str, from: usize, is_whole: bool) -> TailEnd {
    let bytes = &text.as_bytes()[..text.len().min(from + LONGEST)];
    let is_run = |byte: &&u8| is_url_safe(**byte) || matches!(**byte, b'+' | b'/' | b'=');
    let end = from + bytes[from..].iter().take_while(is_run).count();
    if end == text.len() && !is_whole { TailEnd::Open } else { TailEnd::At(end) }
}

/// Reads the three parts of a signed token (RFC 7519), or the five parts of an encrypted token (RFC 7516).
fn jwt(text: &str, from: usize, is_whole: bool) -> TailEnd {
    let bytes = &text.as_bytes()[..text.len().min(from + LONGEST)];
    // The end of a part is known if more text follows, or if no more will be read.
    let is_known = is_whole || text.len() > bytes.len();
    let run = |at: usize| at + bytes[at..].iter().take_while(|byte| is_url_safe(**byte)).count();
    let mut ends = [from; 5];
    let mut parts = 0;
    while parts < ends.len() && (parts == 0 || bytes.get(ends[parts - 1]) == Some(&b'.')) {
        ends[parts] = run(if parts == 0 { from } else { ends[parts - 1] + 1 });
        if ends[parts] == bytes.len() && !is_known {
            return TailEnd::Open;
        }
        parts += 1;
    }
    let [header, payload, signature, text, tag] = ends;
    match parts {
        // The second part, the encrypted key, may be empty.
        5 if signature > payload + 10 && text > signature + 1 && tag > text + 16 => TailEnd::At(tag),
        3.. if payload > header + 10 && signature > payload + 16 => TailEnd::At(signature),
        _ => TailEnd::Never,
    }
}

const fn is_url_safe(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}
