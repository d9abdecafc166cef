//! Places: the order of hooks, the values that hooks change, and the effects of failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use emitree_agent::hook::Compaction;
use emitree_agent::{
    Agent, AgentBuilder, AgentContext, AgentMiddleware, AgentRun, CallId, ChatModel, ChatOptions, ChatRequest, Chunks,
    Hooks, HooksFn, How, Message, Place, Reply, ScriptedModel, Session, Tool, ToolOutput, TurnDecision, hooks_fn,
    joins, tool_fn,
};
use emitree_middleware::Runs;
use emitree_runtime::{Error, Interrupt, Next, Result, RunContext, Runnable, for_tree};
use serde_json::json;

use crate::support::{Log, Text, agent, assert_valid, results};

/// Registers a hook at `place`. The hook logs `id`, the place and the id of the tool call, if there is one. At some
/// places, it also adds `id` to the value.
fn mark_at(hooks: &mut Hooks, place: Place, id: &'static str, log: &Log) {
    let log = log.clone();
    let add = move |call: &str| log.add(format!("{id} {place} {call}").trim_end());
    match place {
        Place::AgentRun => {
            hooks.agent_run(|stack| {
                stack.layer_fn(id, move |input, _, next: Next<'_, Agent>| {
                    add("");
                    Box::pin(async move { next.run(input).await })
                })
            });
        }
        Place::ModelCall => {
            hooks.model_call(|stack| {
                stack.layer_fn(id, move |input, _, next: Next<'_, ChatModel>| {
                    add("");
                    Box::pin(async move { next.run(input).await })
                })
            });
        }
        Place::ToolCall => {
            hooks.tool_call(|stack| {
                stack.layer_fn(id, move |input, ctx, next: Next<'_, Tool>| {
                    add(&ctx.own_extension::<CallId>().expect("a call").0);
                    Box::pin(async move { next.run(input).await })
                })
            });
        }
        Place::AgentStart => drop(hooks.on_start(move |_| add(""))),
        Place::AgentMessage => drop(hooks.on_message(move |(): (), _| add(""))),
        Place::ToolRestore => drop(hooks.on_restore(move |open, _| add(&open.call().id))),
        Place::SteerInject => drop(hooks.on_inject(move |_, _| add(""))),
        Place::SteerSkip => drop(hooks.on_skip(move |_, _| add(""))),
        Place::ModelState => drop(hooks.on_state(move |history, _| {
            add("");
            Ok(history.extend([Message::user(id)])?)
        })),
        Place::ContextCompact => drop(hooks.on_compact(move |messages, _| {
            add("");
            messages.push(Arc::new(Message::user(id)));
        })),
        Place::ModelContext => drop(hooks.on_context(move |messages, _| {
            add("");
            messages.push(Arc::new(Message::user(id)));
        })),
        Place::ModelPrompt => drop(hooks.on_prompt(move |prompt, _| {
            add("");
            prompt.push_str(id);
        })),
        Place::ModelWire => drop(hooks.on_wire(move |messages, _| {
            add("");
            messages.push(Arc::new(Message::user(id)));
        })),
        Place::ModelRequest => drop(hooks.on_request(move |call, _| {
            add("");
            call.request.options.seed = Some(1);
        })),
        Place::ModelChunk => drop(hooks.chunks(move || {
            let add = add.clone();
            move |chunks: &mut Chunks, _: &RunContext| {
                if chunks.ended {
                    add("");
                }
                Ok(())
            }
        })),
        Place::TurnAction => drop(hooks.on_action(move |_, _| add(""))),
        Place::ToolResolve => drop(hooks.on_resolve(move |call, _| {
            add(&call.id);
            Ok(None)
        })),
        Place::ToolGate => drop(hooks.on_gate_each(move |gated, _| add(&gated.call.id))),
        Place::ToolResult => drop(hooks.on_result(move |result, _| {
            add(&result.call.id);
            result.output = ToolOutput::new(format!("{}{id}", result.output.text()));
        })),
        Place::TurnStop => drop(hooks.on_stop(move |_, _| {
            add("");
            Ok(false)
        })),
        Place::RunEnd => drop(hooks.on_end(move |_, _| add(""))),
    }
}

