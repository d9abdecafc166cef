//! Transfers of a conversation to another agent.

use std::sync::{Arc, OnceLock};

use emitree_agent::kinds::{HandedOff, Handoff};
use emitree_agent::{
    Agent, AgentBuilder, AgentRun, ChatModel, ChatOptions, Chunks, Delta, FinishReason, HooksFn, Message, Reply, Role,
    ScriptedModel, Session, hooks_fn, joins,
};
use emitree_middleware::Budget;
use emitree_runtime::{AbortHandle, Error, Result, RunContext, for_tree, map_output};
use serde_json::json;

use crate::support::{Log, NotForbidden, assert_valid, results, shout, texts};

fn agent(name: &str, script: &ScriptedModel) -> AgentBuilder {
    Agent::builder(name, ChatModel::new(script.clone()).expect("a model"))
}

fn transfers(to: &str) -> ScriptedModel {
    ScriptedModel::new("source").call(format!("transfer_to_{to}"), json!({"reason": "invoices"}))
}

/// A stage that makes text loud, which can be seen if it is done twice.
fn marks(id: &'static str) -> HooksFn {
    hooks_fn(id, move |hooks| {
        hooks.chunks(move || {
            move |chunks: &mut Chunks, _: &RunContext| {
                for delta in &mut chunks.deltas {
                    if let Delta::Text(text) = delta {
                        *text = text.replace("secret", "******");
                    }
                }
                if chunks.ended {
                    chunks.deltas.push(Delta::Text(format!("<{id}>")));
                }
                Ok(())
            }
        });
    })
}

#[tokio::test]
async fn after_a_handoff_the_answer_has_the_finish_reason_of_the_target() -> Result<()> {
    for stages in [Vec::new(), vec![marks("source")]] {
        let cut = Reply::deltas([Delta::Text("You have".into()), Delta::Finish(FinishReason::Length)]);
        let clerk = ScriptedModel::new("clerk").reply(cut);
        let billing = agent("billing", &clerk).build()?;
        let support = agent("support", &transfers("billing")).handoff(Handoff::to(&billing, "Invoices"));
        let support = stages.into_iter().fold(support, AgentBuilder::with).build()?;
        let session = Session::new();
        let answer = support.ask("My invoice is wrong.").session(&session).await?;
        assert_eq!((answer.last_agent(), &answer.finish_reason), ("billing", &Some(FinishReason::Length)));
        let history = assert_valid(&session);
        assert_eq!(history.messages()[3].finish_reason, Some(FinishReason::Length));
    }
    Ok(())
}

#[tokio::test]
async fn the_target_answers_with_the_conversation_and_either_agent_goes_on_with_the_session() -> Result<()> {
    let clerk = ScriptedModel::new("clerk").text("You have paid twice.").text("Until Friday.");
    let billing = agent("billing", &clerk).prompt("You know invoices.").build()?;
    let script = transfers("billing").text("Anything else?");
    let support = agent("support", &script).prompt("You help.").handoff(Handoff::to(&billing, "Invoices")).build()?;
    let (session, log) = (Session::new(), Log::default());
    let to = log.clone();
    let answer = support
        .ask("My invoice is wrong.")
        .session(&session)
        .on("handoff", move |event: &mut HandedOff, _| to.add(format!("{event:?}")))
        .await?;
    assert_eq!((answer.text().as_str(), answer.last_agent()), ("You have paid twice.", "billing"));
    assert_eq!(log.lines(), [r#"HandedOff { from: "support", to: "billing", reason: "invoices" }"#]);
    let offered = &script.requests()[0].tools;
    assert_eq!((offered[0].name.as_str(), offered[0].description.as_str()), ("transfer_to_billing", "Invoices"));
    // The target receives neither the prompt of the source nor the open call.
    let request = &clerk.requests()[0];
    assert_eq!(request.system.as_deref(), Some("You know invoices."));
    assert_eq!(request.messages.iter().map(|message| message.text()).collect::<Vec<_>>(), ["My invoice is wrong."]);

    let history = assert_valid(&session);
    let roles: Vec<_> = history.messages().iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::Assistant]);
    assert_eq!(results(history.messages()), ["You have paid twice."]);
    assert_eq!(history.messages()[3].text(), "You have paid twice.");

    // Either agent goes on, also with a session that was stored.
    let stored = serde_json::to_string(&session)?;
    let answer = billing.ask("When do I get it back?").session(&session).await?;
    assert_eq!((answer.text().as_str(), answer.last_agent()), ("Until Friday.", "billing"));
    let restored: Session = serde_json::from_str(&stored)?;
    let answer = support.ask("Thanks.").session(&restored).await?;
    assert_eq!((answer.text().as_str(), answer.last_agent()), ("Anything else?", "support"));
    assert_eq!(texts(&restored).len(), 6);
    Ok(())
}

