//! `LinePrefixParser`: the keys, values and errors of a text, however it is cut into chunks.

use std::collections::BTreeMap;

use emitree_agent_kit::parse::{
    LinePrefixParser, LinePrefixParserBuilder, Node, Parsed, ParserError, ParserErrorKind as Kind, ParserUpdate,
    json_object, one_of,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

fn react() -> LinePrefixParserBuilder {
    LinePrefixParser::builder()
        .node("thought", Node::new("Thought:").start().next(["tool_name", "final_answer"]))
        .node("tool_name", Node::new("Function Name:").next(["tool_input"]).parse(one_of(["a", "b"])))
        .node("tool_input", Node::new("Function Input:").end().next(["tool_output"]).parse(json_object))
        .node("tool_output", Node::new("Function Output:").end())
        .node("final_answer", Node::new("Final Answer:").start().end())
}

fn parser(builder: LinePrefixParserBuilder) -> LinePrefixParser {
    builder.build().expect("a parser")
}

/// Cuts a text into chunks of at most this many bytes.
fn chunks(text: &str, bytes: usize) -> Vec<&str> {
    let (mut chunks, mut from) = (Vec::new(), 0);
    for (at, char) in text.char_indices() {
        if at + char.len_utf8() - from > bytes && at > from {
            chunks.push(&text[from..at]);
            from = at;
        }
    }
    chunks.push(&text[from..]);
    chunks
}

/// A node of a parsed text: its key, its deltas joined, and `true` if it is complete.
type Read = Vec<(String, String, bool)>;

fn join(read: &mut Read, updates: &[ParserUpdate]) {
    for ParserUpdate { key, delta, is_complete, .. } in updates {
        match read.last_mut() {
            Some((last, text, complete)) if *last == **key => {
                assert!(!*complete, "`{key}` is complete, but has another update");
                text.push_str(delta);
                *complete = *is_complete;
            }
            _ => read.push((key.to_string(), delta.clone(), *is_complete)),
        }
    }
}

/// Parses a text in chunks. After each chunk, calls a function with the text and the updates so far.
fn parse_each(
    mut parser: LinePrefixParser,
    chunks: &[&str],
    mut seen: impl FnMut(&str, &Read),
) -> (Read, Result<Parsed, ParserError>) {
    let (mut read, mut text) = (Read::new(), String::new());
    for chunk in chunks {
        let pushed = parser.push(chunk).map(|updates| join(&mut read, updates));
        match pushed {
            Ok(()) => {}
            Err(error) => {
                join(&mut read, error.updates());
                let again = parser.end().unwrap_err();
                assert_eq!((again.kind(), again.to_string()), (error.kind(), error.to_string()));
                assert!(again.updates().is_empty());
                return (read, Err(error));
            }
        }
        text.push_str(chunk);
        seen(&text, &read);
    }
    let parsed = parser.end();
    join(&mut read, parsed.as_ref().map_or_else(ParserError::updates, |parsed| &parsed.updates));
    (read, parsed)
}

/// Parses a text whole, and asserts that chunks of any size make no difference.
fn parse(builder: &LinePrefixParserBuilder, text: &str) -> (Read, Result<Parsed, ParserError>) {
    let whole = parse_each(parser(builder.clone()), &[text], |_, _| ());
    for bytes in 1..=64 {
        let (read, result) = parse_each(parser(builder.clone()), &chunks(text, bytes), |_, _| ());
        assert_eq!(read, whole.0, "{text:?} in chunks of {bytes}");
        match (&result, &whole.1) {
            (Ok(parsed), Ok(whole)) => assert_eq!(parsed.values, whole.values),
            (Err(error), Err(whole)) => {
                assert_eq!((error.kind(), error.to_string()), (whole.kind(), whole.to_string()));
                assert_eq!((error.values(), error.incomplete()), (whole.values(), whole.incomplete()));
            }
            _ => panic!("{text:?} in chunks of {bytes}: {result:?} instead of {:?}", whole.1),
        }
    }
    whole
}

fn values(builder: &LinePrefixParserBuilder, text: &str) -> Value {
    let values = parse(builder, text).1.unwrap_or_else(|error| panic!("{text:?}: {error}")).values;
    values.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
}

fn error(builder: &LinePrefixParserBuilder, text: &str) -> ParserError {
    parse(builder, text).1.map(|parsed| panic!("{text:?} is parsed: {parsed:?}")).unwrap_err()
}

#[test]
fn each_prefix_at_the_beginning_of_a_line_begins_a_value() {
    let table = [
        ("Final Answer: 42", json!({"final_answer": "42"})),
        ("Thought: I know.\nFinal Answer: 42", json!({"thought": "I know.", "final_answer": "42"})),
        (
            "Thought: a\nFunction Name: b\nFunction Input: {\"c\": 1}",
            json!({"thought": "a", "tool_name": "b", "tool_input": {"c": 1}}),
        ),
        // Spaces and case do not matter.
        ("\n\n \tTHOUGHT:a\r\n\u{a0} final answer:  b  ", json!({"thought": "a", "final_answer": "b"})),
        // Only a prefix at the beginning of a line counts.
        (
            "Thought: my Thought: is\nFinal Answer: Thought: no",
            json!({"thought": "my Thought: is", "final_answer": "Thought: no"}),
        ),
        // A value has lines, but no white space around it.
        (
            "Thought:\n\n  a\n\n  b \n\nFinal\nFinal Answer:x",
            json!({"thought": "a\n\n  b \n\nFinal", "final_answer": "x"}),
        ),
        // The last node takes everything.
        (
            "Final Answer: a\nThought: b\n\nFinal Answer: c\n",
            json!({"final_answer": "a\nThought: b\n\nFinal Answer: c"}),
        ),
        ("Final Answer:", json!({"final_answer": ""})),
        ("Thought:\nFinal Answer:\n", json!({"thought": "", "final_answer": ""})),
    ];
    for (text, expected) in table {
        assert_eq!(values(&react(), text), expected, "{text:?}");
    }
}

#[test]
fn the_longest_prefix_wins() {
    let act = || {
        LinePrefixParser::builder()
            .node("act", Node::new("Act:").start().next(["now", "end"]))
            .node("now", Node::new("Act: now!").start().next(["end"]))
            .node("end", Node::new("ÉND").end())
    };
    assert_eq!(values(&act(), "act: Now!x\néndy"), json!({"now": "x", "end": "y"}));
    assert_eq!(values(&act(), "Act: no\nAct: now!\nÉND"), json!({"act": "no", "now": "", "end": ""}));
    // At the end, a prefix that could have become longer counts.
    assert_eq!(error(&act(), "Act:").kind(), Kind::NotEndNode);
    assert_eq!(error(&act(), "Act: now").incomplete(), None);
    assert_eq!(error(&act(), "Act: now").values()["act"], "now");
}

#[test]
fn an_error_names_the_prefixes_and_has_the_state_so_far() {
    let table = [
        (
            "Thought: a\nFunction Input: {}",
            Kind::InvalidTransition,
            "`Function Input:` must not follow `Thought:`; expected `Function Name:` or `Final Answer:`",
            json!({}),
        ),
        (
            "Thought: a\nthought: b",
            Kind::InvalidTransition,
            "`Thought:` must not follow `Thought:`; expected `Function Name:` or `Final Answer:`",
            json!({}),
        ),
        (
            "Thought: a\nFunction Name: b\nFunction Input: {}\nThought: c",
            Kind::InvalidTransition,
            "`Thought:` must not follow `Function Input:`; expected `Function Output:` or the end of the text",
            json!({"thought": "a", "tool_name": "b"}),
        ),
        (
            "Function Name: a",
            Kind::NotStartNode,
            "the text begins with `Function Name:`; expected `Thought:` or `Final Answer:`",
            json!({}),
        ),
        (
            "Well,\n let me see.\nThought: a",
            Kind::NotStartNode,
            "the text begins with `Well,\n let me see.`; expected `Thought:` or `Final Answer:`",
            json!({}),
        ),
        (
            "Thought: hm",
            Kind::NotEndNode,
            "the text ends after `Thought:`; expected `Function Name:` or `Final Answer:`",
            json!({"thought": "hm"}),
        ),
        (
            "Thought: a\nFunction Name: c\nFunction Input: {}",
            Kind::DoesNotParse,
            "the text after `Function Name:` is wrong: `c` is not one of `a`, `b`",
            json!({"thought": "a"}),
        ),
        (
            "Thought: a\nFunction Name: a\nFunction Input: {1}",
            Kind::DoesNotParse,
            "the text after `Function Input:` is wrong: `{1}` is not a JSON object: \
             key must be a string at line 1 column 2",
            json!({"thought": "a", "tool_name": "a"}),
        ),
        (" \n ", Kind::NoData, "the text is empty; expected `Thought:` or `Final Answer:`", json!({})),
        ("42", Kind::NoData, "no line begins with a prefix; expected `Thought:` or `Final Answer:`", json!({})),
    ];
    for (text, kind, message, values) in table {
        let error = error(&react(), text);
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, message));
        assert_eq!(json!(error.values()), values, "{text:?}");
    }
}

