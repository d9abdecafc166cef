//! R4, R6, R8, R13: for every end, listener and position of the run in this table, a run emits `start` once, then
//! `success` or `error` once, then `finish` once, and then no event. The run above emits `finish` later.
//!
//! | ends by                        | as          | none   | sync | blocking | observing | failing        | panicking      | top level | nested | spawned |
//! |--------------------------------|-------------|--------|------|----------|-----------|----------------|----------------|-----------|--------|---------|
//! | its work: an output            | success     | =      | =    | =        | =         | start, success | start, success | yes       | yes    | yes     |
//! | an answer at its start         | success     | =      | =    | =        | =         | start, success | start, success | yes       | yes    | yes     |
//! | its work: an error             | failed      | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | its work: a panic              | panicked    | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | its work: a denial             | denied      | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | its work: a halt               | halted      | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | its work: an interrupt         | interrupted | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | a guard that denies            | denied      | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | a layer that halts             | halted      | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | an abort before it begins      | aborted     | =      | =    | =        | =         | =              | =              | yes       | yes    | yes     |
//! | an abort at its start          | aborted     | =      | =    | =        | =         | =              | =              | yes       | yes    | yes     |
//! | an abort during its work       | aborted     | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | a timeout                      | timed out   | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | the abort of its parent        | aborted     | =      | =    | =        | =         | start          | start          | –         | yes    | yes     |
//! | the drop of its future         | dropped     | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//! | the end of the runtime         | dropped     | =      | =    | =        | =         | start          | start          | yes       | yes    | yes     |
//!
//! The run has no listener, or one listener at one of the four stages: sync (`on`), blocking (`on_async`), observing
//! (`observe` and `observe_async`). With each of these methods, the listener succeeds, fails or panics. `=` means that
//! the run ends as it does without listeners. The columns *failing* and *panicking* list the stages at which a sync or
//! blocking listener makes the run end as failed or panicked instead; for other stages, and for observers, `=` applies.
//! After a failure at `start` the work does not begin, so a later end has no effect. A failure at `success` comes after
//! the work. Each case is tested at top level, in another run, and in a task of another run.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Gate, Manner, Recorder, Verb, below, silence_planned_panics};
use emitree_emitter::{Emitter, Options};
use emitree_runtime::{AbortHandle, Error, Guard, Interrupt, Op, Result, Run, RunContext, Runnable, Stage, Status};
use futures_util::future::{Either, pending, select};
use tokio::runtime::Builder;
use tokio::task::yield_now;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Succeeds,
    IsAnswered,
    Fails,
    IsDenied,
    IsHalted,
    Panics,
    IsAbortedBefore,
    IsAbortedBetween,
    IsAborted,
    TimesOut,
    ParentIsAborted,
    IsDropped,
    RuntimeEnds,
    IsInterrupted,
    GuardDenies,
    LayerHalts,
}

const ENDS: [End; 16] = [
    End::Succeeds,
    End::IsAnswered,
    End::Fails,
    End::IsDenied,
    End::IsHalted,
    End::Panics,
    End::IsAbortedBefore,
    End::IsAbortedBetween,
    End::IsAborted,
    End::TimesOut,
    End::ParentIsAborted,
    End::IsDropped,
    End::RuntimeEnds,
    End::IsInterrupted,
    End::GuardDenies,
    End::LayerHalts,
];
const STAGES: [Stage; 4] = [Stage::Start, Stage::Success, Stage::Error, Stage::Finish];
const VERBS: [Verb; 4] = [Verb::On, Verb::OnAsync, Verb::Observe, Verb::ObserveAsync];
const MANNERS: [Manner; 3] = [Manner::Fine, Manner::Fails, Manner::Panics];

impl End {
    async fn work(self, ctx: &RunContext) -> Result<()> {
        match self {
            Self::Succeeds => Ok(()),
            Self::Fails => Err(Error::new("a planned failure")),
            Self::IsDenied => Err(Error::denied("desk", "closed")),
            Self::IsHalted => Err(Error::halted("budget", "spent")),
            Self::Panics => panic!("a planned panic"),
            Self::IsAborted => {
                ctx.abort("enough");
                pending().await
            }
            Self::TimesOut | Self::ParentIsAborted | Self::IsDropped | Self::RuntimeEnds => pending().await,
            Self::IsInterrupted => Err(Error::interrupted(Interrupt::new("approval", "may I?"))),
            Self::IsAnswered
            | Self::IsAbortedBefore
            | Self::IsAbortedBetween
            | Self::GuardDenies
            | Self::LayerHalts => unreachable!("its work never begins"),
        }
    }