/// A middleware with a hook at each of these places.
fn mark(places: &'static [Place], id: &'static str, log: &Log) -> HooksFn {
    let log = log.clone();
    hooks_fn(id, move |hooks| places.iter().for_each(|place| mark_at(hooks, *place, id, &log)))
}

/// A middleware that compacts the history after all hooks of `model.state`, so that `context.compact` is reached in each
/// turn.
fn compacts() -> HooksFn {
    hooks_fn("compacts", |hooks| {
        hooks.tools_async(|ctx| {
            Box::pin(async move {
                let mut history = ctx.history().expect("an agent");
                drop(Compaction::begin(&mut history, 1, ctx).await?);
                Ok(Vec::new())
            })
        });
    })
}

/// The number of times that a place is reached in a run of two model calls and one tool call. At `steer.inject` and
/// `steer.skip`, the user interjects, and the tool call is skipped.
const fn passed(place: Place) -> usize {
    match place {
        // No call was left open.
        Place::ToolRestore => 0,
        Place::AgentRun
        | Place::AgentStart
        | Place::ToolResolve
        | Place::ToolGate
        | Place::ToolCall
        | Place::ToolResult
        | Place::AgentMessage
        | Place::SteerInject
        | Place::SteerSkip
        | Place::RunEnd => 1,
        Place::ModelState | Place::ContextCompact | Place::ModelContext | Place::ModelPrompt | Place::ModelWire => 2,
        Place::ModelRequest | Place::ModelCall | Place::ModelChunk | Place::TurnAction | Place::TurnStop => 2,
    }
}

/// The depth of the agent in the run that the test starts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Depth {
    TopLevel,
    /// The agent is a tool of another agent.
    SubAgent,
    /// The agent is a tool of an agent that is a tool of another agent.
    SubAgentOfSubAgent,
    /// Another agent calls a tool. This tool runs a second tool, and the second tool runs the agent.
    ToolOfATool,
}

/// The binding of the second middleware. The first middleware is always added to the agent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    OnTheAgent,
    OnTheRun,
    FromAbove,
}

/// Makes a tool that runs an agent in a session. `of_run` is added to the agent's run.
fn asking(agent: &Agent, of_run: Option<HooksFn>, session: &Session) -> Result<Tool> {
    let (agent, session) = (agent.clone(), session.clone());
    Ok(tool_fn("below", "Asks below", move |args: Text, _: RunContext| {
        let (agent, of_run, session) = (agent.clone(), of_run.clone(), session.clone());
        async move {
            let run = agent.ask(args.text).session(&session);
            Ok(of_run.into_iter().fold(run, AgentRun::with).await?.text())
        }
    })?)
}

/// Makes an agent that calls a tool once.
fn above(tool: Tool) -> Result<Agent> {
    let arguments = json!({"text": "go", "task": "go"});
    let script = ScriptedModel::new("outer").call(&tool.spec().name, arguments).text("done");
    Agent::builder("outer", ChatModel::new(script)?).tool(tool).build()
}

/// Runs an agent at a depth. `of_run` is added to the agent's run, and `from_above` is bound to the outermost run. If the
/// run needs no session, `as_tool` makes it.
async fn ask_at(
    depth: Depth,
    agent: &Agent,
    of_run: Option<HooksFn>,
    from_above: Option<HooksFn>,
    session: Option<&Session>,
) -> Result<()> {
    let as_tool = || match (&of_run, session) {
        // `as_tool` creates the agent's run itself, so `asking` is needed to add a middleware or a session to that run.
        (None, None) => Ok(agent.as_tool("Asks")?),
        _ => asking(agent, of_run.clone(), &session.cloned().unwrap_or_default()),
    };
    let outermost = match depth {
        Depth::TopLevel => agent.clone(),
        Depth::SubAgent => above(as_tool()?)?,
        Depth::SubAgentOfSubAgent => above(above(as_tool()?)?.as_tool("Asks")?)?,
        Depth::ToolOfATool => {
            let inner = asking(agent, of_run.clone(), &session.cloned().unwrap_or_default())?;
            above(tool_fn("outer_tool", "Calls a tool", move |args: Text, _: RunContext| {
                let inner = inner.clone();
                async move { Ok(inner.run(json!({"text": args.text})).await?.text()) }
            })?)?
        }
    };
    let of_outermost = of_run.filter(|_| depth == Depth::TopLevel);
    let of_top_level = session.filter(|_| depth == Depth::TopLevel).cloned().unwrap_or_default();
    let run = of_outermost.into_iter().fold(outermost.ask("go").session(&of_top_level), AgentRun::with);
    let run = from_above
        .into_iter()
        .fold(run, |run, hooks| run.middleware(for_tree(Runs::named("tester").only(joins(hooks)))));
    run.await.map(drop)
}

