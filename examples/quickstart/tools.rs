//! The tools. Each tool is a runnable, and some tools run other tools.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use emitree::emitter::Creator;
use emitree::{Emitter, Error, Event, EventName, Result, RunContext, Runnable};
use serde::{Deserialize, Serialize};

pub(crate) struct Tools {
    pub(crate) count: CountTool,
    pub(crate) find: FindTool,
    pub(crate) frequent: FrequentTool,
}

impl Tools {
    pub(crate) fn new() -> Result<Self> {
        let split = Arc::new(SplitTool { emitter: emitter("split")?, read: ReadTool::new()? });
        Ok(Self {
            count: CountTool { emitter: emitter("count")?, split: split.clone(), read: ReadTool::new()? },
            find: FindTool { emitter: emitter("find")?, read: ReadTool::new()? },
            frequent: FrequentTool { emitter: emitter("frequent_terms")?, split },
        })
    }
}

/// Makes the emitter of a tool: it is below the root, and its namespace is `tool.<name>`.
fn emitter(name: &'static str) -> Result<Emitter> {
    Ok(Emitter::root().child_builder(["tool", name]).creator(Creator::new("Tool", name)).build()?)
}

// --- read_file and decode: from a path to text ---

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ReadFile {
    pub(crate) path: String,
}

/// A text file. Events contain the path and the length but not the text, because serde skips that field.
#[derive(Serialize, Deserialize)]
pub(crate) struct Document {
    path: String,
    chars: usize,
    #[serde(skip)]
    text: String,
    /// The bytes of the file, for counting and searching lines.
    #[serde(skip)]
    data: Vec<u8>,
}

/// An event that the tool emits in addition to the lifecycle events of its run.
#[derive(Serialize)]
pub(crate) struct BytesRead {
    pub(crate) path: String,
    pub(crate) bytes: usize,
}

impl Event for BytesRead {
    const NAME: EventName = EventName::new("read");
}

struct ReadTool {
    emitter: Emitter,
    decode: DecodeTool,
}

impl ReadTool {
    fn new() -> Result<Self> {
        Ok(Self { emitter: emitter("read_file")?, decode: DecodeTool { emitter: emitter("decode")? } })
    }
}

impl Runnable for ReadTool {
    type Input = ReadFile;
    type Output = Document;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, input: &ReadFile, ctx: &RunContext) -> Result<Document> {
        let path = &input.path;
        let data = tokio::fs::read(path).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::new(format!("not found: {path}")),
            _ => Error::from(error).message(format!("cannot read {path}")),
        })?;
        ctx.emitter().emit_event(&mut BytesRead { path: path.clone(), bytes: data.len() }).await?;
        self.decode.run(Bytes { path: path.clone(), bytes: data.len(), data }).await
    }
}

#[derive(Serialize, Deserialize)]
struct Bytes {
    path: String,
    bytes: usize,
    #[serde(skip)]
    data: Vec<u8>,
}

struct DecodeTool {
    emitter: Emitter,
}

impl Runnable for DecodeTool {
    type Input = Bytes;
    type Output = Document;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    /// Leaves out bytes that are not UTF-8, as `wc` does.
    async fn execute(&self, input: &Bytes, _: &RunContext) -> Result<Document> {
        let text: String = input.data.utf8_chunks().map(|chunk| chunk.valid()).collect();
        Ok(Document { path: input.path.clone(), chars: text.chars().count(), text, data: input.data.clone() })
    }
}

// --- split: from a path to words ---

#[derive(Serialize, Deserialize)]
pub(crate) struct Words {
    words: usize,
    #[serde(skip)]
    list: Vec<String>,
}

pub(crate) struct SplitTool {
    emitter: Emitter,
    read: ReadTool,
}