    const fn status(self) -> Status {
        match self {
            Self::Succeeds | Self::IsAnswered => Status::Success,
            Self::Fails => Status::Failed,
            Self::IsDenied | Self::GuardDenies => Status::Denied,
            Self::IsHalted | Self::LayerHalts => Status::Halted,
            Self::IsInterrupted => Status::Interrupted,
            Self::Panics => Status::Panicked,
            Self::IsAbortedBefore | Self::IsAbortedBetween | Self::IsAborted | Self::ParentIsAborted => Status::Aborted,
            Self::TimesOut => Status::TimedOut,
            Self::IsDropped | Self::RuntimeEnds => Status::Dropped,
        }
    }
}

/// A guard that denies by failing.
#[derive(Debug)]
struct Closed;

impl<O: Op> Guard<O> for Closed {
    async fn check_input(&self, _: &O::In, _: &RunContext) -> Result<()> {
        Err(Error::new("closed"))
    }
}

/// The position of a run: at top level, in another run, or in a task of another run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Top,
    Nested,
    Spawned,
}

type Listening = Option<(Stage, Verb, Manner)>;

#[derive(Clone, Copy, Debug)]
struct Row {
    end: End,
    listening: Listening,
    depth: Depth,
}

fn rows() -> impl Iterator<Item = Row> {
    let all = STAGES.into_iter().flat_map(|stage| VERBS.map(|verb| (stage, verb)));
    let all = all.flat_map(|(stage, verb)| MANNERS.map(|manner| Some((stage, verb, manner))));
    let listenings: Vec<Listening> = std::iter::once(None).chain(all).collect();
    let of_end = move |end| {
        let of_listening = move |&listening: &Listening| {
            [Depth::Top, Depth::Nested, Depth::Spawned].map(|depth| Row { end, listening, depth })
        };
        listenings.iter().flat_map(of_listening).collect::<Vec<_>>()
    };
    let has_a_parent = |row: &Row| row.end != End::ParentIsAborted || row.depth != Depth::Top;
    ENDS.into_iter().flat_map(of_end).filter(has_a_parent)
}

impl Row {
    /// Returns the status with which the row's listener makes the run fail at this stage, if it does.
    fn fails_at(&self, at: Stage) -> Option<Status> {
        let (stage, verb, manner) = self.listening?;
        let status = if manner == Manner::Panics { Status::Panicked } else { Status::Failed };
        (stage == at && verb.may_fail() && manner != Manner::Fine).then_some(status)
    }

    /// Returns `true` unless a listener of `start` makes the run fail before this end.
    fn comes_to_end(&self) -> bool {
        matches!(self.end, End::IsAbortedBefore | End::IsAbortedBetween) || self.fails_at(Stage::Start).is_none()
    }

    /// Returns the second event of the run, and the status with which it ends.
    fn expected_of_run(&self) -> (&'static str, Status) {
        match (self.fails_at(Stage::Start), self.fails_at(Stage::Success)) {
            (Some(status), _) if !self.comes_to_end() => ("error", status),
            (_, failed) if self.end.status() == Status::Success => ("success", failed.unwrap_or(Status::Success)),
            _ => ("error", self.end.status()),
        }
    }

    fn expected_of_parent(&self) -> (&'static str, Status) {
        match self.end {
            End::ParentIsAborted if self.comes_to_end() => ("error", Status::Aborted),
            End::RuntimeEnds if self.comes_to_end() => ("error", Status::Dropped),
            _ => ("success", Status::Success),
        }
    }

    fn expected(&self) -> Vec<String> {
        let lines = |name: &str, (second, status): (&str, Status)| {
            ["start".into(), second.into(), format!("finish {}", status.as_str())]
                .map(|line: String| format!("{name}.run.{line}"))
        };
        let run = lines("run", self.expected_of_run());
        if self.depth == Depth::Top {
            return run.into();
        }
        let [start, end, finish] = lines("parent", self.expected_of_parent());
        std::iter::once(start).chain(run).chain([end, finish]).collect()
    }
}

