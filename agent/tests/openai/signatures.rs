//! A server receives the data back that its documentation demands, and no other server receives this data.
//!
//! The replies have the form of the documentation that `docs/models.md` links.

use emitree_agent::{Agent, AgentRun, ChatModel, ChatOptions, Message, OpenAi, Part, Role, Session, hooks_fn};
use emitree_middleware::{Fallback, Redact};
use emitree_runtime::{Result, for_tree};
use serde_json::{Value, json};

use super::server::{Answer, Server};
use crate::support::*;

const SERVERS: [&str; 4] = ["deepseek", "gemini", "openrouter", "openai"];

/// Returns a message of a server in a turn: it calls the tool `shout`, or answers.
fn message(server: &str, turn: usize, calls: bool) -> Value {
    let call = |id: &str, text: &str| {
        let arguments = json!({ "text": text }).to_string();
        json!({"id": format!("{id}{turn}"), "type": "function", "function": {"name": "shout", "arguments": arguments}})
    };
    let mut message = json!({"role": "assistant", "content": if calls { Value::Null } else { "So it is.".into() }});
    if calls {
        message["tool_calls"] = json!([call("a", "x"), call("b", "y")]);
    }
    match server {
        "deepseek" => message["reasoning_content"] = format!("I think, in turn {turn}, that so it is.").into(),
        // Of parallel calls, only the first has a signature. The text of an answer has a signature too.
        "gemini" => {
            let signed = json!({"google": {"thought_signature": format!("EpUB+{turn}/==")}});
            if calls {
                message["tool_calls"][0]["extra_content"] = signed;
            } else {
                message["extra_content"] = signed;
            }
        }
        "openrouter" => {
            message["reasoning"] = "I think that so it is.".into();
            message["reasoning_details"] = json!([
                {"type": "reasoning.text", "text": "I think that so it is.", "signature": format!("sig{turn}"),
                    "id": "r1", "format": "anthropic-claude-v1", "index": 0},
                {"type": "reasoning.encrypted", "data": "eyJlbmMi", "id": null, "format": "anthropic-claude-v1", "index": 1},
            ]);
        }
        _ => {}
    }
    message
}

/// Returns the message as a request sends it back to its server.
fn sent_back(mut message: Value) -> Value {
    message.as_object_mut().expect("an object").remove("reasoning");
    message
}

/// Returns the message as a request sends it to a server that did not write it.
fn sent_to(other: &str, turn: usize, calls: bool, is_current: bool) -> Value {
    let mut message = message("openai", turn, calls);
    match other {
        "deepseek" if calls => message["reasoning_content"] = "".into(),
        "gemini" if calls && is_current => {
            let dummy = json!({"google": {"thought_signature": "skip_thought_signature_validator"}});
            message["tool_calls"][0]["extra_content"] = dummy;
        }
        _ => {}
    }
    message
}

fn halves(text: &Value) -> (Value, Value) {
    let text = text.as_str().expect("a text");
    let (begin, rest) = text.split_at(text.len() / 2);
    (begin.into(), rest.into())
}

/// Returns the pieces in which a server streams a message.
fn pieces(message: &Value) -> Vec<Value> {
    let mut pieces = vec![json!({"role": "assistant", "content": ""})];
    for name in ["reasoning_content", "reasoning"] {
        if let Some(text) = message.get(name) {
            let (begin, rest) = halves(text);
            pieces.extend([json!({name: begin, "content": null}), json!({name: rest})]);
        }
    }
    for detail in message["reasoning_details"].as_array().into_iter().flatten() {
        let (mut begin, mut rest) = (detail.clone(), detail.clone());
        if detail["type"] == "reasoning.text" {
            (begin["text"], rest["text"]) = halves(&detail["text"]);
            begin["signature"] = Value::Null;
            pieces.push(json!({"reasoning_details": [begin]}));
        }
        pieces.push(json!({"reasoning_details": [rest]}));
    }
    if !message["content"].is_null() {
        pieces.push(json!({"content": message["content"], "extra_content": message["extra_content"]}));
    }
    for (index, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let (begin, rest) = halves(&call["function"]["arguments"]);
        let mut first = call.clone();
        first["index"] = index.into();
        first["function"]["arguments"] = begin;
        pieces.push(json!({"tool_calls": [first]}));
        pieces.push(json!({"tool_calls": [{"index": index, "function": {"arguments": rest}}]}));
    }
    pieces
}

