//! `HookTest` calls the sync and the async hooks of each place.

use std::sync::Arc;

use emitree_agent::hook::{ModelRequest, OpenCall};
use emitree_agent::{
    Agent, AgentContext, AgentInput, AgentOutput, CallResult, ChatModel, ChatRequest, ChatResponse, Chunks, Delta,
    History, HookTest, HooksFn, How, Message, Place, ScriptedModel, Tool, ToolCall, ToolOutput, TurnAction,
    TurnDecision, TurnEnd, Verdict, hooks_fn,
};
use emitree_runtime::{Error, Next, Result, RunContext};
use serde_json::json;

/// A middleware whose hook at `place` leaves the mark `x`.
#[expect(clippy::too_many_lines, reason = "an arm for each place")]
fn marks(place: Place, is_async: bool) -> HooksFn {
    hooks_fn("m", move |hooks| {
        match (place, is_async) {
            (Place::AgentRun, _) => hooks.agent_run(|stack| {
                stack.layer_fn("mark", |input: &AgentInput, _, next: Next<'_, Agent>| {
                    Box::pin(async move {
                        let mut output = next.run(input).await?;
                        output.context.insert("mark".to_owned(), "x".into());
                        Ok(output)
                    })
                })
            }),
            (Place::ModelCall, _) => hooks.model_call(|stack| {
                stack.layer_fn("mark", |request: &ChatRequest, _, next: Next<'_, ChatModel>| {
                    Box::pin(async move {
                        let mut response = next.run(request).await?;
                        response.warnings.push("x".to_owned());
                        Ok(response)
                    })
                })
            }),
            (Place::ToolCall, _) => hooks.tool_call(|stack| {
                stack.layer_fn("mark", |arguments, _, next: Next<'_, Tool>| {
                    Box::pin(async move { Ok(next.run(arguments).await?.detail("mark", "x")) })
                })
            }),
            (Place::ModelChunk, _) => hooks.chunks(|| {
                |chunks: &mut Chunks, _: &RunContext| {
                    if chunks.ended {
                        chunks.deltas.push(Delta::Text("x".to_owned()));
                    }
                    Ok(())
                }
            }),
            (Place::ModelState, false) => hooks.on_state(|history, _| Ok(history.extend([Message::user("x")])?)),
            (Place::ModelState, true) => {
                hooks.on_state_async(|history, _| Box::pin(async { Ok(history.extend([Message::user("x")])?) }))
            }
            (Place::ContextCompact, false) => hooks.on_compact(|messages, _| messages.push(mark())),
            (Place::ContextCompact, true) => hooks.on_compact_async(|messages, _| {
                Box::pin(async {
                    messages.push(mark());
                    Ok(())
                })
            }),
            (Place::ModelContext, false) => hooks.on_context(|messages, _| messages.push(mark())),
            (Place::ModelContext, true) => hooks.on_context_async(|messages, _| {
                Box::pin(async {
                    messages.push(mark());
                    Ok(())
                })
            }),
            (Place::ModelPrompt, false) => {
                hooks.prompt(|ctx| Ok(format!("turn {}", ctx.turn().expect("an agent").number)));
                hooks.on_prompt(|prompt, _| prompt.push('x'))
            }
            (Place::ModelPrompt, true) => {
                hooks.prompt_async(|_| Box::pin(async { Ok("turn 0".to_owned()) }));
                hooks.on_prompt_async(|prompt, _| {
                    Box::pin(async {
                        prompt.push('x');
                        Ok(())
                    })
                })
            }
            (Place::SteerInject, false) => hooks.on_inject(|messages, _| messages.push(Message::user("x"))),
            (Place::SteerInject, true) => hooks.on_inject_async(|messages, _| {
                Box::pin(async {
                    messages.push(Message::user("x"));
                    Ok(())
                })
            }),
            // A hook that observes leaves its mark as an error.
            (Place::AgentMessage, false) => hooks.on_message(|text: String, _| Err::<(), _>(Error::new(text))),
            (Place::AgentMessage, true) => {
                hooks.on_message_async(|text: String, _| Box::pin(async { Err(Error::new(text)) }))
            }
            (Place::AgentStart, false) => hooks.on_start(|_| Err::<(), _>(Error::new("x"))),
            (Place::AgentStart, true) => hooks.on_start_async(|_| Box::pin(async { Err(Error::new("x")) })),
            (Place::ToolRestore, false) => hooks.on_restore(|open, _| open.refuse("x")),
            (Place::ToolRestore, true) => hooks.on_restore_async(|open, _| {
                Box::pin(async {
                    open.refuse("x");
                    Ok(())
                })
            }),
            (Place::SteerSkip, false) => hooks.on_skip(|calls, _| Err::<(), _>(Error::new(calls[0].name.clone()))),
            (Place::SteerSkip, true) => {
                hooks.on_skip_async(|calls, _| Box::pin(async { Err(Error::new(calls[0].name.clone())) }))
            }
            (Place::ModelWire, false) => hooks.on_wire(|messages, _| messages.push(mark())),
            (Place::ModelWire, true) => hooks.on_wire_async(|messages, _| {
                Box::pin(async {
                    messages.push(mark());
                    Ok(())
                })
            }),
            (Place::ModelRequest, false) => hooks.on_request(|call, _| call.request.system = Some("x".to_owned())),
            (Place::ModelRequest, true) => hooks.on_request_async(|call, _| {
                Box::pin(async {
                    call.request.system = Some("x".to_owned());
                    Ok(())
                })
            }),
            (Place::TurnAction, false) => hooks.on_action(|action, _| action.decision = Some(TurnDecision::Stop)),
            (Place::TurnAction, true) => hooks.on_action_async(|action, _| {
                Box::pin(async {
                    action.decision = Some(TurnDecision::Stop);
                    Ok(())
                })
            }),
            (Place::ToolResolve, false) => hooks.on_resolve(|_, _| Ok(Some(ToolCall::new("other", "x", json!({}))))),
            (Place::ToolResolve, true) => {
                hooks.on_resolve_async(|_, _| Box::pin(async { Ok(Some(ToolCall::new("other", "x", json!({})))) }))
            }
            (Place::ToolGate, false) => hooks.on_gate_each(|gated, _| gated.skip("x")),
            (Place::ToolGate, true) => hooks.on_gate_async(|batch, _| {
                Box::pin(async {
                    batch.open().for_each(|gated| gated.skip("x"));
                    Ok(())
                })
            }),
            (Place::ToolResult, false) => hooks.on_result(|result, _| result.output = ToolOutput::new("x")),
            (Place::ToolResult, true) => hooks.on_result_async(|result, _| {
                Box::pin(async {
                    result.output = ToolOutput::new("x");
                    Ok(())
                })
            }),
            (Place::TurnStop, false) => hooks.on_stop(|_, _| Ok(true)),
            (Place::TurnStop, true) => hooks.on_stop_async(|_, _| Box::pin(async { Ok(true) })),
            (Place::RunEnd, false) => hooks.on_end(|more, _| more.push(Message::user("x"))),
            (Place::RunEnd, true) => hooks.on_end_async(|more, _| {
                Box::pin(async {
                    more.push(Message::user("x"));
                    Ok(())
                })
            }),
        };
    })
}

