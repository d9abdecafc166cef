//! Orders of events in which sessions were wrong.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentInput, AgentOutput, AgentRun, ChatModel, History, Message, ScriptedModel, Session, Tool, hooks_fn,
    tool_fn,
};
use emitree_middleware::store::{Filter, MemoryStore, Store};
use emitree_runtime::{Error, Next, Result, RunContext, Runnable, map_output, runnable_fn};
use serde_json::json;
use tokio::sync::{Notify, Semaphore};

use crate::durable::process::{Kill, Process};
use crate::support::{Log, Text, agent, assert_valid, texts};

/// A tool whose call has an effect, and never ends.
fn pays_and_hangs(log: &Log) -> Result<Tool> {
    let log = log.clone();
    let pay = tool_fn("pay", "Pays", move |_: Text, _: RunContext| {
        let log = log.clone();
        async move {
            log.add("paid");
            std::future::pending::<()>().await;
            Ok("paid")
        }
    });
    Ok(pay?)
}

/// A27
#[tokio::test]
async fn once_with_a_layer_that_answers_adds_its_input_once() -> Result<()> {
    let session = Session::new();
    let agent = agent(&ScriptedModel::new("test"))
        .hooks(|hooks| {
            hooks.agent_run(|stack| {
                stack.layer_fn("answers", |_: &AgentInput, _, _: Next<'_, Agent>| {
                    Box::pin(async { Ok(AgentOutput::new(Message::assistant("cached"))) })
                })
            });
        })
        .build()?;
    for _ in 0..2 {
        agent.ask("q").session(&session).once("1").await?;
    }
    assert_eq!(texts(&session), ["q", "cached"]);
    Ok(())
}

/// A15
#[tokio::test]
async fn a_resume_reports_the_calls_that_an_interjection_has_skipped() -> Result<()> {
    let (session, log) = (Session::new(), Log::default());
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
    let (skips, stops) = (log.clone(), log.clone());
    let agent = agent(&script)
        .hooks(move |hooks| {
            hooks.on_gate(|batch, _| {
                for gated in batch.open() {
                    gated.decide(emitree_agent::Verdict::Interrupt(emitree_runtime::Interrupt::new("ask", json!({}))));
                }
            });
            hooks.on_skip(move |calls, _| skips.add(format!("skip {}", calls.len())));
            hooks.on_action(move |action, _| {
                stops.add(format!("turn {}", action.response.message.tool_calls().count()));
            });
        })
        .build()?;
    agent.ask("go").session(&session).await.expect_err("asks");
    session.interject("stop")?;
    agent.resume(&session).await?;
    assert_eq!(log.lines(), ["turn 1", "skip 1", "turn 0"]);
    Ok(())
}

/// A22: another run rewrites the open turn before the resumed run takes it up.
#[tokio::test]
async fn an_open_turn_that_is_rewritten_while_a_resume_starts() -> Result<()> {
    let session = Session::new();
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
    let first = agent(&script)
        .hooks(|hooks| {
            hooks.on_gate(|batch, _| {
                for gated in batch.open() {
                    gated.decide(emitree_agent::Verdict::Interrupt(emitree_runtime::Interrupt::new("ask", json!({}))));
                }
            });
        })
        .build()?;
    first.ask("go").session(&session).await.expect_err("asks");
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    // A run that is between two turns: its next model call compacts.
    let (b, g) = (Arc::clone(&begun), Arc::clone(&go));
    let seen = Arc::new(AtomicUsize::new(0));
    let other = Agent::builder("other", ChatModel::new(ScriptedModel::new("test").text("other"))?)
        .hooks(move |hooks| {
            hooks.on_state(move |history, _| {
                if seen.fetch_add(1, Ordering::SeqCst) == 0 {
                    *history = History::try_from(vec![Arc::new(Message::user("summary"))])?;
                }
                Ok::<_, Error>(())
            });
        })
        .build()?;
    let resumes = Agent::builder("second", ChatModel::new(ScriptedModel::new("test").text("done"))?)
        .with(hooks_fn("starts", move |hooks| {
            let (b, g) = (Arc::clone(&b), Arc::clone(&g));
            hooks.on_start_async(move |_| {
                let (b, g) = (Arc::clone(&b), Arc::clone(&g));
                Box::pin(async move {
                    b.notify_one();
                    g.notified().await;
                    Ok(())
                })
            });
        }))
        .build()?;
    let meanwhile = async {
        begun.notified().await;
        let said = other.ask("summarize").session(&session).await;
        go.notify_one();
        said
    };
    let (resumed, said) = tokio::join!(resumes.resume(&session).into_future(), meanwhile);
    said?;
    assert_eq!(resumed?.text(), "done");
    assert_eq!(texts(&session).last().map(String::as_str), Some("done"));
    Ok(())
}

