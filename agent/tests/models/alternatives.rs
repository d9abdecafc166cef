//! `ChatModel::or`: the alternatives of a model are asked in the model's run, inside its layers, stages and guards.

use std::time::Duration;

use emitree_agent::{
    Agent, AgentInput, AgentOutput, AgentRun, ChatModel, ChatOptions, ChatRequest, Delta, DeltaStream, ModelFellBack,
    Provider, Reply, ScriptedModel, Usage, UsageReported,
};
use emitree_middleware::budget::Price;
use emitree_middleware::{Budget, Cache, Retry, Timeout};
use emitree_runtime::{
    AttemptDiscarded, Error, Guard, Next, Result, Run, RunContext, Runnable, Stack, for_tree, map_output,
};
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

#[tokio::test]
async fn options_of_a_call_come_from_the_run_then_the_agent_then_the_model_one_by_one() -> Result<()> {
    let script = ScriptedModel::new("test").text("a").text("b");
    let model = ChatModel::new(script.clone())?
        .options(ChatOptions::new().temperature(0.1).max_tokens(1).seed(1).extra("x", 1).extra("y", 1));
    let of_agent = ChatOptions::new().temperature(0.2).max_tokens(2).extra("x", 2);
    let agent = Agent::builder("tester", model).options(of_agent).build()?;
    agent.ask(AgentInput::from("hi").options(ChatOptions::new().temperature(0.3))).await?;
    let sent = script.requests()[0].options.clone();
    assert_eq!(sent, ChatOptions::new().temperature(0.3).max_tokens(2).seed(1).extra("x", 2).extra("y", 1));
    Ok(())
}

/// A guard that notes the seed of each request.
#[derive(Debug)]
struct NotesSeed(Log);

impl Guard<ChatModel> for NotesSeed {
    async fn check_input(&self, request: &ChatRequest, _: &RunContext) -> Result<()> {
        self.0.add(format!("{:?}", request.options.seed));
        Ok(())
    }
}

#[tokio::test]
async fn guards_and_caches_see_the_request_with_the_options_of_the_model() -> Result<()> {
    let cache = Cache::json().build()?;
    let model = |seed| -> Result<ChatModel> {
        let script = ScriptedModel::new("test").text(format!("seed {seed}"));
        Ok(ChatModel::new(script)?.options(ChatOptions::new().seed(seed)).middleware(cache.clone()))
    };
    assert_eq!(model(1)?.run("hi".into()).await?.text(), "seed 1");
    assert_eq!(model(2)?.run("hi".into()).await?.text(), "seed 2", "another request");
    assert_eq!(model(1)?.run("hi".into()).await?.text(), "seed 1", "the script has one reply only");

    let log = Log::default();
    let seen = log.clone();
    model(3)?.run("hi".into()).layers(|stack| stack.guard(NotesSeed(seen))).await?;
    assert_eq!(log.lines(), ["Some(3)"]);
    Ok(())
}

#[tokio::test]
async fn an_alternative_is_asked_with_its_own_options_and_not_with_those_of_the_first_model() -> Result<()> {
    let down = ScriptedModel::new("down").error(Error::new("down"));
    let up = ScriptedModel::new("up").text("up");
    let first = ChatModel::new(down.clone())?.options(ChatOptions::new().temperature(0.1).seed(1));
    let second = ChatModel::new(up.clone())?.options(ChatOptions::new().temperature(0.2));
    let model = first.or(second)?;
    let mut request = ChatRequest::from("hi");
    request.options.max_tokens = Some(5);
    let run = model.run(request);
    let layer = r#"or: down {"temperature":0.1,"seed":1}, then up {"temperature":0.2}"#;
    assert!(run.explain().to_string().contains(layer), "{}", run.explain());
    run.await?;
    let sent = |script: &ScriptedModel| script.requests()[0].options.clone();
    assert_eq!(sent(&down), ChatOptions::new().temperature(0.1).seed(1).max_tokens(5));
    assert_eq!(sent(&up), ChatOptions::new().temperature(0.2).max_tokens(5));
    // Options that are set after `or` belong to the first model.
    assert!(
        model
            .options(ChatOptions::new().seed(2))
            .run("hi".into())
            .explain()
            .to_string()
            .contains(r#"or: down {"seed":2}, then up {"temperature":0.2}"#)
    );
    Ok(())
}

#[tokio::test]
async fn a_run_overrides_the_number_of_middleware_retries_of_its_agent() -> Result<()> {
    let script = (0..6).fold(ScriptedModel::new("test"), |script, _| script.text("a"));
    let agent = Agent::builder("tester", ChatModel::new(script)?)
        .middleware(map_output(|_: &mut AgentOutput, _: &RunContext| Err(Error::retry("not good"))))
        .max_middleware_retries(2)
        .build()?;
    let attempts = async |run: Run<'_, Agent>| {
        let log = Log::default();
        let to = log.clone();
        let run =
            run.observe("attempt_discarded", move |event: &AttemptDiscarded, _| to.add(event.attempt.to_string()));
        assert_eq!(run.await.unwrap_err().retry_request().map(|retry| retry.reason), Some("not good".to_owned()));
        log.lines().len()
    };
    assert_eq!(attempts(agent.ask("hi")).await, 2);
    assert_eq!(attempts(agent.ask("hi").max_middleware_retries(1)).await, 1);
    assert_eq!(attempts(agent.ask("hi").max_middleware_retries(0)).await, 0);
    Ok(())
}
