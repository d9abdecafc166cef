//! The costs of model calls, and the budgets to which they are charged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentContext, AgentOutput, AgentRun, ChatModel, ChatRequest, Chunks, Delta, Reply, ScriptedModel, Usage,
    UsageReported, hooks_fn,
};
use emitree_middleware::budget::{Charged, Decimal, Price, PriceTable, UnknownPrice};
use emitree_middleware::{Budget, Cache, Retry};
use emitree_runtime::{Error, Result, RunContext, Runnable};
use serde_json::json;

use crate::support::{Log, results, shout};

const MILLION: u64 = 1_000_000;

fn per_million(input: u64, output: u64) -> Price {
    Price::per_million(input.into(), output.into()).expect("a price")
}

/// A model that calls a tool and then answers.
fn script() -> ScriptedModel {
    ScriptedModel::new("small")
        .reply(Reply::calls([("shout", json!({"text": "a"}))]).usage(Usage::new(MILLION, MILLION / 10)))
        .reply(Reply::text("A").usage(Usage::new(3 * MILLION, MILLION / 5)))
}

/// An agent whose two model calls cost 2 and 5.
fn priced() -> Result<Agent> {
    let model = ChatModel::new(script())?.price(per_million(1, 10));
    Agent::builder("tester", model).tool(shout()).build()
}

fn shown(cost: Option<Decimal>) -> String {
    cost.map_or_else(|| "none".to_owned(), |cost| cost.normalize().to_string())
}

#[tokio::test]
async fn the_cost_is_available_to_hooks_in_usage_events_and_in_the_output() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let hooks = hooks_fn("log", move |hooks| {
        let to = to.clone();
        hooks.on_state(move |_, ctx| to.add(format!("turn {}", shown(ctx.turn().expect("an agent").cost))));
    });
    let to = log.clone();
    let answer = priced()?
        .ask("Shout a.")
        .with(hooks)
        .on("**.usage", move |event: &mut UsageReported, _| to.add(format!("usage {}", shown(event.cost))))
        .await?;
    assert_eq!(log.lines(), ["turn none", "usage 2", "turn 2", "usage 5"]);
    assert_eq!(answer.cost, Some(7.into()));
    let json = serde_json::to_value(&answer)?;
    assert_eq!(serde_json::from_value::<AgentOutput>(json)?, answer);
    Ok(())
}

#[tokio::test]
async fn a_model_without_a_price_has_no_cost() -> Result<()> {
    let agent = Agent::builder("tester", ChatModel::new(script())?).tool(shout()).build()?;
    let answer = agent.ask("Shout a.").await?;
    assert_eq!((answer.cost, answer.usage.total()), (None, 4_300_000));
    Ok(())
}

#[tokio::test]
async fn cached_input_can_have_its_own_price() -> Result<()> {
    let mut usage = Usage::new(4 * MILLION, 0);
    usage.cached_input_tokens = 3 * MILLION;
    let model = |price| {
        ChatModel::new(ScriptedModel::new("small").reply(Reply::text("A").usage(usage))).map(|model| model.price(price))
    };
    let same = per_million(2, 10);
    assert_eq!(model(same)?.run("a".into()).await?.cost, Some(8.into()));
    let cheaper = same.cached_input_per_million(Decimal::new(1, 1))?;
    assert_eq!(shown(model(cheaper)?.run("a".into()).await?.cost), "2.3");
    Ok(())
}

/// Logs the charges to a budget, as lines of the form `<model> <tokens> <cost>`.
fn charges_of(budget: &Budget) -> Result<Log> {
    let log = Log::default();
    let to = log.clone();
    budget.emitter().on("charged", move |event: &mut Charged, _| {
        let model = event.usage.model.as_deref().unwrap_or("no model");
        to.add(format!("{model} {} {}", event.usage.tokens(), shown(event.charged)));
    })?;
    Ok(log)
}

#[tokio::test]
async fn calls_are_charged_at_the_price_of_the_model_or_else_at_the_price_of_the_budget() -> Result<()> {
    let prices = PriceTable::new().model("small", per_million(0, 100));
    let budget = || Budget::builder().cost(100.into()).prices(prices.clone()).build();
    let by_model = budget()?;
    let charges = charges_of(&by_model)?;
    priced()?.ask("Shout a.").middleware(by_model).await?;
    assert_eq!(charges.lines(), ["small 1100000 2", "small 3200000 5"]);

    let by_budget = budget()?;
    let charges = charges_of(&by_budget)?;
    let agent = Agent::builder("tester", ChatModel::new(script())?).tool(shout()).build()?;
    agent.ask("Shout a.").middleware(by_budget).await?;
    assert_eq!(charges.lines(), ["small 1100000 10", "small 3200000 20"]);
    Ok(())
}

