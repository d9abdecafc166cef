//! The rules of one turn, and what a rule is made from: the steps so far.

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Result, RunContext};
use futures_core::future::BoxFuture;

use emitree_agent::hook::AgentSpec;
use emitree_agent::{ToolCall, ToolOutput};

/// Rules for the tools of an agent that depend on the calls so far. A [`Requirement`](super::Requirement) is one
/// implementation; add your own with [`Requirements::and`](super::Requirements::and).
///
/// ```
/// use emitree_agent_kit::requirements::{Requirement, Requirements, Rule, Rules, Step};
/// use emitree_runtime::RunContext;
///
/// /// Denies searches when they have cost this much.
/// #[derive(Debug)]
/// struct Budget(u64);
///
/// impl Rules for Budget {
///     fn rules(&self, steps: &[Step], _: &RunContext) -> Vec<Rule> {
///         let spent: u64 = steps.iter().filter_map(|step| step.output()?.content["cost"].as_u64()).sum();
///         if spent < self.0 { vec![] } else { vec![Rule::deny("search", "the budget is spent")] }
///     }
/// }
///
/// let requirements = Requirements::new([Requirement::tool("search").at_least(1)]).and(Budget(100));
/// ```
pub trait Rules: fmt::Debug + Send + Sync + 'static {
    /// Returns the rules for the next call. A tool without a rule is allowed. Called before each model call, and once
    /// more for each further call of a turn.
    ///
    /// `steps` are the calls of this run that succeeded, in the order of their results. The calls of the current turn
    /// that will be executed follow, without an output.
    fn rules(&self, steps: &[Step], ctx: &RunContext) -> Vec<Rule>;

    /// Returns `true` if failed calls are steps too, by default `false`.
    fn counts_failures(&self) -> bool {
        false
    }

    /// Checks the rules against the agent, as [`AgentMiddleware::check`](emitree_agent::AgentMiddleware::check) does.
    ///
    /// # Errors
    ///
    /// [`AgentBuilder::build`](emitree_agent::AgentBuilder::build) returns the error.
    fn check(&self, agent: &AgentSpec) -> Result<()> {
        let _ = agent;
        Ok(())
    }

    /// Returns a future that decides on a call that the rules allow, before it is executed, or `None` to allow it. The
    /// calls of a turn are passed one after the other, in call order.
    ///
    /// If the future returns an interrupt, the call is interrupted. A halt, an abort, a fatal error and a request for a
    /// retry end the run. Any other error denies the call.
    fn admit<'a>(&'a self, call: &'a ToolCall, ctx: &'a RunContext) -> Option<BoxFuture<'a, Result<()>>> {
        let _ = (call, ctx);
        None
    }
}

/// A rule for one tool, for the next call. All rules of a turn are merged.
///
/// | | merged |
/// |---|---|
/// | [`deny`](Self::deny) | a tool is not offered if one rule denies it |
/// | [`hide`](Self::hide) | as `deny`, but the prompt does not mention the tool |
/// | [`force`](Self::force) | the tool of the highest priority that no rule denies or hides is offered alone, with the final answer if the run may end. If two have this priority, the first wins |
/// | [`prevent_end`](Self::prevent_end) | the run may not end if one rule prevents it |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) tool: Arc<str>,
    pub(super) effect: Effect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Deny(String),
    Hide,
    Force(i32),
    PreventEnd(String),
}

impl Rule {
    /// Makes a rule by which a tool may not be called. The model reads the reason in its prompt, and as the result of a
    /// call that it makes nevertheless.
    pub fn deny(tool: impl Into<Arc<str>>, reason: impl Into<String>) -> Self {
        Self { tool: tool.into(), effect: Effect::Deny(reason.into()) }
    }

    /// Makes a rule by which a tool is not offered, and is not mentioned in the prompt.
    pub fn hide(tool: impl Into<Arc<str>>) -> Self {
        Self { tool: tool.into(), effect: Effect::Hide }
    }

    /// Makes a rule by which a tool has to be called now.
    pub fn force(tool: impl Into<Arc<str>>, priority: i32) -> Self {
        Self { tool: tool.into(), effect: Effect::Force(priority) }
    }

    /// Makes a rule by which the run may not end yet. The model reads the reason.
    pub fn prevent_end(tool: impl Into<Arc<str>>, reason: impl Into<String>) -> Self {
        Self { tool: tool.into(), effect: Effect::PreventEnd(reason.into()) }
    }
}

/// A tool call of a run, as the rules see it. Clones are cheap.
#[derive(Clone, Debug, PartialEq)]
pub struct Step(Arc<(ToolCall, Option<ToolOutput>)>);

impl Step {
    /// Makes a step, for tests of [`Rules`]. A call without an output is about to be executed.
    #[must_use]
    pub fn new(call: ToolCall, output: Option<ToolOutput>) -> Self {
        Self(Arc::new((call, output)))
    }

    /// Returns the name of the tool.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.call().name
    }

    /// Returns the call, after changes by resolvers and gates.
    #[must_use]
    pub fn call(&self) -> &ToolCall {
        &self.0.0
    }

    /// Returns the output, or `None` for a call of the current turn that is about to be executed.
    #[must_use]
    pub fn output(&self) -> Option<&ToolOutput> {
        self.0.1.as_ref()
    }

    /// Returns `true` if the other step calls the same tool with the same arguments.
    pub(super) fn is_call_like(&self, other: &Self) -> bool {
        (self.tool(), &self.call().arguments) == (other.tool(), &other.call().arguments)
    }
}
