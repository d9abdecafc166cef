//! Pseudonyms and the secrets that they stand for.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use emitree_runtime::RunContext;
use emitree_secrets::Kind;
use parking_lot::Mutex;
use uuid::Uuid;

use super::strategy::HashKey;

/// The maximum number of pseudonyms in a mapping. Further secrets are replaced as with `Strategy::Redact`.
pub(super) const MOST: usize = 10_000;

/// The numbers of letters of a pseudonym. A longer pseudonym is used only if all shorter ones stand for other secrets.
const LENGTHS: [usize; 3] = [12, 24, 64];

/// The pseudonyms of a conversation, and the secrets that they stand for. A cheap handle: clones share the mapping.
///
/// Pass it to the [`Redact`](super::Redact::pseudonyms) of each run of the conversation, so that a run restores the
/// pseudonyms of earlier runs. A run that restores its output restores each secret that a run with this mapping has
/// received. Therefore, use a separate mapping for each conversation or user.
///
/// The mapping keeps up to 10,000 secrets in memory, until the last handle is dropped. It cannot be stored, and `Debug`
/// shows only the number of secrets.
#[derive(Clone, Default)]
pub struct Pseudonyms {
    mapping: Arc<Mutex<Mapping>>,
    /// `true` if secrets that are replaced through this handle stay hidden from the caller.
    hides: bool,
}

#[derive(Default)]
struct Mapping {
    names: HashMap<(Kind, String), String>,
    secrets: HashMap<String, Secret>,
}

struct Secret {
    text: String,
    /// `false` for a secret that occurred only in outputs and in records of sinks.
    is_restorable: bool,
}

impl Pseudonyms {
    /// Creates an empty mapping.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a handle whose secrets are not restored, unless they also occur elsewhere.
    pub(super) fn hidden(&self) -> Self {
        Self { mapping: Arc::clone(&self.mapping), hides: true }
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mapping, &other.mapping)
    }

    /// Returns the pseudonym of a secret; derives it from the secret if there is none. `None` if there is no key, if
    /// the mapping is full, or if all pseudonyms of the secret stand for other secrets.
    pub(super) fn name(&self, kind: &Kind, secret: &str, key: Option<&HashKey>) -> Option<String> {
        // A pseudonym in quotes may look like a secret. A pseudonym of a pseudonym could not be restored.
        if is_pseudonym(secret) {
            return Some(secret.to_owned());
        }
        let mut mapping = self.mapping.lock();
        let of = (kind.clone(), secret.to_owned());
        let known = mapping.names.get(&of).cloned();
        let name = match known {
            Some(name) => name,
            None => mapping.add(of, &key?.hash(secret)?)?,
        };
        if let Some(secret) = mapping.secrets.get_mut(&name) {
            secret.is_restorable |= !self.hides;
        }
        Some(name)
    }

    /// Replaces pseudonyms in a text with their secrets; returns `None` if nothing was replaced.
    pub(super) fn restore(&self, text: &str) -> Option<String> {
        let mapping = self.mapping.lock();
        let mut out = String::new();
        let mut rest = text;
        while let Some(close) = rest.find(']') {
            let (head, tail) = rest.split_at(close + 1);
            // Search back only to the previous bracket, so that the search takes linear time.
            let name = head.rfind('[').map(|open| head.split_at(open));
            let known = name.and_then(|(before, name)| Some((before, mapping.secrets.get(name)?)));
            let (before, restored) = match known {
                Some((before, secret)) if secret.is_restorable => (before, secret.text.as_str()),
                // An unknown pseudonym stays as it is.
                _ => (head, ""),
            };
            out += before;
            out += restored;
            rest = tail;
        }
        let restored = out + rest;
        (restored != text).then_some(restored)
    }
}

/// Returns `true` for a text with the shape of a pseudonym, of this mapping or another.
fn is_pseudonym(text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inner.and_then(|inner| inner.rsplit_once('_')).is_some_and(|(kind, hash)| {
        let is_kind = !kind.contains(|c: char| c.is_lowercase() || c.is_whitespace());
        is_kind && LENGTHS.contains(&hash.len()) && hash.bytes().all(|letter| (b'a'..=b'p').contains(&letter))
    })
}

impl Mapping {
    /// Adds a secret under a part of its hash that stands for no other secret.
    fn add(&mut self, of: (Kind, String), hash: &str) -> Option<String> {
        if self.names.len() >= MOST {
            return None;
        }
        let (kind, secret) = &of;
        let kind = kind.as_str().to_uppercase();
        let names = LENGTHS.iter().map(|len| format!("[{kind}_{}]", hash.get(..*len).unwrap_or(hash)));
        let is_free = |name: &String| self.secrets.get(name).is_none_or(|other| other.text == *secret);
        let name = names.into_iter().find(is_free)?;
        self.secrets.entry(name.clone()).or_insert_with(|| Secret { text: secret.clone(), is_restorable: false });
        self.names.insert(of, name.clone());
        Some(name)
    }
}

