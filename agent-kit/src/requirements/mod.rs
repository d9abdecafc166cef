//! Requirements for the order of tool calls.

// 1. At `model.request`, the [`rules`] of all requirements for the steps so far are merged into a [`plan`]: the tools
//    that are offered, `tool_choice`, and a part of the prompt.
// 2. At `tool.gate`, a call that the plan does not offer is denied, and responders are asked. Before each further call of
//    the turn, the rules are merged again, as if the calls before it had succeeded.
// 3. At `tool.result`, the call becomes a step. A call that the loop has refused gets the reason of the rules.
// 4. At `run.end`, another round begins if the run may not end, however its loop has ended.

mod contradictions;
mod events;
mod final_answer;
mod in_run;
mod plan;
mod requirement;
mod rules;

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{Emitter, Namespace};
use emitree_middleware::own_events::OwnEvents;
use emitree_runtime::{Error, Result, RunContext, Summary};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

pub use events::{FinalAnswer, RequirementsInit, RequirementsStart, RequirementsSuccess};
use final_answer::Answer;
use in_run::{InRun, Steps};
use plan::Plan;
pub use requirement::Requirement;
pub use rules::{Rule, Rules, Step};

use emitree_agent::hook::{AgentSpec, ModelRequest};
use emitree_agent::{
    AgentContext, AgentMiddleware, Batch, CallResult, Hooks, How, Message, ToolCall, ToolOutput, ToolSpec, TurnAction,
    TurnDecision,
};

/// The id of the middleware.
const ID: &str = "requirements";

/// Rules for the order and the number of an agent's tool calls, which its model cannot break.
///
/// ```
/// use emitree_agent_kit::requirements::{Requirement, Requirements};
/// use emitree_agent::{Agent, ChatModel, ScriptedModel, tool_fn};
/// use emitree_runtime::RunContext;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Text { text: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let tool = |name: &str| tool_fn(name, "…", |args: Text, _: RunContext| async { Ok(args.text) });
/// let script = ScriptedModel::new("test")
///     .call("think", json!({"text": "It may rain."}))
///     .text("It is sunny, I guess.")
///     .call("weather", json!({"text": "Lima"}))
///     .text("It rains in Lima.");
/// let agent = Agent::builder("planner", ChatModel::new(script.clone())?)
///     .tool(tool("think"))
///     .tool(tool("weather"))
///     .with(Requirements::new([
///         Requirement::tool("think").force_at_step(1),
///         Requirement::tool("weather").only_after(["think"]).at_least(1),
///     ]))
///     .build()?;
///
/// assert_eq!(agent.ask("Does it rain in Lima?").await?.text(), "It rains in Lima.");
/// let offered = |at: usize| script.requests()[at].tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
/// assert_eq!((offered(0), offered(1)), (vec!["think".to_owned()], vec!["think".to_owned(), "weather".to_owned()]));
/// let told = script.requests()[2].messages.last().unwrap().text();
/// assert_eq!(told, "The final answer is not allowed yet (`weather`: has to be called at least once).");
/// # Ok(())
/// # }
/// ```
///
/// # How rules are merged
///
/// Before each model call, each requirement gives [rules](Rule) for the steps so far. A tool is offered if all rules
/// allow it and none hides it. If tools are forced, the tool of the highest priority is offered alone, with the final
/// answer if the run may end. `tool_choice` is this tool; it is `required` if the run may not end, or if the final answer
/// [is a tool](Self::final_answer), unless the options have another; otherwise the options decide. The prompt lists the
/// tools that are not allowed, with the reasons.
///
/// A model may ignore all this. Each call of a turn is decided as if the calls of the turn before it had succeeded. A
/// call of a tool that is not offered is denied, with the reason as its result. An answer while the run may not end
/// goes back to the model with the reason. If the run ends in any other way, for example by another tool's
/// [`answer`](ToolOutput::answer()), another round begins with the reason as a message.
///
/// # What it remembers
///
/// The steps and the answers of responders, in the *run*. Another attempt begins without steps.
///
/// # Its own events
///
/// On [`emitter`](Self::emitter) and on the agent's run, there in the namespace `middleware.requirements`:
///
/// | event | payload | when |
/// |---|---|---|
/// | `init` | [`RequirementsInit`] | before the first turn |
/// | `start` | [`RequirementsStart`] | before each model call |
/// | `final_answer` | [`FinalAnswer`] | more of the [final answer](Self::final_answer) is known |
/// | `success` | [`RequirementsSuccess`] | after each turn |
///
/// # Order
///
/// It is a guard, so the builder's own hooks do not replace its hooks. It chooses among the final answer and the tools
/// that hooks of `model.request` before it left: let a selection [always](crate::built_in::ToolSelector::always) offer
/// the tools that have to be called. A later hook may offer more tools, but their calls are denied. Add it after gates
/// that rewrite calls; a call that a gate before it has decided on is no step. A result is a step as the hooks of
/// `tool.result` before it left it.
///
/// # When it fails
///
/// Contradictions are errors of [`build`](emitree_agent::AgentBuilder::build) that quote the requirement: an unknown tool, a tool
/// in its own list, before and after the same tool, more calls at least than at most, a step 0, and a tool that is
/// forced or has to be called but can never be. The run fails if no tool may be called and the run may not end, and if
/// the model is refused too often ([`max_retries_per_step`](Self::max_retries_per_step)), with the reasons.
#[derive(Clone)]
pub struct Requirements {
    rules: Vec<Arc<dyn Rules>>,
    /// The requirements among the rules, which are checked against each other.
    requirements: Vec<Requirement>,
    answer: Option<Answer>,
    max_retries_per_step: u32,
    max_equal_calls: u32,
    events: OwnEvents,
}