impl Runnable for SplitTool {
    type Input = ReadFile;
    type Output = Words;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    /// Splits words as `wc -w` does in a UTF-8 locale: at white space, without words that have no printable character.
    async fn execute(&self, input: &ReadFile, _: &RunContext) -> Result<Words> {
        let document = self.read.run(input.clone()).await?;
        let words = document.text.split(is_space);
        let list: Vec<_> = words.filter(|word| word.contains(|c: char| !c.is_control())).map(str::to_owned).collect();
        Ok(Words { words: list.len(), list })
    }
}

/// Returns `true` for the white space of the C library, with the additions of `wc`.
fn is_space(c: char) -> bool {
    match c {
        '\u{85}' | '\u{2028}' | '\u{2029}' => false,
        '\u{2060}' => true,
        _ => c.is_whitespace(),
    }
}

// --- count, find, frequent_terms: the tools that the assistant runs ---

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Words,
    Lines,
}

impl What {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Lines => "lines",
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) path: String,
    pub(crate) what: What,
}

pub(crate) struct CountTool {
    emitter: Emitter,
    split: Arc<SplitTool>,
    read: ReadTool,
}

impl Runnable for CountTool {
    type Input = Count;
    type Output = usize;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, input: &Count, _: &RunContext) -> Result<usize> {
        let file = ReadFile { path: input.path.clone() };
        Ok(match input.what {
            What::Words => self.split.run(file).await?.words,
            What::Lines => self.read.run(file).await?.data.iter().filter(|byte| **byte == b'\n').count(),
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Find {
    pub(crate) path: String,
    pub(crate) needle: String,
}

/// The number of matching lines, as `grep -cF` counts them, and the line numbers of the first matches.
#[derive(Serialize, Deserialize)]
pub(crate) struct Found {
    pub(crate) count: usize,
    first: Vec<usize>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = self.first.iter().map(usize::to_string).collect();
        f.write_str(&shown.join(", "))?;
        f.write_str(if self.count > self.first.len() { ", …" } else { "" })
    }
}

pub(crate) struct FindTool {
    emitter: Emitter,
    read: ReadTool,
}

impl Runnable for FindTool {
    type Input = Find;
    type Output = Found;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, input: &Find, _: &RunContext) -> Result<Found> {
        let document = self.read.run(ReadFile { path: input.path.clone() }).await?;
        let hits: Vec<usize> = lines(&document.data)
            .zip(1..)
            .filter(|(line, _)| line.windows(input.needle.len()).any(|part| part == input.needle.as_bytes()))
            .map(|(_, at)| at)
            .collect();
        Ok(Found { count: hits.len(), first: hits.into_iter().take(10).collect() })
    }
}

/// Splits lines as `grep` does: at newlines, and in a binary file also at zero bytes.
fn lines(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let binary = data.contains(&0);
    let data = data.strip_suffix(b"\n").unwrap_or(data);
    let lines = data.split(move |byte| *byte == b'\n' || (binary && *byte == 0));
    lines.take(if data.is_empty() { 0 } else { usize::MAX })
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Frequent {
    pub(crate) path: String,
    pub(crate) top: usize,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Terms(Vec<(String, usize)>);

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms: Vec<_> = self.0.iter().map(|(term, count)| format!("{term} ({count})")).collect();
        f.write_str(&terms.join(", "))
    }
}

pub(crate) struct FrequentTool {
    emitter: Emitter,
    split: Arc<SplitTool>,
}

impl Runnable for FrequentTool {
    type Input = Frequent;
    type Output = Terms;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    /// Counts terms: words in lower case, without surrounding punctuation, of four letters or more.
    async fn execute(&self, input: &Frequent, _: &RunContext) -> Result<Terms> {
        let words = self.split.run(ReadFile { path: input.path.clone() }).await?;
        let mut counts = HashMap::<String, usize>::new();
        for word in &words.list {
            let term = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
            if term.chars().count() >= 4 {
                *counts.entry(term).or_default() += 1;
            }
        }
        let mut terms: Vec<_> = counts.into_iter().collect();
        terms.sort_by(|(a, n), (b, m)| m.cmp(n).then_with(|| a.cmp(b)));
        terms.truncate(input.top);
        Ok(Terms(terms))
    }
}