// A2
#[tokio::test]
async fn hooks_of_each_place_are_called_in_middleware_order_streamed_or_not_at_every_depth() -> Result<()> {
    for place in &Place::ALL {
        for streams in [false, true] {
            for depth in [Depth::TopLevel, Depth::SubAgent, Depth::SubAgentOfSubAgent, Depth::ToolOfATool] {
                for bound in [Bound::OnTheAgent, Bound::OnTheRun, Bound::FromAbove] {
                    let (log, session) = (Log::default(), Session::new());
                    let is_steered = matches!(place, Place::SteerInject | Place::SteerSkip);
                    let (user, calls) = (session.clone(), AtomicU32::new(0));
                    let script = ScriptedModel::by("inner", move |_| {
                        if calls.fetch_add(1, Ordering::Relaxed) > 0 {
                            return Reply::text("done").in_pieces(2);
                        }
                        if is_steered {
                            user.interject("stop").expect("it is sent");
                        }
                        Reply::calls([("shout", json!({"text": "a"}))]).in_pieces(2)
                    });
                    let mut options = ChatOptions::default();
                    options.stream = Some(streams);
                    let first = mark(std::slice::from_ref(place), "1", &log);
                    let builder = agent(&script).options(options).with(compacts()).with(first);
                    let second = |at| (bound == at).then(|| mark(std::slice::from_ref(place), "2", &log));
                    let agent = second(Bound::OnTheAgent).into_iter().fold(builder, AgentBuilder::with).build()?;
                    if *place == Place::AgentMessage {
                        ["1", "2"].into_iter().for_each(|id| session.send(id, ()).expect("it is sent"));
                    }
                    let session = (is_steered || *place == Place::AgentMessage).then_some(&session);
                    ask_at(depth, &agent, second(Bound::OnTheRun), second(Bound::FromAbove), session).await?;
                    // At `model.wire`, only the last registered hook is called.
                    let each: &[&str] = if *place == Place::ModelWire { &["2"] } else { &["1", "2"] };
                    let expected = each.repeat(passed(*place));
                    let lines = log.lines();
                    let ids: Vec<_> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
                    assert_eq!(ids, expected, "{place}, streams {streams}, {depth:?}, bound {bound:?}");
                    assert!(script.requests().iter().all(|request| request.options.stream == Some(streams)));
                }
            }
        }
    }
    Ok(())
}

/// The places of a run in order. The first response calls two tools, and the second response is the answer. The numbers
/// after a place are the ids of calls: each hook of the place is called for all these calls before the next hook is
/// called. A message waits when the run begins, and one for each middleware; `steer.skip` needs an interjection, after which no tool works.
const WHOLE_RUN: &str = "agent.run, agent.start, agent.message, steer.inject
    model.state, context.compact
    model.context, model.prompt, model.wire, model.request, model.call, model.chunk, turn.action
    tool.resolve 0, tool.resolve 1, tool.gate 0 1, tool.call 0, work 0, tool.call 1, work 1, tool.result 0, tool.result 1
    turn.stop
    model.state, context.compact
    model.context, model.prompt, model.wire, model.request, model.call, model.chunk, turn.action
    turn.stop
    run.end";

/// Returns the expected log of [`WHOLE_RUN`]. `ids` returns the ids of the hooks that are called at a place.
fn whole_run<'a>(ids: impl Fn(&str) -> &'a [&'a str]) -> Vec<String> {
    let mut lines = Vec::new();
    for step in WHOLE_RUN.split([',', '\n']).map(str::trim) {
        let (place, calls) = step.split_once(' ').unwrap_or((step, ""));
        for id in ids(place) {
            lines.extend(calls.split(' ').map(|call| format!("{id} {place} {call}").trim_end().to_owned()));
        }
    }
    lines
}

