//! A budget cannot be bypassed by a server that reports no usage (A9).

use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{
    Agent, ChatModel, ChatRequest, Delta, EstimatedTokens, Message, NewToken, Reply, ScriptedModel, TokenCounter,
    Usage, UsageReported, tool_fn,
};
use emitree_middleware::budget::{Charged, Decimal, Price, PriceTable};
use emitree_middleware::{Budget, Retry, Timeout};
use emitree_runtime::{Error, Result, RunContext, Runnable};
use serde_json::json;

use crate::support::{Log, Nothing, shout};

/// A model that calls a tool in each reply, and reports nothing.
fn calls_for_ever() -> ScriptedModel {
    ScriptedModel::by("small", |_| Reply::calls([("shout", json!({"text": "a"}))]))
}

fn counted(request: &ChatRequest, ctx: &RunContext) -> u64 {
    EstimatedTokens.count(&request.messages, ctx)
}

/// Logs the charges of a budget.
fn charges(budget: &Budget) -> Result<Log> {
    let log = Log::default();
    let to = log.clone();
    budget.emitter().on("charged", move |event: &mut Charged, _| {
        let Charged { usage, .. } = event;
        to.add(format!("{} {} {}", usage.input_tokens, usage.output_tokens, usage.estimated));
    })?;
    Ok(log)
}

#[tokio::test]
async fn a_budget_of_tokens_or_cost_ends_an_agent_whose_server_reports_no_usage() -> Result<()> {
    let prices = PriceTable::new().model("small", Price::per_million(1.into(), 1.into())?);
    let tokens = Budget::builder().tokens(120).build()?;
    let cost = Budget::builder().cost(Decimal::new(120, 6)).prices(prices).build()?;
    for budget in [tokens, cost] {
        let script = calls_for_ever();
        let agent = Agent::builder("tester", ChatModel::new(script.clone())?).tool(shout()).build()?;
        let error = agent.ask("Shout a.").middleware(budget).await.unwrap_err();
        assert!(error.to_string().starts_with("the budget is exceeded"), "{error}");
        assert!(script.requests().len() < 5, "{}", script.requests().len());
    }
    Ok(())
}

#[tokio::test]
async fn the_error_of_an_unknown_price_names_the_model() -> Result<()> {
    let budget = Budget::builder().cost(Decimal::new(1, 9)).build()?;
    let error = ChatModel::new(ScriptedModel::new("small").text("A."))?.run("Hi.".into()).middleware(budget).await;
    assert_eq!(error.unwrap_err().to_string(), "the price of `small` is not known");
    Ok(())
}

/// Counts 1 token for each character.
fn characters(messages: &[Arc<Message>], _: &RunContext) -> u64 {
    messages.iter().map(|message| message.text_len() as u64).sum()
}

#[tokio::test]
async fn whole_stopped_and_broken_replies_are_charged_the_request_and_the_text_received() -> Result<()> {
    let model = || ChatModel::new(ScriptedModel::new("small").reply(Reply::text("abcdef").in_pieces(2)));
    let budget = Budget::builder().tokens(1_000).build()?;
    let charged = charges(&budget)?;
    let mut request = ChatRequest::from("12345");
    request.system = Some("1234567890".to_owned());
    request.tools = Arc::new(vec![shout().spec().clone()]);
    let tool = shout().spec().parameters.to_string().len() + "shoutShouts".len();
    let asked = 15 + tool;

    let response = model()?.token_counter(characters).run(request.clone()).middleware(budget.clone()).await?;
    assert_eq!(response.usage, Some(Usage::estimate(asked as u64, 6)));

    request.options.stream = Some(true);
    let streamed = model()?.token_counter(characters);
    let run = streamed.run(request.clone()).middleware(budget.clone());
    run.on("new_token", |token: &mut NewToken, _| token.stop()).await?;

    let cut = Reply::text("abcd").then_error(Error::new("cut off"));
    let broken = ChatModel::new(ScriptedModel::new("small").reply(cut))?.token_counter(characters);
    broken.run(request.clone()).middleware(budget.clone()).await.unwrap_err();

    // A request that was refused has used nothing.
    let refused = ChatModel::new(ScriptedModel::new("small").error(Error::new("no such model")))?;
    refused.run(request.clone()).middleware(budget.clone()).await.unwrap_err();
    assert_eq!(charged.lines(), [format!("{asked} 6 true"), format!("{asked} 2 true"), format!("{asked} 4 true")]);
    Ok(())
}

#[tokio::test]
async fn counts_of_zero_are_no_report() -> Result<()> {
    let script = ScriptedModel::new("small").reply(Reply::text("abc").usage(Usage::new(0, 0)));
    let budget = Budget::builder().tokens(1_000).build()?;
    let charged = charges(&budget)?;
    ChatModel::new(script)?.token_counter(characters).run("12".into()).middleware(budget).await?;
    assert_eq!(charged.lines(), ["2 3 true"]);
    Ok(())
}

#[tokio::test]
async fn reported_counts_are_not_estimated_and_without_a_limit_nothing_is() -> Result<()> {
    let script = ScriptedModel::new("small").reply(Reply::text("A.").usage(Usage::new(7, 1))).text("B.");
    let model = ChatModel::new(script)?;
    let limited = Budget::builder().tokens(1_000).build()?;
    let charged = charges(&limited)?;
    assert_eq!(model.run("Hi.".into()).middleware(limited).await?.usage, Some(Usage::new(7, 1)));
    assert_eq!(charged.lines(), ["7 1 false"]);
    let of_calls = Budget::builder().calls(10).build()?;
    assert_eq!(model.run("Hi.".into()).middleware(of_calls).await?.usage, None);
    Ok(())
}

