//! Built-in middlewares on both sides of a handoff.

use emitree_agent::kinds::Handoff;
use emitree_agent::{Agent, AgentBuilder, AgentRun, ChatModel, ChatOptions, Message, ScriptedModel, Session};
use emitree_agent_kit::built_in::{CallLimit, Guardrail, Judgement, LargeResults, Then};
use emitree_middleware::values::{KeyValues, MemoryValues};
use emitree_runtime::Result;
use serde_json::json;

use crate::support::{Log, results, shout, texts};

fn agent(name: &str, script: &ScriptedModel) -> AgentBuilder {
    Agent::builder(name, ChatModel::new(script.clone()).expect("a model"))
}

fn transfers(to: &str) -> ScriptedModel {
    ScriptedModel::new("source").call(format!("transfer_to_{to}"), json!({"reason": "invoices"}))
}

/// A stage that makes text loud, which can be seen if it is done twice.
// A18
#[tokio::test]
async fn a_guardrail_of_the_source_changes_the_answer_of_the_target_once() -> Result<()> {
    for streams in [false, true] {
        let log = Log::default();
        let to = log.clone();
        let louder = Guardrail::output("louder", move |text, _| {
            to.add(text);
            let text = format!("{text}!");
            Box::pin(async move { Ok(Judgement::Modify(text)) })
        });
        let billing = agent("billing", &ScriptedModel::new("clerk").text("yes")).build()?;
        let support = agent("support", &transfers("billing")).handoff(Handoff::to(&billing, "Invoices"));
        let support = support.with(louder).options(ChatOptions::new().stream(streams)).build()?;
        let session = Session::new();
        assert_eq!(support.ask("go").session(&session).await?.text(), "yes!");
        assert_eq!(log.lines(), ["yes"]);
        assert_eq!(texts(&session).last().map(String::as_str), Some("yes!"));
    }
    Ok(())
}

// A18
#[tokio::test]
async fn the_question_passes_the_input_functions_and_guards_of_the_target() -> Result<()> {
    let refuses = Guardrail::input("no_cards", |text, _| {
        let has_card = text.contains("4111");
        Box::pin(async move { Ok(if has_card { Judgement::block("a card") } else { Judgement::Allow }) })
    });
    let clerk = ScriptedModel::new("clerk").text("paid");
    let billing = agent("billing", &clerk).with(refuses).build()?;
    for (question, expected) in [("Is it paid?", "paid"), ("My card is 4111.", "!denied by no_cards: a card")] {
        let script = transfers("billing").text("Never send a card.");
        let support = agent("support", &script).handoff(Handoff::to(&billing, "Invoices")).build()?;
        let session = Session::new();
        session.extend([Message::user("My card is 4111."), Message::assistant("Never send a card.")])?;
        let answer = support.ask(question).session(&session).await?;
        assert_eq!(results(&answer.messages), [expected]);
    }
    // The model of the target received the whole conversation, once.
    let shown: Vec<_> = clerk.requests().iter().map(|request| request.messages.len()).collect();
    assert_eq!(shown, [3]);
    Ok(())
}

// A17: the session of the target ends with the target's run.
#[tokio::test]
async fn no_large_result_of_the_target_stays_in_the_store() -> Result<()> {
    let store = MemoryValues::new();
    let clerk = ScriptedModel::new("clerk").call("shout", json!({"text": "a".repeat(200)})).text("done");
    let large = LargeResults::over_bytes(100).in_store(store.clone());
    let billing = agent("billing", &clerk).tool(shout()).with(large).build()?;
    let support = agent("support", &transfers("billing")).handoff(Handoff::to(&billing, "Invoices")).build()?;
    assert_eq!(support.ask("go").session(&Session::new()).await?.text(), "done");
    assert!(clerk.requests()[1].messages[2].tool_results().any(|result| result.response.get("result_id").is_some()));
    assert!(store.keys(None).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_last_agent_is_the_one_that_gave_the_answer_of_the_run() -> Result<()> {
    let calls = [("shout", json!({"text": "a"})), ("transfer_to_billing", json!({"reason": "?"}))];
    let limit = "The limit of 0 calls of `shout` is reached.";
    for (reversed, expected) in [(false, (limit, "support")), (true, ("paid", "billing"))] {
        let mut calls = calls.clone();
        if reversed {
            calls.reverse();
        }
        let billing = agent("billing", &ScriptedModel::new("clerk").text("paid")).build()?;
        let support = agent("support", &ScriptedModel::new("source").calls(calls)).tool(shout());
        let support = support.with(CallLimit::tool("shout").per_run(0).then(Then::Finish));
        let answer = support.handoff(Handoff::to(&billing, "Invoices")).build()?.ask("go").await?;
        assert_eq!((answer.text().as_str(), answer.last_agent()), expected);
    }
    Ok(())
}
