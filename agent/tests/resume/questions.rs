//! Questions about calls, and their answers (A23).

mod lasting;
mod nested;

use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{
    Agent, AgentBuilder, AgentContext, AgentRun, AnswerError, AnswerUnused, ChatModel, Hooks, Message, MessageAdded,
    MessageReplaced, QuestionAnswered, QuestionAsked, ScriptedModel, Session, Tool, hooks_fn, tool_fn,
};
use emitree_middleware::Runs;
use emitree_middleware::approval::{Approval, Decision, Request};
use emitree_runtime::{Answers, Error, Interrupt, Result, RunContext, UnmatchedAnswers, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{Log, assert_valid, results};

#[derive(Deserialize, JsonSchema)]
struct Payment {
    to: String,
    amount: u32,
}

fn payment(to: &str, amount: u32) -> Value {
    json!({"to": to, "amount": amount})
}

/// A tool that logs each payment.
fn pay(log: &Log) -> Tool {
    let log = log.clone();
    tool_fn("pay", "Pays", move |Payment { to, amount }: Payment, _: RunContext| {
        log.add(format!("{to} {amount}"));
        async move { Ok(format!("paid {to}")) }
    })
    .expect("a tool")
}

fn builder(script: &ScriptedModel, log: &Log) -> AgentBuilder {
    let noted = log.clone();
    let note = tool_fn("note", "Notes", move |_: crate::support::Text, _: RunContext| {
        noted.add("note");
        async { Ok("noted") }
    });
    Agent::builder("cashier", ChatModel::new(script.clone()).expect("a model")).tool(note).tool(pay(log))
}

/// The calls of the issue: a note, and three payments, two of which are equal.
fn bills() -> ScriptedModel {
    let calls = [
        ("note", json!({"text": "x"})),
        ("pay", payment("bob", 5)),
        ("pay", payment("bob", 5)),
        ("pay", payment("eve", 9)),
    ];
    ScriptedModel::new("test").calls(calls).text("Done.")
}

fn approved(builder: AgentBuilder) -> Agent {
    let approval = Approval::by_interrupt().runs(Runs::named("pay"));
    builder.middleware(for_tree(approval)).build().expect("an agent")
}

/// Stores a session and reads it again, as another process does.
fn stored(session: &Session) -> Session {
    assert_valid(session);
    let json = serde_json::to_string(session).expect("JSON");
    serde_json::from_str(&json).expect(&json)
}

fn ids(session: &Session) -> Vec<String> {
    session.questions().into_iter().map(|question| question.id).collect()
}

#[tokio::test]
async fn questions_are_in_the_session_and_each_answer_belongs_to_one_call() -> Result<()> {
    let (log, script) = (Log::default(), bills());
    let agent = approved(builder(&script, &log));
    let session = Session::with_id("order-17")?;
    let error = agent.ask("Pay.").session(&session).await.expect_err("questions");
    assert!(error.is_interrupted());
    assert_eq!(log.lines(), ["note"]);
    let session = stored(&session);
    let ids = ids(&session);
    assert_eq!(ids.len(), 3);
    assert!(ids[0] != ids[1], "two equal calls are two questions");
    assert!(ids[0].starts_with("order-17/1/1/pay-"), "{ids:?}");
    assert_eq!(Request::of_interrupt(&session.questions()[2])?.input, payment("eve", 9));

    // One of the equal calls is approved, and the last one rejected.
    session.answer(&ids[1], Decision::Approve).await?;
    session.answer(&ids[2], emitree_runtime::Answer::from(Decision::reject("no")).by("ada")).await?;
    let error = agent.resume(&session).await.expect_err("one question is left");
    assert!(error.is_interrupted());
    assert_eq!(log.lines(), ["note", "bob 5"]);
    let session = stored(&session);
    assert_eq!(self::ids(&session), ids[..1]);
    assert_eq!(script.requests().len(), 1);

    session.answer(&ids[0], Decision::Approve).await?;
    let answer = agent.resume(&session).await?;
    assert_eq!((answer.text().as_str(), answer.turns), ("Done.", 2));
    assert_eq!(log.lines(), ["note", "bob 5", "bob 5"]);
    let results = results(session.history().messages());
    assert_eq!(results, ["noted", "paid bob", "paid bob", "!denied by approval: no"]);
    assert_eq!(session.questions(), []);
    Ok(())
}

#[tokio::test]
async fn an_answer_serves_its_call_only() -> Result<()> {
    let script = ScriptedModel::new("test").call("pay", payment("bob", 5)).call("pay", payment("bob", 5));
    let log = Log::default();
    let agent = approved(builder(&script, &log));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    session.answer(&ids(&session)[0], Decision::Approve).await?;
    let first = ids(&session);
    agent.resume(&session).await.expect_err("the later, equal call is a question of its own");
    assert_eq!(log.lines(), ["bob 5"]);
    assert_eq!(session.questions().len(), 1);
    assert_ne!(ids(&session), first);
    Ok(())
}

#[tokio::test]
async fn unknown_second_and_disallowed_answers_change_nothing() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let approval = Approval::by_interrupt().runs(Runs::named("pay")).without_edits();
    let agent = builder(&script, &log).middleware(for_tree(approval)).build()?;
    let session = Session::new();
    let error = session.answer("x", Decision::Approve).await.expect_err("unknown").to_string();
    assert_eq!(error, "there is no question with the id `x`; no question is open");
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    let id = ids(&session).remove(0);
    let error = session.answer("x", Decision::Approve).await.expect_err("unknown").to_string();
    assert_eq!(error, format!("there is no question with the id `x`; open are `{id}`"));

    let edit = Decision::Edit(payment("bob", 1));
    let error = session.answer(&id, edit).await.expect_err("not allowed").to_string();
    assert!(error.contains("does not allow the answer {\"edit\":") && error.contains("\"approve\""), "{error}");
    assert_eq!(session.questions().len(), 1);

    session.answer(&id, emitree_runtime::Answer::from(Decision::Approve).by("ada")).await?;
    let error = session.answer(&id, Decision::reject("no")).await.expect_err("a second answer");
    assert!(matches!(&error, AnswerError::Answered { first, .. } if first.by.as_deref() == Some("ada")), "{error}");
    let error = error.to_string();
    assert!(error.starts_with(&format!("the question `{id}` was answered with \"approve\" by ada at 20")), "{error}");
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["bob 5"]);
    Ok(())
}