/// An agent that calls the tool `work` twice. If `has_own` is set, its builder has a hook at each place.
fn working(streams: bool, has_own: bool, log: &Log) -> Result<AgentBuilder> {
    let to = log.clone();
    let work = tool_fn("work", "Works", move |_: Text, ctx: RunContext| {
        to.add(format!("tool work {}", ctx.own_extension::<CallId>().expect("a call").0));
        async { Ok("done") }
    });
    let script = ScriptedModel::new("inner")
        .reply(Reply::calls(["a", "b"].map(|text| ("work", json!({ "text": text })))).in_pieces(2))
        .reply(Reply::text("done").in_pieces(2));
    let mut options = ChatOptions::default();
    options.stream = Some(streams);
    let builder = agent(&script).tool(work).options(options).with(compacts());
    let own = |hooks: &mut Hooks| Place::ALL.iter().for_each(|place| mark_at(hooks, *place, "own", log));
    Ok(if has_own { builder.hooks(own) } else { builder })
}

// A2, A6
#[tokio::test]
async fn a_run_passes_all_places_in_order_and_the_hooks_of_the_builder_replace_others_except_guards() -> Result<()> {
    for (has_own, are_guards) in [(false, false), (true, false), (true, true)] {
        for streams in [false, true] {
            for depth in [Depth::TopLevel, Depth::SubAgent, Depth::SubAgentOfSubAgent, Depth::ToolOfATool] {
                let log = Log::default();
                let hooks =
                    |id| if are_guards { mark(&Place::ALL, id, &log).guard() } else { mark(&Place::ALL, id, &log) };
                let agent = working(streams, has_own, &log)?.with(hooks("agent")).build()?;
                let session = Session::new();
                session.steer("and now").expect("it is sent");
                // At the top level, both middlewares are bound to the same run, `run` first.
                let is_nested = depth != Depth::TopLevel;
                let all = if is_nested { ["own", "agent", "above", "run"] } else { ["own", "agent", "run", "above"] };
                for id in all {
                    session.send(if id == "own" { "builder" } else { id }, ()).expect("it is sent");
                }
                ask_at(depth, &agent, Some(hooks("run")), Some(hooks("above")), Some(&session)).await?;
                let expected = whole_run(|place| match place {
                    "work" => &["tool"],
                    // Every gate is a guard, and each message is for one middleware.
                    _ if has_own && !are_guards && !["tool.gate", "agent.message"].contains(&place) => &all[..1],
                    // Only the last hook is called.
                    "model.wire" => &all[3..],
                    _ => &all[usize::from(!has_own)..],
                });
                assert_eq!(log.lines(), expected, "own {has_own}, guards {are_guards}, streams {streams}, {depth:?}");
            }
        }
    }
    Ok(())
}

/// Runs an agent with a script and a middleware. Returns the result, the requests and the session.
async fn ask(
    script: ScriptedModel,
    install: impl Fn(&mut Hooks) + Send + Sync + 'static,
) -> (Result<emitree_agent::AgentOutput>, Vec<ChatRequest>, Session) {
    let session = Session::new();
    let agent = agent(&script).prompt("base").with(compacts()).with(hooks_fn("m", install)).build().expect("an agent");
    let result = agent.ask("go").session(&session).await;
    assert_valid(&session);
    (result, script.requests(), session)
}

fn two_turns() -> ScriptedModel {
    ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done")
}

#[tokio::test]
async fn a_context_hook_changes_a_copy_and_a_state_hook_changes_the_history() -> Result<()> {
    let (result, requests, session) = ask(two_turns(), |hooks| {
        hooks.on_context(|messages, _| drop(messages.drain(..messages.len() - 1)));
        hooks.on_state(|history, ctx| {
            if ctx.turn().expect("an agent").number == 1 {
                history.extend([Message::user("kept")])?;
            }
            Ok(())
        });
    })
    .await;
    assert_eq!(result?.text(), "done");
    assert_eq!(requests.iter().map(|request| request.messages.len()).collect::<Vec<_>>(), [1, 1]);
    let texts: Vec<_> = session.history().messages().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["go", "kept", "", "", "done"]);
    Ok(())
}

