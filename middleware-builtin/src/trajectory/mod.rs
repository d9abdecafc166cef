//! An indented tree of a run and the runs below it: [`Trajectory`].

mod builder;
mod escape;
mod kinds;
mod line;
mod notes;
mod output;
mod own_events;
mod printer;
mod recorded_event;
mod replay;
mod subscriber;
mod terminal;
mod tree;

use std::sync::Arc;

use emitree_emitter::{Creator, Emitter, Namespace};
use emitree_runtime::{Middleware, Result, RunContext};

use self::builder::TrajectoryOptions;
use self::output::{Output, Target};
use self::printer::TrajectoryPrinter;
use self::subscriber::TreeSubscriber;

pub use self::builder::TrajectoryBuilder;
pub use self::own_events::TrajectoryEvent;
pub use self::replay::TrajectoryReplay;
pub use self::tree::Level;
use crate::shared::built_in::debug_as;

const NAMESPACE: Namespace = Namespace::new("middleware.trajectory");
const NAME: &str = "trajectory";

/// Prints a run and the runs below it: who was asked what, what came back, and why it failed.
///
/// ```text
/// Agent[desk][start]: How is the weather in Oslo and in Rome?
/// --> ChatModel[gpt][start]: How is the weather in Oslo and in Rome?
/// ... ChatModel[gpt]: retry 1 of 2 after 429, in 1.2s
/// <-- ChatModel[gpt][success]: weather(city: Oslo) weather(city: Rome)
/// --> Tool[weather][start]: city: Oslo
/// --> Tool[weather][start] #2: city: Rome
/// <-- Tool[weather][success] #1: 9 °C, rain
/// <-- Tool[weather][error] #2: no answer
///   | input: city: Rome
/// Agent[desk][success]: Oslo has 9 °C and rain. Rome did not answer.
/// ```
///
/// A line reads `Kind[name][event]: value`. Lines of runs below the bound run are indented by depth, and begin with
/// `-->` for `start`, with `<--` for `success` and `error`, and with `...` for [notes](#notes).
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
/// // * Run[double][start]: 21
/// // * Run[double][success]: 42
/// # Ok(())
/// # }
/// ```
///
/// # Values
///
/// A line of `start` shows the input, and a line of `success` the output, as text: a model's new messages and its reply
/// or calls, an agent's question and answer, a tool's arguments and result. An object is shown as `path: README.md, top:
/// 5`, without members that are `null`. If a listener has set the output at `start`, the line ends with ` => ` and the
/// output. A line of `error` shows the [explanation](emitree_runtime::Error::explain) of the error and the first 60
/// characters of the input. [`TrajectoryBuilder::json`] prints values as JSON.
///
/// Characters that act on a terminal are escaped, wherever they come from: control characters (C0 and C1, except for the
/// line feeds of errors and [pretty](TrajectoryBuilder::pretty) values), separators of lines and paragraphs, and
/// characters that change the direction of text. Each further row of a line begins with `  | `, so that no value looks
/// like another line.
///
/// # Concurrent runs
///
/// While runs of one kind and name overlap below one run, their lines have numbers, such as ` #2`, and so have the lines
/// of the runs below them: ` #2.1`. The first line of the first of these runs has no number, because nothing overlaps
/// with it yet.
///
/// # Many runs
///
/// From the twentieth run of one kind and name below a run, successes are counted. Before the end of the run above, one
/// line shows their number, the median of their durations (within 3 %) and the longest:
/// `<-- Tool[fetch][success]: 81 more, p50 120.0ms, max 1.2s`. The runs below them have no lines either, but errors are
/// always shown. [`TrajectoryBuilder::every`] shows all runs.
///
/// # Notes
///
/// Notes show what happens between the start and the end of a run: attempts, answers from a cache or a store, fallbacks,
/// waits for a limit, questions and answers, handoffs, messages to a running agent, summaries, and calls that failed
/// without a run. They come from the events of agents and of the middlewares of this workspace. A denial is an `error`.
///
/// # On a terminal
///
/// If standard output or standard error is a terminal, a trajectory that writes to it colors `[success]` and `[error]`,
/// prints the duration of each run, and cuts a value that is wider than the terminal, with its size:
/// `Tool[read_file][success] (1.2ms): # emitree … 8.1 KB`. Errors and [pretty](TrajectoryBuilder::pretty) values are
/// wrapped instead. [`TrajectoryBuilder::full`] cuts nothing, and the variable `NO_COLOR` turns colors off. Messages of
/// [its own events](#its-own-events), pipes and files have the plain lines.
///
/// # Order
///
/// A line is written after all listeners have received the event, so it shows their changes.
///
/// # Its own events
///
/// Before it writes the line of a `start`, `success` or `error`, a trajectory emits a [`TrajectoryEvent`] of that name
/// on [its own emitter](Self::emitter), `middleware.trajectory`, which is below the root. A trajectory also emits
/// `finish` and for [counted](#many-runs) runs, for which it writes no line. The events carry the ids of the bound run, and are emitted only if the
/// emitter has listeners.
///
/// Listeners may change the message, which is escaped after them. The event is emitted with [`emit_now`](Emitter::emit_now): if an async listener
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
        let creator = Creator::new("Middleware", NAME);
        let emitter = Emitter::root().child_of(NAMESPACE).child_with(creator);
        Self(Arc::new(TrajectoryPrinter::new(options, output, emitter)))
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
        NAME
    }
}

debug_as!(Trajectory, |this| this.0);