#[tokio::test]
async fn an_edit_passes_every_gate_again_and_the_result_says_what_was_executed() -> Result<()> {
    let calls = [("pay", payment("bob", 5)), ("pay", payment("eve", 9))];
    let (log, script) = (Log::default(), ScriptedModel::new("test").calls(calls).text("Done."));
    let limit = hooks_fn("limit", |hooks: &mut Hooks| {
        hooks.on_gate_each(|gated, _| {
            let emitree_agent::Arguments::Json(arguments) = &gated.call.arguments else { return };
            if arguments["amount"].as_u64() > Some(100) {
                gated.deny("limit", "more than 100");
            }
        });
    });
    let agent = approved(builder(&script, &log).with(limit));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("questions");
    let session = stored(&session);
    let ids = ids(&session);
    session.answer(&ids[0], Decision::Edit(payment("bob", 500))).await?;
    session.answer(&ids[1], Decision::Edit(payment("eve", 8))).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["eve 8"]);
    let results = results(session.history().messages());
    assert_eq!(results[0], "!denied by limit: more than 100");
    let executed: Value = serde_json::from_str(&results[1])?;
    assert_eq!(executed, json!({"executed_with": payment("eve", 8), "result": "paid eve"}));
    Ok(())
}

#[tokio::test]
async fn a_live_approval_makes_two_equal_calls_two_questions_and_its_edit_passes_the_gates() -> Result<()> {
    let calls = [("pay", payment("bob", 5)), ("pay", payment("bob", 5)), ("pay", payment("eve", 9))];
    let (log, script) = (Log::default(), ScriptedModel::new("test").calls(calls).text("Done."));
    let limit = hooks_fn("limit", |hooks: &mut Hooks| {
        hooks.on_gate_each(|gated, _| {
            let emitree_agent::Arguments::Json(arguments) = &gated.call.arguments else { return };
            if arguments["amount"].as_u64() > Some(100) {
                gated.deny("limit", "more than 100");
            }
        });
    });
    let asked = Log::default();
    let of_person = asked.clone();
    let approval = Approval::by(move |request: Request| {
        of_person.add(request.input["to"].as_str().unwrap_or_default());
        let is_eve = request.input["to"] == "eve";
        async move { Ok(if is_eve { Decision::Edit(payment("eve", 500)) } else { Decision::Edit(payment("bob", 4)) }) }
    });
    let agent = builder(&script, &log).with(limit).middleware(for_tree(approval.runs(Runs::named("pay")))).build()?;
    let session = Session::new();
    assert_eq!(agent.ask("Pay.").session(&session).await?.text(), "Done.");
    assert_eq!(asked.lines(), ["bob", "bob", "eve"]);
    assert_eq!(log.lines(), ["bob 4", "bob 4"]);
    assert_eq!(results(session.history().messages())[2], "!denied by limit: more than 100");
    Ok(())
}

