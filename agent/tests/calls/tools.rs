//! Tools as runs: their own events, and several attempts in one run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use emitree_agent::{AgentMiddleware, ChatStart, Hooks, ScriptedModel, Tool, ToolFinish, ToolStart, tool_fn};
use emitree_middleware::Redact;
use emitree_runtime::{Error, Result, RunContext, Runnable, for_tree, needs};
use serde::Deserialize;
use serde_json::json;

use crate::journal::Journal;
use crate::support::{Log, Text, agent};

/// A tool that fails this many times before it succeeds.
fn flaky(failures: u32, is_retryable: bool) -> Tool {
    let calls = Arc::new(AtomicU32::new(0));
    tool_fn("flaky", "Fails at first", move |_: Text, _: RunContext| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        async move { if call < failures { Err(Error::new("busy").retryable(is_retryable)) } else { Ok(call) } }
    })
    .expect("a tool")
}

async fn events_of(tool: &Tool) -> (Result<emitree_agent::ToolOutput>, Vec<String>) {
    let log = Log::default();
    let mut run = tool.run(json!({"text": "x"}));
    for name in ["start", "success", "error", "finish", "retry", "retries_exceeded", "attempt_discarded"] {
        let to = log.clone();
        run = run.observe(name, move |_: &dyn emitree_emitter::AnyEvent, meta| to.add(meta.name()));
    }
    (run.await, log.lines())
}

