//! Servers that ask in odd ways, in `bash`.

use std::pin::pin;

use emitree_agent::{Agent, ChatModel, ScriptedModel, Session};
use emitree_mcp::{Command, ElicitAnswer, McpServerBuilder};
use serde_json::json;

use crate::questions::{Ledger, answer, clerk, go_on, results};
use crate::support::{DISCOVER, Events, bash, listed, until};

/// A server of the new era. `ask KEY STATE` asks whether it is sure.
const NEW: &str = r#"
ask() { reply "\"result\":{\"resultType\":\"input_required\",\"inputRequests\":{\"$1\":{\"method\":\"elicitation/create\",\"params\":{\"mode\":\"form\",\"message\":\"Sure?\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{\"note\":{\"type\":\"string\",\"default\":\"none\"}}}}}},\"requestState\":\"$2\"}"; }
"#;

fn new_era(call: &str) -> McpServerBuilder<Command> {
    bash(&[("BEGIN", NEW), ("DISCOVER", DISCOVER), ("CALL", call)])
}

fn yes() -> ElicitAnswer {
    ElicitAnswer::accept(json!({}))
}

#[tokio::test]
async fn missing_values_get_the_defaults_of_the_schema() {
    let call = r#"if [[ $line =~ \"note\":\"([a-z]+)\" ]]; then content "${BASH_REMATCH[1]}"; else ask q s; fi"#;
    let server = new_era(call).connect().await.unwrap();
    let (agent, session) = (clerk(server.tools(), &[("act", json!({}))]), Session::new());
    assert!(!go_on(&agent, &session).await);
    answer(&session, yes()).await;
    assert!(go_on(&agent, &session).await);
    assert_eq!(results(&session), ["none"]);
}

#[tokio::test]
async fn each_round_is_a_question_of_its_own_and_there_are_at_most_ten() {
    for is_old in [false, true] {
        let server =
            if is_old { bash(&[("BEGIN", OLD), ("CALL", "elicit"), ("OTHER", "pester")]) } else { new_era("ask q s") };
        let server = server.connect().await.unwrap();
        let (agent, session) = (clerk(server.tools().idempotent(["act"]), &[("act", json!({}))]), Session::new());
        let mut asked = std::collections::HashSet::new();
        while !go_on(&agent, &session).await {
            asked.insert(session.questions()[0].id.clone());
            answer(&session, yes()).await;
        }
        assert_eq!(asked.len(), 10, "{is_old}");
        let result = results(&session).remove(0);
        assert!(result.ends_with("it has asked in more than 10 rounds"), "{result}");
    }
}

/// A server that takes a state only in the process that has made it.
const FORGETS: &str = r#"case $line in
  *"s3cr3t-$$"*) content acted ;;
  *requestState*) reply '"error":{"code":-32602,"message":"s3cr3t is unknown: '"${line##*requestState}"'"}' ;;
  *) ask q "s3cr3t-$$" ;;
esac"#;

#[tokio::test]
async fn a_state_that_the_server_takes_no_more_starts_an_idempotent_call_anew_with_the_same_answer() {
    for is_idempotent in [true, false] {
        let (call, session) = ([("act", json!({}))], Session::new());
        let forgets = FORGETS.replace("${line##*requestState}", "s3cr3t-1");
        let mut is_over = false;
        for _ in 0..2 {
            let server = new_era(&forgets).connect().await.unwrap();
            let names: &[&str] = if is_idempotent { &["act"] } else { &[] };
            if let [_] = &*session.questions() {
                answer(&session, yes()).await;
            }
            is_over = go_on(&clerk(server.tools().idempotent(names.to_vec()), &call), &session).await;
        }
        assert!(is_over, "nobody is asked twice");
        let result = results(&session).remove(0);
        match is_idempotent {
            true => assert_eq!(result, "acted"),
            false => assert!(result.contains("does not take the state of the call any more"), "{result}"),
        }
    }
}

#[tokio::test]
async fn a_state_is_in_no_error_and_an_idempotent_call_starts_anew_once() {
    let call = r#"if [[ $line =~ \"requestState\":\"([^\"]+)\" ]]; then reply "\"error\":{\"code\":-32602,\"message\":\"bad state ${BASH_REMATCH[1]}\"}"; else echo x >>"$LEDGER"; ask q s3cr3t-4711; fi"#;
    for (names, starts) in [(vec![], 1), (vec!["act"], 2)] {
        let ledger = Ledger::new();
        let server = new_era(call).env("LEDGER", &ledger.0).connect().await.unwrap();
        let (agent, session) = (clerk(server.tools().idempotent(names), &[("act", json!({}))]), Session::new());
        assert!(!go_on(&agent, &session).await);
        answer(&session, yes()).await;
        assert!(go_on(&agent, &session).await);
        let result = results(&session).remove(0);
        assert!(result.contains("error -32602: bad state [state]") && !result.contains("s3cr3t"), "{result}");
        assert_eq!(ledger.lines().len(), starts);
    }
}

