//! `ask_user`: a tool with which the model asks the user.

use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
use emitree_agent_kit::built_in::ask_user;
use emitree_runtime::Result;
use serde_json::json;

use crate::support::results;

/// Returns the session after it was stored and read again.
fn stored(session: &Session) -> Session {
    let json = serde_json::to_string(session).expect("JSON");
    serde_json::from_str(&json).expect(&json)
}

fn ids(session: &Session) -> Vec<String> {
    session.questions().into_iter().map(|question| question.id).collect()
}

#[tokio::test]
async fn the_model_asks_the_user_for_a_text_one_choice_or_several() -> Result<()> {
    let choices = json!(["red", "blue", "green"]);
    let table = [
        (json!({"question": "Name?"}), vec![], json!("Ada"), "Ada"),
        (json!({"question": "Which?", "choices": choices}), vec![json!("pink"), json!(["red"])], json!("red"), "red"),
        (
            json!({"question": "Which?", "choices": choices, "several": true}),
            vec![json!("pink"), json!(["red", "pink"])],
            json!(["red", "green"]),
            r#"["red","green"]"#,
        ),
    ];
    for (arguments, refused, answer, expected) in table {
        let script = ScriptedModel::new("test").call("ask_user", arguments.clone()).text("Done.");
        let agent = Agent::builder("asker", ChatModel::new(script)?).tool(ask_user()).build()?;
        let session = Session::new();
        agent.ask("Ask.").session(&session).await.expect_err("a question");
        let id = ids(&session).remove(0);
        assert_eq!(session.questions()[0].data, arguments);
        for refused in refused {
            session.answer(&id, refused).await.expect_err("no choice");
        }
        session.answer(&id, answer).await?;
        let session = stored(&session);
        assert_eq!(agent.resume(&session).await?.text(), "Done.");
        assert_eq!(results(session.history().messages()), [expected]);
    }
    // A text is expected, and the answer is a number.
    let script = ScriptedModel::new("test").call("ask_user", json!({"question": "Name?"})).text("Done.");
    let agent = Agent::builder("asker", ChatModel::new(script)?).tool(ask_user()).build()?;
    let session = Session::new();
    agent.ask("Ask.").session(&session).await.expect_err("a question");
    session.answer(&ids(&session)[0], json!(4)).await?;
    agent.resume(&session).await.expect_err("the question is open again");
    assert_eq!(session.questions()[0].data["refused"]["answer"]["value"], 4);
    Ok(())
}
