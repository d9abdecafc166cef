//! JSON text over several lines.

use crate::canonical::string_len;

/// Appends canonical JSON text, two spaces for each depth.
pub(super) fn push_pretty(out: &mut String, canonical: &str) {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = canonical.as_bytes().get(at) {
        let len = if byte == b'"' { string_len(&canonical.as_bytes()[at..]) } else { plain_len(&canonical[at..]) };
        let token = &canonical[at..at + len];
        at += len;
        match byte {
            b'{' | b'[' => {
                depth += 1;
                out.push_str(token);
                if !canonical[at..].starts_with(['}', ']']) {
                    break_line(out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if !out.ends_with(['{', '[']) {
                    break_line(out, depth);
                }
                out.push_str(token);
            }
            b',' => {
                out.push_str(token);
                break_line(out, depth);
            }
            b':' => out.push_str(": "),
            _ => out.push_str(token),
        }
    }
}

/// A bracket, comma or colon is a token; so is everything up to the next one.
fn plain_len(text: &str) -> usize {
    let structural = ['{', '}', '[', ']', ',', ':', '"'];
    if text.starts_with(structural) { 1 } else { text.find(structural).unwrap_or(text.len()) }
}

fn break_line(out: &mut String, depth: usize) {
    out.push('\n');
    for _ in 0..depth {
        out.push_str("  ");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_looks_as_serde_json_has_it() {
        for value in [
            json!(null),
            json!("a, b: [c]"),
            json!([]),
            json!({}),
            json!([1, [], {}, [2.5, "x"]]),
            json!({"a": {"b": [true, null]}, "c": {}, "ends with {": "{"}),
        ] {
            let mut out = String::new();
            push_pretty(&mut out, &value.to_string());
            assert_eq!(out, serde_json::to_string_pretty(&value).unwrap());
        }
    }
}