#[tokio::test]
async fn a_question_that_no_answer_fits_is_an_error_without_the_state() {
    let asks = r#"reply '"result":{"resultType":"input_required","requestState":"s3cr3t","inputRequests":{"q":"#;
    for (request, fault) in [
        (r#"{"method":"roots/list"}"#, "it asks for more than an answer of the user"),
        (
            r#"{"method":"elicitation/create","params":{"mode":"form","message":"?","requestedSchema":5}}"#,
            "it is not of the form that the protocol says",
        ),
        (r#"5"#, "it is not of the form that the protocol says"),
    ] {
        let server = new_era(&format!("{asks}{request}}}}}'")).connect().await.unwrap();
        let session = Session::new();
        assert!(go_on(&clerk(server.tools(), &[("act", json!({}))]), &session).await, "{request}");
        let result = results(&session).remove(0);
        assert!(result.ends_with(fault) && !result.contains("s3cr3t"), "{request}: {result}");
    }
}

#[tokio::test]
async fn a_question_over_the_limit_is_an_error() {
    let server = new_era("ask q s").limits(emitree_mcp::Limits::default().schema_bytes(100)).connect().await.unwrap();
    let session = Session::new();
    assert!(go_on(&clerk(server.tools(), &[("act", json!({}))]), &session).await);
    let result = results(&session).remove(0);
    assert!(result.contains("bytes, and 100 are allowed: see `.limits(..)`"), "{result}");
}

/// A server of the old era that asks in the middle of its call, and that takes any answer to its last question for a yes.
const OLD: &str = r#"
elicit() { [[ $line =~ \"id\":([0-9]+) ]] && call=${BASH_REMATCH[1]}; question; }
question() { echo '{"jsonrpc":"2.0","id":"q'$((++n))'","method":"elicitation/create","params":{"message":"Sure?","requestedSchema":{"type":"object","properties":{}}}}'; }
pester() { case $line in *'"id":"q'*'"result"'*) question ;; esac; }
careless() { case $line in
  *notifications/cancelled*) call= ;;
  *'"id":"q'$n'"'*) [ -n "$call" ] && echo paid >>"$LEDGER" && printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"paid"}]}}\n' "$call" ;;
esac; }
"#;

// P6
#[tokio::test]
async fn a_call_of_the_old_era_is_cancelled_before_its_question_ends() {
    let ledger = Ledger::new();
    let server = bash(&[("BEGIN", OLD), ("CALL", "elicit"), ("OTHER", "careless")]).env("LEDGER", &ledger.0);
    let server = server.connect().await.unwrap();
    let (agent, session) = (clerk(server.tools().idempotent(["act"]), &[("act", json!({}))]), Session::new());
    assert!(!go_on(&agent, &session).await);
    answer(&session, yes()).await;
    assert!(go_on(&agent, &session).await);
    assert_eq!(results(&session), ["paid"]);
    assert_eq!(ledger.lines(), ["paid"], "it has paid once");
}

/// A question with an invisible character in each text that explains, and in two values.
const HIDING: &str = r#"{"mode":"form","message":"Su\u200bre?","requestedSchema":{"type":"object","properties":{
"a":{"type":"string","title":"A\u202e","description":"\u00adaccount","enum":["x\u200b"],"enumNames":["X\u200b"]},
"b":{"type":"string","default":"b\u200b"}}}}"#;

