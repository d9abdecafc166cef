//! The events of the tool calls in a streamed reply, and stages that may await.

use emitree_agent::reply::{AsyncChunkStage, ToolCallDelta, ToolCallStarted};
use emitree_agent::{
    AgentContext, AgentRun, ChatModel, ChatOptions, ChatRequest, ChatResponse, ChunkStage, Chunks, Delta, HookTest,
    ModelRun, Reply, ScriptedModel, hooks_fn,
};
use emitree_middleware::Redact;
use emitree_runtime::{Error, Result, Run, RunContext, Runnable, for_tree};
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::support::{Log, agent, results};

fn piece(index: usize, id: &str, name: &str, arguments: &str) -> Delta {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Delta::tool_call(index, some(id), some(name), arguments)
}

fn streamed() -> ChatRequest {
    let mut request = ChatRequest::from("go");
    request.options.stream = Some(true);
    request
}

fn model(deltas: impl IntoIterator<Item = Delta>) -> ChatModel {
    ChatModel::new(ScriptedModel::new("test").reply(Reply::deltas(deltas))).expect("a model")
}

/// Logs the events of calls.
fn log_calls<'a>(run: Run<'a, ChatModel>, log: &Log) -> Run<'a, ChatModel> {
    let (started, delta) = (log.clone(), log.clone());
    run.observe("tool_call_started", move |event: &ToolCallStarted, _| {
        started.add(format!("{} {:?} {}", event.index, event.id, event.name));
    })
    .observe("tool_call_delta", move |event: &ToolCallDelta, _| {
        delta.add(format!("{} {:?} {} {}", event.index, event.id, event.name, event.arguments));
    })
}

#[tokio::test]
async fn a_streamed_call_is_announced_when_its_name_is_known_and_then_piece_by_piece() -> Result<()> {
    let deltas = || {
        [
            piece(0, "a", "read", ""),
            piece(0, "", "", "{\"pa"),
            // The second call begins before the first is complete; its id comes late.
            piece(1, "", "write", "{"),
            piece(0, "a", "read", "th\": 1}"),
            piece(1, "b", "", "}"),
            // The name of the third call comes after the first piece.
            piece(2, "c", "", "{\"x\""),
            piece(2, "", "list", ": 2}"),
        ]
    };
    let log = Log::default();
    let response = log_calls(model(deltas()).run(streamed()), &log).await?;
    let expected = [
        "0 Some(\"a\") read",
        "0 Some(\"a\") read {\"pa",
        "1 None write",
        "1 None write {",
        "0 Some(\"a\") read th\": 1}",
        "1 Some(\"b\") write }",
        "2 Some(\"c\") list",
        "2 Some(\"c\") list {\"x\": 2}",
    ];
    assert_eq!(log.lines(), expected);
    let calls: Vec<_> = response.message.tool_calls().map(|call| format!("{} {}", call.name, call.arguments)).collect();
    assert_eq!(calls, [r#"read {"path":1}"#, "write {}", r#"list {"x":2}"#]);

    let log = Log::default();
    log_calls(model(deltas()).run("go".into()), &log).await?;
    assert_eq!(log.lines(), [""; 0], "the reply is not streamed");
    Ok(())
}

#[tokio::test]
async fn a_listener_of_a_streamed_call_changes_nothing() -> Result<()> {
    let model = model([piece(0, "a", "read", "{\"x\""), piece(0, "", "", ": 1}")]);
    let run = model.run(streamed());
    let run = run.on("tool_call_started", |event: &mut ToolCallStarted, _| event.name = "write".into());
    let run = run.on("tool_call_delta", |event: &mut ToolCallDelta, _| event.arguments = "!".into());
    let response = run.await?;
    let call = response.message.tool_calls().next().expect("a call");
    assert_eq!((call.name.as_str(), call.arguments.to_string()), ("read", "{\"x\":1}".to_owned()));
    Ok(())
}

#[tokio::test]
async fn events_of_calls_come_after_the_stages() -> Result<()> {
    let renames = || {
        |chunks: &mut Chunks, _: &RunContext| {
            for delta in &mut chunks.deltas {
                if let Delta::ToolCall { arguments, .. } = delta {
                    *arguments = arguments.replace('1', "2");
                }
            }
            Ok(())
        }
    };
    let log = Log::default();
    log_calls(model([piece(0, "a", "read", "{\"x\": 1}")]).run(streamed()).chunks(renames), &log).await?;
    assert_eq!(log.lines(), ["0 Some(\"a\") read", "0 Some(\"a\") read {\"x\": 2}"]);
    Ok(())
}

// A13
#[tokio::test]
async fn a_secret_that_is_split_over_pieces_of_a_call_is_in_no_event() -> Result<()> {
    const SECRET: &str = "maria.streamed@mailbox.org";
    let arguments = json!({"text": format!("write to {SECRET}, twice: {SECRET}")}).to_string();
    for size in [1, 3, 7] {
        let pieces: Vec<_> = arguments.as_bytes().chunks(size).collect();
        let pieces = pieces.iter().map(|bytes| piece(0, "a", "shout", std::str::from_utf8(bytes).expect("ASCII")));
        let deltas: Vec<_> = pieces.collect();
        let script = ScriptedModel::new("test").reply(Reply::deltas(deltas)).text("done");
        let log = Log::default();
        let to = log.clone();
        let agent = agent(&script).build()?;
        let run = agent.ask("go").on_token(|_| {}).middleware(for_tree(Redact::new()));
        let run = run.observe("**.tool_call_delta", move |event: &ToolCallDelta, _| to.add(event.arguments.clone()));
        let answer = run.await;
        let all = log.lines().concat();
        assert!(!all.contains("maria"), "{size}: {all}");
        assert_eq!(all.matches("[REDACTED:email]").count(), 2, "{size}: {all}");
        assert!(all.ends_with("\"}"), "nothing is lost: {all}");
        assert_eq!(results(&answer?.messages), ["WRITE TO [REDACTED:EMAIL], TWICE: [REDACTED:EMAIL]"]);
    }
    Ok(())
}

/// Waits, and then appends a letter to each text.
struct Appends(&'static str);

impl AsyncChunkStage for Appends {
    fn pass<'a>(&'a mut self, chunks: &'a mut Chunks, _: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            for delta in &mut chunks.deltas {
                if let Delta::Text(text) = delta {
                    text.push_str(self.0);
                    if text.contains("bad") {
                        return Err(Error::new("bad text"));
                    }
                }
            }
            Ok(())
        })
    }
}

