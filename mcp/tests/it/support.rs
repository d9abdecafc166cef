//! Servers, and agents that call their tools.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{Agent, AgentOutput, ChatModel, ScriptedModel, ToolResult};
use emitree_emitter::{AnyEvent, Emitter};
use emitree_mcp::{Command, McpServer, McpServerBuilder, McpTools};
use emitree_runtime::Result;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// A server in `bash` of the old era. Its tools are in `$TOOLS`, and `$CALL` is executed for each call; `$LIST`, if it is
/// set, for each list. `reply` answers the request of the line.
const SERVER: &str = r#"
reply() { [[ $line =~ \"id\":([0-9]+|\"[^\"]*\") ]] && printf '{"jsonrpc":"2.0","id":%s,%s}\n' "${BASH_REMATCH[1]}" "$1"; }
content() { reply "\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"$1\"}]}"; }
pong() { reply '"result":{}'; }
eval "$BEGIN"
while read -r line; do case "$line" in
  *'"server/discover"'*) if [ -n "$DISCOVER" ]; then reply "$DISCOVER"; else reply '"error":{"code":-32601,"message":"unknown"}'; fi ;;
  *'"initialize"'*) reply '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"b","version":"1"}}' ;;
  *'"tools/list"'*) if [ -n "$LIST" ]; then eval "$LIST"; else reply "\"result\":{\"tools\":$TOOLS}"; fi ;;
  *'"tools/call"'*) eval "$CALL" ;;
  *'"ping"'*) eval "${PING:-pong}" ;;
  *) eval "$OTHER" ;;
esac; done
eval "$END"
"#;

/// The answer of a server of the new era to `server/discover`.
pub(crate) const DISCOVER: &str = r#""result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}"#;

/// A tool without arguments, as a server lists it.
pub(crate) fn listed(name: &str) -> Value {
    json!({"name": name, "description": "A tool", "inputSchema": {"type": "object"}})
}

/// A server in `bash` with the tool `act`, which answers `acted`.
pub(crate) fn bash(variables: &[(&str, &str)]) -> McpServerBuilder<Command> {
    let tools = json!([listed("act")]).to_string();
    let server = McpServer::command("bash", ["-c", SERVER]).env("TOOLS", tools).env("CALL", "content acted");
    variables.iter().fold(server, |server, (name, value)| server.env(name, value))
}

/// The server of the example `bank`, which cargo has built beside the tests.
pub(crate) fn bank(args: &[&str]) -> McpServerBuilder<Command> {
    let mut program: PathBuf = std::env::current_exe().expect("this program");
    program.pop();
    program.pop();
    program.push("examples/bank");
    let args: Vec<&str> = args.iter().copied().chain(["serve"]).collect();
    McpServer::command(program, args)
}

/// An agent that makes these calls in one turn.
pub(crate) fn agent(tools: McpTools, calls: &[(&str, Value)]) -> Agent {
    let model = ScriptedModel::new("test").calls(calls.iter().cloned()).text("done");
    Agent::builder("clerk", ChatModel::new(model).expect("a model")).with(tools).build().expect("an agent")
}

/// Returns the results in the answer of an agent.
pub(crate) fn results(answer: &AgentOutput) -> Vec<ToolResult> {
    answer.messages.iter().flat_map(|message| message.tool_results()).cloned().collect()
}

/// Calls one tool in an agent, and returns the result that the model receives.
pub(crate) async fn result(tools: McpTools, tool: &str, arguments: Value) -> ToolResult {
    let answer = agent(tools, &[(tool, arguments)]).ask("Go on.").await.expect("an answer");
    results(&answer).remove(0)
}

/// Returns the names of the tools that a model is offered.
pub(crate) async fn offered(tools: McpTools) -> Result<Vec<String>> {
    let model = ScriptedModel::new("test").text("done");
    let agent = Agent::builder("clerk", ChatModel::new(model.clone())?).with(tools).build()?;
    agent.ask("Go on.").await?;
    Ok(model.requests()[0].tools.iter().map(|tool| tool.name.clone()).collect())
}

/// The events of an emitter, as name and JSON.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<(String, Value)>>>);

impl Events {
    pub(crate) fn of(emitter: &Emitter) -> Self {
        Self::matching(emitter, "*")
    }

    /// Observes all emitters, by a path.
    pub(crate) fn below(path: &str) -> Self {
        Self::matching(&Emitter::root(), path)
    }

    fn matching(emitter: &Emitter, matcher: &str) -> Self {
        let events = Self::default();
        let list = Arc::clone(&events.0);
        let observe = move |event: &dyn AnyEvent, meta: &emitree_emitter::EventMeta<'_>| {
            list.lock().push((meta.name().to_string(), event.to_json()));
        };
        emitter.observe(matcher, observe).expect("an observer");
        events
    }

    /// Returns the payloads of a name.
    pub(crate) fn named(&self, name: &str) -> Vec<Value> {
        self.0.lock().iter().filter(|(other, _)| other == name).map(|(_, payload)| payload.clone()).collect()
    }

    /// Waits for an event of a name.
    pub(crate) async fn wait(&self, name: &str) -> Value {
        until(|| self.named(name).pop()).await
    }
}

/// Waits for a value that another process or task causes.
pub(crate) async fn until<T>(mut value: impl FnMut() -> Option<T>) -> T {
    for _ in 0..2_000 {
        if let Some(value) = value() {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not happen within 10 s");
}

/// Asks again and again until the answer is yes.
pub(crate) async fn until_async(mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..400 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not happen within 8 s");
}

/// Returns the processes whose environment has a variable with this value.
pub(crate) fn processes(mark: &str) -> Vec<u32> {
    let mark = format!("MARK={mark}");
    let ids = std::fs::read_dir("/proc").expect("/proc").flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_mark = |id: &u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    ids.filter(has_mark).collect()
}
