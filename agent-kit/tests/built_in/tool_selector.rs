//! `ToolSelector`: the model is offered only the tools that were selected for the user's message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_agent::{
    AgentBuilder, AgentRun, ChatModel, ChatOptions, Message, Reply, ResponseFormat, ScriptedModel, Session, ToolChoice,
    Usage, hooks_fn, tool_fn,
};
use emitree_agent_kit::built_in::{SelectionFailed, ToolSelector, ToolsSelected};
use emitree_middleware::Budget;
use emitree_runtime::{Error, Result, RunContext, for_tree, map_output};
use futures_util::future::try_join_all;
use serde_json::json;

use super::bound::{Bound, restored};
use crate::support::{Log, Text, agent, refuse_bad, results};

/// An agent with the tools `shout`, `read`, `write` and `search`.
fn helper(script: &ScriptedModel) -> AgentBuilder {
    let tool = |name: &str| tool_fn(name, format!("Can {name}"), |_: Text, _: RunContext| async { Ok("ok") });
    ["read", "write", "search"].into_iter().fold(agent(script), |agent, name| agent.tool(tool(name)))
}

fn selects(answer: &str) -> ScriptedModel {
    ScriptedModel::new("small").text(answer)
}

fn with(small: &ScriptedModel) -> Result<ToolSelector> {
    Ok(ToolSelector::with(ChatModel::new(small.clone())?))
}

/// Returns the tools of each request.
fn offered(script: &ScriptedModel) -> Vec<String> {
    let names = |request: &emitree_agent::ChatRequest| {
        request.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>().join(" ")
    };
    script.requests().iter().map(names).collect()
}

/// Logs the events of a selector.
fn logging(selector: ToolSelector, log: &Log) -> Result<ToolSelector> {
    let (selected, failed) = (log.clone(), log.clone());
    selector.emitter().on("selected", move |event: &mut ToolsSelected, _| {
        selected.add(format!("{} | {}", event.tools.join(" "), event.unknown.join(" ")));
    })?;
    selector.emitter().on("failed", move |event: &mut SelectionFailed, _| failed.add(event.error.clone()))?;
    Ok(selector)
}

