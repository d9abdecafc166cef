//! Sessions of agents below calls, in JSON (A8).

use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session, tool_fn};
use emitree_runtime::{Interrupt, Result, RunContext, Runnable};
use serde_json::{Value, json};

use crate::support::Text;

/// A8, A22
#[tokio::test]
async fn agents_in_one_another_at_the_default_depth_are_read_again_and_go_on() -> Result<()> {
    let asks = tool_fn("pay", "Pays", |_: Text, ctx: RunContext| async move {
        ctx.ask::<bool>(Interrupt::new("sure", json!({})))
    })?
    .idempotent();
    let script = ScriptedModel::new("inner").call("pay", json!({"text": "Ada"})).text("Paid.");
    let mut agent = Agent::builder("agent0", ChatModel::new(script)?).tool(asks).build()?;
    for depth in 1..=20 {
        let (below, name) = (agent.name().to_owned(), format!("agent{depth}"));
        let script = ScriptedModel::new(&*name).call(below, json!({"task": "Pay."})).text("Done.");
        agent = Agent::builder(name, ChatModel::new(script)?).tool(agent.as_tool("Pays")?).build()?;
    }
    let session = Session::new();
    assert!(agent.ask("Pay.").session(&session).await.expect_err("a question").is_interrupted());
    let json = serde_json::to_string(&session)?;
    let session: Session = serde_json::from_str(&json)?;
    assert_eq!(serde_json::to_string(&session)?, json);
    let question = session.questions().remove(0);
    session.answer(&question.id, json!(true)).await.expect("it is open");
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    Ok(())
}

/// A8
#[test]
fn sessions_below_calls_that_are_forged_are_refused() {
    let open = |sessions: Value, below: Value| {
        let call = json!({"type": "tool_call", "id": "c", "name": "ask", "arguments": {}});
        let result = json!({"type": "tool_call_response", "id": "c", "response": "no"});
        let history = json!([{"role": "assistant", "parts": [call]}, {"role": "tool", "parts": [result]}]);
        let turn = json!({"at": 0, "number": 1, "calls": [{"open": {"sessions": sessions}}]});
        let usage = json!({"number": 1, "tool_calls": 1, "usage": {}});
        let open = json!({"run": "00000000-0000-0000-0000-000000000000", "turn": usage, "response": turn});
        json!({"version": 3, "id": "a", "history": history, "open": open, "below": below})
    };
    let below = |id: &str| json!({"version": 3, "id": id, "history": []});
    let valid = open(json!(["a/1"]), json!([below("a/1")]));
    serde_json::from_value::<Session>(valid).expect("a session");
    let unknown = "at `open.response.calls[0].open.sessions`: there is no session `a/1`";
    for (forged, expected) in [
        (open(json!(["a/1"]), json!([])), unknown),
        (open(json!(["a/1", "a/1"]), json!([below("a/1")])), unknown),
        (
            open(json!(["a/1"]), json!([{"version": 9, "id": "a/1", "history": []}])),
            "the session is stored in version 9",
        ),
    ] {
        let error = serde_json::from_value::<Session>(forged).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    // A chain that would overflow the stack.
    let mut chain = vec![below("a/0")];
    for depth in 1..1_000 {
        let id = format!("a/{depth}");
        let mut session = open(json!([format!("a/{}", depth - 1)]), json!([]));
        session["id"] = json!(id);
        chain.push(session);
    }
    let error = serde_json::from_value::<Session>(open(json!(["a/999"]), json!(chain))).expect_err("too deep");
    assert!(error.to_string().ends_with("more than 200 sessions are in one another"), "{error}");
}