impl Requirements {
    /// Makes a middleware of these requirements.
    #[must_use]
    pub fn new(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        let requirements: Vec<_> = requirements.into_iter().collect();
        Self {
            rules: requirements.iter().map(|requirement| Arc::new(requirement.clone()) as Arc<dyn Rules>).collect(),
            requirements,
            answer: None,
            max_retries_per_step: 3,
            max_equal_calls: 3,
            events: OwnEvents::new(Namespace::new("middleware.requirements")),
        }
    }

    /// Adds rules of your own.
    #[must_use]
    pub fn and(mut self, rules: impl Rules) -> Self {
        self.rules.push(Arc::new(rules));
        self
    }

    /// Makes the final answer a tool, `final_answer`, that is offered while the run may end. Its arguments are the
    /// fields of the type or, if the type has none, as `String`, one argument `response`. The call has to be the only
    /// one of its turn. The run's answer is the value as JSON, which
    /// [`AgentOutput::structured`](emitree_agent::AgentOutput::structured) reads, or the text itself.
    ///
    /// A text instead of the call is an answer too, if it fits the type.
    #[must_use]
    pub fn final_answer<T: DeserializeOwned + JsonSchema + 'static>(mut self) -> Self {
        self.answer = Some(Answer::of::<T>());
        self
    }

    /// Sets how often the model is asked again, since the last step that succeeded, after a turn in which all it did was
    /// refused, by default 3. Then the run fails.
    #[must_use]
    pub const fn max_retries_per_step(mut self, most: u32) -> Self {
        self.max_retries_per_step = most;
        self
    }

    /// Sets after how many calls in a row of one tool with the same arguments the tool is not offered in the next turn,
    /// by default 3.
    #[must_use]
    pub const fn max_equal_calls(mut self, most: u32) -> Self {
        self.max_equal_calls = most;
        self
    }

    /// Returns the emitter of the own events, for listeners that receive the events of all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.events.emitter()
    }

    /// Merges the rules for the next call.
    fn plan(&self, tools: &Arc<Vec<ToolSpec>>, steps: &Steps, blocked: Blocked, ctx: &RunContext) -> Plan {
        let rules = self.rules.iter().flat_map(|rules| rules.rules(steps.seen(rules.counts_failures()), ctx));
        let blocked = blocked.map(|(tool, times)| {
            Rule::deny(tool, format!("was called {times} times in a row with the same arguments"))
        });
        Plan::new(Arc::clone(tools), self.answer.as_ref().map(|_| Answer::NAME), rules.chain(blocked))
    }

    /// Ends the turn before, and limits the request of the next to the offered tools.
    async fn begin_turn(&self, call: &mut ModelRequest, ctx: &RunContext) -> Result<()> {
        if let Some(answer) = &self.answer {
            answer.offer(&mut call.request.tools);
        }
        let run: Arc<InRun> = ctx.own_extension_or_default();
        let turn = ctx.turn().map_or(1, |turn| turn.number);
        if turn <= 1 {
            run.reset();
            let names = || call.request.tools.iter().map(|spec| spec.name.clone()).collect();
            self.events.emit(ctx, || RequirementsInit { tools: names() }).await;
        }
        self.end_turn(&run, ctx).await;
        run.check_retries(self.max_retries_per_step)?;
        // This forgets the equal calls, so the tool is withheld in one turn only.
        let blocked = run.block_repeated(self.max_equal_calls);
        let plan = Arc::new(self.plan(&call.request.tools, &run.steps(), blocked, ctx));
        if let Some(reason) = plan.dead_end() {
            return Err(Error::new(reason));
        }
        plan.apply(&mut call.request);
        run.begin_turn(turn, Arc::clone(&plan));
        let tool_choice = &call.request.options.tool_choice;
        self.events.emit(ctx, || plan.to_event(turn, tool_choice.clone())).await;
        Ok(())
    }

    async fn end_turn(&self, run: &InRun, ctx: &RunContext) {
        if let Some(turn) = run.end_turn() {
            self.events.emit(ctx, || RequirementsSuccess { turn }).await;
        }
    }

    /// Denies the calls that the rules do not allow, in call order.
    async fn pass(&self, batch: &mut Batch, ctx: &RunContext) -> Result<()> {
        let run: Arc<InRun> = ctx.own_extension_or_default();
        let mut plan = run.plan();
        let mut steps = run.steps();
        let is_alone = batch.calls().count() == 1;
        for gated in batch.open() {
            let name = gated.call.name.as_str();
            // The plan decides before `admit`, so that nobody is asked about a call that is refused anyway.
            let refusal = plan.reason(name).or_else(|| {
                let is_beside = !is_alone && plan.is_answer(name);
                is_beside.then(|| "the final answer has to be the only call of its turn".to_owned())
            });
            if let Some(reason) = refusal {
                run.refuse(format!("`{name}`: {reason}"));
                gated.deny(ID, reason);
                continue;
            }
            let admitted = self.admit(&gated.call, ctx).await;
            if let Err(error) = admitted {
                run.refuse(format!("`{}`: {error}", gated.call.name));
                gated.decide_by(ID, &error)?;
                continue;
            }
            run.admit(&gated.call);
            if !is_alone {
                // The next call is decided as if this one had succeeded (A21). The steps here are a copy.
                steps.expect(&gated.call);
                plan = Arc::new(self.plan(plan.tools(), &steps, run.blocked(), ctx));
            }
        }
        Ok(())
    }

    async fn admit(&self, call: &ToolCall, ctx: &RunContext) -> Result<()> {
        for decision in self.rules.iter().filter_map(|rules| rules.admit(call, ctx)) {
            decision.await?;
        }
        Ok(())
    }

    /// Makes a call a step, or gives the reason for which the loop has refused it.
    fn record(&self, result: &mut CallResult, ctx: &RunContext) {
        let run: Arc<InRun> = ctx.own_extension_or_default();
        if run.is_admitted(result) {
            if self.answer.is_none() || result.call.name != Answer::NAME {
                run.record(result);
            }
            return;
        }
        if result.how != How::Failed {
            // Denied at the gate, by this middleware or by another.
            return;
        }
        // A gate decides on no call with a fault. A tool that the plan withholds has the fault that it was not
        // offered, so the model is told the reason of the rule instead.
        let plan = run.plan();
        let is_known = plan.tools().iter().any(|spec| spec.name == result.call.name);
        match plan.reason(&result.call.name).filter(|_| is_known) {
            Some(reason) => {
                result.output = ToolOutput::error(Error::denied(ID, &*reason).explain());
                result.how = How::Denied;
                run.refuse(format!("`{}`: {reason}", result.call.name));
            }
            // Arguments that do not fit the answer count as a refusal, which `max_retries_per_step` limits.
            None if plan.is_answer(&result.call.name) => run.refuse(result.output.text()),
            None => run.record(result),
        }
    }

    /// Sends a text that does not fit the final answer back to the model.
    fn check_text(&self, answer: &Answer, action: &mut TurnAction, ctx: &RunContext) {
        let ends = matches!(action.decision, None | Some(TurnDecision::Natural)) && action.inject.is_empty();
        let run: Arc<InRun> = ctx.own_extension_or_default();
        if !ends || action.response.message.tool_calls().next().is_some() || !run.plan().may_end() {
            return;
        }
        if let Err(fault) = answer.check_text(&action.response.text()) {
            let reason = format!("Your answer does not fit: {fault}. Call the tool `{}`.", Answer::NAME);
            run.refuse(reason.clone());
            action.inject.push(Message::user(reason));
        }
    }

    /// Begins another round if the run may not end.
    async fn check_end(&self, more: &mut Vec<Message>, ctx: &RunContext) -> Result<()> {
        let run: Arc<InRun> = ctx.own_extension_or_default();
        self.end_turn(&run, ctx).await;
        // The rules are merged again, because the calls of the last turn have become steps since its plan was made.
        let plan = self.plan(run.plan().tools(), &run.steps(), None, ctx);
        if plan.may_end() {
            return Ok(());
        }
        let reason = plan.why_not_end();
        more.push(Message::user(format!("T{}.", reason.strip_prefix('t').unwrap_or(&reason))));
        run.refuse(reason);
        Ok(())
    }
}