#[tokio::test]
async fn prompts_are_joined_transformed_and_sent_on_the_wire_as_the_first_message() -> Result<()> {
    let (_, requests, _) = ask(two_turns(), |hooks| {
        hooks.prompt(|_| Ok("one".to_owned()));
        hooks.prompt(|_| Ok(" ".to_owned()));
        hooks.prompt(|ctx| Ok(format!("turn {}", ctx.turn().expect("an agent").number)));
        hooks.on_prompt(|prompt, _| prompt.insert(0, '>'));
        hooks.on_wire(|messages, _| messages.push(Arc::new(Message::user("last"))));
    })
    .await;
    let wire: Vec<_> = requests[1].messages.iter().map(|message| message.text()).collect();
    assert_eq!(wire, [">base\n\none\n\nturn 2", "go", "", "", "last"]);
    assert_eq!(requests[1].system, None);
    Ok(())
}

#[tokio::test]
async fn an_action_hook_can_stop_the_run_call_the_model_again_inject_and_replace_messages() -> Result<()> {
    let (result, requests, session) = ask(two_turns(), |hooks| {
        hooks.on_action(|action, _| action.decision = Some(TurnDecision::Stop));
    })
    .await;
    assert_eq!((result?.turns, requests.len()), (1, 1));
    assert_eq!(results(session.history().messages()), ["!not executed: the run ends here"]);

    let (result, _, session) = ask(two_turns(), |hooks| {
        hooks.on_action(|action, ctx| {
            if ctx.turn().expect("an agent").number == 1 {
                action.decision = Some(TurnDecision::LoopToModel);
                action.inject.push(Message::user("try without tools"));
            }
        });
    })
    .await;
    assert_eq!(result?.text(), "done");
    assert_eq!(results(session.history().messages()), ["!not executed: the model is asked again"]);
    assert_eq!(session.history().messages()[3].text(), "try without tools");

    // After an injected message, the model is called again. The history keeps the response with which the hook replaced
    // the model's response.
    let (result, _, session) = ask(ScriptedModel::new("test").text("bad").text("good"), |hooks| {
        hooks.on_action(|action, _| {
            if action.response.text() == "bad" {
                action.response.message = Message::assistant("[removed]");
                action.inject.push(Message::user("politely"));
            }
        });
    })
    .await;
    assert_eq!(result?.text(), "good");
    let texts: Vec<_> = session.history().messages().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["go", "[removed]", "politely", "good"]);
    Ok(())
}