/// A12
#[tokio::test]
async fn a_withheld_answer_leaves_the_history_also_with_an_injected_message() -> Result<()> {
    let session = Session::new();
    let script = ScriptedModel::new("test").text("secret");
    let agent = agent(&script)
        .hooks(|hooks| {
            hooks.on_action(|action, _| {
                action.inject.push(Message::assistant("note"));
                action.decision = Some(emitree_agent::TurnDecision::Stop);
            });
        })
        .middleware(map_output(|_: &mut AgentOutput, _: &_| Err(Error::denied("desk", "no"))))
        .build()?;
    agent.ask("go").session(&session).await.expect_err("denied");
    assert!(!texts(&session).contains(&"secret".to_owned()), "{:?}", texts(&session));
    Ok(())
}

/// A12
#[tokio::test]
async fn an_answer_with_calls_and_an_injected_message_can_be_changed() -> Result<()> {
    let session = Session::new();
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"}));
    let agent = agent(&script)
        .hooks(|hooks| {
            hooks.on_action(|action, _| {
                action.inject.push(Message::assistant("note"));
                action.decision = Some(emitree_agent::TurnDecision::Stop);
            });
        })
        .middleware(map_output(|output: &mut AgentOutput, _: &_| {
            output.answer = Message::assistant("changed");
            Ok(())
        }))
        .build()?;
    agent.ask("go").session(&session).await?;
    assert!(texts(&session).contains(&"changed".to_owned()), "{:?}", texts(&session));
    Ok(())
}

/// A27
#[tokio::test]
async fn a_message_that_waits_stays_listed_after_a_run_that_does_nothing() -> Result<()> {
    let store = MemoryStore::new();
    let session = Session::open(&store, "s").await?;
    let agent = agent(&ScriptedModel::new("test").text("one")).build()?;
    agent.ask("go").session(&session).once("1").await?;
    assert!(store.list(&Filter::unfinished()).await?.is_empty());
    session.extend([Message::user("more")])?;
    session.saved().await?;
    assert_eq!(store.list(&Filter::unfinished()).await?.len(), 1);
    agent.ask("go").session(&session).once("1").await?;
    assert_eq!(store.list(&Filter::unfinished()).await?.len(), 1);
    Ok(())
}

thread_local! { static ON_DROP: std::cell::RefCell<Option<Session>> = const { std::cell::RefCell::new(None) }; }

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Drops(u32);

impl Drop for Drops {
    fn drop(&mut self) {
        let session = ON_DROP.with(|session| session.borrow_mut().take());
        if let Some(session) = session {
            session.extend([Message::user("dropped")]).expect("valid");
        }
    }
}

/// A8: states of users are dropped without a lock.
#[test]
fn a_state_is_dropped_without_a_lock_when_the_session_is_read_again() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime
            .block_on(async {
                let store = MemoryStore::new();
                let drops = || {
                    hooks_fn("drops", |hooks| {
                        let state = hooks.state::<Drops>();
                        hooks.on_action(move |_, ctx| state.with(ctx, |drops| drops.0 += 1));
                    })
                };
                let one = Session::open(&Process::of(&store), "s").await?;
                let two = Session::open(&Process::of(&store), "s").await?;
                let script = ScriptedModel::new("test").text("a").text("b");
                let agent = agent(&script).with(drops()).build()?;
                agent.ask("go").session(&one).await?;
                agent.ask("on").session(&two).await?;
                ON_DROP.with(|session| *session.borrow_mut() = Some(one.clone()));
                one.refresh().await?;
                Ok::<_, Error>(())
            })
            .expect("no error");
        _ = done.send(());
    });
    ended.recv_timeout(Duration::from_secs(10)).expect("a deadlock");
}

