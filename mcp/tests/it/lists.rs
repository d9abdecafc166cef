//! Lists of tools: their pages, their changes, their names and their limits.

use emitree_agent::{Agent, ChatModel, ScriptedModel, tool_fn};
use emitree_mcp::{Limits, McpServer};
use emitree_runtime::RunContext;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{Events, agent, bank, bash, listed, offered, result, results, until, until_async};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

async fn with_tools(tools: &Value) -> McpServer {
    bash(&[("TOOLS", &*tools.to_string())]).connect().await.unwrap()
}

#[tokio::test]
async fn tools_are_selected_and_renamed() {
    let server = bank(&[]).connect().await.unwrap();
    let all = ["balance", "transfer", "statement", "audit", "trace", "offer_loans", "crash"];
    assert_eq!(offered(server.tools()).await.unwrap(), all);
    let tools = server.tools().only(["transfer", "balance"]).prefix("bank_");
    assert_eq!(offered(tools).await.unwrap(), ["bank_balance", "bank_transfer"]);
    assert_eq!(offered(server.tools().read_only()).await.unwrap(), ["balance"]);
    assert_eq!(offered(server.tools().except(all[1..].to_vec())).await.unwrap(), ["balance"]);
}

#[tokio::test]
async fn two_runs_share_the_descriptions_of_an_unchanged_list() {
    let server = bank(&[]).connect().await.unwrap();
    let model = ScriptedModel::new("test").text("done").text("done");
    let agent = Agent::builder("clerk", ChatModel::new(model.clone()).unwrap()).with(server.tools()).build().unwrap();
    agent.ask("Go on.").await.unwrap();
    agent.ask("Go on.").await.unwrap();
    let requests = model.requests();
    assert_eq!(requests[0].tools.len(), 7);
    assert!(std::sync::Arc::ptr_eq(&requests[0].tools, &requests[1].tools));
}

#[tokio::test]
async fn all_pages_are_read() {
    let list = r#"if [[ $line == *'"cursor":"2"'* ]]; then reply "\"result\":{\"tools\":$SECOND}"; else reply "\"result\":{\"tools\":$TOOLS,\"nextCursor\":\"2\"}"; fi"#;
    let second = json!([listed("second")]).to_string();
    let server = bash(&[("LIST", list), ("SECOND", &second)]).connect().await.unwrap();
    assert_eq!(offered(server.tools()).await.unwrap(), ["act", "second"]);
}

#[tokio::test]
async fn a_repeated_cursor_is_an_error() {
    let list = r#"reply "\"result\":{\"tools\":[],\"nextCursor\":\"again\"}""#;
    let error = bash(&[("LIST", list)]).connect().await.unwrap_err();
    assert_eq!(error.to_string(), "the MCP server `bash` has no usable list of tools: its cursor `again` is repeated");
}

#[tokio::test]
async fn a_list_that_never_ends_is_an_error_or_cut() {
    let begin = "n=0";
    let empty = r#"n=$((n+1)); reply "\"result\":{\"tools\":[],\"nextCursor\":\"$n\"}""#;
    let error = bash(&[("BEGIN", begin), ("LIST", empty)]).limits(Limits::default().tools(20)).connect().await;
    assert!(error.unwrap_err().to_string().ends_with("it has more than 20 pages"));
    let full = r#"n=$((n+1)); reply "\"result\":{\"tools\":[{\"name\":\"t$n\",\"inputSchema\":{\"type\":\"object\"}}],\"nextCursor\":\"$n\"}""#;
    let server = bash(&[("BEGIN", begin), ("LIST", full)]).limits(Limits::default().tools(20)).connect().await;
    assert_eq!(offered(server.unwrap().tools()).await.unwrap().len(), 20);
}

#[tokio::test]
async fn a_changed_list_reaches_the_next_turn_in_both_eras() {
    for era in ["old", "new"] {
        let server = bank(&["--era", era]).connect().await.unwrap();
        let events = Events::of(server.emitter());
        assert_eq!(result(server.tools(), "offer_loans", json!({})).await.response, "loans are offered");
        let changed = until_async(async || {
            let names = offered(server.tools()).await.unwrap();
            names.contains(&"loan".to_owned())
        });
        changed.await;
        assert_eq!(events.wait("tools_changed").await, json!({"added": ["loan"], "removed": []}), "{era}");
    }
}

