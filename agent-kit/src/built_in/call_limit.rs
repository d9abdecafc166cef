//! Limits on the calls of tools and of the model: [`CallLimit`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Error, Next, Phase, Result, RunContext, Summary, layer_fn};
use parking_lot::Mutex;

use emitree_agent::hook::AgentSpec;
use emitree_agent::{
    AgentContext, AgentMiddleware, Batch, CallResult, ChatModel, ChatRequest, ChatResponse, Hooks, How, Message, State,
    ToolOutput,
};

/// Limits the calls of one tool, of all tools together, or of the model: in a run, in a session, or both.
///
/// ```
/// use emitree_agent_kit::built_in::{CallLimit, Then};
/// use emitree_agent::{Agent, ChatModel, ScriptedModel, tool_fn};
/// use emitree_runtime::RunContext;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Query { text: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let search = tool_fn("search", "Searches", |_: Query, _: RunContext| async { Ok("nothing") })?;
/// let agent = |limit: CallLimit| {
///     let calls = ["a", "b"].map(|text| ("search", json!({"text": text})));
///     let model = ChatModel::new(ScriptedModel::new("test").calls(calls).text("No."))?;
///     Agent::builder("finder", model).tool(search.clone()).with(limit).build()
/// };
///
/// // The model receives an error for the second call.
/// let answer = agent(CallLimit::tool("search").per_run(1))?.ask("Find it.").await?;
/// let results: Vec<_> = answer.messages.iter().flat_map(|message| message.tool_results()).collect();
/// assert_eq!(results[1].response, "denied by call_limit.tool.search: the limit of 1 call of `search` is reached");
///
/// // The loop ends after the turn with the second call.
/// let answer = agent(CallLimit::tool("search").per_run(1).then(Then::Finish))?.ask("Find it.").await?;
/// assert_eq!(answer.text(), "The limit of 1 call of `search` is reached.");
/// # Ok(())
/// # }
/// ```
///
/// | | counts | [`Then`] |
/// |---|---|---|
/// | [`tool`](Self::tool), [`tools`](Self::tools) | calls that are still open at the gate of this middleware, in call order | `Deny`, `Finish` or `Fail` |
/// | [`failures`](Self::failures) | calls that failed or whose output is an error; calls of one turn run together, so the limit applies from the next turn on | `Deny`, `Finish` or `Fail` |
/// | [`model`](Self::model) | turns of the agent's loop, and not retries of a model call by layers | `Finish` or `Fail` |
///
/// A limit of 0 allows no call. The id is `call_limit.tool.<name>`, `call_limit.tools`, `call_limit.model` or
/// `call_limit.failures.<name>`, so that an agent may have a limit for each tool.
///
/// # What it remembers
///
/// The calls of a run, in the run, and with [`per_session`](Self::per_session) the calls of all its runs in the session.
/// A discarded attempt takes its calls back. A run below has counts of its own, if the limit is bound by
/// `for_tree(joins(…))`.
///
/// # Its own events
///
/// None. A call that is denied is an event `tool_response` of the agent.
///
/// # Order
///
/// Add a limit after gates that deny or rewrite calls: calls that were denied before are not counted, and a later gate
/// may rewrite a call to the tool of the limit. The limit is a guard, so the builder's own hooks do not replace it. With
/// `Then::Fail`, the run fails at `turn.stop`, unless a hook of a middleware before has ended the loop there.
///
/// # When it fails
///
/// A limit for a tool that the agent does not have is an error (see [`AgentSpec::expect_tool`]), also below
/// `for_tree(joins(…))`: if only some of the agents below have the tool, select them, as with
/// `for_tree(Runs::named("finder").only(joins(…)))`. A `CallLimit` without a limit is an error as well. If the count of a
/// stored session cannot be read, all open calls of a turn are denied, and a model call fails.
#[derive(Clone)]
pub struct CallLimit {
    id: Arc<str>,
    what: What,
    per_run: Option<u64>,
    per_session: Option<u64>,
    then: Option<Then>,
}

