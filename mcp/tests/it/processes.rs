//! The processes of servers: their environment, their ends, and their restarts.

use std::time::{Duration, Instant};

use emitree_agent::{Agent, ChatModel, ScriptedModel};
use serde_json::json;

use crate::support::{Events, agent, bank, bash, processes, result, results, until};

async fn gone(mark: &str) {
    until(|| processes(mark).is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_server_sees_only_named_variables() {
    let call = r#"content "$(env | cut -d= -f1 | sort | tr '\n' ' ')""#;
    let server = bash(&[("CALL", call)]).env("OWN", "1").inherit_env(["CARGO"]).connect().await.unwrap();
    let names = result(server.tools(), "act", json!({})).await.response.as_str().unwrap().to_owned();
    for name in names.split_whitespace() {
        let own = ["BEGIN", "CALL", "TOOLS", "OWN", "CARGO", "PATH", "HOME", "TMPDIR", "LANG"];
        // `bash` sets these itself.
        assert!(own.contains(&name) || ["PWD", "SHLVL", "_", "OLDPWD"].contains(&name), "{name}");
    }
    assert!(names.contains("OWN") && names.contains("PATH"));
}

#[tokio::test]
async fn a_server_runs_in_its_folder() {
    let server = bash(&[("CALL", "content \"$PWD\"")]).dir("/usr").connect().await.unwrap();
    assert_eq!(result(server.tools(), "act", json!({})).await.response, "/usr");
}

// P3
#[tokio::test]
async fn dropping_the_last_handle_kills_the_process_and_what_it_has_started() {
    let server = bash(&[("BEGIN", "sleep 1000 & trap '' TERM"), ("MARK", "dropped")]).connect().await.unwrap();
    let agent = agent(server.tools(), &[("act", json!({}))]);
    assert_eq!(processes("dropped").len(), 2);
    drop(server);
    assert_eq!(results(&agent.ask("Go on.").await.unwrap())[0].response, "acted");
    drop(agent);
    gone("dropped").await;
}

#[tokio::test]
async fn close_ends_the_input_and_waits() {
    let file = std::env::temp_dir().join(format!("emitree-mcp-closed-{}", std::process::id()));
    let end = format!("echo ended >{}", file.display());
    let server = bash(&[("END", &*end), ("MARK", "closed")]).connect().await.unwrap();
    server.close().await;
    assert!(processes("closed").is_empty());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "ended\n");
    std::fs::remove_file(&file).unwrap();
    let late = result(server.tools(), "act", json!({})).await;
    assert_eq!(late.response, "the MCP server `bash` was closed by this program");
}

#[tokio::test]
async fn close_kills_a_process_that_does_not_end() {
    let server = bash(&[("END", "trap '' TERM; sleep 1000"), ("MARK", "stubborn")]).connect().await.unwrap();
    let began = Instant::now();
    server.close().await;
    assert!((3..6).contains(&began.elapsed().as_secs()));
    gone("stubborn").await;
}

// P2
#[tokio::test]
async fn a_call_under_way_fails_at_once_when_the_process_dies() {
    let died = "echo out of money >&2; exit 3";
    let server = bash(&[("CALL", died)]).connect().await.unwrap();
    let events = Events::of(server.emitter());
    let failed = result(server.tools(), "act", json!({})).await;
    let expected = "the MCP server `bash` has exited with status 3; its last line on stderr is `out of money`";
    assert_eq!(failed.response, expected);
    assert_eq!(events.wait("exited").await, json!({"status": "has exited with status 3", "stderr": "out of money"}));
    let killed = bash(&[("CALL", "kill -9 $$")]).connect().await.unwrap();
    let failed = result(killed.tools(), "act", json!({})).await.response;
    assert_eq!(failed, "the MCP server `bash` was killed: signal: 9 (SIGKILL)");
}

// P2
#[tokio::test]
async fn the_error_of_a_dead_process_is_retryable_only_for_idempotent_tools() {
    for (is_idempotent, names) in [(true, vec!["act"]), (false, vec![])] {
        let server = bash(&[("CALL", "exit 1")]).connect().await.unwrap();
        let found = std::sync::Arc::new(parking_lot::Mutex::new(None));
        let kept = std::sync::Arc::clone(&found);
        let model = ScriptedModel::new("test").call("act", json!({})).text("done");
        let agent = Agent::builder("clerk", ChatModel::new(model).unwrap()).with(server.tools().idempotent(names));
        let agent = agent.build().unwrap();
        let run = agent.ask("Go on.").on("tool.act.error", move |error: &mut emitree_agent::ToolFailure, _| {
            *kept.lock() = Some(error.error.is_retryable);
        });
        run.await.unwrap();
        assert_eq!(*found.lock(), Some(is_idempotent));
    }
}

#[tokio::test]
async fn a_dead_process_is_started_again_a_few_times() {
    let server = bank(&["--era", "new"]).restarts(1).connect().await.unwrap();
    let events = Events::of(server.emitter());
    assert!(result(server.tools(), "crash", json!({})).await.is_error);
    assert_eq!(result(server.tools(), "balance", json!({})).await.response, json!({"savings": 100}));
    assert_eq!(events.wait("restarted").await, json!({"restarts": 1}));
    assert!(result(server.tools(), "crash", json!({})).await.is_error);
    let refused = result(server.tools(), "balance", json!({})).await.response;
    let expected = "the MCP server `bank` has ended 2 times within 300s, so it is not started again; at last it has \
                    exited with status 3; its last line on stderr is `out of money`";
    assert_eq!(refused, expected);
}

#[tokio::test]
async fn a_key_on_stderr_is_in_no_error() {
    let key = "ghp_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5";
    let died = format!("echo token {key} >&2; exit 3");
    let server = bash(&[("CALL", &*died)]).connect().await.unwrap();
    let events = Events::of(server.emitter());
    let failed = result(server.tools(), "act", json!({})).await.response;
    assert!(failed.as_str().unwrap().contains("token [") && !failed.to_string().contains(key), "{failed}");
    assert!(!events.wait("exited").await.to_string().contains(key));
}

#[tokio::test]
async fn a_run_that_is_dropped_while_it_connects_leaves_no_process() {
    let connecting = bash(&[("BEGIN", "sleep 1000"), ("MARK", "waiting")]).connect();
    assert!(tokio::time::timeout(Duration::from_millis(300), connecting).await.is_err());
    gone("waiting").await;
}
