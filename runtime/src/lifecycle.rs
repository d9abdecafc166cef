//! The events that wrap a run (R3), and how what does not know their types works with them (R5).

use std::any::{Any, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::OnceLock;
use std::time::Duration;

use emitree_emitter::{
    AnyEvent, EventMeta, EventName, EventRecord, Facet, FnMatcher, IntoMatcher, Matcher, MatcherError, matcher_fn,
};
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::context::Typed;
use crate::{Error, ErrorKind, Outcome, Result, RunContext, Runnable};

/// A run begins. Listeners may change the input, or answer the run by setting the output.
#[derive(Debug, Serialize)]
pub struct Start<I, O> {
    /// What the work will get.
    pub input: I,
    /// Set it, and it is the answer: the work is not done.
    pub output: Option<O>,
}

/// A run has an output, which listeners may still change.
#[derive(Debug, Serialize)]
#[serde(bound = "I: Serialize + 'static, O: Serialize")]
pub struct Success<I: 'static, O> {
    pub(crate) input: Input<I>,
    /// What the caller will get.
    pub output: O,
}

impl<I: 'static, O> Success<I, O> {
    /// What the work got.
    pub fn input(&self) -> &I {
        &self.input
    }
}

/// A run has failed. Read-only: the caller gets this error.
#[derive(Debug, Serialize)]
pub struct Failure {
    pub(crate) error: Error,
}

impl Failure {
    /// What the caller will get.
    #[must_use]
    pub const fn error(&self) -> &Error {
        &self.error
    }
}

/// A run has ended. Read-only.
#[derive(Debug, Serialize)]
#[serde(bound = "I: Serialize + 'static, O: Serialize")]
pub struct Finish<I: 'static, O> {
    pub(crate) input: Input<I>,
    pub(crate) outcome: Outcome<O>,
    #[serde(rename = "duration_ns", serialize_with = "nanoseconds")]
    pub(crate) duration: Duration,
}

impl<I: 'static, O> Finish<I, O> {
    /// What the work got, or would have got.
    pub fn input(&self) -> &I {
        &self.input
    }

    /// How it ended.
    pub const fn outcome(&self) -> &Outcome<O> {
        &self.outcome
    }

    /// How long it took, by tokio's clock, from its first poll. In JSON: `duration_ns`, whole nanoseconds.
    pub const fn duration(&self) -> Duration {
        self.duration
    }
}

fn nanoseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Which of the four it is. As a matcher: that event, of any run; `"start"` is what components emit under that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is documented at the payload of the same name")]
pub enum Stage {
    Start,
    Success,
    Error,
    Finish,
}

impl Stage {
    /// The last segment of the event's path.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Success => "success",
            Self::Error => "error",
            Self::Finish => "finish",
        }
    }

    pub(crate) const fn event_name(self) -> EventName {
        const START: EventName = EventName::new("run.start");
        const SUCCESS: EventName = EventName::new("run.success");
        const ERROR: EventName = EventName::new("run.error");
        const FINISH: EventName = EventName::new("run.finish");
        match self {
            Self::Start => START,
            Self::Success => SUCCESS,
            Self::Error => ERROR,
            Self::Finish => FINISH,
        }
    }

    /// The stage of a run that an event is, if it is one.
    #[must_use]
    pub fn of(meta: &EventMeta<'_>) -> Option<Self> {
        meta.facet::<Lens>().map(|lens| lens.stage)
    }

    /// The name of the Rust type whose run an event is a stage of, if it is one, as [`std::any::type_name`] gives it.
    #[must_use]
    pub fn runnable_type(meta: &EventMeta<'_>) -> Option<&'static str> {
        meta.facet::<Lens>().map(|lens| (lens.runnable)())
    }

    /// The stage of a run that a recorded event is.
    #[must_use]
    pub fn of_record(record: &EventRecord) -> Option<Self> {
        let internal = record.context.get("internal") == Some(&Value::Bool(true));
        let stages = [Self::Start, Self::Success, Self::Error, Self::Finish];
        stages.into_iter().find(|stage| internal && record.name() == stage.as_str())
    }
}

impl IntoMatcher for Stage {
    fn into_matcher(self) -> std::result::Result<Matcher, MatcherError> {
        static MATCHERS: OnceLock<[FnMatcher; 4]> = OnceLock::new();
        let all = [Self::Start, Self::Success, Self::Error, Self::Finish];
        // Made once, so that what was registered with a stage is found with it again (E9).
        let matchers = MATCHERS.get_or_init(|| all.map(|stage| matcher_fn(move |meta| Self::of(meta) == Some(stage))));
        matchers[self as usize].clone().into_matcher()
    }
}

/// A lifecycle event of any run, to be changed.
///
/// ```
/// use emitree_runtime::{LifecycleMut, Middleware, RunContext};
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
/// # fn is_middleware(_: impl Middleware) {}
/// # is_middleware(dry_run);
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
        (meta.facet::<Lens>()?.change)(event)
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
        (meta.facet::<Lens>()?.look)(event)
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

/// What input and output of a run can do: be shown as JSON, and made of it.
pub trait Data: Serialize + DeserializeOwned + Send + Sync + 'static {}
impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Data for T {}

impl<I: Data, O: Data> AnyStart for Start<I, O> {
    fn input_json(&self) -> Value {
        self.input.to_json()
    }

    fn set_input_json(&mut self, input: Value) -> Result<()> {
        self.input = fit("input", input)?;
        Ok(())
    }

    fn output_json(&self) -> Option<Value> {
        self.output.as_ref().map(AnyEvent::to_json)
    }