fn reply(message: &Value, streams: bool) -> Answer {
    let reason = if message.get("tool_calls").is_some() { "tool_calls" } else { "stop" };
    if !streams {
        return Answer::json("200 OK", &json!({"choices": [{"message": message, "finish_reason": reason}]}));
    }
    let chunk = |delta: Value| format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]}));
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
    let chunks: String = pieces(message).into_iter().map(chunk).collect();
    Answer::stream([format!("{chunks}data: {end}\n\ndata: [DONE]\n\n").as_bytes()])
}

fn model(name: &str, server: &Server) -> Result<ChatModel> {
    Ok(ChatModel::new(OpenAi::from_name(&format!("{name}:m-1"))?.base_url(server.url()).build()?)?)
}

fn agent_of(model: ChatModel, streams: bool) -> Result<Agent> {
    Agent::builder("tester", model).tool(shout()).options(ChatOptions::new().stream(streams)).build()
}

/// Returns the model's messages in a request.
fn answers(request: &Value) -> Vec<Value> {
    let messages = request["messages"].as_array().expect("messages").iter();
    messages.filter(|message| message["role"] == "assistant").cloned().collect()
}

fn restored(session: &Session) -> Result<Session> {
    Ok(serde_json::from_str(&serde_json::to_string(session)?)?)
}

// A11
#[tokio::test]
async fn a_server_receives_its_data_back_in_each_turn_also_from_a_stored_session() -> Result<()> {
    for name in SERVERS {
        for streams in [false, true] {
            let turns: Vec<_> = (0..3).flat_map(|turn| [true, false].map(|calls| message(name, turn, calls))).collect();
            let server = Server::start(turns.iter().map(|message| reply(message, streams))).await;
            let agent = agent_of(model(name, &server)?, streams)?;
            let mut session = Session::new();
            for turn in ["one", "two", "three"] {
                let answer = agent.ask(turn).session(&session).await?;
                assert_eq!((answer.text(), answer.warnings), ("So it is.".to_owned(), vec![]), "{name}");
                session = restored(&session)?;
            }
            let expected: Vec<_> = turns.into_iter().map(sent_back).collect();
            for (at, request) in server.requests().iter().enumerate() {
                assert_eq!(answers(&request.body), expected[..at], "{name}, stream: {streams}, request {at}");
            }
        }
    }
    Ok(())
}

// A11
#[tokio::test]
async fn another_server_receives_no_foreign_data_and_what_it_demands_of_each_call() -> Result<()> {
    for (a, b) in SERVERS.iter().flat_map(|a| SERVERS.map(|b| (*a, b))).filter(|(a, b)| a != b) {
        for streams in [false, true] {
            let failure = || Answer::json("500 Internal Server Error", &json!({"error": {"message": "no"}}));
            let of = |name: &str, turn, calls| reply(&message(name, turn, calls), streams);
            // The first server fails in its second request, and the second server answers with a call. Then the first
            // server answers, and calls a tool again in a second turn, in which the second server gives the answer.
            let first = [of(a, 0, true), failure(), of(a, 2, false), of(a, 3, true), failure()];
            let (first, second) = (Server::start(first).await, Server::start([of(b, 1, true), of(b, 4, false)]).await);
            let agent = agent_of(model(a, &first)?.middleware(Fallback::to(model(b, &second)?)), streams)?;
            let session = Session::new();
            agent.ask("one").session(&session).await?;
            agent.ask("two").session(&restored(&session)?).await?;
            let own = |name: &str, turn, calls| sent_back(message(name, turn, calls));
            let names = format!("{a} and {b}, stream: {streams}");
            let requests: Vec<_> = first.requests().iter().map(|request| answers(&request.body)).collect();
            assert_eq!(requests[2], [own(a, 0, true), sent_to(a, 1, true, true)], "{names}");
            let before = [own(a, 0, true), sent_to(a, 1, true, false), own(a, 2, false)];
            assert_eq!(requests[3], before, "{names}");
            let requests: Vec<_> = second.requests().iter().map(|request| answers(&request.body)).collect();
            assert_eq!(requests[0], [sent_to(b, 0, true, true)], "{names}");
            let before =
                [sent_to(b, 0, true, false), own(b, 1, true), sent_to(b, 2, false, false), sent_to(b, 3, true, true)];
            assert_eq!(requests[1], before, "{names}");
        }
    }
    Ok(())
}

