//! The recording of a tree: the events that an observer at the root received, in order, and the entries that runs,
//! listeners, bindings and callers added.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emitree::error::ErrorKind;
use emitree::lifecycle::{LifecycleRef, Stage, Start};
use emitree::{AnyEvent, Emitter, Error, EventMeta, Outcome, RunContext, Status};

use crate::plan::{Binding, Verb};

/// The id of a run.
pub(crate) type Id = u128;

/// One entry of a recording.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Event(Event),
    /// The work of a run begins.
    Works {
        run: Id,
    },
    /// A listener was called and is about to fail or panic.
    Raised {
        run: Id,
        stage: Stage,
        verb: Verb,
        panics: bool,
    },
    /// A binding is added to a run.
    Binds(Binding),
    /// A thread is about to abort the run of a node, with all runs below.
    Aborts {
        node: u32,
    },
    /// The runtime of the tree is about to be dropped.
    RuntimeGoes,
    /// The runtime has been dropped.
    RuntimeGone,
    /// Code inside a run found another current run, or none.
    Astray {
        run: Id,
    },
    /// A panic escaped from the run of a node.
    Escaped {
        node: u32,
    },
    /// The code that awaited the run of a node received its result.
    Returned {
        node: u32,
        status: Status,
    },
}

/// A lifecycle event, as the observer received it.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) run: Id,
    pub(crate) parent: Option<Id>,
    pub(crate) stage: Stage,
    /// For `error` and `finish`: the status of the run.
    pub(crate) status: Option<Status>,
    /// For `error`: the reason for the abort.
    pub(crate) reason: Option<String>,
    /// For `start`: the node of the run, and how the run began.
    pub(crate) begun: Option<Begun>,
}

#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) node: u32,
    pub(crate) is_spawned: bool,
    pub(crate) is_answered: bool,
}

/// A recording. Clones share their entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Entry>>>);

/// The namespaces of the runs' instances.
pub(crate) const IN_PLACE: &str = "in_place";
pub(crate) const SPAWNED: &str = "spawned";

impl Log {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.entries())
    }

    /// Records the lifecycle of all runs below an emitter.
    pub(crate) fn observe(&self, root: &Emitter) {
        let log = self.clone();
        root.observe("*.*", move |event: &dyn AnyEvent, meta| log.record(event, meta)).expect("a valid matcher");
    }

    fn record(&self, event: &dyn AnyEvent, meta: &EventMeta<'_>) {
        let (Some(stage), Some(trace)) = (Stage::of(meta), meta.trace()) else { return };
        let (status, error) = match LifecycleRef::of(event, meta) {
            Some(LifecycleRef::Error(failure)) => {
                (Some(status_of(Err::<(), _>(failure.error()))), Some(failure.error()))
            }
            Some(LifecycleRef::Finish(finish)) => (Some(finish.status()), None),
            _ => (None, None),
        };
        let reason = error.filter(|error| *error.kind() == ErrorKind::Aborted).map(Error::to_string);
        let run = trace.run_id.as_u128();
        let begun = event.downcast_ref::<Start<u32, u32>>().map(|start| Begun {
            node: start.input,
            is_spawned: meta.source().namespace() == SPAWNED,
            is_answered: start.output.is_some(),
        });
        let parent = trace.parent_run_id.map(|id| id.as_u128());
        self.look_around(run);
        self.entries().push(Entry::Event(Event { run, parent, stage, status, reason, begun }));
    }

    /// Records [`Entry::Astray`] if this run is not the current run.
    pub(crate) fn look_around(&self, run: Id) {
        if current() != Some(run) {
            self.astray(run);
        }
    }

    pub(crate) fn astray(&self, run: Id) {
        self.entries().push(Entry::Astray { run });
    }

    pub(crate) fn works(&self, run: Id) {
        self.look_around(run);
        self.entries().push(Entry::Works { run });
    }

    pub(crate) fn binds(&self, binding: Binding) {
        self.entries().push(Entry::Binds(binding));
    }

    pub(crate) fn aborts(&self, node: u32) {
        self.entries().push(Entry::Aborts { node });
    }

    pub(crate) fn runtime_goes(&self) {
        self.entries().push(Entry::RuntimeGoes);
    }

    pub(crate) fn runtime_gone(&self) {
        self.entries().push(Entry::RuntimeGone);
    }

    pub(crate) fn raised(&self, meta: &EventMeta<'_>, verb: Verb, panics: bool) {
        if let (Some(stage), Some(trace)) = (Stage::of(meta), meta.trace()) {
            let run = trace.run_id.as_u128();
            self.look_around(run);
            self.entries().push(Entry::Raised { run, stage, verb, panics });
        }
    }

    pub(crate) fn escaped(&self, node: u32) {
        self.entries().push(Entry::Escaped { node });
    }

    pub(crate) fn returned<T>(&self, node: u32, result: &Result<T, Error>) {
        self.entries().push(Entry::Returned { node, status: status_of(result.as_ref()) });
    }
}

fn status_of<T>(result: Result<T, &Error>) -> Status {
    result.map_or_else(|error| Outcome::<()>::of_error(error).status(), |_| Status::Success)
}

fn current() -> Option<Id> {
    RunContext::current().map(|run| run.run_id().as_u128())
}
