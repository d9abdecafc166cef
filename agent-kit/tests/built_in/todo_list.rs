//! `TodoList`: the model writes a list, which the session keeps.

use emitree_agent::{AgentRun, ScriptedModel, Session, hooks_fn};
use emitree_agent_kit::built_in::{TodoList, TodoState, TodosWritten};
use emitree_middleware::Redact;
use emitree_runtime::{Result, for_tree};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::bound::{Bound, restored};
use crate::support::{Log, agent, refuse_bad, results};

/// The arguments of a call that writes a list. `+` marks a step that is done, and `-` a step that has begun.
fn todos(list: &str) -> Value {
    let todo = |text: &str| match text.strip_prefix('+') {
        Some(text) => json!({"text": text, "state": "completed"}),
        None => match text.strip_prefix('-') {
            Some(text) => json!({"text": text, "state": "in_progress"}),
            None => json!({"text": text, "state": "pending"}),
        },
    };
    json!({"todos": list.split(' ').filter(|text| !text.is_empty()).map(todo).collect::<Vec<_>>()})
}

fn writes(list: &str) -> ScriptedModel {
    ScriptedModel::new("test").call("write_todos", todos(list)).text("done")
}

fn short(todos: &[emitree_agent_kit::built_in::Todo]) -> String {
    let mark = |state| match state {
        TodoState::Completed => "+",
        TodoState::InProgress => "-",
        _ => "",
    };
    todos.iter().map(|todo| format!("{}{}", mark(todo.state), todo.text)).collect::<Vec<_>>().join(" ")
}

fn list_of(session: &Session) -> Result<String> {
    Ok(short(&TodoList::of(session)?))
}

/// A list that logs its events.
fn logging(log: &Log) -> Result<TodoList> {
    let (list, log) = (TodoList::new(), log.clone());
    list.emitter().on("todos", move |event: &mut TodosWritten, _| {
        log.add(format!("{} > {}", short(&event.before), short(&event.after)));
    })?;
    Ok(list)
}

#[tokio::test]
async fn each_call_replaces_the_list_of_the_session_and_is_an_event_with_both_lists() -> Result<()> {
    for bound in Bound::each_way() {
        let (log, session) = (Log::default(), Session::new());
        assert_eq!(list_of(&session)?, "");
        let script = ScriptedModel::new("test")
            .call("write_todos", todos("-read write"))
            .call("write_todos", todos("+read -write send"))
            .text("done");
        let answer = bound.ask(agent(&script), logging(&log)?, &session).await?;
        let expected = ["steps: 2, completed: 0", "steps: 3, completed: 1"];
        assert_eq!(results(&answer.messages), expected, "{bound:?}");
        assert_eq!(list_of(&session)?, "+read -write send");
        assert_eq!(log.lines(), [" > -read write", "-read write > +read -write send"]);
        let system = script.requests()[0].system.clone().unwrap_or_default();
        assert!(system.contains("`write_todos`"), "{system}");
    }
    Ok(())
}

#[tokio::test]
async fn listeners_of_the_agents_run_receive_the_event_and_redact_redacts_its_texts() -> Result<()> {
    let log = Log::default();
    let agent =
        agent(&writes("key=sk-proj-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfGh")).with(TodoList::new()).build()?;
    let to = log.clone();
    let run = agent.ask("go").middleware(for_tree(Redact::new()));
    run.observe("**.todo_list.todos", move |event: &TodosWritten, _| to.add(short(&event.after))).await?;
    let [line] = &*log.lines() else { panic!("{:?}", log.lines()) };
    assert!(line.starts_with("key=[") && !line.contains("sk-proj"), "{line}");
    Ok(())
}

#[tokio::test]
async fn of_several_calls_in_one_turn_only_the_last_is_executed() -> Result<()> {
    let session = Session::new();
    let calls = ["a", "b", "c"].map(|list| ("write_todos", todos(list)));
    let script = ScriptedModel::new("test").calls(calls).text("done");
    let answer = Bound::TO_AGENT.ask(agent(&script).spawn_tools(true), TodoList::new(), &session).await?;
    let denied = "!denied by todo_list: a later call of this turn writes the list";
    assert_eq!(results(&answer.messages), [denied, denied, "steps: 1, completed: 0"]);
    assert_eq!(list_of(&session)?, "c");
    Ok(())
}