#[tokio::test]
async fn a_list_is_read_again_after_its_time_to_live() {
    let list = r#"n=$((n+1)); reply "\"result\":{\"tools\":[{\"name\":\"t$n\",\"inputSchema\":{\"type\":\"object\"}}],\"ttlMs\":0}""#;
    let server = bash(&[("BEGIN", "n=0"), ("LIST", list)]).connect().await.unwrap();
    assert_eq!(offered(server.tools()).await.unwrap(), ["t2"]);
    assert_eq!(offered(server.tools()).await.unwrap(), ["t3"]);
}

#[tokio::test]
async fn names_that_models_refuse_are_changed_and_called_by_the_servers_name() {
    let long = "x".repeat(300);
    let tools = json!([listed("files/read"), listed(""), listed(&long), listed("pay\u{202e}ment")]);
    let call = r#"[[ $line =~ \"name\":\"([^\"]*)\" ]]; content "${#BASH_REMATCH[1]} ${BASH_REMATCH[1]:0:10}""#;
    let server = bash(&[("TOOLS", &*tools.to_string()), ("CALL", call)]).connect().await.unwrap();
    let names = offered(server.tools()).await.unwrap();
    assert!(names.iter().all(|name| (1..=64).contains(&name.len()) && name.is_ascii()), "{names:?}");
    assert_eq!(names[0], "files_read_2b7331");
    assert_eq!(result(server.tools(), &names[0], json!({})).await.response, "10 files/read");
    assert_eq!(result(server.tools(), &names[2], json!({})).await.response, "300 xxxxxxxxxx");
}

