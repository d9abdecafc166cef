//! Strings as JSON has them.

use super::writer::push_as_it_is;

/// The lowest bit of every byte of a word.
const LOW: u64 = u64::from_le_bytes([1; 8]);

/// Appends a string with its quotes.
#[inline]
pub(super) fn push_string(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    match short(bytes) {
        Some(word) if odd_bytes(word | padding(bytes.len())) == 0 => push_short(out, word, bytes.len()),
        None if is_plain(bytes) => push_plain(out, bytes),
        _ => push_escaped(out, text),
    }
}

#[inline]
fn push_plain(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len() + 3);
    out.push(b'"');
    out.extend_from_slice(bytes);
    out.push(b'"');
}

/// Appends at most eight bytes, and quotes: all of it at once, and back from what was too much.
#[inline]
fn push_short(out: &mut Vec<u8>, word: u64, len: usize) {
    let mut quoted = [b'"'; 10];
    quoted[1..9].copy_from_slice(&word.to_le_bytes());
    let end = out.len() + len + 1;
    out.extend_from_slice(&quoted);
    out.truncate(end);
    out.push(b'"');
}

#[cold]
fn push_escaped(out: &mut Vec<u8>, text: &str) {
    // Text can be written, and bytes take it.
    push_as_it_is(out, text).unwrap_or_default();
}

/// At most eight bytes as a word, the first of them lowest, and nothing above. The halves of it may overlap.
#[inline]
fn short(bytes: &[u8]) -> Option<u64> {
    let half = |half: &[u8; 4]| u64::from(u32::from_le_bytes(*half));
    match (bytes.len(), bytes.first_chunk(), bytes.last_chunk()) {
        (4..=8, Some(first), Some(last)) => Some(half(first) | half(last) << (8 * (bytes.len() - 4))),
        (0..4, ..) => Some(bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))),
        _ => None,
    }
}

/// Spaces in a word behind so many bytes.
#[inline]
const fn padding(len: usize) -> u64 {
    // Nothing is left of a word behind eight.
    match (LOW * b' ' as u64).checked_shl(8 * len as u32) {
        Some(spaces) => spaces,
        None => 0,
    }
}

/// Whether nothing has to be escaped. Looks at a word at a time, and at the last of them perhaps twice.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    let words = bytes.as_chunks().0.iter().chain(bytes.last_chunk());
    words.fold(0, |odd, word| odd | odd_bytes(u64::from_le_bytes(*word))) == 0
}

/// Not nothing, if any byte of a word has to be escaped: control characters, quotes, backslashes.
#[inline]
const fn odd_bytes(word: u64) -> u64 {
    let (quote, backslash) = (word ^ (LOW * b'"' as u64), word ^ (LOW * b'\\' as u64));
    (below(word, b' ') | below(quote, 1) | below(backslash, 1)) & (LOW << 7)
}

/// Has a high bit set if any byte of a word is below another one.
#[inline]
const fn below(word: u64, byte: u8) -> u64 {
    word.wrapping_sub(LOW * byte as u64) & !word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_what_serde_json_makes_of_it_wherever_something_is_escaped() {
        for len in 0..40 {
            for at in 0..=len {
                for odd in
                    ["", "\"", "\\", "\n", "\0", "\u{1f}", " ", "!", "#", "[", "]", "\u{7f}", "é", "\u{2028}", "😀"]
                {
                    let text = ["x".repeat(at).as_str(), odd, &"y".repeat(len - at)].concat();
                    let mut out = Vec::new();
                    push_string(&mut out, &text);
                    assert_eq!(out, serde_json::to_vec(&text).unwrap(), "{text:?}");
                }
            }
        }
    }
}
