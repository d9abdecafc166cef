//! A conversation is sent in a form that the server accepts, and the history stays as it is.

use std::sync::Arc;

use emitree_agent::{
    Agent, AgentRun, Arguments, ChatModel, ChatRequest, Message, OpenAi, Part, Role, Session, ToolCall, ToolResult,
    hooks_fn, tool_fn,
};
use emitree_runtime::{Result, RunContext, Runnable};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::server::{Answer, Server};
use crate::support::*;

fn done() -> Answer {
    Answer::json("200 OK", &json!({"choices": [{"message": {"content": "Done."}, "finish_reason": "stop"}]}))
}

/// Returns the messages that a server receives of a conversation.
async fn sent(name: &str, messages: impl IntoIterator<Item = Message>) -> Result<Vec<Value>> {
    let server = Server::start([done()]).await;
    let model = ChatModel::new(OpenAi::from_name(name)?.base_url(server.url()).build()?)?;
    model.run(ChatRequest::new(messages)).await?;
    Ok(server.requests()[0].body["messages"].as_array().expect("messages").clone())
}

fn asks(id: &str) -> Message {
    Message::assistant("").with_call(ToolCall::new(id, "count", json!({})))
}

fn gives(id: &str) -> Message {
    Message::tool([ToolResult::new(id, 4)])
}

