//! The history ends with the answer as layers, output functions and guards left it (A12), and tools that answer.

use std::time::Duration;

use emitree_agent::{
    Agent, AgentBuilder, AgentInput, AgentOutput, AgentRun, AgentSuccess, ChatModel, Chunks, Delta, Message,
    MessageAdded, MessageReplaced, ScriptedModel, Session, Tool, ToolOutput, tool_fn,
};
use emitree_middleware::redact::{Pseudonyms, Strategy};
use emitree_middleware::{Fallback, Redact};
use emitree_runtime::{
    AbortHandle, Error, ErrorKind, Guard, Interrupt, Next, Result, RunContext, Stage, Start, Success, for_tree,
    map_output, map_output_async,
};
use serde_json::json;

use crate::support::{Log, NotForbidden, Text, agent, assert_valid, texts};

fn says(texts: &[&str]) -> ScriptedModel {
    texts.iter().fold(ScriptedModel::new("test"), |script, text| script.text(*text))
}

fn last(messages: &[std::sync::Arc<Message>]) -> &Message {
    messages.last().expect("a message")
}

/// An output function that appends a mark to the answer.
fn mark(mark: &'static str) -> impl Fn(&mut AgentOutput, &RunContext) -> Result<()> + Send + Sync + 'static {
    move |output, _| {
        output.answer = Message::assistant(output.text() + mark);
        Ok(())
    }
}

/// Denies every output.
#[derive(Debug)]
struct Deny;

impl Guard<Agent> for Deny {
    async fn check_output(&self, _: &AgentOutput, _: &RunContext) -> Result<()> {
        Err(Error::new("no"))
    }

    fn name(&self) -> &str {
        "desk"
    }
}

// A12
#[tokio::test]
async fn the_history_and_the_messages_end_with_the_answer_as_layers_and_output_functions_left_it() -> Result<()> {
    let (session, log) = (Session::new(), Log::default());
    let script = says(&["a", "b"]);
    let to = log.clone();
    let agent = agent(&script)
        .hooks(|hooks| {
            hooks.agent_run(|stack| {
                stack.layer_fn("one", |input: &AgentInput, _, next: Next<'_, Agent>| {
                    Box::pin(async move {
                        let mut output = next.run(input).await?;
                        output.answer = Message::assistant(output.text() + "1");
                        Ok(output)
                    })
                })
            });
        })
        .middleware(map_output(mark("2")))
        .build()?;
    let answer = agent
        .ask("hi")
        .session(&session)
        // This guard is bound after the agent's own functions, and may change the output as well.
        .middleware(map_output(mark("3")).guard())
        .on("message_replaced", move |event: &mut MessageReplaced, _| {
            to.add(format!("{} -> {}", event.before.as_ref().map_or(String::new(), |m| m.text()), event.after.text()));
        })
        .await?;
    assert_eq!(answer.text(), "a123");
    assert_eq!(answer.model_answer().text(), "a");
    assert_eq!(last(&answer.messages).text(), "a123");
    assert_eq!(texts(&session), ["hi", "a123"]);
    assert_eq!(log.lines(), ["a -> a123"]);

    agent.ask("again").session(&session).await?;
    let sent: Vec<_> = script.requests()[1].messages.iter().map(|message| message.text()).collect();
    assert_eq!(sent, ["hi", "a123", "again"]);
    Ok(())
}

#[tokio::test]
async fn an_answer_that_nobody_changed_is_not_replaced() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let agent = agent(&says(&["a"])).build()?;
    let answer = agent.ask("hi").on("message_replaced", move |_: &mut MessageReplaced, _| to.add("replaced")).await?;
    assert_eq!((answer.model_answer(), log.lines().len()), (&answer.answer, 0));
    assert_eq!(last(&answer.messages), &answer.answer);
    Ok(())
}

/// The ends of a run after its answer, with the text that the history keeps in its place.
fn ends() -> Vec<(&'static str, &'static str)> {
    vec![
        ("a guard of agent.run", "(withheld by desk)"),
        ("an output guard", "(withheld by desk)"),
        ("a halt", "(withheld by brake)"),
        ("a failure", ""),
        ("an interrupt", ""),
        ("a panic", ""),
        ("a timeout", ""),
        ("an abort", ""),
        ("a drop", ""),
        ("a listener of the answer", ""),
        ("a listener of success", ""),
        ("a listener of message", ""),
    ]
}

