//! The pseudonyms of a run and the runs below it, or of a sink.

use std::collections::HashMap;
use std::fmt;

use emitree_secrets::Kind;
use parking_lot::Mutex;
use uuid::Uuid;

/// The maximum number of pseudonyms in a vault. Further secrets are replaced as with `Strategy::Redact`.
pub(super) const MOST: usize = 10_000;

/// The pseudonyms of a run and the runs below it, or of a sink. The vault of a run is an extension of the run, and is
/// dropped with the run.
#[derive(Default)]
pub(super) struct Vault {
    /// The run that created the vault. Only the output of this run may be restored. `None` for the vault of a sink.
    owner: Option<Uuid>,
    state: Mutex<VaultState>,
}

#[derive(Default)]
struct VaultState {
    names: HashMap<(Kind, String), String>,
    /// The secrets by pseudonym, each with the number of earlier pseudonyms.
    secrets: HashMap<String, (usize, String)>,
    counts: HashMap<Kind, usize>,
}

impl Vault {
    pub(super) fn of_run(run_id: Uuid) -> Self {
        Self { owner: Some(run_id), state: Mutex::default() }
    }

    pub(super) fn is_owned_by(&self, run_id: Uuid) -> bool {
        self.owner == Some(run_id)
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().secrets.len()
    }

    /// Returns the pseudonym of a secret; creates it if needed. `None` if the secret has no pseudonym and the vault is
    /// full.
    pub(super) fn pseudonym(&self, kind: &Kind, secret: &str) -> Option<String> {
        let mut state = self.state.lock();
        let key = (kind.clone(), secret.to_owned());
        if let Some(name) = state.names.get(&key) {
            return Some(name.clone());
        }
        let so_far = state.secrets.len();
        if so_far >= MOST {
            return None;
        }
        let count = state.counts.entry(kind.clone()).or_default();
        *count += 1;
        let name = format!("[{}_{count}]", kind.as_str().to_uppercase());
        state.secrets.insert(name.clone(), (so_far, secret.to_owned()));
        state.names.insert(key, name.clone());
        Some(name)
    }

    /// Replaces pseudonyms in a text with their secrets; returns `None` if nothing was replaced. Only the oldest
    /// `first` pseudonyms of the vault are replaced.
    pub(super) fn restore(&self, text: &str, first: usize) -> Option<String> {
        let state = self.state.lock();
        let (mut out, mut rest) = (String::new(), text);
        while let Some(open) = rest.find('[') {
            let from = &rest[open..];
            let name = from.find(']').map(|close| &from[..=close]);
            // A bracket that begins no known pseudonym is copied, and the search continues after it.
            let secret = name.and_then(|name| Some((name, state.secrets.get(name).filter(|(nth, _)| *nth < first)?)));
            let (taken, given) = secret.map_or(("[", "["), |(name, (_, secret))| (name, secret.as_str()));
            out += &rest[..open];
            out += given;
            rest = &from[taken.len()..];
        }
        let restored = out + rest;
        (restored != text).then_some(restored)
    }
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pseudonyms_are_restored_anywhere_in_a_text() {
        let vault = Vault::default();
        vault.pseudonym(&Kind::Email, "a@b.org");
        vault.pseudonym(&Kind::Card, "4111");
        vault.pseudonym(&Kind::Email, "c@d.org");
        let rows = [
            ("to [EMAIL_1]", Some("to a@b.org")),
            ("[[EMAIL_1]] [CARD_1][", Some("[a@b.org] 4111[")),
            ("[EMAIL_3] [] ]", None),
            ("[EMAIL_2] is not of the first two", None),
        ];
        for (text, restored) in rows {
            assert_eq!(vault.restore(text, 2).as_deref(), restored, "{text}");
        }
    }

    #[test]
    fn a_full_vault_creates_no_pseudonym_and_still_returns_the_existing_ones() {
        let vault = Vault::default();
        assert!((0..MOST).all(|n| vault.pseudonym(&Kind::Ip, &n.to_string()).is_some()));
        assert_eq!(vault.pseudonym(&Kind::Ip, "one more"), None);
        assert_eq!(vault.pseudonym(&Kind::Ip, "0").as_deref(), Some("[IP_1]"));
    }
}