/// A stage that appends a letter to each text.
struct Letter(&'static str);

impl ChunkStage for Letter {
    fn pass(&mut self, chunks: &mut Chunks, _: &RunContext) -> Result<()> {
        for delta in &mut chunks.deltas {
            if let Delta::Text(text) = delta {
                text.push_str(self.0);
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn sync_and_async_stages_are_called_in_the_order_in_which_they_were_added() -> Result<()> {
    for stream in [true, false] {
        let hooks = hooks_fn("letters", |hooks| {
            hooks.chunks(|| Letter("a")).chunks_async(|| Appends("b")).chunks(|| Letter("c"));
        });
        let script = ScriptedModel::new("test").reply(Reply::text("xy").in_pieces(1));
        let agent = agent(&script).with(hooks).options(ChatOptions::new().stream(stream)).build()?;
        assert_eq!(agent.ask("go").await?.text(), "xabcyabc");

        let text = |response: ChatResponse| response.text();
        let mut request = streamed();
        request.options.stream = Some(stream);
        let model = ChatModel::new(ScriptedModel::new("test").reply(Reply::text("xy").in_pieces(1)))?;
        let run = model.run(request).chunks_async(|| Appends("1")).chunks(|| Letter("2"));
        let run = run.middleware(|ctx: &RunContext| ctx.chunks_async(|| Appends("3")));
        assert_eq!(run.await.map(text)?, "x123y123");
    }
    Ok(())
}

#[tokio::test]
async fn the_error_of_an_async_stage_names_its_hook() -> Result<()> {
    let hooks = || {
        hooks_fn("strict", |hooks| {
            hooks.chunks_async(|| Appends("!"));
        })
    };
    let run = agent(&ScriptedModel::new("test").text("a bad word")).with(hooks()).build()?;
    let error = run.ask("go").await.unwrap_err();
    assert_eq!((error.to_string().as_str(), &error.details()["by"]), ("bad text", &json!("strict.model.chunk")));
    let passed = HookTest::new(&hooks())?.chunks([vec![Delta::Text("x".to_owned())]]).await?;
    assert_eq!(passed, [Delta::Text("x!".to_owned())]);
    Ok(())
}
