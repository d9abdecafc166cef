//! One example for each event.
//!
//! The types are not exhaustive, so an example is read from JSON. Events that cannot be read are taken from runs.

use std::any::type_name;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use emitree::agent::built_in::{
    LargeResultFailed, LargeResultStored, Partial, PartialDiscarded, SelectionFailed, Structured, Summarized,
    SummaryFailed, TitleFailed, Titled, TodosWritten, ToolsSelected,
};
use emitree::agent::kinds::{
    FinalAnswer, HandedOff, ReActError, ReActPartialUpdate, ReActRetry, ReActStart, ReActSuccess, ReActUpdate,
    RequirementsInit, RequirementsStart, RequirementsSuccess,
};
use emitree::agent::reply::{ToolCallDelta, ToolCallStarted, ToolCallUpdate, ToolCallsDiscarded};
use emitree::agent::steering::MessageDropped;
use emitree::agent::workflow::{StepFailure, StepStart, StepSuccess};
use emitree::agent::{
    Agent, AgentRun, AgentStart, AgentSuccess, AnswerUnused, ChatError, ChatFinish, ChatModel, ChatRequest,
    ChatResponse, ChatStart, ChatSuccess, Iteration, Message, MessageAdded, MessageError, MessageReplaced,
    ModelFellBack, NewToken, QuestionAnswered, QuestionAsked, Reply, ResponseHeaders, RunResumed, ScriptedModel,
    ToolCall, ToolCallIdentified, ToolFailure, ToolFinish, ToolOutput, ToolResponse, ToolRetriesExceeded, ToolRetry,
    ToolStart, ToolSuccess, Usage, UsageReported,
};
use emitree::context::UnmatchedAnswers;
use emitree::error::ErrorReport;
use emitree::layer::WouldDeny;
use emitree::lifecycle::{AttemptDiscarded, Failure, Finish, Start, Success};
use emitree::middleware::approval::{Approved, Asked, Edited, Rejected, Responded};
use emitree::middleware::budget::{self, BudgetClosed, BudgetWarning, Charged, StartDenied};
use emitree::middleware::cache::{Hit, Joined, Miss};
use emitree::middleware::circuit_breaker::{CallDenied, Closed, HalfOpened, Opened};
use emitree::middleware::content_filter::Filtered;
use emitree::middleware::exfil_guard::Blocked;
use emitree::middleware::fallback::{Exhausted, FellBack};
use emitree::middleware::limits::Reached;
use emitree::middleware::metrics::Counted;
use emitree::middleware::override_output::WouldRun;
use emitree::middleware::rate_limit::{Delayed, Denied};
use emitree::middleware::record::Recorded;
use emitree::middleware::redact::Redacted;
use emitree::middleware::replay::{Difference, Replayed};
use emitree::middleware::retry::{RetriesExhausted, RetryScheduled};
use emitree::middleware::timeout::TimedOut;
use emitree::middleware::trajectory::TrajectoryEvent;
use emitree::middleware::{Budget, ContentFilter, ExfilGuard, Redact, durable, override_output};
use emitree::{AnyEvent, Error, Event, EventMeta, RunContext, Runnable, runnable_fn};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// An id, in place of the ids of runs.
const ID: &str = "01920f6e-8c1a-7d3b-9f00-3c6a2b1d4e5f";

pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) text: &'static str,
    pub(crate) examples: Vec<Example>,
}

pub(crate) struct Example {
    pub(crate) path: String,
    pub(crate) json: String,
    /// The public module of the type.
    module: &'static str,
    type_name: &'static str,
}

impl Example {
    /// Returns the file of the type, from the path of its module.
    pub(crate) fn file(&self) -> String {
        let plain = self.type_name.split('<').next().unwrap();
        let mut modules: Vec<_> = plain.split("::").collect();
        modules.pop();
        let folder = match modules[0] {
            "emitree_agent" => "agent",
            "emitree_agent_kit" => "agent-kit",
            "emitree_middleware" => "middleware-builtin",
            "emitree_runtime" => "runtime",
            other => panic!("where is {other}?"),
        };
        let path = format!("{folder}/src/{}", modules[1..].join("/"));
        let file = format!("{path}.rs");
        if crate::root().join(&file).exists() { file } else { format!("{path}/mod.rs") }
    }