#[tokio::test]
async fn agents_hand_a_conversation_to_each_other_streamed_or_not() -> Result<()> {
    for streams in [false, true] {
        let cell: Arc<OnceLock<Agent>> = Arc::default();
        let back = Arc::clone(&cell);
        let clerk = ScriptedModel::new("clerk").call("transfer_to_support", json!({"reason": "no invoice"}));
        let billing = agent("billing", &clerk)
            .handoff(Handoff::later("support", "All else", move || back.get().cloned()))
            .with(marks("billing"))
            .build()?;
        let script = transfers("billing").reply(Reply::text("It is secret.").in_pieces(20));
        let support = agent("support", &script).handoff(Handoff::to(&billing, "Invoices")).with(marks("support"));
        cell.set(support.build()?).expect("an empty cell");
        let support = cell.get().expect("an agent");
        let (tokens, session) = (Log::default(), Session::new());
        let to = tokens.clone();
        let mut run = support.ask("Hello?").session(&session);
        if streams {
            run = run.on_token(move |token| to.add(token.text()));
        }
        let answer = run.await?;
        // The stages of each agent are called once, and the stages of the agent that answers come first.
        assert_eq!(answer.text(), "It is ******.<support><billing>", "streams {streams}");
        assert_eq!(answer.last_agent(), "support");
        // The stages also mark the replies with the calls.
        let streamed = if streams { "<support><billing><support>It is ******.<support><billing>" } else { "" };
        assert_eq!(tokens.lines().concat(), streamed);
        assert_eq!(texts(&session).last().map(String::as_str), Some("It is ******.<support><billing>"));
    }
    Ok(())
}

#[tokio::test]
async fn a_stage_and_a_guard_of_the_source_see_each_reply_of_the_target() -> Result<()> {
    // A stage that a run above has bound is not appended a second time.
    let clerk = ScriptedModel::new("clerk").text("a secret").text("a secret").text("the forbidden word");
    let billing = agent("billing", &clerk).build()?;
    let source = |script: &ScriptedModel| agent("support", script).handoff(Handoff::to(&billing, "Invoices"));
    let support = source(&transfers("billing")).build()?;
    let answer = support.ask("go").middleware(for_tree(joins(marks("above")))).await?;
    assert_eq!(answer.text(), "a ******<above>");
    let answer = source(&transfers("billing")).build()?.ask("go").with(marks("run")).await?;
    assert_eq!(answer.text(), "a ******<run>");

    let log = Log::default();
    let to = log.clone();
    let guards = hooks_fn("guards", move |hooks| {
        hooks.model_call(|stack| stack.guard(NotForbidden(to.clone())));
    });
    let support = source(&transfers("billing").text("I cannot say.")).with(guards).build()?;
    let answer = support.ask("go").await?;
    assert_eq!((answer.text().as_str(), answer.last_agent()), ("I cannot say.", "support"));
    assert!(log.lines().contains(&"guard the forbidden word".to_owned()));
    assert_eq!(results(&answer.messages), ["!denied by not_forbidden: a forbidden word"]);
    Ok(())
}

#[tokio::test]
async fn an_answer_that_the_target_has_changed_passes_the_stages_of_the_source() -> Result<()> {
    for streams in [false, true] {
        let clerk = ScriptedModel::new("clerk").text("yes");
        let reveal = map_output(|output: &mut emitree_agent::AgentOutput, _: &RunContext| {
            output.answer = Message::assistant("the secret");
            Ok(())
        });
        let billing = agent("billing", &clerk).middleware(reveal).build()?;
        let support = agent("support", &transfers("billing")).handoff(Handoff::to(&billing, "Invoices"));
        let support = support.with(marks("support")).options(ChatOptions::new().stream(streams)).build()?;
        assert_eq!(support.ask("go").await?.text(), "the ******<support>");
    }
    Ok(())
}

#[tokio::test]
async fn the_first_transfer_of_a_turn_wins_and_no_other_call_is_executed() -> Result<()> {
    let clerk = ScriptedModel::new("clerk").text("I know.");
    let [billing, sales] = ["billing", "sales"].map(|name| agent(name, &clerk).build().expect("an agent"));
    let reason = json!({"reason": "?"});
    let calls = [
        ("shout", json!({"text": "a"})),
        ("transfer_to_sales", json!({"reason": 7})),
        ("transfer_to_billing", reason.clone()),
        ("transfer_to_sales", reason),
    ];
    let support = agent("support", &ScriptedModel::new("source").calls(calls))
        .tool(shout())
        .handoff(Handoff::to(&billing, "Invoices"))
        .handoff(Handoff::to(&sales, "Offers"))
        .build()?;
    let answer = support.ask("go").await?;
    assert_eq!((answer.text().as_str(), answer.last_agent()), ("I know.", "billing"));
    let other = "!not executed: another call of this turn transfers the conversation";
    let wrong = "!the arguments of `transfer_to_sales` are invalid: at `reason`: invalid type: integer `7`, expected a \
                 string";
    assert_eq!(results(&answer.messages), [other, wrong, "I know.", other]);
    Ok(())
}

