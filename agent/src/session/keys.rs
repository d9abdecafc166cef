//! The keys of what a session's runs do: `<session>/<turn>` for a model call, and
//! `<session>/<turn>/<position>/<tool>-<hash of the arguments>` for a tool call.

use std::sync::{Arc, OnceLock};

use emitree_emitter::new_id;
use emitree_runtime::{Answers, Error, Result, RunContext, RunKey};
use futures_core::future::BoxFuture;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::session::entry::SessionEntry;
use crate::session::turn_calls::TurnCalls;
use crate::tool::started::WorkStarted;
use crate::{Arguments, ToolCall};

/// The key of a session, which is made when it is first needed, and the entry that keeps the session. Clones of the
/// session share both.
#[derive(Debug, Default)]
pub(crate) struct SessionKey {
    key: OnceLock<RunKey>,
    entry: OnceLock<Arc<SessionEntry>>,
}

impl SessionKey {
    pub(crate) fn new(key: RunKey) -> Arc<Self> {
        Arc::new(Self { key: key.into(), entry: OnceLock::new() })
    }

    /// Returns the entry of the session, or of the session above it. Returns `None` if no store keeps the session.
    pub(crate) fn entry(&self) -> Option<&Arc<SessionEntry>> {
        self.entry.get()
    }

    /// Sets the entry, unless there is one.
    pub(super) fn set_entry(&self, entry: &Arc<SessionEntry>) {
        self.entry.get_or_init(|| Arc::clone(entry));
    }

    pub(crate) fn get(&self) -> &RunKey {
        let random = || RunKey::new(&new_id().to_string());
        self.key.get_or_init(|| random().expect("a UUID can be a key"))
    }

    /// Returns the key of a call of a turn.
    pub(super) fn call(&self, turn: u64, position: usize, call: &ToolCall) -> RunKey {
        let place = below(&self.turn(turn), &position.to_string());
        below(&place, &format!("{}-{}", call.name, hash(&call.arguments)))
    }

    /// Returns the key of a turn, for its model call.
    pub(crate) fn turn(&self, number: u64) -> RunKey {
        below(self.get(), &number.to_string())
    }
}

/// A tool call and its place in its turn: an extension of the tool's run alone.
#[derive(Clone, Debug)]
pub(crate) struct CallInTurn {
    pub(crate) calls: Arc<TurnCalls>,
    pub(crate) position: usize,
    pub(crate) started: WorkStarted,
    /// The questions that have to be asked again before the function is called.
    pub(crate) required: Option<Arc<Required>>,
}

impl CallInTurn {
    /// Returns the key of the call, as hooks have changed it, or as the model wrote it.
    pub(crate) fn key(&self, changed: Option<&ToolCall>) -> RunKey {
        self.calls.key(self.position, changed)
    }

    /// Returns `true` if a store keeps the session.
    pub(crate) fn is_stored(&self) -> bool {
        self.calls.session.entry().is_some()
    }

    /// Stores that the call begins, before its function is called, or before a layer is entered that may do the work
    /// itself. Returns `None` if this is stored already, or if no store keeps the session (A25).
    ///
    /// The error ends the run of the agent, and the call stays open.
    pub(crate) fn store_begin<'a>(&'a self, tool: &'a RunContext) -> Option<BoxFuture<'a, Result<()>>> {
        let entry = self.calls.session.entry()?;
        if !self.calls.announce(self.position) {
            return None;
        }
        Some(Box::pin(async move {
            match entry.commit_begin().await {
                Ok(fence) => fence.into_iter().for_each(|fence| tool.set_fence(fence)),
                Err(error) => {
                    self.calls.take_back(self.position);
                    return Err(error);
                }
            }
            Ok(())
        }))
    }

    /// Returns an error if a question about the call, which an earlier run had asked, was not asked again.
    pub(crate) fn check_asked(&self) -> Result<()> {
        let Some(required) = &self.required else { return Ok(()) };
        let unasked = required.questions.iter().find(|(id, ..)| !required.answers.was_asked(id));
        let Some((_, kind, by)) = unasked else { return Ok(()) };
        Err(Error::new(format!(
            "not executed: `{by}` had asked the question `{kind}` about this call, and nobody has asked it again"
        )))
    }
}

impl TurnCalls {
    fn asked(&self, position: usize) -> Option<&ToolCall> {
        self.response.tool_calls().nth(position)
    }

    /// Returns a copy of a call if hooks have changed it.
    pub(crate) fn changed(&self, position: usize, call: &ToolCall) -> Option<ToolCall> {
        let is_changed = |asked: &ToolCall| asked.name != call.name || asked.arguments != call.arguments;
        self.asked(position).is_none_or(is_changed).then(|| call.clone())
    }

    /// Returns the key of a call, as hooks have changed it, or as the model wrote it.
    pub(crate) fn key(&self, position: usize, changed: Option<&ToolCall>) -> RunKey {
        match changed.or_else(|| self.asked(position)) {
            Some(call) => self.session.call(self.number, position, call),
            None => self.session.turn(self.number),
        }
    }
}

/// The questions that an earlier run had asked about a call.
#[derive(Debug)]
pub(crate) struct Required {
    pub(crate) answers: Answers,
    /// Ids, kinds, and who had asked.
    pub(crate) questions: Vec<(String, String, String)>,
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
