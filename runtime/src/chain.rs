//! What values of a run pass through: its input middlewares, its layers, its output middlewares.
//!
//! It is made when the first of these is bound; a run without any pays for a look (E15 in spirit).

use std::any::{Any, type_name};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;

use crate::any_layer::Adapted;
use crate::attempt::Attempts;
use crate::lifecycle::Data;
use crate::onion::Entry;
use crate::passing::Passes;
use crate::unseen::Blindfolded;
use crate::{Error, LayerInfo, Middleware, Place, Result, RunContext};

/// Where the chain of a run is, if it has one; and what was bound to the run.
pub(crate) struct Slot {
    make: fn() -> Box<dyn AnyChain>,
    made: OnceLock<Box<Made>>,
}

#[derive(Default)]
struct Made {
    chain: OnceLock<Box<dyn AnyChain>>,
    bound: OnceLock<Box<[Arc<dyn Middleware>]>>,
}

impl Slot {
    /// That of a run from `I` to `O`.
    pub(crate) const fn of<I: Data, O: Data>() -> Self {
        Self { make: || Box::new(Chain::<I, O>::default()), made: OnceLock::new() }
    }

    pub(crate) fn chain(&self) -> &dyn AnyChain {
        &**self.made().chain.get_or_init(self.make)
    }

    /// None if the run is one of other types.
    pub(crate) fn chain_of<I: 'static, O: 'static>(&self) -> Option<&Chain<I, O>> {
        self.chain().as_any().downcast_ref()
    }

    /// None if nobody has bound anything.
    pub(crate) fn existing(&self) -> Option<&dyn AnyChain> {
        self.made.get()?.chain.get().map(|chain| &**chain)
    }

    pub(crate) fn existing_of<I: 'static, O: 'static>(&self) -> Option<&Chain<I, O>> {
        self.existing()?.as_any().downcast_ref()
    }

    /// Keeps what is known once all is bound: the caller's input, if somebody wants it, and what was bound.
    pub(crate) fn start<'a, I: 'static>(&self, input: &I, middlewares: impl Iterator<Item = &'a Arc<dyn Middleware>>) {
        let inputs = self.existing().and_then(|chain| chain.inputs().downcast_ref::<Passes<I>>());
        inputs.into_iter().for_each(|inputs| inputs.keep(input));
        let bound: Box<[_]> = middlewares.cloned().collect();
        if !bound.is_empty() {
            // A run is bound to but once.
            self.made().bound.set(bound).ok();
        }
    }

    pub(crate) fn bound(&self) -> &[Arc<dyn Middleware>] {
        self.made.get().and_then(|made| made.bound.get()).map_or(&[], |bound| &**bound)
    }

    fn made(&self) -> &Made {
        self.made.get_or_init(Box::default)
    }
}

/// A chain whose types are not known.
pub(crate) trait AnyChain: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    /// The [`Passes`] of inputs, for what does not know the output.
    fn inputs(&self) -> &dyn Any;
    /// The [`Passes`] of outputs, for what does not know the input.
    fn outputs(&self) -> &dyn Any;
    /// Adds layers that take and give JSON.
    fn adapt(&self, layers: &[Entry<Value, Value>]) -> Result<()>;
    /// Adds layers that look at no value.
    fn blindfold(&self, layers: &[Entry<(), ()>]) -> Result<()>;
    fn attempts(&self) -> &Attempts;
    /// Whether an attempt may start again because of what it has put out.
    fn may_retry_output(&self) -> bool;
    fn types(&self) -> [&'static str; 2];
    fn describe(&self) -> Vec<LayerInfo>;
}

/// The chain of a run from `I` to `O`.
pub(crate) struct Chain<I, O> {
    inputs: Passes<I>,
    layers: Register<Entry<I, O>>,
    outputs: Passes<O>,
    attempts: Attempts,
}