#[test]
fn an_error_has_the_text_that_is_in_no_value() {
    let broken = error(&react(), "Thought: a\nFunction Name: a\nFunction Input: [1]");
    assert_eq!(broken.incomplete(), Some(("tool_input", "[1]")));
    let late = error(&react(), "Thought: a\n\n  Function Input: {}");
    assert_eq!((late.incomplete(), late.lines().trim_start()), (Some(("thought", "a")), "Function Input: {}"));
    assert_eq!(error(&react(), "Well.\nThought: a").lines(), "Well.\nThought: a");

    let circle = LinePrefixParser::builder()
        .node("a", Node::new("a:").start().next(["b"]))
        .node("b", Node::new("b:").end().next(["a"]));
    let twice = error(&circle, "a:1\nb:2\na:3");
    assert_eq!((twice.kind(), twice.to_string().as_str()), (Kind::AlreadyCompleted, "`a:` occurs twice"));
    assert_eq!(json!(twice.values()), json!({"a": "1", "b": "2"}));
}

#[test]
fn the_updates_before_an_error_are_part_of_it() {
    let mut parser = parser(react());
    let failed = parser.push("Thought: a\nFunction Name: a\nFinal Answer: b").unwrap_err();
    let updates: Vec<_> = failed.updates().iter().map(|it| (&*it.key, it.delta.as_str(), it.is_complete)).collect();
    assert_eq!(updates, [("thought", "a", true), ("tool_name", "a", false)]);
    let again = parser.push("more").unwrap_err();
    assert_eq!((again.to_string(), again.updates()), (failed.to_string(), &[][..]));
}

