//! No reply escapes the chain: a reply that reaches a listener, the history or the caller of an agent has passed the
//! agent's stages and its guards at `model.call`, also if a layer answers (M4).

use emitree_agent::reply::AsyncChunkStage;
use emitree_agent::{
    Agent, AgentBuilder, AgentRun, ChatModel, ChatRequest, ChatResponse, ChatSuccess, ChunkStage, Chunks, Delta, Hooks,
    Message, Reply, ScriptedModel, Session, tool_fn,
};
use emitree_middleware::{Cache, Fallback};
use emitree_runtime::{
    Error, Next, Phase, Result, RunContext, Runnable, Stage, Start, Success, Transform, runnable_fn,
};

use futures_core::future::BoxFuture;

use crate::support::{Log, NotForbidden, Text, texts};

/// A stage that hides `secret`.
struct Hide(Log);

impl ChunkStage for Hide {
    fn pass(&mut self, chunks: &mut Chunks, _: &RunContext) -> Result<()> {
        for delta in &mut chunks.deltas {
            if let Delta::Text(text) = delta {
                self.0.add(format!("stage {text}"));
                *text = text.replace("secret", "***");
            }
        }
        Ok(())
    }
}

fn hide(log: &Log) -> impl Fn() -> Hide + use<> {
    let log = log.clone();
    move || Hide(log.clone())
}

/// Replaces `cat` with another word.
#[derive(Debug)]
struct Cat(&'static str);

impl Transform<ChatModel> for Cat {
    async fn output(&self, mut reply: ChatResponse, _: &RunContext) -> Result<ChatResponse> {
        reply.message = Message::assistant(reply.text().replace("cat", self.0));
        Ok(reply)
    }
}

/// Registers the stage, the guard, and a layer of the phase of guards that counts calls, as a rate limit does.
fn protect(hooks: &mut Hooks, log: &Log) {
    hooks.chunks(hide(log)).model_call(|stack| {
        let permits = log.clone();
        let permit = emitree_runtime::layer_fn("permit", move |request, _, next: Next<'_, ChatModel>| {
            permits.add("permit");
            Box::pin(async move { next.run(request).await })
        });
        stack.layer_in(Phase::Guard, permit).guard(NotForbidden(log.clone()))
    });
}

fn said(word: &str) -> ChatResponse {
    ChatResponse::new(Message::assistant(format!("the {word}")))
}

/// A runnable that answers as a model does, but is no model.
fn stranger(word: &'static str) -> impl Runnable<Input = ChatRequest, Output = ChatResponse> + 'static {
    runnable_fn("stranger", move |_: ChatRequest, _: RunContext| async move { Ok(said(word)) })
}

const SOURCES: [&str; 8] =
    ["nobody", "a transform", "a cache", "a fallback", "another model", "an observer", "start", "success"];

/// Returns an agent whose model says "the cat", unless `source` makes it say "the <word>".
async fn agent_with(source: &str, word: &'static str, log: &Log) -> Result<AgentBuilder> {
    let says = if source == "nobody" { word } else { "cat" };
    let script = ScriptedModel::by("test", move |_| {
        Reply::response(ChatResponse::new(Message::assistant(format!("the {says}"))))
    });
    let mut model = ChatModel::new(script)?;
    match source {
        "a cache" => {
            // Another agent, without stages and guards, has asked the same model.
            let script =
                ScriptedModel::new("test").reply(Reply::response(said(word))).reply(Reply::response(said(word)));
            model = ChatModel::new(script)?.middleware(Cache::json().build()?);
            let open = Agent::builder("open", model.clone()).build()?;
            // The requests differ in the option `stream`, so there is one entry for each.
            open.ask("hi").await?;
            open.ask("hi").on_token(|_| ()).await?;
        }
        "a fallback" => {
            let fails = ScriptedModel::by("test", |_| Reply::error(Error::new("overloaded")));
            model = ChatModel::new(fails)?.middleware(Fallback::to(stranger(word)));
        }
        "start" => {
            model.emitter().on(Stage::Start, move |start: &mut Start<ChatRequest, ChatResponse>, _| {
                start.output = Some(said(word));
            })?;
        }
        "success" => {
            model.emitter().on("success", move |success: &mut ChatSuccess, _| success.response = said(word))?;
        }
        _ => {}
    }
    let to = log.clone();
    model.emitter().on(Stage::Success, move |success: &mut Success<ChatRequest, ChatResponse>, _| {
        to.add(format!("success {}", success.output.text()));
    })?;
    let (source, log) = (source.to_owned(), log.clone());
    let agent = Agent::builder("tester", model).hooks(move |hooks| {
        protect(hooks, &log);
        hooks.model_call(|stack| match source.as_str() {
            "a transform" => stack.transform(Cat(word)),
            "another model" => stack.layer_fn("another", move |request: &ChatRequest, _, next| {
                Box::pin(async move {
                    next.run(request).await?;
                    stranger(word).run(request.clone()).await
                })
            }),
            "an observer" => stack.layer_in(
                Phase::Observe,
                emitree_runtime::layer_fn("observer", move |_, _, _: Next<'_, ChatModel>| {
                    Box::pin(async move { Ok(said(word)) })
                }),
            ),
            _ => stack,
        });
    });
    Ok(agent)
}