#[tokio::test]
async fn an_edit_that_does_not_fit_opens_the_question_again_with_the_answer_and_the_reason() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let agent = approved(builder(&script, &log));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    let before = ids(&session);
    session.answer(&before[0], Decision::Edit(json!({"to": 4}))).await?;
    let error = agent.resume(&session).await.expect_err("the question is open again");
    assert!(error.is_interrupted());
    let session = stored(&session);
    assert_eq!((ids(&session), log.lines()), (before.clone(), vec![]));
    let data = &session.questions()[0].data;
    assert_eq!(data["refused"]["answer"]["value"], json!({"edit": {"to": 4}}));
    assert!(data["refused"]["reason"].as_str().is_some_and(|reason| reason.contains("at `to`")), "{data}");

    session.answer(&before[0], Decision::Approve).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["bob 5"]);
    Ok(())
}

#[tokio::test]
async fn a_person_responds_instead_of_the_tool() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let agent = approved(builder(&script, &log));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    session.answer(&ids(&session)[0], Decision::Respond(json!("I paid him in cash."))).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), Vec::<String>::new());
    assert_eq!(results(session.history().messages()), ["I paid him in cash."]);
    Ok(())
}

/// A gate that asks about payments.
fn cashier(log: &Log) -> impl emitree_agent::AgentMiddleware + use<> {
    let log = log.clone();
    hooks_fn("cashier", move |hooks: &mut Hooks| {
        let log = log.clone();
        hooks.on_gate_each(move |gated, _| {
            if gated.call.name == "pay" {
                log.add("asks");
                let question = Interrupt::new("large", json!({"call": gated.call.name}));
                if gated.ask::<bool>(question)? == Some(false) {
                    gated.deny("cashier", "refused");
                }
            }
            Ok(())
        });
    })
}

#[tokio::test]
async fn a_gate_asks_and_is_called_again_and_gates_before_it_are_not() -> Result<()> {
    let calls = [("pay", payment("bob", 5)), ("pay", payment("eve", 9)), ("note", json!({"text": "x"}))];
    let (log, script) = (Log::default(), ScriptedModel::new("test").calls(calls).text("Done."));
    let gates = Log::default();
    let logs = |name: &'static str| {
        let gates = gates.clone();
        hooks_fn(name, move |hooks: &mut Hooks| {
            let gates = gates.clone();
            hooks.on_gate(move |batch, _| gates.add(format!("{name} {}", batch.open().count())));
        })
    };
    let agent = builder(&script, &log).with(logs("before")).with(cashier(&gates)).with(logs("behind")).build()?;
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("questions");
    assert_eq!(
        (gates.lines().join(", ").as_str(), log.lines()),
        ("before 3, asks, asks, behind 1", vec!["note".to_owned()])
    );
    let session = stored(&session);
    let ids = ids(&session);
    session.answer(&ids[0], json!(false)).await?;
    session.answer(&ids[1], json!("yes")).await?;
    agent.resume(&session).await.expect_err("`yes` is no bool");
    assert_eq!(log.lines(), ["note"]);
    assert_eq!(self::ids(&session), ids[1..]);
    session.answer(&ids[1], json!(true)).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(gates.lines()[4..].join(", "), "asks, asks, behind 0, asks, behind 1");
    assert_eq!(log.lines(), ["note", "eve 9"]);
    assert_eq!(results(session.history().messages())[..2], ["!denied by cashier: refused", "paid eve"]);
    Ok(())
}

