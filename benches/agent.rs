//! The cost of an agent's loop.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --bench agent
//! ```
//!
//! The model and the tool do next to nothing, so a row shows the cost of the loop itself. The loop has six runs: the
//! agent's own run, three model calls and two tool calls. The peer is the same loop written by hand, without runs.

use std::hint::black_box;
use std::sync::Arc;

use emitree::agent::built_in::{Guardrail, Judgement, SlidingWindow};
use emitree::agent::kinds::{Requirement, Requirements};
use emitree::agent::workflow::{Goto, Workflow};
use emitree::agent::{
    Agent, AgentMiddleware, AgentRun, ChatModel, ChatOptions, ChatRequest, Delta, History, Hooks, Message, Session,
    ToolResult, TurnAction,
};
use emitree::layer::StackBuilder;
use emitree::{Emitter, EventName, Next, Result, Runnable, Stack};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agents::{Add, Fixed, Pieces, add, agent, pieces, respond};
use crate::support::{Case, Extra, Suite, timed};
use crate::work::{Adder, runs, services};

#[path = "support/agents.rs"]
mod agents;
mod support;
#[path = "support/work.rs"]
mod work;

const COLUMNS: &[&str] = &["emitree", "peer"];
/// The runs of one loop: one of the agent, three of the model, two of the tool.
const RUNS: u32 = 6;
/// The steps of one workflow.
const STEPS: u32 = 100;
/// The model calls of one loop.
const TURNS: u32 = 3;

fn main() {
    let mut suite = Suite::new(COLUMNS);
    let bare = suite.case(runs(Adder::new()));
    let plain = suite.case(asks(agent()));
    let by_hand = suite.case(by_hand());
    let row = suite.row("AL", "each of the 6 runs of a loop of 3 turns and 2 tool calls", Extra::per(plain, RUNS));
    row.beside("peer", Extra::per(by_hand, RUNS)).at_most(10.0, "a bare run", bare);

    chains(&mut suite, plain);
    onions(&mut suite, bare);
    histories(&mut suite);
    held(&mut suite);
    tokens(&mut suite);
    let steps = suite.case(workflows());
    let row = suite.row("AW", "each of the 100 steps of a workflow that counts", Extra::per(steps, STEPS));
    row.at_most(2.0, "a bare run", bare);
    suite.run();
}

/// AC, AQ, AU: hooks at one chain place, and middlewares without hooks. There are many of each, because the noise between
/// two cases is larger than the cost of one hook.
fn chains(suite: &mut Suite, plain: support::Id) {
    const MANY: usize = 200;
    let chained = suite.case(asks(agent_with([Chained(MANY, |hooks| {
        hooks.on_action(|action: &mut TurnAction, _| {
            black_box(action);
        });
    })])));
    let boxed = suite.case(boxed_functions());
    let row = suite.row(
        "AC",
        "a hook at a chain place that only passes on",
        Extra::shared(chained, plain, MANY as u32 * TURNS),
    );
    row.beside("peer", boxed).at_most(3.0, "a boxed async function", boxed);
    let required = suite.case(asks(agent_with([requirements()])));
    let row = suite.row("AQ", "a requirement, of ten that allow all calls", Extra::shared(required, plain, 10 * TURNS));
    row.at_most(5.0, "a hook at a chain place", Extra::shared(chained, plain, MANY as u32 * TURNS));
    let steered = suite.case(asks(agent_with([Chained(MANY, |hooks| {
        hooks.on_inject(|messages, _| {
            black_box(messages);
        });
    })])));
    let row = suite.row(
        "SI",
        "`steer.inject` without messages, with a hook",
        Extra::shared(steered, plain, MANY as u32 * TURNS),
    );
    row.beside("peer", boxed).at_most(3.0, "a boxed async function", boxed);
    let empty = suite.case(asks(agent_with((0..MANY).map(|i| Empty(i.to_string())))));
    let floor = suite.case(emits());
    // The places for each turn: state, context, two for the prompt, wire, request, call, chunk, action, stop, and the
    // tools to ask for. For each call: resolve, gate, call, result. At the end: end.
    let places = (11 * TURNS + 2 * 4 + 1) * MANY as u32;
    let row = suite.row("AU", "a place that a middleware does not use", Extra::shared(empty, plain, places));
    row.at_most(1.0, "an emit that nobody receives", floor);
}

