//! Models: events, streams, stages, layers.

use std::collections::BTreeMap;
use std::time::Duration;

use emitree_agent::{
    Agent, AgentContext, ChatError, ChatFinish, ChatModel, ChatStart, ChatSuccess, Chunks, Delta, FinishReason,
    ModelRun, NewToken, Reply, ResponseHeaders, ScriptedModel, Usage, UsageReported,
};
use emitree_middleware::{Retry, Runs};
use emitree_runtime::{AbortHandle, Error, Result, RunContext, Runnable, for_tree};
use proptest::prelude::*;
use serde_json::json;

use crate::support::Log;

fn model(script: &ScriptedModel) -> ChatModel {
    ChatModel::new(script.clone()).expect("a model")
}

/// Logs the model's own events.
fn listen(model: &ChatModel, log: &Log) -> Result<()> {
    let emitter = model.emitter();
    let to = log.clone();
    emitter.on("start", move |_: &mut ChatStart, _| to.add("start"))?;
    let to = log.clone();
    emitter.on("response_headers", move |event: &mut ResponseHeaders, _| {
        to.add(format!("headers {:?}", event.rate_limits.remaining_tokens));
    })?;
    let to = log.clone();
    emitter.on("new_token", move |token: &mut NewToken, _| to.add(format!("token {}", token.text())))?;
    let to = log.clone();
    emitter.on("usage", move |event: &mut UsageReported, _| to.add(format!("usage {}", event.usage.total())))?;
    let to = log.clone();
    emitter.on("success", move |event: &mut ChatSuccess, _| to.add(format!("success {}", event.response.text())))?;
    let to = log.clone();
    emitter.on("error", move |event: &mut ChatError, _| to.add(format!("error {}", event.error.message)))?;
    let to = log.clone();
    emitter.on("finish", move |_: &mut ChatFinish, _| to.add("finish"))?;
    Ok(())
}

#[tokio::test]
async fn a_model_emits_its_own_events_in_order_and_streams_only_when_asked() -> Result<()> {
    let headers = BTreeMap::from([("x-ratelimit-remaining-tokens".to_owned(), "17".to_owned())]);
    let reply = |text: &str| {
        let deltas = [Delta::Headers(headers.clone()), Delta::Text(text.to_owned())];
        Reply::deltas(deltas).usage(Usage::new(3, 4)).in_pieces(3)
    };
    let script = ScriptedModel::new("test").reply(reply("hello")).reply(reply("again"));
    let model = model(&script);
    let log = Log::default();
    listen(&model, &log)?;

    model.run("hi".into()).await?;
    assert_eq!(log.lines(), ["start", "headers Some(17)", "usage 7", "success hello", "finish"]);

    let response = model.run("hi".into()).on_start(|start, _| start.input.options.stream = Some(true)).await?;
    let expected = ["start", "headers Some(17)", "token aga", "token in", "usage 7", "success again", "finish"];
    assert_eq!(log.lines()[5..], expected);
    assert_eq!(response.headers, headers);
    Ok(())
}

#[tokio::test]
async fn a_failed_attempt_emits_error_and_finish_and_a_retry_restarts_the_stream() -> Result<()> {
    let broken = Reply::deltas([Delta::Text("wro".to_owned())]).then_error(Error::new("cut").retryable(true));
    let script = ScriptedModel::new("test").reply(broken).reply(Reply::text("right").in_pieces(3));
    let model = model(&script);
    let log = Log::default();
    listen(&model, &log)?;
    let retry = Retry::builder().max_retries(1).base_delay(Duration::from_millis(1)).build()?;
    let discards = log.clone();
    let response = model
        .run("hi".into())
        .on_start(|start, _| start.input.options.stream = Some(true))
        .on("attempt_discarded", move |_: &mut emitree_runtime::AttemptDiscarded, _| discards.add("discarded"))
        .middleware(for_tree(Runs::of_kind("ChatModel").only(retry)))
        .await?;
    assert_eq!(response.text(), "right");
    let expected = [
        "start",
        "token wro",
        "error cut",
        "finish",
        "discarded",
        "start",
        "token rig",
        "token ht",
        "success right",
        "finish",
    ];
    assert_eq!(log.lines(), expected);
    Ok(())
}