#[tokio::test]
async fn a_transfer_that_fails_is_an_error_for_the_model_which_goes_on() -> Result<()> {
    let failing = agent("billing", &ScriptedModel::new("clerk").error(Error::new("broken"))).build()?;
    let empty = |messages: &mut Vec<Arc<Message>>| messages.clear();
    let cases = [
        (Handoff::to(&failing, "Invoices"), "!broken"),
        (Handoff::to(&failing, "Invoices").filter(empty), "!the input of the agent `billing` has no messages"),
        (
            Handoff::to(&failing, "Invoices").filter(|messages| {
                let result = Message::tool([emitree_agent::ToolResult::new("1", 1)]);
                messages.push(Arc::new(result));
            }),
            "!message 1 has a result for the id `1`, but the message before it has no such call, or the result occurs \
             twice",
        ),
        (Handoff::later("billing", "Invoices", || None), "!the agent `billing` has not been built yet"),
    ];
    for (handoff, expected) in cases {
        let support = agent("support", &transfers("billing").text("Sorry.")).handoff(handoff).build()?;
        let answer = support.ask("go").await?;
        assert_eq!((answer.text().as_str(), answer.last_agent()), ("Sorry.", "support"));
        assert_eq!(results(&answer.messages), [expected]);
    }
    Ok(())
}

#[tokio::test]
async fn transfers_in_a_row_are_limited() -> Result<()> {
    let cell: Arc<OnceLock<Agent>> = Arc::default();
    let back = Arc::clone(&cell);
    let script = ScriptedModel::by("loop", |request| {
        let refused = request.messages.iter().any(|message| message.tool_results().any(|result| result.is_error));
        if refused { Reply::text("Enough.") } else { Reply::calls([("transfer_to_a", json!({"reason": "?"}))]) }
    });
    let a = agent("a", &script).handoff(Handoff::later("a", "Again", move || back.get().cloned())).build()?;
    cell.set(a.clone()).expect("an empty cell");
    assert_eq!(a.ask("go").await?.text(), "Enough.");
    // One run of its own, and five that were transferred; the last is asked twice.
    assert_eq!(script.requests().len(), 7);
    let refused = script.requests()[6].messages.last().expect("a result").tool_results().next().cloned();
    let expected = "the conversation was transferred 5 times in a row, which is the limit (`max_handoffs`): answer it \
                    yourself";
    assert_eq!(refused.expect("a result").response, expected);

    let error = agent("b", &script).handoff(Handoff::to(&a, "x")).max_handoffs(0).build().expect_err("no transfer");
    assert_eq!(error.to_string(), "`max_handoffs(0)` allows the agent `b` no transfer: remove its handoffs");
    let twice = agent("b", &script).handoff(Handoff::to(&a, "x")).handoff(Handoff::to(&a, "y")).build();
    assert_eq!(twice.expect_err("one name").to_string(), "the agent `b` has two tools called `transfer_to_a`");
    let unnamed = agent("b", &script).handoff(Handoff::later("no name", "x", || None)).build().expect_err("a name");
    assert!(unnamed.to_string().contains("transfer_to_no name"), "{unnamed}");
    Ok(())
}

#[tokio::test]
async fn a_gate_a_budget_and_an_abort_above_reach_the_target() -> Result<()> {
    let denies = hooks_fn("no_transfer", |hooks| {
        hooks.on_gate_each(|gated, _| {
            if gated.call.name == "shout" {
                gated.deny("no_shouting", "be quiet");
            }
        });
    });
    let clerk = || ScriptedModel::new("clerk").call("shout", json!({"text": "a"})).text("done");
    let source = |clerk: &ScriptedModel| {
        let billing = agent("billing", clerk).tool(shout()).build()?;
        agent("support", &transfers("billing").text("Sorry.")).handoff(Handoff::to(&billing, "Invoices")).build()
    };
    let script = clerk();
    source(&script)?.ask("go").middleware(for_tree(joins(denies))).await?;
    assert_eq!(results(&script.requests()[1].messages), ["!denied by no_shouting: be quiet"]);

    let script =
        ScriptedModel::new("clerk").reply(Reply::text("expensive").usage(emitree_agent::Usage::new(1_000, 1_000)));
    let budget = Budget::builder().tokens(100).build()?;
    let error = source(&script)?.ask("go").middleware(for_tree(budget)).await.expect_err("too expensive");
    assert!(error.is_halted(), "{error}");

    let handle = AbortHandle::new();
    let abort = handle.clone();
    let script = ScriptedModel::by("clerk", move |_| {
        abort.abort("enough");
        Reply::text("too late").slow(std::time::Duration::from_secs(60), std::time::Duration::ZERO)
    });
    let error = source(&script)?.ask("go").abort_on(&handle).await.expect_err("an abort");
    assert!(error.is_aborted());
    Ok(())
}
