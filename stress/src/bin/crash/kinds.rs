//! The kinds of commits.

use std::collections::{BTreeMap, BTreeSet};

use emitree::middleware::store::{Append, EntryHead, EntryStatus};
use serde_json::Value;

/// The part of an entry that tells one kind of commit from another.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    id: String,
    /// The name of the holder.
    holder: Option<String>,
    has_ended: bool,
    /// The number of calls of each turn that have no result yet, by its place.
    open: BTreeMap<String, usize>,
    /// The places of the calls with questions.
    asked: BTreeSet<String>,
    /// The commit that was swallowed.
    pub(crate) pending: Option<Append>,
}

impl Seen {
    pub(crate) fn new(id: &str) -> Self {
        Self { id: id.to_owned(), ..Self::default() }
    }

    /// Takes over a commit, and returns its kinds, each with the place that it is about, such as `began order/1/0`.
    pub(crate) fn kinds<'a>(
        &mut self,
        head: &EntryHead,
        holder: Option<String>,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Vec<String> {
        let mut kinds = Vec::new();
        let id = self.id.clone();
        let has_ended = head.status == EntryStatus::Ended;
        if holder.is_some() && holder != self.holder {
            kinds.push(format!("claim {id}"));
        }
        let mut has_records = false;
        for part in parts {
            has_records = true;
            let text = std::str::from_utf8(part).expect("records are text");
            for record in text.lines() {
                let record = serde_json::from_str(record).expect("a record is JSON");
                if head.kind == "job" {
                    of_job(&id, &record, &mut kinds);
                } else {
                    self.record(&record, &mut kinds);
                }
            }
        }
        if has_ended && !self.has_ended {
            kinds.push(format!("end {id}"));
        }
        if holder.is_none() && self.holder.is_some() {
            kinds.push(format!("release {id}"));
        }
        if kinds.is_empty() {
            let kind = match (has_records, holder.is_some()) {
                (true, _) => "other",
                (false, true) => "renewal",
                (false, false) => "status",
            };
            kinds.push(format!("{kind} {id}"));
        }
        (self.holder, self.has_ended) = (holder, has_ended);
        kinds
    }

    /// Adds the kinds of a record of a session.
    fn record(&mut self, record: &Value, kinds: &mut Vec<String>) {
        let id = self.id.clone();
        let session = record["in"].as_str().unwrap_or(&id);
        let turn = |record: &Value| format!("{session}/{}", record["turn"]);
        if array(&record["said"]["messages"]).iter().any(|message| message["role"] == "user") {
            kinds.push(format!("input {session}"));
        }
        let sent = array(&record["session"]["inbox"]).iter().chain(record.get("sent"));
        kinds.extend(sent.map(|sent| format!("sent {session}/{}", text_of(&sent["sent"]))));
        if record.get("began").is_some() {
            kinds.push(format!("run {session}"));
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
                self.open.entry(turn(call)).and_modify(|open| *open = open.saturating_sub(1));
                kinds.push(format!("settled {place}"));
            }
        }
        // A turn may end with open calls, and ends again when it was resumed.
        if let Some(placed) = record.get("placed")
            && self.open.get(&turn(placed)) == Some(&0)
        {
            kinds.push(format!("turn {}", turn(placed)));
        }
        if let Some(id) = record["answered"]["id"].as_str() {
            kinds.push(format!("answer {}", place_of(id)));
        }
    }
}

/// Adds the kinds of a record of a job.
fn of_job(id: &str, record: &Value, kinds: &mut Vec<String>) {
    let of_keys = [("began", "job-began"), ("waiting", "job-waiting"), ("ended", "job-ended"), ("sleeps", "job-sleep")];
    for (field, kind) in of_keys {
        kinds.extend(record[field]["key"].as_str().map(|key| format!("{kind} {key}")));
    }
    for (field, kind) in [("input", "job-input"), ("output", "job-output")] {
        kinds.extend(record.get(field).map(|_| format!("{kind} {id}")));
    }
    for question in array(&record["questions"]) {
        let kind = if question["kind"] == "durable.began" { "job-unsure" } else { "job-question" };
        kinds.extend(question["id"].as_str().map(|id| format!("{kind} {id}")));
    }
    let answers = record["answered"].as_object().into_iter().flat_map(|answers| answers.keys());
    kinds.extend(answers.map(|answer| format!("job-answer {answer}")));
}

/// Returns the place of the call that a question is about: its id is the key of the call, with a hash.
fn place_of(question: &str) -> &str {
    question.rsplitn(3, '/').last().unwrap_or_default()
}

/// Returns the text of a message that was sent, such as `{"steer":{"role":"user",…}}`.
fn text_of(sent: &Value) -> &str {
    let message = sent.as_object().and_then(|sent| sent.values().next());
    message.and_then(|message| message["parts"][0]["content"].as_str()).unwrap_or_default()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
