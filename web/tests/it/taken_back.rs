//! Texts that do not hold.

use emitree_agent::kinds::Handoff;
use emitree_agent::{
    Agent, AgentOutput, ChatModel, ChatOptions, ChatRequest, ChatResponse, Delta, Message, Reply, ScriptedModel,
    ToolCall, tool_fn,
};
use emitree_middleware::Redact;
use emitree_runtime::{Error, Guard, Result, RunContext, Runnable, for_tree, map_output};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::support::{chat, check, last, page, shown, types};

const PATHS: [&str; 2] = ["/agent", "/chat"];

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Deserialize, JsonSchema)]
struct Dice {
    sides: u32,
}

#[derive(Debug)]
struct NoCodes;

impl Guard<ChatModel> for NoCodes {
    async fn check_output(&self, output: &ChatResponse, _: &RunContext) -> Result<()> {
        if output.message.text().contains("1815") { Err(Error::new("no codes")) } else { Ok(()) }
    }
}

#[tokio::test]
async fn a_reply_that_a_guard_withholds_is_taken_back() {
    for path in PATHS {
        let script = ScriptedModel::new("test").reply(Reply::text("The code is 1815.").in_pieces(3));
        let chat = chat(script, |agent| agent.hooks(|hooks| _ = hooks.model_call(|stack| stack.guard(NoCodes))));
        let events = page(&chat).ask(path, "t", "Hi").await;
        check(path, &events);
        assert_eq!(shown(&events), "", "{events:#?}");
        assert!(last(&events).to_string().contains("no codes"));
    }
}

#[tokio::test]
async fn an_answer_that_an_output_function_changes_is_replaced() {
    for path in PATHS {
        let script = ScriptedModel::new("test").text("everest");
        let shout = map_output(|output: &mut AgentOutput, _: &RunContext| {
            output.answer = Message::assistant(output.text().to_uppercase());
            Ok::<_, Error>(())
        });
        let events = page(&chat(script, |agent| agent.middleware(shout))).ask(path, "t", "Hi").await;
        check(path, &events);
        assert_eq!(shown(&events), "EVEREST", "{events:#?}");
    }
}

#[tokio::test]
async fn a_denied_answer_is_shown_as_withheld() {
    for path in PATHS {
        let script = ScriptedModel::new("test").text("everest");
        let deny =
            map_output(|_: &mut AgentOutput, _: &RunContext| Err::<(), _>(Error::denied("policy", "no mountains")));
        let events = page(&chat(script, |agent| agent.middleware(deny))).ask(path, "t", "Hi").await;
        check(path, &events);
        assert!(shown(&events).starts_with("(withheld by "), "{events:#?}");
    }
}

#[tokio::test]
async fn secrets_that_a_redaction_replaces_are_in_no_event() {
    for path in PATHS {
        let script = ScriptedModel::new("test").reply(Reply::text("Write to maria@mailbox.org.").in_pieces(2));
        let chat = chat(script, |agent| agent.middleware(for_tree(Redact::new())));
        let events = page(&chat).ask(path, "t", "Who?").await;
        check(path, &events);
        assert!(!format!("{events:?}").contains("maria"), "{events:#?}");
        assert_eq!(shown(&events), "Write to [REDACTED:email].");
    }
}

#[tokio::test]
async fn a_reply_that_is_asked_for_again_takes_the_place_of_the_first() {
    for path in PATHS {
        let script = ScriptedModel::new("test").text("first").text("second");
        let again = map_output(|output: &mut AgentOutput, _: &RunContext| match &*output.text() {
            "first" => Err(Error::retry("not that")),
            _ => Ok(()),
        });
        let chat = chat(script, |agent| agent.middleware(again).max_middleware_retries(1));
        let events = page(&chat).ask(path, "t", "Hi").await;
        check(path, &events);
        assert_eq!(shown(&events), "second", "{events:#?}");
    }
}

