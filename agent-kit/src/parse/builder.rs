//! The nodes of a [`LinePrefixParser`](super::LinePrefixParser).

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Error, Result};
use serde_json::{Map, Value};

use super::LinePrefixParser;
use emitree_agent::typed::{json_in, shortened};

type ParseText = dyn Fn(&str) -> Result<Value, String> + Send + Sync;
type Fallback = Arc<dyn Fn(String) -> Vec<(&'static str, String)> + Send + Sync>;

/// A node of a [`LinePrefixParser`]: lines from a prefix up to the prefix of another node.
#[derive(Clone)]
#[must_use = "a node has no effect until it is passed to `LinePrefixParserBuilder::node`"]
pub struct Node {
    pub(super) prefix: String,
    /// The prefix in lower case.
    folded: String,
    next: Vec<String>,
    pub(super) is_start: bool,
    pub(super) is_end: bool,
    parse: Option<Arc<ParseText>>,
}

impl Node {
    /// Makes a node. Spaces around the prefix do not count.
    pub fn new(prefix: impl Into<String>) -> Self {
        let prefix = prefix.into().trim().to_owned();
        let folded = prefix.chars().flat_map(char::to_lowercase).collect();
        Self { prefix, folded, next: Vec::new(), is_start: false, is_end: false, parse: None }
    }

    /// Lets a text begin with the node.
    pub const fn start(mut self) -> Self {
        self.is_start = true;
        self
    }

    /// Lets a text end with the node.
    pub const fn end(mut self) -> Self {
        self.is_end = true;
        self
    }

    /// Sets the keys of the nodes that may follow.
    pub fn next<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.next.extend(keys.into_iter().map(Into::into));
        self
    }

    /// Sets the function that makes the value from the text, or returns the reason why it cannot. By default, the value
    /// is the text.
    pub fn parse(mut self, parse: impl Fn(&str) -> Result<Value, String> + Send + Sync + 'static) -> Self {
        self.parse = Some(Arc::new(parse));
        self
    }

    pub(super) fn value(&self, text: &str) -> Result<Value, String> {
        self.parse.as_ref().map_or_else(|| Ok(text.into()), |parse| parse(text))
    }

    /// Compares the prefix with the beginning of a text.
    fn compare(&self, text: &str) -> Compared {
        let mut rest = self.folded.chars();
        for (at, char) in text.char_indices() {
            if rest.as_str().is_empty() {
                return Compared::Begins(at);
            }
            // A character may have several characters in lower case.
            if !char.to_lowercase().all(|lower| rest.next() == Some(lower)) {
                return Compared::Differs;
            }
        }
        if rest.as_str().is_empty() { Compared::Begins(text.len()) } else { Compared::MayBegin }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, next, is_start, is_end, .. } = self;
        let mut node = f.debug_struct("Node");
        node.field("prefix", prefix).field("next", next).field("start", is_start).field("end", is_end);
        node.finish_non_exhaustive()
    }
}

enum Compared {
    Differs,
    /// The text is shorter than the prefix.
    MayBegin,
    /// The prefix has this length in the text.
    Begins(usize),
}

/// The prefix at the beginning of a text.
pub(super) enum Found {
    Nothing,
    /// More text decides.
    Undecided,
    /// The node, and the length of its prefix in the text.
    Node(usize, usize),
}

/// The nodes of a parser, which its clones share.
pub(super) struct Nodes {
    nodes: Vec<(Arc<str>, Node)>,
    /// For each node, the nodes that may follow it.
    next: Vec<Vec<usize>>,
    /// A bit for each ASCII character with which a prefix begins, in lower case: most lines need no comparison.
    first: u128,
    pub(super) fallback: Option<Fallback>,
    pub(super) waits_for_start: bool,
}

impl Nodes {
    pub(super) fn key(&self, at: usize) -> &Arc<str> {
        &self.nodes[at].0
    }

    pub(super) fn node(&self, at: usize) -> &Node {
        &self.nodes[at].1
    }

    pub(super) fn find(&self, key: &str) -> Option<usize> {
        self.nodes.iter().position(|(other, _)| **other == *key)
    }

    pub(super) fn may_follow(&self, at: usize, next: usize) -> bool {
        self.next[at].contains(&next)
    }

    /// Returns `true` if the node takes everything that follows.
    pub(super) fn takes_all(&self, at: usize) -> bool {
        self.node(at).is_end && self.next[at].is_empty()
    }

    /// Finds the longest prefix at the beginning of a text. If more text may follow, a longer prefix may still decide.
    pub(super) fn prefix_of(&self, text: &str, has_ended: bool) -> Found {
        let mut longest = Found::Nothing;
        let first = text.bytes().next().unwrap_or_default().to_ascii_lowercase();
        if first.is_ascii() && self.first >> first & 1 == 0 {
            return longest;
        }
        for (at, (_, node)) in self.nodes.iter().enumerate() {
            match (node.compare(text), &longest) {
                (Compared::MayBegin, _) if !has_ended => return Found::Undecided,
                (Compared::Begins(len), Found::Node(_, longer)) if len <= *longer => {}
                (Compared::Begins(len), _) => longest = Found::Node(at, len),
                _ => {}
            }
        }
        longest
    }

    /// Lists the prefixes of nodes, for messages.
    pub(super) fn prefixes(&self, is_listed: impl Fn(usize) -> bool) -> String {
        let listed = (0..self.nodes.len()).filter(|at| is_listed(*at));
        let prefixes: Vec<_> = listed.map(|at| format!("`{}`", self.node(at).prefix)).collect();
        prefixes.join(" or ")
    }

