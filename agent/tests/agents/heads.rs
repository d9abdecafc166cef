//! E19: the heads of the events of models, tools and agents have ids, names, settings and counts, and no values.

use std::sync::{Arc, Mutex};

use emitree_agent::{
    AgentRun, AgentStart, ChatModel, ChatRequest, ChatResponse, ChatStart, ChatSuccess, DeltaStream, ModelFellBack,
    Provider, QuestionAnswered, RunResumed, ScriptedModel, Session, ToolRetry, ToolStart, UsageReported,
};
use emitree_emitter::{AnyEvent, Event, EventMeta};
use emitree_middleware::Runs;
use emitree_middleware::approval::{Approval, Decision};
use emitree_runtime::{Result, RunContext, Runnable, for_tree};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::agent;

const VALUE: &str = "a value of the work";

fn head<E: Event + DeserializeOwned>(payload: Value) -> Value {
    let event: E = serde_json::from_value(payload).expect("an event");
    event.head().expect("a head")
}

#[test]
fn a_head_has_the_facts_of_its_event_in_the_same_places() {
    let id = "01a220e5-886a-7301-a57c-a8c375892796";
    let message = json!({
        "role": "assistant", "parts": [{"type": "text", "content": VALUE}], "finish_reason": "length",
    });
    let error = json!({"kind": "failed", "message": VALUE, "is_retryable": true, "is_fatal": false});
    let turn = json!(emitree_agent::Turn::default());
    let mut request = json!(ChatRequest::from(VALUE));
    request["options"] = json!({"temperature": 0.5, "max_tokens": 9, "stop": [VALUE]});
    let server = json!({"provider": "openai", "model": "m", "server_address": "localhost", "server_port": 8000});
    let [mut start, mut start_head] = [server.clone(), server];
    start["request"] = request;
    start_head["request"] = json!({"options": {"temperature": 0.5, "max_tokens": 9}});
    let response = json!({"message": message, "model": "m-7", "id": "r1", "headers": {"x": VALUE}});
    let response_head = json!({"model": "m-7", "id": "r1", "message": {"finish_reason": "length"}});
    let usage = json!({
        "usage": {"input_tokens": 3, "output_tokens": 4, "cached_input_tokens": 1, "reasoning_tokens": 0}, "cost": "0.5", "model": "m",
    });
    let rows = [
        (head::<ChatStart>(start), start_head),
        (head::<ChatSuccess>(json!({"response": response})), json!({"response": response_head})),
        (head::<UsageReported>(usage.clone()), usage),
        (head::<ModelFellBack>(json!({"from": "a", "to": "b", "error": error})), json!({"from": "a", "to": "b"})),
        (head::<ToolStart>(json!({"input": VALUE, "call_id": "c1"})), json!({"call_id": "c1"})),
        (head::<AgentStart>(json!({"messages": [message], "session": "order-17"})), json!({"session": "order-17"})),
        (
            head::<QuestionAnswered>(json!({"id": VALUE, "call": "c1", "by": "ada", "at": null, "edited": true})),
            json!({"call": "c1", "by": "ada", "edited": true}),
        ),
        (head::<ToolRetry>(json!({"retry": 1, "error": error})), json!({"retry": 1})),
        (
            head::<RunResumed>(json!({"continues": id, "turn": turn, "executed": [VALUE], "demoted": []})),
            json!({"continues": id}),
        ),
    ];
    for (head, expected) in rows {
        assert_eq!(head, expected);
    }
}

#[tokio::test]
async fn the_start_of_a_tool_names_the_call_that_it_executes() -> Result<()> {
    let ids = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ids);
    let script = ScriptedModel::new("m").call("shout", json!({"text": "a"})).text("A");
    let agent = agent(&script).build()?;
    let run = agent.ask("Shout.").observe("tool.shout.start", move |start: &ToolStart, _| {
        seen.lock().unwrap().push(start.call_id.clone());
    });
    let output = run.await?;
    let calls = output.messages.iter().flat_map(|message| message.tool_calls().map(|call| Some(call.id.clone())));
    assert_eq!(*ids.lock().unwrap(), calls.collect::<Vec<_>>());
    assert_eq!(ids.lock().unwrap().len(), 1);
    Ok(())
}