#[tokio::test]
async fn a_model_that_a_tool_asks_takes_back_nothing_of_the_reply() {
    for path in PATHS {
        let inner = ScriptedModel::new("inner").reply(Reply::deltas([]).then_error(Error::denied("policy", "no")));
        let inner = std::sync::Arc::new(ChatModel::new(inner).unwrap());
        let asks = tool_fn("ask", "Asks a model", move |_: Nothing, _: RunContext| {
            let inner = std::sync::Arc::clone(&inner);
            async move {
                let answer = inner.run_shared(ChatRequest::new([Message::user("Hi")])).await;
                Ok(if answer.is_err() { "denied" } else { "answered" })
            }
        });
        let deltas =
            [Delta::Text("Let me ask.".to_owned()), Delta::tool_call(0, Some("c1".into()), Some("ask".into()), "{}")];
        let script = ScriptedModel::new("test").reply(Reply::deltas(deltas)).text("Done.");
        let events = page(&chat(script, |agent| agent.tool(asks.unwrap()))).ask(path, "t", "Hi").await;
        check(path, &events);
        assert_eq!(shown(&events), "Let me ask.Done.");
        let resets = types(&events).iter().filter(|kind| ["MESSAGES_SNAPSHOT", "reset-step"].contains(kind)).count();
        assert_eq!(resets, 0, "{events:#?}");
    }
}

#[tokio::test]
async fn a_call_of_a_discarded_attempt_leaves_its_id_to_the_next_one() {
    let script = ScriptedModel::new("test").call("roll", json!({"sides": 6})).text("first");
    let script = script.call("pay", json!({"to": "bob"}));
    let roll = tool_fn("roll", "Rolls", |Dice { sides }: Dice, _: RunContext| async move { Ok(sides) }).unwrap();
    let again = map_output(|output: &mut AgentOutput, _: &RunContext| match &*output.text() {
        "first" => Err(Error::retry("not that")),
        _ => Ok(()),
    });
    let chat = chat(script, |agent| agent.tool(roll).middleware(again).max_middleware_retries(1));
    let events = page(&chat).ask("/chat", "t", "Pay.").await;
    check("/chat", &events);
    let request = events.iter().find(|event| event["type"] == "tool-approval-request");
    // A page that answers shows the call under the id that the history gives it.
    assert_eq!(request.unwrap_or_else(|| panic!("{events:#?}"))["toolCallId"], "0");
}

#[tokio::test]
async fn a_call_that_a_hook_has_changed_is_shown_as_it_is_made() {
    for path in PATHS {
        let script = ScriptedModel::new("test").call("roll", json!({"sides": 6})).text("Done.");
        let roll = tool_fn("roll", "Rolls", |Dice { sides }: Dice, _: RunContext| async move { Ok(sides) });
        let chat = chat(script, |agent| {
            agent.tool(roll.unwrap()).hooks(|hooks| {
                hooks.on_resolve(|call, _| Ok(Some(ToolCall::new(&*call.id, &*call.name, json!({"sides": 20})))));
            })
        });
        let events = page(&chat).ask(path, "t", "Roll.").await;
        check(path, &events);
        let shows = |event: &&serde_json::Value| match event["type"].as_str().unwrap() {
            "MESSAGES_SNAPSHOT" => event["messages"][1]["toolCalls"][0]["function"]["arguments"] == r#"{"sides":20}"#,
            "tool-input-available" => event["input"] == json!({"sides": 20}),
            _ => false,
        };
        assert!(events.iter().any(|event| shows(&event)), "{events:#?}");
    }
}

#[tokio::test]
async fn arguments_that_the_model_has_cut_are_json_for_ag_ui() {
    let cut = [Delta::tool_call(0, Some("c1".into()), Some("pay".into()), "{\"to\": \"b")];
    let script = ScriptedModel::new("test").reply(Reply::deltas(cut)).text("Sorry.");
    let events = page(&chat(script, |agent| agent)).ask("/agent", "t", "Pay.").await;
    check("/agent", &events);
    let result = events.iter().find(|event| event["type"] == "TOOL_CALL_RESULT").unwrap();
    assert!(result["content"].as_str().unwrap().contains("not JSON"), "{result}");
}