fn agent_that_ends(end: &str, agent: AgentBuilder) -> AgentBuilder {
    let fails = |error: fn() -> Error| map_output(move |_: &mut AgentOutput, _: &RunContext| Err(error()));
    match end {
        "a guard of agent.run" => agent.hooks(|hooks| _ = hooks.agent_run(|stack| stack.guard(Deny))),
        "an output guard" => agent.middleware(fails(|| Error::new("no")).named("desk").guard()),
        "a halt" => agent.middleware(fails(|| Error::halted("brake", "enough"))),
        "a failure" => agent.middleware(fails(|| Error::new("broken"))),
        "an interrupt" => agent.middleware(fails(|| Error::interrupted(Interrupt::new("question", 1)))),
        "a panic" => agent.middleware(map_output(|_: &mut AgentOutput, _: &RunContext| panic!("planned"))),
        "a listener of the answer" => agent.middleware(|ctx: &RunContext| {
            ctx.emitter().on("success", |_: &mut AgentSuccess, _| Err("late".into()))?;
            Ok(())
        }),
        "a listener of success" => agent.middleware(|ctx: &RunContext| {
            ctx.emitter().on(Stage::Success, |_: &mut Success<AgentInput, AgentOutput>, _| Err("late".into()))?;
            Ok(())
        }),
        "a listener of message" => {
            agent.middleware(|ctx: &RunContext| {
                ctx.emitter().on("message", |event: &mut MessageAdded, _| {
                    if event.message.text() == "secret" { Err("late".into()) } else { Ok(()) }
                })?;
                Ok(())
            })
        }
        _ => agent.middleware(map_output_async(|_: &mut AgentOutput, _: &RunContext| Box::pin(std::future::pending()))),
    }
}