    pub(super) fn keys(&self) -> String {
        listed(self.nodes.iter().map(|(key, _)| &**key))
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.nodes.iter().map(|(key, node)| (key, node))).finish()
    }
}

/// Builds a [`LinePrefixParser`].
#[derive(Clone, Default)]
#[must_use = "`build` makes the parser"]
pub struct LinePrefixParserBuilder {
    nodes: Vec<(Arc<str>, Node)>,
    fallback: Option<Fallback>,
    waits_for_start: bool,
}

impl LinePrefixParserBuilder {
    /// Adds a node under a key.
    pub fn node(mut self, key: impl Into<Arc<str>>, node: Node) -> Self {
        self.nodes.push((key.into(), node));
        self
    }

    /// Sets a function for texts in which no node begins. It receives the text, and returns the keys and the texts of
    /// the nodes that it stands for, in order. They are checked as the nodes of any text are.
    pub fn fallback(
        mut self,
        fallback: impl Fn(String) -> Vec<(&'static str, String)> + Send + Sync + 'static,
    ) -> Self {
        self.fallback = Some(Arc::new(fallback));
        self
    }

    /// Ignores lines before the first start node. By default, they are an error if a node follows.
    pub const fn wait_for_start(mut self) -> Self {
        self.waits_for_start = true;
        self
    }

    /// Builds the parser.
    ///
    /// # Errors
    ///
    /// Returns an error if no node is a start or no node is an end, if a node's `next` names the node itself or a key
    /// that does not exist, if a prefix is empty or has several lines, or if two nodes have the same key, or prefixes
    /// that differ only in case.
    pub fn build(self) -> Result<LinePrefixParser> {
        let Self { nodes, fallback, waits_for_start } = self;
        if !nodes.iter().any(|(_, node)| node.is_start) {
            return Err(Error::new("no node is a start: call `start` on the nodes with which a text may begin"));
        }
        if !nodes.iter().any(|(_, node)| node.is_end) {
            return Err(Error::new("no node is an end: call `end` on the nodes with which a text may end"));
        }
        check_prefixes(&nodes)?;
        let next = nodes.iter().map(|(key, node)| next_of(key, node, &nodes)).collect::<Result<_>>()?;
        let firsts = nodes.iter().filter_map(|(_, node)| node.folded.bytes().next()).filter(u8::is_ascii);
        let first = firsts.fold(0, |bits, first| bits | 1 << first);
        Ok(LinePrefixParser::new(Nodes { nodes, next, first, fallback, waits_for_start }))
    }
}

impl fmt::Debug for LinePrefixParserBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinePrefixParserBuilder").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

fn check_prefixes(nodes: &[(Arc<str>, Node)]) -> Result<()> {
    let mut keys = HashSet::new();
    let mut prefixes = HashSet::new();
    for (key, node) in nodes {
        if node.prefix.is_empty() || node.prefix.contains('\n') {
            return Err(Error::new(format!("the prefix {:?} of `{key}` must be a part of one line", node.prefix)));
        }
        if !keys.insert(&**key) {
            return Err(Error::new(format!("two nodes have the key `{key}`")));
        }
        if !prefixes.insert(node.folded.as_str()) {
            return Err(Error::new(format!(
                "another node has the prefix `{}` of `{key}`: upper and lower case do not differ",
                node.prefix
            )));
        }
    }
    Ok(())
}

/// Returns the positions of the nodes that may follow a node.
fn next_of(key: &str, node: &Node, nodes: &[(Arc<str>, Node)]) -> Result<Vec<usize>> {
    let find = |next: &String| {
        if next == key {
            return Err(Error::new(format!("`{key}` names itself as a next node")));
        }
        nodes.iter().position(|(other, _)| **other == **next).ok_or_else(|| {
            let keys = listed(nodes.iter().map(|(key, _)| &**key));
            Error::new(format!("`{key}` names the next node `{next}`, but the parser has only {keys}"))
        })
    };
    node.next.iter().map(find).collect()
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Makes a function for [`Node::parse`] that accepts only these texts.
///
/// ```
/// let tool = emitree_agent_kit::parse::one_of(["search", "weather"]);
/// assert_eq!(tool("weather").unwrap(), "weather");
/// assert_eq!(tool("wether").unwrap_err(), "`wether` is not one of `search`, `weather`");
/// ```
pub fn one_of<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Box<ParseText> {
    let texts: Vec<String> = texts.into_iter().map(Into::into).collect();
    Box::new(move |text| {
        if texts.iter().any(|other| other == text) {
            return Ok(text.into());
        }
        let text = shortened(text);
        Err(match texts.as_slice() {
            [] => format!("`{text}` is not possible: there is nothing to choose from"),
            texts => format!("`{text}` is not one of {}", listed(texts.iter().map(String::as_str))),
        })
    })
}

/// Parses a text as a JSON object, for [`Node::parse`]. The object may stand in a Markdown fence or behind a sentence, as
/// in [`json_in`].
///
/// # Errors
///
/// Returns the reason if the text has no JSON object.
pub fn json_object(text: &str) -> Result<Value, String> {
    let object = |value: &Value| if value.is_object() { Ok(value.clone()) } else { Err(String::new()) };
    json_in(text, object).or_else(|_| {
        let object = serde_json::from_str::<Map<String, Value>>(text);
        object.map(Value::Object).map_err(|error| format!("`{}` is not a JSON object: {error}", shortened(text)))
    })
}