#[tokio::test]
async fn a_tool_is_retried_within_one_run_and_emits_the_events_of_each_attempt() -> Result<()> {
    let failed = ["start", "error", "finish"];
    let again = ["attempt_discarded", "retry"];

    let (output, events) = events_of(&flaky(1, true).retries(2)).await;
    assert_eq!(output?.content, 1);
    assert_eq!(events, [&failed[..], &again, &["start", "success", "finish"]].concat());

    let (output, events) = events_of(&flaky(5, true).retries(1)).await;
    assert_eq!(output.unwrap_err().to_string(), "busy");
    assert_eq!(events, [&failed[..], &again, &failed, &["retries_exceeded"]].concat());

    for tool in [flaky(1, false).retries(2), flaky(1, true)] {
        let (output, events) = events_of(&tool).await;
        assert_eq!(output.unwrap_err().to_string(), "busy");
        assert_eq!(events, failed);
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_may_emit_events_that_the_library_does_not_declare() -> Result<()> {
    let fetch = tool_fn("fetch-page", "Fetches a page", |_: Text, ctx: RunContext| async move {
        ctx.emitter().emit("fetched", &mut 200_u32).await?;
        Ok("done")
    })?;
    let script = ScriptedModel::new("m").call("fetch-page", json!({"text": "x"})).text("ok");
    let agent = agent(&script).tool(fetch.clone()).build()?;
    let log = Log::default();
    let (own, above) = (log.clone(), log.clone());
    let run = fetch.run(json!({"text": "x"})).observe("fetched", move |status: &u32, _| own.add(status.to_string()));
    run.await?;
    let run = agent.ask("x").observe("tool.fetch_page.fetched", move |_: &u32, meta| above.add(meta.path()));
    run.await?;
    assert_eq!(log.lines(), ["200", "tool.fetch_page.fetched"]);
    Ok(())
}

/// Changes what the tool or the model itself emits as `start`, and returns the text that the tool received, the text
/// that the model received and the warnings.
async fn changed_in_own_start(redact: Option<Redact>) -> Result<(String, String, Vec<String>)> {
    let log = Log::default();
    let seen = log.clone();
    let echo = tool_fn("echo", "Echoes a text", move |args: Text, _: RunContext| {
        seen.add(args.text);
        async { Ok(()) }
    })?;
    let script =
        ScriptedModel::new("m").call("echo", json!({"text": "a"})).call("echo", json!({"text": "a"})).text("ok");
    let agent = agent(&script).tool(echo).build()?;
    let journal = Journal::default();
    let _subscribed = tracing::subscriber::set_default(journal.clone());
    let run = agent
        .ask("hi")
        .on("tool.echo.start", |start: &mut ToolStart, _| start.input = json!({"text": "unseen"}))
        .on("backend.chat.*.start", |start: &mut ChatStart, _| start.request.system = Some("unseen".to_owned()));
    match redact {
        Some(redact) => run.middleware(for_tree(redact)).await?,
        None => run.await?,
    };
    let system = script.requests().iter().filter_map(|request| request.system.clone()).collect::<String>();
    Ok((log.lines().join(" "), system, journal.take()))
}

#[tokio::test]
async fn the_arguments_and_the_request_that_the_guards_saw_are_used_and_one_warning_names_the_runs_start() -> Result<()>
{
    let (arguments, system, warnings) = changed_in_own_start(None).await?;
    assert_eq!((arguments.as_str(), system.as_str()), ("a a", ""));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for (warning, what) in warnings.iter().zip(["request", "arguments"]) {
        assert!(warning.contains(what) && warning.contains("`run.start`"), "{warning}");
    }
    Ok(())
}

#[tokio::test]
async fn under_a_redaction_a_changed_own_start_is_not_warned_of() -> Result<()> {
    let (arguments, _, warnings) = changed_in_own_start(Some(Redact::new())).await?;
    assert_eq!((arguments.as_str(), warnings), ("a a", vec![]));
    Ok(())
}

#[tokio::test]
async fn a_failing_finish_listener_of_a_tool_fails_a_success_and_hides_no_error() -> Result<()> {
    for (failures, expected) in [(0, "a listener of `tool.flaky.finish` failed"), (1, "busy")] {
        let tool = flaky(failures, false);
        let run = tool.run(json!({"text": "x"}));
        let run = run.on("finish", |_: &mut ToolFinish, _| Err("late".into()));
        let error = run.await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn arguments_that_no_gate_can_change_are_checked_once() -> Result<()> {
    static PARSED: AtomicUsize = AtomicUsize::new(0);

    fn counted<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        PARSED.fetch_add(1, Ordering::Relaxed);
        String::deserialize(from)
    }

    #[derive(Deserialize, schemars::JsonSchema)]
    struct Counted {
        #[serde(deserialize_with = "counted")]
        #[schemars(with = "String")]
        text: String,
    }

    let echo = || tool_fn("echo", "Repeats a text", |Counted { text }, _: RunContext| async { Ok(text) });
    let script = || ScriptedModel::new("test").call("echo", json!({"text": "a"})).text("done");
    agent(&script()).tool(echo()).build()?.ask("go").await?;
    assert_eq!(PARSED.swap(0, Ordering::Relaxed), 2, "once for the check, once for the tool");

    // The arguments are checked again after a gate, which may have changed them.
    #[derive(Debug)]
    struct Gate;
    impl AgentMiddleware for Gate {
        fn id(&self) -> &str {
            "gate"
        }
        fn install(&self, hooks: &mut Hooks) -> Result<()> {
            hooks.on_gate(|_, _| ());
            Ok(())
        }
    }
    agent(&script()).tool(echo()).with(Gate).build()?.ask("go").await?;
    assert_eq!(PARSED.load(Ordering::Relaxed), 3);
    Ok(())
}

#[test]
fn a_problem_that_quotes_a_long_value_is_shortened_in_the_middle() {
    #[derive(Deserialize, schemars::JsonSchema)]
    struct Number {
        #[allow(dead_code, reason = "only its type matters")]
        number: u32,
    }
    let tool = tool_fn("t", "", |_: Number, _: RunContext| async { Ok(()) }).expect("a tool");
    let wrong = tool.check(&json!({"number": "ü".repeat(100_000)})).unwrap_err();
    assert_eq!(wrong.chars().count(), 503);
    assert!(wrong.starts_with("at `number`: invalid type: string \"üü"), "{wrong}");
    assert!(wrong.contains("ü … ü") && wrong.ends_with("üü\", expected u32"), "{wrong}");
    let wrong = tool.check(&json!({"number": "ü".repeat(400)})).unwrap_err();
    assert!(wrong.contains(&"ü".repeat(400)), "{wrong}");
}

#[tokio::test]
async fn a_middleware_of_a_tool_is_bound_to_its_runs_and_to_the_runs_of_later_clones() -> Result<()> {
    let earlier = flaky(0, false);
    let refuse = |_: &mut serde_json::Value, _: &RunContext| Err(Error::new("no input"));
    let tool = earlier.clone().middleware(emitree_runtime::map_input(refuse));
    for tool in [&tool, &tool.clone()] {
        assert_eq!(tool.run(json!({"text": "x"})).await.unwrap_err().to_string(), "no input");
    }
    earlier.run(json!({"text": "x"})).await?;
    Ok(())
}

/// Tools whose arguments are checked against a JSON Schema.
#[cfg(feature = "json-schema")]
mod with_schema {
    use emitree_agent::{ToolError, ToolOutput};
    use serde_json::Value;

    use super::*;
    use crate::support::results;

    fn echo(schema: Value) -> Result<Tool, ToolError> {
        Tool::with_schema("echo", "Repeats", schema, |args: Value, _: RunContext| async move { Ok(args) })
    }

    #[test]
    fn the_error_for_an_invalid_schema_states_the_fault() {
        let table = [
            (
                json!({"type": "strng"}),
                "at `type`: \"strng\" is not one of \"array\", \"boolean\" or 5 other candidates",
            ),
            (
                json!({"type": "object", "properties": {"n": {"minimum": "1"}}}),
                "at `properties.n.minimum`: \"1\" is not of type \"number\"",
            ),
            (json!({"type": "object", "$ref": "https://example.com/a.json"}), "https://example.com/a.json"),
            (json!({"type": "object", "$ref": "file:///etc/hosts"}), "file:///etc/hosts"),
            (json!({"type": "object", "$ref": "other.json"}), "other.json"),
            (json!({"type": "object", "$id": "https://example.com/a", "$ref": "b"}), "https://example.com/b"),
            (json!({"type": "object", "$schema": "https://example.com/mine"}), "https://example.com/mine"),
            (json!({"type": "object", "$ref": "#/$defs/none"}), "/$defs/none"),
            (json!({"type": "object", "properties": {"a": {"pattern": "("}}}), "("),
            (json!("text"), "\"text\" is not of types \"boolean\", \"object\""),
        ];
        for (schema, expected) in table {
            let error = echo(schema.clone()).unwrap_err();
            let ToolError::Schema { name, fault } = &error else { panic!("{schema}: {error:?}") };
            assert_eq!(name, "echo");
            assert!(fault.contains(expected), "{schema}: {fault}");
            assert_eq!(
                error.to_string(),
                format!("the schema of the arguments of `echo` is not a valid JSON Schema: {fault}")
            );
        }
        for schema in [json!(true), json!({}), json!({"type": "string"}), json!({"type": ["object", "null"]})] {
            let error = echo(schema.clone()).unwrap_err();
            assert!(matches!(&error, ToolError::NotAnObject { schema: quoted, .. } if *quoted == schema), "{error:?}");
        }
        let error = Tool::with_schema("no name", "", json!({"type": "object"}), |_, _| async { Ok(()) }).unwrap_err();
        assert!(matches!(&error, ToolError::Name(name) if name == "no name"), "{error:?}");
    }

    fn lines() -> Value {
        json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": { "a b": {"type": "array", "items": {"$ref": "#/definitions/line"}}, "n": {"type": "integer"} },
            "required": ["a b"],
            "definitions": {"line": {"type": "object", "properties": {"text": {"type": "string"}}}},
        })
    }

    #[test]
    fn each_problem_in_arguments_is_reported_with_its_path() -> Result<()> {
        let tool = echo(lines())?;
        assert_eq!(tool.spec().parameters, lines());
        let table = [
            (json!({"a b": [{"text": "x"}], "n": 1}), ""),
            (json!({}), "\"a b\" is a required property"),
            (json!([]), "[] is not of type \"object\""),
            (json!({"a b": [{"text": "x"}, {"text": 4}]}), "at `a b[1].text`: 4 is not of type \"string\""),
            (
                json!({"a b": 1, "n": "1"}),
                "at `a b`: 1 is not of type \"array\"; at `n`: \"1\" is not of type \"integer\"",
            ),
        ];
        for (arguments, expected) in table {
            assert_eq!(tool.check(&arguments).err().unwrap_or_default(), expected, "{arguments}");
        }
        let long = tool.check(&json!({"a b": "x".repeat(100_000), "n": vec!["y"; 1000]})).unwrap_err();
        assert_eq!(long.len(), 2 * 505 + 2, "{long}");
        assert!(long.starts_with("at `a b`: \"xxx") && long.contains("x … x"), "{long}");
        assert!(long.contains("x\" is not of type \"array\"; at `n`: [\"y"), "{long}");
        assert!(long.ends_with("\"y\"] is not of type \"integer\""), "{long}");
        let many = json!({"a b": vec![json!({"text": 1}); 1000]});
        assert_eq!(tool.check(&many).unwrap_err().matches("; ").count(), 9);
        Ok(())
    }

    #[test]
    fn a_check_against_a_recursive_schema_is_complete_and_terminates() -> Result<()> {
        let list = json!({"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}});
        let nested = |last: Value| (0..100).fold(last, |inner, _| json!({"next": inner}));
        assert_eq!(echo(list.clone())?.check(&nested(json!({"n": 1}))), Ok(()));
        let wrong = echo(list)?.check(&nested(json!({"n": "1"}))).unwrap_err();
        assert!(wrong.ends_with(".next.n`: \"1\" is not of type \"integer\""), "{wrong}");

        let endless = json!({"type": "object", "$ref": "#", "allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}});
        assert_eq!(echo(endless)?.check(&json!({})), Ok(()));
        // The check stops a pattern that backtracks too often.
        let slow = json!({"type": "object", "properties": {"a": {"pattern": "^(a|aa)+\\1$"}}});
        let wrong = echo(slow)?.check(&json!({"a": "a".repeat(60) + "!"})).unwrap_err();
        assert!(wrong.starts_with("at `a`: ") && wrong.contains("backtracking"), "{wrong}");
        Ok(())
    }

    #[tokio::test]
    async fn a_tool_is_called_only_with_arguments_that_fit_even_without_an_agent() -> Result<()> {
        let tool = echo(lines())?;
        assert_eq!(tool.run(json!({"a b": []})).await?, ToolOutput::new(json!({"a b": []})));
        let error = tool.run(json!({})).await.unwrap_err();
        assert_eq!(error.to_string(), "the arguments are invalid: \"a b\" is a required property");

        let script =
            ScriptedModel::new("test").call("echo", json!({"n": 1})).call("echo", json!({"a b": []})).text("done");
        let answer = agent(&script).tool(tool).build()?.ask("go").await?;
        let expected = ["!the arguments of `echo` are invalid: \"a b\" is a required property", "{\"a b\":[]}"];
        assert_eq!(results(&answer.messages), expected);
        assert_eq!(script.requests()[0].tools[1].parameters, lines());
        Ok(())
    }

    /// A recursive type with constraints that only its schema has.
    #[derive(Deserialize, schemars::JsonSchema)]
    struct Dim {
        #[schemars(range(min = 1, max = 100))]
        percent: u8,
        #[schemars(length(max = 2), inner(regex(pattern = "^[a-z]+$")))]
        rooms: Vec<String>,
        then: Option<Box<Self>>,
        #[serde(flatten)]
        more: std::collections::BTreeMap<String, Value>,
    }

    #[tokio::test]
    async fn a_typed_tool_is_called_only_with_arguments_that_fit_its_schema() -> Result<()> {
        let log = Log::default();
        let to = log.clone();
        let dim = tool_fn("dim", "Dims lights", move |dim: Dim, _: RunContext| {
            let then = dim.then.map(|then| then.percent);
            to.add(format!("{} {:?} {then:?} {:?}", dim.percent, dim.rooms, dim.more.keys()));
            async { Ok(()) }
        })?;
        let table = [
            (json!({"percent": "1", "rooms": []}), "at `percent`: invalid type: string \"1\", expected u8"),
            (json!({"percent": 300, "rooms": []}), "at `percent`: invalid value: integer `300`, expected u8"),
            (json!({"percent": 0, "rooms": []}), "at `percent`: 0 is less than the minimum of 1"),
            (json!({"percent": 101, "rooms": []}), "at `percent`: 101 is greater than the maximum of 100"),
            (json!({"percent": 1, "rooms": ["a", "b", "c"]}), "at `rooms`: [\"a\",\"b\",\"c\"] has more than 2 items"),
            (json!({"percent": 1, "rooms": ["a", "B"]}), "at `rooms[1]`: \"B\" does not match \"^[a-z]+$\""),
            (
                json!({"percent": 1, "rooms": [], "then": {"percent": 0, "rooms": []}}),
                "at `then.percent`: 0 is less than the minimum of 1",
            ),
        ];
        for (arguments, expected) in table {
            assert_eq!(dim.check(&arguments).err().unwrap_or_default(), expected, "{arguments}");
            let error = dim.run(arguments).await.unwrap_err();
            assert_eq!(error.to_string(), format!("the arguments are invalid: {expected}"));
        }
        assert_eq!(log.lines(), [""; 0], "the function was not called");
        let fits = json!({"percent": 1, "rooms": ["a"], "then": {"percent": 100, "rooms": []}, "soft": true});
        dim.run(fits).await?;
        assert_eq!(log.lines(), ["1 [\"a\"] Some(100) [\"soft\"]"]);
        Ok(())
    }

    #[test]
    fn the_error_for_a_type_whose_schema_is_not_valid_states_the_fault() {
        #[derive(Deserialize, schemars::JsonSchema)]
        struct Broken {
            #[schemars(regex(pattern = "("))]
            #[expect(dead_code, reason = "only the schema is used")]
            text: String,
        }

        let error = tool_fn("broken", "", |_: Broken, _| async { Ok(()) }).unwrap_err();
        assert!(matches!(&error, ToolError::Schema { name, .. } if name == "broken"), "{error:?}");
    }
}

struct Db;

#[tokio::test]
async fn an_extension_that_a_tool_needs_is_checked_before_the_agent_starts() -> Result<()> {
    let look_up = tool_fn("look_up", "Looks up", |_: Text, ctx: RunContext| async move {
        Ok(if ctx.extension::<Db>().is_some() { "found" } else { "no database" })
    })?;
    let script = ScriptedModel::new("test").call("look_up", json!({"text": "x"})).text("Done.");
    let agent = agent(&script).tool(look_up).middleware(needs::<Db>()).build()?;
    let error = agent.ask("Look.").await.expect_err("there is no database");
    let text = error.to_string();
    assert!(text.contains("`Agent ") && text.contains("Db`") && text.contains(".extension("), "{text}");
    assert_eq!(script.requests().len(), 0);

    assert_eq!(agent.ask("Look.").extension(Db).await?.text(), "Done.");
    Ok(())
}
