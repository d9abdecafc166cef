//! Layers that are laid around a run and around a run above it as well, which may be more than was meant (M4).
//!
//! Nothing is remembered for this: which runs above have the same layer is looked up in their chains, where a layer says that
//! it matters.

use std::fmt;
use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::RunContext;
use crate::chain::erased::LayerDescription;
use crate::run::panic::isolated;

/// Where a layer is bound: to a run, and possibly to runs above it. Passed to
/// [`Layer::nesting_warning`](crate::Layer::nesting_warning).
pub struct Nesting<'a> {
    run: &'a RunContext,
    layer: LayerId,
}

impl<'a> Nesting<'a> {
    /// The run that the layer is bound to.
    #[must_use]
    pub const fn run(&self) -> &'a RunContext {
        self.run
    }

    /// The runs above that this very layer is bound to as well, nearest first. Clones of a [`Stack`](crate::Stack) have the
    /// same layers.
    pub fn above(&self) -> impl Iterator<Item = &'a RunContext> + use<'a> {
        let layer = self.layer;
        let has_it = move |run: &&RunContext| run.bindings().existing().is_some_and(|chain| chain.has_layer(layer));
        successors(self.run.parent(), |run| run.parent()).filter(has_it)
    }
}

impl fmt::Debug for Nesting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nesting").field("run", self.run).finish_non_exhaustive()
    }
}

/// Which layer it is, however it is adapted: its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerId(usize);

impl LayerId {
    pub(crate) fn of<T>(layer: &T) -> Self {
        Self(std::ptr::from_ref(layer).addr())
    }
}

/// Whether a layer has warned already: it does so once, not in each run.
#[derive(Default)]
pub(crate) struct Warned(AtomicBool);

impl Warned {
    pub(crate) fn has_warned(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

/// What a layer warns of in that run.
pub(crate) fn warning(layer: &dyn LayerDescription, run: &RunContext) -> Option<String> {
    run.parent()?;
    let mut warning = None;
    isolated(|| warning = layer.warning(&Nesting { run, layer: layer.id() }));
    warning
}

/// Logs what a layer warns of that has just been bound to a run, if it has not warned before.
pub(crate) fn warn_once(layer: &dyn LayerDescription, run: &RunContext) {
    if layer.warned().has_warned() {
        return;
    }
    if let Some(warning) = warning(layer, run)
        && layer.warned().is_first()
    {
        // Who is told of a log may panic.
        isolated(|| tracing::warn!(layer = layer.name(), run = run.name(), "`{}`: {warning}", layer.name()));
    }
}
