//! Layers that record inputs and outputs.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::fmt::Debug;

use emitree_emitter::Emitter;
use emitree_runtime::{Guard, Layer, Next, Observe, Op, Result, RunContext, Runnable, Transform};

use super::{Recorder, below};

/// A layer of any kind that records inputs and outputs.
#[derive(Clone, Debug)]
pub(crate) struct Notes(pub(crate) &'static str, pub(crate) Recorder);

impl Notes {
    fn goes_in(&self, input: &dyn Debug) {
        self.1.note(format!("{} <- {input:?}", self.0));
    }

    fn comes_out(&self, output: &dyn Debug) {
        self.1.note(format!("{} -> {output:?}", self.0));
    }

    fn ends<T: Debug>(&self, result: &Result<T>) {
        match result {
            Ok(output) => self.comes_out(output),
            Err(error) => self.1.note(format!("{} -> error: {error}", self.0)),
        }
    }
}

impl<O: Op<In: Debug, Out: Debug>> Layer<O> for Notes {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        self.goes_in(input);
        let result = next.run(input).await;
        self.ends(&result);
        result
    }

    fn name(&self) -> &str {
        self.0
    }
}

impl<O: Op<In: Debug, Out: Debug>> Observe<O> for Notes {
    type Memo = ();

    fn before(&self, input: &O::In, _: &RunContext) {
        self.goes_in(input);
    }

    fn after(&self, (): (), result: &Result<O::Out>, _: &RunContext) {
        self.ends(result);
    }

    fn name(&self) -> &str {
        self.0
    }
}

impl<O: Op<In: Debug, Out: Debug>> Transform<O> for Notes {
    async fn input(&self, input: &O::In, _: &RunContext) -> Result<Option<O::In>> {
        self.goes_in(input);
        Ok(None)
    }

    async fn output(&self, output: O::Out, _: &RunContext) -> Result<O::Out> {
        self.comes_out(&output);
        Ok(output)
    }

    fn name(&self) -> &str {
        self.0
    }
}

impl<O: Op<In: Debug, Out: Debug>> Guard<O> for Notes {
    async fn check_input(&self, input: &O::In, _: &RunContext) -> Result<()> {
        self.goes_in(input);
        Ok(())
    }

    async fn check_output(&self, output: &O::Out, _: &RunContext) -> Result<()> {
        self.comes_out(output);
        Ok(())
    }

    fn name(&self) -> &str {
        self.0
    }
}

/// Returns a runnable that doubles its input, and records its work.
pub(crate) fn doubling(recorder: &Recorder) -> impl Runnable<Input = u32, Output = u32> + 'static {
    let recorder = recorder.clone();
    below(&Emitter::new(), "double", move |n: u32, _: RunContext| {
        recorder.note(format!("work {n}"));
        async move { Ok(n * 2) }
    })
}

/// Calls a function inside a run, for functions that require a context.
pub(crate) async fn inside<T, F>(f: impl Fn(RunContext) -> F + Send + Sync) -> Result<T>
where
    F: Future<Output = Result<T>> + Send,
    T: emitree_runtime::Data,
{
    let run = emitree_runtime::runnable_fn("inside", |(): (), ctx: RunContext| f(ctx));
    run.run(()).await
}
