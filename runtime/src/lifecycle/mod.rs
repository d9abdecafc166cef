//! The events that wrap a run (R3): what each carries.

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

use crate::context::TypedRun;
use crate::{Error, Outcome, RunContext};

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
#[derive(Debug)]
pub struct Finish<I: 'static, O> {
    pub(crate) input: Input<I>,
    pub(crate) outcome: Outcome<O>,
    pub(crate) duration: Measured,
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
    pub fn duration(&self) -> Duration {
        self.duration.of(&self.input.run)
    }
}

impl<I: Serialize + 'static, O: Serialize> Serialize for Finish<I, O> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanoseconds = u64::try_from(self.duration().as_nanos()).unwrap_or(u64::MAX);
        let mut members = serializer.serialize_struct("Finish", 3)?;
        members.serialize_field("input", &self.input)?;
        members.serialize_field("outcome", &self.outcome)?;
        members.serialize_field("duration_ns", &nanoseconds)?;
        members.end()
    }
}

/// How long a run took: measured before listeners hear of it, who may be awaited; otherwise when somebody first looks.
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

/// The input of a run, where the run keeps it: whoever shows it holds the run.
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

    #[expect(clippy::expect_used, reason = "made of a run that has its input, of that type")]
    fn deref(&self) -> &I {
        let input = self.run.core().any_input().and_then(|input| input.downcast_ref());
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
