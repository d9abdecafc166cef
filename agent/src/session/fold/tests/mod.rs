//! Random scripts, and forged records, against the fold.

mod cases;
mod forged;
mod scripts;

use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;

use crate::message::history::check;
use crate::session::fold::{Conversation, Fault};
use crate::session::record::{Line, Record};
use crate::{Message, ToolCall};

/// Random numbers that are the same for a seed.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).expect("less than `n`")
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn small<T: TryFrom<usize>>(&mut self, n: usize) -> T
    where
        T::Error: std::fmt::Debug,
    {
        T::try_from(self.below(n)).expect("a small number")
    }

    fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.0, self.below(usize::MAX) as u64)
    }
}

/// Stands for a process and its store: the fold, and the lines of JSON, of which the first `stored` are committed.
#[derive(Clone)]
struct Log {
    fold: Conversation,
    lines: Vec<String>,
    stored: usize,
}

impl Log {
    fn of(fold: Conversation) -> Self {
        let lines = vec![json_of(&Record::Session(Box::new(fold.clone())).into())];
        Self { fold, lines, stored: 0 }
    }

    fn push(&mut self, line: impl Into<Line>) -> Result<(), Fault> {
        let line = line.into();
        let json = json_of(&line);
        self.fold.apply(line)?;
        self.lines.push(json);
        Ok(())
    }

    fn commit(&mut self) {
        self.stored = self.lines.len();
    }

    fn read(lines: &[String]) -> Conversation {
        Conversation::read(lines.iter().map(String::as_str)).expect("this code has written it")
    }

    /// Another process reads the first lines, and finds that the runs are dead.
    fn killed(&self, lines: usize) -> Self {
        let lines = self.lines[..lines.max(self.stored).max(1)].to_vec();
        let mut log = Self { fold: Self::read(&lines), stored: lines.len(), lines };
        for (session, run) in dead(&log.fold) {
            log.push(Line { session, record: Record::Over { run, returned: false } }).expect("it is not over");
        }
        log
    }

    /// Another process has changed the session: its records count, and inputs that were not stored come behind.
    fn reload(&mut self, lines: &[String]) {
        let unstored = self.lines[self.stored..].iter().map(|line| serde_json::from_str(line).expect("a line"));
        let mine: Vec<Line> = unstored.collect();
        (self.fold, self.lines, self.stored) = (Self::read(lines), lines.to_vec(), lines.len());
        for Line { record, .. } in mine.into_iter().filter(|line| line.record.is_input()) {
            let record = match record {
                Record::Sent { id, sent, .. } => Record::Sent { number: self.fold.sent, id, sent },
                record => record,
            };
            // An input whose commit had an unknown outcome is refused if it is known.
            _ = self.push(record);
        }
    }

    /// Replaces all lines by one.
    fn snapshot(&mut self) {
        *self = Self { stored: 1, ..Self::of(self.fold.clone()) };
    }
}

fn json_of(line: &Line) -> String {
    serde_json::to_string(line).expect("JSON")
}

fn dead(fold: &Conversation) -> Vec<(Option<String>, u32)> {
    let below =
        fold.below.iter().flat_map(|(id, session)| session.dead().into_iter().map(|run| (Some(id.clone()), run)));
    below.chain(fold.dead().into_iter().map(|run| (None, run))).collect()
}

/// Checks that a session, and those below it, are valid for a provider, and could be read.
fn assert_valid(fold: &Conversation, after: &dyn std::fmt::Debug) {
    for session in fold.below.values().chain([fold]) {
        check(&session.messages).unwrap_or_else(|fault| panic!("{after:?}: {fault}"));
    }
    if let Err(fault) = fold.clone().checked() {
        panic!("{after:?}: {fault}");
    }
}

fn call(id: &str, name: &str, arguments: Value) -> ToolCall {
    ToolCall::new(id, name, arguments)
}

fn response(text: &str, calls: impl IntoIterator<Item = ToolCall>) -> Arc<Message> {
    Arc::new(calls.into_iter().fold(Message::assistant(text), Message::with_call))
}

fn user(text: impl Into<String>) -> Arc<Message> {
    Arc::new(Message::user(text))
}