/// The effect of a [`CallLimit`] on a call that exceeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Then {
    /// The call of a tool is denied: its result is an error. Other calls of the turn are executed.
    Deny,
    /// The loop ends without an error. The answer is the text of the model's last response or, if it has none, a
    /// sentence such as "The limit of 3 calls of \`search\` is reached."
    ///
    /// A tool's call is denied, and the loop ends after this turn. After the last call of the model that is allowed,
    /// the tools of this turn are executed, and the sentence takes the place of the next reply, as the reply of a layer.
    /// It is a turn of its own, so `max_steps` has to be larger than the limit.
    Finish,
    /// The run fails. A tool's call is denied, and the run fails when the other calls of the turn have settled.
    Fail,
}

#[derive(Clone, Debug)]
enum What {
    Tool(String),
    Tools,
    Model,
    Failures(String),
}

impl CallLimit {
    fn new(what: What) -> Self {
        let id = match &what {
            What::Tool(name) => format!("call_limit.tool.{name}"),
            What::Tools => "call_limit.tools".to_owned(),
            What::Model => "call_limit.model".to_owned(),
            What::Failures(name) => format!("call_limit.failures.{name}"),
        };
        Self { id: id.into(), what, per_run: None, per_session: None, then: None }
    }

    /// Limits the calls of one tool.
    #[must_use]
    pub fn tool(name: impl Into<String>) -> Self {
        Self::new(What::Tool(name.into()))
    }

    /// Limits the calls of all tools together.
    #[must_use]
    pub fn tools() -> Self {
        Self::new(What::Tools)
    }

    /// Limits the calls of the agent's model.
    #[must_use]
    pub fn model() -> Self {
        Self::new(What::Model)
    }

    /// Limits the failed calls of one tool in a run: after `most` failures, further calls are denied, and the model
    /// is told to do something else.
    #[must_use]
    pub fn failures(tool: impl Into<String>, most: u64) -> Self {
        Self::new(What::Failures(tool.into())).per_run(most)
    }

    /// Sets the maximum number of calls in each run.
    #[must_use]
    pub const fn per_run(mut self, most: u64) -> Self {
        self.per_run = Some(most);
        self
    }

    /// Sets the maximum number of calls in all runs of a session.
    #[must_use]
    pub const fn per_session(mut self, most: u64) -> Self {
        self.per_session = Some(most);
        self
    }

    /// Sets what happens to a call that exceeds the limit: by default [`Then::Deny`] for tools, and [`Then::Finish`] for
    /// the model.
    #[must_use]
    pub const fn then(mut self, then: Then) -> Self {
        self.then = Some(then);
        self
    }

    fn then_or_default(&self) -> Then {
        let default = if matches!(self.what, What::Model) { Then::Finish } else { Then::Deny };
        self.then.unwrap_or(default)
    }

    fn counter(&self, hooks: &mut Hooks) -> Counter {
        let session = self.per_session.map(|most| (most, hooks.state()));
        Counter { id: Arc::clone(&self.id), what: self.what.clone(), per_run: self.per_run, session }
    }

    fn limit_tools(&self, counter: &Counter, hooks: &mut Hooks) {
        let then = self.then_or_default();
        let counts_failures = matches!(self.what, What::Failures(_));
        let gate = counter.clone();
        hooks.on_gate(move |batch, ctx| gate.pass(batch, !counts_failures, ctx));
        let begins = counter.clone();
        hooks.on_request(move |_, ctx| begins.begin_turn(ctx));
        if counts_failures {
            let failures = counter.clone();
            hooks.on_result(move |result, ctx| failures.count_failure(result, ctx));
        }
        match then {
            Then::Deny => {}
            Then::Finish => {
                let reads = counter.clone();
                let ends = counter.clone();
                hooks.on_action(move |action, ctx| {
                    let has_text = !action.response.text().trim().is_empty();
                    reads.in_run(ctx, |count| count.has_text = has_text);
                });
                hooks.on_result(move |result, ctx| ends.end_with(result, ctx));
            }
            Then::Fail => {
                let fails = counter.clone();
                hooks.on_stop(move |_, ctx| match fails.in_run(ctx, |count| count.refused.clone()) {
                    Some(refused) => Err(Error::new(refused.reason)),
                    None => Ok(false),
                });
            }
        }
    }