// A10
#[tokio::test]
async fn a_listener_can_stop_the_stream_and_incomplete_calls_are_dropped() -> Result<()> {
    let call = |index, arguments: &str| {
        Delta::tool_call(index, Some(format!("c{index}")), Some("shout".to_owned()), arguments)
    };
    let deltas = [
        Delta::Text("one ".to_owned()),
        call(0, r#"{"text":"a"}"#),
        call(1, r#"{"te"#),
        call(2, ""),
        Delta::Text("two ".to_owned()),
        Delta::Text("three".to_owned()),
        Delta::Finish(FinishReason::Stop),
    ];
    let script = ScriptedModel::new("test").reply(Reply::deltas(deltas));
    let response = model(&script)
        .run("hi".into())
        .on_start(|start, _| start.input.options.stream = Some(true))
        .on("new_token", |token: &mut NewToken, _| {
            token.text.make_ascii_uppercase();
            if token.text() == "TWO " {
                token.stop();
            }
        })
        .await?;
    assert_eq!(response.text(), "ONE TWO ");
    assert_eq!(response.message.finish_reason, Some(FinishReason::Stopped));
    let calls: Vec<_> = response.message.tool_calls().map(|call| call.id.as_str()).collect();
    assert_eq!(calls, ["c0"]);
    assert_eq!(response.warnings, ["the stream was stopped: 2 incomplete tool calls were dropped"]);
    Ok(())
}

#[tokio::test]
async fn pieces_that_a_stage_holds_back_are_released_when_the_stream_is_stopped() -> Result<()> {
    let script = ScriptedModel::new("test").reply(Reply::text("abcdef").in_pieces(1));
    // This stage keeps the last piece until the next piece arrives.
    let stages = || {
        let mut held = None;
        move |chunks: &mut Chunks, _: &RunContext| {
            let mut released = Vec::new();
            for delta in chunks.deltas.drain(..) {
                released.extend(held.replace(delta));
            }
            if chunks.ended {
                released.extend(held.take());
            }
            chunks.deltas = released;
            Ok(())
        }
    };
    let response = model(&script)
        .run("hi".into())
        .chunks(stages)
        .on_start(|start, _| start.input.options.stream = Some(true))
        .on("new_token", |token: &mut NewToken, _| {
            if token.text() == "b" {
                token.stop();
            }
        })
        .await?;
    assert_eq!(response.text(), "abc");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_listener_of_a_token_can_abort_the_run_with_a_reason() {
    let second = Duration::from_secs(1);
    let script = ScriptedModel::new("test").reply(Reply::text("one two").in_pieces(4).slow(second, second));
    let (model, log) = (model(&script), Log::default());
    let to = log.clone();
    let error = model
        .run("hi".into())
        .on_start(|start, _| start.input.options.stream = Some(true))
        .on("new_token", move |token: &mut NewToken, _| {
            to.add(token.text());
            if let Some(ctx) = RunContext::current() {
                ctx.abort("enough");
            }
        })
        .await
        .unwrap_err();
    assert_eq!(error.explain(), "aborted: enough");
    assert_eq!(log.lines(), ["one "]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_is_aborted_or_times_out_ends_once_and_the_next_run_works() -> Result<()> {
    let in_the_reply = Duration::from_millis(2500);
    for end in ["dropped", "aborted", "timed_out"] {
        let slow = Reply::text("slow").in_pieces(1).slow(Duration::from_secs(1), Duration::from_secs(1));
        let model = model(&ScriptedModel::new("test").reply(slow).text("next"));
        let (log, abort) = (Log::default(), AbortHandle::new());
        let to = log.clone();
        let run = model
            .run("hi".into())
            .abort_on(&abort)
            .on_finish(move |finish, _| to.add(finish.outcome().status().as_str()));
        match end {
            "dropped" => assert!(tokio::time::timeout(in_the_reply, run).await.is_err()),
            "aborted" => {
                let aborts = async {
                    tokio::time::sleep(in_the_reply).await;
                    abort.abort("enough");
                };
                assert!(tokio::join!(run.into_future(), aborts).0.unwrap_err().is_aborted());
            }
            _ => assert!(run.timeout(in_the_reply).await.unwrap_err().is_timed_out()),
        }
        assert_eq!(log.lines(), [end]);
        assert_eq!(model.run("hi".into()).await?.text(), "next", "{end}");
    }
    Ok(())
}

#[tokio::test]
async fn a_provider_name_that_is_not_a_valid_namespace_is_refused_and_quoted() {
    struct Odd;
    impl emitree_agent::Provider for Odd {
        fn name(&self) -> &str {
            "my provider"
        }
        fn model(&self) -> &str {
            "m"
        }
        async fn chat(&self, _: &emitree_agent::ChatRequest, _: &RunContext) -> Result<emitree_agent::DeltaStream> {
            Err(Error::new("never called"))
        }
    }
    let error = ChatModel::new(Odd).unwrap_err().to_string();
    assert!(error.contains("my provider"), "{error}");
}

proptest! {
    /// The size of the pieces changes neither the response nor the text that listeners receive.
    #[test]
    fn a_reply_is_the_same_for_every_size_of_its_pieces(
        text in "[a-zé😀 ]{0,12}",
        argument in "[a-zé\"\\\\ ]{0,6}",
        size in 1_usize..8,
        streams in any::<bool>(),
        holds in any::<bool>(),
    ) {
        let message = emitree_agent::Message::assistant(text.clone())
            .with_call(emitree_agent::ToolCall::new("c", "shout", json!({ "text": argument })));
        let whole = emitree_agent::ChatResponse::new(message);
        let script = ScriptedModel::new("test").reply(Reply::response(whole.clone()).in_pieces(size));
        let stages = move || {
            let mut held = Vec::new();
            move |chunks: &mut Chunks, _: &RunContext| {
                if holds {
                    held.append(&mut chunks.deltas);
                    if chunks.ended {
                        chunks.deltas.append(&mut held);
                    }
                }
                Ok(())
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (log, model) = (Log::default(), model(&script));
        let to = log.clone();
        let run = model
            .run("hi".into())
            .chunks(stages)
            .on_start(move |start, _| start.input.options.stream = Some(streams))
            .on("new_token", move |token: &mut NewToken, _| to.add(token.text()));
        let response = runtime.block_on(run.into_future()).expect("an answer");
        prop_assert_eq!(&response, &whole);
        let told = log.lines().concat();
        prop_assert_eq!(told, if streams { text } else { String::new() });
    }
}

#[tokio::test]
async fn a_start_listener_may_answer_instead_of_the_model() -> Result<()> {
    let script = ScriptedModel::new("test");
    let canned = emitree_agent::ChatResponse::new(emitree_agent::Message::assistant("canned"));
    let log = Log::default();
    let to = log.clone();
    let response = model(&script)
        .run("hi".into())
        .on_start(move |start, _| start.output = Some(canned.clone()))
        .on_finish(move |finish, _| to.add(finish.outcome().status().as_str()))
        .await?;
    assert_eq!((response.text().as_str(), script.requests().len()), ("canned", 0));
    assert_eq!(log.lines(), ["success"]);
    Ok(())
}

#[tokio::test]
async fn a_failing_finish_listener_of_a_model_fails_a_success_and_hides_no_error() -> Result<()> {
    for (script, expected) in [
        (ScriptedModel::new("test").text("x"), "a listener of `backend.chat.scripted.finish` failed"),
        (ScriptedModel::new("test").error(Error::new("busy")), "busy"),
    ] {
        let model = model(&script);
        let run = model.run("hi".into()).on("finish", |_: &mut ChatFinish, _| Err("late".into()));
        let error = run.await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn each_stage_receives_the_end_of_the_stream_once_even_if_the_stream_is_stopped() -> Result<()> {
    for (streams, stops) in [(false, false), (true, false), (true, true)] {
        let log = Log::default();
        let stage = |name: &'static str| {
            let log = log.clone();
            move || {
                let log = log.clone();
                let mut held = Vec::new();
                move |chunks: &mut Chunks, _: &RunContext| {
                    held.append(&mut chunks.deltas);
                    if chunks.ended {
                        log.add(name);
                        chunks.deltas.append(&mut held);
                    } else {
                        // All pieces except the newest are passed on.
                        chunks.deltas.extend(held.drain(..held.len().saturating_sub(1)));
                    }
                    // This change has no effect on later stages.
                    chunks.ended = false;
                    Ok(())
                }
            }
        };
        let script = ScriptedModel::new("test").reply(Reply::text("abcdefgh").in_pieces(1));
        let response = model(&script)
            .run("hi".into())
            .chunks(stage("1"))
            .chunks(stage("2"))
            .chunks(stage("3"))
            .on_start(move |start, _| start.input.options.stream = Some(streams))
            .on("new_token", move |token: &mut NewToken, _| {
                if stops && token.text() == "b" {
                    token.stop();
                }
            })
            .await?;
        assert_eq!(log.lines(), ["1", "2", "3"]);
        // Three stages hold one piece each when the listener stops the stream.
        assert_eq!(response.text(), if stops { "abcde" } else { "abcdefgh" });
    }
    Ok(())
}

#[tokio::test]
async fn a_failing_stage_fails_the_attempt_and_the_next_attempt_has_new_stages() -> Result<()> {
    let script = ScriptedModel::new("test").reply(Reply::text("ab").in_pieces(1)).reply(Reply::text("cd").in_pieces(1));
    let made = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = std::sync::Arc::clone(&made);
    let stages = move || {
        let attempt = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut pieces = 0;
        move |_: &mut Chunks, _: &RunContext| {
            pieces += 1;
            if attempt == 0 && pieces == 2 { Err(Error::new("garbled").retryable(true)) } else { Ok(()) }
        }
    };
    let retry = Retry::builder().max_retries(1).base_delay(Duration::from_millis(1)).build()?;
    let log = Log::default();
    let to = log.clone();
    let response = model(&script)
        .run("hi".into())
        .chunks(stages)
        .on_start(|start, _| start.input.options.stream = Some(true))
        .on("new_token", move |token: &mut NewToken, _| to.add(token.text()))
        .middleware(for_tree(Runs::of_kind("ChatModel").only(retry)))
        .await?;
    assert_eq!((response.text().as_str(), log.lines().concat().as_str()), ("cd", "acd"));
    assert_eq!(made.load(std::sync::atomic::Ordering::Relaxed), 2);
    Ok(())
}

#[tokio::test]
async fn a_stopped_stream_drops_calls_whose_arguments_may_be_incomplete() -> Result<()> {
    let call = |index, arguments: &str| {
        Delta::tool_call(index, Some(format!("c{index}")), Some("shout".to_owned()), arguments)
    };
    let deltas = [call(0, "12"), call(1, "{}"), Delta::Text("x".to_owned())];
    let response = model(&ScriptedModel::new("test").reply(Reply::deltas(deltas)))
        .run("hi".into())
        .on_start(|start, _| start.input.options.stream = Some(true))
        .on("new_token", |token: &mut NewToken, _| token.stop())
        .await?;
    assert_eq!(response.message.tool_calls().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["c1"]);
    Ok(())
}

#[tokio::test]
async fn stages_of_a_run_and_of_its_context_are_appended_and_replace_none() -> Result<()> {
    let mark = |mark: &'static str| {
        move || {
            move |chunks: &mut Chunks, _: &RunContext| {
                let texts = chunks.deltas.iter_mut().filter_map(|delta| match delta {
                    Delta::Text(text) => Some(text),
                    _ => None,
                });
                texts.for_each(|text| text.push_str(mark));
                Ok(())
            }
        }
    };
    let script = ScriptedModel::new("test").text("a").text("b");
    let model = model(&script).middleware(move |ctx: &RunContext| ctx.chunks(mark("1")));
    let response = model.run("hi".into()).chunks(mark("2")).chunks(mark("3")).await?;
    assert_eq!(response.text(), "a123");

    let agent = Agent::builder("friend", model)
        .hooks(|hooks| {
            hooks.chunks(mark("0"));
        })
        .build()?;
    assert_eq!(agent.ask("hi").await?.text(), "b01");
    Ok(())
}

#[tokio::test]
async fn a_stage_for_a_run_that_is_not_the_run_of_a_model_is_refused() -> Result<()> {
    let agent = Agent::builder("friend", model(&ScriptedModel::new("test").text("a")))
        .middleware(|ctx: &RunContext| ctx.chunks(|| |_: &mut Chunks, _: &RunContext| Ok(())))
        .build()?;
    let error = agent.ask("hi").await.unwrap_err().to_string();
    let expected = "`chunks` appends a stage to the run of a `ChatModel`, but `friend` is a run of the kind `Agent`";
    assert_eq!(error, expected);
    Ok(())
}