#[tokio::test]
async fn an_exceeded_budget_ends_the_agent_after_listeners_received_the_usage() -> Result<()> {
    let budget = Budget::builder().cost(6.into()).build()?;
    let log = Log::default();
    let to = log.clone();
    let error = priced()?
        .ask("Shout a.")
        .on("**.usage", move |event: &mut UsageReported, _| to.add(shown(event.cost)))
        .middleware(budget)
        .await
        .unwrap_err();
    assert!(error.is_halted(), "{error}");
    assert_eq!(error.to_string(), "the budget is exceeded: a cost of 7 (limit: 6)");
    assert_eq!(log.lines(), ["2", "5"]);
    Ok(())
}

// A9
#[tokio::test]
async fn tokens_are_charged_in_each_attempt_even_if_a_listener_fails() -> Result<()> {
    let usage = Usage::new(MILLION, 0);
    let reply = || Reply::text("A").usage(usage);
    let model = ChatModel::new(ScriptedModel::new("small").reply(reply()).reply(reply()))?.price(per_million(1, 1));
    let agent = Agent::builder("tester", model).build()?;
    let budget = Budget::builder().build()?;
    let charges = charges_of(&budget)?;
    let retry = Retry::builder().max_retries(1).base_delay(Duration::from_millis(1)).build()?;
    let fails = AtomicBool::new(true);
    let answer = agent
        .ask("Say A.")
        .on("**.usage", move |_: &mut UsageReported, _| {
            if fails.swap(false, Ordering::Relaxed) {
                Err(Error::new("not now").retryable(true).into())
            } else {
                Ok(())
            }
        })
        .middleware(retry)
        .middleware(budget)
        .await?;
    assert_eq!(charges.lines(), ["small 1000000 1", "small 1000000 1"]);
    // The output counts only the attempt that succeeded.
    assert_eq!((answer.cost, answer.usage), (Some(1.into()), usage));
    Ok(())
}

fn unlimited() -> Result<Budget> {
    Ok(Budget::builder().build()?)
}

// A9
#[tokio::test]
async fn reported_tokens_are_charged_even_if_the_reply_then_fails() -> Result<()> {
    for stream in [false, true] {
        let pieces =
            [Delta::Usage(Usage::new(1, 0)), Delta::Usage(Usage::new(MILLION, 0)), Delta::Text("A".to_owned())];
        let cut = || Reply::deltas(pieces.clone()).then_error(Error::new("cut off"));
        let model = ChatModel::new(ScriptedModel::new("small").reply(cut()).reply(cut()))?.price(per_million(1, 1));
        let mut request = ChatRequest::from("Say A.");
        request.options.stream = Some(stream);

        let budget = unlimited()?;
        let (charges, log) = (charges_of(&budget)?, Log::default());
        let to = log.clone();
        let error = model
            .run(request.clone())
            .on("usage", move |event: &mut UsageReported, _| {
                to.add(shown(event.cost));
                Err(Error::new("not now").into())
            })
            .middleware(budget)
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "cut off");
        assert_eq!(charges.lines(), ["small 1000000 1"], "{stream}");
        assert_eq!(log.lines(), ["1"]);

        let strict = Budget::builder().tokens(10).build()?;
        let error = model.run(request).middleware(strict).await.unwrap_err();
        assert_eq!(error.to_string(), "the budget is exceeded: 1000009 tokens (limit: 10)");
    }
    // If the provider fails before it reports tokens, nothing is charged.
    let budget = unlimited()?;
    let charges = charges_of(&budget)?;
    let cut = Reply::text("A").then_error(Error::new("cut off"));
    ChatModel::new(ScriptedModel::new("small").reply(cut))?.run("Say A.".into()).middleware(budget).await.unwrap_err();
    assert!(charges.lines().is_empty());
    Ok(())
}

