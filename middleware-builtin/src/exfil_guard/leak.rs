//! What must not leave, and whether a text tells it.

use std::fmt;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use serde::{Serialize, Serializer};
use thiserror::Error;

use super::decode::{Encoding, decoded};
use super::hosts::Hosts;
use crate::secrets::{Kind, Scanner};

/// So often is decoded what was decoded.
const DEPTH: u32 = 2;
/// Values that are shorter would be met by accident.
const SHORTEST: usize = 6;
/// As many values may be known, and as many bytes of them.
const MOST: usize = 10_000;
const LONGEST: usize = 4096;

/// What was about to leave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// One of the values that were given.
    Known,
    /// Something that looks like a secret of a kind.
    Kind(Kind),
    /// A URL to a host that is not allowed.
    Host,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known => f.write_str("known_value"),
            Self::Kind(kind) => kind.fmt(f),
            Self::Host => f.write_str("host"),
        }
    }
}

impl Serialize for What {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A known value that was not taken. It is not repeated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KnownError {
    /// It would be met by accident.
    #[error("a known value of {len} bytes would be met by accident: at least {SHORTEST} are taken")]
    Short {
        /// How many bytes it has.
        len: usize,
    },
    /// There are too many, or they are too long.
    #[error("at most {MOST} known values of at most {LONGEST} bytes are taken")]
    Many,
}

/// Looks for it.
#[derive(Clone)]
pub(super) struct Detector {
    pub(super) scanner: Scanner,
    values: Arc<[Vec<u8>]>,
    known: Option<AhoCorasick>,
    pub(super) hosts: Option<Hosts>,
}

impl Detector {
    pub(super) fn new() -> Self {
        Self { scanner: Scanner::keys(), values: Arc::default(), known: None, hosts: None }
    }

    /// Knows these too.
    pub(super) fn know(&mut self, values: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<(), KnownError> {
        let mut all = self.values.to_vec();
        for value in values {
            let value = value.as_ref();
            match value.len() {
                len @ ..SHORTEST => return Err(KnownError::Short { len }),
                SHORTEST..=LONGEST => all.push(value.to_owned()),
                _ => return Err(KnownError::Many),
            }
        }
        if all.len() > MOST {
            return Err(KnownError::Many);
        }
        self.known = Some(AhoCorasick::new(&all).map_err(|_| KnownError::Many)?);
        self.values = all.into();
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.values.len()
    }

    /// How long the longest known value is.
    pub(super) fn longest(&self) -> usize {
        self.values.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Whether a known value stands in it as it is.
    pub(super) fn tells_known(&self, text: impl AsRef<[u8]>) -> bool {
        self.known.as_ref().is_some_and(|known| known.is_match(text.as_ref()))
    }

    /// The first thing in a text that must not leave.
    pub(super) fn leak(&self, text: &str) -> Option<(What, Encoding)> {
        self.leak_in(text, Hosts::are_left)
    }

    /// The same of a part that is not the beginning of a text.
    pub(super) fn leak_within(&self, part: &str) -> Option<(What, Encoding)> {
        self.leak_in(part, Hosts::are_left_within)
    }

    fn leak_in(&self, text: &str, are_left: fn(&Hosts, &str) -> bool) -> Option<(What, Encoding)> {
        let plain = self.found(text.as_bytes(), text).map(|what| (what, Encoding::Plain));
        let left = || self.hosts.as_ref().filter(|hosts| are_left(hosts, text)).map(|_| (What::Host, Encoding::Plain));
        plain.or_else(left).or_else(|| self.encoded(text, DEPTH))
    }

    /// Not as it stands there, but in another encoding.
    fn encoded(&self, text: &str, depth: u32) -> Option<(What, Encoding)> {
        let mut leak = None;
        decoded(text, &mut |encoding, bytes| {
            if leak.is_none() {
                leak = self.written(encoding, bytes, depth);
            }
        });
        leak
    }

    /// What bytes tell that were decoded from text, and what can be decoded from them.
    fn written(&self, encoding: Encoding, bytes: &[u8], depth: u32) -> Option<(What, Encoding)> {
        let text = String::from_utf8_lossy(bytes);
        let found = self.found(bytes, &text).map(|what| (what, encoding));
        // Bytes of a picture say `"//` now and then. Percent-encoding leaves text as it is all around.
        if found.is_some() || !(encoding == Encoding::Url || is_text(bytes)) {
            return found;
        }
        let left = self.hosts.as_ref().filter(|hosts| hosts.are_left(&text)).map(|_| (What::Host, encoding));
        left.or_else(|| (depth > 1).then(|| self.encoded(&text, depth - 1)).flatten())
    }

    fn found(&self, bytes: &[u8], text: &str) -> Option<What> {
        if self.tells_known(bytes) {
            return Some(What::Known);
        }
        self.scanner.find_first(text).map(|finding| What::Kind(finding.kind))
    }
}

/// Only text is encoded text, of whatever script.
fn is_text(bytes: &[u8]) -> bool {
    let chars = bytes.utf8_chunks().flat_map(|chunk| chunk.valid().chars());
    let readable: usize = chars.filter(|c| !c.is_control() || c.is_ascii_whitespace()).map(char::len_utf8).sum();
    readable * 10 >= bytes.len() * 8
}

impl fmt::Debug for Detector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Detector");
        debug.field("kinds", &self.scanner).field("known", &self.count()).field("hosts", &self.hosts).finish()
    }
}