#[tokio::test]
async fn a_gate_can_answer_skip_deny_and_edit_calls() -> Result<()> {
    let script = || {
        let calls = ["answer", "skip", "deny", "edit", "fail"].map(|text| ("shout", json!({ "text": text })));
        ScriptedModel::new("test").calls(calls).text("done")
    };
    let (hows, asked) = (Log::default(), Log::default());
    let (to, asks) = (hows.clone(), asked.clone());
    let (result, _, _) = ask(script(), move |hooks| {
        hooks.on_gate_each(|gated, _| {
            match gated.call.arguments.json().expect("JSON")["text"].as_str() {
                Some("answer") => gated.answer(ToolOutput::new("answered")),
                Some("skip") => gated.skip("not today"),
                Some("deny") => gated.deny("policy", "never"),
                Some("edit") => gated.call.arguments = json!({"text": "edited"}).into(),
                _ => return Err(Error::new("confused")),
            }
            Ok(())
        });
        // This hook is not called for calls that have a verdict.
        let (to, asks) = (to.clone(), asks.clone());
        hooks.on_gate_each(move |gated, _| asks.add(gated.call.arguments.to_string()));
        hooks.on_result(move |result, _| to.add(format!("{:?}", result.how)));
    })
    .await;
    let expected = ["answered", "not today", "!denied by policy: never", "EDITED", "!denied by m: confused"];
    assert_eq!(results(&result?.messages), expected);
    assert_eq!(hows.lines(), ["Answered", "Skipped", "Denied", "Executed", "Denied"]);
    assert_eq!(asked.lines(), [r#"{"text":"edited"}"#]);

    // A failed batch gate denies all calls that have no verdict yet.
    let (result, _, _) = ask(script(), |hooks| {
        hooks.on_gate(|batch, _| {
            batch.open().next().expect("a call").answer(ToolOutput::new("early"));
            Err(Error::new("broken gate"))
        });
    })
    .await;
    let denied = "!denied by m: broken gate";
    assert_eq!(results(&result?.messages), ["early", denied, denied, denied, denied]);
    Ok(())
}

#[tokio::test]
async fn a_gate_can_interrupt_a_call_and_other_calls_start_after_the_gate_has_decided_on_all_calls() -> Result<()> {
    let script = ScriptedModel::new("test").calls(["a", "b", "c"].map(|text| ("shout", json!({ "text": text }))));
    let log = Log::default();
    let to = log.clone();
    let (result, _, session) = ask(script, move |hooks| {
        let (gates, starts, ends) = (to.clone(), to.clone(), to.clone());
        hooks.on_gate_each(move |gated, _| {
            gates.add(format!("gate {}", gated.call.id));
            if gated.call.id == "1" { Err(Error::interrupted(Interrupt::new("approval", json!(null)))) } else { Ok(()) }
        });
        hooks.tool_call(|stack| {
            stack.layer_fn("starts", move |input, ctx, next: Next<'_, Tool>| {
                starts.add(format!("start {}", ctx.own_extension::<CallId>().expect("a call").0));
                Box::pin(async move { next.run(input).await })
            })
        });
        hooks.on_result(move |result, _| ends.add(format!("result {}", result.call.id)));
    })
    .await;
    assert!(result.unwrap_err().is_interrupted());
    assert_eq!(log.lines(), ["gate 0", "gate 1", "gate 2", "start 0", "start 2", "result 0", "result 2"]);
    assert_eq!(results(session.history().messages()), ["A", "!not executed: interrupted", "C"]);
    Ok(())
}

#[tokio::test]
async fn the_first_resolver_wins_and_the_call_keeps_its_id() -> Result<()> {
    let (result, _, _) = ask(ScriptedModel::new("test").call("yell", json!({"text": "a"})).text("done"), |hooks| {
        hooks.on_resolve(|call, _| {
            Ok((call.name == "yell").then(|| emitree_agent::ToolCall::new("other", "shout", call.arguments.clone())))
        });
        hooks.on_resolve(|_, _| Err(Error::new("not asked")));
    })
    .await;
    let answer = result?;
    assert_eq!(results(&answer.messages), ["A"]);
    assert_eq!(answer.messages[2].tool_results().next().expect("one").id, "0");
    Ok(())
}

// A3
#[tokio::test]
async fn the_failure_of_a_result_hook_becomes_the_result_and_its_halt_ends_the_run() -> Result<()> {
    let (result, _, _) = ask(two_turns(), |hooks| {
        hooks.on_result(|_, _| Err(Error::new("unreadable")));
        hooks.on_result(|result, _| {
            if result.how == How::Failed {
                result.output.content = format!("[{}]", result.output.text()).into();
            }
        });
    })
    .await;
    assert_eq!(results(&result?.messages), ["![unreadable]"]);

    let (result, _, session) = ask(two_turns(), |hooks| {
        hooks.on_result(|_, _| Err(Error::halted("m", "enough")));
    })
    .await;
    assert!(result.unwrap_err().is_halted());
    let unchecked = "!the tool was called, but the run ended before its result was checked: it may have had effects";
    assert_eq!(results(session.history().messages()), [unchecked]);
    Ok(())
}

#[tokio::test]
async fn a_stop_hook_can_end_the_run_after_a_turn_and_an_end_hook_can_start_another_round() -> Result<()> {
    let (result, requests, _) = ask(two_turns(), |hooks| {
        hooks.on_stop(|end, _| Ok(end.results.len() == 1));
        hooks.on_stop(|end, _| {
            assert!(end.results.is_empty(), "the first one had said yes");
            Ok(false)
        });
    })
    .await;
    assert_eq!((result?.turns, requests.len()), (1, 1));

    let script = ScriptedModel::new("test").text("first").text("second");
    let (result, _, session) = ask(script, |hooks| {
        hooks.on_end(|more, ctx| {
            if ctx.turn().expect("an agent").number == 1 {
                more.push(Message::user("and?"));
            }
        });
    })
    .await;
    assert_eq!(result?.text(), "second");
    let texts: Vec<_> = session.history().messages().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["go", "first", "and?", "second"]);
    Ok(())
}

