//! What values of a run pass through: its input middlewares, its layers, its output middlewares.
//!
//! It is made when the first of these is bound; a run without any pays for a look (E15 in spirit).

pub(crate) mod attempts;
pub(crate) mod erased;
pub(crate) mod list;

use std::any::{Any, type_name};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::chain::attempts::Attempts;
use crate::chain::erased::LayerEntry;
use crate::chain::list::{FreezableList, too_late};
use crate::layer::any_run::OpaqueAdapter;
use crate::layer::json_run::JsonAdapter;
use crate::layer::nesting::{LayerId, warning};
use crate::middleware::map_value::{InputMaps, Maps};
use crate::runnable::value::Data;
use crate::{LayerInfo, Place, Result, RunContext};

/// A chain whose types are not known.
pub(crate) trait AnyChain: Any + Send + Sync {
    /// The [`InputMaps`], to add to them, for what does not know the output.
    fn inputs(&self) -> Result<&dyn Any>;
    /// The [`Maps`] of outputs, to add to them, for what does not know the input.
    fn outputs(&self) -> Result<&dyn Any>;
    fn existing_inputs(&self) -> Option<&dyn Any>;
    /// Keeps a copy of the caller's input if something that was bound needs it.
    fn keep_input(&self, input: &dyn Any);
    /// Adds layers that take and give JSON.
    fn add_json(&self, layers: &[LayerEntry<Value, Value>]) -> Result<()>;
    /// Adds layers that look at no value.
    fn add_opaque(&self, layers: &[LayerEntry<(), ()>]) -> Result<()>;
    fn attempts(&self) -> &Attempts;
    /// Drops what values pass.
    fn release(&self);
    /// Whether an attempt may start again because of what it has put out.
    fn may_retry_output(&self) -> bool;
    fn types(&self) -> [&'static str; 2];
    fn has_layer(&self, layer: LayerId) -> bool;
    /// What its layers warn of in that run.
    fn warnings(&self, run: &RunContext) -> Vec<String>;
    fn describe(&self) -> Vec<LayerInfo>;
}

/// The chain of a run from `I` to `O`.
pub(crate) struct Chain<I, O> {
    pub(crate) layers: FreezableList<LayerEntry<I, O>>,
    /// Most chains have layers only: none, for good, once the work has begun without.
    value_maps: OnceLock<Option<Box<ValueMaps<I, O>>>>,
    pub(crate) attempts: Attempts,
}

/// The functions that change inputs and outputs.
pub(crate) struct ValueMaps<I, O> {
    pub(crate) inputs: InputMaps<I>,
    pub(crate) outputs: Maps<O>,
}

impl<I, O> Default for ValueMaps<I, O> {
    fn default() -> Self {
        Self { inputs: InputMaps::default(), outputs: Maps::default() }
    }
}

impl<I, O> Default for Chain<I, O> {
    fn default() -> Self {
        Self { layers: FreezableList::default(), value_maps: OnceLock::new(), attempts: Attempts::default() }
    }
}

impl<I, O> Chain<I, O> {
    /// Where values pass, to add to it.
    fn value_maps(&self) -> Result<&ValueMaps<I, O>> {
        self.value_maps.get_or_init(|| Some(Box::default())).as_deref().ok_or_else(too_late)
    }

    fn existing_value_maps(&self) -> Option<&ValueMaps<I, O>> {
        self.value_maps.get()?.as_deref()
    }

    /// Where values pass, if anywhere: if not, that stays so. No more are taken, outputs neither.
    pub(crate) fn freeze_value_maps(&self) -> Option<&ValueMaps<I, O>> {
        let maps = self.value_maps.get_or_init(|| None).as_deref()?;
        maps.inputs.maps.freeze();
        maps.outputs.freeze();
        Some(maps)
    }
}

/// Puts layers in their order (M2).
pub(crate) fn by_phase<I, O>(layers: &mut [LayerEntry<I, O>]) {
    layers.sort_by_key(|entry| (entry.phase as u8, entry.is_innermost));
}

impl<I: Data, O: Data> AnyChain for Chain<I, O> {
    fn inputs(&self) -> Result<&dyn Any> {
        Ok(&self.value_maps()?.inputs)
    }