impl<I, O> Default for Chain<I, O> {
    fn default() -> Self {
        let (inputs, outputs) = (Passes::new(Place::Input), Passes::new(Place::Output));
        Self { inputs, layers: Register::default(), outputs, attempts: Attempts::default() }
    }
}

impl<I, O> Chain<I, O> {
    pub(crate) const fn inputs(&self) -> &Passes<I> {
        &self.inputs
    }

    pub(crate) const fn layers(&self) -> &Register<Entry<I, O>> {
        &self.layers
    }

    pub(crate) const fn outputs(&self) -> &Passes<O> {
        &self.outputs
    }

    pub(crate) const fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    /// The layers, by phase.
    fn in_order(mut layers: Vec<Entry<I, O>>) -> Vec<Entry<I, O>> {
        layers.sort_by_key(|entry| entry.phase);
        layers
    }

    pub(crate) fn seal(&self) -> Vec<Entry<I, O>> {
        Self::in_order(self.layers.seal())
    }
}

impl<I: Data, O: Data> AnyChain for Chain<I, O> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn inputs(&self) -> &dyn Any {
        &self.inputs
    }

    fn outputs(&self) -> &dyn Any {
        &self.outputs
    }

    fn adapt(&self, layers: &[Entry<Value, Value>]) -> Result<()> {
        let adapted: Vec<_> = layers.iter().cloned().map(Adapted::entry).collect();
        self.layers.extend(&adapted)
    }

    fn blindfold(&self, layers: &[Entry<(), ()>]) -> Result<()> {
        let blindfolded: Vec<_> = layers.iter().cloned().map(Blindfolded::entry).collect();
        self.layers.extend(&blindfolded)
    }

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    fn may_retry_output(&self) -> bool {
        self.attempts.may_go_on() && !self.outputs.is_empty()
    }

    fn types(&self) -> [&'static str; 2] {
        [type_name::<I>(), type_name::<O>()]
    }

    fn describe(&self) -> Vec<LayerInfo> {
        let layers = Self::in_order(self.layers.so_far());
        let layers = layers.iter().map(LayerInfo::of);
        self.inputs.describe().into_iter().chain(layers).chain(self.outputs.describe()).collect()
    }
}

/// A list that takes no more once the work has begun.
pub(crate) struct Register<T>(Mutex<State<T>>);

struct State<T> {
    items: Vec<T>,
    is_sealed: bool,
}

impl<T> Default for Register<T> {
    fn default() -> Self {
        Self(Mutex::new(State { items: Vec::new(), is_sealed: false }))
    }
}

impl<T: Clone> Register<T> {
    pub(crate) fn extend(&self, items: &[T]) -> Result<()> {
        let mut state = self.0.lock();
        if state.is_sealed {
            return Err(Error::new("the run's work has begun: bind layers and middlewares before"));
        }
        state.items.extend_from_slice(items);
        Ok(())
    }

    pub(crate) fn so_far(&self) -> Vec<T> {
        self.0.lock().items.clone()
    }

    pub(crate) fn seal(&self) -> Vec<T> {
        let mut state = self.0.lock();
        state.is_sealed = true;
        state.items.clone()
    }
}

impl RunContext {
    /// How often the attempt that is under way was started again: 0 for the first (M7).
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.slot().existing().map_or(0, |chain| chain.attempts().number())
    }

    /// Why the attempts before this one were given up, oldest first (M7).
    #[must_use]
    pub fn feedback(&self) -> Vec<crate::Retry> {
        self.slot().existing().map(|chain| chain.attempts().feedback()).unwrap_or_default()
    }

    /// The input as the caller gave it, before any listener of `start` changed it. None unless something was bound to
    /// the run that has it kept: an [`input_fn`](crate::input_fn), or [`keep_input`](crate::keep_input).
    #[must_use]
    pub fn original_input<I: 'static>(&self) -> Option<Arc<I>> {
        self.slot().existing()?.inputs().downcast_ref::<Passes<I>>()?.original()
    }
}
