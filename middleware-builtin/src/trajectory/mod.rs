//! What a run does, line by line: [`Trajectory`], and what can be said of it.

mod bound;
mod builder;
mod level;
mod line;
mod origin;
mod payload;
mod prefix;
mod replay;
mod settings;
mod speaker;
mod target;

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{Creator, Emitter, Namespace};
use emitree_runtime::{Middleware, Result, RunContext};

use self::bound::Bound;
use self::settings::Settings;
use self::target::Output;

pub use self::builder::{TrajectoryBuilder, TrajectoryError};
pub use self::level::Level;
pub use self::line::Line;
pub use self::origin::Origin;
pub use self::replay::Replay;
pub use self::speaker::TrajectoryEvent;
pub use self::target::Target;

const NAMESPACE: Namespace = Namespace::new("middleware.trajectory");

/// Prints a run and everything below it: a line for each `start`, `success` and `error`, indented by depth.
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
/// A line is four spaces for each level of the run's parent, then, for anything below the bound run, `-->` on start
/// and `<--` otherwise; then `Kind[name][event]: payload`. The payload is JSON with sorted keys; that of an error is
/// its [`explain`](emitree_runtime::Error::explain).
///
/// [`Trajectory::stdout`] makes one, [`Trajectory::builder`] one with options. Clones are the same one: it may be
/// bound to any number of runs, at the same time too. Each is then shown completely; lines of different runs may
/// stand between one another, but each line is written whole.
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
/// # Its own events
///
/// Before it writes a line it emits `start`, `success` or `error` on an emitter of its own, and `finish`, which it does
/// not write: a [`TrajectoryEvent`] with the bound run's ids. They are made only if somebody listens there or above. The
/// emitter is `middleware.trajectory`, a child of the root.
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
/// A line that cannot be written is counted by [`write_failures`](Self::write_failures), and the first is logged; the
/// run goes on. So it does if a listener, a formatter or a predicate fails.
#[derive(Clone)]
pub struct Trajectory(Arc<Shared>);

/// What all that it is bound to share.
struct Shared {
    settings: Settings,
    output: Output,
    emitter: Emitter,
}

impl Trajectory {
    /// One that prints to the standard output, without further options.
    #[must_use]
    pub fn stdout() -> Self {
        Self::of(Settings::default(), Output::stdout())
    }

    /// One that prints to the standard error output, without further options.
    #[must_use]
    pub fn stderr() -> Self {
        Self::of(Settings::default(), Output::stderr())
    }

    /// Builds one with options.
    pub fn builder() -> TrajectoryBuilder {
        TrajectoryBuilder::default()
    }

    fn of(settings: Settings, output: Output) -> Self {
        let creator = Creator::new("Middleware", "trajectory");
        let emitter = Emitter::root().child_of(NAMESPACE).child_with(creator);
        Self(Arc::new(Shared { settings, output, emitter }))
    }

    /// The emitter of its own events.
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        &self.0.emitter
    }

    /// How many lines could not be written.
    #[must_use]
    pub fn write_failures(&self) -> u64 {
        self.0.output.failures()
    }

    /// Shows what was recorded as it shows what happens, at the same target and with the same options.
    pub fn replay(&self) -> Replay {
        Replay::new(Arc::clone(&self.0))
    }
}

impl Middleware for Trajectory {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if !self.0.settings.is_enabled {
            return Ok(());
        }
        Bound::new(&self.0, ctx).observe(ctx)
    }

    fn name(&self) -> &str {
        "trajectory"
    }
}

impl fmt::Debug for Trajectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Such as `to stdout, without of Timer, pretty`.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, output, .. } = self;
        write!(f, "to {output:?}{settings:?}")
    }
}
