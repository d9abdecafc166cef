//! Which calls share their failures.

use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::RunContext;

use crate::shared::panic::caught;

/// How calls are told apart.
#[derive(Clone, Default)]
pub(super) enum KeyBy {
    #[default]
    One,
    Instance,
    Kind,
    Function(Arc<dyn Fn(&RunContext) -> String + Send + Sync>),
}

/// Calls of one key share their failures.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    One,
    /// By identity, whatever it is called.
    Instance(Emitter),
    Named(String),
}

impl KeyBy {
    /// That of a run, or what the user's function panicked with.
    pub(super) fn key(&self, ctx: &RunContext) -> Result<Key, String> {
        match self {
            Self::One => Ok(Key::One),
            Self::Instance => Ok(Key::Instance(ctx.instance().emitter().clone())),
            Self::Kind => Ok(Key::Named(ctx.kind().to_owned())),
            Self::Function(f) => caught(|| f(ctx)).map(Key::Named),
        }
    }

    pub(super) const fn as_str(&self) -> &'static str {
        match self {
            Self::One => "",
            Self::Instance => ", for each instance",
            Self::Kind => ", for each kind",
            Self::Function(_) => ", for each key",
        }
    }
}

impl Key {
    /// As it stands in events.
    pub(super) fn name(&self) -> Option<String> {
        match self {
            Self::One => None,
            Self::Named(name) => Some(name.clone()),
            Self::Instance(emitter) => Some(match emitter.creator() {
                Some(creator) => format!("{}[{}]", creator.kind(), creator.name()),
                None => emitter.namespace().to_owned(),
            }),
        }
    }
}
