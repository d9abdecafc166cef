//! The names of tools, as models accept them.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The most characters of a name.
const MOST: usize = 64;

/// Returns the name of a server's tool for models. A name that had to be changed ends with six digits of its hash, so
/// that two names stay two.
pub(super) fn model_name(prefix: &str, name: &str) -> String {
    let full = format!("{prefix}{name}");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && full.len() <= MOST && full.chars().all(is_part) {
        return full;
    }
    let mut changed: String = full.chars().map(|c| if is_part(c) { c } else { '_' }).take(MOST - 7).collect();
    changed.push('_');
    for byte in &Sha256::digest(name.as_bytes())[..3] {
        // Writing to a string never fails.
        let _ = write!(changed, "{byte:02x}");
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_names_that_models_accept() {
        for (prefix, name, expected) in [
            ("", "balance", "balance"),
            ("bank_", "balance", "bank_balance"),
            ("", "files/read", "files_read_2b7331"),
            ("", "", "_e3b0c4"),
            ("p_", "", "p__e3b0c4"),
        ] {
            assert_eq!(model_name(prefix, name), expected, "{name:?}");
        }
        let long = model_name("", &"a".repeat(300));
        assert_eq!((long.len(), &long[..57]), (64, &*"a".repeat(57)));
        assert_ne!(model_name("", "a\u{202e}b"), model_name("", "a\u{202d}b"));
    }
}
