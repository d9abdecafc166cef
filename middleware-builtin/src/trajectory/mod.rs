//! An indented tree of a run and the runs below it: [`Trajectory`].

mod builder;
mod escape;
mod level;
mod line;
mod options;
mod output;
mod own_events;
mod recorded_event;
mod replay;
mod subscriber;
mod terminal;

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{Creator, Emitter, Namespace};
use emitree_runtime::{Middleware, Result, RunContext};

use self::options::TrajectoryOptions;
use self::output::{Output, Target};
use self::subscriber::TreeSubscriber;

pub use self::builder::TrajectoryBuilder;
pub use self::level::Level;
pub use self::own_events::TrajectoryEvent;
pub use self::replay::TrajectoryReplay;
use crate::shared::built_in::debug_as;

const NAMESPACE: Namespace = Namespace::new("middleware.trajectory");

/// Prints a run and the runs below it: a line for each `start`, `success` and `error`, indented by depth.
///
/// ```text
/// Assistant[Desk][start]: {"input":{"question":"…"}}
/// --> Tool[read_file][start]: {"input":{"path":"README.md"}}
///     --> Tool[decode][start]: …
///     <-- Tool[decode][success]: …
/// <-- Tool[read_file][error]: not found: …
/// Assistant[Desk][success]: {…}
/// ```
///
/// A line reads `Kind[name][event]: payload`. Lines of runs below the bound run are indented by depth, and begin with
/// `-->` for `start` and with `<--` for other events. The payload is JSON with sorted keys and without members that are
/// `null`; the payload of `error` is printed as the [explanation](emitree_runtime::Error::explain) of the error.
///
/// [`Trajectory::stdout`] and [`Trajectory::stderr`] create a trajectory with default options; [`Trajectory::builder`]
/// sets other options. Clones share the output. A trajectory may be bound to any number of runs, even at the same time.
/// Each run is shown completely, and each line is written whole, but the lines of concurrent runs interleave.
///
/// ```
/// use emitree_middleware::{Runs, Trajectory};
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// let trajectory = Trajectory::builder().excluded(Runs::named("think")).prefix_by_kind("Run", "* ").build()?;
/// double.run(21).middleware(trajectory).await?;
/// // * Run[double][start]: {"input":21}
/// // * Run[double][success]: {"input":21,"output":42}
/// # Ok(())
/// # }
/// ```
///
/// # On a terminal
///
/// If standard output or standard error is a terminal, a trajectory that writes to it colors `[success]` and `[error]`,
/// prints the duration of each run, and cuts a value that is wider than the terminal, with its size:
/// `Tool[read_file][success] (1.2ms): {"input":{"path":"READ … 8.1 KB`. Errors and [pretty](TrajectoryBuilder::pretty)
/// values are wrapped instead. [`TrajectoryBuilder::full`] cuts nothing, and the variable `NO_COLOR` turns colors off.
/// Messages of [its own events](#its-own-events), pipes and files have the plain lines.
///
/// # Escapes
///
/// Characters that act on a terminal are escaped, wherever they come from: control characters (C0 and C1, except for the
/// line feeds of errors and [pretty](TrajectoryBuilder::pretty) values), separators of lines and paragraphs, and
/// characters that change the direction of text. Each further row of a line begins with `  | `, so that no value looks
/// like another line.
///
/// # Order
///
/// A line is written after all listeners have received the event, so it shows their changes.
///
/// # Its own events
///
/// Before it writes the line of a `start`, `success` or `error`, a trajectory emits a [`TrajectoryEvent`] of that name
/// on [its own emitter](Self::emitter), `middleware.trajectory`, which is below the root. A trajectory also emits
/// `finish`, for which it writes no line. The events carry the ids of the bound run, and are emitted only if the
/// emitter has listeners.
///
/// Listeners may change the message. The event is emitted with [`emit_now`](Emitter::emit_now): if an async listener
/// would receive it, no listener receives it, a warning is logged, and the line is written unchanged.
///
/// ```
/// use emitree_middleware::trajectory::{Trajectory, TrajectoryEvent};
///
/// let trajectory = Trajectory::stdout();
/// trajectory.emitter().on("start", |event: &mut TrajectoryEvent, _| {
///     event.message = event.message.replace("hunter2", "*******");
/// })?;
/// # Ok::<(), emitree_emitter::ListenError>(())
/// ```
///
/// # Failures
///
/// A trajectory never makes a run fail. Lines that cannot be written are counted by
/// [`write_failures`](Self::write_failures), and the first failure is logged. The failure of a listener or of a
/// predicate is logged too. If a writer starts runs below the run whose line it writes, the lines of those runs count as
/// lines that cannot be written, because they would have to wait for the writer.
#[derive(Clone)]
pub struct Trajectory(Arc<TrajectoryPrinter>);

/// The state that all runs with this trajectory share.
struct TrajectoryPrinter {
    options: TrajectoryOptions,
    output: Output,
    emitter: Emitter,
}

impl Trajectory {
    /// Creates a trajectory that prints to standard output.
    #[must_use]
    pub fn stdout() -> Self {
        Self::new(TrajectoryOptions::default(), Output::new(Target::Stdout))
    }

    /// Creates a trajectory that prints to standard error.
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(TrajectoryOptions::default(), Output::new(Target::Stderr))
    }

    /// Returns a builder that sets options.
    pub fn builder() -> TrajectoryBuilder {
        TrajectoryBuilder::default()
    }

    fn new(options: TrajectoryOptions, output: Output) -> Self {
        let creator = Creator::new("Middleware", "trajectory");
        let emitter = Emitter::root().child_of(NAMESPACE).child_with(creator);
        Self(Arc::new(TrajectoryPrinter { options, output, emitter }))
    }

    /// Returns the emitter of the trajectory's own events.
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        &self.0.emitter
    }

    /// Returns the number of lines that could not be written.
    #[must_use]
    pub fn write_failures(&self) -> u64 {
        self.0.output.failures()
    }

    /// Returns a replay, which writes the lines of recorded runs to the same output, with the same options.
    pub fn replay(&self) -> TrajectoryReplay {
        TrajectoryReplay::new(Arc::clone(&self.0))
    }
}

impl Middleware for Trajectory {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        TreeSubscriber::bind(&self.0, ctx)
    }

    fn name(&self) -> &str {
        "trajectory"
    }
}

debug_as!(Trajectory, |this| this.0);

/// Writes a description like `to stdout, without named think, pretty`.
impl fmt::Debug for TrajectoryPrinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "to {:?}{:?}", self.output, self.options)
    }
}