    fn limit_model(&self, counter: &Counter, hooks: &mut Hooks) {
        let fails = self.then_or_default() == Then::Fail;
        let asks = counter.clone();
        hooks.on_request(move |_, ctx| {
            asks.begin_turn(ctx);
            let Some(reason) = asks.admit(ctx)? else { return Ok(()) };
            if fails {
                return Err(Error::new(reason));
            }
            asks.in_run(ctx, |count| count.refused = Some(Refused { call: String::new(), reason }));
            Ok(())
        });
        if fails {
            return;
        }
        let stops = counter.clone();
        let answers = counter.clone();
        hooks.on_stop(move |end, ctx| Ok(!end.response.text().trim().is_empty() && stops.reached(ctx)?.is_some()));
        let layer = layer_fn("call_limit", move |request: &ChatRequest, ctx, next: Next<'_, ChatModel>| {
            // The counts belong to the run of the agent, which is above the run of its model.
            let refused = ctx.parent().and_then(|agent| answers.in_run(agent, |count| count.refused.clone()));
            Box::pin(async move {
                match refused {
                    Some(refused) => Ok(ChatResponse::new(Message::assistant(sentence(&refused.reason)))),
                    None => next.run(request).await,
                }
            })
        });
        // Outside caches, which would keep the sentence as the answer to the request.
        hooks.model_call(|stack| stack.layer_in(Phase::Retry, layer));
    }
}

impl AgentMiddleware for CallLimit {
    fn id(&self) -> &str {
        &self.id
    }

    fn init(&self) -> Result<()> {
        let is_model = matches!(self.what, What::Model);
        if self.per_run.is_none() && self.per_session.is_none() {
            return Err(Error::new(format!("`{self:?}` limits nothing: call `per_run` or `per_session`")));
        }
        if is_model && self.then == Some(Then::Deny) {
            return Err(Error::new(format!("`{self:?}` cannot deny calls of the model: use `Finish` or `Fail`")));
        }
        if matches!(self.what, What::Failures(_)) && [self.per_run, self.per_session].contains(&Some(0)) {
            return Err(Error::new(format!("`{self:?}` would deny each call before it can fail: allow at least 1")));
        }
        Ok(())
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let counter = self.counter(hooks);
        match self.what {
            What::Model => self.limit_model(&counter, hooks),
            What::Tool(_) | What::Tools | What::Failures(_) => self.limit_tools(&counter, hooks),
        }
        Ok(())
    }

    fn check(&self, agent: &AgentSpec) -> Result<()> {
        match &self.what {
            What::Tool(name) | What::Failures(name) => agent.expect_tool(&self.id, name),
            What::Tools | What::Model => Ok(()),
        }
    }

    fn is_guard(&self) -> bool {
        true
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

/// Writes the limit as the program that creates it.
impl fmt::Debug for CallLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut per_run = self.per_run;
        match &self.what {
            What::Tool(name) => write!(f, "CallLimit::tool({name:?})")?,
            What::Tools => f.write_str("CallLimit::tools()")?,
            What::Model => f.write_str("CallLimit::model()")?,
            What::Failures(name) => write!(f, "CallLimit::failures({name:?}, {})", per_run.take().unwrap_or_default())?,
        }
        if let Some(most) = per_run {
            write!(f, ".per_run({most})")?;
        }
        if let Some(most) = self.per_session {
            write!(f, ".per_session({most})")?;
        }
        self.then.map_or(Ok(()), |then| write!(f, ".then(Then::{then:?})"))
    }
}

/// Counts the calls of a run, and of its session.
#[derive(Clone)]
struct Counter {
    id: Arc<str>,
    what: What,
    per_run: Option<u64>,
    session: Option<(u64, State<u64>)>,
}

/// The counts of one run: an extension of the agent's run, with an entry for each limit.
#[derive(Default)]
struct RunCounts(Mutex<HashMap<Arc<str>, RunCount>>);

#[derive(Default)]
struct RunCount {
    calls: u64,
    /// The first call of this turn that exceeded the limit.
    refused: Option<Refused>,
    /// `true` if the response of this turn has text.
    has_text: bool,
}

#[derive(Clone)]
struct Refused {
    /// The id of a tool's call.
    call: String,
    reason: String,
}

impl Counter {
    /// Calls a closure with the counts of a run of an agent. No user code runs under the lock.
    fn in_run<R>(&self, ctx: &RunContext, f: impl FnOnce(&mut RunCount) -> R) -> R {
        let counts = ctx.own_extension_or_default::<RunCounts>();
        let mut counts = counts.0.lock();
        f(counts.entry(Arc::clone(&self.id)).or_default())
    }