#[test]
fn a_fallback_stands_for_a_text_in_which_no_node_begins() {
    let answers = || react().fallback(|text| vec![("thought", "I know.".to_owned()), ("final_answer", text)]);
    let expected = json!({"thought": "I know.", "final_answer": "It is\n\n42."});
    assert_eq!(values(&answers(), " It is\n\n42.\n"), expected);
    assert_eq!(values(&answers(), "Final Answer: 42"), json!({"final_answer": "42"}));
    assert_eq!(error(&answers(), " ").kind(), Kind::NoData);
    // Its nodes are checked as in any other text.
    let wrong = [
        (vec![], Kind::NoData),
        (vec![("tool_name", "a".to_owned())], Kind::NotStartNode),
        (vec![("thought", "a".to_owned())], Kind::NotEndNode),
        (vec![("other", "a".to_owned())], Kind::InvalidTransition),
    ];
    for (nodes, kind) in wrong {
        let names = format!("{nodes:?}");
        assert_eq!(error(&react().fallback(move |_| nodes.clone()), "42").kind(), kind, "{names}");
    }
}

#[test]
fn lines_before_the_first_start_node_are_ignored_on_request() {
    let waits = react().wait_for_start();
    let expected = json!({"thought": "a", "final_answer": "b"});
    assert_eq!(values(&waits, "Well,\nFunction Name: x\n Thought: a\nFinal Answer: b"), expected);
    let falls_back = waits.clone().fallback(|text| vec![("final_answer", text)]);
    assert_eq!(values(&falls_back, "Function Name: x"), json!({"final_answer": "Function Name: x"}));
    assert_eq!(error(&waits, "Function Name: x").kind(), Kind::NoData);
}

