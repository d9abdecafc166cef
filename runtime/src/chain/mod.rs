//! The chain that a run's values pass through: input middlewares, layers, and output middlewares.
//!
//! The chain is made when the first layer or value middleware is bound, or when the number of retries is set. For a run
//! without a chain, the only cost is a check of its state.

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
use crate::middleware::map_value::{InputMaps, OutputMaps};
use crate::runnable::value::Data;
use crate::{LayerInfo, Position, Result, RunContext};

/// A chain with erased types.
pub(crate) trait AnyChain: Any + Send + Sync {
    /// Returns the [`InputMaps`], so that callers that do not know the output's type can add to them.
    fn inputs(&self) -> Result<&dyn Any>;
    /// Returns the [`OutputMaps`], so that callers that do not know the input's type can add to them.
    fn outputs(&self) -> Result<&dyn Any>;
    fn existing_inputs(&self) -> Option<&dyn Any>;
    fn existing_outputs(&self) -> Option<&dyn Any>;
    /// Keeps a copy of the caller's input if an input middleware was bound.
    fn keep_input(&self, input: &dyn Any);
    /// Adds layers that receive and return JSON.
    fn add_json(&self, layers: &[LayerEntry<Value, Value>]) -> Result<()>;
    /// Adds layers that see no values.
    fn add_opaque(&self, layers: &[LayerEntry<(), ()>]) -> Result<()>;
    fn attempts(&self) -> &Attempts;
    /// Drops the layers and value middlewares. After that, no layer or value middleware can be added.
    fn release(&self);
    /// Returns `true` if an output middleware may still request another attempt.
    fn may_retry_output(&self) -> bool;
    fn types(&self) -> [&'static str; 2];
    fn has_layer(&self, layer: LayerId) -> bool;
    /// Returns the nesting warnings of the layers in a run.
    fn warnings(&self, run: &RunContext) -> Vec<String>;
    fn describe(&self) -> Vec<LayerInfo>;
}

/// The chain of a run from `I` to `O`.
pub(crate) struct Chain<I, O> {
    pub(crate) layers: FreezableList<LayerEntry<I, O>>,
    /// Unset until the first value middleware is bound, because most chains have layers only. Contains `None` if the
    /// work began, or the run ended, without value middlewares.
    value_maps: OnceLock<Option<Box<ValueMaps<I, O>>>>,
    pub(crate) attempts: Attempts,
}

/// The value middlewares of a run, which change inputs and outputs.
pub(crate) struct ValueMaps<I, O> {
    pub(crate) inputs: InputMaps<I>,
    pub(crate) outputs: OutputMaps<O>,
}

impl<I, O> Default for ValueMaps<I, O> {
    fn default() -> Self {
        Self { inputs: InputMaps::default(), outputs: OutputMaps::default() }
    }
}

impl<I, O> Default for Chain<I, O> {
    fn default() -> Self {
        Self { layers: FreezableList::default(), value_maps: OnceLock::new(), attempts: Attempts::default() }
    }
}

impl<I, O> Chain<I, O> {
    /// Returns the value middlewares, so that the caller can add to them.
    fn value_maps(&self) -> Result<&ValueMaps<I, O>> {
        self.value_maps.get_or_init(|| Some(Box::default())).as_deref().ok_or_else(too_late)
    }

    fn existing_value_maps(&self) -> Option<&ValueMaps<I, O>> {
        self.value_maps.get()?.as_deref()
    }

    /// Returns the value middlewares if there are any. No value middleware can be added from now on.
    pub(crate) fn freeze_value_maps(&self) -> Option<&ValueMaps<I, O>> {
        let maps = self.value_maps.get_or_init(|| None).as_deref()?;
        maps.inputs.maps.freeze();
        maps.outputs.maps.freeze();
        Some(maps)
    }
}

/// Sorts a short list, and keeps the order of equal items. The sort of the standard library is faster for long lists, but
/// its code is large, and each pair of input and output types would compile it again.
pub(crate) fn sort_few<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 && key(&items[at - 1]) > key(&items[at]) {
            items.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Sorts layers by phase, innermost layers last. The sort is stable: otherwise the order of binding is kept (M2).
pub(crate) fn by_phase<I, O>(layers: &mut [LayerEntry<I, O>]) {
    sort_few(layers, |entry| (entry.phase as u8, entry.is_innermost));
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

    fn existing_outputs(&self) -> Option<&dyn Any> {
        Some(&self.existing_value_maps()?.outputs)
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
        // Freeze first: from now on, another thread cannot bind value middlewares (R14).
        if let Some(maps) = self.freeze_value_maps() {
            maps.inputs.maps.release();
            maps.outputs.release();
        }
    }

    fn may_retry_output(&self) -> bool {
        self.attempts.may_go_on() && self.existing_value_maps().is_some_and(|maps| !maps.outputs.maps.is_empty())
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
        let inputs = maps.into_iter().flat_map(|maps| maps.inputs.maps.describe(Position::Input));
        let outputs = maps.into_iter().flat_map(|maps| maps.outputs.maps.describe(Position::Output));
        inputs.chain(layers).chain(outputs).collect()
    }
}

impl RunContext {
    /// Returns the chain of the run, so that the caller can add to it. Makes the chain if there is none.
    ///
    /// # Errors
    ///
    /// Returns an error if the run has no chain and no chain can be added any more, because the work has begun or the
    /// bindings were dropped.
    pub(crate) fn chain(&self) -> Result<&dyn AnyChain> {
        let run = self.shared();
        let chain = run.bindings.chain.get_or_init(run.bindings.make_chain);
        // Record the chain in the state only after it is made. If the work has begun on another thread meanwhile, it
        // does not pass through this chain: `add_chain` returns `false`, and no layer is added.
        if run.node.state.add_chain() { Ok(&**chain) } else { Err(too_late()) }
    }

    /// Returns the chain that values of the run pass through. A chain that was made after the work had begun is not
    /// returned.
    pub(crate) fn existing_chain(&self) -> Option<&dyn AnyChain> {
        let run = self.shared();
        if run.node.state.has_chain() { run.bindings.chain.get().map(|chain| &**chain) } else { None }
    }

    /// Returns the number of the current attempt, starting from 0. If a layer calls `next` again, the number stays the
    /// same.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.existing_chain().map_or(0, |chain| chain.attempts().number())
    }

    /// Returns the requests for a retry that ended the earlier attempts, oldest first.
    #[must_use]
    pub fn feedback(&self) -> Vec<crate::RetryRequest> {
        self.existing_chain().map(|chain| chain.attempts().feedback()).unwrap_or_default()
    }

    /// Returns the caller's input, as it was before listeners of `start` changed it. The run keeps this input only if a
    /// [`map_input`](crate::map_input) is bound to it before its `start`. Otherwise, or if the input is not an `I`,
    /// this method returns `None`.
    #[must_use]
    pub fn original<I: 'static>(&self) -> Option<Arc<I>> {
        self.existing_chain()?.existing_inputs()?.downcast_ref::<InputMaps<I>>()?.original()
    }

    /// Returns the output of the current attempt, as it was before functions that
    /// [change the output](crate::map_output) did so. The run keeps it only if one of these functions
    /// [asks for it](crate::MapValue::keeping_original). Otherwise, before these functions are called, or if the output
    /// is not an `O`, this method returns `None`.
    #[must_use]
    pub fn original_output<O: 'static>(&self) -> Option<Arc<O>> {
        self.existing_chain()?.existing_outputs()?.downcast_ref::<OutputMaps<O>>()?.original()
    }
}
