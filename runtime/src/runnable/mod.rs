//! What can be run (R1).

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

/// Something that can be run: it has an emitter, typed input and output, and an async function that does the work.
///
/// A reference to a runnable, and an [`Arc`] of one, is not another runnable: `arc.run(input)` and `(&runnable).run(input)` are
/// runs of the runnable itself, with its type. Functions that store a runnable take it as it is, or in an `Arc`:
/// [`IntoShared`]. A function that borrows an `&impl Runnable` takes the runnable in an `Arc` as `&*arc`.
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
    note = "an `Arc` of a runnable is given as `&*runnable`, or stored as it is where `IntoShared` is expected"
)]
pub trait Runnable: Send + Sync {
    /// What the work gets.
    type Input: Data;
    /// What the caller gets.
    type Output: Data;

    /// The instance's emitter: every run of it is heard there.
    fn emitter(&self) -> &Emitter;

    /// Does the work. The input is owned by the run, and borrowed here.
    ///
    /// This is what a run calls. Called directly, it is no run: it has no events, and nothing that is bound to the runnable or
    /// by a run above, guards included, applies to it. Use [`run`](Self::run).
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

    // Of a runnable that runs as another one: that one's types.
    #[doc(hidden)]
    fn face(&self) -> Face {
        Face(FacetsOf::<Self>::ALL)
    }

    /// Makes a run of it. Nothing happens before the run is first polled.
    ///
    /// The run's parent is the run in which this is called.
    fn run(&self, input: Self::Input) -> Run<'_, Self>
    where
        Self: Sized,
    {
        Run::new(RunnableRef::Borrowed(self), input)
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
        Run::new(RunnableRef::Shared(Arc::clone(self)), input)
    }
}

/// A runnable to be stored: the runnable itself, or an [`Arc`] of it, which is shared and not wrapped.
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
    /// The runnable.
    type Runnable: Runnable;

    /// Shares the runnable.
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

/// Every runnable is a kind of work.
impl<R: Runnable + 'static> Op for R {
    type In = R::Input;
    type Out = R::Output;
}
