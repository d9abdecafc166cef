//! The assistant: parses a question, and runs a tool for each file.

use std::fmt;

use emitree::emitter::Creator;
use emitree::{Emitter, Error, Result, RunContext, Runnable};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use crate::tools::{Count, Find, Frequent, Tools, What};

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) question: String,
    pub(crate) files: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) lines: Vec<String>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

pub(crate) struct Desk {
    emitter: Emitter,
    tools: Tools,
}

impl Desk {
    pub(crate) fn new() -> Result<Self> {
        let creator = Creator::new("Assistant", "Desk");
        let emitter = Emitter::root().child_builder("assistant.desk").creator(creator).build()?;
        Ok(Self { emitter, tools: Tools::new()? })
    }

    /// Runs the tool for one task on one file. Returns a line of the answer.
    async fn look_up(&self, path: &str, task: &Task) -> Result<String> {
        let path = path.to_owned();
        Ok(match task {
            Task::Count(what) => {
                let count = self.tools.count.run(Count { path: path.clone(), what: *what }).await?;
                format!("{path}: {count} {}", what.as_str())
            }
            Task::Find(needle) => {
                let found = self.tools.find.run(Find { path: path.clone(), needle: needle.clone() }).await?;
                format!("{path}: {} lines mention {needle:?}: {found}", found.count)
            }
            Task::Frequent(top) => {
                let terms = self.tools.frequent.run(Frequent { path: path.clone(), top: *top }).await?;
                format!("{path}: {terms}")
            }
        })
    }
}

impl Runnable for Desk {
    type Input = Question;
    type Output = Answer;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, input: &Question, _: &RunContext) -> Result<Answer> {
        let tasks = Task::parse(&input.question)?;
        let pairs = input.files.iter().flat_map(|path| tasks.iter().map(move |task| (path, task)));
        // All lookups run concurrently, each as a run nested in this run.
        let answers = join_all(pairs.map(|(path, task)| self.look_up(path, task))).await;
        Ok(Answer { lines: answers.into_iter().collect::<Result<_>>()? })
    }
}

/// A task that a question asks for.
enum Task {
    Count(What),
    Find(String),
    Frequent(usize),
}

impl Task {
    fn parse(question: &str) -> Result<Vec<Self>> {
        // Only ASCII letters change, so that byte positions are the same in both texts.
        let lower = question.to_ascii_lowercase();
        if let Some(verb) = ["mention", "contain"].into_iter().find(|verb| lower.contains(verb)) {
            let rest = lower.find(verb).map_or("", |at| &question[at + verb.len()..]);
            return Ok(vec![Self::Find(needle(rest)?)]);
        }
        if lower.contains("frequent") || lower.contains("most common") {
            let top = lower.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(5);
            return Ok(vec![Self::Frequent(top)]);
        }
        let asked = [What::Words, What::Lines].into_iter().filter(|what| lower.contains(what.as_str()));
        let tasks: Vec<_> = asked.map(Self::Count).collect();
        if tasks.is_empty() {
            return Err(Error::new(format!(
                "cannot answer {question:?}; ask how many words or lines there are, which lines mention something, or \
                 for the most frequent terms"
            )));
        }
        Ok(tasks)
    }
}

/// Returns the text after the verb: in quotes, or up to the question mark.
fn needle(rest: &str) -> Result<String> {
    let rest = rest.strip_prefix('s').unwrap_or(rest).trim();
    let quoted = ['"', '\'', '`'].into_iter().find_map(|quote| rest.strip_prefix(quote)?.split(quote).next());
    let needle = quoted.unwrap_or_else(|| rest.trim_end_matches('?').trim_end());
    if needle.is_empty() { Err(Error::new("which lines mention what?")) } else { Ok(needle.to_owned()) }
}
