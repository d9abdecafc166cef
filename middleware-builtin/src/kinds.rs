//! Which kinds of runs something holds for.

use std::borrow::Cow;
use std::fmt;

use emitree_runtime::RunContext;

/// The kind of a run: that of its emitter's creator, as [`Runnable::kind`](emitree_runtime::Runnable::kind) has it.
pub(crate) fn kind_of(ctx: &RunContext) -> &str {
    ctx.emitter().creator().map_or("Run", |creator| creator.kind())
}

/// Some kinds; without any, all of them.
#[derive(Clone, Default)]
pub(crate) struct Kinds(Vec<Cow<'static, str>>);

impl Kinds {
    pub(crate) fn add(&mut self, kind: impl Into<Cow<'static, str>>) {
        self.0.push(kind.into());
    }

    pub(crate) fn has(&self, kind: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|known| known == kind)
    }
}

/// Such as ` of Tool, Model`; nothing for all of them.
impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " of {}", self.0.join(", ")) }
    }
}