/// AO: layers around a run of the model, measured without the agent.
fn onions(suite: &mut Suite, bare: support::Id) {
    let [none, one, eleven] = [0, 1, 11].map(|layers| suite.case(model_runs(layers)));
    let row = suite.row("AO", "the first layer around a run of the model", Extra::shared(one, none, 1));
    row.at_most(3.0, "a bare run", bare);
    let [tower_one, tower_five] = [1, 5].map(|layers| suite.case(services(layers)));
    let service = Extra::shared(tower_five, tower_one, 4);
    let row = suite.row("", "… each further one", Extra::shared(eleven, one, 10));
    row.beside("peer", service).at_most(2.0, "a boxed tower layer", service);
}

/// AH: runs with a long history.
fn histories(suite: &mut Suite) {
    let history: History =
        Vec::from_iter((0..1_000).map(|i| Message::user(i.to_string()))).try_into().expect("a valid history");
    let long = suite.case(asks_after(agent(), history.clone()));
    let short = suite.case(asks_after(agent(), History::new()));
    let clone = suite.case(clones(history.clone()));
    let row = suite.row("AH", "1,000 messages of history: the extra cost of a run", Extra::shared(long, short, 1));
    row.beside("peer", clone).at_most(1.0, "cloning 1,000 `Arc`s", clone);
    let windowed = suite.case(asks_after(agent_with([SlidingWindow::messages(40)]), history.clone()));
    let row = suite.row(
        "SW",
        "`SlidingWindow` on 1,000 messages: the extra cost of a turn",
        Extra::shared(windowed, long, TURNS),
    );
    row.beside("peer", clone).at_most(2.0, "cloning 1,000 `Arc`s", clone);
}

/// GH: a reply that a guardrail holds until it is judged.
fn held(suite: &mut Suite) {
    let [streamed, whole] = [true, false].map(|streams| suite.case(asks(guarded(1_000, streams))));
    let row = suite.row("GH", "a reply of 1,000 pieces that a guardrail holds, streamed", streamed);
    row.at_most(1.2, "the same reply, not streamed", whole);
}

/// AT: tokens that nobody receives, minus the same stream read by hand.
fn tokens(suite: &mut Suite) {
    const MANY: usize = 1_000;
    let (streamed, read) = (suite.case(streams(MANY)), suite.case(reads(MANY)));
    let floor = suite.case(emits());
    let token = Extra::shared(streamed, read, MANY as u32);
    let row = suite.row("AT", "a token of a stream that nobody receives, minus reading it", token);
    row.beside("peer", Extra::per(read, MANY as u32)).at_most(3.0, "an emit that nobody receives", floor);
}

// --- emitree ---

fn agent_with<M: AgentMiddleware>(middlewares: impl IntoIterator<Item = M>) -> Agent {
    let builder = Agent::builder("bench", ChatModel::new(Fixed).expect("a model")).tool(add());
    middlewares.into_iter().fold(builder, |builder, middleware| builder.with(middleware)).build().expect("an agent")
}

fn asks(agent: Agent) -> impl Case {
    move |n| {
        timed(async {
            for _ in 0..n {
                black_box(agent.ask("go").await.expect("an answer"));
            }
        })
    }
}

fn asks_after(agent: Agent, history: History) -> impl Case {
    move |n| {
        timed(async {
            for _ in 0..n {
                let session = Session::from(history.clone());
                black_box(agent.ask("go").session(&session).await.expect("an answer"));
            }
        })
    }
}

/// A middleware without hooks. The string is its id.
struct Empty(String);

impl std::fmt::Debug for Empty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl AgentMiddleware for Empty {
    fn id(&self) -> &str {
        &self.0
    }
}

/// Ten requirements that allow each call of the loop of [`Fixed`].
fn requirements() -> Requirements {
    let add = || Requirement::tool("add");
    let counted = (5..10).map(|most| add().at_most(most));
    let conditions = (5..10).map(|most| add().when(move |steps, _| steps.len() < most));
    Requirements::new(counted.chain(conditions))
}

/// A middleware with this number of hooks at one chain place.
#[derive(Debug)]
struct Chained(usize, fn(&mut Hooks));

impl AgentMiddleware for Chained {
    fn id(&self) -> &str {
        "chained"
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        for _ in 0..self.0 {
            self.1(hooks);
        }
        Ok(())
    }
}

