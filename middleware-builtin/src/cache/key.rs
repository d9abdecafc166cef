//! What tells runs apart: the instance, or a scope; the input; what the context says.

use std::cell::Cell;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use emitree_emitter::json::to_exact_writer;
use emitree_emitter::{Context, Emitter};
use moka::Equivalent;
use serde::Serialize;

use super::Settings;
use crate::canonical::Canon;

/// Stands between parts of a text: in none of them it can stand itself.
const END: u8 = 0;

/// Whose answers are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Instance,
    Named(String),
}

impl Scope {
    pub(super) fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance => Ok(()),
            Self::Named(name) => write!(f, ", in {name}"),
        }
    }
}

/// A key that is kept. It holds its instance's emitter, so that no other gets that identity.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    instance: Option<Emitter>,
    text: Arc<[u8]>,
}

/// A key that is looked up.
pub(super) struct KeyRef<'a> {
    instance: Option<&'a Emitter>,
    text: &'a [u8],
}

impl Key {
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

impl KeyRef<'_> {
    pub(super) fn to_key(&self) -> Key {
        Key { instance: self.instance.cloned(), text: self.text.into() }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        KeyRef { instance: self.instance.as_ref(), text: &self.text }.hash(state);
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.instance.hash(state);
        self.text.hash(state);
    }
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.instance == key.instance.as_ref() && *self.text == *key.text
    }
}

/// What keys are written with; used again by the next one on this thread.
#[derive(Default)]
struct Scratch {
    text: Vec<u8>,
    canon: Canon,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Whose run it is, and what its context says.
pub(super) struct Asks<'a> {
    pub(super) instance: &'a Emitter,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) context: &'a dyn Fn() -> Context,
}

impl<T> Settings<T> {
    /// Does something with the key of a run; none if its input cannot be written.
    pub(super) fn with_key<R>(
        &self,
        input: &(impl Serialize + Send + Sync + 'static),
        asks: &Asks<'_>,
        f: impl FnOnce(&KeyRef<'_>) -> R,
    ) -> Option<R> {
        let mut scratch = SCRATCH.take().unwrap_or_default();
        let done = scratch.write(self, input, asks).ok().map(|instance| f(&KeyRef { instance, text: &scratch.text }));
        SCRATCH.set(Some(scratch));
        done
    }
}

impl Scratch {
    /// Writes the text of a key; gives the instance, if that is a part of it.
    fn write<'a, T>(
        &mut self,
        settings: &Settings<T>,
        input: &(impl Serialize + Send + Sync + 'static),
        asks: &Asks<'a>,
    ) -> serde_json::Result<Option<&'a Emitter>> {
        self.text.clear();
        let instance = match &settings.scope {
            Scope::Instance => {
                self.push(&[asks.kind.as_bytes(), &[END], asks.name.as_bytes()]);
                Some(asks.instance)
            }
            Scope::Named(name) => {
                self.push(&[name.as_bytes()]);
                None
            }
        };
        self.push(&[&[END]]);
        self.push_json(input)?;
        if !settings.context_keys.is_empty() {
            self.push_context(&settings.context_keys, &(asks.context)())?;
        }
        Ok(instance)
    }

    fn push(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.text.extend_from_slice(part));
    }

    /// In canonical form, if JSON is all of it.
    fn push_json(&mut self, value: &(impl Serialize + Send + Sync + 'static)) -> serde_json::Result<()> {
        let start = self.text.len();
        // A NaN is `null` in JSON, and what is too deep overflows: neither is a key.
        to_exact_writer(&mut self.text, value)?;
        self.canon.bring(&mut self.text, start, false);
        Ok(())
    }

    /// The keys are the same for all: only their values are written, and nothing where there is none.
    fn push_context(&mut self, keys: &[String], context: &Context) -> serde_json::Result<()> {
        keys.iter().try_for_each(|key| {
            self.push(&[&[END]]);
            context.get(key).map_or(Ok(()), |value| self.push_json(value))
        })
    }
}