#[tokio::test]
async fn answers_of_another_turn_match_no_question_and_are_reported() -> Result<()> {
    let log = Log::default();
    let script = ScriptedModel::new("test").call("pay", payment("bob", 5)).call("pay", payment("bob", 5)).text("Done.");
    let agent = approved(builder(&script, &log));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    let first = ids(&session).remove(0);

    // A new question of the session would be right to answer with `session.answer`.
    let answers = Answers::new();
    answers.answer(&*first, Decision::Approve);
    let seen = Log::default();
    let sees = seen.clone();
    let run = agent.ask("Pay again.").session(&session).extension(answers.clone());
    let run = run.observe("unmatched_answers", move |event: &UnmatchedAnswers, _| {
        assert_ne!(event.question, event.ids[0]);
        sees.add(event.ids.join(", "));
    });
    assert!(run.await.expect_err("another question").is_interrupted());
    assert_eq!((seen.lines(), log.lines()), (vec![first.clone()], vec![]));

    // The answer to the question of this turn is found in the same extension.
    let second = ids(&session).remove(0);
    answers.answer(second, Decision::Approve);
    let sees = seen.clone();
    let run = agent.resume(&session).extension(answers);
    let run = run.observe("unmatched_answers", move |_: &UnmatchedAnswers, _| sees.add("again"));
    assert_eq!(run.await?.text(), "Done.");
    assert_eq!((seen.lines(), log.lines()), (vec![first], vec!["bob 5".to_owned()]));
    Ok(())
}

#[tokio::test]
async fn the_answers_of_a_session_are_not_reported_if_another_call_asks() -> Result<()> {
    let (log, script) = (Log::default(), bills());
    let agent = approved(builder(&script, &log));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("questions");
    session.answer(&ids(&session)[1], Decision::Approve).await?;
    let seen = Log::default();
    let sees = seen.clone();
    let run = agent.resume(&session).observe("unmatched_answers", move |_: &UnmatchedAnswers, _| sees.add("x"));
    assert!(run.await.expect_err("two questions are left").is_interrupted());
    assert_eq!(seen.lines(), [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_call_whose_question_nobody_asks_again_is_not_executed() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)));
    let agent = builder(&script, &log).with(cashier(&Log::default())).build()?;
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    let session = stored(&session);
    session.answer(&ids(&session)[0], json!(true)).await?;

    // A new build, without the middleware.
    let agent = builder(&ScriptedModel::new("test").text("Done."), &log).build()?;
    let unused = Log::default();
    let seen = unused.clone();
    let run = agent.resume(&session).on("unused_answer", move |event: &mut AnswerUnused, _| seen.add(&event.by));
    assert_eq!(run.await?.text(), "Done.");
    assert_eq!((log.lines(), unused.lines()), (vec![], vec!["cashier".to_owned()]));
    let refused =
        "!not executed: `cashier` had asked the question `large` about this call, and nobody has asked it again";
    assert_eq!(results(session.history().messages()), [refused]);
    Ok(())
}

#[tokio::test]
async fn code_that_raises_its_question_again_without_reading_the_answer_does_not_wait_for_ever() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let raw = hooks_fn("raw", |hooks: &mut Hooks| {
        hooks.on_gate_each(|_, _| Err(Error::interrupted(Interrupt::new("raw", json!({})))));
    });
    let agent = builder(&script, &log).with(raw).build()?;
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    session.answer(&ids(&session)[0], json!(true)).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    let refused = "!not executed: `raw` has asked the question `raw` again, although it was answered: it has to read the \
                   answer with `ask`";
    assert_eq!(results(session.history().messages()), [refused]);
    Ok(())
}

