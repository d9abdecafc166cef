//! An answer serves its call each time the call is made, until the call has a result (A23).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use emitree_agent::{
    AgentMiddleware, AgentRun, Arguments, Hooks, QuestionAnswered, ScriptedModel, Session, Tool, hooks_fn, tool_fn,
};
use emitree_middleware::Runs;
use emitree_middleware::approval::{Approval, Decision};
use emitree_runtime::{Interrupt, Result, RunContext, Runnable, for_tree, runnable_fn};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{approved, builder, cashier, ids, payment, stored};
use crate::support::{Log, Text, results};

/// An idempotent tool that logs its argument, and waits for ever while `stops` is set.
fn paint(log: &Log, stops: &Arc<AtomicBool>) -> Tool {
    let (log, stops) = (log.clone(), Arc::clone(stops));
    let paint = tool_fn("paint", "Paints", move |Text { text }: Text, _: RunContext| {
        log.add(&text);
        let stops = stops.load(Ordering::SeqCst);
        async move {
            if stops {
                std::future::pending::<()>().await;
            }
            Ok(format!("painted {text}"))
        }
    });
    paint.expect("a tool").idempotent()
}

fn painter(script: &ScriptedModel, log: &Log, stops: &Arc<AtomicBool>) -> emitree_agent::AgentBuilder {
    builder(script, &Log::default()).tool(paint(log, stops))
}

/// A gate that asks for a colour, and paints with it.
fn colours() -> impl AgentMiddleware {
    hooks_fn("colours", |hooks: &mut Hooks| {
        hooks.on_gate_each(|gated, _| {
            if let Some(colour) = gated.ask::<String>(Interrupt::new("colour", json!({})))? {
                gated.call.arguments = json!({"text": colour}).into();
            }
            Ok(())
        });
    })
}

fn wall() -> ScriptedModel {
    ScriptedModel::new("test").call("paint", json!({"text": "wall"})).text("Done.")
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_has_got_its_answer_is_not_needed_again_if_the_run_then_stops_in_the_call() -> Result<()> {
    let (log, stops, script) = (Log::default(), Arc::new(AtomicBool::new(true)), wall());
    let agent = painter(&script, &log, &stops).with(colours()).build()?;
    let session = Session::new();
    agent.ask("Paint.").session(&session).await.expect_err("a question");
    session.answer(&ids(&session)[0], json!("red")).await?;
    let run = agent.resume(&session).timeout(Duration::from_secs(1));
    assert!(run.await.expect_err("it takes too long").is_timed_out());
    assert_eq!(log.lines(), ["red"]);

    stops.store(false, Ordering::SeqCst);
    let session = stored(&session);
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(results(session.history().messages()), ["painted red"]);
    assert_eq!(log.lines(), ["red", "red"]);
    Ok(())
}

#[tokio::test]
async fn an_answer_that_comes_while_a_run_goes_on_with_another_call_is_kept() -> Result<()> {
    let calls = [("pay", payment("bob", 5)), ("late", json!({"text": "x"})), ("pay", payment("eve", 9))];
    let (log, script) = (Log::default(), ScriptedModel::new("test").calls(calls).text("Done."));
    let session = Session::new();
    let answers: Arc<Mutex<Vec<String>>> = Arc::default();
    let (of_tool, of_person) = (session.clone(), Arc::clone(&answers));
    let late = tool_fn("late", "Answers", move |_: Text, _: RunContext| {
        let (session, answers) = (of_tool.clone(), of_person.lock().clone());
        async move {
            for id in answers {
                session.answer(&id, Decision::Approve).await?;
            }
            Ok("answered")
        }
    });
    let approval = Approval::by_interrupt().runs(Runs::named("pay")).runs(Runs::named("late"));
    let agent = builder(&script, &log).tool(late).middleware(for_tree(approval)).build()?;
    agent.ask("Pay.").session(&session).await.expect_err("questions");
    let questions = ids(&session);
    session.answer(&questions[1], Decision::Approve).await?;
    answers.lock().push(questions[2].clone());
    agent.resume(&session).await.expect_err("the first question waits");
    assert_eq!(ids(&session), questions[..1]);
    session.answer(&questions[0], Decision::Approve).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["bob 5", "eve 9"]);
    Ok(())
}

#[tokio::test]
async fn an_edit_that_a_gate_changes_is_asked_about_again_and_then_executed() -> Result<()> {
    let (log, stops, script) = (Log::default(), Arc::new(AtomicBool::new(false)), wall());
    let shout = hooks_fn("shout", |hooks: &mut Hooks| {
        hooks.on_gate_each(|gated, _| {
            if let Arguments::Json(arguments) = &mut gated.call.arguments {
                arguments["text"] = format!("{}!", arguments["text"].as_str().unwrap_or_default()).into();
            }
        });
    });
    let approval = Approval::by_interrupt().runs(Runs::named("paint"));
    let agent = painter(&script, &log, &stops).with(shout).middleware(for_tree(approval)).build()?;
    let session = Session::new();
    agent.ask("Paint.").session(&session).await.expect_err("a question");
    session.answer(&ids(&session)[0], Decision::Edit(json!({"text": "door"}))).await?;
    agent.resume(&session).await.expect_err("nobody has approved `door!`");
    let session = stored(&session);
    let question = session.questions().remove(0);
    assert_eq!(question.data["input"], json!({"text": "door!"}));
    session.answer(&question.id, Decision::Approve).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["door!"]);
    Ok(())
}

