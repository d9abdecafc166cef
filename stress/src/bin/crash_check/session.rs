//! The stored session of a run, and the effects that its history tells of.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::log::{Log, is_idempotent};
use crate::{Checked, ID};

/// All effects. The effects of `note` are idempotent. The job has the last four.
const EFFECTS: [&str; 13] = [
    "note a",
    "pay b",
    "note c",
    "note d",
    "pay e",
    "transfer f",
    "note g",
    "pay h",
    "note i",
    "charge j",
    "note l",
    "note m",
    "ship n",
];
pub(crate) const LOST: &str = "it may have had effects";

/// A turn, with the results of its calls.
struct Turn {
    response: Value,
    results: Vec<Value>,
    /// The position of the response in the history, once it is there.
    at: Option<usize>,
}

/// The history that records make. No attempt is made again, so nothing is undone.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) messages: Vec<Value>,
    /// The messages that wait, by their numbers.
    pub(crate) inbox: BTreeMap<u64, Value>,
    turn: Option<Turn>,
}

impl History {
    fn record(&mut self, record: &Value) -> Checked<()> {
        if let Some(whole) = record.get("session") {
            self.messages = array(&whole["messages"]).to_vec();
            array(&whole["inbox"]).iter().for_each(|sent| self.send(sent));
        }
        record.get("sent").into_iter().for_each(|sent| self.send(sent));
        if let Some(taken) = record.get("taken") {
            let numbers = array(&taken["numbers"]).iter().filter_map(Value::as_u64);
            let sent: Vec<_> = numbers.filter_map(|number| self.inbox.remove(&number)).collect();
            self.messages.extend(sent);
        }
        self.messages.extend(array(&record["said"]["messages"]).iter().cloned());
        if let Some(response) = record["turn"].get("response") {
            let calls = array(&response["parts"]).iter().filter(|part| part["type"] == "tool_call");
            let results = calls.map(|call| result_of(call, &json!("not executed"))).collect();
            self.turn = Some(Turn { response: response.clone(), results, at: None });
        }
        if let (Some(settled), Some(turn)) = (record["call"]["fact"].get("settled"), &mut self.turn) {
            let position = record["call"]["call"].as_u64().and_then(|call| usize::try_from(call).ok());
            let calls = array(&turn.response["parts"]).iter().filter(|part| part["type"] == "tool_call");
            let (position, call) =
                calls.enumerate().find(|(at, _)| Some(*at) == position).ok_or("a result has no call")?;
            turn.results[position] = result_of(call, &settled["content"]);
            if let Some(at) = turn.at {
                self.messages[at + 1 + position] = turn.results[position].clone();
            }
        }
        let ends = record.get("placed").is_some() || record.get("over").is_some() || record.get("left").is_some();
        if let Some(turn) = self.turn.as_mut().filter(|turn| ends && turn.at.is_none()) {
            turn.at = Some(self.messages.len());
            self.messages.push(turn.response.clone());
            self.messages.extend(turn.results.iter().cloned());
        }
        Ok(())
    }

    /// Adds a message to the inbox, such as `{"number":1,"id":…,"sent":{"steer":{"role":"user",…}}}`.
    fn send(&mut self, sent: &Value) {
        let message = sent["sent"].as_object().and_then(|sent| sent.values().next());
        self.inbox.extend(sent["number"].as_u64().zip(message.cloned()));
    }
}

fn result_of(call: &Value, content: &Value) -> Value {
    json!({"role": "tool", "parts": [{"type": "tool_call_response", "id": call["id"], "response": content}]})
}

/// Reads the head and the records of an entry.
pub(crate) fn read_records(path: &Path, id: &str) -> Checked<(Value, Vec<Value>)> {
    let database = Connection::open(path)?;
    let of_entry = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    let found = database.query_row("SELECT number, head FROM entry WHERE id = ?", [id], of_entry);
    let (entry, head) = found.map_err(|error| format!("the entry `{id}` cannot be read: {error}"))?;
    let mut parts = database.prepare("SELECT bytes FROM part WHERE entry = ? ORDER BY number")?;
    let mut records = Vec::new();
    for part in parts.query_map([entry], |row| row.get::<_, Vec<u8>>(0))? {
        for record in String::from_utf8(part?)?.lines() {
            records.push(serde_json::from_str(record)?);
        }
    }
    Ok((serde_json::from_str(&head)?, records))
}

/// Checks that an entry has ended, and that nobody holds it.
pub(crate) fn check_end(id: &str, head: &Value, log: &mut Log) {
    let is_over = head["status"] == "ended" && head["holder"].is_null() && head["questions"].is_null();
    log.check(is_over, format!("{id} has not ended: {head}"));
}

