//! `ChatModel::or`: the alternatives of a model are asked in the model's run, inside its layers, stages and guards.

use std::time::Duration;

use emitree_agent::{
    Agent, AgentRun, ChatModel, ChatRequest, Delta, DeltaStream, ModelFellBack, Provider, Reply, ScriptedModel, Usage,
    UsageReported,
};
use emitree_middleware::budget::Price;
use emitree_middleware::{Budget, Retry, Timeout};
use emitree_runtime::{AttemptDiscarded, Error, Next, Result, RunContext, Runnable, Stack, for_tree};
use futures_util::{StreamExt, stream};

use crate::support::Log;

fn scripted(name: &str, replies: impl IntoIterator<Item = Reply>) -> Result<ChatModel> {
    let script = replies.into_iter().fold(ScriptedModel::new(name), ScriptedModel::reply);
    Ok(ChatModel::new(script)?)
}

/// A provider that panics after three tokens.
struct Panics;

impl Provider for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn model(&self) -> &str {
        "panics"
    }

    async fn chat(&self, _: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        let tokens = stream::iter(["a", "b", "c"]).map(|text| Ok(Delta::Text(text.to_owned())));
        Ok(Box::pin(tokens.chain(stream::once(async { panic!("out of tokens") }))))
    }
}

#[tokio::test(start_paused = true)]
async fn an_alternative_answers_after_a_model_that_hangs_with_a_timeout_of_its_own() -> Result<()> {
    let hour = Duration::from_secs(3600);
    let hangs = scripted("hangs", [Reply::text("never").slow(hour, hour)])?;
    // Each attempt may take one second, and the alternative needs almost as long.
    let slow = scripted("slow", [Reply::text("at last").slow(Duration::from_millis(900), Duration::ZERO)])?;
    let model = hangs.or(slow)?.middleware(Timeout::per_attempt(Duration::from_secs(1)));
    let (log, to) = (Log::default(), Log::default());
    let fell = log.clone();
    let discarded = log.clone();
    let tokens = to.clone();
    let agent = Agent::builder("tester", model).build()?;
    let answer = agent
        .ask("hi")
        .on_token(move |token| tokens.add(token.text()))
        .on("**.attempt_discarded", move |event: &mut AttemptDiscarded, _| discarded.add(event.reason.clone()))
        .on("backend.chat.scripted.fell_back", move |event: &mut ModelFellBack, _| {
            fell.add(format!("{} -> {}: {}", event.from, event.to, event.error.message));
        })
        .await?;
    assert_eq!((answer.text(), to.lines()), ("at last".to_owned(), vec!["at last".to_owned()]));
    assert_eq!(log.lines(), ["an attempt took longer than 1s", "hangs -> slow: an attempt took longer than 1s"]);
    Ok(())
}

#[tokio::test]
async fn an_alternative_answers_after_a_model_that_panics_in_its_stream() -> Result<()> {
    let model = ChatModel::new(Panics)?.or(scripted("calm", [Reply::text("calm").in_pieces(2)])?)?;
    let log = Log::default();
    let (tokens, discards) = (log.clone(), log.clone());
    let agent = Agent::builder("tester", model).build()?;
    let answer = agent
        .ask("hi")
        .on_token(move |token| tokens.add(token.text()))
        .on("**.attempt_discarded", move |_: &mut AttemptDiscarded, _| discards.add("discarded"))
        .await?;
    assert_eq!(answer.text(), "calm");
    assert_eq!(log.lines(), ["a", "b", "c", "discarded", "ca", "lm"]);
    Ok(())
}

#[tokio::test]
async fn if_all_models_fail_the_error_of_the_last_lists_the_earlier_failures() -> Result<()> {
    let fails = |name: &str| scripted(name, [Reply::error(Error::new(format!("{name} is down")))]);
    let model = fails("a")?.or(fails("b")?.or(fails("c")?)?)?;
    let error = model.run("hi".into()).await.unwrap_err();
    assert_eq!(error.to_string(), "c is down");
    let after = serde_json::json!([{"by": "a", "cause": "a is down"}, {"by": "b", "cause": "b is down"}]);
    assert_eq!(error.details()["after"], after);
    Ok(())
}

