//! Runnables: values that can be run (R1).

pub(crate) mod boxed;
pub(crate) mod erased;
pub(crate) mod function;
pub(crate) mod value;

use std::future::Future;
use std::sync::Arc;

use emitree_emitter::Emitter;

use crate::lifecycle::erased::{Face, FacetsOf};
use crate::run::config::RunnableRef;
use crate::runnable::value::Data;
use crate::{Middleware, Op, Result, Run, RunContext};

/// A value that can be run: it has an emitter, typed input and output, and an async function that does the work.
///
/// Implement [`emitter`](Self::emitter) and [`execute`](Self::execute), and call [`run`](Self::run).
/// [`runnable_fn`](crate::runnable_fn) creates a runnable from an async function.
///
/// References to a runnable and [`Arc`]s of a runnable do not implement this trait: `arc.run(input)` and
/// `(&runnable).run(input)` are runs of the runnable itself. Functions that store a runnable accept it by value or in
/// an `Arc`; see [`IntoShared`]. If a function takes an `&impl Runnable`, pass an `Arc` as `&*arc`.
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
    note = "implement `Runnable`, or lift an async function with `runnable_fn(name, f)`",
    note = "pass an `Arc` of a runnable as `&*runnable`; functions that store one take the `Arc` itself (`IntoShared`)"
)]
pub trait Runnable: Send + Sync {
    /// The input of the work.
    type Input: Data;
    /// The output of the work.
    type Output: Data;

    /// Returns the emitter of this instance. Listeners on this emitter receive the events of all runs of the instance.
    fn emitter(&self) -> &Emitter;

    /// Does the work.
    ///
    /// A run calls this method, and retains ownership of the input. Do not call this method yourself; call
    /// [`run`](Self::run). Without a run, no lifecycle events are emitted and no middleware applies, not even an
    /// inherited guard.
    fn execute(&self, input: &Self::Input, ctx: &RunContext) -> impl Future<Output = Result<Self::Output>> + Send;

    /// Returns the kind, such as `Tool`. By default it is the kind of the emitter's creator, or `Run` if there is no
    /// creator.
    fn kind(&self) -> &str {
        self.emitter().creator().map_or("Run", |creator| creator.kind())
    }

    /// Returns the name. By default it is the name of the emitter's creator, or the emitter's namespace if there is no
    /// creator.
    fn name(&self) -> &str {
        self.emitter().creator().map_or_else(|| self.emitter().namespace(), |creator| creator.name())
    }

    /// Returns the middlewares of every run of this instance. They are bound before the run's own middlewares.
    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &[]
    }

    /// Returns `true` if executing the work again with the same input has no further effect. Default: `false`.
    /// [`Run::idempotent`] marks a single run. Middleware reads both with
    /// [`RunContext::is_idempotent`](crate::RunContext::is_idempotent).
    fn is_idempotent(&self) -> bool {
        false
    }

    // A wrapper such as `BoxRunnable` returns the types of the runnable inside, so that its runs are runs of that
    // runnable (M4).
    #[doc(hidden)]
    fn face(&self) -> Face {
        Face(FacetsOf::<Self>::ALL)
    }

    /// Creates a run. Nothing happens before the run is first polled.
    ///
    /// The run's parent is the run in which this method is called. If the parent has ended before the first poll, the
    /// run does not start, and returns an error.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// assert_eq!(double.run(21).await?, 42);
    /// let changed = double.run(21).on_start(|start, _| start.input = 1).on_success(|success, _| success.output += 1);
    /// assert_eq!(changed.await?, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping a run before its work is over drops the work. If the run has emitted `start`, it then emits `error` and
    /// `finish`. Dropping a run before its first poll has no effect.
    fn run(&self, input: Self::Input) -> Run<'_, Self>
    where
        Self: Sized,
    {
        Run::new(RunnableRef::Borrowed(self), input)
    }

    /// Creates a run that owns an `Arc` of the runnable, to be spawned or stored:
    /// `tokio::spawn(tool.run_shared(input))`.
    ///
    /// As with [`run`](Self::run), the new run's parent is the run in which this method is called, not the run of the
    /// task that awaits the new run. The new run ends before its parent ends. A run that is created inside a bare
    /// `tokio::spawn` has no parent; spawn the task with [`RunContext::spawn`](crate::RunContext::spawn) instead.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let double = Arc::new(runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }));
    /// let run = tokio::spawn(double.run_shared(21));
    /// assert_eq!(run.await??, 42);
    /// # Ok(())
    /// # }
    /// ```
    fn run_shared(self: &Arc<Self>, input: Self::Input) -> Run<'static, Self>
    where
        Self: Sized + 'static,
    {
        Run::new(RunnableRef::Shared(Arc::clone(self)), input)
    }
}

/// A conversion into an [`Arc`] of a runnable. Implemented for every runnable, and for every `Arc` of a runnable. An
/// `Arc` is returned unchanged.
///
/// ```
/// use std::sync::Arc;
/// use emitree_runtime::{BoxRunnable, RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = Arc::new(runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }));
/// let boxed = BoxRunnable::new(Arc::clone(&double));
/// assert_eq!((boxed.run(2).await?, double.run(3).await?), (4, 6));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` cannot be run", label = "expected a `Runnable`, or an `Arc` of one")]
pub trait IntoShared {
    /// The type of the runnable.
    type Runnable: Runnable;

    /// Returns the runnable in an [`Arc`].
    fn into_shared(self) -> Arc<Self::Runnable>;
}

impl<R: Runnable> IntoShared for R {
    type Runnable = R;

    fn into_shared(self) -> Arc<R> {
        Arc::new(self)
    }
}

impl<R: Runnable> IntoShared for Arc<R> {
    type Runnable = R;

    fn into_shared(self) -> Self {
        self
    }
}

/// Layers can wrap the work of any runnable that is `'static`.
impl<R: Runnable + 'static> Op for R {
    type In = R::Input;
    type Out = R::Output;
}