/// A25
#[tokio::test]
async fn no_run_below_a_call_begins_before_the_beginning_of_the_call_is_stored() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let process = Process::of(&store);
    let session = Session::open(&process, "s").await?;
    let below = log.clone();
    let effect = Arc::new(runnable_fn("effect", move |n: u32, _: RunContext| {
        let below = below.clone();
        async move {
            below.add(format!("effect {n}"));
            Ok(n)
        }
    }));
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
    let freezes = process.clone();
    let agent = agent(&script)
        .hooks(move |hooks| {
            hooks.tool_call(|stack| {
                stack.layer_fn("hedges", move |input, _, next: Next<'_, Tool>| {
                    let effect = Arc::clone(&effect);
                    let freezes = freezes.clone();
                    Box::pin(async move {
                        freezes.freeze(true);
                        let both = async { tokio::join!(effect.run(1).into_future(), effect.run(2).into_future()) };
                        let (one, two) = both.await;
                        one?;
                        two?;
                        next.run(input).await
                    })
                })
            });
        })
        .build()?;
    let run = agent.ask("go").session(&session);
    let ended = tokio::time::timeout(Duration::from_millis(300), run.into_future()).await;
    assert!(ended.is_err(), "the store is frozen");
    let lines = log.lines();
    process.freeze(false);
    assert_eq!(lines, Vec::<String>::new());
    Ok(())
}

/// A26
#[tokio::test]
async fn an_answer_that_was_not_returned_survives_an_attempt_that_fails_before_it() -> Result<()> {
    let session = Session::new();
    let script = ScriptedModel::new("test").text("one").text("two");
    let build = || agent(&script);
    let fails = map_output(|_: &mut AgentOutput, _: &_| Err(Error::new("broken")));
    build().build()?.ask("go").session(&session).middleware(fails).await.expect_err("broken");
    let tries = Arc::new(AtomicUsize::new(0));
    let again = build()
        .hooks(move |hooks| {
            let tries = Arc::clone(&tries);
            hooks.on_end(
                move |_, _| {
                    if tries.fetch_add(1, Ordering::SeqCst) == 0 { Err(Error::new("once")) } else { Ok(()) }
                },
            );
            hooks.agent_run(|stack| {
                stack.layer_fn("retries", |input: &AgentInput, _, next: Next<'_, Agent>| {
                    Box::pin(async move {
                        match next.run(input).await {
                            Ok(output) => Ok(output),
                            Err(_) => next.run(input).await,
                        }
                    })
                })
            });
        })
        .build()?;
    let answer = again.resume(&session).await?;
    assert_eq!((answer.text().as_str(), script.requests().len()), ("one", 1));
    Ok(())
}

/// A27: a run has the number of one that was never stored.
#[tokio::test]
async fn a_run_of_before_a_reload_does_not_take_what_belongs_to_another_run() -> Result<()> {
    let store = MemoryStore::new();
    let process = Process::of(&store);
    let session = Session::open(&process, "s").await?;
    let kept = Arc::new(Mutex::new(None));
    // The input of the first run is not stored, because the store fails.
    let to = Arc::clone(&kept);
    process.fail_from(1);
    let script = ScriptedModel::new("test").text("a").text("b");
    let keeps = agent(&script)
        .middleware(move |ctx: &RunContext| {
            *to.lock().expect("no panic") = Some(ctx.clone());
            Ok(())
        })
        .build()?;
    keeps.ask("go").session(&session).await.expect_err("the store fails");
    process.fail_from(usize::MAX);
    // Another process takes over, and only sends.
    let other = Session::open(&Process::killed_at(&store, Kill::Never), "s").await?;
    other.set_meta("a", 1)?;
    other.saved().await?;
    session.refresh().await.expect_err("the claim is lost");
    let seen = Arc::new(AtomicBool::new(false));
    let drops = Arc::clone(&kept);
    let second = agent(&script)
        .hooks(move |hooks| {
            hooks.on_action(move |_, _| {
                drop(drops.lock().expect("no panic").take());
                seen.store(true, Ordering::SeqCst);
            });
        })
        .build()?;
    let answer = second.ask("on").session(&session).await?;
    assert_eq!(answer.messages.len(), texts(&session).len());
    Ok(())
}

#[tokio::test]
async fn a_run_that_has_not_returned_its_answer_leaves_the_pause() -> Result<()> {
    let session = Session::new();
    let script = ScriptedModel::new("test").text("one").text("two");
    let pauses = session.clone();
    let fails = map_output(move |_: &mut AgentOutput, _: &_| Err(Error::new("broken")));
    let first = agent(&script).hooks(move |hooks| _ = hooks.on_end(move |_, _| pauses.pause())).build()?;
    first.ask("go").session(&session).middleware(fails).await.expect_err("broken");
    let error = agent(&script).build()?.ask("more").session(&session).await.expect_err("paused");
    assert!(error.is_interrupted());
    Ok(())
}

