//! The keys of what a session's runs do: `<session>/<turn>` for a model call, and
//! `<session>/<turn>/<position>/<tool>-<hash of the arguments>` for a tool call.

use std::sync::OnceLock;

use emitree_emitter::new_id;
use emitree_runtime::RunKey;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{Arguments, ToolCall};

/// The key of a session, which is made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct SessionKey(OnceLock<RunKey>);

impl SessionKey {
    pub(crate) fn new(key: RunKey) -> Self {
        Self(key.into())
    }

    pub(crate) fn get(&self) -> &RunKey {
        let random = || RunKey::new(&new_id().to_string());
        self.0.get_or_init(|| random().expect("a UUID can be a key"))
    }
}

/// Reads the id of a session, which is the key of a run for the session of a sub-agent.
pub(super) fn read_key(id: &str) -> Result<RunKey, String> {
    let (first, rest) = id.split_once('/').map_or((id, None), |(first, rest)| (first, Some(rest)));
    let mut parts = rest.iter().flat_map(|rest| rest.split('/'));
    RunKey::new(first)
        .and_then(|key| parts.try_fold(key, |key, part| key.child(part)))
        .map_err(|error| format!("at `id`: {error}"))
}

/// Returns the key of a turn, for its model call.
pub(crate) fn key_of_turn(session: &RunKey, turn: u64) -> RunKey {
    below(session, &turn.to_string())
}

/// Returns the key of a call of a turn.
pub(crate) fn key_of_call(session: &RunKey, turn: u64, position: usize, call: &ToolCall) -> RunKey {
    let place = below(&key_of_turn(session, turn), &position.to_string());
    below(&place, &format!("{}-{}", call.name, hash(&call.arguments)))
}

/// A name that a key cannot contain, such as a hallucinated tool's, is left out: its call is not executed.
fn below(key: &RunKey, id: &str) -> RunKey {
    key.child(id).unwrap_or_else(|_| key.clone())
}

/// Returns the first 16 hex digits of the SHA-256 of arguments, whose keys are sorted: without sorting, the hash would
/// depend on `serde_json`'s feature `preserve_order`, which any crate in a build may enable.
fn hash(arguments: &Arguments) -> String {
    let mut arguments = match arguments {
        Arguments::Json(arguments) => arguments.clone(),
        Arguments::Malformed(text) => Value::from(text.as_str()),
    };
    arguments.sort_all_objects();
    Sha256::digest(arguments.to_string()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_hash_of_arguments_is_the_same_in_every_process() {
        // printf '{"all":true,"path":"/tmp"}' | sha256sum
        assert_eq!(hash(&json!({"path": "/tmp", "all": true}).into()), "908d5adc3d5a8f8f");
    }
}
