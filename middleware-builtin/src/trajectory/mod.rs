//! An indented tree of a run and the runs below it: [`Trajectory`].

mod builder;
mod level;
mod line;
mod options;
mod output;
mod own_events;
mod recorded_event;
mod replay;
mod subscriber;

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
/// A line reads `Kind[name][event]: payload`. Lines of runs below the bound run are indented, and begin with `-->` on
/// start and with `<--` otherwise. The payload is JSON with sorted keys and without members that are `null`; the
/// payload of an error is its [`explain`](emitree_runtime::Error::explain).
///
/// [`Trajectory::stdout`] and [`Trajectory::stderr`] create one with default options, [`Trajectory::builder`] one with
/// others. Clones share the output. A trajectory may be bound to any number of runs, also at the same time: each is
/// shown completely, and each line is written whole, but lines of concurrent runs interleave.
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
/// # Order
///
/// A line is written when all listeners have received the event, so it shows what they changed.
///
/// # Its own events
///
/// Before it writes a line, a trajectory emits a [`TrajectoryEvent`] as `start`, `success` or `error` on [its own
/// emitter](Self::emitter), `middleware.trajectory`, a child of the root. It also emits `finish`, which it does not
/// write. The events carry the ids of the bound run, and are emitted only if the emitter has listeners.
///
/// Listeners may change the message. They are called in place: while an async listener would receive the event, no
/// listener receives it, the failure is logged, and the line is written unchanged, as with
/// [`emit_now`](Emitter::emit_now).
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
/// [`write_failures`](Self::write_failures), and the first is logged. A failing listener or predicate is logged.
#[derive(Clone)]
pub struct Trajectory(Arc<TrajectoryPrinter>);

/// The state that all runs with this trajectory share.
struct TrajectoryPrinter {
    options: TrajectoryOptions,
    output: Output,
    emitter: Emitter,
}

impl Trajectory {
    /// Creates a trajectory that prints to the standard output.
    #[must_use]
    pub fn stdout() -> Self {
        Self::new(TrajectoryOptions::default(), Output::new(Target::Stdout))
    }

    /// Creates a trajectory that prints to the standard error output.
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(TrajectoryOptions::default(), Output::new(Target::Stderr))
    }

    /// Returns a builder with options.
    pub fn builder() -> TrajectoryBuilder {
        TrajectoryBuilder::default()
    }

    fn new(options: TrajectoryOptions, output: Output) -> Self {
        let creator = Creator::new("Middleware", "trajectory");
        let emitter = Emitter::root().child_of(NAMESPACE).child_with(creator);
        Self(Arc::new(TrajectoryPrinter { options, output, emitter }))
    }

    /// Returns the emitter of its own events.
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        &self.0.emitter
    }

    /// Returns how many lines could not be written.
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
