//! The lines of a text, while it arrives.
//!
//! Invariant: `held` is white space that follows the text of a node, and then, at the beginning of a line, text that
//! may become a prefix. Everything before it belongs to a node or to the lines before the first node, and everything
//! before `seen` is known to be white space. So each byte is looked at once, except for the bytes of a prefix that is
//! arriving.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

use serde_json::Value;

use super::builder::{Found, LinePrefixParserBuilder, Nodes};
use super::error::Failed;
use super::{ParserError, ParserErrorKind};
use emitree_agent::typed::shortened;

/// Reads a text whose parts begin with prefixes, such as `Thought:`, while the text arrives.
///
/// A part is a [`Node`](super::Node) with a key. It begins with its prefix, at the beginning of a line, and has all
/// text up to the prefix of another node. Spaces before a prefix, and upper and lower case, do not matter. If several
/// prefixes fit, the longest counts. The text of a node has no white space at its beginning and its end. A node that is
/// an end and has no next node takes everything that follows.
///
/// ```
/// use emitree_agent_kit::parse::{LinePrefixParser, Node, json_object, one_of};
/// use serde_json::json;
///
/// # fn main() -> emitree_runtime::Result<()> {
/// let mut parser = LinePrefixParser::builder()
///     .node("thought", Node::new("Thought:").start().next(["tool_name", "final_answer"]))
///     .node("tool_name", Node::new("Function Name:").next(["tool_input"]).parse(one_of(["weather"])))
///     .node("tool_input", Node::new("Function Input:").end().parse(json_object))
///     .node("final_answer", Node::new("Final Answer:").start().end())
///     .fallback(|text| vec![("final_answer", text)])
///     .build()?;
///
/// let mut thought = String::new();
/// for chunk in ["Thought: I ask", " it.\nFunct", "ion Name: weather\nFunction Input: {\"city\"", ": \"Lima\"}"] {
///     for update in parser.push(chunk)? {
///         if &*update.key == "thought" {
///             thought.push_str(&update.delta);
///         }
///     }
/// }
/// let values = parser.end()?.values;
/// assert_eq!(thought, "I ask it.");
/// assert_eq!(values["thought"], "I ask it.");
/// assert_eq!(values["tool_input"], json!({"city": "Lima"}));
/// # Ok(())
/// # }
/// ```
///
/// # Updates
///
/// Text is returned as soon as it is certain: only white space, and the beginning of a line that may still become a
/// prefix, wait for more text. The deltas of a key, concatenated, are its text, however the text is cut into chunks. A
/// text before the first node waits for the end, because it may be for the
/// [fallback](LinePrefixParserBuilder::fallback).
///
/// # Errors
///
/// After an error, each further call returns the same error.
#[derive(Clone, Debug)]
pub struct LinePrefixParser {
    nodes: Arc<Nodes>,
    held: String,
    seen: usize,
    /// `true` if only spaces lie between the beginning of a line and `seen`.
    is_line_start: bool,
    /// The lines before the first node.
    before: String,
    current: Option<Current>,
    values: BTreeMap<Arc<str>, Value>,
    updates: Vec<ParserUpdate>,
    error: Option<ParserError>,
}

/// The node whose text is arriving.
#[derive(Clone, Debug)]
struct Current {
    at: usize,
    text: String,
}

/// More text of a node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParserUpdate {
    /// The key of the node.
    pub key: Arc<str>,
    /// The new text. It may be empty if the node is complete.
    pub delta: String,
    /// `true` if this is the last update of the node.
    pub is_complete: bool,
}

/// The end of a text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Parsed {
    /// The last updates.
    pub updates: Vec<ParserUpdate>,
    /// The value of each node of the text, by key.
    pub values: BTreeMap<Arc<str>, Value>,
}

/// The kind of an error, and its message.
type Fault = (ParserErrorKind, String);

impl LinePrefixParser {
    /// Begins with a parser without nodes.
    pub fn builder() -> LinePrefixParserBuilder {
        LinePrefixParserBuilder::default()
    }

    pub(super) fn new(nodes: Nodes) -> Self {
        Self {
            nodes: Arc::new(nodes),
            held: String::new(),
            seen: 0,
            is_line_start: true,
            before: String::new(),
            current: None,
            values: BTreeMap::new(),
            updates: Vec::new(),
            error: None,
        }
    }

    /// Takes the next chunk of the text. Returns the updates for what became certain, in order.
    ///
    /// # Errors
    ///
    /// Returns an error if a line begins a node that may not begin there, or if the text of a node does not parse. The
    /// updates before the error are in [`ParserError::updates`].
    pub fn push(&mut self, chunk: &str) -> Result<&[ParserUpdate], ParserError> {
        self.read_on(chunk, false)?;
        Ok(&self.updates[self.empty_updates()..])
    }

