//! A conversation is sent in a form that the server accepts, and the history stays as it is.

use emitree_agent::{ChatModel, ChatRequest, Message, OpenAi, ToolCall, ToolResult};
use emitree_runtime::{Result, Runnable};
use serde_json::{Value, json};

use super::server::{Answer, Server};

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
