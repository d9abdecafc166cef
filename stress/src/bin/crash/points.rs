//! The points of a process: before and after each commit, and before and after each effect.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emitree::middleware::store::{Append, Entry, EntryHead, EntryStatus, Filter, Revision, Store, StoreError, StoreId};
use emitree_stores::SqliteStore;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

/// The log of a process, which stops it at a point.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    /// The number of points before the one at which the process stops.
    left: Mutex<Option<usize>>,
}

impl Log {
    pub(crate) fn open(path: &Path, stop: Option<usize>) -> io::Result<Arc<Self>> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Arc::new(Self { file, left: Mutex::new(stop) }))
    }

    /// Adds a line, such as `["model","main","2"]`.
    pub(crate) fn add(&self, words: &[&str]) {
        // One call of `write` for each line, so that a kill leaves whole lines.
        let line = format!("{}\n", json!(words));
        (&self.file).write_all(line.as_bytes()).expect("the log can be written");
    }

    /// Adds a line for a point. If the process has to stop here, says so, and stops the thread of the runtime for ever.
    pub(crate) fn point(&self, words: &[&str]) {
        self.add(words);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        match *left {
            None => {}
            Some(0) => {
                println!("at a point");
                loop {
                    std::thread::park();
                }
            }
            Some(n) => *left = Some(n - 1),
        }
    }
}

/// A store whose commits are points. It may swallow one kind of commit: it says that the commit is stored, and stores it
/// only with the next one.
#[derive(Clone, Debug)]
pub(crate) struct Points {
    id: StoreId,
    store: SqliteStore,
    log: Arc<Log>,
    swallowed: Option<String>,
    seen: Arc<Mutex<Seen>>,
}

/// The part of the entry that tells one kind of commit from another.
#[derive(Debug, Default)]
struct Seen {
    is_held: bool,
    has_ended: bool,
    /// The number of calls of each turn that have no result yet, by its place.
    open: BTreeMap<String, usize>,
    /// The places of the calls with questions.
    asked: BTreeSet<String>,
    /// The commit that was swallowed.
    pending: Option<Append>,
}

impl Points {
    pub(crate) fn new(store: SqliteStore, log: &Arc<Log>, swallowed: Option<String>) -> Self {
        Self { id: StoreId::new(), store, log: Arc::clone(log), swallowed, seen: Arc::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a commit together with the one that was swallowed before it.
    async fn store(&self, append: &Append, kinds: &[String]) -> Result<Revision, StoreError> {
        let mut append = append.clone();
        let swallowed = self.seen().pending.take();
        if let Some(before) = swallowed {
            append.head.revision = before.head.revision;
            if !append.replaces {
                append.parts.splice(..0, before.parts);
                append.replaces = before.replaces;
            }
        }
        let is_swallowed = |commit: &String| commit.split(' ').next() == self.swallowed.as_deref();
        if kinds.iter().any(is_swallowed) {
            let revision = Revision::new(append.head.revision.get() + 1);
            self.seen().pending = Some(append);
            return Ok(revision);
        }
        self.store.append(&append).await
    }
}

impl Store for Points {
    fn store_id(&self) -> StoreId {
        self.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            let found = self.store.load(id).await?;
            let mut seen = Seen::default();
            if let Some(Entry { head, parts, .. }) = &found {
                let found = seen.kinds(head, parts.iter().map(|part| &**part));
                self.log.add(&words("found", &found));
            }
            *self.seen() = seen;
            Ok(found)
        })
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            let kinds = self.seen().kinds(&append.head, append.parts.iter().map(|part| &**part));
            self.log.point(&words("before", &kinds));
            let revision = self.store(append, &kinds).await?;
            self.log.point(&words("after", &kinds));
            Ok(revision)
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.store.list(filter)
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        self.store.remove(id, after)
    }
}

impl Seen {
    /// Takes over a commit, and returns its kinds, each with the place that it is about, such as `began order/1/0`.
    fn kinds<'a>(&mut self, head: &EntryHead, parts: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
        let mut kinds = Vec::new();
        let is_held = head.holder.is_some();
        let has_ended = head.status == EntryStatus::Ended;
        if is_held && !self.is_held {
            kinds.push("claim".to_owned());
        }
        for part in parts {
            let text = std::str::from_utf8(part).expect("records are text");
            for record in text.lines() {
                self.record(&serde_json::from_str(record).expect("a record is JSON"), &mut kinds);
            }
        }
        if has_ended && !self.has_ended {
            kinds.push("end".to_owned());
        }
        if !is_held && self.is_held {
            kinds.push("release".to_owned());
        }
        if kinds.is_empty() {
            kinds.push("other".to_owned());
        }
        (self.is_held, self.has_ended) = (is_held, has_ended);
        kinds
    }

    fn record(&mut self, record: &Value, kinds: &mut Vec<String>) {
        let session = record["in"].as_str().unwrap_or("order");
        let turn = |record: &Value| format!("{session}/{}", record["turn"]);
        if array(&record["said"]["messages"]).iter().any(|message| message["role"] == "user") {
            kinds.push(format!("input {session}"));
        }
        if let Some(asks) = record.get("asks") {
            kinds.push(format!("asking {}", turn(asks)));
        }
        if let Some(response) = record.get("turn") {
            let calls = array(&response["response"]["parts"]).iter().filter(|part| part["type"] == "tool_call").count();
            self.open.insert(turn(response), calls);
            kinds.push(format!("response {}", turn(response)));
        }
        if let Some(call) = record.get("call") {
            let place = format!("{}/{}", turn(call), call["call"]);
            if call["fact"].get("begun").is_some() {
                kinds.push(format!("began {place}"));
            }
            if call["fact"].get("asked").is_some() && self.asked.insert(place.clone()) {
                kinds.push(format!("question {place}"));
            }
            if call["fact"].get("settled").is_some() {
                self.open.entry(turn(call)).and_modify(|open| *open -= 1);
                kinds.push(format!("settled {place}"));
            }
        }
        // A turn may end with open calls, and ends again when it was resumed.
        if let Some(placed) = record.get("placed")
            && self.open.get(&turn(placed)) == Some(&0)
        {
            kinds.push(format!("turn {}", turn(placed)));
        }
        // The id is the key of the call, with a hash.
        if let Some(id) = record["answered"]["id"].as_str() {
            let place = id.rsplitn(3, '/').last().unwrap_or_default();
            kinds.push(format!("answer {place}"));
        }
    }
}

fn words<'a>(first: &'a str, others: &'a [String]) -> Vec<&'a str> {
    [first].into_iter().chain(others.iter().map(String::as_str)).collect()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