// M4
#[tokio::test]
async fn every_reply_passes_the_stages_and_the_guards_whatever_answered_streamed_or_not() -> Result<()> {
    for streams in [false, true] {
        for source in SOURCES {
            let (log, session) = (Log::default(), Session::new());
            let agent = agent_with(source, "secret", &log).await?.build()?;
            let mut run = agent.ask("hi").session(&session);
            if streams {
                run = run.on_token(|_| ());
            }
            let answer = run.await?;
            assert_eq!(answer.text(), "the ***", "{source}, streamed: {streams}");
            assert_eq!(texts(&session), ["hi", "the ***"], "{source}, streamed: {streams}");
            let lines = log.lines();
            let told: Vec<_> = lines.iter().filter(|line| line.starts_with("success")).collect();
            // A layer that only observes is outside of all others: only the history and the caller are protected.
            if source != "an observer" {
                assert_eq!(told, ["success the ***"], "{source}, streamed: {streams}");
            }
            let guarded = lines.iter().filter(|line| *line == "guard the ***").count();
            let permits = lines.iter().filter(|line| *line == "permit").count();
            let calls = usize::from(!["a cache", "an observer"].contains(&source));
            assert_eq!((guarded, permits), (1, calls), "{source}, streamed: {streams}: {lines:?}");
        }
    }
    Ok(())
}

// M4
#[tokio::test]
async fn a_reply_that_nobody_changed_passes_the_stages_and_the_guards_once() -> Result<()> {
    for streams in [false, true] {
        let log = Log::default();
        let agent = agent_with("nobody", "secret", &log).await?.build()?;
        let run = agent.ask("hi");
        if streams {
            run.on_token(|_| ()).await?
        } else {
            run.await?
        };
        assert_eq!(log.lines(), ["permit", "stage the secret", "guard the ***", "success the ***"]);
    }
    Ok(())
}

// M4
#[tokio::test]
async fn a_guard_that_denies_a_reply_denies_the_call_whatever_answered() -> Result<()> {
    for source in SOURCES {
        let (log, session) = (Log::default(), Session::new());
        let agent = agent_with(source, "forbidden", &log).await?.build()?;
        let error = agent.ask("hi").session(&session).await.unwrap_err();
        assert_eq!(error.explain(), "denied by not_forbidden: a forbidden word", "{source}");
        assert_eq!(texts(&session), ["hi"], "{source}");
    }
    Ok(())
}