#[tokio::test]
async fn an_answer_is_reported_by_the_run_that_takes_it_even_if_another_question_follows() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let agent = approved(builder(&script, &log).with(cashier(&Log::default())));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    for answer in [json!(true), json!("approve")] {
        let id = ids(&session).remove(0);
        session.answer(&id, answer).await?;
        let answered = Log::default();
        let seen = answered.clone();
        let run = agent.resume(&session).on("answered", move |event: &mut QuestionAnswered, _| seen.add(&event.id));
        // The first of these runs is interrupted by the approval.
        _ = run.await;
        assert_eq!(answered.lines(), [id]);
    }
    assert_eq!(log.lines(), ["bob 5"]);
    Ok(())
}

#[tokio::test]
async fn a_question_that_its_asker_words_anew_takes_the_place_of_the_one_before() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let version = Arc::new(AtomicU32::new(1));
    let of_gate = Arc::clone(&version);
    let asks = hooks_fn("asks", move |hooks: &mut Hooks| {
        let version = Arc::clone(&of_gate);
        hooks.on_gate_each(move |gated, _| {
            let question = Interrupt::new("large", json!({"version": version.load(Ordering::SeqCst)}));
            gated.ask::<bool>(question).map(drop)
        });
    });
    let agent = builder(&script, &log).with(asks).build()?;
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    let first = ids(&session);
    version.store(2, Ordering::SeqCst);
    let session = stored(&session);
    agent.resume(&session).await.expect_err("the question is worded anew");
    assert_eq!(session.questions().len(), 1);
    assert_ne!(ids(&session), first);
    session.answer(&ids(&session)[0], json!(true)).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["bob 5"]);
    Ok(())
}

#[tokio::test]
async fn an_answer_that_is_nested_too_deeply_for_a_stored_session_is_refused() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let agent = builder(&script, &log).with(cashier(&Log::default())).build()?;
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    let id = ids(&session).remove(0);
    for depth in [100, 127, 1_000] {
        let deep = (0..depth).fold(json!(true), |inner, _| json!([inner]));
        let error = session.answer(&id, deep).await.expect_err("too deep").to_string();
        assert!(error.contains("nested"), "{error}");
    }
    let session = stored(&session);
    session.answer(&id, json!(true)).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    Ok(())
}

#[tokio::test]
async fn equal_questions_of_runs_below_two_calls_are_two_questions() -> Result<()> {
    let log = Log::default();
    let chosen = log.clone();
    let choose = Arc::new(runnable_fn("choose", |(): (), ctx: RunContext| async move {
        ctx.ask::<String>(Interrupt::new("colour", json!({})))
    }));
    let mix = tool_fn("mix", "Mixes", move |_: Text, _: RunContext| {
        let (choose, chosen) = (Arc::clone(&choose), chosen.clone());
        async move {
            let colour = choose.run(()).await?;
            chosen.add(&colour);
            Ok(colour)
        }
    });
    let calls = [("mix", json!({"text": "x"})), ("mix", json!({"text": "x"}))];
    let script = ScriptedModel::new("test").calls(calls).text("Done.");
    let agent = builder(&script, &log).tool(mix?.idempotent()).build()?;
    let session = Session::new();
    agent.ask("Mix.").session(&session).await.expect_err("questions");
    let session = stored(&session);
    let questions = ids(&session);
    assert!(questions.len() == 2 && questions[0] != questions[1], "{questions:?}");
    session.answer(&questions[1], json!("blue")).await?;
    agent.resume(&session).await.expect_err("the first question waits");
    assert_eq!(log.lines(), ["blue"]);
    session.answer(&questions[0], json!("red")).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(results(session.history().messages()), ["red", "blue"]);
    Ok(())
}

#[tokio::test]
async fn an_edit_of_a_run_below_a_call_is_executed_there_and_is_not_an_edit_of_the_call() -> Result<()> {
    let log = Log::default();
    let charged = log.clone();
    let charge = runnable_fn("charge", |amount: u32, _: RunContext| async move { Ok(amount) });
    let charge = Arc::new(charge.middleware(Approval::by_interrupt()));
    let buy = tool_fn("buy", "Buys", move |Text { text }: Text, _: RunContext| {
        let (charge, charged) = (Arc::clone(&charge), charged.clone());
        async move {
            charged.add(format!("{text} {}", charge.run(5).await?));
            Ok("bought")
        }
    });
    let calls = [("buy", json!({"text": "a"})), ("buy", json!({"text": "a"}))];
    let script = ScriptedModel::new("test").calls(calls).text("Done.");
    let agent = builder(&script, &Log::default()).tool(buy?.idempotent()).build()?;
    let session = Session::new();
    agent.ask("Buy.").session(&session).await.expect_err("questions");
    let session = stored(&session);
    let questions = ids(&session);
    assert!(questions.len() == 2 && questions[0] != questions[1], "{questions:?}");
    session.answer(&questions[0], Decision::Edit(json!(4))).await?;
    agent.resume(&session).await.expect_err("the second question waits");
    assert_eq!(log.lines(), ["a 4"]);
    session.answer(&questions[1], Decision::Approve).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["a 4", "a 5"]);
    assert_eq!(results(session.history().messages()), ["bought", "bought"]);
    Ok(())
}

