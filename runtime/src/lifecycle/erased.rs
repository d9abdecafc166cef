//! The second face of the events of a run: how what does not know their types works with them, through JSON (R5).

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

/// A lifecycle event of any run, to be changed.
///
/// ```
/// use emitree_runtime::{LifecycleMut, RunContext};
/// use emitree_emitter::{AnyEvent, Options};
///
/// /// Answers every run below with `null`, without doing its work.
/// fn dry_run(ctx: &RunContext) -> emitree_runtime::Result<()> {
///     ctx.emitter().with(Options::new().nested(true)).on("*.*", |event: &mut dyn AnyEvent, meta| {
///         if let Some(LifecycleMut::Start(start)) = LifecycleMut::of(event, meta) {
///             start.set_output_json(serde_json::Value::Null)?;
///         }
///         Ok(())
///     })?;
///     Ok(())
/// }
/// # drop(emitree_runtime::middleware_fn(dry_run));
/// ```
#[non_exhaustive]
pub enum LifecycleMut<'a> {
    /// A run begins.
    Start(&'a mut dyn AnyStart),
    /// A run has an output.
    Success(&'a mut dyn AnySuccess),
    /// A run has failed.
    Error(&'a Failure),
    /// A run has ended.
    Finish(&'a dyn AnyFinish),
}

impl<'a> LifecycleMut<'a> {
    /// The lifecycle event that an event is, if it is one.
    pub fn of(event: &'a mut dyn AnyEvent, meta: &EventMeta<'_>) -> Option<Self> {
        (meta.facet::<ErasedAccess>()?.change)(event)
    }
}

/// A lifecycle event of any run, to be looked at.
#[non_exhaustive]
pub enum LifecycleRef<'a> {
    /// A run begins.
    Start(&'a dyn AnyStart),
    /// A run has an output.
    Success(&'a dyn AnySuccess),
    /// A run has failed.
    Error(&'a Failure),
    /// A run has ended.
    Finish(&'a dyn AnyFinish),
}

impl<'a> LifecycleRef<'a> {
    /// The lifecycle event that an event is, if it is one.
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

/// A [`Start`] of any types, through JSON.
pub trait AnyStart: Send + Sync {
    /// What the work will get.
    fn input_json(&self) -> Value;
    /// What the work will get, if JSON can show it.
    ///
    /// # Errors
    ///
    /// If it cannot be serialised, or is nested deeper than [`MAX_DEPTH`](emitree_emitter::json::MAX_DEPTH).
    fn try_input_json(&self) -> Result<Value>;
    /// Changes what the work will get.
    ///
    /// # Errors
    ///
    /// If the value does not fit the type of the input; says where. Nothing is changed then.
    fn set_input_json(&mut self, input: Value) -> Result<()>;
    /// The answer, if there is one already.
    fn output_json(&self) -> Option<Value>;
    /// The answer as it is: an `Option` of the run's output, for who knows that type and not the input's.
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
    /// Answers the run.
    ///
    /// # Errors
    ///
    /// If the value does not fit the type of the output; says where. Nothing is changed then.
    fn set_output_json(&mut self, output: Value) -> Result<()>;
}

/// A [`Success`] of any types, through JSON.
pub trait AnySuccess: Send + Sync {
    /// What the work got.
    fn input_json(&self) -> Value;
    /// What the caller will get.
    fn output_json(&self) -> Value;
    /// What the run gives, if JSON can show it.
    ///
    /// # Errors
    ///
    /// If it cannot be serialised, or is nested deeper than [`MAX_DEPTH`](emitree_emitter::json::MAX_DEPTH).
    fn try_output_json(&self) -> Result<Value>;
    /// Changes what the caller will get.
    ///
    /// # Errors
    ///
    /// If the value does not fit the type of the output; says where. Nothing is changed then.
    fn set_output_json(&mut self, output: Value) -> Result<()>;
}

/// A [`Finish`] of any types, through JSON.
pub trait AnyFinish: Send + Sync {
    /// What the work got, or would have got.
    fn input_json(&self) -> Value;
    /// How it ended.
    fn outcome_json(&self) -> Value;
    /// How it ended, without what that carries.
    fn status(&self) -> crate::Status;
    /// How long it took.
    fn duration(&self) -> Duration;
}

impl<I: Data, O: Data> AnyStart for Start<I, O> {
    fn input_json(&self) -> Value {
        self.input.to_json()
    }

    fn try_input_json(&self) -> Result<Value> {
        Ok(to_value(&self.input)?)
    }

    fn set_input_json(&mut self, input: Value) -> Result<()> {
        self.input = fit("input", &input)?;
        Ok(())
    }

    fn output_json(&self) -> Option<Value> {
        self.output.as_ref().map(AnyEvent::to_json)
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
        AnyEvent::to_json(&*self.input)
    }

    fn output_json(&self) -> Value {
        self.output.to_json()
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
        AnyEvent::to_json(&*self.input)
    }

    fn outcome_json(&self) -> Value {
        self.outcome.to_json()
    }

    fn status(&self) -> crate::Status {
        self.outcome.status()
    }

    fn duration(&self) -> Duration {
        Self::duration(self)
    }
}

/// What runs tell of the type that they are runs of.
#[derive(Clone, Copy)]
pub struct Face(pub(crate) &'static LifecycleFacets);

impl std::fmt::Debug for Face {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Face").field(&self.0.types()).finish()
    }
}

/// The facets of the four events of a run, and its types.
pub(crate) struct LifecycleFacets {
    facets: [&'static Facet; 4],
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

/// The second face of a lifecycle payload: what listeners that do not know its type see it through (E17).
pub(crate) struct ErasedAccess {
    pub(crate) stage: Stage,
    change: fn(&mut dyn AnyEvent) -> Option<LifecycleMut<'_>>,
    look: fn(&dyn AnyEvent) -> Option<LifecycleRef<'_>>,
}

/// The lenses of the runs of one type.
pub(crate) struct FacetsOf<R: ?Sized>(PhantomData<R>);

impl<R: Runnable + ?Sized> FacetsOf<R> {
    pub(crate) const ALL: &'static LifecycleFacets =
        &LifecycleFacets { facets: [Self::START, Self::SUCCESS, Self::ERROR, Self::FINISH], types: RunTypes::of::<R> };

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

    const ERROR: &'static Facet = &Facet::new(&ErasedAccess {
        stage: Stage::Error,
        change: |event| Some(LifecycleMut::Error(event.downcast_mut::<Failure>()?)),
        look: |event| Some(LifecycleRef::Error(event.downcast_ref::<Failure>()?)),
    })
    .internal()
    .also_named(Stage::Error.plain_name())
    .isolated();

    const FINISH: &'static Facet = &Facet::new(&ErasedAccess {
        stage: Stage::Finish,
        change: |event| Some(LifecycleMut::Finish(event.downcast_mut::<Finish<R::Input, R::Output>>()?)),
        look: |event| Some(LifecycleRef::Finish(event.downcast_ref::<Finish<R::Input, R::Output>>()?)),
    })
    .internal()
    .also_named(Stage::Finish.plain_name())
    .isolated();
}