/// A7, A22
#[tokio::test]
async fn a_resume_between_two_attempts_of_a_run_takes_nothing_from_it() -> Result<()> {
    let (session, log) = (Session::new(), Log::default());
    let script = ScriptedModel::new("test")
        .call("pay", json!({"text": "a"}))
        .call("pay", json!({"text": "a"}))
        .text("x")
        .text("y");
    let (gap, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let to = log.clone();
    let pay = tool_fn("pay", "Pays", move |_: Text, _: RunContext| {
        let to = to.clone();
        async move {
            Ok({
                to.add("paid");
                "paid"
            })
        }
    })?;
    let second = Agent::builder("payer", ChatModel::new(script.clone())?).tool(pay.clone()).build()?;
    let fails = Arc::new(AtomicBool::new(true));
    let (g, h) = (Arc::clone(&gap), Arc::clone(&go));
    let first = Agent::builder("payer", ChatModel::new(script.clone())?)
        .tool(pay)
        .hooks(move |hooks| {
            let fails = Arc::clone(&fails);
            hooks.on_gate(move |batch, _| {
                if fails.swap(false, Ordering::SeqCst) {
                    for gated in batch.open() {
                        gated.decide(emitree_agent::Verdict::Interrupt(emitree_runtime::Interrupt::new(
                            "ask",
                            json!({}),
                        )));
                    }
                }
            });
            hooks.agent_run(|stack| {
                stack.layer_fn("retries", move |input: &AgentInput, _, next: Next<'_, Agent>| {
                    let (g, h) = (Arc::clone(&g), Arc::clone(&h));
                    Box::pin(async move {
                        match next.run(input).await {
                            Ok(output) => Ok(output),
                            Err(error) => {
                                g.add_permits(1);
                                _ = h.acquire().await;
                                next.absorb(&error);
                                next.run(input).await
                            }
                        }
                    })
                })
            });
        })
        .build()?;
    let meanwhile = async {
        _ = gap.acquire().await;
        let resumed = second.resume(&session).await;
        go.add_permits(1);
        resumed
    };
    let (one, two) = tokio::join!(first.ask("go").session(&session).into_future(), meanwhile);
    assert_eq!(one?.text(), "x");
    assert_eq!(log.lines(), ["paid"]);
    assert!(two.is_err(), "the run has the turn in hand");
    assert_valid(&session);
    Ok(())
}

/// A22: an interjection waits when a run with a gate goes on with a call that had begun.
#[tokio::test]
async fn a_call_that_had_begun_is_not_made_again_because_of_an_interjection() -> Result<()> {
    for gated in [false, true] {
        let (session, log) = (Session::new(), Log::default());
        let script = ScriptedModel::new("test").call("pay", json!({"text": "a"})).text("x").text("y");
        let pay = pays_and_hangs(&log)?;
        let denies = log.clone();
        let agent = Agent::builder("payer", ChatModel::new(script.clone())?)
            .tool(pay)
            .hooks(move |hooks| {
                if gated {
                    hooks.on_gate(move |batch, _| denies.add(format!("gate {}", batch.open().count())));
                }
            })
            .build()?;
        let run = agent.ask("go").session(&session).into_future();
        _ = tokio::time::timeout(Duration::from_millis(50), run).await;
        session.interject("stop")?;
        let resumed = tokio::time::timeout(Duration::from_millis(200), agent.resume(&session).into_future()).await;
        let paid = log.lines().iter().filter(|line| *line == "paid").count();
        assert_eq!(paid, 1, "gated: {gated}, {:?}, {resumed:?}", log.lines());
    }
    Ok(())
}

/// A23: a gate decides on each call that is made.
#[tokio::test]
async fn an_idempotent_call_that_had_begun_passes_its_gates_in_spite_of_an_interjection() -> Result<()> {
    let (session, log) = (Session::new(), Log::default());
    let script = ScriptedModel::new("test").call("pay", json!({"text": "a"})).text("x").text("y");
    let pay = pays_and_hangs(&log)?.idempotent();
    let build = |denies: bool| {
        Agent::builder("payer", ChatModel::new(script.clone())?)
            .tool(pay.clone())
            .hooks(move |hooks| {
                hooks.on_gate(move |batch, _| {
                    for gated in batch.open().filter(|_| denies) {
                        gated.deny("desk", "closed");
                    }
                });
            })
            .hooks(move |hooks| {
                if denies {
                    hooks.on_gate_each(|gated, _| gated.deny("other", "closed"));
                }
            })
            .build()
    };
    _ = tokio::time::timeout(Duration::from_millis(50), build(false)?.ask("go").session(&session).into_future()).await;
    session.interject("stop")?;
    _ = tokio::time::timeout(Duration::from_millis(200), build(true)?.resume(&session).into_future()).await;
    assert_eq!(log.lines(), ["paid"]);
    Ok(())
}