// A3
#[tokio::test]
async fn a_failing_hook_of_a_model_place_or_of_turn_action_ends_the_run_with_its_error() {
    for place in [
        Place::ModelState,
        Place::ContextCompact,
        Place::ModelContext,
        Place::ModelPrompt,
        Place::ModelWire,
        Place::ModelRequest,
        Place::ModelChunk,
        Place::TurnAction,
    ] {
        let (result, ..) = ask(two_turns(), move |hooks| {
            let fail = || Err(Error::new("broken hook"));
            match place {
                Place::ModelState => drop(hooks.on_state(move |_, _| fail())),
                Place::ContextCompact => drop(hooks.on_compact(move |_, _| fail())),
                Place::ModelContext => drop(hooks.on_context_async(move |_, _| Box::pin(async move { fail() }))),
                Place::ModelPrompt => drop(hooks.on_prompt(move |_, _| fail())),
                Place::ModelWire => drop(hooks.on_wire(move |_, _| fail())),
                Place::ModelRequest => drop(hooks.on_request(move |_, _| fail())),
                Place::ModelChunk => drop(hooks.chunks(move || move |_: &mut Chunks, _: &RunContext| fail())),
                _ => drop(hooks.on_action(move |_, _| fail())),
            }
        })
        .await;
        assert_eq!(result.unwrap_err().to_string(), "broken hook", "{place}");
    }
}

#[tokio::test]
async fn state_is_kept_in_the_session_and_shared_by_the_hooks_and_tools_of_a_middleware() -> Result<()> {
    #[derive(Debug)]
    struct Todos;
    impl AgentMiddleware for Todos {
        fn id(&self) -> &str {
            "todos"
        }
        fn install(&self, hooks: &mut Hooks) -> Result<()> {
            let todos = hooks.state::<Vec<String>>();
            hooks.on_result(move |result, ctx| todos.with(ctx, |todos| todos.push(result.output.text())));
            let todos = hooks.state::<Vec<String>>();
            hooks.prompt(move |ctx| todos.with(ctx, |todos| todos.join(" ")));
            let todos = hooks.state::<Vec<String>>();
            let add = move |args: Text, ctx: RunContext| {
                let added = todos.with(&ctx, |todos| todos.push(args.text));
                async move { added.map(|()| "added") }
            };
            hooks.tool(tool_fn("add", "Adds a todo", add));
            Ok(())
        }
    }
    let add = |text: &str| ("add", json!({ "text": text }));
    let script = ScriptedModel::new("test").calls([add("a")]).text("done").calls([add("b")]).text("done");
    let agent = agent(&script).with(Todos).build()?;
    let session = Session::new();
    agent.ask("go").session(&session).await?;
    agent.ask("go").session(&session).await?;
    let prompts: Vec<_> = script.requests().into_iter().map(|request| request.system).collect();
    let of_first = Some("a added".to_owned());
    assert_eq!(prompts, [None, of_first.clone(), of_first, Some("a added b added".to_owned())]);
    Ok(())
}

// A7
#[tokio::test]
async fn a_second_attempt_begins_with_the_session_as_it_was_before_the_first() -> Result<()> {
    let script = ScriptedModel::new("test").text("bad").text("good");
    let session = Session::new();
    session.extend([Message::user("before"), Message::assistant("yes")])?;
    let answer = agent(&script)
        .build()?
        .ask("go")
        .session(&session)
        .max_middleware_retries(1)
        .middleware(emitree_runtime::map_output(|output: &mut emitree_agent::AgentOutput, _: &RunContext| {
            if output.text() == "bad" { Err(Error::retry("rude")) } else { Ok(()) }
        }))
        .await?;
    assert_eq!(answer.text(), "good");
    let texts: Vec<_> = session.history().messages().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["before", "yes", "go", "good"]);
    Ok(())
}

#[tokio::test]
async fn a_middleware_can_add_tools_and_a_prompt_and_its_id_cannot_be_used_twice() -> Result<()> {
    #[derive(Debug)]
    struct Clock;
    impl AgentMiddleware for Clock {
        fn id(&self) -> &str {
            "clock"
        }
        fn install(&self, hooks: &mut Hooks) -> Result<()> {
            hooks.tool(tool_fn("now", "Tells the time", |_: Nowhere, _: RunContext| async { Ok("noon") }));
            Ok(())
        }
        fn system_prompt(&self) -> Option<String> {
            Some("You know the time.".to_owned())
        }
    }
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Nowhere {}

    let script = ScriptedModel::new("test").call("now", json!({})).text("It is noon.");
    let agent_of = agent(&script).build()?;
    let answer = agent_of.ask("What time is it?").with(Clock).await?;
    assert_eq!(results(&answer.messages), ["noon"]);
    assert_eq!(script.requests()[0].system.as_deref(), Some("You know the time."));

    let twice =
        "the agent has the middleware `clock` twice: ids must be unique, because state and errors are named by id";
    assert_eq!(agent(&script).with(Clock).with(Clock).build().unwrap_err().to_string(), twice);
    let on_run = agent(&script).with(Clock).build()?.ask("x").with(Clock).await.unwrap_err();
    assert_eq!(on_run.to_string(), twice);

    #[derive(Debug)]
    struct Broken;
    impl AgentMiddleware for Broken {
        fn id(&self) -> &str {
            "broken"
        }
        fn init(&self) -> Result<()> {
            Err(Error::new("no database"))
        }
    }
    assert_eq!(agent(&script).with(Broken).build().unwrap_err().to_string(), "no database");
    assert_eq!(agent_of.ask("x").with(Broken).await.unwrap_err().to_string(), "no database");
    Ok(())
}

