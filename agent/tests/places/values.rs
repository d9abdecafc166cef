//! The key-value store of an agent: hooks and tools use it, and layers wrap its reads and writes.

use emitree_agent::values::{Change, ReadValue, WriteValue, Written};
use emitree_agent::{
    Agent, AgentContext, AgentRun, ChatModel, HookTest, HooksFn, Reply, ScriptedModel, Tool, hooks_fn, joins, tool_fn,
};
use emitree_middleware::values::{KeyValues, MemoryValues, ValueKey};
use emitree_runtime::{Error, Guard, Layer, Next, Phase, Result, RunContext, Runnable, for_tree, runnable_fn};
use futures_core::future::BoxFuture;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::support::{Log, Text, agent, results};

fn key(segments: &str) -> ValueKey {
    ValueKey::new(segments.split('/')).expect("a key")
}

/// A tool that writes its argument, which has the form `key=value`, or removes the key if there is no `=`.
fn put() -> Tool {
    let put = |args: Text, ctx: RunContext| async move {
        let values = ctx.values()?;
        let written = match args.text.split_once('=') {
            Some((path, value)) => values.write(&key(path), value).await?,
            None => values.remove(&key(&args.text)).await?,
        };
        Ok(format!("{written:?}"))
    };
    tool_fn("put", "Writes a value", put).expect("a tool")
}

/// A tool that reads a value.
fn get() -> Tool {
    let get = |args: Text, ctx: RunContext| async move { ctx.values()?.read(&key(&args.text)).await };
    tool_fn("get", "Reads a value", get).expect("a tool")
}

/// A model that makes calls, one in each turn: `put a=1`.
fn calls<const N: usize>(calls: [&str; N]) -> ScriptedModel {
    let script = calls.iter().fold(ScriptedModel::new("test"), |script, call| {
        let (tool, text) = call.split_once(' ').expect("a call");
        script.call(tool, json!({"text": text}))
    });
    script.text("done")
}

/// Logs each write before and after the layers inside.
#[derive(Debug)]
struct Logs(&'static str, Log);

impl Layer<WriteValue> for Logs {
    async fn call(&self, change: &Change, _: &RunContext, next: Next<'_, WriteValue>) -> Result<Written> {
        self.1.add(format!("{} {change:?}", self.0));
        let written = next.run(change).await?;
        self.1.add(format!("{} > {written:?}", self.0));
        Ok(written)
    }
}

/// A middleware with a layer that observes, and a layer in the phase of guards.
fn logs(id: &'static str, log: &Log) -> HooksFn {
    let log = log.clone();
    hooks_fn(id, move |hooks| {
        let logs = |name| Logs(name, log.clone());
        hooks.values_write(|stack| stack.layer_in(Phase::Guard, logs("guard")).layer_in(Phase::Observe, logs(id)));
    })
}

/// A guard that denies changes of keys below `locked`.
#[derive(Debug)]
struct Vault;

impl Guard<WriteValue> for Vault {
    async fn check_input(&self, change: &Change, _: &RunContext) -> Result<()> {
        if change.key.starts_with(&key("locked")) { Err(Error::new("it is locked")) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        "vault"
    }
}

/// Turns texts around when they are written and when they are read.
fn reversed() -> HooksFn {
    let reverse = |value: &Value| value.as_str().map(|text| json!(text.chars().rev().collect::<String>()));
    hooks_fn("reversed", move |hooks| {
        hooks.values_write(|stack| {
            stack.layer_fn("reversed", move |change, _, next: Next<'_, WriteValue>| {
                let change = Change::new(change.key.clone(), change.value.as_ref().and_then(reverse));
                Box::pin(async move { next.run(&change).await })
            })
        });
        hooks.values_read(|stack| {
            stack.layer_fn("reversed", move |key, _, next: Next<'_, ReadValue>| {
                Box::pin(async move { Ok(next.run(key).await?.as_ref().and_then(reverse)) })
            })
        });
    })
}

/// Drops the changes of keys below `draft`.
fn no_drafts() -> HooksFn {
    hooks_fn("no_drafts", |hooks| {
        hooks.values_write(|stack| {
            stack.layer_fn("no_drafts", |change, _, next: Next<'_, WriteValue>| {
                let is_draft = change.key.starts_with(&key("draft"));
                Box::pin(async move { if is_draft { Ok(Written::Skipped) } else { next.run(change).await } })
            })
        });
    })
}