#[tokio::test]
async fn a_model_below_a_model_of_an_agent_with_stages_or_guards_is_refused_and_the_error_names_or() -> Result<()> {
    let other = || ChatModel::new(ScriptedModel::new("other").text("the secret"));
    let first = || -> Result<_> {
        let failing = ChatModel::new(ScriptedModel::new("first").error(Error::new("overloaded")))?;
        Ok(failing.middleware(Fallback::to(other()?)))
    };
    type Register = fn(&mut Hooks, &Log);
    let registers: [(&str, Register); 2] = [
        ("stages", |hooks, log| _ = hooks.chunks(hide(log))),
        ("guards", |hooks, log| _ = hooks.model_call(|stack| stack.guard(NotForbidden(log.clone())))),
    ];
    for (what, register) in registers {
        let log = Log::default();
        let agent = Agent::builder("tester", first()?).hooks(|hooks| register(hooks, &log)).build()?;
        let to = log.clone();
        let error = agent.ask("hi").on_token(move |token| to.add(format!("token {}", token.text()))).await.unwrap_err();
        let says = "the model `other` was asked inside a call of the model `first`, but replies of this call must pass \
                    the stages and guards of its agent: make it an alternative with `ChatModel::or`";
        assert_eq!(error.to_string(), says, "{what}");
        assert!(log.lines().is_empty(), "{what}: {:?}", log.lines());
    }
    // Without stages and guards, nothing changes.
    assert_eq!(Agent::builder("tester", first()?).build()?.ask("hi").await?.text(), "the secret");
    Ok(())
}

#[tokio::test]
async fn models_that_tools_and_sub_agents_ask_are_not_refused() -> Result<()> {
    let log = Log::default();
    let inner = ChatModel::new(ScriptedModel::by("inner", |_| Reply::text("from inside")))?;
    let sub = Agent::builder("sub", inner.clone()).build()?;
    let asks = tool_fn("ask", "Asks a model", move |_: Text, _: RunContext| {
        let inner = inner.clone();
        async move { Ok(inner.run("hi".into()).await?.text()) }
    })?;
    let calls = [("ask", serde_json::json!({"text": ""})), ("sub", serde_json::json!({"task": "x"}))];
    let script = ScriptedModel::new("outer").calls(calls).text("done");
    // A layer of the model call asks an agent, whose model is below the call, too.
    let (of_layer, tool) = (sub.clone(), sub.as_tool("A sub-agent")?);
    let agent = Agent::builder("tester", ChatModel::new(script)?).tool(asks).tool(tool).hooks(move |hooks| {
        protect(hooks, &log);
        hooks.model_call(|stack| {
            stack.layer_fn("asks", move |request: &ChatRequest, _, next| {
                let agent = of_layer.clone();
                Box::pin(async move {
                    assert_eq!(agent.ask("hi").await?.text(), "from inside");
                    next.run(request).await
                })
            })
        });
    });
    let answer = agent.build()?.ask("hi").await?;
    assert_eq!(answer.text(), "done");
    assert_eq!(crate::support::results(&answer.messages), ["from inside", "from inside"]);
    Ok(())
}

#[tokio::test]
async fn a_layer_below_an_agent_that_a_stage_asks_is_still_refused() -> Result<()> {
    struct Asks(Agent);
    impl AsyncChunkStage for Asks {
        fn pass<'a>(&'a mut self, chunks: &'a mut Chunks, _: &'a RunContext) -> BoxFuture<'a, Result<()>> {
            Box::pin(async move {
                if chunks.ended {
                    self.0.ask("is it well?").await?;
                }
                Ok(())
            })
        }
    }
    let failing = ChatModel::new(ScriptedModel::new("first").error(Error::new("overloaded")))?;
    let first = failing.middleware(Fallback::to(ChatModel::new(ScriptedModel::new("other").text("the secret"))?));
    let log = Log::default();
    let judge = Agent::builder("judge", first).hooks(|hooks| protect(hooks, &log)).build()?;
    let script = ScriptedModel::new("outer").text("hello");
    let agent = Agent::builder("tester", ChatModel::new(script)?);
    let agent = agent.hooks(|hooks| _ = hooks.chunks_async(move || Asks(judge.clone()))).build()?;
    let error = agent.ask("hi").await.unwrap_err().to_string();
    assert!(error.starts_with("the model `other` was asked inside a call of the model `first`"), "{error}");
    Ok(())
}