#[tokio::test]
async fn an_answer_to_a_call_that_was_edited_is_refused_with_the_question_that_is_asked_now() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("pay", payment("bob", 5)).text("Done."));
    let agent = approved(builder(&script, &log).with(cashier(&Log::default())));
    let session = Session::new();
    agent.ask("Pay.").session(&session).await.expect_err("a question");
    session.answer(&ids(&session)[0], json!(true)).await?;
    agent.resume(&session).await.expect_err("the approval asks");
    let edited = ids(&session).remove(0);
    session.answer(&edited, emitree_runtime::Answer::from(Decision::Edit(payment("bob", 4))).by("ada")).await?;
    agent.resume(&session).await.expect_err("the cashier asks about the new arguments");
    let session = stored(&session);
    let now = session.questions().remove(0);
    assert_eq!((now.kind.as_str(), now.id == edited), ("large", false));
    let error = session.answer(&edited, Decision::Approve).await.expect_err("answered").to_string();
    assert!(error.contains("by ada at 20") && error.contains(&format!("the open question is `{}`", now.id)), "{error}");
    session.answer(&now.id, json!(true)).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["bob 4"]);
    let executed: Value = serde_json::from_str(&results(session.history().messages())[0])?;
    assert_eq!(executed, json!({"executed_with": payment("bob", 4), "result": "paid bob"}));
    Ok(())
}

/// A gate that asks for a colour, which is grey after a time.
fn grey_after(after: &Arc<Mutex<Duration>>) -> impl AgentMiddleware {
    let after = Arc::clone(after);
    hooks_fn("colours", move |hooks: &mut Hooks| {
        let after = Arc::clone(&after);
        hooks.on_gate_each(move |gated, _| {
            let question = Interrupt::new("colour", json!({})).with_deadline(*after.lock(), json!("grey"));
            if let Some(colour) = gated.ask::<String>(question)? {
                gated.call.arguments = json!({"text": colour}).into();
            }
            Ok(())
        });
    })
}

#[tokio::test]
async fn a_question_gets_the_answer_of_its_first_deadline_when_it_is_asked_after_this_time() -> Result<()> {
    for (first, later, painted) in [(0, 3600, true), (3600, 0, false)] {
        let (log, stops, script) = (Log::default(), Arc::new(AtomicBool::new(false)), wall());
        let after = Arc::new(Mutex::new(Duration::from_secs(first)));
        let agent = painter(&script, &log, &stops).with(grey_after(&after)).build()?;
        let session = Session::new();
        assert!(agent.ask("Paint.").session(&session).await.expect_err("a question").is_interrupted());
        let asked = session.questions()[0].deadline.clone().expect("a deadline");
        *after.lock() = Duration::from_secs(later);
        let session = stored(&session);
        let ended = agent.resume(&session).await;
        if painted {
            assert_eq!(ended?.text(), "Done.");
            assert_eq!(log.lines(), ["grey"]);
        } else {
            assert!(ended.expect_err("the deadline has not passed").is_interrupted());
            assert_eq!(session.questions()[0].deadline, Some(asked));
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_wins_over_a_deadline_that_nobody_has_met_and_a_later_answer_is_refused() -> Result<()> {
    let (log, stops, script) = (Log::default(), Arc::new(AtomicBool::new(false)), wall());
    let agent = painter(&script, &log, &stops).with(grey_after(&Arc::default())).build()?;
    let session = Session::new();
    agent.ask("Paint.").session(&session).await.expect_err("a question");
    let id = ids(&session).remove(0);
    session.answer(&id, json!("red")).await?;
    let refused = session.answer(&id, json!("blue")).await.expect_err("a second answer").to_string();
    assert!(refused.contains(r#"was answered with "red""#), "{refused}");
    agent.resume(&session).await?;
    assert_eq!(log.lines(), ["red"]);
    Ok(())
}

#[tokio::test]
async fn a_resumed_run_makes_the_open_calls_of_tools_that_a_middleware_adds_at_each_turn() -> Result<()> {
    let (log, stops, script) = (Log::default(), Arc::new(AtomicBool::new(false)), wall());
    let tool = paint(&log, &stops);
    let adds = hooks_fn("paints", move |hooks: &mut Hooks| {
        let tool = tool.clone();
        hooks.tools(move |_: &RunContext| Ok(vec![tool.clone()]));
    });
    let agent = builder(&script, &Log::default()).with(adds).with(colours()).build()?;
    let session = Session::new();
    agent.ask("Paint.").session(&session).await.expect_err("a question");
    session.answer(&ids(&session)[0], json!("red")).await?;
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["red"]);
    Ok(())
}
