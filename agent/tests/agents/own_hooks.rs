//! The builder's own hooks, and the middleware hooks that they replace.

use std::sync::{Arc, Mutex};

use emitree_agent::{
    Agent, AgentBuilder, AgentRun, ChatModel, Hooks, HooksFn, Message, ScriptedModel, Tool, hooks_fn, joins,
};
use emitree_middleware::Runs;
use emitree_runtime::{
    AnyRun, Error, Explanation, Guard, Next, Op, Phase, Result, RunContext, Runnable, Stack, for_tree, layer_fn,
};
use serde_json::json;

use crate::support::{Log, agent, results};

fn two_turns() -> ScriptedModel {
    ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done")
}

/// Registers hooks that write `id` to a log.
fn register(hooks: &mut Hooks, id: &'static str, log: &Log) {
    let logs = || {
        let log = log.clone();
        move |place: &str| log.add(format!("{id} {place}"))
    };
    let (context, prompt, stop, gate, wire) = (logs(), logs(), logs(), logs(), logs());
    hooks.on_context(move |_, _| context("context"));
    hooks.on_prompt(move |_, _| prompt("prompt"));
    hooks.on_stop(move |_, _| {
        stop("stop");
        Ok(false)
    });
    hooks.on_gate(move |_, _| gate("gate"));
    hooks.on_wire(move |_, _| wire("wire"));
    let (layer, guard) = (logs(), logs());
    hooks.tool_call(|stack| {
        let timed = layer_fn("timed", move |input, _, next: Next<'_, Tool>| {
            layer("layer");
            Box::pin(next.run(input))
        });
        let checked = layer_fn("checked", move |input, _, next: Next<'_, Tool>| {
            guard("guard");
            Box::pin(next.run(input))
        });
        stack.layer(timed).layer_in(Phase::Guard, checked)
    });
}

fn logging(id: &'static str, log: &Log) -> HooksFn {
    let log = log.clone();
    hooks_fn(id, move |hooks| register(hooks, id, &log))
}

/// An agent with a middleware, and with the builder's own hooks at all places of the middleware.
fn explicit(script: &ScriptedModel, log: &Log) -> AgentBuilder {
    agent(script).with(logging("a", log)).hooks(|hooks| register(hooks, "own", log))
}

