//! Access to lifecycle events through JSON, for listeners that do not know the input and output types (R5).

use std::any::Any;
use std::marker::PhantomData;
use std::time::Duration;

use emitree_emitter::json::to_value;
use emitree_emitter::rt::Facet;
use emitree_emitter::{AnyEvent, EventMeta};
use serde_json::Value;

use crate::lifecycle::{Failure, Finish, Start, Success};
use crate::runnable::value::{RunTypes, fit};
use crate::{Data, Result, Runnable, Stage};

/// A lifecycle event of any run, for a listener that may change it.
///
/// ```
/// use emitree_emitter::{AnyEvent, Options};
/// use emitree_runtime::{LifecycleMut, RunContext, Runnable, runnable_fn};
///
/// /// Answers this run and every run below with `null`, so that no work is done.
/// fn dry_run(ctx: &RunContext) -> emitree_runtime::Result<()> {
///     ctx.emitter().with(Options::new().nested(true)).on("*.*", |event: &mut dyn AnyEvent, meta| {
///         if let Some(LifecycleMut::Start(start)) = LifecycleMut::of(event, meta) {
///             start.set_output_json(serde_json::Value::Null)?;
///         }
///         Ok(())
///     })?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let send = runnable_fn("send", |to: String, _: RunContext| async move { panic!("a letter went to {to}") });
/// let sent: () = send.run("Ada".to_owned()).middleware(dry_run).await?;
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub enum LifecycleMut<'a> {
    /// A run begins.
    Start(&'a mut dyn AnyStart),
    /// A run has an output.
    Success(&'a mut dyn AnySuccess),
    /// A run ends with an error.
    Error(&'a Failure),
    /// A run has ended.
    Finish(&'a dyn AnyFinish),
}

impl<'a> LifecycleMut<'a> {
    /// Returns the event as a lifecycle event, or `None` for any other event.
    pub fn of(event: &'a mut dyn AnyEvent, meta: &EventMeta<'_>) -> Option<Self> {
        (meta.facet::<ErasedAccess>()?.change)(event)
    }
}

/// A lifecycle event of any run, for an observer.
#[non_exhaustive]
pub enum LifecycleRef<'a> {
    /// A run begins.
    Start(&'a dyn AnyStart),
    /// A run has an output.
    Success(&'a dyn AnySuccess),
    /// A run ends with an error.
    Error(&'a Failure),
    /// A run has ended.
    Finish(&'a dyn AnyFinish),
}

impl<'a> LifecycleRef<'a> {
    /// Returns the event as a lifecycle event, or `None` for any other event.
    pub fn of(event: &'a dyn AnyEvent, meta: &EventMeta<'_>) -> Option<Self> {
        (meta.facet::<ErasedAccess>()?.look)(event)
    }
}

macro_rules! debug_by_name {
    ($($type:ident),*) => {$(
        impl std::fmt::Debug for $type<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    Self::Start(_) => "Start",
                    Self::Success(_) => "Success",
                    Self::Error(_) => "Error",
                    Self::Finish(_) => "Finish",
                })
            }
        }
    )*};
}
debug_by_name!(LifecycleMut, LifecycleRef);

/// A [`Start`] with any input and output types, read and changed through JSON.
pub trait AnyStart: Send + Sync {
    /// Returns the input as JSON. An input that cannot be serialized, or is nested too deeply, becomes a string with the
    /// reason.
    fn input_json(&self) -> Value;
    /// Returns the input as JSON, or an error if it cannot be converted.
    ///
    /// # Errors
    ///
    /// Returns an error if the input cannot be serialized, or is nested deeper than
    /// [`MAX_DEPTH`](emitree_emitter::json::MAX_DEPTH).
    fn try_input_json(&self) -> Result<Value>;
    /// Replaces the input.
    ///
    /// # Errors
    ///
    /// Returns an error if the value does not fit the input type; the error names the place in the JSON that does not
    /// fit. The input then stays unchanged.
    fn set_input_json(&mut self, input: Value) -> Result<()>;
    /// Returns the output as JSON, if a listener has set one.
    fn output_json(&self) -> Option<Value>;
    /// Returns the output as a `&mut Option<O>` behind [`Any`], where `O` is the run's output type. Use it in a
    /// listener that knows the output type but not the input type.
    ///
    /// ```
    /// use emitree_emitter::AnyEvent;
    /// use emitree_runtime::{LifecycleMut, RunContext, Runnable, Stage, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// let run = double.run(21).on(Stage::Start, |event: &mut dyn AnyEvent, meta| {
    ///     if let Some(LifecycleMut::Start(start)) = LifecycleMut::of(event, meta)
    ///         && let Some(output) = start.output_any().downcast_mut::<Option<u32>>()
    ///     {
    ///         *output = Some(7);
    ///     }
    /// });
    /// assert_eq!(run.await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    fn output_any(&mut self) -> &mut dyn Any;
    /// Sets the output, so that the work is skipped.
    ///
    /// # Errors
    ///
    /// Returns an error if the value does not fit the output type; the error names the place in the JSON that does not
    /// fit. The output then stays unchanged.
    fn set_output_json(&mut self, output: Value) -> Result<()>;
}

/// A [`Success`] with any input and output types, read and changed through JSON.
pub trait AnySuccess: Send + Sync {
    /// Returns the input as JSON.
    fn input_json(&self) -> Value;
    /// Returns the output as JSON. An output that cannot be serialized, or is nested too deeply, becomes a string with
    /// the reason.
    fn output_json(&self) -> Value;
    /// Returns the output as JSON, or an error if it cannot be converted.
    ///
    /// # Errors
    ///
    /// Returns an error if the output cannot be serialized, or is nested deeper than
    /// [`MAX_DEPTH`](emitree_emitter::json::MAX_DEPTH).
    fn try_output_json(&self) -> Result<Value>;
    /// Replaces the output.
    ///
    /// # Errors
    ///
    /// Returns an error if the value does not fit the output type; the error names the place in the JSON that does not
    /// fit. The output then stays unchanged.
    fn set_output_json(&mut self, output: Value) -> Result<()>;
}

/// A [`Finish`] with any input and output types, read through JSON.
pub trait AnyFinish: Send + Sync {
    /// Returns the input as JSON, even if the work was skipped.
    fn input_json(&self) -> Value;
    /// Returns the [`Outcome`](crate::Outcome) as JSON.
    fn outcome_json(&self) -> Value;
    /// Returns the outcome without its data.
    fn status(&self) -> crate::Status;
    /// Returns the duration of the run.
    fn duration(&self) -> Duration;
}

impl<I: Data, O: Data> AnyStart for Start<I, O> {
    fn input_json(&self) -> Value {
        self.input.payload_to_json()
    }

    fn try_input_json(&self) -> Result<Value> {
        Ok(to_value(&self.input)?)
    }

    fn set_input_json(&mut self, input: Value) -> Result<()> {
        self.input = fit("input", &input)?;
        Ok(())
    }

    fn output_json(&self) -> Option<Value> {
        self.output.as_ref().map(AnyEvent::payload_to_json)
    }

    fn output_any(&mut self) -> &mut dyn Any {
        &mut self.output
    }

    fn set_output_json(&mut self, output: Value) -> Result<()> {
        self.output = Some(fit("output", &output)?);
        Ok(())
    }
}

impl<I: Data, O: Data> AnySuccess for Success<I, O> {
    fn input_json(&self) -> Value {
        AnyEvent::payload_to_json(&*self.input)
    }

    fn output_json(&self) -> Value {
        self.output.payload_to_json()
    }

    fn try_output_json(&self) -> Result<Value> {
        Ok(to_value(&self.output)?)
    }

    fn set_output_json(&mut self, output: Value) -> Result<()> {
        self.output = fit("output", &output)?;
        Ok(())
    }
}

impl<I: Data, O: Data> AnyFinish for Finish<I, O> {
    fn input_json(&self) -> Value {
        AnyEvent::payload_to_json(&*self.input)
    }

    fn outcome_json(&self) -> Value {
        self.outcome.payload_to_json()
    }

    fn status(&self) -> crate::Status {
        self.outcome.status()
    }

    fn duration(&self) -> Duration {
        Self::duration(self)
    }
}

/// The types that the runs of a runnable report: the types of the runnable itself, or of the runnable that it wraps.
#[derive(Clone, Copy)]
pub struct Face(pub(crate) &'static LifecycleFacets);

impl std::fmt::Debug for Face {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Face").field(&self.0.types()).finish()
    }
}

/// The facets of the four events of a run, and the names of the run's types.
pub(crate) struct LifecycleFacets {
    pub(crate) facets: [&'static Facet; 4],
    types: fn() -> RunTypes,
}

impl LifecycleFacets {
    pub(crate) const fn facet(&self, stage: Stage) -> &'static Facet {
        self.facets[stage as usize]
    }

    pub(crate) fn look<'a>(&self, stage: Stage, event: &'a dyn AnyEvent) -> Option<LifecycleRef<'a>> {
        (self.facet(stage).lens::<ErasedAccess>()?.look)(event)
    }

    pub(crate) fn types(&self) -> RunTypes {
        (self.types)()
    }
}

