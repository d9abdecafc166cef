//! Steps whose work is a run of something else: an agent or another workflow.

use std::any::TypeId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use emitree_runtime::{Data, Result, RunContext, Runnable};
use futures_core::future::BoxFuture;

use crate::workflow::{Goto, Workflow, WorkflowOutput};
use emitree_agent::{Agent, AgentInput, AgentOutput};

/// Makes a step that asks an agent. The first function makes the agent's input from the state, and the second takes the
/// answer into the state. Pass it to [`WorkflowBuilder::step`](super::WorkflowBuilder::step).
///
/// Each run of the step is a conversation of its own. If the agent fails, the step fails with the agent's error. To go on
/// with a session, or to fail on an answer, run the agent in a function of your own:
/// `let answer = critic.ask(…).session(&session).await?`.
///
/// In a job, the agent's session is stored under the key of the step and a `/1`, such as `order-17/2-check/1`, where its
/// questions are answered. After a kill the agent goes on with it. Use no session of your own there: a step that asks is
/// executed again, and would add its input to that session again.
pub fn ask<S, I, In, Back>(
    agent: &Agent,
    input: In,
    back: Back,
) -> impl for<'a> Fn(&'a mut S, &'a RunContext) -> BoxFuture<'a, Result<Goto>> + Send + Sync + use<S, I, In, Back>
where
    S: Data,
    I: Into<AgentInput>,
    In: Fn(&S) -> I + Send + Sync + 'static,
    Back: Fn(&mut S, AgentOutput) -> Goto + Send + Sync + 'static,
{
    delegate(Arc::new(agent.clone()), move |state: &S| input(state).into(), back)
}

/// Makes a step that runs another workflow. The first function makes the state of that workflow, and the second takes
/// its output into the state. Pass it to [`WorkflowBuilder::step`](super::WorkflowBuilder::step).
///
/// The workflow runs below the run of the step, with its own number of steps. If it fails, the step fails with its
/// error, whose detail `step` names the inner step.
///
/// ```
/// use emitree_agent_kit::workflow::{Goto, Workflow, sub_workflow};
/// use emitree_runtime::Runnable;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = Workflow::builder("double")
///     .step("add", |state: &mut (u32, u32), _| {
///         Box::pin(async move {
///             state.1 += state.0;
///             Ok(Goto::End)
///         })
///     })
///     .build()?;
/// let back = |n: &mut u32, done: emitree_agent_kit::workflow::WorkflowOutput<(u32, u32)>| {
///     *n = done.state.1;
///     if *n < 100 { Goto::Same } else { Goto::Next }
/// };
/// let grow = Workflow::builder("grow").step("twice", sub_workflow(&double, |n: &u32| (*n, *n), back)).build()?;
/// assert_eq!(grow.run(3).await?.state, 192);
/// # Ok(())
/// # }
/// ```
pub fn sub_workflow<S, T, In, Back>(
    workflow: &Workflow<T>,
    input: In,
    back: Back,
) -> impl for<'a> Fn(&'a mut S, &'a RunContext) -> BoxFuture<'a, Result<Goto>> + Send + Sync + use<S, T, In, Back>
where
    S: Data,
    T: Data + Clone,
    In: Fn(&S) -> T + Send + Sync + 'static,
    Back: Fn(&mut S, WorkflowOutput<T>) -> Goto + Send + Sync + 'static,
{
    delegate(Arc::new(workflow.clone()), input, back)
}

fn delegate<S, R, In, Back>(runnable: Arc<R>, input: In, back: Back) -> Box<dyn Delegate<S>>
where
    S: Data,
    R: Runnable + 'static,
    In: Fn(&S) -> R::Input + Send + Sync + 'static,
    Back: Fn(&mut S, R::Output) -> Goto + Send + Sync + 'static,
{
    let back = Arc::new(back);
    Box::new(move |state: &mut S, ctx: &RunContext| {
        // The step's run calls this function, and so is the parent.
        let run = runnable.run_shared(input(state));
        let run = match ctx.key() {
            Some(_) => run.key(ctx.own_extension_or_default::<Delegated>().next()),
            None => run,
        };
        let back = Arc::clone(&back);
        Box::pin(async move { Ok(back(state, run.await?)) })
    })
}

/// The number of runs that `ask` and `sub_workflow` have started in one execution of a step. Their keys are these
/// numbers.
#[derive(Default)]
pub(super) struct Delegated(AtomicU32);

impl Delegated {
    fn next(&self) -> String {
        (self.0.fetch_add(1, Ordering::Relaxed) + 1).to_string()
    }
}

/// The function of a step that `ask` or `sub_workflow` has made: it has no effects but those of its run. The trait makes
/// its box another type than the functions of users have, which may be boxed as well. A step is built from any function,
/// because the compiler infers the types of a closure's parameters only from `Fn`.
pub(super) trait Delegate<S>:
    for<'a> Fn(&'a mut S, &'a RunContext) -> BoxFuture<'a, Result<Goto>> + Send + Sync
{
}

impl<S, F> Delegate<S> for F where F: for<'a> Fn(&'a mut S, &'a RunContext) -> BoxFuture<'a, Result<Goto>> + Send + Sync {}

/// Returns `true` for the type of a function that `ask` or `sub_workflow` has made.
pub(super) fn is_delegate<S: 'static, F: 'static>() -> bool {
    TypeId::of::<F>() == TypeId::of::<Box<dyn Delegate<S>>>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::step::Work;

    fn is<F: 'static>(_: &F) -> bool {
        is_delegate::<u32, F>()
    }

    #[test]
    fn only_the_functions_of_ask_and_sub_workflow_are_known_as_such() -> Result<()> {
        let boxed: Box<Work<u32>> = Box::new(|_, _| Box::pin(async { Ok(Goto::End) }));
        assert!(!is(&boxed));
        let inner = Workflow::<u32>::builder("inner").step("a", boxed).build()?;
        assert!(is(&sub_workflow(&inner, |n: &u32| *n, |_: &mut u32, _| Goto::End)));
        Ok(())
    }
}
