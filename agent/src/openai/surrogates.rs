//! Characters that a server has cut into two chunks.

use std::collections::VecDeque;

/// The halves of characters whose other half has not arrived.
///
/// JSON writes a character such as `😀` as two escapes, `\ud83d\ude00`. A server that counts UTF-16 units may send the
/// first one at the end of a chunk, and the second one at the beginning of the next
/// (<https://github.com/elie222/rakazo/issues/416>, <https://github.com/elizaOS/eliza/issues/30904>). Each of the two
/// chunks alone is not text.
#[derive(Debug, Default)]
pub(super) struct Halves(VecDeque<u16>);

impl Halves {
    /// Rewrites JSON with halves of characters: a first half at the end of a string waits for its second half, at the
    /// beginning of a string. Any other half becomes the replacement character. Returns `None` if there are no halves.
    pub(super) fn mend(&mut self, json: &str) -> Option<String> {
        let mut mended = String::with_capacity(json.len());
        let mut rest = json;
        let waited = self.0.len();
        let mut joined = 0;
        while let Some(at) = rest.find('\\') {
            let (before, escape) = rest.split_at(at);
            mended.push_str(before);
            let half = unit(escape).filter(|unit| (0xd800..0xe000).contains(unit));
            // The length of a simple escape is that of a backslash and an ASCII character. Another one is a mistake,
            // which the parser reports.
            let Some(half) = half else {
                let end = escape.char_indices().nth(2).map_or(escape.len(), |(end, _)| end);
                mended.push_str(&escape[..end]);
                rest = &escape[end..];
                continue;
            };
            let (this, after) = escape.split_at(6);
            rest = after;
            let is_first = half < 0xdc00;
            if is_first && unit(after).is_some_and(|unit| (0xdc00..0xe000).contains(&unit)) {
                mended.push_str(this);
                mended.push_str(&after[..6]);
                rest = &after[6..];
            } else if is_first && after.starts_with('"') {
                self.0.push_back(half);
            } else if !is_first
                && mended.ends_with('"')
                && let Some(first) = self.0.pop_front()
            {
                joined += 1;
                mended.push_str(&format!("\\u{first:04x}{this}"));
            } else {
                mended.push(char::REPLACEMENT_CHARACTER);
            }
        }
        mended.push_str(rest);
        // A half that still waits after the next halves have come is lost.
        let stale = waited.saturating_sub(joined);
        if self.0.len() > stale {
            self.0.drain(..stale);
        }
        (mended != json).then_some(mended)
    }
}

/// Returns the UTF-16 unit of the escape `\uXXXX` at the beginning of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_joined_and_everything_else_stays() {
        let table: [(&[&str], &[Option<&str>]); 6] = [
            (&[r#""a\ud83d""#, r#""\ude00b""#], &[Some(r#""a""#), Some(r#""\ud83d\ude00b""#)]),
            (
                &[r#"["\ud83d","\uD801"]"#, "{}", r#"["\ude00","\uDC37"]"#],
                &[Some(r#"["",""]"#), None, Some(r#"["\ud83d\ude00","\ud801\uDC37"]"#)],
            ),
            (&[r#""\ud83dx""#, r#""x\ude00""#], &[Some("\"\u{fffd}x\""), Some("\"x\u{fffd}\"")]),
            (&[r#"["\ud83d","\ude00"]"#], &[Some(r#"["","\ud83d\ude00"]"#)]),
            (&[r#""\ud801""#, r#""\ud83d""#, r#""\ude00""#], &[Some("\"\""), Some("\"\""), Some(r#""\ud83d\ude00""#)]),
            (&[r#""\\ud83d \n\" \ud83d\ude00 \u00e9 \u12 \ö""#, "\"\\"], &[None, None]),
        ];
        for (chunks, expected) in table {
            let mut halves = Halves::default();
            let mended: Vec<_> = chunks.iter().map(|chunk| halves.mend(chunk)).collect();
            assert_eq!(mended.iter().map(Option::as_deref).collect::<Vec<_>>(), expected, "{chunks:?}");
        }
    }
}
