//! How the era of a server is found.

use std::time::{Duration, Instant};

use emitree_mcp::{Era, Fault, McpError};
use serde_json::json;

use crate::support::{DISCOVER, Events, bank, bash, result};

/// The answer of a server that knows only a version of its own.
const UNSUPPORTED: &str =
    r#""error":{"code":-32022,"message":"no","data":{"supported":["2099-01-01"],"requested":"2026-07-28"}}"#;

fn fault(error: &emitree_runtime::Error) -> &Fault {
    &error.find::<McpError>().expect("an error of the server").fault
}

#[tokio::test]
async fn a_server_of_the_old_era_is_found_by_each_kind_of_answer() {
    let errors = [-32601, -32600, -32602, -32000].map(|code| format!(r#""error":{{"code":{code},"message":"no"}}"#));
    let answers =
        errors.iter().map(String::as_str).chain([r#""result":{}"#, r#""result":{"tools":[]}"#, r#""result":5"#]);
    for answer in answers {
        let server = bash(&[("DISCOVER", answer)]).connect().await;
        let server = server.unwrap_or_else(|error| panic!("{answer}: {error}"));
        assert_eq!(result(server.tools(), "act", json!({})).await.response, "acted", "{answer}");
    }
}

// P1
#[tokio::test]
async fn a_server_that_ignores_discover_is_found_by_silence_which_is_not_remembered() {
    let silent = r#"reply() { [[ $line == *discover* ]] && return; [[ $line =~ \"id\":([0-9]+) ]] && printf '{"jsonrpc":"2.0","id":%s,%s}\n' "${BASH_REMATCH[1]}" "$1"; }"#;
    let server = bash(&[("BEGIN", silent), ("CALL", "exit 1")]).connect().await.unwrap();
    let events = Events::of(server.emitter());
    let began = Instant::now();
    drop(result(server.tools(), "act", json!({})).await);
    drop(result(server.tools(), "act", json!({})).await);
    // The second connection has asked with `server/discover` again, and has waited for 2 s.
    assert_eq!(events.wait("connected").await["era"], "old");
    assert!(began.elapsed() > Duration::from_secs(2));
}

#[tokio::test]
async fn an_error_of_the_new_era_is_no_reason_for_the_handshake() {
    let error = bash(&[("DISCOVER", UNSUPPORTED)]).connect().await.unwrap_err();
    assert!(matches!(fault(&error), Fault::Versions { versions } if versions == "2099-01-01"), "{error}");
}

#[tokio::test]
async fn an_unsupported_version_beside_an_old_one_leads_to_the_handshake() {
    let old = UNSUPPORTED.replace("2099-01-01", "2025-06-18");
    let server = bash(&[("DISCOVER", &*old)]).connect().await.unwrap();
    assert_eq!(result(server.tools(), "act", json!({})).await.response, "acted");
}

#[tokio::test]
async fn a_dead_server_is_an_error_with_its_status_and_its_last_words() {
    let error = bash(&[("BEGIN", "echo no configuration >&2; exit 7")]).connect().await.unwrap_err();
    let expected = "the MCP server `bash` has exited with status 7; its last line on stderr is `no configuration`";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_program_that_is_missing_is_an_error_that_names_it() {
    let error = emitree_mcp::McpServer::command("no-such-program", ["--stdio"]).connect().await.unwrap_err();
    assert!(error.to_string().starts_with("the MCP server `no_such_program` cannot be started: `no-such-program`: "));
}

#[tokio::test]
async fn a_silent_server_fails_after_the_timeout() {
    let server = bash(&[("BEGIN", "sleep 100")]).connect_timeout(Duration::from_millis(2_500));
    let began = Instant::now();
    let error = server.connect().await.unwrap_err();
    assert!(matches!(fault(&error), Fault::Silent { method: "initialize", .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// A server of the new era that is silent at its first start, such as one that has to be downloaded.
#[tokio::test]
async fn a_server_that_starts_slowly_is_asked_once_more_after_the_handshake() {
    let starts = std::env::temp_dir().join(format!("emitree-mcp-starts-{}", std::process::id()));
    let begin = r#"echo x >>"$STARTS"; [ "$(wc -l <"$STARTS")" = 1 ] && sleep 1000
reply() { [[ $line == *initialize* ]] && set -- '"error":{"code":-32601,"message":"no"}'
[[ $line =~ \"id\":([0-9]+) ]] && printf '{"jsonrpc":"2.0","id":%s,%s}\n' "${BASH_REMATCH[1]}" "$1"; }"#;
    let server = bash(&[("BEGIN", begin), ("DISCOVER", DISCOVER)]).env("STARTS", &starts).connect().await.unwrap();
    assert_eq!(result(server.tools(), "act", json!({})).await.response, "acted");
    assert_eq!(std::fs::read_to_string(&starts).unwrap().lines().count(), 3);
    std::fs::remove_file(&starts).unwrap();
}

#[tokio::test]
async fn the_era_can_be_set() {
    for (args, era) in [("old", Era::New), ("new", Era::Old)] {
        let error = bank(&["--era", args]).era(era).connect().await.unwrap_err();
        assert!(matches!(fault(&error), Fault::Refused { code: -32601, .. }), "{error}");
    }
    for (args, era) in [("old", Era::Old), ("new", Era::New)] {
        let server = bank(&["--era", args]).era(era).connect().await.unwrap();
        assert_eq!(result(server.tools(), "balance", json!({})).await.response, json!({"savings": 100}));
    }
}