// A12
#[tokio::test(start_paused = true)]
async fn an_answer_that_the_run_does_not_return_leaves_the_history_or_is_replaced_if_a_guard_withholds_it() -> Result<()>
{
    for (end, text) in ends() {
        let (session, log, abort) = (Session::new(), Log::default(), AbortHandle::new());
        let script = says(&["secret", "next"]);
        let ending = agent_that_ends(end, agent(&script)).build()?;
        let to = log.clone();
        let run = ending.ask("hi").session(&session).abort_on(&abort).on(
            "message_replaced",
            move |event: &mut MessageReplaced, _| {
                to.add(format!("{} -> {}", event.before.as_ref().map_or("-".into(), |m| m.text()), event.after.text()));
            },
        );
        let second = Duration::from_secs(1);
        match end {
            "a drop" => assert!(tokio::time::timeout(second, run).await.is_err()),
            "a timeout" => assert!(run.timeout(second).await.unwrap_err().is_timed_out()),
            "an abort" => {
                let aborts = async {
                    tokio::time::sleep(second).await;
                    abort.abort("enough");
                };
                assert!(tokio::join!(run.into_future(), aborts).0.unwrap_err().is_aborted());
            }
            _ => drop(run.await.expect_err(end)),
        }
        if text.is_empty() {
            assert_eq!((texts(&session), log.lines()), (vec!["hi".to_owned()], Vec::new()), "{end}");
            let json = serde_json::to_string(&session).expect("JSON");
            let stored: Session = serde_json::from_str(&json).expect(&json);
            let next = agent(&says(&[])).build()?;
            assert_eq!(next.resume(&stored).await?.text(), "secret", "{end}");
        } else {
            assert_eq!(texts(&session), ["hi", text], "{end}");
            assert_eq!(log.lines(), [format!("- -> {text}")], "{end}");
        }
        // The next turn does not read the answer.
        agent(&script).build()?.ask("again").session(&session).await?;
        let sent = serde_json::to_string(&script.requests()[1]).expect("JSON");
        assert!(!sent.contains("secret"), "{end}: {sent}");
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_with_calls_that_is_withheld_keeps_its_calls_without_arguments() -> Result<()> {
    let session = Session::new();
    let stop = tool_fn("stop", "Stops", |_: Text, _: RunContext| async { Ok(ToolOutput::new("ok").terminate()) })?;
    let script = ScriptedModel::new("test").call("stop", json!({"text": "secret"}));
    let agent = agent(&script).tool(stop).hooks(|hooks| _ = hooks.agent_run(|stack| stack.guard(Deny))).build()?;
    assert!(agent.ask("hi").session(&session).await.unwrap_err().is_denied());
    let history = assert_valid(&session);
    assert_eq!(history.messages()[1].text(), "(withheld by desk)");
    let calls: Vec<_> = history.messages()[1].tool_calls().map(|call| call.arguments.to_string()).collect();
    assert_eq!(calls, ["{}"]);
    Ok(())
}

#[tokio::test]
async fn answers_of_earlier_rounds_are_kept_and_only_the_last_answer_passes_output_functions() -> Result<()> {
    let session = Session::new();
    let agent = agent(&says(&["a", "b"]))
        .hooks(|hooks| {
            hooks.on_end(|more, ctx| {
                if emitree_agent::AgentContext::turn(ctx).is_some_and(|turn| turn.number == 1) {
                    more.push(Message::user("sure?"));
                }
            });
        })
        .middleware(map_output(mark("!")))
        .build()?;
    let answer = agent.ask("hi").session(&session).await?;
    assert_eq!(texts(&session), ["hi", "a", "sure?", "b!"]);
    assert_eq!((answer.text(), answer.model_answer().text()), ("b!".to_owned(), "b".to_owned()));
    Ok(())
}

// A12
#[tokio::test]
async fn secrets_that_a_redaction_restores_reach_the_caller_and_not_the_history() -> Result<()> {
    const MAIL: &str = "maria@mailbox.org";
    for output_function in [false, true] {
        let session = Session::new();
        let script = ScriptedModel::by("test", |request| emitree_agent::Reply::text(request.last_user_text()));
        let mut builder = agent(&script);
        if output_function {
            builder = builder.middleware(map_output(mark("!")));
        }
        let redact = Redact::new().strategy(Strategy::Pseudonym).restore_output();
        let pseudonym = redact.text(MAIL).into_owned();
        let answer = builder.build()?.ask(MAIL).session(&session).middleware(for_tree(redact)).await?;
        let end = if output_function { "!" } else { "" };
        assert_eq!(answer.text(), format!("{MAIL}{end}"));
        assert_eq!(texts(&session), [pseudonym.clone(), format!("{pseudonym}{end}")]);
    }
    Ok(())
}

// A12
#[tokio::test]
async fn a_pseudonym_of_an_earlier_turn_never_becomes_another_person() -> Result<()> {
    const MARIA: &str = "maria@mailbox.org";
    let script = ScriptedModel::by("test", |request| emitree_agent::Reply::text(request.messages[0].text()));
    let agent = agent(&script).build()?;
    let conversation = Pseudonyms::new();
    let redact = |key: &str| Redact::new().strategy(Strategy::Pseudonym).hash_key(key).restore_output();
    let unknown = redact("key").text(MARIA).into_owned();
    // Without a mapping that outlives the run, the second turn leaves the pseudonym as it is.
    for (pseudonyms, keys, expected) in [
        (None, ["key", "key"], &*unknown),
        (Some(&conversation), ["key", "key"], MARIA),
        (Some(&conversation), ["key", "another key"], MARIA),
    ] {
        let (session, mut answers) = (Session::new(), Vec::new());
        for (mail, key) in [MARIA, "eve@mailbox.org"].into_iter().zip(keys) {
            let redact = pseudonyms.into_iter().fold(redact(key), Redact::pseudonyms);
            answers.push(agent.ask(mail).session(&session).middleware(for_tree(redact)).await?.text());
        }
        assert_eq!(answers, [MARIA, expected]);
    }
    Ok(())
}

/// Returns the word of a layer as the answer.
fn answer_of_layer() -> AgentOutput {
    AgentOutput::new(Message::assistant("from the layer"))
}

// A12
#[tokio::test]
async fn a_layer_that_answers_instead_of_the_agent_leaves_question_and_answer_in_the_session() -> Result<()> {
    for by in ["a layer", "start"] {
        let (session, log) = (Session::new(), Log::default());
        let script = says(&["a"]);
        let mut builder = agent(&script).middleware(map_output(mark("!")));
        builder = match by {
            "a layer" => builder.hooks(|hooks| {
                hooks.agent_run(|stack| {
                    stack.layer_fn("answers", |_: &AgentInput, _, _: Next<'_, Agent>| {
                        Box::pin(async { Ok(answer_of_layer()) })
                    })
                });
            }),
            _ => builder.middleware(|ctx: &RunContext| {
                ctx.emitter().on(Stage::Start, |start: &mut Start<AgentInput, AgentOutput>, _| {
                    start.output = Some(answer_of_layer());
                })?;
                Ok(())
            }),
        };
        let to = log.clone();
        let agent = builder.build()?;
        let run = agent.ask("hi").session(&session).on("message", move |event: &mut MessageAdded, _| {
            to.add(event.message.text());
        });
        let answer = run.await?;
        assert_eq!(answer.text(), "from the layer!");
        assert_eq!(texts(&session), ["hi", "from the layer!"], "{by}");
        assert_eq!(log.lines(), ["hi", "from the layer!"], "{by}");
        let messages: Vec<_> = answer.messages.iter().map(|message| message.text()).collect();
        assert_eq!(messages, ["hi", "from the layer!"], "{by}: the messages contain the question");
        assert!(script.requests().is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn the_answer_of_an_alternative_agent_follows_the_question_in_the_session() -> Result<()> {
    let session = Session::new();
    let spare = Agent::builder("spare", ChatModel::new(says(&["from the spare agent"]))?).build()?;
    let script = ScriptedModel::new("test").error(Error::new("down"));
    let agent = agent(&script).middleware(Fallback::to(spare)).build()?;
    let answer = agent.ask("hi").session(&session).await?;
    assert_eq!(answer.text(), "from the spare agent");
    assert_eq!(texts(&session), ["hi", "from the spare agent"]);
    let messages: Vec<_> = answer.messages.iter().map(|message| message.text()).collect();
    assert_eq!(messages, ["hi", "from the spare agent"]);
    Ok(())
}

fn answering(name: &str) -> Tool {
    tool_fn(name, "Answers", |args: Text, _: RunContext| async move { Ok(ToolOutput::new(args.text).answer()) })
        .expect("a tool")
}

fn calls<'a>(calls: &[(&'a str, &'a str)]) -> ScriptedModel {
    let calls: Vec<_> = calls.iter().map(|(name, text)| (*name, json!({"text": text}))).collect();
    ScriptedModel::new("test").calls(calls).text("by the model")
}

#[tokio::test]
async fn the_first_answer_of_a_tool_is_the_answer_of_the_run_if_all_results_end_the_loop() -> Result<()> {
    type Calls = &'static [(&'static str, &'static str)];
    let table: [(Calls, &str, u32); 4] = [
        (&[("tell", "one")], "one", 1),
        (&[("tell", "one"), ("say", "two")], "one", 1),
        (&[("end", "one"), ("say", "two")], "two", 1),
        (&[("tell", "one"), ("shout", "two")], "by the model", 2),
    ];
    for (called, text, turns) in table {
        let session = Session::new();
        let end = tool_fn("end", "Ends", |_: Text, _: RunContext| async { Ok(ToolOutput::new("end").terminate()) })?;
        let agent = agent(&calls(called)).tool(answering("tell")).tool(answering("say")).tool(end).build()?;
        let answer = agent.ask("hi").session(&session).await?;
        assert_eq!((answer.text().as_str(), answer.turns), (text, turns), "{called:?}");
        let history = assert_valid(&session);
        assert_eq!((last(history.messages()), last(&answer.messages)), (&answer.answer, &answer.answer));
    }
    Ok(())
}

#[tokio::test]
async fn the_answer_of_a_tool_passes_stages_and_guards_and_is_a_token_if_the_run_streams() -> Result<()> {
    for (word, streams) in [("secret", false), ("secret", true), ("forbidden", true)] {
        let (session, log) = (Session::new(), Log::default());
        let to = log.clone();
        let agent = agent(&calls(&[("tell", word)]))
            .tool(answering("tell"))
            .hooks(move |hooks| {
                hooks.chunks(|| {
                    |chunks: &mut Chunks, _: &RunContext| {
                        for delta in &mut chunks.deltas {
                            if let Delta::Text(text) = delta {
                                *text = text.replace("secret", "***");
                            }
                        }
                        Ok(())
                    }
                });
                hooks.model_call(|stack| stack.guard(NotForbidden(to.clone())));
            })
            .build()?;
        let to = log.clone();
        let mut run = agent.ask("hi").session(&session);
        if streams {
            run = run.on_token(move |token| to.add(format!("token {}", token.text())));
        }
        let result = run.await;
        let said = word.replace("secret", "***");
        let mut expected = vec!["guard ".to_owned()];
        expected.extend(streams.then(|| format!("token {said}")));
        expected.push(format!("guard {said}"));
        assert_eq!(log.lines(), expected);
        if word == "forbidden" {
            let denied = ErrorKind::Denied { by: "not_forbidden".to_owned() };
            assert_eq!(result.unwrap_err().kind(), &denied);
            assert_eq!(texts(&session), ["hi", "", ""]);
        } else {
            assert_eq!(result?.text(), "***");
            assert_eq!(texts(&session), ["hi", "", "", "***"]);
        }
    }
    Ok(())
}
