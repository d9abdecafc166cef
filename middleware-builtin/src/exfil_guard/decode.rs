//! What text says in another encoding: base64, hex, percent-encoding.
//!
//! Each run of characters that an encoding knows is decoded from each place where it could begin, so what stands before
//! does not hide it. What is decoded is shorter than what it was decoded from, and is decoded again at most so many
//! times as the caller asks: so all takes time in proportion to the text.

use serde::Serialize;

/// How a secret was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Encoding {
    /// As it is.
    Plain,
    /// In base64, of either alphabet.
    Base64,
    /// In hexadecimal digits.
    Hex,
    /// Percent-encoded, as in URLs and forms: there a plus is a space.
    Url,
}

/// Runs that are shorter hold no secret.
const SHORTEST: usize = 12;

/// Shows what a text says in each encoding.
pub(super) fn decoded(text: &str, see: &mut impl FnMut(Encoding, &[u8])) {
    if let Some(bytes) = percent(text) {
        see(Encoding::Url, &bytes);
    }
    // In a form, a space is a plus.
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        see(Encoding::Url, &percent(&spaced).unwrap_or(spaced.into_bytes()));
    }
    runs(text, see);
    // Base64 in lines.
    if text.contains('\n') {
        runs(&text.replace(['\r', '\n'], ""), see);
    }
}

fn runs(text: &str, see: &mut impl FnMut(Encoding, &[u8])) {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '-' | '_');
    for run in text.split(|c| !is_base64(c)).filter(|run| run.len() >= SHORTEST) {
        (0..4).for_each(|from| see(Encoding::Base64, &base64(&run.as_bytes()[from..])));
        // The other alphabet has signs that also join words.
        for word in run.split(['-', '_', '+', '/']).filter(|word| word.len() >= SHORTEST) {
            hexadecimal(word, see);
            if word.len() < run.len() {
                (0..4).for_each(|from| see(Encoding::Base64, &base64(&word.as_bytes()[from..])));
            }
        }
    }
}

fn hexadecimal(word: &str, see: &mut impl FnMut(Encoding, &[u8])) {
    for run in word.split(|c: char| !c.is_ascii_hexdigit()).filter(|run| run.len() >= SHORTEST) {
        (0..2).for_each(|from| see(Encoding::Hex, &hex(&run.as_bytes()[from..])));
    }
}

fn base64(text: &[u8]) -> Vec<u8> {
    let value = |byte: u8| -> u32 {
        u32::from(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            _ => 63,
        })
    };
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for quad in text.chunks(4) {
        let bits = quad.iter().fold(0, |bits, byte| bits << 6 | value(*byte)) << (6 * (4 - quad.len()));
        out.extend_from_slice(&bits.to_be_bytes()[1..quad.len().max(1)]);
    }
    out
}

fn hex(text: &[u8]) -> Vec<u8> {
    let value = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok()).unwrap_or(0);
    text.chunks_exact(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

/// None if nothing is encoded.
fn percent(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let encoded = |at: usize| {
        let pair =
            bytes.get(at + 1..at + 3).filter(|pair| bytes[at] == b'%' && pair.iter().all(u8::is_ascii_hexdigit))?;
        hex(pair).first().copied()
    };
    let first = (0..bytes.len()).find(|at| encoded(*at).is_some())?;
    let (mut out, mut at) = (bytes[..first].to_vec(), first);
    while at < bytes.len() {
        let byte = encoded(at);
        out.push(byte.unwrap_or(bytes[at]));
        at += if byte.is_some() { 3 } else { 1 };
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_encoding_is_read_from_wherever_it_begins() {
        let rows = [
            ("c2VjcmV0LXZhbHVlIQ==", Encoding::Base64, "secret-value!"),
            ("xc2VjcmV0LXZhbHVlIQ==", Encoding::Base64, "secret-value!"),
            ("a_b-c2VjcmV0LXZhbHVlIQ", Encoding::Base64, "secret-value!"),
            ("c2VjcmV0\nLXZhbHVl\r\nIQ==", Encoding::Base64, "secret-value!"),
            ("id=7365637265742d76616c756521", Encoding::Hex, "secret-value!"),
            ("f7365637265742D76616C756521", Encoding::Hex, "secret-value!"),
            ("q=secret%2Dvalue%21&x", Encoding::Url, "secret-value!"),
            ("q=%73ecret%2dvalue!%", Encoding::Url, "secret-value!"),
            ("q=a+secret+value%21&x", Encoding::Url, "a secret value!"),
            ("a+secret+value", Encoding::Url, "a secret value"),
        ];
        for (text, encoding, expected) in rows {
            let mut is_seen = false;
            decoded(text, &mut |by, bytes| {
                is_seen |= by == encoding && memchr::memmem::find(bytes, expected.as_bytes()).is_some();
            });
            assert!(is_seen, "{text} says {expected} in {encoding:?}");
        }
    }
}