#[tokio::test]
async fn the_model_is_offered_the_selected_tools_in_all_turns_of_a_user_message() -> Result<()> {
    for bound in Bound::each_way() {
        let small = selects(r#"{"tools": ["search", "shout"]}"#);
        let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
        let log = Log::default();
        let selector = logging(with(&small)?.always(["read"]), &log)?;
        let answer = bound.ask(helper(&script), selector, &Session::new()).await?;
        assert_eq!(results(&answer.messages), ["A"]);
        assert_eq!(offered(&script), ["shout read search"; 2], "{bound:?}");
        assert_eq!(log.lines(), ["shout read search | "]);
        let [question] = &*small.requests() else { panic!("asked {} times", small.requests().len()) };
        assert_eq!((question.last_user_text().as_str(), question.messages.len()), ("go", 1));
        let system = question.system.clone().unwrap_or_default();
        assert!(system.ends_with("- shout: Shouts\n- write: Can write\n- search: Can search"), "{system}");
        let Some(ResponseFormat::JsonSchema { schema, .. }) = &question.options.response_format else { panic!() };
        assert_eq!(schema["properties"]["tools"]["items"]["enum"], json!(["shout", "write", "search"]));
        assert_eq!(answer.usage, Usage::default());
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_that_was_not_selected_is_not_executed() -> Result<()> {
    let script = ScriptedModel::new("test").call("write", json!({"text": "a"})).text("done");
    let answer = Bound::TO_AGENT.ask(helper(&script), with(&selects(r#"{"tools": []}"#))?, &Session::new()).await?;
    assert_eq!(results(&answer.messages), ["!`write` was not offered in this turn"]);
    assert_eq!(offered(&script), ["", ""], "an empty selection is an answer");
    Ok(())
}

#[tokio::test]
async fn at_most_so_many_selected_tools_are_offered_beside_those_that_always_are() -> Result<()> {
    let answer = r#"{"tools": ["search", "write", "search", "shout"]}"#;
    let expected = ["read search", "read write search", "shout read write search", "shout read write search"];
    for (most, expected) in (1..).zip(expected) {
        let (small, script) = (selects(answer), ScriptedModel::new("test").text("done"));
        let selector = with(&small)?.at_most(most).always(["read"]);
        Bound::TO_AGENT.ask(helper(&script), selector, &Session::new()).await?;
        assert_eq!(offered(&script), [expected]);
        let system = small.requests()[0].system.clone().unwrap_or_default();
        assert!(system.contains(&format!("Select at most {most}")), "{system}");
    }
    Ok(())
}

#[tokio::test]
async fn names_that_the_selectors_model_invents_are_dropped_and_reported() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").text("done"));
    let selector = logging(with(&selects(r#"{"tools": ["fly", "write"]}"#))?, &log)?;
    Bound::TO_AGENT.ask(helper(&script), selector, &Session::new()).await?;
    assert_eq!((offered(&script), log.lines()), (vec!["write".to_owned()], vec!["write | fly".to_owned()]));
    Ok(())
}

#[tokio::test]
async fn without_a_usable_answer_all_tools_are_offered_or_a_strict_run_fails() -> Result<()> {
    let fails = || ScriptedModel::new("small").error(Error::new("no server"));
    let denies = || ScriptedModel::new("small").error(Error::denied("rude", "a rude word"));
    let cases = [
        (
            selects("all"),
            "the answer of `small` has no list `tools`: it is not JSON: expected value at line 1 column 1",
        ),
        (selects(r#"{"tools": ["fly", "swim"]}"#), "only unknown tools were selected: `fly`, `swim`"),
        (fails(), "no server"),
        (denies(), "a rude word"),
    ];
    for (small, reason) in cases {
        let (log, script) = (Log::default(), ScriptedModel::new("test").call("read", json!({"text": ""})).text("done"));
        let selector = logging(with(&small)?, &log)?;
        let agent = helper(&script).build()?;
        assert_eq!(agent.ask("go").with(selector).await?.text(), "done");
        assert_eq!(offered(&script), ["shout read write search"; 2]);
        assert_eq!((log.lines(), small.requests().len()), (vec![reason.to_owned()], 1));
    }
    for (small, reason) in [(selects("all"), "is not JSON"), (fails(), "no server")] {
        let script = ScriptedModel::new("test");
        let error = Bound::TO_AGENT.ask(helper(&script), with(&small)?.strict(), &Session::new()).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(error.details()["by"], "tool_selector.model.request");
        assert_eq!(script.requests().len(), 0);
    }
    let small = ScriptedModel::new("small").error(Error::halted("breaker", "stop"));
    let script = ScriptedModel::new("test");
    let error = Bound::TO_AGENT.ask(helper(&script), with(&small)?, &Session::new()).await.unwrap_err();
    assert!(error.is_halted());
    Ok(())
}

#[tokio::test]
async fn each_user_message_and_each_attempt_is_selected_for_once() -> Result<()> {
    let answers = ["read", "write", "search"].map(|tool| format!(r#"{{"tools": ["{tool}"]}}"#));
    let small = || answers.iter().fold(ScriptedModel::new("small"), |small, answer| small.text(answer));
    let asks_again = hooks_fn("again", |hooks| {
        hooks.on_action(|action, _| {
            if action.response.text() == "first" {
                action.inject.push(Message::user("go"));
            }
        });
    });
    let script = ScriptedModel::new("test").text("first").text("second").text("third");
    let (agent, session) = (helper(&script).with(with(&small())?).with(asks_again).build()?, Session::new());
    agent.ask("go").session(&session).await?;
    agent.ask("go").session(&restored(&session)).await?;
    assert_eq!(offered(&script), ["read", "write", "search"]);

    let script = ScriptedModel::new("test").text("bad").text("good");
    let agent = helper(&script).with(with(&small())?).middleware(map_output(refuse_bad)).build()?;
    agent.ask("go").max_middleware_retries(1).await?;
    assert_eq!(offered(&script), ["read", "write"]);
    Ok(())
}

#[tokio::test]
async fn another_attempt_of_a_run_without_input_is_selected_for_again() -> Result<()> {
    let (calls, session) = (Log::default(), Session::new());
    session.extend([Message::user("go")])?;
    let to = calls.clone();
    let selector = ToolSelector::by(move |_, ctx| {
        to.add(format!("attempt {}", ctx.attempt()));
        Box::pin(async { Ok(vec!["read".to_owned()]) })
    });
    let script = ScriptedModel::new("test").text("bad").text("good");
    let of = helper(&script).with(selector).middleware(map_output(refuse_bad)).max_middleware_retries(1).build()?;
    assert_eq!(of.ask(Vec::<Message>::new()).session(&session).await?.text(), "good");
    assert_eq!(calls.lines(), ["attempt 0", "attempt 1"]);
    Ok(())
}

#[tokio::test]
async fn no_token_of_the_selectors_model_reaches_on_token_and_its_tokens_are_charged() -> Result<()> {
    let small = ScriptedModel::by("small", |_| Reply::text(r#"{"tools": ["read"]}"#).usage(Usage::new(70, 7)));
    let model = ChatModel::new(small.clone())?.options(ChatOptions::new().stream(true));
    let script = ScriptedModel::by("test", |_| Reply::text("done").usage(Usage::new(20, 2)));
    let (log, agent) = (Log::default(), helper(&script).build()?);
    let to = log.clone();
    let run = agent.ask("go").with(ToolSelector::with(model.clone())).on_token(move |token| to.add(token.text()));
    let answer = run.await?;
    assert_eq!(log.lines(), ["done"]);
    assert_eq!(small.requests()[0].options.stream, Some(false));
    assert_eq!(answer.usage, Usage::new(20, 2));

    let budget = || Ok::<_, Error>(for_tree(Budget::builder().tokens(70).build()?));
    agent.ask("go").middleware(budget()?).await?;
    let asked = script.requests().len();
    agent.ask("go").with(ToolSelector::with(model)).middleware(budget()?).await.unwrap_err();
    assert_eq!(script.requests().len(), asked, "the selection has used up the budget");
    Ok(())
}

#[tokio::test]
async fn a_function_may_select_and_a_tool_that_tool_choice_names_is_offered() -> Result<()> {
    let script = ScriptedModel::new("test").text("done").text("done");
    let by = |names: &'static [&'static str]| {
        ToolSelector::by(move |request, _| {
            let known = request.tools.iter().map(|tool| tool.name.clone());
            let names = known.filter(|name| names.contains(&name.as_str())).collect();
            Box::pin(async move { Ok(names) })
        })
    };
    Bound::TO_AGENT.ask(helper(&script), by(&["write"]), &Session::new()).await?;
    let agent = helper(&script).options(ChatOptions::new().tool_choice(ToolChoice::Tool("read".to_owned()))).build()?;
    agent.ask("go").with(by(&["write"])).await?;
    assert_eq!(offered(&script), ["write", "read write"]);
    Ok(())
}

#[tokio::test]
async fn a_hundred_runs_at_once_ask_a_hundred_times() -> Result<()> {
    let asked = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&asked);
    let by = ToolSelector::by(move |request, _| {
        counts.fetch_add(1, Ordering::Relaxed);
        let name = request.last_user_text();
        Box::pin(async move { Ok(vec![name]) })
    });
    let script = ScriptedModel::by("test", |request| {
        Reply::text(request.tools.iter().map(|tool| tool.name.clone()).collect::<String>())
    });
    let agent = helper(&script).with(by).build()?;
    let names = ["shout", "read", "write", "search"];
    let runs = (0..100).map(|n| agent.ask(names[n % 4]).into_future());
    for (n, answer) in try_join_all(runs).await?.into_iter().enumerate() {
        assert_eq!(answer.text(), names[n % 4]);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 100);
    Ok(())
}

#[tokio::test]
async fn bad_options_are_errors_that_quote_them() -> Result<()> {
    let refused =
        |selector: ToolSelector| helper(&ScriptedModel::new("test")).with(selector).build().unwrap_err().to_string();
    let selector = || with(&ScriptedModel::new("small"));
    assert_eq!(refused(selector()?.at_most(0)), "`ToolSelector::at_most(0)` allows no tool: allow at least 1");
    assert!(refused(selector()?.always(["fly"])).contains("`tool_selector` names the tool `fly`"));
    let twice = helper(&ScriptedModel::new("test")).with(selector()?).with(selector()?).build();
    assert!(twice.unwrap_err().to_string().contains("`tool_selector` twice"));
    Ok(())
}