#[tokio::test]
async fn only_an_idempotent_tool_asks_in_its_function() -> Result<()> {
    let log = Log::default();
    let paint = |log: &Log| {
        let log = log.clone();
        tool_fn("paint", "Paints", move |_: crate::support::Text, ctx: RunContext| {
            log.add("called");
            async move {
                let colour: String = ctx.ask(Interrupt::new("colour", json!({"choices": ["red", "blue"]})))?;
                Ok(format!("painted {colour}"))
            }
        })
        .expect("a tool")
    };
    let script = || ScriptedModel::new("test").call("paint", json!({"text": "x"})).text("Done.");
    let model = ChatModel::new(script())?;
    let agent = Agent::builder("painter", model).tool(paint(&log)).build()?;
    let session = Session::new();
    agent.ask("Paint.").session(&session).await?;
    let refused = &results(session.history().messages())[0];
    assert!(refused.contains("mark the tool `idempotent`, or ask at the gate"), "{refused}");

    let agent = Agent::builder("painter", ChatModel::new(script())?).tool(paint(&log).idempotent()).build()?;
    let session = Session::new();
    agent.ask("Paint.").session(&session).await.expect_err("a question");
    let id = ids(&session).remove(0);
    let error = session.answer(&id, json!("green")).await.expect_err("no choice").to_string();
    assert!(error.ends_with("does not allow the answer \"green\"; allowed are \"red\", \"blue\""), "{error}");
    session.answer(&id, json!("red")).await?;
    let session = stored(&session);
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(results(session.history().messages()), ["painted red"]);
    assert_eq!(log.lines().len(), 3);
    Ok(())
}

#[tokio::test]
async fn questions_of_a_sub_agent_are_answered_in_the_outer_session_and_no_call_is_executed_again() -> Result<()> {
    let (log, inner_script) = (Log::default(), bills());
    let inner = approved(builder(&inner_script, &log));
    let outer = ScriptedModel::new("test").call("cashier", json!({"task": "Pay the bills."})).text("All done.");
    let agent = Agent::builder("boss", ChatModel::new(outer.clone())?).tool(inner.as_tool("Pays")?).build()?;
    let session = Session::with_id("order-17")?;
    let error = agent.ask("Pay.").session(&session).await.expect_err("questions");
    assert_eq!(Request::all_of(error.interrupt().expect("a question"))?.len(), 3);
    let session = stored(&session);
    let ids = ids(&session);
    assert!(ids.len() == 3 && ids[0].contains("/cashier/1/1/pay-"), "{ids:?}");
    for id in &ids {
        session.answer(id, Decision::Approve).await?;
    }
    assert_eq!(session.questions(), []);
    let session = stored(&session);
    assert_eq!(agent.resume(&session).await?.text(), "All done.");
    assert_eq!(log.lines(), ["note", "bob 5", "bob 5", "eve 9"]);
    assert_eq!((inner_script.requests().len(), outer.requests().len()), (2, 2));
    assert_eq!(results(session.history().messages()), ["Done."]);
    Ok(())
}

#[tokio::test]
async fn another_run_closes_what_is_open_and_says_so() -> Result<()> {
    let (log, script) = (Log::default(), bills().text("Other."));
    let agent = approved(builder(&script, &log));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("questions");
    session.answer(&ids(&session)[0], Decision::Approve).await?;
    agent.ask("Never mind.").session(&session).await?;
    assert_eq!(session.questions(), []);
    let unanswered = "!not executed: the question `approval` was not answered";
    let late = "!not executed: the answer to `approval` came, but the run was not resumed";
    assert_eq!(results(session.history().messages()), ["noted", late, unanswered, unanswered]);
    assert_eq!(log.lines(), ["note"]);
    assert_valid(&session);
    Ok(())
}

