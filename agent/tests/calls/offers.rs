//! The tools and the model of a turn: the hooks of `model.request`, tools that come and go, the middlewares of a
//! middleware, and the check of a middleware against its agent.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use emitree_agent::hook::AgentSpec;
use emitree_agent::{
    Agent, AgentContext, AgentMiddleware, AgentRun, ChatModel, HookTest, Hooks, HooksFn, ScriptedModel, Session, Tool,
    ToolCall, hooks_fn, joins, tool_fn,
};
use emitree_middleware::{Approval, Runs};
use emitree_runtime::{Error, Result, RunContext, for_tree};
use serde_json::json;

use crate::journal::Journal;
use crate::support::{Log, Text, agent, results};

fn tool(name: &str) -> Tool {
    let reply = name.to_owned();
    tool_fn(name, "Returns its name", move |_: Text, _: RunContext| {
        let reply = reply.clone();
        async move { Ok(reply) }
    })
    .expect("a tool")
}

fn offered(script: &ScriptedModel) -> Vec<Vec<String>> {
    let names = |request: &emitree_agent::ChatRequest| request.tools.iter().map(|tool| tool.name.clone()).collect();
    script.requests().iter().map(names).collect()
}

/// Offers only these tools.
fn offers(names: &'static [&'static str]) -> HooksFn {
    hooks_fn("offers", move |hooks| {
        hooks.on_request(move |call, _| {
            Arc::make_mut(&mut call.request.tools).retain(|tool| names.contains(&tool.name.as_str()));
        });
    })
}

#[tokio::test]
async fn a_call_of_a_tool_that_the_request_did_not_offer_is_not_executed() -> Result<()> {
    let script = ScriptedModel::new("test")
        .calls([("shout", json!({"text": "a"})), ("read", json!({"text": "a"})), ("none", json!({"text": "a"}))])
        .text("done");
    let agent = agent(&script).tool(tool("read")).with(offers(&["read"])).build()?;
    let answer = agent.ask("go").await?;
    let expected =
        ["!`shout` was not offered in this turn", "read", "!there is no tool `none`; available tools: `read`"];
    assert_eq!(results(&answer.messages), expected);
    assert_eq!(offered(&script), [["read"], ["read"]]);
    Ok(())
}

#[tokio::test]
async fn a_call_that_a_resolver_or_a_gate_rewrote_is_executed_although_its_tool_was_not_offered() -> Result<()> {
    let resolves = hooks_fn("resolves", |hooks| {
        hooks.on_resolve(|call, _| {
            let other = ToolCall::new("", "shout", json!({"text": "resolved"}));
            Ok((call.name == "other").then_some(other))
        });
        hooks.on_gate_each(|gated, _| {
            if gated.call.name == "read" {
                gated.call.name = "shout".to_owned();
            }
        });
    });
    let script =
        ScriptedModel::new("test").calls([("other", json!({})), ("read", json!({"text": "gated"}))]).text("done");
    let agent = agent(&script).tool(tool("read")).with(offers(&["read"])).with(resolves).build()?;
    assert_eq!(results(&agent.ask("go").await?.messages), ["RESOLVED", "GATED"]);
    Ok(())
}

#[tokio::test]
async fn a_hook_of_model_request_chooses_another_model_for_one_call() -> Result<()> {
    let large = ScriptedModel::new("large").text("from the large model");
    let model = ChatModel::new(large.clone())?;
    let chooses = hooks_fn("chooses", move |hooks| {
        let model = model.clone();
        hooks.on_request(move |call, ctx| {
            call.request.options.max_tokens = Some(7);
            if ctx.turn().is_some_and(|turn| turn.number == 2) {
                call.model = model.clone();
            }
        });
    });
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"}));
    let agent = agent(&script).with(chooses).build()?;
    let log = Log::default();
    let to = log.clone();
    let run = agent.ask("go").observe("**.run.start", move |_: &dyn emitree_emitter::AnyEvent, meta| {
        to.add(meta.creator().map_or("", |creator| creator.name()));
    });
    assert_eq!(run.await?.text(), "from the large model");
    assert_eq!(log.lines(), ["tester", "test", "shout", "large"]);
    assert_eq!(large.requests()[0].options.max_tokens, Some(7));
    assert_eq!(large.requests()[0].messages.len(), 3);
    Ok(())
}