// A6
#[tokio::test]
async fn a_hook_of_the_builder_replaces_all_middleware_hooks_at_its_place_except_guards() -> Result<()> {
    let log = Log::default();
    let agent = explicit(&two_turns(), &log).build()?;
    let explained = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&explained);
    let explains = hooks_fn("e", move |hooks| {
        let kept = Arc::clone(&kept);
        hooks.on_state(move |_, ctx| *kept.lock().unwrap() = Some(ctx.explain()));
    });
    let outer = Agent::builder(
        "outer",
        ChatModel::new(ScriptedModel::new("outer").call("ask", json!({"text": ""})).text("."))?,
    );
    let to = log.clone();
    let ask = emitree_agent::tool_fn("ask", "Asks", move |_: crate::support::Text, _: RunContext| {
        let (agent, of_run, explains) = (agent.clone(), logging("r", &to), explains.clone());
        async move {
            let run = agent.ask("go").with(of_run).with(explains);
            let text = run.explain().to_string();
            Ok((text, run.await?.text()).0)
        }
    });
    let inherited = Runs::named("tester").only(joins(logging("t", &log)));
    let answer = outer.tool(ask).build()?.ask("go").middleware(for_tree(inherited)).await?;

    let each = |names: [&str; 4], place: &str| names.map(|name| format!("{name} {place}")).to_vec();
    let all = |place| each(["own", "a", "t", "r"], place);
    let request = ["own context", "own prompt", "own wire"].map(str::to_owned);
    let calls = [all("gate"), vec!["own layer".to_owned()], all("guard"), vec!["own stop".to_owned()]].concat();
    let expected = [request.to_vec(), calls, request.to_vec(), vec!["own stop".to_owned()]].concat();
    assert_eq!(log.lines(), expected);

    let inside: Explanation = explained.lock().unwrap().take().expect("an explanation");
    let before = results(&answer.messages).concat();
    for text in [inside.to_string(), before] {
        for place in ["model.context", "model.prompt", "model.wire", "tool.call", "turn.stop"] {
            let used = format!("{place}=\"builder.{place}\"");
            let replaced = format!("{place} replaced=[\"a.{place}\",\"t.{place}\",\"r.{place}\"]");
            assert!(text.contains(&used) && text.contains(&replaced), "{place} in {text}");
        }
        assert!(!text.contains("tool.gate replaced") && !text.contains("model.state replaced"), "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn a_gate_of_the_builder_does_not_replace_the_gate_of_a_middleware() -> Result<()> {
    let approval = hooks_fn("approval", |hooks| {
        hooks.on_gate_each(|gated, _| gated.deny("approval", "nobody said yes"));
    });
    let builder = agent(&two_turns()).hooks(|hooks| {
        hooks.on_gate_each(|gated, _| gated.call.arguments = json!({"text": "edited"}).into());
    });
    let answer = builder.with(approval).build()?.ask("go").await?;
    assert_eq!(results(&answer.messages), ["!denied by approval: nobody said yes"]);
    Ok(())
}

#[tokio::test]
async fn guards_are_not_replaced_by_the_builder_and_the_wire_hook_of_a_guard_wins() -> Result<()> {
    #[derive(Debug)]
    struct Keep;
    impl<O: Op> Guard<O> for Keep {
        async fn check_input(&self, _: &O::In, ctx: &RunContext) -> Result<()> {
            if ctx.name() == "shout" { Err(Error::new("too loud")) } else { Ok(()) }
        }
        fn name(&self) -> &str {
            "keep"
        }
    }
    let script = two_turns();
    let redact = hooks_fn("redact", |hooks| {
        hooks.on_context(|messages, _| messages.push(Arc::new(Message::user("redacted"))));
        hooks.on_wire(|messages, _| messages.push(Arc::new(Message::user("wire of redact"))));
    });
    let builder = agent(&script).with(redact.guard()).hooks(|hooks| {
        hooks.on_context(|messages, _| messages.push(Arc::new(Message::user("own"))));
        hooks.on_wire(|messages, _| messages.push(Arc::new(Message::user("own wire"))));
        hooks.tool_call(|stack| {
            stack.layer_fn("own", |input, _, next: Next<'_, Tool>| Box::pin(async move { next.run(input).await }))
        });
    });
    let keep = Stack::<AnyRun>::builder().guard(Keep).build();
    let agent = builder.middleware(for_tree(keep)).build()?;
    let text = agent.ask("go").explain().to_string();
    assert!(text.contains(r#"model.wire="redact.model.wire""#), "{text}");
    assert!(text.contains(r#"model.wire replaced=["builder.model.wire"]"#), "{text}");
    assert!(!text.contains("model.context replaced"), "{text}");
    let answer = agent.ask("go").await?;
    let sent: Vec<_> = script.requests()[0].messages.iter().map(|message| message.text()).collect();
    assert_eq!(sent, ["go", "own", "redacted", "wire of redact"]);
    assert_eq!(results(&answer.messages), ["!denied by keep: too loud"]);
    Ok(())
}

#[tokio::test]
async fn build_returns_the_error_of_hooks_and_refuses_a_second_middleware_called_builder() {
    let script = ScriptedModel::new("test");
    let failed = agent(&script).hooks(|_| Err(Error::new("no database"))).build().unwrap_err();
    assert_eq!(failed.to_string(), "no database");
    let twice = explicit(&script, &Log::default()).with(hooks_fn("builder", |_| ())).build().unwrap_err();
    assert!(twice.to_string().starts_with("the agent has the middleware `builder` twice"), "{twice}");
    assert!(agent(&script).hooks(|_| ()).with(hooks_fn("builder", |_| ())).build().is_ok());
    let fails = hooks_fn("m", |_| Err(Error::new("no file")));
    assert_eq!(agent(&script).with(fails).build().unwrap_err().to_string(), "no file");
}

#[tokio::test]
async fn the_wire_hook_of_a_run_replaces_the_wire_hook_of_the_agent() -> Result<()> {
    let wire = |id: &'static str, log: &Log| {
        let log = log.clone();
        hooks_fn(id, move |hooks| {
            let log = log.clone();
            hooks.on_wire(move |_, ctx| log.add(format!("{id}: {}", ctx.explain())));
        })
    };
    let log = Log::default();
    let agent = agent(&ScriptedModel::new("test").text("x")).with(wire("a", &log)).build()?;
    let run = agent.ask("go").with(wire("r", &log));
    let before = run.explain().to_string();
    run.await?;
    for text in [before, log.lines().concat()] {
        assert!(text.contains(r#"model.wire="r.model.wire", model.wire replaced=["a.model.wire"]"#), "{text}");
    }
    assert!(log.lines().concat().starts_with("r: "));
    Ok(())
}

// A6
#[tokio::test]
async fn an_inherited_middleware_whose_id_is_taken_is_skipped_and_listed_as_skipped() -> Result<()> {
    let log = Log::default();
    let named = |id: &'static str, name: &'static str| {
        let log = log.clone();
        hooks_fn(id, move |hooks| {
            let log = log.clone();
            hooks.on_state(move |_, ctx| {
                log.add(format!("{name} {}", ctx.explain().to_string().contains(r#"skipped=["once"]"#)));
            });
        })
    };
    let script = || ScriptedModel::new("test").text("x").text("x");
    let has = agent(&script()).with(named("once", "own")).build()?;
    has.ask("go").middleware(for_tree(joins(named("once", "above")))).await?;
    assert_eq!(log.lines(), ["own true"]);
    let explained = has.ask("go").middleware(for_tree(joins(named("once", "above")))).explain().to_string();
    assert!(explained.contains(r#"skipped=["once"]"#), "{explained}");

    // The middleware is bound to one run above, and then to two runs above.
    let only = |hooks| for_tree(Runs::named("tester").only(joins(hooks)));
    let above = |name: &str, inner: &Agent| {
        let script = ScriptedModel::new(name).call(inner.name(), json!({"task": "x"})).text("x");
        Ok::<_, Error>(Agent::builder(name, ChatModel::new(script)?).tool(inner.as_tool("Asks")))
    };
    let plain = agent(&script()).build()?;
    for (inner, near, expected) in [(&has, false, "own true"), (&plain, false, "far false"), (&plain, true, "far true")]
    {
        let mut outer = above("outer", inner)?;
        if near {
            outer = outer.middleware(only(named("once", "near")));
        }
        let before = log.lines().len();
        let top = above("top", &outer.build()?)?.build()?;
        top.ask("go").middleware(only(named("once", "far"))).await?;
        assert_eq!(log.lines()[before..], [expected]);
    }
    let twice = has.ask("go").with(named("once", "run")).await.unwrap_err().to_string();
    assert!(twice.starts_with("the agent has the middleware `once` twice"), "{twice}");
    Ok(())
}