#[test]
fn a_parser_that_could_not_work_is_refused() {
    let a = || Node::new("A:").start().end();
    let of = |nodes: Vec<(&'static str, Node)>| {
        nodes.into_iter().fold(LinePrefixParser::builder(), |builder, (key, node)| builder.node(key, node))
    };
    let table = [
        (vec![], "no node is a start: call `start` on the nodes with which a text may begin"),
        (
            vec![("a", Node::new("A:").end())],
            "no node is a start: call `start` on the nodes with which a text may begin",
        ),
        (vec![("a", Node::new("A:").start())], "no node is an end: call `end` on the nodes with which a text may end"),
        (vec![("a", a().next(["b"]))], "`a` names the next node `b`, but the parser has only `a`"),
        (vec![("a", a().next(["a"]))], "`a` names itself as a next node"),
        (vec![("a", Node::new(" ").start().end())], "the prefix \"\" of `a` must be a part of one line"),
        (vec![("a", Node::new("A\nB").start().end())], "the prefix \"A\\nB\" of `a` must be a part of one line"),
        (vec![("a", a()), ("a", Node::new("B:"))], "two nodes have the key `a`"),
        (
            vec![("a", a()), ("b", Node::new("a: "))],
            "another node has the prefix `a:` of `b`: upper and lower case do not differ",
        ),
    ];
    for (nodes, message) in table {
        assert_eq!(of(nodes).build().unwrap_err().to_string(), message);
    }
}

#[test]
fn a_function_of_a_node_makes_its_value() {
    assert_eq!(json_object("{\"a\": [1]}"), Ok(json!({"a": [1]})));
    assert!(json_object("[1]").unwrap_err().starts_with("`[1]` is not a JSON object: invalid type: sequence"));
    assert!(json_object("").unwrap_err().starts_with("`` is not a JSON object: EOF"));
    assert_eq!(one_of(["a"])("a"), Ok(json!("a")));
    assert_eq!(one_of::<&str>([])("a").unwrap_err(), "`a` is not possible: there is nothing to choose from");
}

#[test]
fn text_waits_only_for_white_space_and_prefixes() {
    let mut parser = parser(react());
    let mut deltas = |chunk: &str| {
        let updates = parser.push(chunk).expect("updates");
        updates.iter().map(|update| update.delta.clone()).collect::<Vec<_>>()
    };
    let steps: [(&str, &[&str]); 10] = [
        ("Tho", &[]),
        ("ught:", &[]),
        (" I", &["I"]),
        (" think \n", &[" think"]),
        ("\n Fun", &[]),
        ("d it.", &[" \n\n Fund it."]),
        ("\nFinal Answer", &[]),
        (": ", &[""]),
        ("Final", &["Final"]),
        ("\nThought: ", &["\nThought:"]),
    ];
    for (chunk, expected) in steps {
        assert_eq!(deltas(chunk), expected, "{chunk:?}");
    }
}

