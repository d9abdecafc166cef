//! Servers that are wrong in each way: each has its error, and leaves no process, no task and no file handle.

#[path = "it/support.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use std::time::Duration;

use emitree_mcp::{Limits, McpServer};
use serde_json::json;

use crate::support::{bash, processes, result, until};

/// A script that a server executes for a call, and the beginning of the result that the model receives.
const CALLS: [(&str, &str); 21] = [
    // An answer that cannot be read belongs to its request.
    (
        r#"reply '"error":"no"'"#,
        "the MCP server `bad` has refused `tools/call` with the error -32603: the answer is no message",
    ),
    (
        r#"reply '"result":5'"#,
        "the MCP server `bad` has answered `tools/call` with `5`, which is no result of this method",
    ),
    (
        r#"reply '"result":{"content":"text"}'"#,
        "the MCP server `bad` has answered `tools/call` with `{\"content\":\"text\"}`",
    ),
    (
        r#"reply '"error":{"code":-32000,"message":"no money"}'"#,
        "the MCP server `bad` has refused `tools/call` with the error -32000: no money",
    ),
    // Texts that are no message are skipped, and so are answers to other requests.
    ("echo Welcome; echo; echo '{}'; echo '[1,2'; content acted", "acted"),
    (r#"echo '{"jsonrpc":"2.0","id":4711,"result":{}}'; content acted"#, "acted"),
    ("echo Welcome", "an attempt took longer than 1.5s"),
    (":", "an attempt took longer than 1.5s"),
    // Lines without an end.
    (
        "head -c 10000000 /dev/zero | tr '\\0' x; echo; content acted",
        "the MCP server `bad` has sent a message of more than 100000 bytes",
    ),
    ("tr '\\0' x </dev/zero", "the MCP server `bad` has sent a message of more than 100000 bytes"),
    ("printf '{\"jsonrpc\"'; exit 0", "the MCP server `bad` has exited with status 0"),
    // Death during and after the answer.
    ("exit 3", "the MCP server `bad` has exited with status 3"),
    ("content acted; exit 0", "acted"),
    ("trap '' TERM HUP INT; content acted; sleep 1000", "acted"),
    // What the server has started holds its output open.
    ("sleep 1000 & exit 4", "the MCP server `bad` has exited with status 4"),
    ("(trap '' TERM; sleep 1000) & content acted", "acted"),
    ("exec >&-; sleep 1000", "the MCP server `bad` has closed the connection"),
    // The client has not declared roots and sampling, and no answer fits the question.
    (r#"asks roots/list '{}'"#, "{jsonrpc:2.0,id:a,error:{code:-32601,"),
    (r#"asks sampling/createMessage '{"messages":[],"maxTokens":1}'"#, "{jsonrpc:2.0,id:a,error:{code:-32601,"),
    (r#"asks elicitation/create '{"message":"?","requestedSchema":5}'"#, "{jsonrpc:2.0,id:a,error:{code:-32601,"),
    (
        r#"asks elicitation/create '{"message":"?","requestedSchema":{"type":"object","properties":{}}}'"#,
        "{jsonrpc:2.0,id:a,result:{action:decline}}",
    ),
];

/// Sends a request, and returns the answer as the result of the call.
const ASKS: &str = r#"asks() {
  call=$line; echo '{"jsonrpc":"2.0","id":"a","method":"'"$1"'","params":'"$2"'}'
  read -r answer; line=$call; content "${answer//\"/}"
}"#;

/// A script that a server executes for its list, and the beginning of the error of the connection.
const LISTS: [(&str, &str); 5] = [
    (r#"reply '"result":{"tools":5}'"#, "the MCP server `bad` has answered `tools/list` with `{\"tools\":5}`"),
    (r#"reply '"result":[]'"#, "the MCP server `bad` has answered `tools/list` with `{}`"),
    (
        r#"reply '"error":{"code":-32603,"message":"later"}'"#,
        "the MCP server `bad` has refused `tools/list` with the error -32603: later",
    ),
    (":", "the MCP server `bad` has not answered `tools/list` within 3s"),
    ("exit 5", "the MCP server `bad` has exited with status 5"),
];

fn handles() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("the handles").count()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

async fn left_nothing(mark: &str, before: usize, script: &str) {
    for _ in 0..1_000 {
        if processes(mark).is_empty() && tasks() == 0 && handles() == before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (processes, tasks, handles) = (processes(mark), tasks(), handles());
    panic!("{script}: left the processes {processes:?}, {tasks} tasks, and {handles} handles instead of {before}");
}

async fn connect(variable: &str, script: &str, mark: &str) -> emitree_runtime::Result<McpServer> {
    let server = bash(&[("BEGIN", ASKS), (variable, script), ("MARK", mark)]).name("bad");
    let limits = Limits::default().message_bytes(100_000);
    server.limits(limits).connect_timeout(Duration::from_secs(3)).connect().await
}

// P2, P4
#[tokio::test]
async fn each_bad_server_has_its_error_and_leaves_nothing() {
    // The first process of a program opens handles that stay.
    connect("CALL", "content acted", "first").await.unwrap().close().await;
    until(|| (tasks() == 0).then_some(())).await;
    let before = handles();
    for (number, (script, expected)) in CALLS.into_iter().enumerate() {
        let mark = format!("call-{number}");
        let server = connect("CALL", script, &mark).await.unwrap();
        let result = result(server.tools().timeout(Duration::from_millis(1_500)), "act", json!({})).await;
        let text = result.response.as_str().unwrap_or_default();
        assert!(text.starts_with(expected), "{script}: {text}");
        drop(server);
        left_nothing(&mark, before, script).await;
    }
    for (number, (script, expected)) in LISTS.into_iter().enumerate() {
        let mark = format!("list-{number}");
        let error = connect("LIST", script, &mark).await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{script}: {error}");
        left_nothing(&mark, before, script).await;
    }
}