impl fmt::Debug for Pseudonyms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pseudonyms").field("len", &self.mapping.lock().names.len()).finish_non_exhaustive()
    }
}

/// The mappings of a run and of the runs above it, each with the run that began to use it: an extension of the run.
#[derive(Clone, Default)]
struct InUse(Vec<(Uuid, Pseudonyms)>);

/// Returns the mapping that a run uses, and whether the run is the outermost run that uses it.
///
/// A `given` mapping is always used. Otherwise, the run uses the first mapping of the runs above: this is the one that
/// the same `Redact` uses there, because mappings are only appended.
pub(super) fn of_run(ctx: &RunContext, given: Option<&Pseudonyms>) -> (Pseudonyms, bool) {
    let in_use = ctx.extension::<InUse>().unwrap_or_default();
    let found = in_use.0.iter().find(|(_, used)| given.is_none_or(|given| given.is_same(used)));
    if let Some((run_id, used)) = found {
        return (used.clone(), *run_id == ctx.run_id());
    }
    let new = given.cloned().unwrap_or_default();
    let mut in_use = InUse::clone(&in_use);
    in_use.0.push((ctx.run_id(), new.clone()));
    ctx.set_extension(in_use);
    (new, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(names: &Pseudonyms, kind: &Kind, secret: &str) -> Option<String> {
        names.name(kind, secret, Some(&HashKey::new(b"key")))
    }

    #[test]
    fn pseudonyms_are_restored_anywhere_in_a_text_and_unknown_ones_are_left() {
        let names = Pseudonyms::new();
        let [mail, card] = [(Kind::Email, "a@b.org"), (Kind::Card, "4111")]
            .map(|(kind, secret)| name(&names, &kind, secret).expect("a pseudonym"));
        let other = name(&Pseudonyms::new(), &Kind::Email, "c@d.org").expect("a pseudonym");
        let hidden = name(&names.hidden(), &Kind::Email, "e@f.org").expect("a pseudonym");
        let rows = [
            (format!("to {mail}"), Some("to a@b.org".to_owned())),
            (format!("[{mail}] {card}["), Some("[a@b.org] 4111[".to_owned())),
            (format!("[[{mail}{other}]]"), Some(format!("[[a@b.org{other}]]"))),
            (format!("{other} [] ] [EMAIL_1]"), None),
            (hidden.clone(), None),
        ];
        for (text, restored) in rows {
            assert_eq!(names.restore(&text), restored, "{text}");
        }
        // The secret of a hidden pseudonym is restored once it occurs elsewhere.
        assert_eq!(name(&names, &Kind::Email, "e@f.org").as_ref(), Some(&hidden));
        assert_eq!(names.restore(&hidden).as_deref(), Some("e@f.org"));
    }

    #[test]
    fn secrets_whose_hashes_begin_alike_get_different_pseudonyms_or_none() {
        let mut mapping = Mapping::default();
        let mut add = |secret: &str, hash: &str| mapping.add((Kind::Email, secret.to_owned()), hash);
        let [a, b] = ["a", "b"].map(|letter| letter.repeat(64));
        let alike = format!("{}{b}", &a[..12]);
        assert_eq!(add("one", &a).as_deref(), Some("[EMAIL_aaaaaaaaaaaa]"));
        assert_eq!(add("two", &alike[..64]).as_deref(), Some("[EMAIL_aaaaaaaaaaaabbbbbbbbbbbb]"));
        assert_eq!(add("three", &a), Some(format!("[EMAIL_{}]", &a[..24])));
        assert_eq!(add("four", &a), Some(format!("[EMAIL_{a}]")));
        assert_eq!(add("five", &a), None);
        assert!(mapping.names.iter().all(|((_, secret), name)| mapping.secrets[name].text == *secret));
    }

    #[test]
    fn a_full_mapping_creates_no_pseudonym_and_still_returns_the_existing_ones() {
        let names = Pseudonyms::new();
        let first = name(&names, &Kind::Ip, "0");
        assert!((1..MOST).all(|n| name(&names, &Kind::Ip, &n.to_string()).is_some()));
        assert_eq!(name(&names, &Kind::Ip, "one more"), None);
        assert!(first.is_some());
        assert_eq!(name(&names, &Kind::Ip, "0"), first);
    }

    #[test]
    fn a_secret_keeps_its_pseudonym_in_a_mapping_also_under_another_key() {
        let names = Pseudonyms::new();
        let first = name(&names, &Kind::Email, "a@b.org");
        assert_eq!(names.name(&Kind::Email, "a@b.org", Some(&HashKey::new(b"other"))), first);
        assert_ne!(Pseudonyms::new().name(&Kind::Email, "a@b.org", Some(&HashKey::new(b"other"))), first);
        assert_eq!(name(&Pseudonyms::new(), &Kind::Email, "a@b.org"), first);
    }
}