/// Reads the session, and returns the history that its records make.
pub(crate) fn read_session(path: &Path, log: &mut Log) -> Checked<History> {
    let (head, records) = read_records(path, ID)?;
    check_end(ID, &head, log);
    let mut history = History::default();
    // Others are about the sub-agent.
    for record in records.iter().filter(|record| record.get("in").is_none()) {
        history.record(record)?;
    }
    Ok(history)
}

/// Returns the results of all effects, by their names.
pub(crate) fn results(messages: &[Value], log: &mut Log) -> BTreeMap<String, String> {
    let mut results = BTreeMap::new();
    let mut rest = messages;
    while let [message, after @ ..] = rest {
        rest = after;
        let calls = array(&message["parts"]).iter().filter(|part| part["type"] == "tool_call");
        for call in calls {
            let Some((result, after)) = rest.split_first() else { break };
            rest = after;
            let result = &result["parts"][0];
            log.check(
                result["type"] == "tool_call_response" && result["id"] == call["id"],
                format!("{call} has no result"),
            );
            let name = text(&call["name"]);
            let response = text(&result["response"]);
            if name == "helper" {
                let of_helper = ["note d", "pay e"].map(str::to_owned).into_iter();
                results.extend(of_helper.zip(response.split("; ").map(str::to_owned)));
            } else {
                results.insert(format!("{name} {}", text(&call["arguments"]["text"])), response.to_owned());
            }
        }
        let is_tool = rest.first().is_some_and(|next| next["role"] == "tool");
        log.check(!is_tool, "there is a result without a call");
    }
    let last = messages.last().map(|last| (&last["role"], &last["parts"][0]["type"]));
    log.check(last.is_some_and(|last| last.0 == "assistant" && last.1 == "text"), "the run has no answer");
    results
}

/// Checks that each message that was sent is there at most once, and in the order of its sender, and each one that a
/// process knows to be stored exactly once.
pub(crate) fn check_messages(history: &History, log: &mut Log) {
    let of_user = history.messages.iter().filter(|message| message["role"] == "user");
    let texts: Vec<_> = of_user.map(|message| text(&message["parts"][0]["content"])).collect();
    let (first, texts) = texts.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
    log.check(first == "Work.", format!("the history begins with {first:?}, and not with the input"));
    log.check(history.inbox.is_empty(), format!("messages wait after the end: {:?}", history.inbox));
    let sent: Vec<_> = log.sent.values().cloned().collect();
    for text in texts {
        let is_known = sent.iter().flatten().any(|sent| sent == text);
        log.check(is_known, format!("the message {text:?} was not sent"));
    }
    for text in sent.iter().flatten() {
        let times = texts.iter().filter(|found| *found == text).count();
        let is_saved = log.saved.contains(text);
        log.check(times <= 1, format!("the message {text} is {times} times in the history"));
        log.check(times > 0 || !is_saved, format!("the message {text} was stored, and is lost"));
    }
    for sent in sent {
        for kind in ["steer", "follow"] {
            let sent: Vec<_> = sent.iter().filter(|text| text.starts_with(kind)).collect();
            let positions: Vec<_> =
                sent.iter().filter_map(|sent| texts.iter().position(|text| text == *sent)).collect();
            log.check(positions.is_sorted(), format!("{sent:?} are not in their order: {texts:?}"));
        }
    }
}

pub(crate) fn check_effects(effects: &str, results: &BTreeMap<String, String>, log: &mut Log) {
    // A call that says so was made, unless a process was killed directly before.
    let is_lost = |effect: &&&str| results.get(**effect).is_some_and(|result| result.ends_with(LOST));
    let uncalled = EFFECTS.iter().filter(is_lost).filter(|effect| !log.calls.contains_key(**effect)).count();
    log.check(uncalled <= log.uncalled.len(), format!("{uncalled} calls may have had effects, but were not made"));
    for effect in EFFECTS {
        let keys: Vec<_> = effects.lines().filter_map(|line| line.strip_suffix(&format!(" {effect}"))).collect();
        let result = results.get(effect).map(String::as_str).unwrap_or_default();
        let is_idempotent = is_idempotent(effect);
        let is_lost = result.ends_with(LOST);
        log.check(keys.len() <= 1, format!("{effect} has happened {} times", keys.len()));
        log.check(!keys.is_empty() || (is_lost && !is_idempotent), format!("{effect} has not happened: {result:?}"));
        log.check(result == effect || (is_lost && !is_idempotent), format!("{effect} has the result {result:?}"));
        let first = log.keys.get(effect).cloned();
        let is_same = keys.iter().all(|key| Some(*key) == first.as_deref());
        log.check(is_same, format!("{effect} has the keys {keys:?}, and was called with {first:?}"));
    }
    log.check(effects.lines().count() <= EFFECTS.len(), "there are unknown effects");
}

pub(crate) fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