#[tokio::test]
async fn hooks_and_tools_of_all_runs_share_the_store_of_the_agent() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let reads = hooks_fn("reads", move |hooks| {
        let to = to.clone();
        hooks.on_context_async(move |_, ctx| {
            let to = to.clone();
            Box::pin(async move {
                to.add(format!("{:?}", ctx.values()?.read(&key("a/b")).await?));
                Ok(())
            })
        });
    });
    let script = calls(["put a/b=1", "get a/b", "put a/b", "get a/b"]);
    let agent = agent(&script).tool(put()).tool(get()).with(reads).build()?;
    let answer = agent.ask("go").await?;
    assert_eq!(results(&answer.messages), ["Stored", "1", "Stored", "null"]);
    let one = "Some(String(\"1\"))";
    assert_eq!(log.lines(), ["None", one, one, "None", "None"]);

    let script = ScriptedModel::by("test", |request| match request.messages.len() {
        1 => Reply::calls([("get", json!({"text": "kept"})), ("put", json!({"text": "kept=1"}))]),
        _ => Reply::text("done"),
    });
    let agent = crate::support::agent(&script).tool(put()).tool(get()).parallel_tools(false).build()?;
    assert_eq!(results(&agent.ask("go").await?.messages), ["null", "Stored"]);
    assert_eq!(results(&agent.clone().ask("go").await?.messages), ["1", "Stored"]);
    Ok(())
}

// A16
#[tokio::test]
async fn the_store_is_the_nearest_agents_and_may_be_shared() -> Result<()> {
    for is_shared in [false, true] {
        let (outer, inner) = (MemoryValues::new(), MemoryValues::new());
        let inner = if is_shared { outer.clone() } else { inner };
        let below = Agent::builder("below", ChatModel::new(calls(["put a=inner"]))?).tool(put()).values(inner.clone());
        let below = below.build()?.as_tool("Works")?;
        let script = ScriptedModel::new("test")
            .call("put", json!({"text": "a=outer"}))
            .call("below", json!({"task": "go"}))
            .text("done");
        agent(&script).tool(put()).tool(below).values(outer.clone()).build()?.ask("go").await?;
        assert_eq!(inner.read(&key("a")).await?, Some(json!("inner")));
        let expected = if is_shared { "inner" } else { "outer" };
        assert_eq!(outer.read(&key("a")).await?, Some(json!(expected)));
    }
    Ok(())
}

#[tokio::test]
async fn outside_an_agent_there_is_no_store_and_the_error_names_the_run() {
    let run = runnable_fn("lonely", |(): (), ctx: RunContext| async move { ctx.values().map(|_| ()) });
    let error = run.run(()).await.unwrap_err().to_string();
    assert_eq!(error, "the run `lonely` has no key-value store: it is neither an agent's run nor nested in one");
}

// A16
#[tokio::test]
async fn the_store_gets_what_the_layers_pass_on_and_the_reader_what_they_return() -> Result<()> {
    let store = MemoryValues::new();
    let script = calls(["put a=abc", "get a", "put draft/b=x", "get draft/b"]);
    let agent = agent(&script).tool(put()).tool(get()).values(store.clone()).with(no_drafts()).with(reversed());
    let answer = agent.build()?.ask("go").await?;
    assert_eq!(results(&answer.messages), ["Stored", "abc", "Skipped", "null"]);
    assert_eq!(store.keys(None).await?, [key("a")]);
    assert_eq!(store.read(&key("a")).await?, Some(json!("cba")));
    Ok(())
}

// A16
#[tokio::test]
async fn a_skipped_change_leaves_the_value_from_before() -> Result<()> {
    let store = MemoryValues::new();
    store.write(&key("draft/a"), &json!("old")).await?;
    let agent = agent(&calls(["put draft/a=new", "put draft/a", "get draft/a"])).tool(put()).tool(get());
    let answer = agent.values(store).with(no_drafts()).build()?.ask("go").await?;
    assert_eq!(results(&answer.messages), ["Skipped", "Skipped", "old"]);
    Ok(())
}

// A16
#[tokio::test]
async fn a_guard_denies_writes_and_removals_by_name() -> Result<()> {
    let store = MemoryValues::new();
    store.write(&key("locked/a"), &json!("old")).await?;
    let vault = hooks_fn("vault", |hooks| _ = hooks.values_write(|stack| stack.guard(Vault)));
    let agent = agent(&calls(["put locked/a=new", "put locked/a", "put open=1"])).tool(put()).values(store.clone());
    let answer = agent.with(vault).build()?.ask("go").await?;
    let denied = "!denied by vault: it is locked";
    assert_eq!(results(&answer.messages), [denied, denied, "Stored"]);
    assert_eq!(store.read(&key("locked/a")).await?, Some(json!("old")));
    Ok(())
}

