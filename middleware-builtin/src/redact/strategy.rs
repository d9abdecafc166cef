//! The replacement of a secret.

use std::fmt;

use emitree_secrets::Kind;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::pseudonyms::Pseudonyms;

/// The way in which secrets are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Replaces a secret with its kind: `[REDACTED:email]`.
    #[default]
    Redact,
    /// Replaces a secret with a mask: `********1111`. If the secret is longer than eight characters, the letters and
    /// digits among its last four characters stay. The mask does not reveal the exact length.
    Mask,
    /// Replaces a secret with a hash: `[email:gkpfbanm…]`, the first 80 bits of HMAC-SHA-256 in letters from `a` to
    /// `p`. A secret has the same hash under the same [key](super::Redact::hash_key).
    Hash,
    /// Replaces a secret with a pseudonym: `[EMAIL_gkpfbanmople]`, the first letters of the hash of `Hash`. A secret has
    /// the same pseudonym under the same [key](super::Redact::hash_key), and may be
    /// [restored](super::Redact::restore_output) in the output.
    Pseudonym,
}

/// The key of [`Strategy::Hash`] and [`Strategy::Pseudonym`].
#[derive(Clone)]
pub(super) struct HashKey(Box<[u8]>);

impl HashKey {
    pub(super) fn new(key: &[u8]) -> Self {
        Self(key.into())
    }

    /// Generates a key from random bytes of the operating system; `None` if the operating system provides no random
    /// bytes. Without a key, secrets are replaced as with [`Strategy::Redact`].
    pub(super) fn random() -> Option<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).ok()?;
        Some(Self(key.into()))
    }

    /// Hashes a secret to 64 letters. There are only letters, because digits could look like another secret.
    pub(super) fn hash(&self, secret: &str) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(secret.as_bytes());
        let bytes = mac.finalize().into_bytes();
        let letter = |nibble: u8| char::from(b'a' + nibble);
        Some(bytes.iter().flat_map(|byte| [letter(byte >> 4), letter(byte & 15)]).collect())
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey")
    }
}

impl Strategy {
    /// Returns the replacement of a secret.
    pub(super) fn replace(self, kind: &Kind, secret: &str, key: Option<&HashKey>, names: &Pseudonyms) -> String {
        let plain = || format!("[REDACTED:{kind}]");
        match self {
            Self::Redact => plain(),
            Self::Mask => masked(secret),
            Self::Hash => {
                key.and_then(|key| key.hash(secret)).map_or_else(plain, |hash| format!("[{kind}:{hash:.20}]"))
            }
            Self::Pseudonym => names.name(kind, secret, key).unwrap_or_else(plain),
        }
    }
}

/// Returns a mask for a secret. The mask does not reveal the exact length of the secret.
fn masked(secret: &str) -> String {
    const STARS: &str = "********";
    let len = secret.chars().count();
    let last = secret.chars().skip(if len > 8 { len - 4 } else { len });
    // Replace punctuation in the remaining characters, so that they do not look like something else, such as a URL.
    STARS.chars().chain(last.map(|c| if c.is_alphanumeric() { c } else { '*' })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_strategy_replaces_a_secret_as_documented() {
        let names = Pseudonyms::new();
        let key = HashKey::new(b"key");
        let rows = [
            (Strategy::Redact, "maria@mailbox.org", "[REDACTED:email]"),
            (Strategy::Mask, "maria@mailbox.org", "*********org"),
            (Strategy::Mask, "a@bc.de", "********"),
            (Strategy::Hash, "maria@mailbox.org", "[email:pgklickfkmkepmbjombp]"),
            (Strategy::Pseudonym, "maria@mailbox.org", "[EMAIL_pgklickfkmke]"),
            (Strategy::Pseudonym, "li@mailbox.org", "[EMAIL_cpgchihbeiam]"),
            (Strategy::Pseudonym, "maria@mailbox.org", "[EMAIL_pgklickfkmke]"),
        ];
        for (strategy, secret, expected) in rows {
            let replaced = strategy.replace(&Kind::Email, secret, Some(&key), &names);
            assert_eq!(replaced, expected);
        }
    }

    #[test]
    fn hashes_are_stable_under_a_key_and_differ_between_keys() {
        let hash = |key: &HashKey| key.hash("secret").expect("a key of any length is valid");
        assert_eq!(hash(&HashKey::new(b"a")), hash(&HashKey::new(b"a")));
        assert_ne!(hash(&HashKey::new(b"a")), hash(&HashKey::new(b"b")));
        assert_eq!(hash(&HashKey::random().expect("there is one")).len(), 64);
    }
}
