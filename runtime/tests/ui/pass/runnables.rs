//! Runnables: a struct with an `async fn`, generic structs, functions, `?` on errors of the standard library.
use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::{AnyRunnable, Error, Result, Run, RunContext, Runnable, runnable_fn};
use serde::{Serialize, de::DeserializeOwned};

struct ReadFile {
    emitter: Emitter,
}

impl Runnable for ReadFile {
    type Input = String;
    type Output = Vec<u32>;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, path: &String, ctx: &RunContext) -> Result<Vec<u32>> {
        let text = std::fs::read_to_string(path)?;
        let first = text.lines().next().ok_or("an empty file").map_err(Error::new)?;
        ctx.emitter().emit("first_line", &mut first.to_owned()).await?;
        let numbers = text.lines().map(str::parse).collect::<std::result::Result<_, _>>()?;
        Ok(numbers)
    }
}

struct Repeat<R> {
    inner: R,
    emitter: Emitter,
}

impl<R: Runnable> Runnable for Repeat<R>
where
    R::Input: Clone,
{
    type Input = R::Input;
    type Output = Vec<R::Output>;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, input: &R::Input, _: &RunContext) -> Result<Vec<R::Output>> {
        let mut outputs = Vec::new();
        for _ in 0..2 {
            outputs.push(self.inner.run(input.clone()).await?);
        }
        Ok(outputs)
    }
}

/// Implements `execute` without `async fn`, with an explicit `Send` bound.
struct Echo<T>(Emitter, std::marker::PhantomData<fn() -> T>);

impl<T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> Runnable for Echo<T> {
    type Input = T;
    type Output = T;

    fn emitter(&self) -> &Emitter {
        &self.0
    }

    fn execute(&self, input: &T, _: &RunContext) -> impl Future<Output = Result<T>> + Send {
        let output = input.clone();
        async move { Ok(output) }
    }
}

async fn double(n: u32, _: RunContext) -> Result<u32> {
    Ok(n * 2)
}

async fn used(path: String) -> Result<()> {
    let read = ReadFile { emitter: Emitter::new() };
    let _: Vec<Vec<u32>> = Repeat { inner: read, emitter: Emitter::new() }.run(path).await?;
    let echo = Echo(Emitter::new(), std::marker::PhantomData);
    let _: String = echo.run("a".to_owned()).await?;

    let of_an_item = runnable_fn("double", double);
    let _: u32 = of_an_item.run(2).await?;
    let of_an_async_closure = runnable_fn("double", async |n: u32, _: RunContext| Ok(n * 2));
    let _: u32 = of_an_async_closure.run(2).await?;
    let shared = Arc::new(of_an_item);
    let _: u32 = shared.run(2).await?;
    let stored: Vec<Box<dyn AnyRunnable>> = vec![Box::new(shared), Box::new(echo)];
    let _: serde_json::Value = stored[0].run_json(2.into()).await?;
    Ok(())
}

fn is_send<T: Send>(_: &T) {}

async fn spawned() -> Result<()> {
    // A run of a `'static` reference can be spawned directly; a shared runnable is run inside the task.
    let leaked: &'static _ = Box::leak(Box::new(runnable_fn("double", double)));
    let run: Run<'static, _> = leaked.run(2);
    is_send(&run);
    let _: u32 = tokio::spawn(run).await??;
    let shared = Arc::new(runnable_fn("double", double));
    let _: u32 = tokio::spawn(async move { shared.run(2).await }).await??;
    Ok(())
}

pub(crate) fn main() {
    drop((used(String::new()), spawned()));
}