#[tokio::test]
async fn an_estimate_is_marked_in_sums_events_and_json() -> Result<()> {
    let script = ScriptedModel::new("small")
        .reply(Reply::calls([("shout", json!({"text": "a"}))]).usage(Usage::new(7, 1)))
        .text("A.");
    let agent = Agent::builder("tester", ChatModel::new(script)?.token_counter(characters)).tool(shout()).build()?;
    let log = Log::default();
    let to = log.clone();
    let output = agent
        .ask("Shout a.")
        .on("**.usage", move |event: &mut UsageReported, _| to.add(event.usage.estimated.to_string()))
        .middleware(Budget::builder().tokens(10_000).build()?)
        .await?;
    assert_eq!(log.lines(), ["false", "true"]);
    assert!(output.usage.estimated);
    let json = serde_json::to_value(output.usage)?;
    assert_eq!(json["estimated"], true);
    assert_eq!(serde_json::from_value::<Usage>(json)?, output.usage);
    // Reported counts have no such field.
    assert_eq!(serde_json::to_value(Usage::new(7, 1))?.get("estimated"), None);
    Ok(())
}

#[tokio::test]
async fn a_counter_does_not_learn_from_an_estimate() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let counts = tool_fn("count", "Counts", move |_: Nothing, ctx: RunContext| {
        let request = ChatRequest::from("a text of forty characters, and no more!");
        to.add(counted(&request, &ctx).to_string());
        async { Ok("done") }
    })?;
    let script = ScriptedModel::new("small").call("count", json!({})).call("count", json!({})).text("A.");
    let model = ChatModel::new(script)?.token_counter(|_: &[Arc<Message>], _: &RunContext| 5_000);
    let agent = Agent::builder("tester", model).tool(counts).build()?;
    agent.ask("Count.").middleware(Budget::builder().tokens(1_000_000).build()?).await?;
    assert_eq!(log.lines(), ["18", "18"]);
    Ok(())
}

#[tokio::test]
async fn with_require_reported_the_next_call_is_denied() -> Result<()> {
    let script = calls_for_ever();
    let agent = Agent::builder("tester", ChatModel::new(script.clone())?).tool(shout()).build()?;
    let budget = Budget::builder().tokens(1_000_000).require_reported().build()?;
    let charged = charges(&budget)?;
    let error = agent.ask("Shout a.").middleware(budget).await.unwrap_err();
    assert!(error.is_denied(), "{error}");
    assert_eq!(
        error.to_string(),
        "the usage of `small` is not known: its last call reported none (`require_reported`)"
    );
    assert_eq!(script.requests().len(), 1);
    assert_eq!(charged.lines().len(), 1);

    // One call is no next call.
    let budget = Budget::builder().tokens(1_000_000).require_reported().build()?;
    let once = ChatModel::new(ScriptedModel::new("small").text("A."))?;
    assert_eq!(once.run("Hi.".into()).middleware(budget).await?.text(), "A.");
    Ok(())
}

#[tokio::test]
async fn a_reply_of_reasoning_and_calls_counts_their_text() -> Result<()> {
    let deltas = [
        Delta::Reasoning("abc".to_owned()),
        Delta::tool_call(0, Some("1".to_owned()), Some("shout".to_owned()), "{\"text\": \"a\"}"),
    ];
    let budget = Budget::builder().tokens(1_000).build()?;
    let charged = charges(&budget)?;
    let model = ChatModel::new(ScriptedModel::new("small").reply(Reply::deltas(deltas)))?.token_counter(characters);
    model.run("12".into()).middleware(budget).await?;
    assert_eq!(charged.lines(), ["2 21 true"]);
    Ok(())
}

#[tokio::test]
async fn a_count_that_is_missing_beside_another_is_estimated() -> Result<()> {
    let budget = Budget::builder().tokens(1_000).build()?;
    let charged = charges(&budget)?;
    let replies = [Usage::new(7, 0), Usage::new(0, 5)].map(|usage| Reply::text("abc").usage(usage));
    for reply in replies {
        let model = ChatModel::new(ScriptedModel::new("small").reply(reply))?.token_counter(characters);
        model.run("12".into()).middleware(budget.clone()).await?;
    }
    assert_eq!(charged.lines(), ["7 3 true", "2 5 true"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_dropped_is_charged_so_retries_of_a_slow_server_end_with_the_budget() -> Result<()> {
    let hour = Duration::from_secs(3600);
    let silent = |_: &ChatRequest| Reply::text("abcdef").slow(Duration::from_secs(3600), Duration::ZERO);
    let breaks_off = |_: &ChatRequest| Reply::text("abcdef").in_pieces(2).slow(Duration::ZERO, Duration::from_secs(7));
    let retries = Retry::builder().max_retries(100).base_delay(Duration::from_millis(1)).max_delay(hour).build()?;
    for (script, charge) in
        [(ScriptedModel::by("small", silent), "5 0 true"), (ScriptedModel::by("small", breaks_off), "5 4 true")]
    {
        let model = ChatModel::new(script.clone())?.token_counter(characters);
        let model = model.middleware(Timeout::per_attempt(Duration::from_secs(10))).middleware(retries.clone());
        let budget = Budget::builder().tokens(30).build()?;
        let charged = charges(&budget)?;
        let mut request = ChatRequest::from("12345");
        request.options.stream = Some(true);
        let error = model.run(request).middleware(budget).await.unwrap_err();
        assert!(error.to_string().starts_with("the budget is exceeded"), "{error}");
        assert!(charged.lines().iter().all(|line| line == charge), "{:?}", charged.lines());
        assert_eq!(charged.lines().len(), script.requests().len());
    }
    Ok(())
}