    fn output_any(&mut self) -> &mut dyn Any {
        &mut self.output
    }

    fn set_output_json(&mut self, output: Value) -> Result<()> {
        self.output = Some(fit("output", output)?);
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

    fn set_output_json(&mut self, output: Value) -> Result<()> {
        self.output = fit("output", output)?;
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
        self.duration
    }
}

/// Makes a `T` of JSON, or says where it does not fit.
pub(crate) fn fit<T: DeserializeOwned>(what: &str, value: Value) -> Result<T> {
    let shown = elide(&value.to_string());
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (at, fault) = (error.path().to_string(), error.into_inner());
        let place = if at == "." { String::new() } else { format!(" at `{at}`") };
        let fault = elide(&fault.to_string());
        let message = format!("{what} `{shown}` does not fit `{}`{place}: {fault}", type_name::<T>());
        Error::of_kind(ErrorKind::Invalid, message)
    })
}

/// Leaves out the middle of a long text; a fault quotes the value too, and says at its end what was expected.
fn elide(text: &str) -> String {
    const HEAD: usize = 160;
    const TAIL: usize = 80;
    let start = |i: usize| text.char_indices().nth(i).map_or(text.len(), |(at, _)| at);
    match text.chars().count().checked_sub(HEAD + TAIL) {
        None | Some(0) => text.to_owned(),
        Some(left_out) => format!("{}…{}", &text[..start(HEAD)], &text[start(HEAD + left_out)..]),
    }
}

/// The input of a run, where the run keeps it: whoever shows it holds the run.
pub(crate) struct Input<I> {
    run: RunContext,
    ty: PhantomData<fn() -> I>,
}

impl<I: 'static> Input<I> {
    pub(crate) fn of<O>(run: &Typed<I, O>) -> Self {
        Self { run: RunContext::clone(run), ty: PhantomData }
    }
}

impl<I: 'static> Deref for Input<I> {
    type Target = I;

    #[expect(clippy::expect_used, reason = "made of a run that has its input, of that type")]
    fn deref(&self) -> &I {
        let input = self.run.life().any_input().and_then(|input| input.downcast_ref());
        input.expect("a run that has started has its input")
    }
}

impl<I: Serialize + 'static> Serialize for Input<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<I: fmt::Debug + 'static> fmt::Debug for Input<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The facets of the four events of a run, and its types.
pub(crate) struct Stages {
    facets: [&'static Facet; 4],
    types: fn() -> RunTypes,
}

impl Stages {
    pub(crate) const fn facet(&self, stage: Stage) -> &'static Facet {
        self.facets[stage as usize]
    }

    pub(crate) fn types(&self) -> RunTypes {
        (self.types)()
    }
}

/// What a run is a run of, and what goes in and comes out: the names of the Rust types, as [`type_name`] gives them.
/// Given by [`RunContext::types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunTypes {
    /// The [`Runnable`].
    pub runnable: &'static str,
    /// Its input.
    pub input: &'static str,
    /// Its output.
    pub output: &'static str,
}

impl RunTypes {
    fn of<R: Runnable>() -> Self {
        Self { runnable: type_name::<R>(), input: type_name::<R::Input>(), output: type_name::<R::Output>() }
    }
}

/// The second face of a lifecycle payload: what listeners that do not know its type see it through (E17).
pub(crate) struct Lens {
    stage: Stage,
    runnable: fn() -> &'static str,
    change: fn(&mut dyn AnyEvent) -> Option<LifecycleMut<'_>>,
    look: fn(&dyn AnyEvent) -> Option<LifecycleRef<'_>>,
}

/// The lenses of the runs of one type.
pub(crate) struct Facets<R>(PhantomData<R>);

impl<R: Runnable> Facets<R> {
    pub(crate) const ALL: &'static Stages =
        &Stages { facets: [Self::START, Self::SUCCESS, Self::ERROR, Self::FINISH], types: RunTypes::of::<R> };

    const START: &'static Facet = &Facet::new(&Lens {
        stage: Stage::Start,
        runnable: type_name::<R>,
        change: |event| Some(LifecycleMut::Start(event.downcast_mut::<Start<R::Input, R::Output>>()?)),
        look: |event| Some(LifecycleRef::Start(event.downcast_ref::<Start<R::Input, R::Output>>()?)),
    })
    .internal();

    const SUCCESS: &'static Facet = &Facet::new(&Lens {
        stage: Stage::Success,
        runnable: type_name::<R>,
        change: |event| Some(LifecycleMut::Success(event.downcast_mut::<Success<R::Input, R::Output>>()?)),
        look: |event| Some(LifecycleRef::Success(event.downcast_ref::<Success<R::Input, R::Output>>()?)),
    })
    .internal();

    const ERROR: &'static Facet = &Facet::new(&Lens {
        stage: Stage::Error,
        runnable: type_name::<R>,
        change: |event| Some(LifecycleMut::Error(event.downcast_mut::<Failure>()?)),
        look: |event| Some(LifecycleRef::Error(event.downcast_ref::<Failure>()?)),
    })
    .internal();

    const FINISH: &'static Facet = &Facet::new(&Lens {
        stage: Stage::Finish,
        runnable: type_name::<R>,
        change: |event| Some(LifecycleMut::Finish(event.downcast_mut::<Finish<R::Input, R::Output>>()?)),
        look: |event| Some(LifecycleRef::Finish(event.downcast_ref::<Finish<R::Input, R::Output>>()?)),
    })
    .internal();
}