#[tokio::test]
async fn two_equal_names_are_an_error_that_names_both() {
    let server = with_tools(&json!([listed("act"), listed("act")])).await;
    let error = offered(server.tools()).await.unwrap_err().to_string();
    let expected = "two tools are called `act`: `act` of the MCP server `bash`, and `act` of the MCP server `bash`; set \
                    a `prefix` for the tools of the server";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_name_of_the_agents_own_tool_or_of_another_server_is_an_error() {
    let (one, two) = (with_tools(&json!([listed("act")])).await, bash(&[]).name("second").connect().await.unwrap());
    let own = tool_fn("act", "Acts", |_: Nothing, _: RunContext| async { Ok("own") });
    let model = || ChatModel::new(ScriptedModel::new("test").text("done")).unwrap();
    let agent = Agent::builder("clerk", model()).tool(own).with(one.tools()).build().unwrap();
    let error = agent.ask("Go on.").await.unwrap_err().to_string();
    assert!(error.starts_with("two tools are called `act`: one of the agent `clerk`, and `act` of the MCP"), "{error}");
    let agent = Agent::builder("clerk", model()).with(one.tools()).with(two.tools()).build().unwrap();
    let error = agent.ask("Go on.").await.unwrap_err().to_string();
    assert!(error.contains("`act` of the MCP server `bash`, and `act` of the MCP server `second`"), "{error}");
    let agent = Agent::builder("clerk", model()).with(one.tools()).with(two.tools().prefix("b_")).build().unwrap();
    assert!(agent.ask("Go on.").await.is_ok());
}

#[tokio::test]
async fn a_tool_that_comes_later_gives_way_to_one_with_its_name() {
    let server = bank(&[]).connect().await.unwrap();
    let events = Events::of(server.emitter());
    let own = tool_fn("loan", "Lends", |_: Nothing, _: RunContext| async { Ok("own") });
    let model = ScriptedModel::new("test").call("offer_loans", json!({})).call("loan", json!({})).text("done");
    let agent = Agent::builder("clerk", ChatModel::new(model).unwrap()).tool(own).with(server.tools()).build().unwrap();
    let answer = agent.ask("Go on.").await.unwrap();
    assert_eq!(results(&answer)[1].response, "own");
    // The notification may have arrived after the second turn.
    let turns = until_async(async || agent.ask("Go on.").await.is_err() || !events.named("tool_withheld").is_empty());
    turns.await;
    assert_eq!(events.wait("tool_withheld").await["tool"], "loan");
}

// P4
#[tokio::test]
async fn tools_over_a_limit_are_withheld_and_the_others_are_not() {
    let mut large = listed("large");
    large["description"] = "x".repeat(5_000).into();
    let mut deep = listed("deep");
    deep["inputSchema"]["properties"] = (0..40).fold(json!({}), |inner, _| json!({"items": inner}));
    let mut odd = listed("odd");
    odd["inputSchema"] = "none".into();
    let mut list = listed("list");
    list["inputSchema"]["type"] = "array".into();
    let tools = json!([large, deep, odd, list, listed("good")]).to_string();
    // The list is read while the server connects, when its own emitter has no listener yet.
    let events = Events::below("mcp.limited.tool_withheld");
    let server = bash(&[("TOOLS", &*tools)]).name("limited").connect().await.unwrap();
    assert_eq!(offered(server.tools()).await.unwrap(), ["good"]);
    until(|| (events.named("tool_withheld").len() == 4).then_some(())).await;
    let faults: Vec<_> = events.named("tool_withheld").iter().map(|event| event["fault"].to_string()).collect();
    assert_eq!(faults[0], "\"its description has 5000 bytes, more than 4096\"");
    assert_eq!(faults[1], "\"its schema has more than 32 levels\"");
    assert!(
        faults[2].starts_with("\"it cannot be read: ") && faults[3].contains("its `type` must be `object`"),
        "{faults:?}"
    );
}

#[tokio::test]
async fn hidden_characters_are_removed_from_descriptions() {
    let mut tool = listed("act");
    tool["description"] = "Pays\u{200b} \u{e0049}\u{e0047}money\u{202e}".into();
    tool["inputSchema"]["properties"] = json!({"to": {"type": "string", "description": "the\u{7}re"}});
    let server = with_tools(&json!([tool])).await;
    let model = ScriptedModel::new("test").text("done");
    let agent = Agent::builder("clerk", ChatModel::new(model.clone()).unwrap()).with(server.tools()).build().unwrap();
    agent.ask("Go on.").await.unwrap();
    let offered = &model.requests()[0].tools[0];
    assert_eq!(offered.description, "Pays money");
    assert_eq!(offered.parameters["properties"]["to"]["description"], "there");
}

#[tokio::test]
async fn a_misspelled_name_in_ask_before_is_an_error() {
    let server = bank(&[]).connect().await.unwrap();
    let error = offered(server.tools().ask_before(["transfr"])).await.unwrap_err().to_string();
    assert!(
        error.contains("`ask_before` names the tool `transfr`, but the MCP server `bank` lists `balance`, "),
        "{error}"
    );
}

#[tokio::test]
async fn ask_before_interrupts_the_run_before_the_call() {
    let server = bank(&[]).connect().await.unwrap();
    let agent = agent(server.tools().ask_before(["transfer"]), &[("transfer", json!({"to": "Ada", "amount": 5}))]);
    assert!(agent.ask("Pay.").await.unwrap_err().is_interrupted());
}

#[tokio::test]
async fn the_tool_after_a_thousand_is_withheld() {
    let tools: Vec<_> =
        (0..1_001).map(|n| json!({"name": format!("t{n}"), "inputSchema": {"type": "object"}})).collect();
    let server = bash(&[("TOOLS", &*json!(tools).to_string())]).connect().await.unwrap();
    assert_eq!(offered(server.tools()).await.unwrap().len(), 1_000);
}

#[tokio::test]
async fn a_schema_that_doubles_thirty_times_withholds_its_tool() {
    let mut tool = listed("doubling");
    let schema = &mut tool["inputSchema"];
    schema["properties"] = json!({"a": {"$ref": "#/$defs/d0"}});
    for n in 0..30 {
        let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
        schema["$defs"][format!("d{n}")] = json!({"allOf": [next, next]});
    }
    schema["$defs"]["d30"] = json!({"type": "string"});
    let server = bash(&[("TOOLS", &*json!([tool, listed("act")]).to_string())]).connect().await.unwrap();
    assert_eq!(offered(server.tools()).await.unwrap(), ["act"]);
}
