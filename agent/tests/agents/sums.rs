//! The values that an agent's run combines: tools, options, counts, warnings and messages.

use std::sync::Arc;

use emitree_agent::{
    AgentContext, AgentInput, AgentMiddleware, AgentRun, ChatModel, ChatRequest, ChatResponse, Delta, FinishReason,
    History, Hooks, Message, MessageAdded, NewToken, Part, Reply, ScriptedModel, Session, ToolCall, ToolError,
    ToolResult, Usage, hooks_fn, tool_fn,
};
use emitree_runtime::{Result, RunContext, Runnable};
use serde_json::json;

use crate::support::{Log, Text, agent, fail, results};

/// A middleware that adds a tool.
#[derive(Debug)]
struct Brings(&'static str);

impl AgentMiddleware for Brings {
    fn id(&self) -> &str {
        "brings"
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        hooks.tool(fail(self.0, || emitree_runtime::Error::new("brought")));
        Ok(())
    }
}

#[tokio::test]
async fn models_receive_the_tools_of_middlewares_of_the_agent_and_of_the_run() -> Result<()> {
    let script = || ScriptedModel::new("test").call("extra", json!({"text": "a"})).text("so");
    let names =
        |script: &ScriptedModel| script.requests()[0].tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    let of_agent = script();
    let answer = agent(&of_agent).with(Brings("extra")).build()?.ask("go").await?;
    assert_eq!(
        (names(&of_agent), results(&answer.messages)),
        (vec!["shout".into(), "extra".into()], vec!["!brought".into()])
    );
    let of_run = script();
    let answer = agent(&of_run).build()?.ask("go").with(Brings("extra")).await?;
    assert_eq!(
        (names(&of_run), results(&answer.messages)),
        (vec!["shout".into(), "extra".into()], vec!["!brought".into()])
    );

    let session = Session::new();
    let error = agent(&script()).build()?.ask("go").session(&session).with(Brings("shout")).await.unwrap_err();
    assert!(error.to_string().contains("two tools called `shout`"), "{error}");
    assert!(session.history().messages().is_empty());
    Ok(())
}

#[tokio::test]
async fn the_error_of_a_middlewares_tools_is_the_error_of_build_and_of_the_run() -> Result<()> {
    #[derive(Debug)]
    struct Broken;
    impl AgentMiddleware for Broken {
        fn id(&self) -> &str {
            "broken"
        }

        fn install(&self, hooks: &mut Hooks) -> Result<()> {
            hooks.tool(tool_fn("no name", "Fails", |_: Text, _: RunContext| async { Ok(()) }));
            Ok(())
        }
    }
    let script = ScriptedModel::new("test");
    let errors = [
        agent(&script).with(Broken).build().unwrap_err(),
        agent(&script).build()?.ask("go").with(Broken).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error.find::<ToolError>(), Some(ToolError::Name(name)) if name == "no name"), "{error:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_run_sums_the_tool_calls_tokens_and_warnings_of_all_responses() -> Result<()> {
    let mut usage = Usage::new(4, 3);
    (usage.cached_input_tokens, usage.reasoning_tokens) = (2, 1);
    let shout = |text: &str| ("shout", json!({"text": text}));
    let warn = |text: &str| Reply::deltas([Delta::Warning(text.to_owned()), Delta::Text("so".to_owned())]);
    let script = ScriptedModel::new("test")
        .reply(Reply::calls([shout("a"), shout("b")]).usage(usage))
        .reply(Reply::calls([shout("c")]).usage(usage))
        .reply(warn("first").usage(usage))
        .reply(warn("second"));
    let log = Log::default();
    let to = log.clone();
    let hooks = hooks_fn("log", move |hooks| {
        let to = to.clone();
        hooks.on_gate(move |_, ctx| to.add(ctx.turn().expect("an agent").tool_calls.to_string()));
        hooks.on_end(|more, ctx| {
            if ctx.turn().expect("an agent").number == 3 {
                more.push(Message::user("more"));
            }
        });
    });
    let answer = agent(&script).with(hooks).build()?.ask("go").await?;
    assert_eq!(log.lines(), ["2", "3"]);
    assert_eq!(answer.warnings, ["first", "second"]);
    let sum = (answer.usage.cached_input_tokens, answer.usage.reasoning_tokens, answer.usage.total());
    assert_eq!(sum, (6, 3, 21));
    Ok(())
}

#[tokio::test]
async fn extra_options_of_a_run_are_merged_into_the_extra_options_of_the_agent() -> Result<()> {
    let mut of_agent = emitree_agent::ChatOptions::default();
    of_agent.extra.extend([("a".to_owned(), json!(1)), ("b".to_owned(), json!(1))]);
    let mut input = AgentInput::from("go");
    input.options.extra.extend([("b".to_owned(), json!(2)), ("c".to_owned(), json!(2))]);
    let script = ScriptedModel::new("test").text("so");
    agent(&script).options(of_agent).build()?.ask(input).await?;
    assert_eq!(json!(script.requests()[0].options.extra), json!({"a": 1, "b": 2, "c": 2}));
    Ok(())
}

#[tokio::test]
async fn each_message_is_emitted_when_it_enters_the_history() -> Result<()> {
    let log = Log::default();
    let (to, at_state, at_end) = (log.clone(), log.clone(), log.clone());
    let hooks = hooks_fn("adds", move |hooks| {
        let (at_state, at_end) = (at_state.clone(), at_end.clone());
        hooks.on_state(move |history: &mut History, ctx| {
            at_state.add("state");
            if ctx.turn().expect("an agent").number == 1 {
                history.extend([Message::user("remember")])?;
            }
            Ok(())
        });
        hooks.on_context(|_, _| ());
        hooks.prompt(move |ctx| {
            at_end.add(format!("prompt {}", ctx.turn().expect("an agent").number));
            Ok(String::new())
        });
        hooks.on_end(|more, ctx| {
            if ctx.turn().expect("an agent").number == 1 {
                more.push(Message::user("more"));
            }
        });
    });
    let script = ScriptedModel::new("test").text("one").text("two");
    agent(&script)
        .with(hooks)
        .build()?
        .ask("go")
        .on("message", move |event: &mut MessageAdded, _| to.add(event.message.text()))
        .await?;
    assert_eq!(log.lines(), ["go", "state", "remember", "prompt 1", "one", "more", "state", "prompt 2", "two"]);
    Ok(())
}

#[tokio::test]
async fn a_listener_can_change_reasoning_tokens_and_stop_their_stream() -> Result<()> {
    let reply = Reply::deltas(["a", "b", "c"].map(|text| Delta::Reasoning(text.to_owned())));
    let mut request = ChatRequest::from("go");
    request.options.stream = Some(true);
    let log = Log::default();
    let to = log.clone();
    let response = ChatModel::new(ScriptedModel::new("test").reply(reply))?
        .run(request)
        .on("new_token", move |token: &mut NewToken, _| {
            assert_eq!((token.text(), token.is_reasoning), ("", true));
            to.add(token.text.clone());
            token.text.make_ascii_uppercase();
            if token.text == "B" {
                token.stop();
            }
        })
        .await?;
    assert_eq!(log.lines(), ["a", "b"]);
    assert_eq!(json!(response.message)["parts"][0]["content"], "AB");
    Ok(())
}

#[tokio::test]
async fn an_async_gate_decides_about_each_call_and_the_calls_keep_their_ids() -> Result<()> {
    let ids = Log::default();
    let to = ids.clone();
    let gate = hooks_fn("gate", move |hooks| {
        hooks.on_gate_each_async(|gated, _| {
            Box::pin(async move {
                if gated.call.id == "0" {
                    gated.deny("gate", "no");
                }
                gated.call.id = "another".to_owned();
                Ok(())
            })
        });
        let to = to.clone();
        hooks.on_result(move |result, _| to.add(&result.call.id));
    });
    let script = ScriptedModel::new("test").calls(["a", "b"].map(|text| ("shout", json!({"text": text})))).text("so");
    let answer = agent(&script).with(gate).build()?.ask("go").await?;
    assert_eq!(results(&answer.messages), ["!denied by gate: no", "B"]);
    assert_eq!(ids.lines(), ["0", "1"]);
    Ok(())
}

#[test]
fn a_history_of_shared_messages_is_checked() {
    let calls = Arc::new(Message::assistant("").with_call(ToolCall::new("a", "t", json!({}))));
    let error = History::try_from(vec![Arc::clone(&calls)]).unwrap_err().to_string();
    assert_eq!(error, "message 0 calls `t` (id `a`), but no result follows");
    let result = Arc::new(Message::tool([ToolResult::new("a", 1)]));
    assert_eq!(History::try_from(vec![calls, result]).map(|history| history.messages().len()), Ok(2));
}

#[tokio::test]
async fn a_response_that_a_provider_splits_into_deltas_is_reassembled_unchanged() -> Result<()> {
    let message = Message::assistant("so")
        .with_call(ToolCall::new("a", "t", json!({"n": 1})))
        .with_call(ToolCall::new("b", "u", json!({})));
    let mut response = ChatResponse::new(message);
    response.message.finish_reason = Some(FinishReason::Length);
    response.usage = Some(Usage::new(1, 2));
    (response.id, response.model) = (Some("r1".to_owned()), Some("test-1".to_owned()));
    response.headers.insert("x-a".to_owned(), "1".to_owned());
    response.warnings.push("careful".to_owned());
    // A later piece without an id or a model does not clear the values from earlier pieces.
    let again = Delta::response(None, None);
    let deltas = Delta::of_response(response.clone()).into_iter().chain([again]);
    let model = ChatModel::new(ScriptedModel::new("test").reply(Reply::deltas(deltas)))?;
    assert_eq!(model.run("go".into()).await?, response);
    Ok(())
}

#[tokio::test]
async fn data_of_a_provider_stays_with_its_reasoning_and_its_call_however_the_pieces_arrive() -> Result<()> {
    let reasoning = |text: &str| Delta::Reasoning(text.to_owned());
    let data = |index: Option<usize>, text: &str| Delta::signature(index, json!({ "signature": text }));
    let call = |index, id: &str| Delta::tool_call(index, Some(id.to_owned()), Some("t".to_owned()), "{}");
    let part = |text: &str, data: &str| Part::reasoning(text, Some(json!({ "signature": data })));
    let called = |id: &str, data: Option<&str>| {
        let mut call = ToolCall::new(id, "t", json!({}));
        call.extra = data.map(|data| json!({ "signature": data }));
        Part::ToolCall(call)
    };
    let so = Part::Text { content: "so".to_owned() };
    let text = || Delta::Text("so".to_owned());
    let table = [
        // Data after its reasoning, also after text; later reasoning is a part of its own.
        (
            vec![reasoning("a"), reasoning("b"), text(), data(None, "1"), reasoning("c"), data(None, "2")],
            vec![part("ab", "1"), so.clone(), part("c", "2")],
        ),
        // A stage has kept the reasoning back until after its data.
        (vec![data(None, "1"), reasoning("a"), reasoning("b"), text()], vec![part("ab", "1"), so.clone()]),
        // Data without reasoning keeps its place.
        (vec![text(), data(None, "1")], vec![so, part("", "1")]),
        // Data of calls, before and after the calls; the data of a call that a stage has removed is dropped.
        (
            vec![data(Some(1), "1"), call(0, "a"), call(1, "b"), data(Some(7), "7")],
            vec![called("a", None), called("b", Some("1"))],
        ),
    ];
    for (deltas, parts) in table {
        let model = ChatModel::new(ScriptedModel::new("test").reply(Reply::deltas(deltas.clone())))?;
        let response = model.run("go".into()).await?;
        assert_eq!(response.message.parts, parts, "{deltas:?}");
        // The response can be split into pieces and reassembled.
        let model = ChatModel::new(ScriptedModel::new("test").reply(Reply::response(response)))?;
        assert_eq!(model.run("go".into()).await?.message.parts, parts, "{deltas:?}");
    }
    Ok(())
}