#[tokio::test]
async fn hidden_characters_are_removed_from_the_texts_of_a_question_in_both_eras() {
    let params = HIDING.replace('\n', "");
    let new = format!(
        r#"reply '"result":{{"resultType":"input_required","requestState":"s","inputRequests":{{"q":{{"method":"elicitation/create","params":{params}}}}}}}'"#
    );
    let old = format!(r#"echo '{{"jsonrpc":"2.0","id":"q1","method":"elicitation/create","params":{params}}}'"#);
    for server in [new_era(&new), bash(&[("CALL", &*old)])] {
        let server = server.connect().await.unwrap();
        let events = Events::of(server.emitter());
        let session = Session::new();
        assert!(!go_on(&clerk(server.tools().idempotent(["act"]), &[("act", json!({}))]), &session).await);
        let question = session.questions().remove(0);
        let request = question.data["requests"].as_object().unwrap().values().next().unwrap().clone();
        assert_eq!(request["message"], "Sure?");
        let a = &request["schema"]["properties"]["a"];
        assert_eq!((&a["title"], &a["description"]), (&json!("A"), &json!("account")));
        // Values stay: the server compares them.
        assert_eq!((&a["enum"], &a["enumNames"]), (&json!(["x\u{200b}"]), &json!(["X"])));
        assert_eq!(request["schema"]["properties"]["b"]["default"], "b\u{200b}");
        assert_eq!(events.wait("question_cleaned").await, json!({"message": "Sure?", "removed": 4}));
    }
}

#[tokio::test]
async fn an_address_of_a_question_is_shown_without_hidden_characters() {
    let call = r#"reply '"result":{"resultType":"input_required","requestState":"s","inputRequests":{"q":{"method":"elicitation/create","params":{"mode":"url","message":"Pay here","url":"https://bank.example/\u202egpj","elicitationId":"e"}}}}'"#;
    let server = new_era(call).connect().await.unwrap();
    let events = Events::of(server.emitter());
    let session = Session::new();
    assert!(!go_on(&clerk(server.tools(), &[("act", json!({}))]), &session).await);
    let request = &session.questions()[0].data["requests"]["q"];
    assert_eq!((&request["mode"], &request["url"]), (&json!("url"), &json!("https://bank.example/gpj")));
    assert_eq!(events.wait("question_cleaned").await, json!({"message": "Pay here", "removed": 1}));
}

/// P6: the server has not read that one of two calls was cancelled, and asks for it.
#[tokio::test]
async fn a_question_of_a_cancelled_call_goes_to_no_other_call() {
    let tools = json!([listed("act"), listed("other")]).to_string();
    let call = r#"echo called >&2; [[ $line == *other* ]] && other=$line"#;
    let ping = r#"question; pong; line=$other; content acted"#;
    let server = bash(&[("BEGIN", OLD), ("CALL", call), ("PING", ping), ("TOOLS", &tools)]).connect().await.unwrap();
    let events = Events::of(server.emitter());
    let tools = server.tools().idempotent(["act", "other"]);
    let (cancelled, other) = (clerk(tools.clone(), &[("act", json!({}))]), clerk(tools, &[("other", json!({}))]));
    let session = Session::new();
    let both = || events.named("log").iter().filter(|log| log["data"] == "called").count() == 2;
    let mut going_on = pin!(go_on(&other, &session));
    tokio::select! {
        ended = cancelled.ask("Pay.") => panic!("{ended:?}"),
        is_over = &mut going_on => panic!("{is_over}"),
        () = until(|| both().then_some(())) => {}
    }
    assert!(going_on.await);
    assert_eq!(results(&session), ["acted"]);
    let refused = events.wait("elicitation_refused").await;
    assert_eq!(refused["reason"], "a call that was cancelled may have asked it");
}

#[tokio::test]
async fn a_call_begins_after_the_server_has_read_that_another_was_cancelled() {
    let call = r#"if [ -n "$again" ]; then content acted; else again=1; fi"#;
    // The question of the first call.
    let server = bash(&[("BEGIN", OLD), ("CALL", call), ("PING", "question; pong")]).connect().await.unwrap();
    let events = Events::of(server.emitter());
    let tools = server.tools().idempotent(["act"]).timeout(std::time::Duration::from_secs(2));
    let model = ScriptedModel::new("test").call("act", json!({})).call("act", json!({})).text("Done.");
    let agent = Agent::builder("clerk", ChatModel::new(model).unwrap()).with(tools).build().unwrap();
    let session = Session::new();
    assert!(go_on(&agent, &session).await);
    assert_eq!(results(&session), ["an attempt took longer than 2s", "acted"]);
    let refused = events.wait("elicitation_refused").await;
    assert_eq!(refused["reason"], "no call is under way, so the question belongs to none");
}

#[tokio::test]
async fn a_state_without_a_question_is_sent_again_byte_for_byte_three_times() {
    let call = r#"((n++)); [ $n = 1 ] || [[ $line == *'"requestState":"é \"\\'$((n - 1))'"'* ]] || lost=1
if [ $n -gt $TIMES ]; then content "acted$lost"; else reply '"result":{"resultType":"input_required","requestState":"\u00e9 \"\\'$n'"}'; fi"#;
    for (times, end) in [("3", "acted"), ("4", "its result has no question, and a state 4 times in a row")] {
        let server = new_era(call).env("TIMES", times).connect().await.unwrap();
        let session = Session::new();
        assert!(go_on(&clerk(server.tools(), &[("act", json!({}))]), &session).await);
        let result = results(&session).remove(0);
        assert!(result.ends_with(end), "{times}: {result}");
    }
}