// A16
#[tokio::test]
async fn layers_are_ordered_by_phase_and_then_by_middleware() -> Result<()> {
    let log = Log::default();
    let (builder, of_run) = (Logs("builder", log.clone()), logs("run", &log));
    let below = agent(&calls(["put a=1"])).tool(put()).with(logs("first", &log)).with(logs("second", &log));
    let below = below.hooks(|hooks| _ = hooks.values_write(|stack| stack.layer_in(Phase::Observe, builder))).build()?;
    let above = runnable_fn("above", move |(): (), _: RunContext| {
        let (below, of_run) = (below.clone(), of_run.clone());
        async move { below.ask("go").with(of_run).await.map(|_| ()) }
    });
    above.run(()).middleware(for_tree(joins(logs("inherited", &log)))).await?;
    let names = ["builder", "first", "second", "inherited", "run", "guard", "guard", "guard", "guard"];
    let entered = names.iter().map(|name| format!("{name} Write([\"a\"])"));
    let left = names.iter().rev().map(|name| format!("{name} > Stored"));
    assert_eq!(log.lines(), entered.chain(left).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test]
async fn explanations_list_the_layers_and_name_the_guards() -> Result<()> {
    let vault = hooks_fn("vault", |hooks| _ = hooks.values_write(|stack| stack.guard(Vault)));
    let builder = agent(&ScriptedModel::new("test").text("x")).with(reversed()).with(vault);
    let own = Logs("builder", Log::default());
    let agent = builder.hooks(|hooks| _ = hooks.values_write(|stack| stack.layer(own))).build()?;
    let explained = agent.ask("go").with(no_drafts()).explain();
    let hooks: Vec<_> = explained.middlewares.iter().flat_map(|it| &it.hooks).collect();
    let hooks: Vec<_> = hooks.iter().map(|hook| (hook.name.as_str(), hook.is_guard)).collect();
    let expected = [
        ("builder.values.write", false),
        ("reversed.values.read", false),
        ("reversed.values.write", false),
        ("vault.values.write", true),
        ("no_drafts.values.write", false),
    ];
    assert_eq!(hooks, expected);
    assert!(!explained.to_string().contains("replaced"), "{explained}");
    Ok(())
}

/// A store that fails.
#[derive(Debug)]
struct Broken;

impl KeyValues for Broken {
    fn read<'a>(&'a self, _: &'a ValueKey) -> BoxFuture<'a, Result<Option<Value>>> {
        Box::pin(async { Err(Error::new("no disk")) })
    }

    fn write<'a>(&'a self, _: &'a ValueKey, _: &'a Value) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Err(Error::new("no disk")) })
    }

    fn remove<'a>(&'a self, _: &'a ValueKey) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Err(Error::new("no disk")) })
    }

    fn keys<'a>(&'a self, _: Option<&'a ValueKey>) -> BoxFuture<'a, Result<Vec<ValueKey>>> {
        Box::pin(async { Err(Error::new("no disk")) })
    }
}

#[tokio::test]
async fn an_error_of_the_store_passes_the_layers_and_only_an_error_of_a_layer_has_its_name() -> Result<()> {
    let agent = agent(&calls(["put a=1", "put a", "get a"])).tool(put()).tool(get()).values(Broken);
    let answer = agent.with(reversed()).build()?.ask("go").await?;
    assert_eq!(results(&answer.messages), ["!no disk"; 3]);

    for (breaks, by) in [(true, Some("m.values.read")), (false, None)] {
        let reads = hooks_fn("m", move |hooks| {
            hooks.values_read(|stack| {
                stack.layer_fn("breaks", move |key, _, next: Next<'_, ReadValue>| {
                    Box::pin(async move { if breaks { Err(Error::new("torn")) } else { next.run(key).await } })
                })
            });
        });
        let hook = hooks_fn("hook", |hooks| {
            hooks.on_end_async(|_, ctx| Box::pin(async { ctx.values()?.read(&key("a")).await.map(drop) }));
        });
        let script = ScriptedModel::new("test").text("x");
        let agent = crate::support::agent(&script).values(Broken).with(reads).with(hook).build()?;
        let error = agent.ask("go").await.unwrap_err();
        // The hook that failed is named if no layer is.
        let expected = by.unwrap_or("hook.run.end");
        assert_eq!(error.details()["by"], expected);
    }
    Ok(())
}

#[tokio::test]
async fn a_hundred_runs_at_once_use_one_store() -> Result<()> {
    let store = MemoryValues::new();
    let script = ScriptedModel::by("test", |request| match request.messages.len() {
        1 => Reply::calls([("put", json!({"text": format!("{}=x", request.last_user_text())}))]),
        _ => Reply::text("done"),
    });
    let agent = agent(&script).tool(put()).spawn_tools(true).values(store.clone()).with(reversed()).build()?;
    try_join_all((0..100).map(|n| agent.ask(format!("runs/{n}")).into_future())).await?;
    assert_eq!(store.keys(Some(&key("runs"))).await?.len(), 100);
    Ok(())
}

#[tokio::test]
async fn a_hook_test_has_a_store_behind_the_layers_of_its_middleware() -> Result<()> {
    let keeps = hooks_fn("keeps", |hooks| {
        hooks.on_prompt_async(|prompt, ctx| {
            Box::pin(async {
                let (values, key) = (ctx.values()?, key("prompt"));
                let before = values.read(&key).await?;
                values.write(&key, prompt.clone()).await?;
                *prompt = format!("{before:?}");
                Ok(())
            })
        });
        hooks.values_write(|stack| stack.guard(Vault));
    });
    let store = MemoryValues::new();
    for (test, kept) in [(HookTest::new(&keeps)?, 0), (HookTest::new(&keeps)?.values(store.clone()), 1)] {
        assert_eq!(test.prompt("one").await?, "None");
        assert_eq!(test.prompt("two").await?, "Some(String(\"one\"))");
        assert_eq!(store.keys(None).await?.len(), kept);
    }
    Ok(())
}