    /// Calls a closure with the counts of a run, and with the count of its session, or 0 if it is not limited.
    fn with<R>(&self, ctx: &RunContext, f: impl FnOnce(&mut RunCount, &mut u64) -> R) -> Result<R> {
        match &self.session {
            // The lock of the session's state is taken before the lock of the run's counts, never the other way round.
            Some((_, calls)) => calls.with(ctx, |calls| self.in_run(ctx, |count| f(count, calls))),
            None => Ok(self.in_run(ctx, |count| f(count, &mut 0))),
        }
    }

    /// Forgets the previous turn, and the previous attempt as well if this is the first turn of another.
    fn begin_turn(&self, ctx: &RunContext) {
        let is_first = ctx.turn().is_none_or(|turn| turn.number <= 1);
        self.in_run(ctx, |count| {
            count.refused = None;
            if is_first {
                count.calls = 0;
            }
        });
    }

    /// Returns the reason for which one more call is refused.
    fn reason(&self, in_run: u64, in_session: u64) -> Option<String> {
        let of_run = self.per_run.filter(|&most| in_run >= most);
        let of_session = || self.session.as_ref().map(|(most, _)| *most).filter(|&most| in_session >= most);
        let most = of_run.or_else(of_session)?;
        let calls = if most == 1 { "call" } else { "calls" };
        let counted = match &self.what {
            What::Tool(name) => format!("{calls} of `{name}`"),
            What::Tools => format!("tool {calls}"),
            What::Model => format!("model {calls}"),
            What::Failures(name) => format!("failed {calls} of `{name}`"),
        };
        Some(format!("the limit of {most} {counted} is reached"))
    }

    fn reached(&self, ctx: &RunContext) -> Result<Option<String>> {
        self.with(ctx, |count, session| self.reason(count.calls, *session))
    }

    fn count(&self, ctx: &RunContext) -> Result<()> {
        self.with(ctx, add)
    }

    /// Counts a call, or returns the reason for which it is refused.
    fn admit(&self, ctx: &RunContext) -> Result<Option<String>> {
        // Checked and counted under one lock, because several runs may use the session.
        self.with(ctx, |count, session| {
            let reason = self.reason(count.calls, *session);
            if reason.is_none() {
                add(count, session);
            }
            reason
        })
    }

    /// Denies the calls that exceed the limit.
    fn pass(&self, batch: &mut Batch, counts: bool, ctx: &RunContext) -> Result<()> {
        let (only, advice) = match &self.what {
            What::Tool(name) => (Some(name), ""),
            What::Failures(name) => (Some(name), ": do something else"),
            What::Tools | What::Model => (None, ""),
        };
        for gated in batch.open().filter(|gated| only.is_none_or(|name| gated.call.name == *name)) {
            let refused = if counts { self.admit(ctx)? } else { self.reached(ctx)? };
            let Some(reason) = refused else { continue };
            gated.deny(&*self.id, format!("{reason}{advice}"));
            let call = gated.call.id.clone();
            self.in_run(ctx, |count| _ = count.refused.get_or_insert(Refused { call, reason }));
        }
        Ok(())
    }

    fn count_failure(&self, result: &CallResult, ctx: &RunContext) -> Result<()> {
        let What::Failures(name) = &self.what else { return Ok(()) };
        let has_failed = match result.how {
            How::Failed => true,
            How::Executed => result.output.is_error,
            _ => false,
        };
        if has_failed && result.call.name == *name { self.count(ctx) } else { Ok(()) }
    }

    /// Makes a result end the loop if a call of the turn was refused. The result of this call becomes the answer if the
    /// model's response has no text.
    fn end_with(&self, result: &mut CallResult, ctx: &RunContext) {
        let refused = self.in_run(ctx, |count| count.refused.clone().map(|refused| (refused, count.has_text)));
        let Some((refused, has_text)) = refused else { return };
        // The loop ends only if all results of a turn say so, not only the result of the refused call.
        result.output.terminate = true;
        if refused.call == result.call.id && !has_text {
            result.output = ToolOutput::error(sentence(&refused.reason)).answer();
        }
    }
}

fn add(count: &mut RunCount, session: &mut u64) {
    count.calls = count.calls.saturating_add(1);
    *session = session.saturating_add(1);
}

/// Returns a reason as a sentence.
fn sentence(reason: &str) -> String {
    format!("T{}.", reason.strip_prefix('t').unwrap_or(reason))
}
