//! What can be run (R1).

use std::future::Future;
use std::sync::Arc;

use emitree_emitter::Emitter;

use crate::data::Data;
use crate::plan::Held;
use crate::{Middleware, Result, Run, RunContext};

/// Something that can be run: it has an emitter, typed input and output, and an async function that does the work.
///
/// ```
/// use emitree_emitter::{Creator, Emitter};
/// use emitree_runtime::{Result, RunContext, Runnable};
///
/// struct CountWords { emitter: Emitter }
///
/// impl CountWords {
///     fn new() -> Self {
///         let emitter = Emitter::root()
///             .child_builder("tool.count_words")
///             .creator(Creator::new("Tool", "count_words"))
///             .build()
///             .expect("a valid name");
///         Self { emitter }
///     }
/// }
///
/// impl Runnable for CountWords {
///     type Input = String;
///     type Output = usize;
///
///     fn emitter(&self) -> &Emitter {
///         &self.emitter
///     }
///
///     async fn execute(&self, text: &String, _: &RunContext) -> Result<usize> {
///         Ok(text.split_whitespace().count())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// assert_eq!(CountWords::new().run("to be or not".to_owned()).await?, 4);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be run",
    label = "expected a `Runnable`",
    note = "implement `Runnable`, or lift an async function with `runnable_fn(name, f)`"
)]
pub trait Runnable: Send + Sync {
    /// What the work gets.
    type Input: Data;
    /// What the caller gets.
    type Output: Data;

    /// The instance's emitter: every run of it is heard there.
    fn emitter(&self) -> &Emitter;

    /// Does the work. The input is owned by the run, and borrowed here.
    fn execute(&self, input: &Self::Input, ctx: &RunContext) -> impl Future<Output = Result<Self::Output>> + Send;

    /// What sort of thing it is: by default the kind of its emitter's creator, else `Run`.
    fn kind(&self) -> &str {
        self.emitter().creator().map_or("Run", |creator| creator.kind())
    }

    /// What it is called: by default the name of its emitter's creator, else its emitter's namespace.
    fn name(&self) -> &str {
        self.emitter().creator().map_or_else(|| self.emitter().namespace(), |creator| creator.name())
    }

    /// What is bound to each of its runs, before what is bound to one run only.
    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &[]
    }

    /// Makes a run of it. Nothing happens before the run is first polled.
    ///
    /// The run's parent is the run in which this is called.
    fn run(&self, input: Self::Input) -> Run<'_, Self>
    where
        Self: Sized,
    {
        Run::new(Held::Borrowed(self), input)
    }

    /// Makes a run that shares what it runs, to be spawned or stored: `tokio::spawn(tool.run_shared(input))`.
    ///
    /// The run's parent is the run in which this is called, not the task that awaits it: it ends with that, and if that has ended
    /// before the first poll, it does not begin. A run that is made in a bare `tokio::spawn` has no parent; see
    /// [`RunContext::spawn`](crate::RunContext::spawn).
    fn run_shared(self: &Arc<Self>, input: Self::Input) -> Run<'static, Self>
    where
        Self: Sized + 'static,
    {
        Run::new(Held::Shared(Arc::clone(self)), input)
    }
}

impl<R: Runnable> Runnable for Arc<R> {
    type Input = R::Input;
    type Output = R::Output;

    fn emitter(&self) -> &Emitter {
        (**self).emitter()
    }

    fn execute(&self, input: &Self::Input, ctx: &RunContext) -> impl Future<Output = Result<Self::Output>> + Send {
        (**self).execute(input, ctx)
    }

    fn kind(&self) -> &str {
        (**self).kind()
    }

    fn name(&self) -> &str {
        (**self).name()
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        (**self).middlewares()
    }
}
