//! Secrets that are longer than a pattern should be: their beginning is a pattern, the rest is read here, once.

/// How a secret goes on behind its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// To the line that ends a block of key data.
    Block,
    /// Two more parts behind dots, or four.
    Jwt,
    /// More of base64, of either alphabet.
    Run,
}

/// Where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailEnd {
    At(usize),
    /// It is none.
    Never,
    /// That depends on text that is not there yet.
    Open,
}

/// As many bytes of key data are read, and withheld if no end is found.
pub(super) const LONGEST: usize = 16 * 1024;

impl Tail {
    /// Reads on from behind the pattern; `is_whole` if no more text is to come.
    pub(super) fn read(self, text: &str, from: usize, is_whole: bool) -> TailEnd {
        match self {
            Self::Block => block(text, from, is_whole),
            Self::Jwt => jwt(text, from, is_whole),
            Self::Run => run(text, from, is_whole),
        }
    }
}

/// To the end that a block has, or as far as is read; what holds no key data is left.
fn block(text: &str, from: usize, is_whole: bool) -> TailEnd {
    let bound = from + LONGEST;
    let within = &text.as_bytes()[from..text.len().min(bound)];
    let end = match end_of_block(within) {
        Some(end) => from + end,
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

/// As much as the shortest of keys has.
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

/// Three parts, RFC 7519, or five of an encrypted one, RFC 7516.
fn jwt(text: &str, from: usize, is_whole: bool) -> TailEnd {
    let bytes = &text.as_bytes()[..text.len().min(from + LONGEST)];
    // Where the text goes on, or nothing more is read, it is known where a part ends.
    let is_known = is_whole || text.len() > bytes.len();
    let run = |at: usize| at + bytes[at..].iter().take_while(|byte| is_url_safe(**byte)).count();
    let (mut ends, mut parts) = ([from; 5], 0);
    while parts < ends.len() && (parts == 0 || bytes.get(ends[parts - 1]) == Some(&b'.')) {
        ends[parts] = run(if parts == 0 { from } else { ends[parts - 1] + 1 });
        if ends[parts] == bytes.len() && !is_known {
            return TailEnd::Open;
        }
        parts += 1;
    }
    let [header, payload, signature, text, tag] = ends;
    match parts {
        // The second part may be empty.
        5 if signature > payload + 10 && text > signature + 1 && tag > text + 16 => TailEnd::At(tag),
        3.. if payload > header + 10 && signature > payload + 16 => TailEnd::At(signature),
        _ => TailEnd::Never,
    }
}

const fn is_url_safe(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}
