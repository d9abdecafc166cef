//! Input and output middlewares of a run: functions that a value passes, in list order.

use std::fmt;
use std::sync::{Arc, OnceLock};

use futures_core::future::BoxFuture;
use serde_json::Value;

use crate::register::{Register, Sealed};
use crate::{Error, Instance, LayerInfo, Place, Result, RunContext};

/// A value of a run on its way past an input or output middleware.
pub struct Passing<'a, T> {
    pub(crate) value: &'a T,
    pub(crate) original: Arc<T>,
    pub(crate) by: &'a str,
    pub(crate) ctx: &'a RunContext,
}

impl<'a, T> Passing<'a, T> {
    /// The value, as the middleware before it left it.
    #[must_use]
    pub const fn value(&self) -> &'a T {
        self.value
    }

    /// The value before all: an input as the caller gave it, before any listener of `start`; an output as the
    /// outermost layer gave it, before any output middleware.
    #[must_use]
    pub fn original(&self) -> &T {
        &self.original
    }

    /// Which attempt it is, from 0.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.ctx.attempt()
    }

    /// What the runnable is called.
    #[must_use]
    pub fn operation(&self) -> &'a str {
        self.ctx.name()
    }

    /// Which runnable it is.
    #[must_use]
    pub fn instance(&self) -> Instance {
        self.ctx.instance()
    }

    /// The run.
    #[must_use]
    pub const fn ctx(&self) -> &'a RunContext {
        self.ctx
    }

    /// What this middleware is called in the run: the name that it was given, else `input#1`, `output#2` and so on.
    #[must_use]
    pub const fn name(&self) -> &'a str {
        self.by
    }

    /// An abort; its [details](Error::details) say `by` whom.
    #[must_use]
    pub fn abort(&self, reason: impl Into<String>) -> Error {
        Error::aborted(reason).context("by", self.by)
    }

    /// A denial by this middleware.
    #[must_use]
    pub fn deny(&self, reason: impl Into<String>) -> Error {
        Error::denied(self.by, reason)
    }

    /// A halt by this middleware.
    #[must_use]
    pub fn halt(&self, reason: impl Into<String>) -> Error {
        Error::halted(self.by, reason)
    }

    /// The request that the whole attempt starts again; its [details](Error::details) say `by` whom.
    #[must_use]
    pub fn retry(&self, reason: impl Into<String>, metadata: impl Into<Value>) -> Error {
        Error::retry_with(reason, metadata).context("by", self.by)
    }
}

impl<T> fmt::Debug for Passing<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passing").field("by", &self.by).field("attempt", &self.attempt()).finish_non_exhaustive()
    }
}

pub(crate) type PassFn<T> = dyn for<'a> Fn(Passing<'a, T>) -> BoxFuture<'a, Result<Option<T>>> + Send + Sync + 'static;

/// One function, and its name in the run.
pub(crate) struct Pass<T> {
    name: Option<Arc<str>>,
    f: Arc<PassFn<T>>,
}

impl<T> Pass<T> {
    pub(crate) fn new(name: Option<Arc<str>>, f: Arc<PassFn<T>>) -> Self {
        Self { name, f }
    }
}

impl<T> Clone for Pass<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), f: Arc::clone(&self.f) }
    }
}

/// The functions that inputs, or outputs, of a run pass.
pub(crate) struct Passes<T> {
    place: Place,
    list: Register<Pass<T>>,
    /// How a value is kept; none if nobody wants that.
    keep: OnceLock<fn(&T) -> T>,
    original: OnceLock<Arc<T>>,
}

impl<T> Passes<T> {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, list: Register::default(), keep: OnceLock::new(), original: OnceLock::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn push(&self, pass: Pass<T>) -> Result<()> {
        self.list.extend(std::iter::once(pass))
    }

    pub(crate) fn keep_by(&self, keep: fn(&T) -> T) {
        self.keep.get_or_init(|| keep);
    }

    /// Keeps the value that all the others are made of, if somebody wants it.
    pub(crate) fn keep(&self, value: &T) {
        if let Some(keep) = self.keep.get() {
            self.original.get_or_init(|| Arc::new(keep(value)));
        }
    }

    pub(crate) fn original(&self) -> Option<Arc<T>> {
        self.original.get().cloned()
    }

    pub(crate) fn seal(&self) -> Sealed<Pass<T>> {
        self.list.seal(|_| ())
    }

    pub(crate) fn release(&self) {
        self.list.release();
    }

    fn name_of(&self, i: usize, pass: &Pass<T>) -> Arc<str> {
        pass.name.clone().unwrap_or_else(|| format!("{}#{}", self.place.as_str(), i + 1).into())
    }

    pub(crate) fn describe(&self) -> Vec<LayerInfo> {
        let list = self.list.so_far();
        let named = list.iter().enumerate().map(|(i, pass)| self.name_of(i, pass));
        named.map(|name| LayerInfo::pass(self.place, Some(&*name))).collect()
    }
}

impl<T: Send + Sync> Passes<T> {
    /// Has an input pass; none if nobody changed it.
    pub(crate) async fn pass(&self, value: &T, ctx: &RunContext) -> Result<Option<T>> {
        let list = self.seal();
        let kept = || self.keep.get().map(|keep| Arc::new(keep(value)));
        match self.original().or_else(kept) {
            Some(original) if !list.is_empty() => self.in_order(&list, value, &original, ctx).await,
            _ => Ok(None),
        }
    }

    /// Has an output pass, which is the original of its own attempt.
    pub(crate) async fn pass_on(&self, value: &T, ctx: &RunContext) -> Result<Option<T>> {
        let list = self.seal();
        match self.keep.get() {
            Some(keep) if !list.is_empty() => self.in_order(&list, value, &Arc::new(keep(value)), ctx).await,
            _ => Ok(None),
        }
    }

    async fn in_order(&self, list: &[Pass<T>], value: &T, original: &Arc<T>, ctx: &RunContext) -> Result<Option<T>> {
        let mut changed = None;
        for (i, pass) in list.iter().enumerate() {
            let by = self.name_of(i, pass);
            let value = changed.as_ref().unwrap_or(value);
            let passing = Passing { value, original: Arc::clone(original), by: &by, ctx };
            if let Some(new) = (pass.f)(passing).await? {
                changed = Some(new);
            }
        }
        Ok(changed)
    }
}