#[tokio::test]
async fn response_usage_and_budget_name_the_model_that_answered_and_use_its_price() -> Result<()> {
    let usage = Usage::new(1_000_000, 0);
    let large = scripted("large", [Reply::error(Error::new("down")), Reply::text("large").usage(usage)])?;
    let small = scripted("small", [Reply::text("small").usage(usage)])?;
    let large = large.price(Price::per_million(8.into(), 0.into())?);
    let model = large.or(small.price(Price::per_million(2.into(), 0.into())?))?;
    let log = Log::default();
    let to = log.clone();
    let budget = Budget::builder().tokens(10_000_000).build()?;
    model.emitter().on("usage", move |event: &mut UsageReported, _| {
        to.add(format!("{} {}", event.model, event.cost.unwrap_or_default()));
    })?;
    for name in ["small", "large"] {
        let response = model.run("hi".into()).middleware(budget.clone()).await?;
        assert_eq!((response.text().as_str(), response.model.as_deref()), (name, Some(name)));
    }
    assert_eq!(log.lines(), ["small 2", "large 8"]);
    Ok(())
}

#[tokio::test]
async fn a_retry_that_is_bound_after_the_alternatives_tries_each_model_again() -> Result<()> {
    let retry = || Retry::builder().max_retries(1).base_delay(Duration::from_millis(1)).build();
    let busy = || Reply::error(Error::new("busy").retryable(true));
    let (a, b) = (ScriptedModel::new("a").reply(busy()).reply(busy()), ScriptedModel::new("b").reply(busy()).text("b"));
    let model = ChatModel::new(a.clone())?.or(ChatModel::new(b.clone())?)?.middleware(retry()?);
    assert_eq!(model.run("hi".into()).await?.text(), "b");
    assert_eq!((a.requests().len(), b.requests().len()), (2, 2));

    let (a, b) = (ScriptedModel::new("a").reply(busy()).reply(busy()), ScriptedModel::new("b").reply(busy()).text("b"));
    let model = ChatModel::new(a.clone())?.middleware(retry()?).or(ChatModel::new(b.clone())?)?;
    assert_eq!(model.run("hi".into()).await?.text(), "b");
    assert_eq!((a.requests().len(), b.requests().len()), (2, 2));
    Ok(())
}

#[tokio::test]
async fn an_alternative_with_middlewares_is_refused() -> Result<()> {
    let guarded = scripted("b", [])?.middleware(Timeout::per_attempt(Duration::from_secs(1)));
    let error = scripted("a", [])?.or(guarded).unwrap_err().to_string();
    let says = "`or` takes a model without middlewares, but `b` has 1: bind them to `a` instead, where they apply to \
                both models";
    assert_eq!(error, says);
    Ok(())
}

#[tokio::test]
async fn denials_and_other_control_flow_are_not_answered_by_an_alternative() -> Result<()> {
    for error in [Error::denied("desk", "no"), Error::halted("desk", "enough"), Error::retry("again")] {
        let b = ScriptedModel::new("b").text("b");
        let model = scripted("a", [Reply::error(error.clone())])?.or(ChatModel::new(b.clone())?)?;
        assert_eq!(model.run("hi".into()).await.unwrap_err().kind(), error.kind());
        assert!(b.requests().is_empty());
    }
    Ok(())
}

/// A layer outside that makes two calls at the same time does not mix up the models of the calls.
#[tokio::test(start_paused = true)]
async fn concurrent_calls_of_one_run_ask_their_alternatives_separately() -> Result<()> {
    let second = Duration::from_secs(1);
    let late = |reply: Reply, after| reply.slow(after, Duration::ZERO);
    let a = ScriptedModel::new("a").reply(Reply::error(Error::new("down"))).reply(late(Reply::text("a"), second * 3));
    let b = ScriptedModel::new("b").reply(late(Reply::text("b"), second));
    let both = Stack::<ChatModel>::builder().layer_in(
        emitree_runtime::Phase::Observe,
        emitree_runtime::layer_fn("both", |request: &ChatRequest, _, next: Next<'_, ChatModel>| {
            Box::pin(async move {
                let (one, two) = tokio::join!(next.run(request), next.run(request));
                let (mut one, two) = (one?, two?);
                one.message = emitree_agent::Message::assistant(format!("{} {}", one.text(), two.text()));
                Ok(one)
            })
        }),
    );
    let model = ChatModel::new(a)?.or(ChatModel::new(b)?)?;
    assert_eq!(model.run("hi".into()).middleware(for_tree(both.build())).await?.text(), "b a");
    Ok(())
}