/// Runs of a model with layers that only call the next layer.
fn model_runs(layers: usize) -> impl Case {
    let pass = |stack: StackBuilder<ChatModel>, _| {
        stack.layer_fn("pass", |request, _, next: Next<'_, ChatModel>| Box::pin(next.run(request)))
    };
    let stack = (0..layers).fold(Stack::builder(), pass).build();
    let (model, request) = (ChatModel::new(Fixed).expect("a model"), ChatRequest::from("go"));
    move |n| {
        timed(async {
            for _ in 0..n {
                let run = model.run(request.clone());
                let run = if stack.is_empty() { run } else { run.middleware(stack.clone()) };
                black_box(run.await.expect("an answer"));
            }
        })
    }
}

/// The stream of `Pieces`, read by hand.
fn reads(deltas: usize) -> impl Case {
    move |n| {
        timed(async {
            for _ in 0..n {
                let (mut text, mut pieces) = (String::new(), pieces(deltas));
                while let Some(Ok(Delta::Text(piece))) = pieces.next().await {
                    text.push_str(&piece);
                }
                black_box(text);
            }
        })
    }
}

/// An agent whose model answers in pieces, which a guardrail holds.
fn guarded(deltas: usize, streams: bool) -> Agent {
    let judge = |text: &str| if text.contains("rude") { Judgement::block("rude") } else { Judgement::Allow };
    Agent::builder("bench", ChatModel::new(Pieces(deltas)).expect("a model"))
        .options(ChatOptions::new().stream(streams))
        .with(Guardrail::output("polite", move |text, _| Box::pin(std::future::ready(Ok(judge(text))))))
        .build()
        .expect("an agent")
}

fn streams(deltas: usize) -> impl Case {
    let model = ChatModel::new(Pieces(deltas)).expect("a model");
    let mut request = ChatRequest::from("go");
    request.options.stream = Some(true);
    move |n| {
        timed(async {
            for _ in 0..n {
                black_box(model.run(request.clone()).await.expect("an answer"));
            }
        })
    }
}

#[derive(Serialize)]
struct Token {
    text: u64,
}

/// Emits on an emitter four levels below its root, without listeners. Row W0 of the bench `emit` is similar.
fn emits() -> impl Case {
    const NEW_TOKEN: EventName = EventName::new("new_token");
    let emitter = ["a", "b", "c", "d"].iter().fold(Emitter::new(), |above, name| above.child(*name).expect("a name"));
    move |n| {
        timed(async {
            for i in 0..n {
                let mut token = Token { text: black_box(i) };
                black_box(emitter.emit(NEW_TOKEN, &mut token).await.ok());
                black_box(token.text);
            }
        })
    }
}

// --- Peers ---

/// The loop written by hand, without an agent or runs. It builds the same requests and messages, and deserializes the
/// arguments of each call.
fn by_hand() -> impl Case {
    let parameters = add().spec().clone();
    move |n| {
        timed(async {
            for _ in 0..n {
                let mut messages = vec![Arc::new(Message::user("go"))];
                let tools = Arc::new(vec![parameters.clone()]);
                loop {
                    let mut request = ChatRequest::new([]);
                    request.messages = Arc::new(messages.clone());
                    request.tools = Arc::clone(&tools);
                    let response = respond(&request);
                    let calls: Vec<_> = response.message.tool_calls().cloned().collect();
                    messages.push(Arc::new(response.message));
                    if calls.is_empty() {
                        break;
                    }
                    let results = join_all(calls.into_iter().map(|call| async move {
                        let Add { n } =
                            Add::deserialize(call.arguments.json().unwrap_or(&Value::Null)).expect("a number");
                        ToolResult::new(call.id, n + 1)
                    }));
                    messages.push(Arc::new(Message::tool(results.await)));
                }
                black_box(messages);
            }
        })
    }
}

type BoxedFunction = Box<dyn for<'a> Fn(&'a mut u64) -> BoxFuture<'a, Result<()>>>;

fn boxed_functions() -> impl Case {
    let functions: Vec<BoxedFunction> = vec![Box::new(|n| {
        Box::pin(async move {
            *n += 1;
            Ok(())
        })
    })];
    move |n| {
        timed(async {
            let mut value = 0;
            for _ in 0..n {
                for function in black_box(&functions) {
                    black_box(function(&mut value).await.ok());
                }
            }
        })
    }
}

fn workflows() -> impl Case {
    let flow = Workflow::builder("count").step("more", |n: &mut u64, _| {
        *n += 1;
        let next = if *n < u64::from(STEPS) { Goto::Same } else { Goto::End };
        Box::pin(async move { Ok(next) })
    });
    let flow = flow.build().expect("a workflow");
    move |n| {
        timed(async {
            for _ in 0..n {
                black_box(flow.run(black_box(0)).await.ok());
            }
        })
    }
}

fn clones(history: History) -> impl Case {
    move |n| {
        timed(async {
            for _ in 0..n {
                black_box(black_box(history.messages()).to_vec());
            }
        })
    }
}