fn mark() -> Arc<Message> {
    Arc::new(Message::user("x"))
}

fn call() -> ToolCall {
    ToolCall::new("1", "shout", json!({"text": "a"}))
}

fn response() -> ChatResponse {
    ChatResponse::new(Message::assistant("a"))
}

/// Calls the hook of one place, and returns `true` if the hook left its mark. The match is exhaustive, so that a new
/// place requires a test.
async fn is_marked(place: Place, test: &HookTest) -> Result<bool> {
    Ok(match place {
        Place::AgentRun => {
            let output = test.agent_run("go".into(), |_| Ok(AgentOutput::new(Message::assistant("a")))).await?;
            output.context["mark"] == "x"
        }
        Place::ModelState => {
            let history = test.state(History::new()).await?;
            history.messages().last().is_some_and(|message| message.text() == "x")
        }
        Place::ContextCompact => test.compact([Message::user("a")]).await?.is_some_and(|it| it[1].text() == "x"),
        Place::AgentStart => test.start().await.is_err_and(|error| error.to_string() == "x"),
        Place::AgentMessage => test.message("x").await.is_err_and(|error| error.to_string() == "x"),
        Place::ToolRestore => test.restore(OpenCall::new(call(), false)).await?.refused() == Some("x"),
        Place::SteerInject => test.inject([Message::user("a")]).await?[1].text() == "x",
        Place::SteerSkip => test.skip([call()]).await.is_err_and(|error| error.to_string() == "shout"),
        Place::ModelContext => test.context([Message::user("a")]).await?[1].text() == "x",
        Place::ModelPrompt => test.prompt("base").await? == "base\n\nturn 0x",
        Place::ModelWire => test.wire([Message::user("a")]).await?[1].text() == "x",
        Place::ModelRequest => {
            let model = ChatModel::new(ScriptedModel::new("test"))?;
            test.request(ModelRequest::new("go".into(), model)).await?.request.system.as_deref() == Some("x")
        }
        Place::ModelCall => test.model_call("go".into(), |_| Ok(response())).await?.warnings == ["x"],
        Place::ModelChunk => {
            let passed = test.chunks([vec![Delta::Text("a".to_owned())]]).await?;
            passed == [Delta::Text("a".to_owned()), Delta::Text("x".to_owned())]
        }
        Place::TurnAction => test.action(TurnAction::new(response())).await?.decision == Some(TurnDecision::Stop),
        Place::ToolResolve => test.resolve(call()).await? == ToolCall::new("1", "x", json!({})),
        Place::ToolGate => {
            let batch = test.gate([call()]).await?;
            batch.calls().all(|gated| matches!(gated.verdict(), Some(Verdict::Skip(reason)) if reason == "x"))
        }
        Place::ToolCall => test.tool_call(json!({}), |_| Ok(ToolOutput::new("a"))).await?.details["mark"] == "x",
        Place::ToolResult => {
            test.result(CallResult::new(call(), How::Executed, ToolOutput::new("a"))).await?.output.text() == "x"
        }
        Place::TurnStop => test.stop(TurnEnd::new(Message::assistant("a"), Vec::new())).await?,
        Place::RunEnd => test.end().await?[0].text() == "x",
    })
}

#[tokio::test]
async fn a_hook_test_calls_the_hook_of_each_place_without_an_agent() -> Result<()> {
    for place in Place::ALL {
        for is_async in [false, true] {
            let test = HookTest::new(&marks(place, is_async))?;
            assert!(is_marked(place, &test).await?, "{place}, async: {is_async}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_hook_test_keeps_state_between_calls_and_returns_the_error_of_a_hook() -> Result<()> {
    let middleware = hooks_fn("m", |hooks| {
        let count = hooks.state::<u32>();
        hooks.on_end(move |_, ctx| {
            let count = count.with(ctx, |count| {
                *count += 1;
                *count
            })?;
            if count == 2 { Err(Error::new("twice")) } else { Ok(()) }
        });
    });
    let test = HookTest::new(&middleware)?;
    assert!(test.end().await?.is_empty());
    let error = test.end().await.unwrap_err();
    assert_eq!((error.to_string().as_str(), &error.details()["by"]), ("twice", &"m.run.end".into()));
    Ok(())
}