/// Functions that downcast a lifecycle payload and return it as a trait object, for listeners that do not know its type.
pub(crate) struct ErasedAccess {
    pub(crate) stage: Stage,
    change: fn(&mut dyn AnyEvent) -> Option<LifecycleMut<'_>>,
    look: fn(&dyn AnyEvent) -> Option<LifecycleRef<'_>>,
}

/// The facets of the runs of one runnable.
pub(crate) struct FacetsOf<R: ?Sized>(PhantomData<R>);

impl<R: Runnable + ?Sized> FacetsOf<R> {
    pub(crate) const ALL: &'static LifecycleFacets =
        &LifecycleFacets { facets: [Self::START, Self::SUCCESS, Self::ERROR, Self::FINISH], types: RunTypes::of::<R> };

    // `internal` marks the facet of a lifecycle event. With `also_named`, listeners that take exactly the event's type
    // may use its plain name too (E4).
    const START: &'static Facet = &Facet::new(&ErasedAccess {
        stage: Stage::Start,
        change: |event| Some(LifecycleMut::Start(event.downcast_mut::<Start<R::Input, R::Output>>()?)),
        look: |event| Some(LifecycleRef::Start(event.downcast_ref::<Start<R::Input, R::Output>>()?)),
    })
    .internal()
    .also_named(Stage::Start.plain_name());

    const SUCCESS: &'static Facet = &Facet::new(&ErasedAccess {
        stage: Stage::Success,
        change: |event| Some(LifecycleMut::Success(event.downcast_mut::<Success<R::Input, R::Output>>()?)),
        look: |event| Some(LifecycleRef::Success(event.downcast_ref::<Success<R::Input, R::Output>>()?)),
    })
    .internal()
    .also_named(Stage::Success.plain_name());

    // `error` and `finish` only report: with `isolated` every listener is called, even if another listener fails (R10).
    const ERROR: &'static Facet = &Facet::new(&ErasedAccess {
        stage: Stage::Error,
        change: |event| Some(LifecycleMut::Error(event.downcast_mut::<Failure>()?)),
        look: |event| Some(LifecycleRef::Error(event.downcast_ref::<Failure>()?)),
    })
    .with_head(|event| Some(event.downcast_ref::<Failure>()?.head()))
    .internal()
    .also_named(Stage::Error.plain_name())
    .isolated();

    const FINISH: &'static Facet = &Facet::new(&ErasedAccess {
        stage: Stage::Finish,
        change: |event| Some(LifecycleMut::Finish(event.downcast_mut::<Finish<R::Input, R::Output>>()?)),
        look: |event| Some(LifecycleRef::Finish(event.downcast_ref::<Finish<R::Input, R::Output>>()?)),
    })
    .with_head(|event| Some(event.downcast_ref::<Finish<R::Input, R::Output>>()?.head()))
    .internal()
    .also_named(Stage::Finish.plain_name())
    .isolated();
}
