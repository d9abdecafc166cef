//! What values of a run pass through: its input middlewares, its layers, its output middlewares.
//!
//! It is made when the first of these is bound; a run without any pays for a look (E15 in spirit).

pub(crate) mod attempts;
pub(crate) mod erased;
pub(crate) mod list;

use std::any::{Any, type_name};
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;

use crate::chain::attempts::Attempts;
use crate::chain::erased::LayerEntry;
use crate::chain::list::{FreezableList, Frozen, SmallList, too_late};
use crate::layer::any_run::OpaqueAdapter;
use crate::layer::json_run::JsonAdapter;
use crate::layer::nesting::{LayerId, warning};
use crate::middleware::map_value::{InputMaps, Maps};
use crate::run::end_hooks::EndHooks;
use crate::run::exit_maps::ExitMaps;
use crate::run::panic::discard_all;
use crate::runnable::value::Data;
use crate::{LayerInfo, Middleware, Place, Result, RunContext};

/// The middlewares that a run began with: those of the runs above, the instance's, then its own.
pub(crate) type Bound = SmallList<Arc<dyn Middleware>>;

/// Where the chain of a run is, if it has one; what was bound to the run, what leaves it passes, and is called at its end.
pub(crate) struct Bindings {
    make: fn() -> Box<dyn AnyChain>,
    /// Most middlewares lay nothing that values pass: then there is none.
    chain: OnceLock<Box<dyn AnyChain>>,
    /// The work has begun without a chain: none is made any more.
    is_closed: AtomicBool,
    bound: Option<Mutex<Bound>>,
    end_hooks: EndHooks,
    exit_maps: ExitMaps,
}

impl Bindings {
    /// That of a run from `I` to `O`.
    pub(crate) fn of<I: Data, O: Data>(bound: Option<Bound>) -> Self {
        let make = || -> Box<dyn AnyChain> { Box::new(Chain::<I, O>::default()) };
        Self {
            make,
            chain: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            bound: bound.map(Mutex::new),
            end_hooks: EndHooks::default(),
            exit_maps: ExitMaps::default(),
        }
    }

    /// The work begins without a chain.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// None if values of the run pass nothing.
    pub(crate) fn existing(&self) -> Option<&dyn AnyChain> {
        self.chain.get().map(|chain| &**chain)
    }

    pub(crate) fn existing_of<I: 'static, O: 'static>(&self) -> Option<&Chain<I, O>> {
        self.existing()?.as_any().downcast_ref()
    }

    /// The middlewares that are bound.
    pub(crate) fn bound(&self) -> Bound {
        self.bound.as_ref().map(|bound| bound.lock().clone()).unwrap_or_default()
    }

    /// What is called at the end.
    pub(crate) const fn end_hooks(&self) -> &EndHooks {
        &self.end_hooks
    }

    /// What passes functions before it leaves the run.
    pub(crate) const fn exit_maps(&self) -> &ExitMaps {
        &self.exit_maps
    }

    /// The chain, which has kept an input, when nobody has the run any more.
    pub(crate) fn take_chain(&mut self) -> Option<Box<dyn AnyChain>> {
        self.chain.take()
    }

    /// Drops what was bound (R14).
    pub(crate) fn release(&self) {
        self.close();
        if let Some(chain) = self.existing() {
            chain.release();
        }
        if let Some(bound) = &self.bound {
            let bound = take(&mut *bound.lock());
            discard_all(bound);
        }
        self.end_hooks.release();
        self.exit_maps.release();
    }
}

/// A chain whose types are not known.
pub(crate) trait AnyChain: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    /// The [`InputMaps`], to add to them, for what does not know the output.
    fn inputs(&self) -> Result<&dyn Any>;
    /// The [`Maps`] of outputs, to add to them, for what does not know the input.
    fn outputs(&self) -> Result<&dyn Any>;
    fn existing_inputs(&self) -> Option<&dyn Any>;
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
    layers: FreezableList<LayerEntry<I, O>>,
    /// Most chains have layers only: none, for good, once the work has begun without.
    value_maps: OnceLock<Option<Box<ValueMaps<I, O>>>>,
    attempts: Attempts,
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
    pub(crate) const fn layers(&self) -> &FreezableList<LayerEntry<I, O>> {
        &self.layers
    }

    pub(crate) const fn attempts(&self) -> &Attempts {
        &self.attempts
    }

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

    /// The layers, by phase: no more are taken.
    pub(crate) fn freeze(&self) -> Frozen<LayerEntry<I, O>> {
        self.layers.freeze(by_phase)
    }
}

fn by_phase<I, O>(layers: &mut [LayerEntry<I, O>]) {
    layers.sort_by_key(LayerEntry::place);
}

impl<I: Data, O: Data> AnyChain for Chain<I, O> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn inputs(&self) -> Result<&dyn Any> {
        Ok(&self.value_maps()?.inputs)
    }

    fn outputs(&self) -> Result<&dyn Any> {
        Ok(&self.value_maps()?.outputs)
    }

    fn existing_inputs(&self) -> Option<&dyn Any> {
        Some(&self.existing_value_maps()?.inputs)
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
    /// The chain of the run, to add to it.
    ///
    /// # Errors
    ///
    /// If there is none, and the work has begun: what is added would be passed by.
    pub(crate) fn chain(&self) -> Result<&dyn AnyChain> {
        let bindings = self.bindings();
        match bindings.existing() {
            Some(chain) => Ok(chain),
            None if bindings.is_closed.load(Ordering::Relaxed) => Err(too_late()),
            None => {
                let chain = bindings.chain.get_or_init(bindings.make);
                self.bound();
                Ok(&**chain)
            }
        }
    }

    /// Keeps the caller's input, if something that was bound wants it.
    pub(crate) fn keep_input<I: 'static>(&self, input: &I) {
        let inputs =
            self.bindings().existing().and_then(|chain| chain.existing_inputs()?.downcast_ref::<InputMaps<I>>());
        inputs.into_iter().for_each(|inputs| inputs.keep_original(input));
    }

    /// How often the attempt that is under way was started again: 0 for the first (M7).
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.bindings().existing().map_or(0, |chain| chain.attempts().number())
    }

    /// Why the attempts before this one were given up, oldest first (M7).
    #[must_use]
    pub fn feedback(&self) -> Vec<crate::RetryRequest> {
        self.bindings().existing().map(|chain| chain.attempts().feedback()).unwrap_or_default()
    }

    /// Returns the input as the caller gave it, before any listener of `start` changed it. It is kept if a
    /// [`map_input`](crate::map_input) was bound to the run before its `start`.
    #[must_use]
    pub fn original<I: 'static>(&self) -> Option<Arc<I>> {
        self.bindings().existing()?.existing_inputs()?.downcast_ref::<InputMaps<I>>()?.original()
    }
}
