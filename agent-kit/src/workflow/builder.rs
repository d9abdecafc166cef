//! Building a workflow.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::{Creator, Emitter};
use emitree_middleware::durable::{JobStore, OnlySteps};
use emitree_runtime::{
    Data, Error, IntoMiddleware, Middleware, Result, RunContext, RunKey, check_guards, middleware_fn,
};
use futures_core::future::BoxFuture;

use crate::workflow::delegate::is_delegate;
use crate::workflow::events::declared;
use crate::workflow::step::{Repeats, Work};
use crate::workflow::{Goto, Inner, Step, Workflow};

/// Builds a [`Workflow`]. Created by [`Workflow::builder`].
#[must_use]
pub struct WorkflowBuilder<S> {
    name: String,
    steps: Vec<(String, Box<Work<S>>, Repeats)>,
    start: Option<String>,
    max_steps: u32,
    middlewares: Vec<Arc<dyn Middleware>>,
}

impl<S: Data + Clone> WorkflowBuilder<S> {
    pub(super) fn new(name: String) -> Self {
        Self { name, steps: Vec::new(), start: None, max_steps: 100, middlewares: Vec::new() }
    }

    /// Adds a step: a function that changes a copy of the state, and returns the step that follows.
    /// [`ask`](super::ask) and [`sub_workflow`](super::sub_workflow) make such functions.
    ///
    /// The function may await what it needs, for example other runs, which are then below the run of the step. For work
    /// side by side, use `join!` inside one step.
    pub fn step<F>(mut self, name: impl Into<String>, work: F) -> Self
    where
        F: for<'a> Fn(&'a mut S, &'a RunContext) -> BoxFuture<'a, Result<Goto>> + Send + Sync + 'static,
    {
        let repeats = if is_delegate::<S, F>() { Repeats::GoesOn } else { Repeats::Asks };
        self.steps.push((name.into(), Box::new(work), repeats));
        self
    }

    /// Adds a step whose function may be called again without further effects. If the workflow is a job, or a step of one,
    /// and its process was killed in this step, the step is executed again, with the same key
    /// ([`RunContext::key`]); another step becomes a question, because it may have had its effects. Steps of
    /// [`ask`](super::ask) and [`sub_workflow`](super::sub_workflow) go on by themselves.
    pub fn step_idempotent<F>(mut self, name: impl Into<String>, work: F) -> Self
    where
        F: for<'a> Fn(&'a mut S, &'a RunContext) -> BoxFuture<'a, Result<Goto>> + Send + Sync + 'static,
    {
        self.steps.push((name.into(), Box::new(work), Repeats::Idempotent));
        self
    }

    /// Sets the step with which the workflow starts, by default the first.
    pub fn start(mut self, name: impl Into<String>) -> Self {
        self.start = Some(name.into());
        self
    }

    /// Sets the maximum number of steps in one attempt of a run, by default 100. An attempt that needs more steps fails.
    /// The steps of sub-workflows do not count.
    pub const fn max_steps(mut self, max_steps: u32) -> Self {
        self.max_steps = max_steps;
        self
    }

    /// Binds a [`Middleware`] to each run of the workflow, but not to the runs of its steps. To reach those as well, use
    /// [`for_tree`](emitree_runtime::for_tree).
    pub fn middleware<Sort>(mut self, middleware: impl IntoMiddleware<Sort>) -> Self {
        self.middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }

    /// Builds the workflow.
    ///
    /// # Errors
    ///
    /// Returns an error if the name of the workflow or of a step is empty or cannot be part of a namespace, if there are
    /// no steps, if the name of a step is too long for a [key](RunKey), if two steps have the same name, if there is no
    /// step with the name of [`start`](Self::start), if `max_steps` is 0, or if a guard is bound to the workflow, but does
    /// not handle its runs ([`check_guards`]).
    pub fn build(self) -> Result<Workflow<S>> {
        let Self { name, steps, start, max_steps, middlewares } = self;
        if steps.is_empty() {
            return Err(Error::new(format!("the workflow `{name}` has no steps: add one with `step(name, function)`")));
        }
        if max_steps == 0 {
            return Err(Error::new(format!("`max_steps(0)` allows the workflow `{name}` no step: allow at least 1")));
        }
        let namespace = segment(&name);
        let emitter = declared::<S>(Emitter::root().child_builder(["workflow", &namespace]))
            .creator(Creator::new("Workflow", name.clone()))
            .build()?;
        let mut places = HashMap::new();
        let steps = steps.into_iter().map(|(step, work, repeats)| {
            let step: Arc<str> = step.into();
            if step.is_empty() {
                return Err(Error::new(format!("the workflow `{name}` has a step with an empty name: name each step")));
            }
            if places.insert(Arc::clone(&step), places.len()).is_some() {
                return Err(Error::new(format!("the workflow `{name}` has two steps called `{step}`")));
            }
            let emitter = Emitter::root()
                .child_builder(["workflow", &namespace, &segment(&step)])
                .creator(Creator::new("Step", step.to_string()))
                .build()?;
            // The key of the step in a job.
            RunKey::new(&format!("{max_steps}-{step}")).map_err(|error| {
                Error::new(format!(
                    "the workflow `{name}` cannot have a step called `{step}`: with its number, {error}"
                ))
            })?;
            Ok(Step { name: step, emitter, work, repeats })
        });
        let steps = steps.collect::<Result<Vec<_>>>()?;
        let start = start.map_or(Ok(0), |start| {
            let unknown = || format!("the workflow `{name}` cannot start with `{start}`; {}", listed(&steps));
            places.get(&*start).copied().ok_or_else(|| Error::new(unknown()))
        })?;
        let middlewares =
            std::iter::once(Arc::new(middleware_fn(in_steps)) as Arc<dyn Middleware>).chain(middlewares).collect();
        let workflow = Workflow(Arc::new(Inner { emitter, steps, places, start, max_steps, middlewares }));
        check_guards(&workflow)?;
        Ok(workflow)
    }
}

/// Marks the run of a workflow in a job: it goes on at the step that was under way.
fn in_steps(ctx: &RunContext) -> Result<()> {
    if ctx.extension::<JobStore>().is_some() {
        ctx.set_own_extension(OnlySteps);
    }
    Ok(())
}

/// Returns the segment of a namespace for a name.
fn segment(name: &str) -> String {
    name.replace(['-', ' '], "_")
}

/// Returns the list of steps for an error.
pub(super) fn listed<S>(steps: &[Step<S>]) -> String {
    let names: Vec<_> = steps.iter().map(|step| format!("`{}`", step.name)).collect();
    format!("its steps are {}", names.join(", "))
}

impl<S> fmt::Debug for WorkflowBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<_> = self.steps.iter().map(|(name, ..)| name).collect();
        f.debug_struct("WorkflowBuilder").field("name", &self.name).field("steps", &steps).finish_non_exhaustive()
    }
}
