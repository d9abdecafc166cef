//! The client against servers that others have written. `scripts/mcp-peers` installs them, and runs these tests.

use std::sync::Arc;
use std::time::Duration;

use emitree_agent::Part;
use emitree_mcp::events::ToolProgress;
use emitree_mcp::{ElicitAnswer, Era, McpServer};
use parking_lot::Mutex;
use serde_json::json;

use crate::support::{Events, agent, offered, result, until};

/// Lists, calls, fails, looks at a picture, is asked, hears of progress, and cancels.
async fn uses_all(variable: &str, era: Option<Era>) {
    let command = std::env::var(variable).expect("scripts/mcp-peers sets the command");
    let mut words = command.split(' ');
    let program = words.next().expect("a program");
    let mut server = McpServer::command(program, words.collect::<Vec<_>>()).name("peer").inherit_env(["NODE_PATH"]);
    if let Some(era) = era {
        server = server.era(era);
    }
    let server = server.elicit(|question| async move {
        assert_eq!(question.message, "From which account?");
        Ok(ElicitAnswer::accept(json!({"account": "savings"})))
    });
    let server = server.connect().await.unwrap();
    let events = Events::of(server.emitter());
    let mut names = offered(server.tools()).await.unwrap();
    names.sort();
    assert_eq!(names, ["audit", "balance", "fail", "picture", "transfer"]);
    assert_eq!(result(server.tools(), "balance", json!({})).await.response, json!({"savings": 100}));
    let failed = result(server.tools(), "fail", json!({})).await;
    assert!(failed.is_error && failed.response.as_str().unwrap().contains("out of money"), "{failed:?}");
    let picture = result(server.tools(), "picture", json!({})).await;
    let [Part::Uri { modality, mime_type, uri }] = &*picture.parts else { panic!("{picture:?}") };
    assert_eq!((&**modality, mime_type.as_deref()), ("image", Some("image/png")));
    assert!(uri.starts_with("data:image/png;base64,") && uri.len() == 22 + 12_288 / 3 * 4, "{} bytes", uri.len());
    let wrong = result(server.tools(), "transfer", json!({"to": "Ada"})).await;
    assert!(wrong.is_error && wrong.response.as_str().unwrap().contains("amount"), "{wrong:?}");
    let paid = result(server.tools(), "transfer", json!({"to": "Ada", "amount": 5})).await;
    // In Python, the result of each function is also structured.
    assert_eq!(paid.response.get("result").unwrap_or(&paid.response), "sent 5 from savings");

    let seen = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&seen);
    let agent = agent(server.tools().timeout(Duration::from_millis(500)), &[("audit", json!({}))]);
    let run = agent
        .ask("Count.")
        .on("tool.*.progress", move |progress: &mut ToolProgress, _| list.lock().push(progress.done));
    run.await.unwrap();
    assert_eq!(*seen.lock(), [1.0, 2.0, 3.0]);
    until(|| events.named("log").iter().any(|log| log["data"] == "the audit was cancelled").then_some(())).await;
    let connected = events.named("connected");
    server.close().await;
    println!("{variable}, {era:?}: list, call, error, image, question, progress and cancel {connected:?}");
}

#[tokio::test]
#[ignore = "needs the package `mcp` of PyPI: run scripts/mcp-peers"]
async fn a_server_in_python_is_used_in_both_eras() {
    for era in [None, Some(Era::Old), Some(Era::New)] {
        uses_all("EMITREE_MCP_PYTHON", era).await;
    }
}

#[tokio::test]
#[ignore = "needs the package `@modelcontextprotocol/sdk` of npm: run scripts/mcp-peers"]
async fn a_server_in_javascript_is_used() {
    for era in [None, Some(Era::Old)] {
        uses_all("EMITREE_MCP_JAVASCRIPT", era).await;
    }
}