// A9
#[tokio::test]
async fn token_counts_that_stages_hold_back_or_remove_are_charged() -> Result<()> {
    let holds = hooks_fn("holds", |hooks| {
        hooks.chunks(|| {
            let mut held = Vec::new();
            move |chunks: &mut Chunks, _: &RunContext| {
                held.append(&mut chunks.deltas);
                if chunks.ended {
                    chunks.deltas.append(&mut held);
                }
                Ok(())
            }
        });
    });
    let removes = hooks_fn("removes", |hooks| {
        hooks.chunks(|| {
            |chunks: &mut Chunks, _: &RunContext| {
                chunks.deltas.retain(|delta| matches!(delta, Delta::Text(_)));
                Ok(())
            }
        });
    });
    let changes = hooks_fn("changes", |hooks| {
        hooks.chunks(|| {
            |chunks: &mut Chunks, _: &RunContext| {
                for delta in &mut chunks.deltas {
                    if let Delta::Usage(usage) = delta {
                        *usage = Usage::new(7, 0);
                    }
                }
                Ok(())
            }
        });
    });
    for (hooks, stops, tokens) in [(holds, true, 5), (removes, false, 5), (changes, false, 7)] {
        let reply = Reply::text("one two").in_pieces(3).usage(Usage::new(4, 1));
        let agent = Agent::builder("tester", ChatModel::new(ScriptedModel::new("small").reply(reply))?).build()?;
        let budget = unlimited()?;
        let charges = charges_of(&budget)?;
        let run = agent.ask("Count.").with(hooks).middleware(budget);
        // With `holds`, all pieces arrive at the end. The stop then drops the pieces after the first, including the
        // token counts.
        let answer = run
            .on_token(move |token| {
                if stops {
                    token.stop();
                }
            })
            .await?;
        assert_eq!(charges.lines(), [format!("small {tokens} 0")]);
        assert_eq!(answer.usage.total(), tokens);
    }
    Ok(())
}

#[tokio::test]
async fn a_cached_response_keeps_its_cost_and_is_not_charged_again() -> Result<()> {
    let reply = Reply::text("A").usage(Usage::new(MILLION, 0));
    let model = ChatModel::new(ScriptedModel::new("small").reply(reply))?
        .price(per_million(1, 1))
        .middleware(Cache::json().build()?);
    let agent = Agent::builder("tester", model).build()?;
    for expected in [vec!["small 1000000 1"], vec![]] {
        let budget = unlimited()?;
        let charges = charges_of(&budget)?;
        let answer = agent.ask("Say A.").middleware(budget).await?;
        assert_eq!((answer.cost, charges.lines()), (Some(1.into()), expected.into_iter().map(String::from).collect()));
    }
    Ok(())
}

#[tokio::test]
async fn a_cost_budget_denies_a_run_with_an_unknown_price_unless_unknown_prices_are_free() -> Result<()> {
    let agent = Agent::builder("tester", ChatModel::new(script())?).tool(shout()).build()?;
    let budget = Budget::builder().cost(100.into()).build()?;
    let error = agent.ask("Shout a.").middleware(budget).await.unwrap_err();
    assert!(error.is_denied(), "{error}");
    assert_eq!(error.to_string(), "the price of `small` is not known");

    let agent = Agent::builder("tester", ChatModel::new(script())?).tool(shout()).build()?;
    let budget = Budget::builder().cost(100.into()).unknown_prices(UnknownPrice::Free).build()?;
    assert_eq!(agent.ask("Shout a.").middleware(budget).await?.text(), "A");
    Ok(())
}

#[tokio::test]
async fn an_unknown_price_in_a_sub_agent_denies_the_run_that_has_the_budget() -> Result<()> {
    let budget = || Budget::builder().cost(100.into()).build();
    let usage = || Usage::new(MILLION, 0);
    let calls = Reply::calls([("inner", json!({"task": "Shout a."}))]);
    for is_outer in [true, false] {
        let inner = ScriptedModel::new("small").reply(Reply::text("A").usage(usage()));
        let inner = Agent::builder("inner", ChatModel::new(inner)?);
        let inner = if is_outer { inner } else { inner.middleware(budget()?) }.build()?;
        let outer = ScriptedModel::new("large").reply(calls.clone()).text("done");
        let outer = ChatModel::new(outer)?.price(per_million(1, 1));
        let agent = Agent::builder("outer", outer).tool(inner.as_tool("Shouts")).build()?;
        let run = agent.ask("Shout a.");
        if is_outer {
            let error = run.middleware(budget()?).await.unwrap_err();
            assert!(error.is_denied(), "{error:?}");
            assert_eq!(error.to_string(), "the price of `small` is not known");
        } else {
            let answer = run.await?;
            assert_eq!(results(&answer.messages), ["!denied by budget: the price of `small` is not known"]);
        }
    }
    Ok(())
}