#[tokio::test]
async fn the_start_of_a_run_names_its_call_even_if_the_call_is_denied() -> Result<()> {
    let ids = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ids);
    let script = ScriptedModel::new("m").call("shout", json!({"text": "a"})).text("A");
    let rejects = Approval::by(|_| async { Ok(Decision::reject("no")) }).runs(Runs::named("shout"));
    let agent = agent(&script).build()?;
    let note = move |_: &dyn AnyEvent, meta: &EventMeta<'_>| {
        let id = meta.context().get("call_id").and_then(Value::as_str).map(ToOwned::to_owned);
        seen.lock().unwrap().push((meta.path().to_owned(), id));
    };
    let output = agent.ask("Shout.").middleware(for_tree(rejects)).observe("tool.shout.run.*", note).await?;
    let call = output.messages.iter().find_map(|message| message.tool_calls().next()).map(|call| call.id.clone());
    let of = |name: &str, id| (format!("tool.shout.run.{name}"), id);
    assert_eq!(*ids.lock().unwrap(), [of("start", call), of("error", None), of("finish", None)]);
    Ok(())
}

#[tokio::test]
async fn the_start_of_an_agent_names_its_session() -> Result<()> {
    let ids = Arc::new(Mutex::new(Vec::new()));
    let agent = agent(&ScriptedModel::new("m").text("Hi.").text("Hi.")).build()?;
    let (named, unnamed) = (Session::with_id("order-17")?, Session::new());
    for session in [&named, &unnamed] {
        let seen = Arc::clone(&ids);
        let run = agent.ask("Hello.").session(session);
        run.observe("start", move |start: &AgentStart, _| seen.lock().unwrap().push(start.session.clone())).await?;
    }
    assert_eq!(*ids.lock().unwrap(), ["order-17", unnamed.id()]);
    Ok(())
}

/// A provider that states its server.
struct Near(ScriptedModel);

impl Provider for Near {
    fn name(&self) -> &str {
        "near"
    }

    fn model(&self) -> &str {
        self.0.model()
    }

    fn server(&self) -> Option<(&str, u16)> {
        Some(("llm.internal", 8443))
    }

    async fn chat(&self, request: &ChatRequest, ctx: &RunContext) -> Result<DeltaStream> {
        self.0.chat(request, ctx).await
    }
}

/// Runs a model, and returns its answer and the heads of its events `start`.
async fn started(model: &ChatModel) -> Result<(ChatResponse, Vec<Value>)> {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    let run = model.run("Hello.".into());
    let run = run.observe("start", move |start: &ChatStart, _| seen.lock().unwrap().extend(start.head()));
    let answer = run.await?;
    let heads = std::mem::take(&mut *heads.lock().unwrap());
    Ok((answer, heads))
}

#[tokio::test]
async fn the_start_of_a_model_names_the_provider_and_the_server_that_are_asked() -> Result<()> {
    let options = json!({"temperature": null, "max_tokens": null});
    let failing = ScriptedModel::new("first").error(emitree_runtime::Error::new("busy").retryable(true));
    let second = ChatModel::new(Near(ScriptedModel::new("second").text("Hi.")))?;
    let (answer, heads) = started(&ChatModel::new(failing)?.or(second)?).await?;
    assert_eq!(answer.text(), "Hi.");
    let of = |provider, model, address: Option<&str>, port: Option<u16>| {
        json!({
            "request": {"options": options}, "provider": provider, "model": model, "server_address": address,
            "server_port": port,
        })
    };
    assert_eq!(heads, [of("scripted", "first", None, None), of("near", "second", Some("llm.internal"), Some(8443))]);
    Ok(())
}
