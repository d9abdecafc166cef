//! The cost of text with prefixes: the parser.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --bench react
//! ```

use std::hint::black_box;
use std::time::Instant;

use emitree::agent::parse::{LinePrefixParser, Node, json_object, one_of};

use crate::support::{Case, Suite};

mod support;

fn main() {
    let mut suite = Suite::new(&["emitree", "peer"]);
    parsers(&mut suite);
    suite.run();
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
    let half = suite.case(parses(self::text(BYTES / 2), 4));
    suite.row("", "… in pieces of 4 bytes", parsed).at_most(2.2, "a text of 512 KB", half);
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
