//! The key of an entry: the scope (or the instance, kind and name), the input, and values of the context.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use emitree_emitter::json::to_value_noting;
use emitree_emitter::{Context, Emitter};
use serde::Serialize;

use super::{CacheOptions, CacheScope};

/// Separates the parts of a key's text. JSON text never contains it.
const SEPARATOR: char = '\0';

/// The key of an entry. Without a scope, it holds the instance's emitter, so that no other emitter gets the same
/// identity while the key exists.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct CacheKey {
    instance: Option<Emitter>,
    text: Arc<str>,
}

impl CacheKey {
    /// Returns the hash that events carry.
    pub(super) fn to_hex(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    pub(super) fn len(&self) -> u64 {
        self.text.len() as u64
    }
}

/// The parts of a key besides the input.
pub(super) struct KeyParts<'a> {
    pub(super) instance: &'a Emitter,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) context: &'a dyn Fn() -> Context,
}

impl<T> CacheOptions<T> {
    /// Returns the key of a request, or `None` if its input or a context value in the key cannot be represented exactly
    /// as JSON, or is nested too deeply.
    pub(super) fn key(&self, input: &impl Serialize, parts: &KeyParts<'_>) -> Option<CacheKey> {
        let by_name = || format!("{}{SEPARATOR}{}", parts.kind, parts.name);
        let (instance, mut text) = match &self.scope {
            CacheScope::Instance => (Some(parts.instance.clone()), by_name()),
            CacheScope::Name => (None, by_name()),
            CacheScope::Shared(scope) => (None, scope.clone()),
        };
        push_json(&mut text, input)?;
        if !self.context_keys.is_empty() {
            // Only values are written, because all runs of a cache have the same context keys in the same order. A
            // missing value leaves only its separator, and differs from every value because no JSON text is empty.
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

/// Appends a value as JSON with sorted keys. Returns `None` if JSON cannot represent it exactly: for example, a NaN
/// would become `null`. Also returns `None` for a value that is nested too deeply.
fn push_json(text: &mut String, value: &impl Serialize) -> Option<()> {
    let (mut value, is_exact) = to_value_noting(value).ok()?;
    value.sort_all_objects();
    is_exact.then(|| write!(text, "{SEPARATOR}{value}").ok()).flatten()
}
