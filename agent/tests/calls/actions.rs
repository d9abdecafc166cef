//! The end of a run in a hook of `turn.action`: what the history keeps.

use emitree_agent::{AgentRun, Part, ScriptedModel, Session, hooks_fn};
use emitree_runtime::{Error, Interrupt, Result};
use serde_json::json;

use crate::support::{agent, assert_valid, results, texts};

type Fails = fn() -> Result<()>;

/// Runs an agent with a hook that changes the response, and a hook that changes the response and then fails. Returns
/// the session.
async fn run_with(fails: Fails) -> Result<Session> {
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
    let fails = hooks_fn("fails", move |hooks| {
        hooks.on_action(|action, _| action.response.message.parts.insert(0, Part::Text { content: "kept".to_owned() }));
        hooks.on_action(move |action, _| {
            action.response.message.parts.insert(0, Part::Text { content: "half of ".to_owned() });
            fails()
        });
    });
    let session = Session::new();
    agent(&script).with(fails).build()?.ask("go").session(&session).await.expect_err("the hook fails");
    Ok(session)
}

// A1
#[tokio::test]
async fn an_interrupt_or_an_error_of_an_action_hook_keeps_the_response_and_executes_no_call() -> Result<()> {
    let table: [Fails; 4] = [
        || Err(Error::new("broken")),
        || Err(Error::new("broken").fatal(true)),
        || Err(Error::interrupted(Interrupt::new("approval", json!(null)))),
        || panic!("boom"),
    ];
    for fails in table {
        let session = run_with(fails).await?;
        assert_eq!(texts(&session), ["go", "kept", ""]);
        assert_eq!(results(assert_valid(&session).messages()), ["!not executed: the run was stopped"]);
    }
    Ok(())
}

// A1
#[tokio::test]
async fn a_denial_or_a_halt_of_an_action_hook_withholds_the_response() -> Result<()> {
    let table: [Fails; 2] = [|| Err(Error::denied("policy", "no")), || Err(Error::halted("policy", "enough"))];
    for fails in table {
        let session = run_with(fails).await?;
        assert_eq!(texts(&session), ["go", "(withheld by policy)"]);
        assert!(results(assert_valid(&session).messages()).is_empty());
    }
    Ok(())
}