    pub(crate) fn ident(&self) -> &'static str {
        let plain = self.type_name.split('<').next().unwrap();
        plain.rsplit("::").next().unwrap()
    }

    pub(crate) fn public_name(&self) -> String {
        format!("{}::{}", self.module, self.ident())
    }
}

/// The examples of one namespace, whose types are in one public module.
struct Events<'a> {
    module: &'static str,
    namespace: &'static str,
    captured: &'a BTreeMap<String, String>,
    examples: Vec<Example>,
}

impl Events<'_> {
    /// The types of the next events are in another module.
    const fn module(mut self, module: &'static str) -> Self {
        self.module = module;
        self
    }

    /// Adds a value that is read from JSON.
    fn value<T: Event + DeserializeOwned>(mut self, json: Value) -> Self {
        let value: T = serde_json::from_value(json).unwrap_or_else(|error| panic!("{}: {error}", type_name::<T>()));
        let mut json = serde_json::to_string(&value).unwrap();
        if json.len() > 100 {
            json = serde_json::to_string_pretty(&value).unwrap();
        }
        let path = format!("{}.{}", self.namespace, T::NAME.as_str());
        self.examples.push(Example { path, json, module: self.module, type_name: type_name::<T>() });
        self
    }

    /// Adds the payload of an event that a run has emitted under this path.
    fn emitted<T>(mut self, name: &str) -> Self {
        let path = format!("{}.{name}", self.namespace);
        let json = self.captured.get(&path).unwrap_or_else(|| panic!("no run has emitted {path}")).clone();
        self.examples.push(Example { path, json, module: self.module, type_name: type_name::<T>() });
        self
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Person {
    #[expect(dead_code, reason = "only its schema is used")]
    name: String,
}

/// Runs a work with a middleware, and keeps the payloads of all events.
async fn captured() -> BTreeMap<String, String> {
    let kept = Arc::new(Mutex::new(BTreeMap::new()));
    let sent = Arc::clone(&kept);
    let keep = move |event: &dyn AnyEvent, meta: &EventMeta<'_>| {
        let path = match meta.emitted_name() {
            name if name.starts_with("run.") => format!("<path>.{name}"),
            _ => meta.path().to_owned(),
        };
        sent.lock().unwrap().entry(path).or_insert_with(|| without_ids(&event.to_json().to_string()));
    };
    let echo = runnable_fn("echo", |text: String, ctx: RunContext| async move {
        if text == "fail" {
            return Err(Error::new("no such file"));
        }
        if text == "spend" {
            budget::charge(&ctx, budget::Usage::of("small").input_tokens(90)).await?;
            budget::charge(&ctx, budget::Usage::of("small").input_tokens(20)).await?;
        }
        Ok(text)
    });
    let outer = runnable_fn("outer", |text: String, _: RunContext| async move {
        let spend = runnable_fn("spend", |text: String, ctx: RunContext| async move {
            let _ = budget::charge(&ctx, budget::Usage::of("small").input_tokens(200)).await;
            Ok(text)
        });
        let _ = spend.run(text.clone()).await;
        spend.run(text).await
    });
    let run = |text: &str| echo.run(text.to_owned()).observe("**.*", keep.clone());

    run("hi").await.unwrap();
    run("fail").await.unwrap_err();
    let budget = || Budget::builder().tokens(100).warn_at(0.8).build().unwrap();
    run("spend").middleware(budget()).await.unwrap_err();
    let _ = outer.run("spend".to_owned()).middleware(budget()).observe("**.*", keep.clone()).await;
    run("a damn text").middleware(ContentFilter::new().words("swearing", ["damn"]).unwrap().mark()).await.unwrap();
    let secret = "the key is ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    run(secret).middleware(ExfilGuard::new().evaluate_only()).await.unwrap();
    run(secret).middleware(Redact::new()).await.unwrap();
    let trajectory = emitree::middleware::Trajectory::builder().writer(std::io::sink()).build().unwrap();
    trajectory.emitter().observe("*", keep.clone()).unwrap();
    run("hi").middleware(trajectory).await.unwrap();
    let reply = Reply::text(r#"{"name": "Ada"}"#).in_pieces(11);
    let agent = Agent::builder("historian", ChatModel::new(ScriptedModel::new("test").reply(reply)).unwrap());
    let structured = Structured::of::<Person>();
    structured.emitter().observe("*", keep.clone()).unwrap();
    agent.with(structured).build().unwrap().ask("Who?").on_token(|_| ()).await.unwrap();
    let kept = kept.lock().unwrap();
    kept.clone()
}

/// Replaces ids and durations, which are other ones in each run.
fn without_ids(json: &str) -> String {
    let mut text = String::new();
    let mut rest = json;
    while let Some((before, after)) = rest.split_once('"') {
        text += before;
        text.push('"');
        let (string, after) = after.split_once('"').unwrap_or((after, ""));
        let is_id = string.len() == 36 && string.matches('-').count() == 4;
        text += if is_id { ID } else { string };
        text.push('"');
        rest = after;
        if string.starts_with("duration") {
            let end = rest.find([',', '}']).unwrap();
            text += ":1200";
            rest = &rest[end..];
        }
    }
    text + rest
}

fn usage() -> Value {
    json!(Usage::new(120, 30))
}

fn call() -> ToolCall {
    ToolCall::new("call_1", "count_words", json!({"text": "to be"}))
}

fn report() -> ErrorReport {
    Error::new("no such file").report()
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) async fn groups() -> Vec<Group> {
    let captured = captured().await;
    let of = |module, namespace| Events { module, namespace, captured: &captured, examples: Vec::new() };
    let group = |title, text, events: Events<'_>| Group { title, text, examples: events.examples };
    let middleware = |title, events| group(title, "", events);
    let user = Message::user("Count the words.");
    let question = "order-17/1/0/pay-3f9a/approval-5d0f";

    let runs = of("lifecycle", "<path>")
        .emitted::<Start<String, String>>("run.start")
        .emitted::<Success<String, String>>("run.success")
        .emitted::<Failure>("run.error")
        .emitted::<Finish<String, String>>("run.finish")
        .value::<AttemptDiscarded>(json!({"attempt": 0, "reason": "the answer does not fit", "metadata": null}))
        .module("layer")
        .value::<WouldDeny>(json!({"guard": "no_secrets", "at": "output", "reason": "a password"}))
        .module("context")
        .value::<UnmatchedAnswers>(json!({"question": question, "ids": ["paint-5d0f"]}));

    let models = of("agent", "backend.chat.<provider>")
        .value::<ChatStart>(json!({
            "request": ChatRequest::from("Count the words."), "provider": "openai", "model": "gpt-5-mini",
            "server_address": "api.openai.com", "server_port": 443,
        }))
        .value::<ResponseHeaders>(
            json!({"headers": {"x-request-id": "req_7"}, "rate_limits": {"remaining_requests": 99}}),
        )
        .value::<NewToken>(json!({"text": "Two", "is_reasoning": false}))
        .value::<UsageReported>(json!({"usage": usage(), "cost": "0.0004", "model": "gpt-5-mini"}))
        .value::<ChatSuccess>(json!({"response": ChatResponse::new(Message::assistant("Two words."))}))
        .value::<ChatError>(json!({"error": report()}))
        .value::<ChatFinish>(json!({}))
        .value::<ModelFellBack>(json!({"from": "large", "to": "small", "error": report()}))
        .module("agent::reply")
        .value::<ToolCallStarted>(json!({"index": 0, "id": "call_1", "name": "count_words"}))
        .value::<ToolCallDelta>(json!({"index": 0, "id": "call_1", "name": "count_words", "arguments": "{\"te"}));

    let tools = of("agent", "tool.<name>")
        .value::<ToolStart>(json!({"input": {"text": "to be"}, "call_id": "call_1"}))
        .value::<ToolSuccess>(json!({"output": ToolOutput::new(2)}))
        .value::<ToolFailure>(json!({"error": report()}))
        .value::<ToolFinish>(json!({}))
        .value::<ToolRetry>(json!({"retry": 1, "error": report()}))
        .value::<ToolRetriesExceeded>(json!({"retries": 2, "error": report()}));

    let turn = json!({"number": 2, "usage": usage(), "tool_calls": 1});
    let agents = of("agent", "agent.<name>")
        .value::<AgentStart>(json!({"messages": [user], "session": "order-17"}))
        .value::<MessageAdded>(json!({"message": user}))
        .value::<RunResumed>(
            json!({"continues": ID, "turn": turn, "executed": ["order-17/1/0/pay-3f9a"], "demoted": []}),
        )
        .value::<Iteration>(json!({"turn": turn, "messages": 4}))
        .value::<ToolCallIdentified>(json!({"call": call()}))
        .value::<QuestionAnswered>(json!({
            "id": question, "call": "order-17/1/0/pay-3f9a", "by": "ada",
            "at": {"secs_since_epoch": 1_795_849_200_u64, "nanos_since_epoch": 0}, "edited": false,
        }))
        .value::<AnswerUnused>(json!({"id": question, "by": "approval"}))
        .value::<QuestionAsked>(json!({"id": question, "kind": "approval", "by": "approval"}))
        .value::<ToolResponse>(json!({"call": call(), "result": {"id": "call_1", "response": 2}}))
        .value::<MessageError>(json!({"message": user, "error": "there is no tool `sing`"}))
        .value::<MessageReplaced>(
            json!({"before": Message::assistant("Two."), "after": Message::assistant("Two words.")}),
        )
        .value::<AgentSuccess>(json!({"answer": Message::assistant("Two words.")}))
        .module("agent::steering")
        .value::<MessageDropped>(json!({"to": "editor", "error": "the message is no `u32`"}))
        .module("agent::kinds")
        .value::<HandedOff>(json!({"from": "support", "to": "billing", "reason": "an invoice"}));

    let workflows = of("agent::workflow", "workflow.<name>")
        .value::<StepStart>(json!({"step": "draft", "number": 1}))
        .value::<StepSuccess<Value>>(json!({"step": "draft", "next": "check", "state": {"text": "Owls fly."}}))
        .value::<StepFailure<Value>>(json!({"step": "draft", "error": report(), "state": {"text": ""}}));

    vec![
        group("Runs", "Every run emits the lifecycle events, under the path of its runnable.", runs),
        group("Models", "A call of a model emits these events for each attempt.", models),
        group("Tools", "A call of a tool emits these events for each attempt.", tools),
        group("Agents", "An agent emits these events in each attempt, those from `iteration` on in each turn.", agents),
        group("Workflows", "A workflow with listeners emits these events for each step.", workflows),
        middleware(
            "One argument of a call: `StreamToolCall`",
            of("agent::reply", "middleware.stream_tool_call")
                .value::<ToolCallUpdate>(json!({
                    "call": {"index": 0, "id": "call_1", "name": "send"}, "delta": "Dear ", "is_complete": false,
                    "run_id": ID,
                }))
                .value::<ToolCallsDiscarded>(json!({"run_id": ID})),
        ),
        middleware(
            "Large results: `LargeResults`",
            of("agent::built_in", "middleware.large_results")
                .value::<LargeResultStored>(json!({"id": "r-5f3c", "tool": "read_log", "bytes": 48_120}))
                .value::<LargeResultFailed>(json!({"error": "the disk is full"})),
        ),
        middleware(
            "Summaries: `Summarize`",
            of("agent::built_in", "middleware.summarize")
                .value::<Summarized>(json!({"messages": 24, "tokens": 61_000, "summary": "The user is Ada."}))
                .value::<SummaryFailed>(json!({"error": "overloaded", "failures": 1})),
        ),
        middleware(
            "Titles: `Title`",
            of("agent::built_in", "middleware.title")
                .value::<Titled>(json!({"title": "Three days in Lima"}))
                .value::<TitleFailed>(json!({"error": "overloaded"})),
        ),
        middleware(
            "Typed answers: `Structured`",
            of("agent::built_in", "middleware.structured")
                .emitted::<Partial>("partial")
                .value::<PartialDiscarded>(json!({"run_id": ID})),
        ),
        middleware(
            "Plans: `TodoList`",
            of("agent::built_in", "middleware.todo_list").value::<TodosWritten>(json!({
                "before": [], "after": [{"text": "Find her", "state": "in_progress"}],
            })),
        ),
        middleware(
            "The choice of tools: `ToolSelector`",
            of("agent::built_in", "middleware.tool_selector")
                .value::<ToolsSelected>(json!({"tools": ["search"], "unknown": ["sing"]}))
                .value::<SelectionFailed>(json!({"error": "overloaded"})),
        ),
        middleware(
            "Tools as text: `ReAct`",
            of("agent::kinds", "middleware.react")
                .value::<ReActStart>(json!({"turn": 1, "tools": ["search"]}))
                .value::<ReActPartialUpdate>(json!({"key": "thought", "delta": "I must ", "turn": 1}))
                .value::<ReActUpdate>(json!({
                    "key": "thought", "value": "I must search.", "parsed": "I must search.", "turn": 1,
                }))
                .value::<ReActRetry>(json!({"turn": 1, "error": "the line has no prefix"}))
                .value::<ReActError>(json!({"turn": 1, "error": "the line has no prefix"}))
                .value::<ReActSuccess>(json!({"answer": "8611 m"})),
        ),
        middleware(
            "The order of calls: `Requirements`",
            of("agent::kinds", "middleware.requirements")
                .value::<RequirementsInit>(json!({"tools": ["weather", "search"]}))
                .value::<RequirementsStart>(json!({
                    "turn": 1, "offered": ["weather"], "refused": [["search", "may be called only after `weather`"]],
                    "tool_choice": null,
                }))
                .value::<RequirementsSuccess>(json!({"turn": 1}))
                .value::<FinalAnswer>(json!({"delta": "It rains.", "structured": null})),
        ),
        middleware(
            "Approvals: `Approval`",
            of("middleware::approval", "middleware.approval")
                .value::<Asked>(json!({
                    "id": question,
                    "request": {
                        "id": question, "by": "approval", "kind": "Tool", "name": "pay", "input": {"amount": 5},
                        "input_hash": "3f9a", "allowed": ["approve", "edit", "reject", "respond"],
                    },
                }))
                .value::<Approved>(json!({"id": question, "by": "ada", "input_hash": "3f9a", "remembered": false}))
                .value::<Edited>(json!({
                    "id": question, "by": "ada", "input_hash": "3f9a", "input": {"amount": 4}, "remembered": false,
                }))
                .value::<Rejected>(json!({
                    "id": question, "by": "ada", "input_hash": "3f9a", "reason": "too much", "remembered": false,
                    "failed": false,
                }))
                .value::<Responded>(json!({
                    "id": question, "by": "ada", "input_hash": "3f9a", "output": "paid in cash", "remembered": false,
                })),
        ),
        middleware(
            "Budgets: `Budget`",
            of("middleware::budget", "middleware.budget")
                .emitted::<Charged>("charged")
                .emitted::<BudgetWarning>("warning")
                .emitted::<BudgetClosed>("closed")
                .emitted::<StartDenied>("denied"),
        ),
        middleware(
            "Caches: `Cache`",
            of("middleware::cache", "middleware.cache")
                .value::<Hit>(json!({"key": "9f86d081884c7d65", "age_ms": 1200}))
                .value::<Joined>(json!({"key": "9f86d081884c7d65", "age_ms": 40}))
                .value::<Miss>(json!({"key": "9f86d081884c7d65", "why": "absent"})),
        ),
        middleware(
            "Circuit breakers: `CircuitBreaker`",
            of("middleware::circuit_breaker", "middleware.circuit_breaker")
                .value::<Opened>(json!({"key": "Tool", "failures": 5, "cool_down_ms": 30_000, "cause": "timed out"}))
                .value::<HalfOpened>(json!({"key": "Tool"}))
                .value::<Closed>(json!({"key": "Tool"}))
                .value::<CallDenied>(json!({"key": "Tool", "retry_after_ms": 12_000, "reason": "the circuit is open"})),
        ),
        middleware(
            "Limits of runs at a time: `Concurrency`",
            of("middleware::concurrency", "middleware.concurrency")
                .value::<Delayed>(json!({"key": "Tool", "waited_ms": 250}))
                .value::<Denied>(json!({"key": "Tool", "retry_after_ms": null})),
        ),
        middleware(
            "Limits of runs in a period: `RateLimit`",
            of("middleware::rate_limit", "middleware.rate_limit")
                .value::<Delayed>(json!({"key": null, "waited_ms": 250}))
                .value::<Denied>(json!({"key": null, "retry_after_ms": 900})),
        ),
        middleware(
            "Unwanted content: `ContentFilter`",
            of("middleware::content_filter", "middleware.content_filter").emitted::<Filtered>("filtered"),
        ),
        middleware(
            "Secrets that leave: `ExfilGuard`",
            of("middleware::exfil_guard", "middleware.exfil_guard").emitted::<Blocked>("blocked"),
        ),
        middleware(
            "Redactions: `Redact`",
            of("middleware::redact", "middleware.redact").emitted::<Redacted>("redacted"),
        ),
        middleware(
            "Jobs: `Durable`",
            of("middleware::durable", "middleware.durable")
                .value::<durable::Answered>(json!({"key": "import-7/row 20", "failed": false}))
                .value::<durable::Unused>(json!({"keys": ["import-7/row 21"]})),
        ),
        middleware(
            "Alternatives: `Fallback`",
            of("middleware::fallback", "middleware.fallback")
                .value::<FellBack>(json!({
                    "by": "Tool[mirror]", "after": [{"by": "Tool[download]", "cause": "refused", "kind": "failed"}],
                }))
                .value::<Exhausted>(json!({"after": [{"by": "Tool[download]", "cause": "refused", "kind": "failed"}]})),
        ),
        middleware(
            "Numbers of runs: `Limits`",
            of("middleware::limits", "middleware.limits")
                .value::<Reached>(json!({"limit": "depth", "scope": "run", "most": 4, "kind": "Tool"})),
        ),
        middleware(
            "Metrics: `Metrics`",
            of("middleware::metrics", "middleware.metrics").value::<Counted>(json!({
                "kind": "Tool", "name": "search", "status": "success", "duration_ns": 1_200_000,
            })),
        ),
        middleware(
            "Set outputs: `OverrideOutput`",
            of("middleware::override_output", "middleware.override_output")
                .value::<override_output::Answered>(json!({"kind": "Tool", "name": "delete"}))
                .value::<WouldRun>(json!({"kind": "Tool", "name": "delete", "input": {"path": "a.txt"}})),
        ),
        middleware(
            "Recordings: `Record`",
            of("middleware::record", "middleware.record").value::<Recorded>(json!({"runs": 12, "status": "success"})),
        ),
        middleware(
            "Replays: `Replay`",
            of("middleware::replay", "middleware.replay")
                .value::<Replayed>(json!({"entry": 3, "kind": "Tool", "name": "search"}))
                .value::<Difference>(json!({
                    "what": "missing", "within": "Agent[helper]", "entry": 3,
                    "expected": {"kind": "Tool", "name": "search", "input": "owls"},
                })),
        ),
        middleware(
            "Retries: `Retry`",
            of("middleware::retry", "middleware.retry")
                .value::<RetryScheduled>(json!({
                    "attempt": 1, "delay_ms": 500, "retry_after_ms": null, "cause": "overloaded", "kind": "failed",
                    "retries": 3, "status": 503,
                }))
                .value::<RetriesExhausted>(json!({"retries": 3, "cause": "overloaded"})),
        ),
        middleware(
            "Time limits: `Timeout`",
            of("middleware::timeout", "middleware.timeout")
                .value::<TimedOut>(json!({"limit": "attempt", "after_ms": 5000})),
        ),
        middleware(
            "Lines of a tree: `Trajectory`",
            of("middleware::trajectory", "middleware.trajectory").emitted::<TrajectoryEvent>("start"),
        ),
    ]
}
