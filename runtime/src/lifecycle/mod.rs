//! The four lifecycle events of a run, and their payloads (R3).
//!
//! Each is emitted with a `Facet`: a static table of functions that downcast the payload and return it as a trait object,
//! with which listeners read and set inputs and outputs as JSON without knowing their types. The emitter only passes the
//! table on. A facet may also give its event a second name, such as `start` for `run.start`. A listener for `"start"` that
//! takes the run's `Start<I, O>` receives this event. If it takes `Start` with other type parameters, or the payload of
//! another stage, it fails. If it takes any other type, it receives only events that the work emits as `start`.

pub(crate) mod erased;
pub(crate) mod listen;
pub(crate) mod matcher;
pub(crate) mod run_event;
pub(crate) mod stage;
pub(crate) mod subscribers;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::OnceLock;
use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::context::TypedRun;
use crate::{Error, Outcome, RunContext};

/// The payload of `start`: a run begins. Listeners may change the input, or set the output.
#[derive(Debug, Serialize)]
pub struct Start<I, O> {
    /// The input of the work.
    pub input: I,
    /// The output, if a listener has set it. The work is then skipped; layers around the work still see this output.
    pub output: Option<O>,
}

/// The payload of `success`: a run has an output, which listeners may change.
#[derive(Debug, Serialize)]
#[serde(bound = "I: Serialize + 'static, O: Serialize")]
pub struct Success<I: 'static, O> {
    pub(crate) input: Input<I>,
    /// The output that the caller will receive.
    pub output: O,
}

impl<I: 'static, O> Success<I, O> {
    /// Returns the input of the run, as `start` left it.
    pub fn input(&self) -> &I {
        &self.input
    }
}

/// The payload of `error`: a run ends with an error. Listeners cannot change it.
#[derive(Debug, Serialize)]
pub struct Failure {
    pub(crate) error: Error,
}

impl Failure {
    /// Returns the error that the caller will receive.
    #[must_use]
    pub const fn error(&self) -> &Error {
        &self.error
    }

    pub(crate) fn head(&self) -> Value {
        json!({"error": self.error.head()})
    }
}

/// The payload of `finish`: a run has ended. Listeners cannot change it.
#[derive(Debug)]
pub struct Finish<I: 'static, O> {
    pub(crate) input: Input<I>,
    pub(crate) outcome: Outcome<O>,
    pub(crate) duration: Measured,
}

impl<I: 'static, O> Finish<I, O> {
    /// Returns the input of the run, as `start` left it, even if the work was skipped.
    pub fn input(&self) -> &I {
        &self.input
    }

    /// Returns the outcome of the run.
    pub const fn outcome(&self) -> &Outcome<O> {
        &self.outcome
    }

    /// Returns the duration of the run since its first poll, measured with tokio's clock. In JSON, the duration is the
    /// field `duration_ns`, in whole nanoseconds.
    pub fn duration(&self) -> Duration {
        self.duration.of(&self.input.run)
    }

    /// Returns the duration in whole nanoseconds, so that a recorded duration loses no digits.
    fn nanoseconds(&self) -> u64 {
        u64::try_from(self.duration().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn head(&self) -> Value {
        json!({"outcome": self.outcome.head(), "duration_ns": self.nanoseconds()})
    }
}

impl<I: Serialize + 'static, O: Serialize> Serialize for Finish<I, O> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_struct("Finish", 3)?;
        members.serialize_field("input", &self.input)?;
        members.serialize_field("outcome", &self.outcome)?;
        members.serialize_field("duration_ns", &self.nanoseconds())?;
        members.end()
    }
}

/// The duration of a run: measured before listeners of `finish` are called, so that it does not include their time.
/// Without listeners it is measured when it is first read, so that a run without listeners does not read the clock.
#[derive(Debug)]
pub(crate) struct Measured(OnceLock<Duration>);

impl Measured {
    pub(crate) fn now(run: &RunContext) -> Self {
        Self(OnceLock::from(run.elapsed()))
    }

    pub(crate) const fn later() -> Self {
        Self(OnceLock::new())
    }

    fn of(&self, run: &RunContext) -> Duration {
        *self.0.get_or_init(|| run.elapsed())
    }
}

/// The input of a run. Keeps the run's context alive and borrows the input from it, so that payloads share the input
/// without a clone.
pub(crate) struct Input<I> {
    run: RunContext,
    ty: PhantomData<fn() -> I>,
}

impl<I: 'static> Input<I> {
    pub(crate) fn of<O>(run: &TypedRun<I, O>) -> Self {
        Self { run: RunContext::clone(run), ty: PhantomData }
    }
}

impl<I: 'static> Deref for Input<I> {
    type Target = I;

    #[expect(clippy::expect_used, reason = "an `Input` is only made for a run that has an input of this type")]
    fn deref(&self) -> &I {
        let input = self.run.shared().core.any_input().and_then(|input| input.downcast_ref());
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