#[tokio::test]
async fn a_sub_agent_whose_answer_is_denied_leaves_no_text() {
    for path in PATHS {
        let writer = ScriptedModel::new("writer").reply(Reply::text("The code is 1815.").in_pieces(3));
        let deny = map_output(|_: &mut AgentOutput, _: &RunContext| Err::<(), _>(Error::denied("policy", "no codes")));
        let writer = Agent::builder("writer", ChatModel::new(writer).unwrap()).middleware(deny).build().unwrap();
        let script = ScriptedModel::new("test").call("writer", json!({"task": "write"})).text("Sorry.");
        let events = page(&chat(script, |agent| agent.tool(writer.as_tool("Writes")))).ask(path, "t", "Hi").await;
        check(path, &events);
        if path == "/agent" {
            let snapshot = events.iter().rfind(|event| event["type"] == "MESSAGES_SNAPSHOT").unwrap();
            assert!(!snapshot.to_string().contains("1815"), "{snapshot:#}");
            let end = types(&events).iter().rposition(|kind| *kind == "MESSAGES_SNAPSHOT").unwrap();
            assert!(!format!("{:?}", &events[end..]).contains("1815"));
        } else {
            assert!(!format!("{events:?}").contains("1815"), "it works within its call");
        }
    }
}

#[tokio::test]
async fn the_text_of_a_sub_agent_is_shown_whether_its_model_streams_or_not() {
    for streams in [false, true] {
        let build = || {
            let writer = ScriptedModel::new("writer").reply(Reply::text("A poem.").in_pieces(2)).text("Another.");
            let options = ChatOptions::new().stream(streams);
            let writer = Agent::builder("writer", ChatModel::new(writer).unwrap()).options(options).build().unwrap();
            let script = ScriptedModel::new("test").call("writer", json!({"task": "write"})).text("Here it is.");
            chat(script, |agent| agent.tool(writer.as_tool("Writes")))
        };
        let events = page(&build()).ask("/agent", "t", "Hi").await;
        check("/agent", &events);
        let texts: Vec<_> = events.iter().filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT").collect();
        let is_own = |event: &&&serde_json::Value| event["subagentRunId"].is_string();
        let own: String = texts.iter().filter(is_own).map(|event| event["delta"].as_str().unwrap()).collect();
        assert_eq!(own, "A poem.", "{events:#?}");
        assert_eq!(texts.last().unwrap()["delta"], "Here it is.");
        let events = page(&build()).ask("/chat", "t", "Hi").await;
        check("/chat", &events);
        assert_eq!(shown(&events), "Here it is.");
    }
}

#[tokio::test]
async fn a_sub_agent_has_its_own_events_in_ag_ui_and_works_within_its_call_in_the_ai_sdk() {
    let build = || {
        let writer = ScriptedModel::new("writer").text("A poem.");
        let writer = Agent::builder("writer", ChatModel::new(writer).unwrap()).build().unwrap();
        let script = ScriptedModel::new("test").call("writer", json!({"task": "write"})).text("Here it is.");
        chat(script, |agent| agent.tool(writer.as_tool("Writes")))
    };
    let events = page(&build()).ask("/agent", "t", "Hi").await;
    check("/agent", &events);
    let started = events.iter().find(|event| event["type"] == "SUBAGENT_STARTED").unwrap();
    let call = events.iter().find(|event| event["type"] == "TOOL_CALL_START").unwrap();
    assert_eq!((&started["name"], &started["parentToolCallId"]), (&json!("writer"), &call["toolCallId"]));
    let own: Vec<_> = events.iter().filter(|event| event["subagentRunId"] == started["subagentRunId"]).collect();
    let own: Vec<_> = own.into_iter().cloned().collect();
    let finished = types(&own).contains(&"SUBAGENT_FINISHED");
    assert!(finished, "{own:#?}");

    let events = page(&build()).ask("/chat", "t", "Hi").await;
    check("/chat", &events);
    assert_eq!(shown(&events), "Here it is.");
}

#[tokio::test]
async fn an_agent_that_takes_the_conversation_over_writes_the_answer() {
    for path in PATHS {
        let clerk = ScriptedModel::new("clerk").text("You have paid twice.");
        let billing = Agent::builder("billing", ChatModel::new(clerk).unwrap()).build().unwrap();
        let script = ScriptedModel::new("test").call("transfer_to_billing", json!({"reason": "an invoice"}));
        let chat = chat(script, |agent| agent.handoff(Handoff::to(&billing, "Invoices")));
        let events = page(&chat).ask(path, "t", "Hi").await;
        check(path, &events);
        assert_eq!(shown(&events), "You have paid twice.", "{events:#?}");
    }
}
