//! The cost of tools of MCP servers, beside rmcp alone and beside tools of the agent.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --features mcp --bench mcp
//! ```

use std::env;
use std::hint::black_box;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use emitree::agent::{
    Agent, ChatModel, ChatRequest, ChatResponse, DeltaStream, HookTest, Message, Provider, Tool, whole,
};
use emitree::mcp::{Era, McpServer};
use emitree::{Result, RunContext, Runnable};
use rmcp::model::{CallToolRequestParams, ProtocolVersion};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use crate::support::{Case, Suite};

#[allow(dead_code, reason = "each bench uses its part")]
mod support;

/// The variable with the number of tools, which makes this program a server.
const SERVE: &str = "EMITREE_BENCH_TOOLS";

fn main() {
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    if let Ok(tools) = env::var(SERVE) {
        return runtime.block_on(serve_lines(tools.parse().expect("a number")));
    }
    // For rmcp's client; the one of emitree has its own.
    rustls::crypto::ring::default_provider().install_default().expect("no other provider");
    let mut suite = Suite::new(&["emitree", "rmcp"]);
    let url = runtime.block_on(serve_http());
    calls(&mut suite, &runtime, &url);
    turns(&mut suite, &runtime);
    suite.run();
}

fn this_program() -> std::path::PathBuf {
    env::current_exe().expect("this program")
}

/// MS, MH: a call of a tool that answers at once.
fn calls(suite: &mut Suite, runtime: &Arc<Runtime>, url: &str) {
    let started = McpServer::command(this_program(), [""; 0]).name("bench").era(Era::New).env(SERVE, "1").connect();
    let server = runtime.block_on(started).expect("a server");
    let ours = suite.case(runs(runtime, tool(runtime, &server)));
    let mut child = tokio::process::Command::new(this_program());
    child.env(SERVE, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let peer = runtime.block_on(async {
        let mut child = child.spawn().expect("a process");
        let pipes = (child.stdout.take().expect("a pipe"), child.stdin.take().expect("a pipe"));
        (().serve_with_lifecycle(pipes, new_era()).await.expect("a client"), child)
    });
    let peer = suite.case(sends(runtime, peer));
    suite.row("MS", "a call over stdio", ours).beside("rmcp", peer).at_most(1.3, "rmcp alone", peer);

    let connected = McpServer::http(url).name("http").era(Era::New).connect();
    let server = runtime.block_on(connected).expect("a server");
    let ours = suite.case(runs(runtime, tool(runtime, &server)));
    let peer = runtime.block_on(async {
        ().serve_with_lifecycle(StreamableHttpClientTransport::from_uri(url), new_era()).await.expect("a client")
    });
    let peer = suite.case(sends(runtime, (peer, ())));
    suite.row("MH", "a call over HTTP", ours).beside("rmcp", peer).at_most(1.2, "rmcp alone", peer);
}

fn new_era() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] }
}

/// MT: a turn with 100 tools.
fn turns(suite: &mut Suite, runtime: &Arc<Runtime>) {
    let started = McpServer::command(this_program(), [""; 0]).name("many").env(SERVE, "100").connect();
    let server = runtime.block_on(started).expect("a server");
    let model = || ChatModel::new(Fixed).expect("a model");
    let theirs = Agent::builder("bench", model()).with(server.tools()).build().expect("an agent");
    let mut own = Agent::builder("bench", model());
    for listed in tools(100).as_array().expect("a list") {
        let name = listed["name"].as_str().expect("a name");
        let tool = Tool::with_schema(name, "Acts", listed["inputSchema"].clone(), |_: Value, _: RunContext| async {
            Ok("acted")
        });
        own = own.tool(tool);
    }
    let (theirs, own) = (asks(runtime, theirs), asks(runtime, own.build().expect("an agent")));
    let (theirs, own) = (suite.case(theirs), suite.case(own));
    suite.row("MT", "a turn with 100 tools of an unchanged server", theirs).at_most(
        1.05,
        "a turn with 100 own tools",
        own,
    );
}

fn tool(runtime: &Runtime, server: &McpServer) -> Tool {
    let hooks = HookTest::new(&server.tools()).expect("hooks");
    runtime.block_on(hooks.tools()).expect("tools").remove(0)
}

fn runs(runtime: &Arc<Runtime>, tool: Tool) -> impl Case + use<> {
    let runtime = Arc::clone(runtime);
    move |n| {
        runtime.block_on(async {
            let begin = Instant::now();
            for _ in 0..n {
                let output = tool.run(json!({"text": "a"})).await.expect("an output");
                assert_eq!(black_box(output).content, "acted");
            }
            begin.elapsed()
        })
    }
}

fn sends<T: 'static>(runtime: &Arc<Runtime>, client: (RunningService<RoleClient, ()>, T)) -> impl Case + use<T> {
    let runtime = Arc::clone(runtime);
    move |n| {
        // The whole pair: a closure that captured the client alone would drop its process.
        let (client, _process) = &client;
        runtime.block_on(async {
            let begin = Instant::now();
            for _ in 0..n {
                let arguments = json!({"text": "a"}).as_object().cloned().expect("an object");
                let call = CallToolRequestParams::new("t0").with_arguments(arguments);
                black_box(client.peer().call_tool_once(call).await.expect("a result"));
            }
            begin.elapsed()
        })
    }
}

fn asks(runtime: &Arc<Runtime>, agent: Agent) -> impl Case + use<> {
    let runtime = Arc::clone(runtime);
    move |n| {
        runtime.block_on(async {
            let begin = Instant::now();
            for _ in 0..n {
                black_box(agent.ask("go").await.expect("an answer"));
            }
            begin.elapsed()
        })
    }
}

/// A model that answers at once.
struct Fixed;

impl Provider for Fixed {
    fn name(&self) -> &str {
        "fixed"
    }

    fn model(&self) -> &str {
        "fixed"
    }

    async fn chat(&self, _: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        Ok(whole(ChatResponse::new(Message::assistant("done"))))
    }
}

fn tools(count: usize) -> Value {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let tool = |n| json!({"name": format!("t{n}"), "description": "Acts", "inputSchema": schema});
    Value::from((0..count).map(tool).collect::<Vec<_>>())
}

/// Returns the answer to a message.
fn answer(message: &[u8], count: usize) -> Option<String> {
    let request: Value = serde_json::from_slice(message).ok()?;
    let capabilities = json!({"tools": {}});
    let result = match request["method"].as_str()? {
        "server/discover" => json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities, "ttlMs": 0,
            "cacheScope": "private",
        }),
        "initialize" => json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "serverInfo": {"name": "bench", "version": "1"},
        }),
        "tools/list" => json!({"tools": tools(count)}),
        "tools/call" => json!({"content": [{"type": "text", "text": "acted"}]}),
        _ => return None,
    };
    Some(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string())
}

async fn serve_lines(count: usize) {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut output = tokio::io::stdout();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(answer) = answer(line.as_bytes(), count) {
            output.write_all((answer + "\n").as_bytes()).await.expect("an open pipe");
            output.flush().await.expect("an open pipe");
        }
    }
}

async fn serve_http() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connection(stream));
        }
    });
    url
}

/// Answers the requests of a connection, until it is closed.
async fn serve_connection(stream: TcpStream) {
    stream.set_nodelay(true).expect("a socket");
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        loop {
            line.clear();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let response = match answer(&body, 1) {
            Some(answer) => format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
                answer.len()
            ),
            None => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
        };
        if stream.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}