#[tokio::test]
async fn of_two_runs_that_leave_calls_open_the_later_one_goes_on_and_the_calls_of_the_earlier_one_are_closed()
-> Result<()> {
    let log = Log::default();
    let script =
        |name: &str| ScriptedModel::new("test").calls([("pay", payment(name, 5)), ("wait", json!({"text": "x"}))]);
    let (reached, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (of_tool, until) = (Arc::clone(&reached), Arc::clone(&go));
    let wait = tool_fn("wait", "Waits", move |_: crate::support::Text, _: RunContext| {
        let (reached, go) = (Arc::clone(&of_tool), Arc::clone(&until));
        async move {
            reached.notify_one();
            go.notified().await;
            Ok("waited")
        }
    });
    let later = approved(builder(&script("bob"), &log).tool(wait));
    let earlier = approved(builder(&ScriptedModel::new("test").call("pay", payment("eve", 9)), &log));
    let session = Session::new();
    let run = later.ask("Pay Bob.").session(&session).into_future();
    let between = async {
        reached.notified().await;
        earlier.ask("Pay Eve.").session(&session).await.expect_err("a question");
        assert_eq!(session.questions().len(), 2);
        go.notify_one();
    };
    let (ended, ()) = tokio::join!(run, between);
    ended.expect_err("a question");
    assert_eq!(session.questions().len(), 1);
    assert_eq!(Request::of_interrupt(&session.questions()[0])?.input, payment("bob", 5));
    let closed = "!not executed: the question `approval` was not answered";
    assert_eq!(results(session.history().messages()), [closed, "!not executed: interrupted", "waited"]);
    let session = stored(&session);
    session.answer(&ids(&session)[0], Decision::Approve).await?;
    later.resume(&session).await.expect_err("the script is over");
    assert_eq!(log.lines(), ["bob 5"]);
    Ok(())
}

fn call_ids(session: &Session) -> Vec<String> {
    let history = session.history();
    history.messages().iter().flat_map(|message| message.tool_calls().map(|call| call.id.clone())).collect()
}

#[tokio::test]
async fn the_run_reports_which_call_an_edit_changes_and_who_has_made_it() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let agent = approved(builder(&script, &log));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    let call = call_ids(&session).remove(0);
    // The first edit does not fit, so the call is not made with it.
    for (edit, edited) in [(json!({"to": 4}), false), (payment("bob", 4), true)] {
        let answer = emitree_runtime::Answer::from(Decision::Edit(edit)).by("ada");
        session.answer(&ids(&session)[0], answer).await?;
        let events = Log::default();
        let seen = events.clone();
        let run = agent.resume(&session).on("answered", move |event: &mut QuestionAnswered, _| {
            seen.add(format!("{} {:?} {}", event.call, event.by, event.edited));
        });
        assert_eq!(run.await.is_ok(), edited);
        assert_eq!(events.lines(), [format!("{call} Some(\"ada\") {edited}")]);
    }
    assert_eq!(log.lines(), ["bob 4"]);
    Ok(())
}

fn texts_of(message: &Message) -> String {
    message.tool_results().filter_map(|result| result.response.as_str()).collect()
}

