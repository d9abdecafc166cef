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
    let open = |id: &str, sessions: Value| {
        let call = json!({"type": "tool_call", "id": "c", "name": "ask", "arguments": {}});
        let result = json!({"type": "tool_call_response", "id": "c", "response": "no"});
        let response = json!({"role": "assistant", "parts": [call]});
        let messages = json!([response, {"role": "tool", "parts": [result]}]);
        let turn = json!({"number": 1, "response": response, "calls": [{"sessions": sessions}], "is_placed": true});
        let counts = json!({"number": 1, "tool_calls": 1, "usage": {}});
        let nil = "00000000-0000-0000-0000-000000000000";
        let run = json!({"number": 0, "id": nil, "attempt": 1, "counts": counts, "is_left": true, "open": turn});
        let spans = json!([{"len": 2, "turn": 1}]);
        json!({
            "format": 1, "id": id, "turns": 1, "begun": 1, "messages": messages, "spans": spans, "runs": [run], "stopped": 0
        })
    };
    let with = |mut session: Value, below: Value| {
        session["below"] = below;
        serde_json::from_value::<Session>(session)
    };
    let below = |id: &str| json!({"format": 1, "id": id});
    with(open("a", json!(["a/1"])), json!({"a/1": below("a/1")})).expect("a session");
    let forged = [
        (json!(["a/1"]), json!({}), "at `below`: `a/1` is not the session of one open call"),
        (json!([]), json!({"a/1": below("a/1")}), "at `below`: `a/1` is not the session of one open call"),
        (json!(["a/1"]), json!({"a/1": open("a/1", json!(["a/1"]))}), "at `below`: `a/1` is not the session of one"),
        (json!(["a/1"]), json!({"a/1": below("a/2")}), "at `below[a/1]`: it has another id"),
        (json!(["a/1"]), json!({"a/1": {"format": 9, "id": "a/1"}}), "the session is stored in the format 9"),
    ];
    for (sessions, below, expected) in forged {
        let error = with(open("a", sessions), below).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    // A long chain does not overflow the stack.
    let session = |depth: u32| match depth {
        0 => below("a/0"),
        depth => open(&format!("a/{depth}"), json!([format!("a/{}", depth - 1)])),
    };
    let chain: serde_json::Map<_, _> = (0..10_000).map(|depth| (format!("a/{depth}"), session(depth))).collect();
    let long = with(open("a", json!(["a/9999"])), json!(chain)).expect("a session");
    assert_eq!(long.questions(), []);
}
