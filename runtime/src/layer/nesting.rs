//! Warnings about layers that are bound both to a run and to a run above it, probably by mistake (M4).
//!
//! These warnings need no list of bindings: [`Nesting::above`] looks for the layer in the chains of the runs above.

use std::fmt;
use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::RunContext;
use crate::chain::erased::LayerDescription;
use crate::run::panic::isolated;

/// The runs that a layer is bound to: a run, and any runs above it. Passed to
/// [`Layer::nesting_warning`](crate::Layer::nesting_warning).
pub struct Nesting<'a> {
    run: &'a RunContext,
    layer: LayerId,
}

impl<'a> Nesting<'a> {
    /// Returns the run that the layer is bound to.
    #[must_use]
    pub const fn run(&self) -> &'a RunContext {
        self.run
    }

    /// Returns the runs above this run that have the same layer, nearest first. Clones of a [`Stack`](crate::Stack)
    /// share their layers, so a layer of a clone is the same layer.
    pub fn above(&self) -> impl Iterator<Item = &'a RunContext> + use<'a> {
        let layer = self.layer;
        let has_it = move |run: &&RunContext| run.existing_chain().is_some_and(|chain| chain.has_layer(layer));
        successors(self.run.parent(), |run| run.parent()).filter(has_it)
    }
}

impl fmt::Debug for Nesting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nesting").field("run", self.run).finish_non_exhaustive()
    }
}

/// The identity of a layer: its address, which stays the same when the layer is adapted to other types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerId(usize);

impl LayerId {
    pub(crate) fn of<T>(layer: &T) -> Self {
        Self(std::ptr::from_ref(layer).addr())
    }
}

/// A flag that is set once a layer has logged a warning, so that the layer does not warn in each run.
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

/// Returns the warning of a layer that is bound to a run. A run without a parent has no warnings.
pub(crate) fn warning(layer: &dyn LayerDescription, run: &RunContext) -> Option<String> {
    run.parent()?;
    // `nesting_warning` is user code: a panic in it is logged, and must not fail the run.
    let mut warning = None;
    isolated(|| warning = layer.warning(&Nesting { run, layer: layer.id() }));
    warning
}

/// Logs the warning of a layer that was just bound to a run, unless the layer has logged a warning before.
pub(crate) fn warn_once(layer: &dyn LayerDescription, run: &RunContext) {
    if layer.warned().has_warned() {
        return;
    }
    if let Some(warning) = warning(layer, run)
        && layer.warned().is_first()
    {
        // A subscriber of `tracing` is user code, and may panic.
        isolated(|| tracing::warn!(layer = layer.name(), run = run.name(), "`{}`: {warning}", layer.name()));
    }
}
