//! The output of `explain` and the errors of hooks name the hooks of an agent.

use emitree_agent::{Agent, AgentRun, ChatModel, Chunks, HooksFn, Place, ScriptedModel, Tool, hooks_fn, joins};
use emitree_runtime::{Error, Next, Result, RunContext, for_tree};
use serde_json::json;

use crate::support::{Log, agent, fail};

/// A middleware with hooks at four places.
fn hooked(id: &'static str) -> HooksFn {
    hooks_fn(id, |hooks| {
        hooks.agent_run(|stack| {
            stack.layer_fn("timed", |input, _, next: Next<'_, Agent>| Box::pin(async move { next.run(input).await }))
        });
        hooks.on_gate(|_, _| ());
        hooks.on_context(|_, _| ());
        hooks.on_wire(|_, _| ());
    })
}

#[tokio::test]
async fn explanations_name_the_hooks_of_the_agent_of_the_run_and_of_runs_above() -> Result<()> {
    let agent = agent(&ScriptedModel::new("test").text("x")).with(hooked("a")).with(hooked("b")).build()?;
    let names = |id: &str| {
        let places = [Place::AgentRun, Place::ModelContext, Place::ModelWire, Place::ToolGate];
        format!("; hooks: {}", places.map(|place| format!("{id}.{place}")).join(", "))
    };
    let before = agent.ask("go").with(hooked("r")).explain();
    let bound: Vec<_> = before.middlewares.iter().map(|middleware| middleware.name.as_str()).collect();
    assert_eq!(bound, ["a", "b", "agent", "r"]);
    for (at, id) in [(0, "a"), (1, "b"), (3, "r")] {
        assert_eq!(before.middlewares[at].to_string(), format!("{id}{}", names(id)));
    }
    assert_eq!(before.chain.iter().filter(|layer| layer.name == "timed").count(), 3);
    // The explanation of `model.wire` lists the hook that is called and the hooks that it replaced.
    let text = before.to_string();
    assert!(text.contains(r#"model.wire="r.model.wire""#), "{text}");
    assert!(text.contains(r#"model.wire replaced=["a.model.wire","b.model.wire"]"#), "{text}");

    let log = Log::default();
    let to = log.clone();
    let explains = hooks_fn("e", move |hooks| {
        let to = to.clone();
        hooks.on_state(move |_, ctx| to.add(ctx.explain().to_string()));
    });
    agent.ask("go").with(explains).middleware(for_tree(joins(hooked("t")))).await?;
    let text = log.lines().concat();
    for expected in ["a.tool.gate", "b.tool.gate", "t.tool.gate", "e.model.state"] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    Ok(())
}

// A3
#[tokio::test]
async fn the_error_of_a_hook_names_the_hook() -> Result<()> {
    let fails = hooks_fn("m", |hooks| _ = hooks.on_state(|_, _| Err(Error::new("broken"))));
    let error = agent(&ScriptedModel::new("test")).with(fails).build()?.ask("go").await.unwrap_err();
    assert_eq!((error.to_string().as_str(), &error.details()["by"]), ("broken", &"m.model.state".into()));
    Ok(())
}

#[tokio::test]
async fn an_error_names_the_stage_or_layer_that_returned_it_and_no_layer_that_only_passed_it() -> Result<()> {
    let broken = || Error::new("broken").fatal(true);
    for place in [Place::AgentRun, Place::ModelCall, Place::ModelChunk, Place::ToolCall] {
        for fails in [true, false] {
            let breaks =
                hooks_fn("m", move |hooks| match place {
                    Place::AgentRun => drop(hooks.agent_run(|stack| {
                        stack.layer_fn("l", move |input, _, next: Next<'_, Agent>| {
                            Box::pin(async move { if fails { Err(broken()) } else { next.run(input).await } })
                        })
                    })),
                    Place::ModelCall => drop(hooks.model_call(|stack| {
                        stack.layer_fn("l", move |input, _, next: Next<'_, ChatModel>| {
                            Box::pin(async move { if fails { Err(broken()) } else { next.run(input).await } })
                        })
                    })),
                    Place::ToolCall => drop(hooks.tool_call(|stack| {
                        stack.layer_fn("l", move |input, _, next: Next<'_, Tool>| {
                            Box::pin(async move { if fails { Err(broken()) } else { next.run(input).await } })
                        })
                    })),
                    _ => drop(hooks.chunks(move || {
                        move |_: &mut Chunks, _: &RunContext| if fails { Err(broken()) } else { Ok(()) }
                    })),
                });
            // An outer layer adds a detail to the error.
            let passes = hooks_fn("outer", |hooks| {
                hooks.agent_run(|stack| {
                    stack.layer_fn("l", |input, _, next: Next<'_, Agent>| {
                        Box::pin(async move { next.run(input).await.map_err(|error| error.detail("seen", true)) })
                    })
                });
            });
            let script = ScriptedModel::new("test").call("die", json!({"text": ""})).text("x");
            let dies = fail("die", move || Error::new("of the tool").fatal(true));
            let error = agent(&script).tool(dies).with(passes).with(breaks).build()?.ask("go").await.unwrap_err();
            let by = error.details().get("by").and_then(|by| by.as_str());
            let expected = fails.then(|| format!("m.{place}"));
            assert_eq!(
                (error.to_string(), by),
                ((if fails { "broken" } else { "of the tool" }).to_owned(), expected.as_deref())
            );
            assert_eq!(error.details()["seen"], true);
        }
    }
    Ok(())
}