// A11
#[tokio::test]
async fn data_goes_back_only_to_the_address_and_model_that_it_came_from() -> Result<()> {
    let replies = || [reply(&message("deepseek", 0, false), false), reply(&message("deepseek", 1, false), false)];
    let (one, other) = (Server::start(replies()).await, Server::start(replies()).await);
    let provider = |server: &Server, model: &str| OpenAi::builder(model).base_url(server.url());
    let session = Session::new();
    let ask = async |model: ChatModel| agent_of(model, false)?.ask("go").session(&session).await;
    ask(ChatModel::new(provider(&one, "m").build()?)?).await?;
    ask(ChatModel::new(provider(&other, "m").build()?)?).await?;
    ask(ChatModel::new(provider(&one, "n").build()?)?).await?;
    let reasoning = |server: &Server| {
        let answers = answers(&server.requests()[1].body).into_iter();
        answers.map(|answer| answer.get("reasoning_content").cloned()).collect::<Vec<_>>()
    };
    // The second request to the first server is for another model.
    assert_eq!(reasoning(&one), [None, None]);
    let options = ChatOptions::new().extra("model", "m");
    let agent = Agent::builder("tester", ChatModel::new(provider(&other, "n").build()?)?).options(options).build()?;
    agent.ask("again").session(&session).await?;
    // The requested model is the one that `extra` names.
    let back = message("deepseek", 0, false)["reasoning_content"].clone();
    assert_eq!(reasoning(&other), [None, Some(back), None]);
    Ok(())
}

// A11
#[tokio::test]
async fn data_of_a_text_or_call_that_middleware_changed_is_not_sent_back_and_one_response_warns() -> Result<()> {
    let changes = hooks_fn("changes", |hooks| {
        hooks.on_action(|action, _| {
            for part in &mut action.response.message.parts {
                match part {
                    Part::Reasoning { content, .. } => content.push('!'),
                    Part::ToolCall(call) => call.arguments = json!({"text": "z"}).into(),
                    Part::Text { content } => content.push('!'),
                    _ => {}
                }
            }
            Ok(())
        });
    });
    for name in SERVERS {
        let turns = [(0, true), (1, true), (2, false), (3, false)].map(|(turn, calls)| message(name, turn, calls));
        let server = Server::start(turns.iter().map(|message| reply(message, false))).await;
        let agent = Agent::builder("tester", model(name, &server)?).tool(shout()).with(changes.clone()).build()?;
        let session = Session::new();
        let first = agent.ask("one").session(&session).await?;
        let second = agent.ask("two").session(&restored(&session)?).await?;
        let warning = format!(
            "data that `{name}` needs back was not sent, because middleware has changed the text or the call that it belongs to"
        );
        let warnings = if name == "openai" { vec![] } else { vec![warning] };
        assert_eq!((first.warnings, second.warnings), (warnings, vec![]), "{name}");
        for (at, is_current) in [(2, true), (3, false)] {
            let sent = answers(&server.requests()[at].body);
            for (turn, sent) in sent.iter().take(2).enumerate() {
                let mut expected = sent_to(name, turn, true, is_current);
                for call in expected["tool_calls"].as_array_mut().expect("calls") {
                    call["function"]["arguments"] = r#"{"text":"z"}"#.into();
                }
                assert_eq!(*sent, expected, "{name}, request {at}");
            }
        }
    }
    Ok(())
}

// A11
#[tokio::test]
async fn a_redaction_passes_signatures_that_look_like_secrets() -> Result<()> {
    let mut asks = message("gemini", 0, true);
    let signed = json!({"google": {"thought_signature": "AKIAZ5QW7RTB2KDM4NXP"}});
    asks["tool_calls"][0]["extra_content"] = signed.clone();
    for streams in [false, true] {
        let server = Server::start([&asks, &message("gemini", 1, false)].map(|message| reply(message, streams))).await;
        let agent = agent_of(model("gemini", &server)?, streams)?;
        agent.ask("go").middleware(for_tree(Redact::new())).await?;
        assert_eq!(answers(&server.requests()[1].body)[0]["tool_calls"][0]["extra_content"], signed);
    }
    Ok(())
}

// A11
#[tokio::test]
async fn reasoning_without_data_of_a_server_is_not_sent() -> Result<()> {
    let server = Server::start([reply(&message("deepseek", 0, false), false)]).await;
    let session = Session::new();
    let parts =
        [Part::reasoning("Hm.", None), Part::reasoning("Hm.", Some(json!("odd"))), Part::Text { content: "so".into() }];
    session.extend([Message::user("go"), Message::new(Role::Assistant, parts)])?;
    agent_of(model("deepseek", &server)?, false)?.ask("on").session(&session).await?;
    assert_eq!(answers(&server.requests()[0].body), [json!({"role": "assistant", "content": "so"})]);
    Ok(())
}