#[tokio::test]
async fn the_run_reports_questions_answers_and_replaced_results_without_the_values_of_answers() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let agent = approved(builder(&script, &log));
    let session = Session::new();
    let events = Log::default();
    let seen = events.clone();
    let asks = agent.ask("Pay.").session(&session).on("asked", move |event: &mut QuestionAsked, _| {
        seen.add(format!("{} {} {}", event.id, event.kind, event.by));
    });
    asks.await.expect_err("a question");
    let id = ids(&session).remove(0);
    assert_eq!(events.lines(), [format!("{id} approval approval")]);
    session.answer(&id, emitree_runtime::Answer::from(Decision::Approve).by("ada")).await?;
    let (seen, resumed, replaced, added) = (events.clone(), events.clone(), events.clone(), events.clone());
    let run = agent
        .resume(&session)
        .on("message_replaced", move |event: &mut MessageReplaced, _| {
            let before = event.before.as_deref().map(texts_of).unwrap_or_default();
            replaced.add(format!("{before} -> {}", texts_of(&event.after)));
        })
        .on("message", move |event: &mut MessageAdded, _| added.add(event.message.text()))
        .on("answered", move |event: &mut QuestionAnswered, _| {
            let QuestionAnswered { id, call, by, at, edited, .. } = event;
            seen.add(format!("{id} {call} {by:?} {} {edited}", at.is_some()));
        })
        .on("resumed", move |event: &mut emitree_agent::RunResumed, _| {
            resumed.add(format!("{} {:?} {:?}", event.turn.number, event.executed.len(), event.demoted));
        });
    let answer = run.await?;
    let call = call_ids(&session).remove(0);
    let answered = format!("{id} {call} Some(\"ada\") true false");
    assert_eq!(events.lines()[1..], ["1 1 []", &answered, "not executed: interrupted -> paid bob", "Done."]);
    assert_eq!(answer.messages.iter().map(|message| message.text()).collect::<Vec<_>>(), ["Done."]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_question_can_be_answered_while_other_calls_go_on() -> Result<()> {
    let (log, script) = (
        Log::default(),
        ScriptedModel::new("test").calls([("pay", payment("bob", 5)), ("wait", json!({"text": "x"}))]).text("Done."),
    );
    let wait = tool_fn("wait", "Waits", |_: crate::support::Text, ctx: RunContext| async move {
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(ctx.turn().is_some());
        Ok("waited")
    });
    let agent = Arc::new(approved(builder(&script, &log).tool(wait)));
    let session = Session::new();
    let (of_task, handle) = (Arc::clone(&agent), session.clone());
    let task = tokio::spawn(async move { of_task.ask("Pay.").session(&handle).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    session.answer(&ids(&session)[0], Decision::Approve).await?;
    let error = agent.resume(&session).await.expect_err("the turn is in hand").to_string();
    assert!(error.contains("is using it, and has its turn in hand"), "{error}");
    assert!(task.await.expect("no panic").is_err());
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["bob 5"]);
    assert_eq!(results(session.history().messages()), ["paid bob", "waited"]);
    Ok(())
}

#[tokio::test]
async fn a_session_that_was_changed_by_hand_is_refused_with_the_path() -> Result<()> {
    let (log, script) = (Log::default(), bills());
    let agent = approved(builder(&script, &log));
    let session = Session::with_id("order-17")?;
    agent.ask("Pay.").session(&session).await.expect_err("questions");
    let stored = serde_json::to_value(&session)?;
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut changed = stored.clone();
        change(&mut changed);
        serde_json::from_value::<Session>(changed).expect_err("changed").to_string()
    };
    let arguments = "/runs/0/open/response/parts/3/arguments/amount";
    let error = changed(&|stored| *stored.pointer_mut(arguments).expect("an amount") = json!(9000));
    assert!(error.starts_with("at `runs[0]`: at `open`: the history has other messages for the turn 1"), "{error}");
    let data = "/runs/0/open/calls/2/questions/0/asked/question/data/input/amount";
    let error = changed(&|stored| *stored.pointer_mut(data).expect("an amount") = json!(1));
    assert!(error.starts_with("at `runs[0]`: at `open`: at `calls[2]`: the call or the question"), "{error}");
    let both = |stored: &mut Value| {
        *stored.pointer_mut(arguments).expect("an amount") = json!(9000);
        *stored.pointer_mut("/messages/1/parts/3/arguments/amount").expect("an amount") = json!(9000);
    };
    let error = changed(&both);
    assert!(error.starts_with("at `runs[0]`: at `open`: at `calls[3]`: the call or the question"), "{error}");
    let error = changed(&|stored| stored["runs"][0]["open"]["number"] = json!(40));
    assert_eq!(error, "at `runs[0]`: the turn 40 is another run's, or there were fewer turns");
    let error = changed(&|stored| stored["runs"][0]["open"]["calls"] = json!([]));
    assert_eq!(error, "at `runs[0]`: at `open`: there are 0 calls, but its response has 4");
    let error = changed(&|stored| stored["id"] = json!("a//b"));
    assert!(error.starts_with("at `id`: \"\" cannot be the key of a run, because it is empty"), "{error}");
    let error = changed(&|stored| stored["messages"] = json!([stored["messages"][2]]));
    assert!(error.starts_with("at `spans[0]`: message 0 has a result for the id"), "{error}");

    for id in ["", "a/b", "a\nb", &"x".repeat(201)] {
        Session::with_id(id).expect_err("no id");
    }
    Ok(())
}

#[tokio::test]
async fn a_model_call_that_a_person_has_to_approve_is_made_again_with_the_same_key() -> Result<()> {
    let script = ScriptedModel::new("test").text("Done.");
    let approval = Approval::by_interrupt().of_kind("ChatModel");
    let agent = Agent::builder("asker", ChatModel::new(script.clone())?).middleware(for_tree(approval)).build()?;
    let session = Session::with_id("order-17")?;
    let error = agent.ask("Go.").session(&session).await.expect_err("a question");
    let id = error.interrupt().expect("a question").id.clone();
    assert!(id.starts_with("order-17/1/"), "{id}");
    // The question is not about a call of a tool, so the session does not have it.
    assert_eq!(session.questions(), []);
    let answers = Answers::new();
    answers.answer(id, Decision::Approve);
    let session = stored(&session);
    assert_eq!(agent.resume(&session).extension(answers).await?.text(), "Done.");
    assert_eq!(script.requests().len(), 1);
    Ok(())
}