#[tokio::test]
async fn a_list_that_does_not_fit_is_an_error_for_the_model_and_the_list_stays() -> Result<()> {
    let session = Session::new();
    let wrong = json!({"todos": [{"text": "read", "state": "soon"}]});
    let script = ScriptedModel::new("test").calls([("write_todos", todos("a")), ("write_todos", wrong)]).text("done");
    let answer = Bound::TO_AGENT.ask(agent(&script), TodoList::new(), &session).await?;
    let results = results(&answer.messages);
    assert!(results[1].contains("at `todos[0].state`: unknown variant `soon`"), "{results:?}");
    assert_eq!(list_of(&session)?, "a");
    Ok(())
}

#[tokio::test]
async fn a_discarded_attempt_takes_its_list_back() -> Result<()> {
    let (log, session) = (Log::default(), Session::new());
    Bound::TO_AGENT.ask(agent(&writes("old")), TodoList::new(), &session).await?;
    let script = ScriptedModel::new("test")
        .call("write_todos", todos("first"))
        .text("bad")
        .call("write_todos", todos("second"))
        .text("good");
    let agent = agent(&script).with(logging(&log)?).middleware(emitree_runtime::map_output(refuse_bad)).build()?;
    agent.ask("go").session(&session).max_middleware_retries(1).await?;
    assert_eq!(log.lines(), ["old > first", "old > second"]);
    assert_eq!(list_of(&session)?, "second");
    Ok(())
}

#[tokio::test]
async fn a_restored_session_has_its_list() -> Result<()> {
    let (log, session) = (Log::default(), Session::new());
    Bound::TO_AGENT.ask(agent(&writes("+read write")), TodoList::new(), &session).await?;
    let session = restored(&session);
    assert_eq!(list_of(&session)?, "+read write");
    Bound::TO_AGENT.ask(agent(&writes("")), logging(&log)?, &session).await?;
    assert_eq!((log.lines(), list_of(&session)?), (vec!["+read write > ".to_owned()], String::new()));
    Ok(())
}

#[tokio::test]
async fn a_hundred_runs_at_once_write_a_hundred_lists() -> Result<()> {
    let script = ScriptedModel::by("test", |request| match request.messages.len() {
        1 => emitree_agent::Reply::calls([("write_todos", todos(&request.last_user_text()))]),
        _ => emitree_agent::Reply::text("done"),
    });
    let agent = agent(&script).with(TodoList::new()).build()?;
    let sessions: Vec<_> = (0..100).map(|_| Session::new()).collect();
    let runs = sessions.iter().enumerate().map(|(n, session)| agent.ask(format!("n{n}")).session(session));
    try_join_all(runs.map(IntoFuture::into_future)).await?;
    for (n, session) in sessions.iter().enumerate() {
        assert_eq!(list_of(session)?, format!("n{n}"));
    }
    Ok(())
}

#[tokio::test]
async fn two_lists_on_one_agent_are_an_error_and_so_is_the_state_of_another_middleware() -> Result<()> {
    let twice = agent(&writes("a")).with(TodoList::new()).with(TodoList::new()).build();
    assert!(twice.unwrap_err().to_string().contains("`todo_list` twice"));

    let other = hooks_fn("todo_list", |hooks| {
        let count = hooks.state::<u32>();
        hooks.on_action(move |_, ctx| count.with(ctx, |count| *count += 1));
    });
    let session = Session::new();
    agent(&writes("a")).with(other).build()?.ask("go").session(&session).await?;
    let answer = Bound::TO_AGENT.ask(agent(&writes("a")), TodoList::new(), &restored(&session)).await?;
    let results = results(&answer.messages);
    assert!(results[0].starts_with("!the stored state `todo_list` cannot be deserialized"), "{results:?}");
    let error = TodoList::of(&restored(&session)).unwrap_err().to_string();
    assert!(error.starts_with("the state `todo_list` has another type"), "{error}");
    Ok(())
}