/// Brings these tools in these turns.
fn brings(id: &'static str, at: impl Fn(u32) -> Vec<Tool> + Send + Sync + 'static) -> HooksFn {
    let at = Arc::new(at);
    hooks_fn(id, move |hooks| {
        let at = Arc::clone(&at);
        hooks.tools(move |ctx| Ok(at(ctx.turn().map_or(0, |turn| turn.number))));
    })
}

#[tokio::test]
async fn tools_are_asked_for_at_each_turn_and_the_specs_are_rebuilt_only_if_a_tool_changed() -> Result<()> {
    let (a, b) = (tool("a"), tool("b"));
    let deferred = brings("deferred", move |turn| match turn {
        1 | 2 => vec![a.clone()],
        3 => vec![a.clone(), b.clone()],
        _ => vec![],
    });
    let call = |name: &str| (name.to_owned(), json!({"text": "x"}));
    let script = ScriptedModel::new("test").calls([call("a"), call("b")]).calls([call("a")]).calls([call("b")]);
    let script = script.calls([call("a")]).text("done");
    for on_run in [false, true] {
        let script = script.clone();
        let (builder, before) = (agent(&script), script.requests().len());
        let answer = if on_run {
            builder.build()?.ask("go").with(deferred.clone()).await
        } else {
            builder.with(deferred.clone()).build()?.ask("go").await
        };
        if on_run {
            // The script has one reply for each turn of the first run only.
            drop(answer);
            continue;
        }
        let expected = [
            "a",
            "!there is no tool `b`; available tools: `shout`, `a`",
            "a",
            "b",
            "!there is no tool `a`; available tools: `shout`",
        ];
        assert_eq!(results(&answer?.messages), expected);
        let offered = offered(&script).split_off(before);
        assert_eq!(
            offered,
            [vec!["shout", "a"], vec!["shout", "a"], vec!["shout", "a", "b"], vec!["shout"], vec!["shout"]]
        );
        let specs: Vec<_> = script.requests().into_iter().map(|request| request.tools).collect();
        assert!(Arc::ptr_eq(&specs[0], &specs[1]) && !Arc::ptr_eq(&specs[1], &specs[2]));
        assert!(Arc::ptr_eq(&specs[3], &specs[4]));
    }
    Ok(())
}

#[tokio::test]
async fn two_tools_of_one_name_end_the_run_with_an_error_that_names_both_origins() -> Result<()> {
    #[derive(Debug)]
    struct Fixed;
    impl AgentMiddleware for Fixed {
        fn id(&self) -> &str {
            "fixed"
        }
        fn install(&self, hooks: &mut Hooks) -> Result<()> {
            hooks.tool(tool("read"));
            Ok(())
        }
    }
    let says = async |middleware: HooksFn, other: Option<HooksFn>| {
        let script = ScriptedModel::new("test").text("a");
        let builder = agent(&script).with(Fixed).with(middleware);
        let builder = other.into_iter().fold(builder, |builder, other| builder.with(other));
        let error = builder.build().expect("an agent").ask("go").await.unwrap_err().to_string();
        assert!(script.requests().is_empty());
        error.strip_prefix("the agent `tester` has two tools called ").expect(&error).to_owned()
    };
    let one = |id, name: &'static str| brings(id, move |_| vec![tool(name)]);
    assert_eq!(says(one("m", "shout"), None).await, "`shout`: one of the agent and one of the middleware `m`");
    assert_eq!(
        says(one("m", "read"), None).await,
        "`read`: one of the middleware `fixed` and one of the middleware `m`"
    );
    assert_eq!(
        says(one("m", "x"), Some(one("n", "x"))).await,
        "`x`: one of the middleware `m` and one of the middleware `n`"
    );
    Ok(())
}

#[tokio::test]
async fn the_error_of_a_function_that_is_asked_for_tools_ends_the_run_and_names_the_function() -> Result<()> {
    let broken = hooks_fn("mcp", |hooks| {
        hooks.tools_async(|_| Box::pin(async { Err(Error::new("the server is gone")) }));
    });
    let agent = agent(&ScriptedModel::new("test").text("a")).with(broken).build()?;
    assert!(agent.ask("go").explain().to_string().contains("mcp.tools"), "{}", agent.ask("go").explain());
    let error = agent.ask("go").await.unwrap_err();
    assert_eq!((error.to_string().as_str(), &error.details()["by"]), ("the server is gone", &json!("mcp.tools")));
    Ok(())
}

