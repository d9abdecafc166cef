//! What tells runs apart: the instance, or a scope; the input; what the context says.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use emitree_emitter::json::to_value_noting;
use emitree_emitter::{Context, Emitter};
use serde::Serialize;

use super::CacheOptions;

/// Stands between parts of a text: in none of them it can stand itself.
const SEPARATOR: char = '\0';

/// It holds its instance's emitter, so that no other gets that identity.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct CacheKey {
    instance: Option<Emitter>,
    text: Arc<str>,
}

impl CacheKey {
    /// What events call it.
    pub(super) fn to_hex(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    pub(super) fn len(&self) -> u64 {
        self.text.len() as u64
    }
}

/// Whose run it is, and what its context says.
pub(super) struct KeyParts<'a> {
    pub(super) instance: &'a Emitter,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) context: &'a dyn Fn() -> Context,
}

impl<T> CacheOptions<T> {
    /// The key of a run; none if JSON is not all of its input.
    pub(super) fn key(&self, input: &impl Serialize, parts: &KeyParts<'_>) -> Option<CacheKey> {
        let (instance, mut text) = match &self.scope {
            None => (Some(parts.instance.clone()), format!("{}{SEPARATOR}{}", parts.kind, parts.name)),
            Some(scope) => (None, scope.clone()),
        };
        push_json(&mut text, input)?;
        if !self.context_keys.is_empty() {
            // The keys are the same for all: only their values are written, and nothing where there is none.
            let context = (parts.context)();
            for key in &self.context_keys {
                match context.get(key) {
                    Some(value) => push_json(&mut text, value)?,
                    None => text.push(SEPARATOR),
                }
            }
        }
        Some(CacheKey { instance, text: text.into() })
    }
}

/// With sorted keys. A NaN is `null` in JSON, and what is too deep overflows: neither is part of a key.
fn push_json(text: &mut String, value: &impl Serialize) -> Option<()> {
    let (mut value, is_exact) = to_value_noting(value).ok()?;
    value.sort_all_objects();
    is_exact.then(|| write!(text, "{SEPARATOR}{value}").ok()).flatten()
}
