//! Texts from which encodings are removed, to find secrets in them.
//!
//! Invariant: an encoding is removed as soon as its last byte has been read, so the byte that it stands for can be a part
//! of another encoding. Therefore, one pass removes JSON escapes, percent-encoding and HTML entities in any nesting, in
//! linear time.

/// The names of HTML entities for ASCII characters.
const ENTITIES: [(&str, u8); 43] = [
    ("AMP", b'&'),
    ("DiacriticalGrave", b'`'),
    ("GT", b'>'),
    ("Hat", b'^'),
    ("LT", b'<'),
    ("NewLine", b'\n'),
    ("QUOT", b'"'),
    ("Tab", b'\t'),
    ("UnderBar", b'_'),
    ("VerticalLine", b'|'),
    ("amp", b'&'),
    ("apos", b'\''),
    ("ast", b'*'),
    ("bsol", b'\\'),
    ("colon", b':'),
    ("comma", b','),
    ("commat", b'@'),
    ("dollar", b'$'),
    ("equals", b'='),
    ("excl", b'!'),
    ("grave", b'`'),
    ("gt", b'>'),
    ("lbrace", b'{'),
    ("lbrack", b'['),
    ("lcub", b'{'),
    ("lowbar", b'_'),
    ("lpar", b'('),
    ("lsqb", b'['),
    ("lt", b'<'),
    ("midast", b'*'),
    ("num", b'#'),
    ("percnt", b'%'),
    ("period", b'.'),
    ("plus", b'+'),
    ("quest", b'?'),
    ("quot", b'"'),
    ("rbrace", b'}'),
    ("rbrack", b']'),
    ("rcub", b'}'),
    ("rpar", b')'),
    ("rsqb", b']'),
    ("semi", b';'),
    ("sol", b'/'),
];
/// The longest entity that is decoded, including `&` and `;`. Longer numbers have leading zeros.
const LONGEST: usize = 24;

/// Removes all encodings from a text.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        bytes.push(byte);
        while let Some((length, character)) = last_encoding(&bytes) {
            bytes.truncate(bytes.len() - length);
            match character {
                Decoded::Byte(byte) => bytes.push(byte),
                Decoded::Character(character) => bytes.extend(character.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

enum Decoded {
    /// A byte of a percent-encoded character.
    Byte(u8),
    Character(char),
}

/// Returns the length of the encoding at the end of the bytes, and what it stands for.
fn last_encoding(bytes: &[u8]) -> Option<(usize, Decoded)> {
    percent(bytes).or_else(|| escape(bytes)).or_else(|| entity(bytes))
}

fn percent(bytes: &[u8]) -> Option<(usize, Decoded)> {
    let [.., b'%', high, low] = bytes else { return None };
    let byte = u8::try_from(hex(&[*high, *low])?).ok()?;
    Some((3, Decoded::Byte(byte)))
}

/// Returns the JSON escape at the end of the bytes.
fn escape(bytes: &[u8]) -> Option<(usize, Decoded)> {
    let simple = match bytes {
        [.., b'\\', byte @ (b'"' | b'\\' | b'/')] => Some(char::from(*byte)),
        [.., b'\\', b'b'] => Some('\u{8}'),
        [.., b'\\', b'f'] => Some('\u{c}'),
        [.., b'\\', b'n'] => Some('\n'),
        [.., b'\\', b'r'] => Some('\r'),
        [.., b'\\', b't'] => Some('\t'),
        _ => None,
    };
    if let Some(character) = simple {
        return Some((2, Decoded::Character(character)));
    }
    let (_, last) = bytes.split_at_checked(bytes.len().checked_sub(6)?)?;
    let digits = last.strip_prefix(b"\\u")?;
    Some((6, Decoded::Character(char::from_u32(hex(digits)?)?)))
}

/// Returns the HTML entity at the end of the bytes.
fn entity(bytes: &[u8]) -> Option<(usize, Decoded)> {
    let before = bytes.strip_suffix(b";")?;
    let nearest = &before[before.len().saturating_sub(LONGEST - 1)..];
    let start = nearest.iter().rposition(|byte| *byte == b'&')?;
    let name = &nearest[start + 1..];
    let character = match name {
        [b'#', b'x' | b'X', digits @ ..] => char::from_u32(hex(digits)?)?,
        [b'#', digits @ ..] => char::from_u32(std::str::from_utf8(digits).ok()?.parse().ok()?)?,
        name => {
            let known = ENTITIES.iter().find(|(known, _)| known.as_bytes() == name);
            char::from(known?.1)
        }
    };
    Some((name.len() + 2, Decoded::Character(character)))
}

fn hex(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_encoding_is_removed_in_any_nesting_and_other_text_is_kept() {
        let table = [
            (r"a\/b\u002Fc\\d\ne", "a/b/c\\d\ne"),
            ("a%2Fb%2fc%C3%BCd", "a/b/cüd"),
            ("a&sol;b&#47;c&#x2f;d&#X002F;e&amp;f&NewLine;", "a/b/c/d/e&f\n"),
            ("%252525252F", "/"),
            (r"%5Cu0026%23x5c;\u002f", "/"),
            ("&amp;amp;sol;", "/"),
            ("100 % of 5 &c; \\u12 \\q %zz & %", "100 % of 5 &c; \\u12 \\q %zz & %"),
            ("&#xd800; \\ud800 &#99999999999;", "&#xd800; \\ud800 &#99999999999;"),
            ("", ""),
        ];
        for (text, expected) in table {
            assert_eq!(decoded(text), expected, "{text}");
        }
    }

    #[test]
    fn a_text_of_nested_encodings_costs_linear_time() {
        // With a pass for each level, this test is terminated because it takes too long.
        assert_eq!(decoded(&format!("%{}2F", "25".repeat(1_000_000))), "/");
    }
}