/// A middleware whose tool, hooks and listener share their state without a cell.
#[derive(Clone, Debug, Default)]
struct Counts(Arc<AtomicU32>);

impl AgentMiddleware for Counts {
    fn id(&self) -> &str {
        "counts"
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let (in_tool, in_listener) = (Arc::clone(&self.0), Arc::clone(&self.0));
        hooks.tool(tool_fn("count", "Counts", move |_: Text, _: RunContext| {
            let count = in_tool.fetch_add(1, Ordering::Relaxed) + 1;
            async move { Ok(count) }
        }));
        hooks.middleware(move |ctx: &RunContext| {
            let count = Arc::clone(&in_listener);
            ctx.emitter().observe("**.success", move |_: &dyn emitree_emitter::AnyEvent, _| {
                count.fetch_add(100, Ordering::Relaxed);
            })?;
            Ok(())
        });
        Ok(())
    }
}

#[tokio::test]
async fn a_middleware_of_a_middleware_is_bound_to_each_run_of_the_agent_and_shares_its_state_with_the_tool()
-> Result<()> {
    let script = || ScriptedModel::new("test").call("count", json!({"text": ""})).text("done");
    for bound in 0..3 {
        let counts = Counts::default();
        let of = script();
        match bound {
            0 => drop(agent(&of).with(counts.clone()).build()?.ask("go").await?),
            1 => drop(agent(&of).build()?.ask("go").with(counts.clone()).await?),
            _ => drop(agent(&of).build()?.ask("go").middleware(for_tree(joins(counts.clone()))).await?),
        }
        // Two replies of the model, the output of the tool, the agent's own success, and the success of each run.
        let count = counts.0.load(Ordering::Relaxed);
        assert!(count % 100 == 1 && count > 300, "{bound}: {count}");
    }
    Ok(())
}

#[tokio::test]
async fn a_guard_of_a_middleware_that_does_not_handle_the_agent_is_refused() -> Result<()> {
    let approves = || {
        hooks_fn("approves", |hooks| {
            hooks.middleware(Approval::by_interrupt().runs(Runs::named("shout")));
        })
    };
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
    let error = agent(&script).with(approves()).build().unwrap_err().to_string();
    assert!(error.contains("`approves`") && error.contains("for_tree"), "{error}");
    let error = agent(&script).build()?.ask("go").with(approves()).await.unwrap_err().to_string();
    assert!(error.contains("`approval`") && error.contains("for_tree"), "{error}");
    assert!(script.requests().is_empty());

    let works = hooks_fn("approves", |hooks| {
        hooks.middleware(for_tree(Approval::by_interrupt().runs(Runs::named("shout"))));
    });
    let agent = agent(&script).with(works).build()?;
    let error = agent.ask("go").await.unwrap_err();
    assert!(error.is_interrupted(), "{error}");
    Ok(())
}

#[test]
fn explain_lists_the_layers_of_a_middlewares_middleware_under_its_id() -> Result<()> {
    let limits = hooks_fn("limited", |hooks| {
        hooks.middleware(emitree_middleware::Timeout::overall(std::time::Duration::from_secs(1)));
    });
    let agent = agent(&ScriptedModel::new("test")).with(limits).build()?;
    let explained = agent.ask("go").explain();
    let limited = explained.middlewares.iter().find(|middleware| middleware.name == "limited").expect("it is listed");
    assert_eq!(limited.layers.iter().map(|layer| layer.name.as_str()).collect::<Vec<_>>(), ["timeout overall"]);
    Ok(())
}

