//! The events that wrap a run (R3): what each carries.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::context::Typed;
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