    /// Ends the text. Returns the last updates, and the values of all nodes.
    ///
    /// # Errors
    ///
    /// As for [`push`](Self::push). Also returns an error if the text ends in a node that is not an end, or if no node
    /// has begun and there is no fallback for the text.
    pub fn end(mut self) -> Result<Parsed, ParserError> {
        self.read_on("", true)?;
        if let Err(fault) = self.finish() {
            return Err(self.fail(fault));
        }
        self.updates.drain(..self.empty_updates());
        Ok(Parsed { updates: self.updates, values: self.values })
    }

    fn read_on(&mut self, chunk: &str, has_ended: bool) -> Result<(), ParserError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        self.clear_updates();
        let mut from = 0;
        if self.held.is_empty() {
            // Most chunks are read without a copy, because nothing waits.
            let read = self.read(chunk, &mut from, has_ended);
            self.held.push_str(&chunk[from..]);
            // `seen` counts from the beginning of `held`, from which the first `from` bytes are gone.
            self.seen -= from.min(self.seen);
            return read.map_err(|fault| self.fail(fault));
        }
        let mut text = take(&mut self.held);
        text.push_str(chunk);
        let read = self.read(&text, &mut from, has_ended);
        text.drain(..from);
        self.held = text;
        self.seen -= from.min(self.seen);
        read.map_err(|fault| self.fail(fault))
    }

    /// Removes the updates of the last call. The one of the current node stays, without its text: most chunks need no
    /// other, so they need no allocation.
    fn clear_updates(&mut self) {
        let current = self.current.as_ref().map(|current| self.nodes.key(current.at));
        let is_current = |update: &ParserUpdate| current.is_some_and(|key| Arc::ptr_eq(key, &update.key));
        match self.updates.as_mut_slice() {
            [only] if is_current(only) => only.delta.clear(),
            _ => self.updates.clear(),
        }
    }

    /// Returns 1 if the first update says nothing, and 0 otherwise.
    fn empty_updates(&self) -> usize {
        self.updates.first().is_some_and(|first| first.delta.is_empty() && !first.is_complete).into()
    }

    /// Reads a text up to what is not certain. Sets `from` to the end of the text that was taken.
    fn read(&mut self, text: &str, from: &mut usize, has_ended: bool) -> Result<(), Fault> {
        let mut takes_all = self.takes_all();
        let mut at = self.seen;
        loop {
            // No prefix begins within a line, so the search goes on at the next one.
            if !self.is_line_start || takes_all {
                let line_end = if takes_all { None } else { text[at..].find('\n') };
                let Some(len) = line_end else {
                    at = text.len();
                    break;
                };
                at += len + 1;
                self.is_line_start = true;
            }
            at = text.len() - text[at..].trim_start().len();
            if at == text.len() {
                break;
            }
            match self.nodes.prefix_of(&text[at..], has_ended) {
                // `at` stays before the text that may become a prefix, so it is held, and all before it is certain.
                Found::Undecided => break,
                Found::Node(node, len) => {
                    // The line before is taken first, because it belongs to the node before.
                    self.take(text, from, at);
                    if self.begin(node)? {
                        *from = at + len;
                        self.seen = *from;
                        takes_all = self.takes_all();
                    }
                    at += len;
                }
                Found::Nothing => {}
            }
            self.is_line_start = false;
        }
        self.take(text, from, at);
        Ok(())
    }

    fn takes_all(&self) -> bool {
        self.current.as_ref().is_some_and(|current| self.nodes.takes_all(current.at))
    }

    /// Takes text up to `to`, without the white space at its end, for the current node or the lines before the first
    /// node.
    fn take(&mut self, text: &str, from: &mut usize, to: usize) {
        // Up to `seen`, all is white space.
        let seen = self.seen.min(to);
        let len = text[seen..to].trim_end().len();
        if len > 0 {
            let is_first = self.current.as_ref().is_some_and(|current| current.text.is_empty());
            // White space that was held is inside of the text now, because other text follows it.
            let taken = &text[*from..seen + len];
            self.add(if is_first { taken.trim_start() } else { taken });
            *from = seen + len;
        }
        self.seen = to;
    }

    /// Begins a node, and completes the one before. Returns `false` if its line is ignored.
    fn begin(&mut self, at: usize) -> Result<bool, Fault> {
        let nodes = Arc::clone(&self.nodes);
        let key = nodes.key(at);
        let node = nodes.node(at);
        match &self.current {
            Some(before) if !nodes.may_follow(before.at, at) => {
                let mut expected = nodes.prefixes(|next| nodes.may_follow(before.at, next));
                if !expected.is_empty() && nodes.node(before.at).is_end {
                    expected.push_str(" or the end of the text");
                }
                let message = format!("`{}` must not follow `{}`", node.prefix, nodes.node(before.at).prefix);
                return Err((ParserErrorKind::InvalidTransition, with_expected(message, &expected)));
            }
            Some(_) => {}
            None if nodes.waits_for_start && !node.is_start => return Ok(false),
            None if nodes.waits_for_start || (node.is_start && self.before.is_empty()) => {}
            None => {
                let first = if self.before.is_empty() { &node.prefix } else { self.before.trim() };
                let message = format!("the text begins with `{}`", shortened(first));
                return Err((ParserErrorKind::NotStartNode, with_expected(message, &self.starts())));
            }
        }
        self.complete()?;
        // This has to follow `complete`, so that a node after itself is found to be the second one.
        if self.values.contains_key(key) {
            return Err((ParserErrorKind::AlreadyCompleted, format!("`{}` occurs twice", node.prefix)));
        }
        self.current = Some(Current { at, text: String::new() });
        Ok(true)
    }

    /// Adds text to the current node, or to the lines before the first node.
    fn add(&mut self, text: &str) {
        let Some(current) = &mut self.current else { return self.before.push_str(text) };
        current.text.push_str(text);
        let key = self.nodes.key(current.at);
        match self.updates.last_mut() {
            Some(last) if Arc::ptr_eq(&last.key, key) => last.delta.push_str(text),
            _ => self.updates.push(ParserUpdate { key: Arc::clone(key), delta: text.to_owned(), is_complete: false }),
        }
    }

    /// Completes the current node, if there is one.
    fn complete(&mut self) -> Result<(), Fault> {
        let Some(current) = &self.current else { return Ok(()) };
        let key = self.nodes.key(current.at);
        let node = self.nodes.node(current.at);
        let value = node.value(&current.text).map_err(|reason| {
            (ParserErrorKind::DoesNotParse, format!("the text after `{}` is wrong: {reason}", node.prefix))
        })?;
        match self.updates.last_mut() {
            Some(last) if Arc::ptr_eq(&last.key, key) => last.is_complete = true,
            _ => {
                let delta = String::new();
                self.updates.push(ParserUpdate { key: Arc::clone(key), delta, is_complete: true });
            }
        }
        self.values.insert(Arc::clone(key), value);
        self.current = None;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Fault> {
        if self.current.is_none() {
            self.fall_back()?;
        }
        let Some(at) = self.current.as_ref().map(|current| current.at) else {
            let message = if self.before.is_empty() { "the text is empty" } else { "no line begins with a prefix" };
            return Err((ParserErrorKind::NoData, with_expected(message.to_owned(), &self.starts())));
        };
        self.complete()?;
        let node = self.nodes.node(at);
        if node.is_end {
            return Ok(());
        }
        let expected = self.nodes.prefixes(|next| self.nodes.may_follow(at, next));
        let message = format!("the text ends after `{}`", node.prefix);
        Err((ParserErrorKind::NotEndNode, with_expected(message, &expected)))
    }

    /// Lets the fallback, if there is one, turn a text without nodes into nodes.
    fn fall_back(&mut self) -> Result<(), Fault> {
        let nodes = Arc::clone(&self.nodes);
        if self.before.is_empty() {
            return Ok(());
        }
        let Some(fallback) = &nodes.fallback else { return Ok(()) };
        let fallen = fallback(self.before.trim().to_owned());
        // `begin` refuses a first node after other text, and these nodes take the place of this text.
        if !fallen.is_empty() {
            self.before.clear();
        }
        for (key, text) in fallen {
            let Some(at) = nodes.find(key) else {
                let message = format!("the fallback names `{key}`, but the parser has only {}", nodes.keys());
                return Err((ParserErrorKind::InvalidTransition, message));
            };
            if self.begin(at)? && !text.trim().is_empty() {
                self.add(text.trim());
            }
        }
        Ok(())
    }

    fn starts(&self) -> String {
        self.nodes.prefixes(|at| self.nodes.node(at).is_start)
    }

    /// Keeps an error for further calls. Only the first call returns the updates before it.
    fn fail(&mut self, (kind, message): Fault) -> ParserError {
        let current = self.current.take();
        let current = current.map(|current| (Arc::clone(self.nodes.key(current.at)), current.text));
        let mut lines = take(&mut self.before);
        let values = take(&mut self.values);
        lines.push_str(&self.held);
        let failed = Failed { kind, message, lines, values, current, updates: Vec::new() };
        self.error = Some(ParserError(Box::new(failed.clone())));
        self.updates.drain(..self.empty_updates());
        ParserError(Box::new(Failed { updates: take(&mut self.updates), ..failed }))
    }
}

fn with_expected(message: String, expected: &str) -> String {
    if expected.is_empty() { message } else { format!("{message}; expected {expected}") }
}