    fn outputs(&self) -> Result<&dyn Any> {
        Ok(&self.value_maps()?.outputs)
    }

    fn existing_inputs(&self) -> Option<&dyn Any> {
        Some(&self.existing_value_maps()?.inputs)
    }

    fn keep_input(&self, input: &dyn Any) {
        if let Some(Some(maps)) = self.value_maps.get()
            && let Some(input) = input.downcast_ref()
        {
            maps.inputs.keep_original(input);
        }
    }

    fn add_json(&self, layers: &[LayerEntry<Value, Value>]) -> Result<()> {
        self.layers.extend(layers.iter().cloned().map(JsonAdapter::entry))
    }

    fn add_opaque(&self, layers: &[LayerEntry<(), ()>]) -> Result<()> {
        self.layers.extend(layers.iter().cloned().map(OpaqueAdapter::entry))
    }

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    fn release(&self) {
        self.layers.release();
        if let Some(maps) = self.freeze_value_maps() {
            maps.inputs.maps.release();
            maps.outputs.release();
        }
    }

    fn may_retry_output(&self) -> bool {
        self.attempts.may_go_on() && self.existing_value_maps().is_some_and(|maps| !maps.outputs.is_empty())
    }

    fn types(&self) -> [&'static str; 2] {
        [type_name::<I>(), type_name::<O>()]
    }

    fn has_layer(&self, layer: LayerId) -> bool {
        self.layers.any(|entry| entry.layer.description().id() == layer)
    }

    fn warnings(&self, run: &RunContext) -> Vec<String> {
        let layers = self.layers.snapshot();
        let named = |entry: &LayerEntry<I, O>| {
            let layer = entry.layer.description();
            Some(format!("{}: {}", layer.name(), warning(layer, run)?))
        };
        layers.iter().filter_map(named).collect()
    }

    fn describe(&self) -> Vec<LayerInfo> {
        let mut layers = self.layers.snapshot();
        by_phase(&mut layers);
        let layers = layers.iter().map(LayerInfo::of);
        let maps = self.existing_value_maps();
        let inputs = maps.into_iter().flat_map(|maps| maps.inputs.maps.describe(Place::Input));
        let outputs = maps.into_iter().flat_map(|maps| maps.outputs.describe(Place::Output));
        inputs.chain(layers).chain(outputs).collect()
    }
}

impl RunContext {
    /// Returns the chain of the run, to add to it; makes it if there is none.
    ///
    /// # Errors
    ///
    /// If there is none, and the work has begun: what is added would be passed by.
    pub(crate) fn chain(&self) -> Result<&dyn AnyChain> {
        let run = self.shared();
        let chain = run.bindings.chain.get_or_init(run.bindings.make_chain);
        // Decided after the chain is there, against the work that begins meanwhile: either the work passes the chain, or nobody adds to it.
        if run.node.state.add_chain() { Ok(&**chain) } else { Err(too_late()) }
    }

    /// Returns the chain that values of the run pass, if there is one.
    pub(crate) fn existing_chain(&self) -> Option<&dyn AnyChain> {
        let run = self.shared();
        if run.node.state.has_chain() { run.bindings.chain.get().map(|chain| &**chain) } else { None }
    }

    /// How often the attempt that is under way was started again: 0 for the first (M7).
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.existing_chain().map_or(0, |chain| chain.attempts().number())
    }

    /// Why the attempts before this one were given up, oldest first (M7).
    #[must_use]
    pub fn feedback(&self) -> Vec<crate::RetryRequest> {
        self.existing_chain().map(|chain| chain.attempts().feedback()).unwrap_or_default()
    }

    /// Returns the input as the caller gave it, before any listener of `start` changed it. It is kept if a
    /// [`map_input`](crate::map_input) was bound to the run before its `start`.
    #[must_use]
    pub fn original<I: 'static>(&self) -> Option<Arc<I>> {
        self.existing_chain()?.existing_inputs()?.downcast_ref::<InputMaps<I>>()?.original()
    }
}
