//! What values of a run pass through: its input middlewares, its layers, its output middlewares.
//!
//! It is made when the first of these is bound; a run without any pays for a look (E15 in spirit).

use std::any::{Any, type_name};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;
use smallvec::SmallVec;

use crate::any_layer::Adapted;
use crate::at_end::Ends;
use crate::attempt::Attempts;
use crate::lifecycle::Data;
use crate::onion::Entry;
use crate::passing::Passes;
use crate::unseen::Blindfolded;
use crate::{Error, LayerInfo, Middleware, Place, Result, RunContext};

/// Where the chain of a run is, if it has one; what was bound to the run, and is called at its end.
pub(crate) struct Slot {
    make: fn() -> Box<dyn AnyChain>,
    made: OnceLock<Box<dyn AnyChain>>,
}

impl dyn AnyChain + '_ {
    pub(crate) fn attempts(&self) -> &Attempts {
        &self.common().attempts
    }
}

impl Slot {
    /// That of a run from `I` to `O`.
    pub(crate) const fn of<I: Data, O: Data>() -> Self {
        Self { make: || Box::new(Chain::<I, O>::default()), made: OnceLock::new() }
    }

    /// The chain, to add to it.
    pub(crate) fn chain(&self) -> &dyn AnyChain {
        let chain = self.made();
        chain.common().is_laid.store(true, Ordering::Release);
        chain
    }

    /// None if the run is one of other types.
    pub(crate) fn chain_of<I: 'static, O: 'static>(&self) -> Option<&Chain<I, O>> {
        self.chain().as_any().downcast_ref()
    }

    /// None if values of the run pass nothing.
    pub(crate) fn existing(&self) -> Option<&dyn AnyChain> {
        self.made.get().map(|chain| &**chain).filter(|chain| chain.common().is_laid.load(Ordering::Acquire))
    }

    pub(crate) fn existing_of<I: 'static, O: 'static>(&self) -> Option<&Chain<I, O>> {
        self.existing()?.as_any().downcast_ref()
    }

    /// Keeps what is known once all is bound: the caller's input, if somebody wants it, and what was bound.
    pub(crate) fn start<I: 'static>(&self, input: &I, middlewares: &[&Arc<dyn Middleware>]) {
        let inputs = self.existing().and_then(|chain| chain.inputs().downcast_ref::<Passes<I>>());
        inputs.into_iter().for_each(|inputs| inputs.keep(input));
        if !middlewares.is_empty() {
            // A run is bound to but once.
            self.made().common().bound.set(middlewares.iter().copied().cloned().collect()).ok();
        }
    }

    pub(crate) fn bound(&self) -> &[Arc<dyn Middleware>] {
        self.made.get().and_then(|chain| chain.common().bound.get()).map_or(&[], |bound| &**bound)
    }

    /// To be called at the end, in which more may come.
    pub(crate) fn ends(&self) -> &Ends {
        &self.made().common().ends
    }

    /// None if nobody has bound anything.
    #[inline]
    pub(crate) fn existing_ends(&self) -> Option<&Ends> {
        self.made.get().map(|chain| &chain.common().ends)
    }

    fn made(&self) -> &dyn AnyChain {
        &**self.made.get_or_init(self.make)
    }
}

/// What chains of all types have.
#[derive(Default)]
pub(crate) struct Common {
    attempts: Attempts,
    bound: OnceLock<Few<Arc<dyn Middleware>>>,
    ends: Ends,
    /// Whether there is anything that values pass.
    is_laid: AtomicBool,
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
    fn common(&self) -> &Common;
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
    common: Common,
}

impl<I, O> Default for Chain<I, O> {
    fn default() -> Self {
        let (inputs, outputs) = (Passes::new(Place::Input), Passes::new(Place::Output));
        Self { inputs, layers: Register::default(), outputs, common: Common::default() }
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
        &self.common.attempts
    }

    /// The layers, by phase: no more are taken.
    pub(crate) fn seal(&self) -> &[Entry<I, O>] {
        self.layers.seal(by_phase)
    }
}

fn by_phase<I, O>(layers: &mut [Entry<I, O>]) {
    layers.sort_by_key(|entry| entry.phase);
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
        self.layers.extend(layers.iter().cloned().map(Adapted::entry))
    }

    fn blindfold(&self, layers: &[Entry<(), ()>]) -> Result<()> {
        self.layers.extend(layers.iter().cloned().map(Blindfolded::entry))
    }

    fn common(&self) -> &Common {
        &self.common
    }

    fn may_retry_output(&self) -> bool {
        self.attempts().may_go_on() && !self.outputs.is_empty()
    }

    fn types(&self) -> [&'static str; 2] {
        [type_name::<I>(), type_name::<O>()]
    }

    fn describe(&self) -> Vec<LayerInfo> {
        let mut layers = self.layers.so_far();
        by_phase(&mut layers);
        let layers = layers.iter().map(LayerInfo::of);
        self.inputs.describe().into_iter().chain(layers).chain(self.outputs.describe()).collect()
    }
}

/// A list that takes no more once the work has begun: from then on it is read without a lock.
pub(crate) struct Register<T> {
    open: Mutex<List<T>>,
    sealed: OnceLock<Few<T>>,
}

/// Most runs have one or two of a sort.
type Few<T> = SmallVec<[T; 2]>;

/// What is to come, as long as more is taken.
enum List<T> {
    Taking(Few<T>),
    /// With nothing in it.
    Empty,
    Sealed,
}

impl<T> Default for Register<T> {
    fn default() -> Self {
        Self { open: Mutex::new(List::Taking(Few::new())), sealed: OnceLock::new() }
    }
}

impl<T> Register<T> {
    pub(crate) fn extend(&self, items: impl Iterator<Item = T>) -> Result<()> {
        match &mut *self.open.lock() {
            List::Taking(list) => list.extend(items),
            List::Empty | List::Sealed => {
                return Err(Error::new("the run's work has begun: bind layers and middlewares before"));
            }
        }
        Ok(())
    }

    /// What is in it, put in order once.
    pub(crate) fn seal(&self, arrange: impl FnOnce(&mut [T])) -> &[T] {
        let mut open = self.open.lock();
        match std::mem::replace(&mut *open, List::Sealed) {
            List::Taking(list) if list.is_empty() => *open = List::Empty,
            List::Empty => *open = List::Empty,
            List::Taking(mut list) => {
                arrange(&mut list);
                self.sealed.set(list).ok();
            }
            List::Sealed => (),
        }
        self.sealed.get().map_or(&[], |sealed| &**sealed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &*self.open.lock() {
            List::Taking(list) => list.is_empty(),
            List::Empty => true,
            List::Sealed => false,
        }
    }
}

impl<T: Clone> Register<T> {
    pub(crate) fn so_far(&self) -> Few<T> {
        match &*self.open.lock() {
            List::Taking(list) => list.clone(),
            List::Empty => Few::new(),
            List::Sealed => self.sealed.get().cloned().unwrap_or_default(),
        }
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