/// The tool that is not offered because of equal calls, and their number.
type Blocked = Option<(Arc<str>, u32)>;

impl AgentMiddleware for Requirements {
    fn id(&self) -> &'static str {
        ID
    }

    fn init(&self) -> Result<()> {
        if self.max_equal_calls == 0 {
            return Err(Error::new("`max_equal_calls(0)` would allow no call: allow at least 1"));
        }
        Ok(())
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let shared = Arc::new(self.clone());
        if let Some(answer) = &self.answer {
            hooks.tool(answer.tool.clone()?).middleware(answer.streams(&self.events)?);
            let all = Arc::clone(&shared);
            let answer = answer.clone();
            hooks.on_action(move |action, ctx| all.check_text(&answer, action, ctx));
        }
        let all = Arc::clone(&shared);
        hooks.on_request_async(move |call, ctx| {
            let all = Arc::clone(&all);
            Box::pin(async move { all.begin_turn(call, ctx).await })
        });
        let all = Arc::clone(&shared);
        hooks.on_gate_async(move |batch, ctx| {
            let all = Arc::clone(&all);
            Box::pin(async move { all.pass(batch, ctx).await })
        });
        let all = Arc::clone(&shared);
        hooks.on_result(move |result, ctx| all.record(result, ctx));
        hooks.on_end_async(move |more, ctx| {
            let all = Arc::clone(&shared);
            Box::pin(async move { all.check_end(more, ctx).await })
        });
        Ok(())
    }

    fn check(&self, agent: &AgentSpec) -> Result<()> {
        self.rules.iter().try_for_each(|rules| rules.check(agent))?;
        contradictions::check_all(&self.requirements)
    }

    fn is_guard(&self) -> bool {
        true
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

impl fmt::Debug for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.rules).finish()
    }
}
