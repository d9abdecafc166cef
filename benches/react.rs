//! The cost of text with prefixes: the parser, and an agent whose model calls tools with text.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --bench react
//! ```

use std::hint::black_box;
use std::time::Instant;

use emitree::agent::kinds::ReActAgent;
use emitree::agent::parse::{LinePrefixParser, Node, json_object, one_of};
use emitree::agent::{
    Agent, AgentBuilder, ChatModel, ChatRequest, ChatResponse, DeltaStream, Message, Provider, ToolCall, tool_fn, whole,
};
use emitree::{Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::support::{Case, Extra, Suite, timed};

mod support;

fn main() {
    let mut suite = Suite::new(&["emitree", "peer"]);
    // The loops come first: the long texts would leave cold caches to them.
    turns(&mut suite);
    parsers(&mut suite);
    suite.run();
}

/// RT: a loop of 3 turns with 2 tool calls.
fn turns(suite: &mut Suite) {
    let agent = |builder: AgentBuilder| {
        let add = tool_fn("add", "Adds one", |Add { n }: Add, _: RunContext| std::future::ready(Ok(n + 1)));
        builder.tool(add).build().expect("an agent")
    };
    let model = |is_text| ChatModel::new(Fixed { is_text }).expect("a model");
    let react = suite.case(asks(agent(ReActAgent::builder("bench", model(true)))));
    let native = suite.case(asks(agent(Agent::builder("bench", model(false)))));
    let row = suite.row("RT", "a turn of `ReAct`", Extra::per(react, 3));
    row.beside("peer", Extra::per(native, 3)).at_most(2.0, "the same turn with native calls", Extra::per(native, 3));
}

/// LP: a text of 1 MB, in pieces and whole.
fn parsers(suite: &mut Suite) {
    const BYTES: usize = 1 << 20;
    let text = text(BYTES);
    let (parsed, appended) = (suite.case(parses(text.clone(), 4)), suite.case(appends(text.clone(), 4)));
    let row = suite.row("LP", "a text of 1 MB with prefixes, in pieces of 4 bytes", parsed);
    row.beside("peer", appended).at_most(4.0, "appending each piece to a `String`, and cloning it", appended);
    let (whole, lines) = (suite.case(parses(text.clone(), BYTES)), suite.case(lines(text)));
    let row = suite.row("", "… in one piece", whole);
    row.beside("peer", lines).at_most(10.0, "`str::lines`", lines);
    // Larger texts are allocated by pages, which costs more than reading them.
    let [quarter, half] = [BYTES / 8, BYTES / 4].map(|bytes| suite.case(parses(self::text(bytes), 4)));
    suite.row("", "… of 256 KB in pieces of 4 bytes", half).at_most(2.2, "128 KB", quarter);
}

/// A thought of many lines, and a call. The lines are of ASCII, so a piece never ends within a character.
fn text(bytes: usize) -> String {
    let line = "The function has to be called with the name of the city\n";
    let thought = line.repeat(bytes / line.len());
    format!("Thought: {thought}Function Name: weather\nFunction Input: {{\"city\": \"Lima\"}}\n")
}

fn parses(text: String, bytes: usize) -> impl Case {
    let parser = LinePrefixParser::builder()
        .node("thought", Node::new("Thought:").start().next(["tool_name", "final_answer"]))
        .node("tool_name", Node::new("Function Name:").next(["tool_input"]).parse(one_of(["weather"])))
        .node("tool_input", Node::new("Function Input:").end().next(["tool_output"]).parse(json_object))
        .node("tool_output", Node::new("Function Output:").end())
        .node("final_answer", Node::new("Final Answer:").start().end())
        .build()
        .expect("a parser");
    move |n| {
        let begin = Instant::now();
        for _ in 0..n {
            let mut parser = parser.clone();
            for piece in pieces(&text, bytes) {
                black_box(parser.push(piece).expect("updates"));
            }
            black_box(parser.end().expect("values"));
        }
        begin.elapsed()
    }
}

fn appends(text: String, bytes: usize) -> impl Case {
    move |n| {
        let begin = Instant::now();
        for _ in 0..n {
            let mut whole = String::new();
            for piece in pieces(&text, bytes) {
                whole.push_str(piece);
                black_box(piece.to_owned());
            }
            black_box(whole);
        }
        begin.elapsed()
    }
}

fn lines(text: String) -> impl Case {
    move |n| {
        let begin = Instant::now();
        for _ in 0..n {
            text.lines().for_each(|line| {
                black_box(line);
            });
        }
        begin.elapsed()
    }
}

fn pieces(text: &str, bytes: usize) -> impl Iterator<Item = &str> {
    (0..text.len()).step_by(bytes).map(move |at| &text[at..text.len().min(at + bytes)])
}

/// A model that calls a tool twice and then answers.
struct Fixed {
    is_text: bool,
}

#[derive(Deserialize, JsonSchema)]
struct Add {
    n: u64,
}

impl Fixed {
    fn respond(&self, request: &ChatRequest) -> Message {
        match (request.messages.len() < 5, self.is_text) {
            (true, false) => Message::assistant("I add.").with_call(ToolCall::new("c", "add", json!({"n": 1}))),
            (false, false) => Message::assistant("done"),
            (true, true) => Message::assistant("Thought: I add.\nFunction Name: add\nFunction Input: {\"n\": 1}"),
            (false, true) => Message::assistant("Thought: I know.\nFinal Answer: done"),
        }
    }
}

impl Provider for Fixed {
    fn name(&self) -> &str {
        "fixed"
    }

    fn model(&self) -> &str {
        "fixed"
    }

    async fn chat(&self, request: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        Ok(whole(ChatResponse::new(self.respond(request))))
    }
}

fn asks(agent: Agent) -> impl Case {
    move |n| {
        timed(async {
            for _ in 0..n {
                let answer = agent.ask("go").await.expect("an answer");
                assert_eq!(black_box(answer).turns, 3);
            }
        })
    }
}