/// A node of a random parser: its prefix, the nodes that may follow, and `true` if it is a start and an end.
type Shape = (&'static str, Vec<usize>, bool, bool);

const KEYS: [&str; 5] = ["k0", "k1", "k2", "k3", "k4"];
/// Prefixes that begin alike.
const PREFIXES: [&str; 7] = ["A:", "A: b:", "Ab:", "b", "B c", "É:", "éa"];

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let node = |_| (vec(0..5_usize, 0..5), prop::bool::weighted(0.7), prop::bool::weighted(0.7));
    (Just(PREFIXES).prop_shuffle(), (1..6_usize).prop_flat_map(move |n| (0..n).map(node).collect::<Vec<_>>())).prop_map(
        |(prefixes, nodes)| {
            let last = nodes.len();
            let shape = |(at, (next, is_start, is_end)): (usize, (Vec<usize>, bool, bool))| {
                let next = next.into_iter().filter(|next| *next != at && *next < last).collect();
                (prefixes[at], next, is_start || at == 0, is_end || at + 1 == last)
            };
            nodes.into_iter().enumerate().map(shape).collect()
        },
    )
}

/// Texts of prefixes, parts of prefixes, white space and other characters.
fn texts() -> impl Strategy<Value = String> {
    let prefix = || {
        (select(&PREFIXES[..]), any::<bool>(), any::<bool>()).prop_map(|(prefix, is_upper, is_cut)| {
            let prefix = if is_upper { prefix.to_uppercase() } else { prefix.to_owned() };
            if is_cut { prefix.chars().take(1).collect() } else { prefix }
        })
    };
    let begin = (select(vec!["", " ", "\u{2003}"]), prefix()).prop_map(|(space, prefix)| format!("\n{space}{prefix}"));
    let other = select(vec![" ", "\n", "\r\n", "x", "y", "ß", "\t"]).prop_map(str::to_owned);
    vec(prop_oneof![4 => begin, 1 => prefix(), 4 => other], 0..20).prop_map(|parts| parts.concat())
}

fn builder_of(shapes: &[Shape], waits: bool, falls_back: bool) -> LinePrefixParserBuilder {
    let add = |builder: LinePrefixParserBuilder, (at, (prefix, next, is_start, is_end)): (usize, &Shape)| {
        let refuse_x = |text: &str| if text.contains('x') { Err("x".to_owned()) } else { Ok(text.into()) };
        let node = Node::new(*prefix).next(next.iter().map(|next| KEYS[*next])).parse(refuse_x);
        let node = if *is_start { node.start() } else { node };
        builder.node(KEYS[at], if *is_end { node.end() } else { node })
    };
    let builder = shapes.iter().enumerate().fold(LinePrefixParser::builder(), add);
    let builder = if waits { builder.wait_for_start() } else { builder };
    if falls_back { builder.fallback(|text| vec![("k0", text)]) } else { builder }
}