#[tokio::test]
async fn rounds_of_run_end_are_limited_and_the_history_stays_valid() -> Result<()> {
    let script = ScriptedModel::by("test", |_| Reply::text("again"));
    let session = Session::new();
    let more = hooks_fn("m", |hooks| _ = hooks.on_end(|more, _| more.push(Message::user("and?"))));
    let agent = agent(&script).max_steps(1000).with(more).build()?;
    let error = agent.ask("go").session(&session).await.unwrap_err().to_string();
    assert_eq!(error, "hooks of `run.end` have started 100 rounds, which is the limit");
    assert_eq!(script.requests().len(), 101);
    assert_valid(&session);
    Ok(())
}

#[tokio::test]
async fn the_decision_to_stop_keeps_injected_messages_and_does_not_call_the_model_again() -> Result<()> {
    let (result, requests, session) = ask(two_turns(), |hooks| {
        hooks.on_action(|action, _| {
            action.decision = Some(TurnDecision::Stop);
            action.inject.push(Message::user("for later"));
        });
        // A later hook that sets no decision keeps the earlier decision.
        hooks.on_action(|_, _| ());
    })
    .await;
    assert_eq!((result?.turns, requests.len()), (1, 1));
    let texts: Vec<_> = session.history().messages().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["go", "", "", "for later"]);

    // An invalid injected message fails the run, but the history still has the complete turn.
    let (result, _, session) = ask(two_turns(), |hooks| {
        hooks.on_action(|action, _| action.inject.push(Message::tool([emitree_agent::ToolResult::new("x", 1)])));
    })
    .await;
    assert!(result.unwrap_err().to_string().contains("has a result for the id `x`"));
    assert_eq!(results(session.history().messages()), ["!not executed: the run was stopped"]);
    Ok(())
}

#[tokio::test]
async fn a_later_decision_about_a_turn_replaces_an_earlier_one() -> Result<()> {
    for (decisions, expected) in [
        ([TurnDecision::Stop, TurnDecision::Natural], ["A"]),
        ([TurnDecision::Natural, TurnDecision::LoopToModel], ["!not executed: the model is asked again"]),
        ([TurnDecision::LoopToModel, TurnDecision::Stop], ["!not executed: the run ends here"]),
    ] {
        let (result, _, session) = ask(two_turns(), move |hooks| {
            for decision in decisions {
                hooks.on_action(move |action, _| action.decision = Some(decision));
            }
            // The second response ends the loop, whatever the decision was.
            hooks.on_action(|action, _| {
                if action.response.message.tool_calls().next().is_none() {
                    action.decision = Some(TurnDecision::Stop);
                }
            });
        })
        .await;
        result?;
        assert_eq!(results(session.history().messages()), expected, "{decisions:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_stop_hook_finds_the_finished_turn_in_the_history() -> Result<()> {
    let (session, log) = (Session::new(), Log::default());
    let (of_hook, to) = (session.clone(), log.clone());
    let reads = hooks_fn("reads", move |hooks| {
        let (session, to) = (of_hook.clone(), to.clone());
        hooks.on_stop(move |_, _| {
            to.add(session.history().messages().len().to_string());
            Ok(false)
        });
    });
    agent(&two_turns()).with(reads).build()?.ask("go").session(&session).await?;
    // After the first turn, the history has the question, the call and its result. The second turn adds the answer.
    assert_eq!(log.lines(), ["3", "4"]);
    Ok(())
}
