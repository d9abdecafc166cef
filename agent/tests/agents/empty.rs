//! An empty or reasoning-only reply of a model is not a silent answer (A28).

use emitree_agent::{
    Agent, AgentRun, ChatModel, ChatOptions, ChatRequest, Chunks, Delta, DeltaStream, FinishReason, NewToken, Provider,
    Reply, ScriptedModel, Session, ToolOutput, Usage, hooks_fn, tool_fn,
};
use emitree_runtime::{Error, Result, RunContext};

use crate::support::{Log, Nothing, assert_valid, texts};

/// A provider that logs the key of each call.
struct Keyed {
    script: ScriptedModel,
    keys: Log,
}

impl Provider for Keyed {
    fn name(&self) -> &str {
        "keyed"
    }

    fn model(&self) -> &str {
        "test"
    }

    async fn chat(&self, request: &ChatRequest, ctx: &RunContext) -> Result<DeltaStream> {
        self.keys.add(ctx.key().expect("a call of an agent has a key").as_str());
        self.script.chat(request, ctx).await
    }
}

fn agent(script: &ScriptedModel) -> Result<Agent> {
    Agent::builder("tester", ChatModel::new(script.clone())?).build()
}

fn finish(reason: FinishReason) -> Reply {
    Reply::deltas([Delta::Finish(reason)])
}

/// The replies that are empty: nothing, a blank text, and reasoning without an answer.
fn empty() -> [Reply; 4] {
    [
        Reply::deltas([]),
        finish(FinishReason::Stop),
        Reply::deltas([Delta::Text(" \n".to_owned()), Delta::Finish(FinishReason::Stop)]),
        Reply::deltas([Delta::Reasoning("Hm.".to_owned())]),
    ]
}

#[tokio::test]
async fn the_model_is_asked_once_more_with_its_key_and_both_calls_count() -> Result<()> {
    for reply in empty() {
        let script = ScriptedModel::new("test")
            .reply(reply.usage(Usage::new(3, 0)))
            .reply(Reply::text("A.").usage(Usage::new(4, 1)));
        let keys = Log::default();
        let provider = Keyed { script, keys: keys.clone() };
        let session = Session::new();
        let agent = Agent::builder("tester", ChatModel::new(provider)?).build()?;
        let output = agent.ask("Hi.").session(&session).await?;
        assert_eq!((output.text().as_str(), output.turns, output.usage), ("A.", 1, Usage::new(7, 1)));
        assert_eq!(texts(&session), ["Hi.", "A."]);
        let keys = keys.lines();
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[0], keys[1]);
    }
    Ok(())
}

#[tokio::test]
async fn a_second_empty_reply_ends_the_run_with_an_error_that_says_so() -> Result<()> {
    for reply in empty() {
        let script = ScriptedModel::new("test").reply(reply.clone()).reply(finish(FinishReason::Stop));
        let session = Session::new();
        let error = agent(&script)?.ask("Hi.").session(&session).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the model `test` has answered twice without text and without a call (finish reason `stop`); if that is an \
             answer, use `allow_empty(true)`"
        );
        assert_eq!(script.requests().len(), 2);
        assert_eq!(texts(&session), ["Hi."]);
        assert_valid(&session);
    }
    Ok(())
}

#[tokio::test]
async fn with_allow_empty_an_empty_reply_is_the_answer() -> Result<()> {
    let script = ScriptedModel::new("test").reply(finish(FinishReason::Stop));
    let agent = Agent::builder("tester", ChatModel::new(script.clone())?).allow_empty(true).build()?;
    assert_eq!(agent.ask("Hi.").await?.text(), "");
    assert_eq!(script.requests().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_reply_that_was_cut_off_filtered_or_stopped_is_not_judged() -> Result<()> {
    for reason in [FinishReason::Length, FinishReason::ContentFilter] {
        let script = ScriptedModel::new("test").reply(finish(reason.clone()));
        assert_eq!(agent(&script)?.ask("Hi.").await?.finish_reason, Some(reason));
    }
    let script = ScriptedModel::new("test").reply(Reply::text("\n"));
    let model = ChatModel::new(script)?.options(ChatOptions::new().stream(true));
    let answer = Agent::builder("tester", model)
        .build()?
        .ask("Hi.")
        .on("**.new_token", |token: &mut NewToken, _| token.stop())
        .await?;
    assert_eq!(answer.finish_reason, Some(FinishReason::Stopped));
    Ok(())
}

#[tokio::test]
async fn the_provider_is_judged_and_not_what_stages_made_of_its_reply() -> Result<()> {
    let empties = hooks_fn("empties", |hooks| {
        hooks.chunks(|| {
            |chunks: &mut Chunks, _: &RunContext| {
                chunks.deltas.retain(|delta| !matches!(delta, Delta::Text(_)));
                Ok(())
            }
        });
    });
    let script = ScriptedModel::new("test").text("Secret.");
    assert_eq!(agent(&script)?.ask("Hi.").with(empties).await?.text(), "");

    let signs = hooks_fn("signs", |hooks| {
        hooks.chunks(|| {
            |chunks: &mut Chunks, _: &RunContext| {
                if chunks.ended {
                    chunks.deltas.push(Delta::Text("Yours, the model.".to_owned()));
                }
                Ok(())
            }
        });
    });
    let script = ScriptedModel::new("test").reply(finish(FinishReason::Stop)).text("A. ");
    assert_eq!(agent(&script)?.ask("Hi.").with(signs).await?.text(), "A. Yours, the model.");
    Ok(())
}

#[tokio::test]
async fn the_empty_output_of_a_tool_is_an_answer() -> Result<()> {
    let tool = tool_fn("end", "Ends", |_: Nothing, _: RunContext| async { Ok(ToolOutput::new("").answer()) })?;
    let script = ScriptedModel::new("test").call("end", serde_json::json!({}));
    let agent = Agent::builder("tester", ChatModel::new(script)?).tool(tool).build()?;
    assert_eq!(agent.ask("End.").await?.text(), "");
    Ok(())
}

#[tokio::test]
async fn an_attempt_that_fails_after_an_empty_reply_counts_once_more_only() -> Result<()> {
    let script =
        ScriptedModel::new("test").reply(finish(FinishReason::Stop)).error(Error::new("overloaded")).text("A.");
    assert_eq!(agent(&script)?.ask("Hi.").await.unwrap_err().to_string(), "overloaded");
    Ok(())
}

#[tokio::test]
async fn an_empty_reply_that_a_cache_has_kept_is_no_answer_either() -> Result<()> {
    let script = ScriptedModel::new("test").reply(finish(FinishReason::Stop)).text("A.");
    let model = ChatModel::new(script)?.middleware(emitree_middleware::Cache::json().build()?);
    let agent = Agent::builder("tester", model).build()?;
    let error = agent.ask("Hi.").await.unwrap_err().to_string();
    assert!(error.contains("has answered twice without text"), "{error}");
    Ok(())
}