/// Reads a text line by line: the nodes, and the first error.
fn model(shapes: &[Shape], waits: bool, falls_back: bool, text: &str) -> (Read, Option<Kind>) {
    let mut read: Vec<(usize, String)> = Vec::new();
    let mut before = String::new();
    let close = |read: &mut Vec<(usize, String)>| match read.last_mut() {
        None => false,
        Some((_, text)) => {
            *text = text.trim().to_owned();
            text.contains('x')
        }
    };
    let done = |read: Vec<(usize, String)>, is_complete: bool| -> Read {
        let last = read.len();
        let complete = |at: usize| at + 1 < last || is_complete;
        let read = read.into_iter().enumerate();
        read.map(|(at, (key, text))| (KEYS[key].to_owned(), text.trim().to_owned(), complete(at))).collect()
    };
    for line in text.split('\n') {
        let current = read.last().map(|(at, _)| *at);
        let takes_all = current.is_some_and(|at| shapes[at].3 && shapes[at].1.is_empty());
        let rest = line.trim_start();
        let fits = |(_, prefix): &(usize, &str)| rest.to_lowercase().starts_with(&prefix.to_lowercase());
        let found = shapes.iter().map(|shape| shape.0).enumerate().filter(fits);
        let found = found.max_by_key(|(_, prefix)| prefix.len()).filter(|_| !takes_all);
        let ignored = |at: usize| current.is_none() && waits && !shapes[at].2;
        let Some((at, prefix)) = found.filter(|(at, _)| !ignored(*at)) else {
            let into = read.last_mut().map_or(&mut before, |(_, text)| text);
            into.push('\n');
            into.push_str(line);
            continue;
        };
        match current {
            Some(current) if !shapes[current].1.contains(&at) => {
                return (done(read, false), Some(Kind::InvalidTransition));
            }
            None if !(waits || shapes[at].2 && before.trim().is_empty()) => {
                return (done(read, false), Some(Kind::NotStartNode));
            }
            _ => {}
        }
        if close(&mut read) {
            return (done(read, false), Some(Kind::DoesNotParse));
        }
        if read.iter().any(|(other, _)| *other == at) {
            return (done(read, true), Some(Kind::AlreadyCompleted));
        }
        read.push((at, rest[prefix.len()..].to_owned()));
    }
    if read.is_empty() && falls_back && !before.trim().is_empty() {
        read.push((0, before.clone()));
    }
    let Some(last) = read.last().map(|(at, _)| *at) else { return (Read::new(), Some(Kind::NoData)) };
    if close(&mut read) {
        return (done(read, false), Some(Kind::DoesNotParse));
    }
    (done(read, true), (!shapes[last].3).then_some(Kind::NotEndNode))
}

/// Nodes that begin with an empty text have no update until they are complete.
fn with_text(read: Read) -> Read {
    read.into_iter().filter(|(_, text, is_complete)| *is_complete || !text.is_empty()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_text_is_read_as_line_by_line(
        shapes in shapes(),
        text in texts(),
        sizes in vec(1..65_usize, 1..20),
        waits in any::<bool>(),
        falls_back in any::<bool>(),
    ) {
        let builder = builder_of(&shapes, waits, falls_back);
        let (expected, fault) = model(&shapes, waits, falls_back, &text);
        let expected = with_text(expected);
        let mut rest = chunks(&text, 1).into_iter();
        let random = sizes.iter().cycle().map(|size| rest.by_ref().take(*size).collect::<String>());
        let random: Vec<_> = random.take_while(|piece| !piece.is_empty()).collect();
        let random: Vec<&str> = random.iter().map(String::as_str).collect();
        let longest = PREFIXES.iter().map(|prefix| prefix.chars().count()).max().unwrap_or(0);
        for cut in [vec![text.as_str()], chunks(&text, 1), chunks(&text, 3), random] {
            let (read, result) = parse_each(parser(builder.clone()), &cut, |so_far, read| {
                // After the first node, only white space and a part of a prefix wait.
                let (whole, _) = model(&shapes, waits, false, so_far);
                let texts = |read: &Read| read.iter().map(|(_, text, _)| text.as_str()).collect::<String>();
                let (whole, known) = (texts(&whole), texts(read));
                let held = whole.strip_prefix(known.as_str());
                let held = held.unwrap_or_else(|| panic!("{known:?} is no part of {whole:?}")).trim_start();
                assert!(held.chars().count() < longest, "{held:?} is held of {so_far:?}");
            });
            prop_assert_eq!(&with_text(read), &expected, "{:?}", cut);
            match result {
                Err(error) => prop_assert_eq!(Some(error.kind()), fault, "{:?}: {}", cut, error),
                Ok(parsed) => {
                    prop_assert_eq!(None, fault, "{:?}", cut);
                    let expected: Vec<_> = expected.iter().map(|(key, text, _)| (key.as_str(), json!(text))).collect();
                    let values = parsed.values.iter().map(|(key, value)| (&**key, value.clone()));
                    prop_assert_eq!(values.collect::<BTreeMap<_, _>>(), expected.into_iter().collect());
                }
            }
        }
    }
}