/// A11
#[tokio::test]
async fn an_id_that_a_server_refuses_is_replaced_in_the_call_and_its_result_alike() -> Result<()> {
    let ids = ["call_PTLP8xhu3uwZk4l3nlnrrJha", "abcDEF123", "0"];
    let messages = || [Message::user("go")].into_iter().chain(ids.iter().flat_map(|id| [asks(id), gives(id)]));
    let table =
        [("mistral:m", [false, true, false]), ("vllm:mistral-small", [false, true, false]), ("vllm:m", [true; 3])];
    for (name, stay) in table {
        let sent = sent(name, messages()).await?;
        for (at, (id, stays)) in ids.iter().zip(stay).enumerate() {
            let call = sent[2 * at + 1]["tool_calls"][0]["id"].as_str().expect("an id");
            assert_eq!(sent[2 * at + 2]["tool_call_id"], call, "{name}");
            assert_eq!(call == *id, stays, "{name} {call}");
            assert!(stays || call.len() == 9 && call.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{call}");
        }
    }
    // The id does not depend on its place.
    let [first, moved] = [sent("mistral:m", messages()).await?, sent("mistral:m", messages().skip(1)).await?];
    assert_eq!(first[1..], moved[moved.len() - 6..]);
    Ok(())
}

/// Shows each message: its role, and the begin of its text or the number of its calls.
fn shown(messages: &[Value]) -> Vec<String> {
    let shown = messages.iter().map(|message| {
        let role = message["role"].as_str().expect("a role");
        match (message["tool_calls"].as_array(), message["content"].as_str()) {
            (Some(calls), None) => format!("{role} calls {}", calls.len()),
            (Some(calls), Some(text)) => format!("{role} {text:?} calls {}", calls.len()),
            (None, text) => format!("{role} {:?}", text.unwrap_or_default()),
        }
    });
    shown.collect()
}

const BEGINNING: &str = r#"user "(The beginning of the conversation is left out.)""#;
const BETWEEN: &str = r#"assistant "(The user sends a message.)""#;

fn part_of(modality: &str, mime_type: &str, uri: &str) -> Part {
    Part::Uri { modality: modality.to_owned(), mime_type: Some(mime_type.to_owned()), uri: uri.to_owned() }
}

/// Two results of one turn in messages of their own, with all kinds of parts.
fn with_parts() -> Vec<Message> {
    let png = part_of("image", "image/png", "data:image/png;base64,iVBORw0KGgo=");
    let pdf = part_of("document", "application/pdf", "https://host/a.pdf");
    let calls = asks("abcdef123").with_call(ToolCall::new("bcdefg234", "count", json!({})));
    let mut chart = ToolResult::new("abcdef123", "A chart.");
    chart.parts = vec![Part::Text { content: "Of May.".to_owned() }, png, pdf];
    let mut photo = ToolResult::new("bcdefg234", "");
    photo.parts = vec![part_of("image", "image/jpeg", "https://host/b.jpg")];
    vec![Message::user("go"), calls, Message::tool([chart]), Message::tool([photo])]
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

const PDF: &str = "[document, application/pdf, https://host/a.pdf: not shown]";

/// A11
#[tokio::test]
async fn images_of_results_follow_all_results_of_their_turn_or_are_in_them_if_the_server_reads_them_there() -> Result<()>
{
    let behind = json!([
        text("[image 1 of the results]"),
        image("data:image/png;base64,iVBORw0KGgo="),
        text("[image 2 of the results]"),
        image("https://host/b.jpg"),
    ]);
    let answered = with_parts().into_iter().chain([Message::assistant("Fine."), Message::user("And now?")]);
    let messages: Vec<_> = answered.collect();
    for (name, before) in [("openai:m", vec![]), ("unknown", vec![]), ("gemini:m", vec![]), ("vllm:m", vec![BETWEEN])] {
        // A server about which nothing is known.
        let sent = sent(if name == "unknown" { "together:m" } else { name }, messages.clone()).await?;
        assert_eq!(sent[2]["content"], format!("A chart.\n\nOf May.\n\n[image 1: see below]\n\n{PDF}"), "{name}");
        assert_eq!((&sent[3]["role"], &sent[3]["content"]), (&json!("tool"), &json!("[image 2: see below]")), "{name}");
        assert_eq!(shown(&sent[4..4 + before.len()]), before, "{name}");
        let rest = &sent[4 + before.len()..];
        assert_eq!((&rest[0]["role"], &rest[0]["content"]), (&json!("user"), &behind), "{name}");
        assert_eq!(shown(&rest[1..]), [r#"assistant "Fine.""#, r#"user "And now?""#], "{name}");
    }
    let sent = sent("openrouter:m", with_parts()).await?;
    let png = image("data:image/png;base64,iVBORw0KGgo=");
    assert_eq!(sent[2]["content"], json!([text("A chart."), text("Of May."), png, text(PDF)]));
    assert_eq!(sent[3]["content"], json!([image("https://host/b.jpg")]));
    assert_eq!(sent.len(), 4);
    Ok(())
}

#[tokio::test]
async fn a_model_without_images_reads_their_types_and_sizes() -> Result<()> {
    let server = Server::start([done()]).await;
    let provider = OpenAi::from_name("openrouter:m")?.base_url(server.url()).images(false).build()?;
    let png = part_of("image", "image/png", &format!("data:image/png;base64,{}", "A".repeat(16_000)));
    let mut messages = with_parts();
    messages.push(Message::new(Role::User, [Part::Text { content: "See:".to_owned() }, png]));
    ChatModel::new(provider)?.run(ChatRequest::new(messages)).await?;
    let sent = server.requests()[0].body["messages"].as_array().expect("messages").clone();
    assert_eq!(sent[2]["content"], format!("A chart.\n\nOf May.\n\n[image/png, 8 B: not shown]\n\n{PDF}"));
    assert_eq!(sent[3]["content"], "[image/jpeg, https://host/b.jpg: not shown]");
    assert_eq!(sent[4]["content"], "See:\n\n[image/png, 12 KB: not shown]");
    Ok(())
}

/// A11
#[tokio::test]
async fn roles_stand_in_an_order_that_the_server_accepts() -> Result<()> {
    let say = Message::assistant;
    let ask = Message::user;
    let system = Message::system;
    let table: [(&str, Vec<Message>, Vec<&str>); 8] = [
        // The user steers, interjects, or goes on after a cancelled tool or `max_steps`.
        (
            "mistral:m",
            vec![ask("a"), asks("abcdef123"), gives("abcdef123"), ask("b")],
            vec![r#"user "a""#, "assistant calls 1", r#"tool "4""#, BETWEEN, r#"user "b""#],
        ),
        ("openai:m", vec![asks("1"), gives("1"), ask("b")], vec!["assistant calls 1", r#"tool "4""#, r#"user "b""#]),
        // The user asks again after a failed call.
        ("vllm:gemma-3", vec![ask("a"), ask("b"), say("c")], vec![r#"user "a\n\nb""#, r#"assistant "c""#]),
        ("openai:m", vec![ask("a"), ask("b")], vec![r#"user "a""#, r#"user "b""#]),
        // A filter of the context has removed the beginning.
        (
            "llamacpp:m",
            vec![say("a"), asks("1"), gives("1"), ask("b")],
            vec![BEGINNING, r#"assistant "a" calls 1"#, r#"tool "4""#, BETWEEN, r#"user "b""#],
        ),
        (
            "gemini:m",
            vec![asks("1"), gives("1"), ask("b"), ask("c")],
            vec![BEGINNING, "assistant calls 1", r#"tool "4""#, r#"user "b""#, r#"user "c""#],
        ),
        (
            "together:mistral-7b",
            vec![system("s"), system("t"), ask("a"), say("b"), system("u"), ask("c")],
            vec![r#"system "s\n\nt""#, r#"user "a""#, r#"assistant "b""#, r#"user "u\n\nc""#],
        ),
        ("openai:m", vec![ask("a"), system("u")], vec![r#"user "a""#, r#"system "u""#]),
    ];
    for (name, messages, expected) in table {
        assert_eq!(shown(&sent(name, messages).await?), expected, "{name}");
    }
    // A text and an attachment become one list of parts.
    let image = Part::Uri { modality: "image".into(), mime_type: None, uri: "data:,a".into() };
    let joined = sent("mistral:m", [ask("a"), Message::new(Role::User, [image])]).await?;
    assert_eq!(
        joined,
        [json!({"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,a"}},
        ]})]
    );
    Ok(())
}

/// A11
#[tokio::test]
async fn an_empty_message_of_the_model_is_left_out_and_the_order_stays_valid() -> Result<()> {
    let thought = || Message::new(Role::Assistant, [Part::reasoning("Hm.", None)]);
    let messages = |empty: Message| {
        [
            Message::user("a"),
            asks("abcdef123"),
            gives("abcdef123"),
            empty,
            Message::user("b"),
            thought(),
            Message::user("c"),
        ]
    };
    let free = [r#"user "a""#, "assistant calls 1", r#"tool "4""#, r#"user "b""#, r#"user "c""#];
    let alternating = [r#"user "a""#, "assistant calls 1", r#"tool "4""#, BETWEEN, r#"user "b\n\nc""#];
    for empty in [Message::assistant(""), Message::assistant(" \n"), thought()] {
        assert_eq!(shown(&sent("openai:m", messages(empty.clone())).await?), free);
        assert_eq!(shown(&sent("mistral:m", messages(empty)).await?), alternating);
    }
    // A message with calls stays, with the content that the server accepts.
    assert_eq!(sent("xai:m", [asks("1"), gives("1")]).await?[0]["content"], "");
    assert_eq!(sent("anthropic:m", [asks("1"), gives("1")]).await?[0]["content"], Value::Null);
    Ok(())
}

/// A11
#[tokio::test]
async fn a_name_that_a_model_invented_gets_an_error_result_and_goes_back_in_a_form_that_every_server_takes()
-> Result<()> {
    let name = "shout loudly<|channel|>commentary";
    let call = json!({"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}});
    let asks = Answer::json(
        "200 OK",
        &json!({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}),
    );
    let server = Server::start([asks, done()]).await;
    let agent = Agent::builder("tester", server.model()).tool(shout()).build()?;
    let session = Session::new();
    agent.ask("go").session(&session).await?;
    let sent = &server.requests()[1].body["messages"];
    assert_eq!(sent[1]["tool_calls"][0]["function"]["name"], "shout_loudly__channel__commentary");
    assert!(sent[2]["content"].as_str().expect("a text").contains(name), "{}", sent[2]);
    // The history is as the model wrote it.
    assert_eq!(session.history().messages()[1].tool_calls().next().expect("a call").name, name);
    Ok(())
}

/// A11
#[tokio::test]
async fn arguments_that_are_no_object_are_sent_as_one() -> Result<()> {
    let table = [
        (Arguments::parse(""), "{}"),
        (Arguments::parse("null"), "{}"),
        (Arguments::parse("[1]"), r#"{"malformed":"[1]"}"#),
        (Arguments::parse(r#"{"a": 1"#), r#"{"malformed":"{\"a\": 1"}"#),
    ];
    for (arguments, expected) in table {
        let asks = Message::assistant("").with_call(ToolCall::new("1", "count", arguments));
        assert_eq!(sent("openai:m", [asks, gives("1")]).await?[0]["tool_calls"][0]["function"]["arguments"], expected);
    }
    Ok(())
}

/// A11
#[tokio::test]
async fn arguments_keep_the_text_that_the_model_wrote_until_somebody_edits_them() -> Result<()> {
    const WRITTEN: &str = r#"{"text": "\u0078", "loud": true, "again": {"b": 1.0, "a": null}}"#;
    let call = json!({"id": "c", "type": "function", "function": {"name": "shout", "arguments": WRITTEN}});
    let asks = json!({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
    let edits = hooks_fn("edits", |hooks| {
        hooks.on_context(|messages, _| {
            for message in messages {
                for part in &mut Arc::make_mut(message).parts {
                    if let Part::ToolCall(call) = part {
                        call.arguments = json!({"text": "y"}).into();
                    }
                }
            }
        });
    });
    let server = Server::start([Answer::json("200 OK", &asks), done(), done(), done()]).await;
    let agent = Agent::builder("tester", server.model()).tool(shout()).build()?;
    let session = Session::new();
    agent.ask("go").session(&session).await?;
    // The text is stored with the session, and events do not show it.
    let stored: Session = serde_json::from_str(&serde_json::to_string(&session)?)?;
    agent.ask("on").session(&stored).await?;
    let editor = Agent::builder("tester", server.model()).tool(shout()).with(edits).build()?;
    editor.ask("on").session(&stored).await?;
    let sent = |at: usize| server.requests()[at].body["messages"][1]["tool_calls"][0]["function"]["arguments"].clone();
    assert_eq!([sent(1), sent(2), sent(3)], [WRITTEN, WRITTEN, r#"{"text":"y"}"#]);
    let shown = format!("{:?} {}", session.history(), serde_json::to_string(&session.history())?);
    assert!(!shown.contains("0078"), "{shown}");
    Ok(())
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Tree {
    children: Vec<Self>,
}

/// A11
#[tokio::test]
async fn a_tool_whose_schema_the_server_refuses_is_an_error_at_build_or_before_the_request() -> Result<()> {
    let server = Server::start([done(), done()]).await;
    let model = |name: &str| -> Result<ChatModel> {
        Ok(ChatModel::new(OpenAi::from_name(name)?.base_url(server.url()).build()?)?)
    };
    let tree = || tool_fn("grow", "Grows", |_: Tree, _: RunContext| async { Ok(0) });
    let refused = "the server refuses `$ref` in the schema of the tool `grow`: a type that contains itself cannot be written without references";
    for asked in [model("gemini:m")?, model("vllm:m")?.or(model("gemini:m")?)?] {
        let error = Agent::builder("tester", asked.clone()).tool(tree()).build().unwrap_err();
        assert_eq!(error.to_string(), refused);
        // Tools that middlewares are asked for are checked before the request.
        let offers = hooks_fn("offers", move |hooks| {
            hooks.tools(move |_| Ok(vec![tree()?]));
        });
        if let Err(error) = Agent::builder("tester", asked).with(offers).build()?.ask("go").await {
            assert_eq!(error.to_string(), refused);
        }
    }
    // The first request is from the model that accepts the tool.
    assert_eq!(server.requests().len(), 1);
    let none = tool_fn("none", "Does nothing", |_: Nothing, _: RunContext| async { Ok(0) });
    Agent::builder("tester", model("gemini:m")?).tool(none).build()?.ask("go").await?;
    let tool = &server.requests()[1].body["tools"][0]["function"];
    assert_eq!(tool["parameters"], json!({"type": "object", "properties": {}}));
    Ok(())
}