/// Names a tool.
#[derive(Clone, Debug)]
struct Names(&'static str, Arc<Mutex<Vec<String>>>);

impl AgentMiddleware for Names {
    fn id(&self) -> &str {
        "names"
    }

    fn check(&self, agent: &AgentSpec) -> Result<()> {
        let tools: Vec<_> = agent.tools().iter().map(|tool| tool.name.as_str()).collect();
        self.1.lock().expect("no panic").push(format!("{} {tools:?} {}", agent.name(), agent.tools_may_change()));
        agent.expect_tool("names", self.0)
    }
}

#[tokio::test]
async fn a_middleware_that_names_an_unknown_tool_fails_build_or_its_run() -> Result<()> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let names = |tool| Names(tool, Arc::clone(&seen));
    let more = || {
        hooks_fn("more", |hooks| {
            hooks.tool(tool("read"));
        })
    };
    let script = || ScriptedModel::new("test").text("a");
    // Tools of middlewares that are added later are seen as well.
    agent(&script()).with(names("read")).with(more()).build()?;
    let unknown = "the middleware `names` names the tool `raed`, but the agent `tester` has only `shout`, `read`";
    let error = agent(&script()).with(names("raed")).with(more()).build().unwrap_err();
    assert_eq!(error.to_string(), unknown);

    let session = Session::new();
    let of = agent(&script()).build()?;
    let run = of.ask("go").session(&session).with(names("raed")).with(more());
    assert_eq!(run.await.unwrap_err().to_string(), unknown);
    assert!(session.history().messages().is_empty());
    of.ask("go").with(names("read")).with(more()).await?;
    let no_tools = Agent::builder("bare", ChatModel::new(script())?).with(names("read")).build().unwrap_err();
    assert_eq!(no_tools.to_string(), "the middleware `names` names the tool `read`, but the agent `bare` has no tools");
    let lines = seen.lock().expect("no panic").clone();
    assert_eq!(lines[..2], [r#"tester ["shout", "read"] false"#, r#"tester ["shout", "read"] false"#]);
    Ok(())
}

#[tokio::test]
async fn a_tool_that_may_come_later_is_warned_of_at_the_end_of_the_first_run_that_has_not_had_it() -> Result<()> {
    let journal = Journal::default();
    let _guard = tracing::subscriber::set_default(journal.clone());
    let names = |tool| Names(tool, Arc::default());
    let script = || ScriptedModel::new("test").text("a").text("b");
    let later = brings("later", |_| vec![tool("late")]);
    let of = agent(&script()).with(names("late")).with(later.clone()).build()?;
    of.ask("go").await?;
    of.ask("go").await?;
    assert_eq!(journal.take(), [""; 0], "a turn had the tool");

    let of = agent(&script()).with(names("lste")).with(later.clone()).build()?;
    of.ask("go").await?;
    of.ask("go").await?;
    let warning = "the middleware `names` names the tool `lste`, but no turn of the agent `tester` had it";
    assert_eq!(journal.take(), [warning]);
    Ok(())
}

#[tokio::test]
async fn a_middleware_is_checked_once_for_a_run_with_several_attempts() -> Result<()> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let script = ScriptedModel::new("test").text("bad").text("good");
    let of = agent(&script).build()?;
    let attempts = AtomicUsize::new(0);
    let run = of.ask("go").with(Names("shout", Arc::clone(&seen))).max_middleware_retries(1);
    let run = run.middleware(emitree_runtime::map_output(move |_: &mut emitree_agent::AgentOutput, _: &RunContext| {
        if attempts.fetch_add(1, Ordering::Relaxed) == 0 { Err(Error::retry("again")) } else { Ok(()) }
    }));
    assert_eq!(run.await?.text(), "good");
    assert_eq!(seen.lock().expect("no panic").len(), 1);
    Ok(())
}

#[tokio::test]
async fn hook_test_returns_the_tools_of_a_middleware_and_those_it_is_asked_for() -> Result<()> {
    let both = hooks_fn("both", |hooks| {
        hooks.tool(tool("a")).tools(|_| Ok(vec![tool("b")]));
    });
    let names: Vec<_> = HookTest::new(&both)?.tools().await?.iter().map(|tool| tool.spec().name.clone()).collect();
    assert_eq!(names, ["a", "b"]);
    Ok(())
}

#[tokio::test]
async fn a_builder_hook_of_model_request_replaces_those_of_middlewares_and_tools_of_the_builder_stay() -> Result<()> {
    let script = ScriptedModel::new("test").text("a");
    let builder = agent(&script).with(offers(&["read"])).with(brings("more", |_| vec![tool("late")]));
    let agent = builder
        .hooks(|hooks| {
            hooks.tool(tool("own"));
            hooks.on_request(|call, _| call.request.options.seed = Some(1));
        })
        .build()?;
    let run = agent.ask("go");
    let explained = run.explain().to_string();
    assert!(explained.contains(r#"model.request replaced=["offers.model.request"]"#), "{explained}");
    run.await?;
    assert_eq!(offered(&script), [["shout", "own", "late"]]);
    Ok(())
}