/// The emitter, the gate and the row that a test run is built from.
#[derive(Clone)]
struct Stand {
    tree: Emitter,
    /// Opens when the work begins.
    working: Gate,
    row: Row,
}

impl Stand {
    fn build(&self) -> Run<'static, impl Runnable<Input = (), Output = ()> + use<>> {
        let (end, working) = (self.row.end, self.working.clone());
        let subject = Arc::new(below(&self.tree, "run", move |(), ctx: RunContext| {
            let working = working.clone();
            async move {
                working.open();
                end.work(&ctx).await
            }
        }));
        let handle = AbortHandle::new();
        let run = subject.run_shared(()).abort_on(&handle);
        let run = match end {
            End::IsAnswered => run.on_start(|start, _| start.output = Some(())),
            End::TimesOut => run.timeout(Duration::from_secs(1)),
            End::GuardDenies => run.layers(|stack| stack.guard(Closed)),
            End::LayerHalts => run.layers(|stack| {
                stack.layer_fn("spent", |(), _, _| Box::pin(async { Err(Error::halted("budget", "spent")) }))
            }),
            End::IsAbortedBefore => {
                handle.abort("too late");
                run
            }
            End::IsAbortedBetween => run.on_start(move |_, _| {
                handle.abort("not today");
            }),
            _ => run,
        };
        let listening = self.row.listening.into_iter();
        listening.fold(run, |run, (stage, verb, manner)| run.register(verb.registration(Options::new(), stage, manner)))
    }

    /// Awaits a run, or drops it during its work.
    async fn attend<T>(&self, run: impl Future<Output = T> + Unpin) {
        match self.row.end {
            End::IsDropped | End::ParentIsAborted => drop(select(run, Box::pin(self.working.pass())).await),
            _ => drop(run.await),
        }
    }

    async fn in_parent(&self, ctx: &RunContext) -> Result<()> {
        let mut run: std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send>> = match self.row.depth {
            Depth::Spawned => Box::pin(ctx.spawn(self.build()).map_flat()),
            Depth::Top | Depth::Nested => Box::pin(self.build()),
        };
        match self.row.end {
            End::ParentIsAborted => match select(&mut run, Box::pin(self.working.pass())).await {
                Either::Left(_) => Ok(()),
                Either::Right(_) => {
                    ctx.abort("enough");
                    pending().await
                }
            },
            _ => {
                self.attend(run).await;
                Ok(())
            }
        }
    }

    async fn run(self) {
        if self.row.depth == Depth::Top {
            return self.attend(self.build()).await;
        }
        let tree = self.tree.clone();
        let parent = below(&tree, "parent", move |(), ctx: RunContext| {
            let stand = self.clone();
            async move { stand.in_parent(&ctx).await }
        });
        drop(parent.run(()).await);
    }
}

/// Awaits a task, and flattens its result.
trait MapFlat {
    fn map_flat(self) -> impl Future<Output = Result<()>> + Send;
}

impl MapFlat for emitree_runtime::Task<Result<()>> {
    async fn map_flat(self) -> Result<()> {
        self.await?
    }
}

/// Runs a row in its own runtime, and returns the recorded events.
fn record(row: Row) -> Vec<String> {
    let (tree, recorder, working) = (Emitter::new(), Recorder::new(), Gate::new());
    recorder.ends(&tree);
    let stand = Stand { tree, working: working.clone(), row };
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let task = tokio::spawn(stand.run());
        match row.end {
            End::RuntimeEnds => drop(select(task, Box::pin(working.pass())).await),
            _ => task.await.expect("no panic leaves a run"),
        }
        // Let tasks finish the ends that are still pending.
        for _ in 0..16 {
            yield_now().await;
        }
    });
    drop(runtime);
    recorder.take()
}

// R4, R6, R8, R13
#[test]
fn every_run_that_starts_ends_once_and_finishes_once_before_its_parent() {
    silence_planned_panics();
    let faults: Vec<_> = rows()
        .filter_map(|row| {
            let (expected, recorded) = (row.expected(), record(row));
            (recorded != expected).then(|| format!("{row:?}\n  expected {expected:?}\n  recorded {recorded:?}"))
        })
        .collect();
    assert!(faults.is_empty(), "{} of {} rows:\n{}", faults.len(), rows().count(), faults.join("\n"));
    assert_eq!(rows().count(), (16 * 3 - 1) * 49);
}
