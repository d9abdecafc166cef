//! Checks the runs of `crash`, whose processes were killed.
//!
//! ```text
//! cargo run -p emitree-stress --bin crash_check -- FOLDER
//! cargo run -p emitree-stress --bin crash_check -- FOLDER --all-points
//! ```
//!
//! `crash` starts this program, which has no code of the library: it reads the tables, the JSON of the records, the file
//! of effects and the log of each run by itself. With `--all-points`, it also checks that a process was killed at each
//! kind of point, and often enough while a call was open.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use rusqlite::Connection;
use serde_json::{Value, json};

#[path = "../../../examples/shared/help.rs"]
mod help;

/// The session of the agent.
const ID: &str = "order";
/// All effects, in the order of their calls. The effects of `note` are idempotent.
const EFFECTS: [&str; 9] = ["note a", "pay b", "note c", "note d", "pay e", "transfer f", "note g", "pay h", "note i"];
/// The responses of the model of the agent and of its sub-agent.
const TURNS: usize = 6;
/// The kinds of points.
const POINTS: [&str; 11] =
    ["claim", "input", "response", "began", "effect", "settled", "turn", "question", "answer", "end", "release"];
const PHASES: [&str; 5] = [
    "before the response",
    "from the response to began",
    "from began to the effect",
    "from the effect to settled",
    "after",
];
/// The number of kills that each phase of an open call must have.
const KILLS_BY_PHASE: usize = 20;
const LOST: &str = "it may have had effects";

type Checked<T> = Result<T, Box<dyn Error>>;

/// The kills of all runs.
#[derive(Default)]
struct Kills {
    by_phase: [usize; PHASES.len()],
    points: BTreeSet<String>,
}

/// A run, as its log tells it.
#[derive(Default)]
struct Log {
    /// The commits that the store has acknowledged, or that a process has found in it.
    stored: BTreeSet<String>,
    /// The first key of each effect.
    keys: BTreeMap<String, String>,
    calls: BTreeMap<String, usize>,
    /// The places of the calls that the last commit says have begun, and that were not made yet.
    begins: BTreeSet<String>,
    /// The places of the calls before which a process was killed, directly after they were stored as begun.
    uncalled: BTreeSet<String>,
    models: usize,
    kills: usize,
    phase: usize,
    faults: Vec<String>,
}

impl Log {
    fn check(&mut self, is_right: bool, fault: impl Into<String>) {
        if !is_right {
            self.faults.push(fault.into());
        }
    }

    fn has_stored(&self, commit: &str) -> bool {
        self.stored.contains(commit)
    }

    fn line(&mut self, line: &[&str]) {
        match *line {
            ["model", name, turn] => self.model(name, turn),
            ["call", effect, key] => self.call(effect, key),
            ["found", ref commits @ ..] => self.stored.extend(commits.iter().map(|commit| (*commit).to_owned())),
            ["before", ref commits @ ..] => {
                let begun = commits.iter().filter_map(|commit| commit.strip_prefix("began "));
                self.begins = begun.map(str::to_owned).collect();
                commits.iter().for_each(|commit| self.before(commit));
            }
            ["after", ref commits @ ..] => commits.iter().for_each(|commit| self.after(commit)),
            _ => {}
        }
    }

    fn model(&mut self, name: &str, turn: &str) {
        self.models += 1;
        self.phase = 0;
        let is_response = |commit: &String| {
            let session = commit.strip_prefix("response ").and_then(|place| place.strip_suffix(&format!("/{turn}")));
            session.is_some_and(|session| session == ID && name == "main" || session.ends_with(&format!("/{name}")))
        };
        self.check(self.has_stored("input order"), "the model was called before the input was stored");
        self.check(!self.has_stored("end"), "the model was called after the run had ended");
        self.check(
            !self.stored.iter().any(is_response),
            format!("{name} was asked again for the stored response {turn}"),
        );
    }

    fn call(&mut self, effect: &str, key: &str) {
        self.phase = 2;
        self.check(!self.has_stored("end"), format!("{effect} was called after the run had ended"));
        let place = key.rsplit_once('/').map_or(key, |(place, _)| place);
        self.check(
            self.has_stored(&format!("began {place}")),
            format!("{effect} was called before it was stored as begun"),
        );
        self.check(
            !self.has_stored(&format!("settled {place}")),
            format!("{effect} was called after its result was stored"),
        );
        self.begins.remove(place);
        let is_approved = !effect.starts_with("transfer") || self.has_stored(&format!("answer {place}"));
        self.check(is_approved, format!("{effect} was called before it was approved"));
        let first = self.keys.entry(effect.to_owned()).or_insert_with(|| key.to_owned()).clone();
        self.check(first == key, format!("{effect} has had the keys {first} and {key}"));
        let calls = self.calls.entry(effect.to_owned()).or_default();
        *calls += 1;
        let is_first = *calls == 1;
        self.check(is_first || is_idempotent(effect), format!("{effect} was called again"));
    }

    fn before(&mut self, commit: &str) {
        // A call may begin again after its approval. A process that finds nothing to do claims the session for that.
        let may_repeat = ["claim", "release", "other", "began", "effect", "asking", "end"].contains(&kind(commit));
        self.check(may_repeat || !self.has_stored(commit), format!("`{commit}` had to be stored again"));
    }

    fn after(&mut self, commit: &str) {
        self.stored.insert(commit.to_owned());
        self.phase = match kind(commit) {
            "input" => 0,
            "response" | "question" | "answer" => 1,
            "began" => 2,
            "effect" => 3,
            "settled" | "turn" | "end" => 4,
            _ => self.phase,
        };
    }

    fn killed(&mut self, at: &str, last: &[String], kills: &mut Kills) {
        self.kills += 1;
        kills.by_phase[self.phase] += 1;
        self.uncalled.append(&mut self.begins);
        if let ([when, commits @ ..], "at a point") = (last, at) {
            kills.points.extend(commits.iter().map(|commit| format!("{when} {}", kind(commit))));
        }
    }
}

fn is_idempotent(effect: &str) -> bool {
    effect.starts_with("note")
}

fn kind(commit: &str) -> &str {
    commit.split(' ').next().unwrap_or(commit)
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn read_log(path: &Path, kills: &mut Kills) -> Checked<Log> {
    let mut log = Log::default();
    let mut last = Vec::<String>::new();
    for line in fs::read_to_string(path)?.lines() {
        // A process that was killed inside of a line has left a part of it.
        let Ok(line) = serde_json::from_str::<Vec<String>>(line) else { continue };
        let words: Vec<_> = line.iter().map(String::as_str).collect();
        match *words {
            ["killed", at] => log.killed(at, &last, kills),
            _ => log.line(&words),
        }
        last = line;
    }
    Ok(log)
}

/// A turn, with the results of its calls.
struct Turn {
    response: Value,
    results: Vec<Value>,
    /// The position of the response in the history, once it is there.
    at: Option<usize>,
}

/// The history that records make. No attempt is made again, so nothing is undone.
#[derive(Default)]
struct History {
    messages: Vec<Value>,
    turn: Option<Turn>,
}

impl History {
    fn record(&mut self, record: &Value) {
        if let Some(whole) = record.get("session") {
            self.messages = array(&whole["messages"]).to_vec();
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
            let (position, call) = calls.enumerate().find(|(at, _)| Some(*at) == position).expect("a call");
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
    }
}

fn result_of(call: &Value, content: &Value) -> Value {
    json!({"role": "tool", "parts": [{"type": "tool_call_response", "id": call["id"], "response": content}]})
}

/// Reads the head of the session, and the messages that its records make.
fn read_session(path: &Path) -> Checked<(Value, Vec<Value>)> {
    let database = Connection::open(path)?;
    let of_entry = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    let (entry, head) = database.query_row("SELECT number, head FROM entry WHERE id = ?", [ID], of_entry)?;
    let mut parts = database.prepare("SELECT bytes FROM part WHERE entry = ? ORDER BY number")?;
    let mut history = History::default();
    for part in parts.query_map([entry], |row| row.get::<_, Vec<u8>>(0))? {
        for record in String::from_utf8(part?)?.lines() {
            let record: Value = serde_json::from_str(record)?;
            // Others are about the sub-agent.
            if record.get("in").is_none() {
                history.record(&record);
            }
        }
    }
    Ok((serde_json::from_str(&head)?, history.messages))
}

/// Returns the results of all effects, by their names.
fn results(messages: &[Value], log: &mut Log) -> BTreeMap<String, String> {
    let mut results = BTreeMap::new();
    let mut rest = messages;
    log.check(messages.iter().filter(|message| message["role"] == "user").count() == 1, "there is not one input");
    log.check(
        messages.first().is_some_and(|first| first["role"] == "user"),
        "the history does not begin with the input",
    );
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

fn check_effects(effects: &str, results: &BTreeMap<String, String>, log: &mut Log) {
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

/// Checks one run. Returns its faults.
fn check(folder: &Path, kills: &mut Kills) -> Checked<Vec<String>> {
    let mut log = read_log(&folder.join("log"), kills)?;
    let (head, messages) = read_session(&folder.join("agents.db"))?;
    let is_over = head["status"] == "ended" && head["holder"].is_null() && head["questions"].is_null();
    log.check(is_over, format!("the run has not ended: {head}"));
    let results = results(&messages, &mut log);
    check_effects(&fs::read_to_string(folder.join("effects"))?, &results, &mut log);
    let models = log.models;
    let most = TURNS + log.kills;
    log.check(models <= most, format!("the model was called {models} times, and not at most {most} times"));
    Ok(log.faults)
}

/// Returns the faults of all runs, and prints the numbers of kills.
fn check_all(folder: &Path, all_points: bool) -> Checked<Vec<String>> {
    let mut runs = fs::read_dir(folder)?.map(|run| Ok(run?.path())).collect::<Checked<Vec<_>>>()?;
    runs.sort();
    let mut kills = Kills::default();
    let mut faults = Vec::new();
    for run in &runs {
        let found = check(run, &mut kills).unwrap_or_else(|error| vec![error.to_string()]);
        faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", run.display())));
    }
    println!("{} runs, {} kills", runs.len(), kills.by_phase.iter().sum::<usize>());
    PHASES.iter().zip(kills.by_phase).for_each(|(phase, number)| println!("{number:6} {phase}"));
    if all_points {
        let points = POINTS.iter().flat_map(|kind| ["before", "after"].map(|when| format!("{when} {kind}")));
        let missed = points.filter(|point| !kills.points.contains(point));
        faults.extend(missed.map(|point| format!("no process was killed at the point `{point}`")));
        let open = PHASES.iter().zip(kills.by_phase).take(4).skip(1);
        let few = open.filter(|(_, number)| *number < KILLS_BY_PHASE);
        faults.extend(few.map(|(phase, number)| format!("only {number} processes were killed {phase}")));
    }
    Ok(faults)
}

fn main() -> ExitCode {
    if help::is_asked(include_str!("crash_check.rs")) {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let faults = match *arguments {
        [folder] => check_all(Path::new(folder), false),
        [folder, "--all-points"] => check_all(Path::new(folder), true),
        _ => Err(format!("{arguments:?} is no folder; see --help").into()),
    };
    let faults = faults.unwrap_or_else(|error| vec![error.to_string()]);
    faults.iter().take(20).for_each(|fault| println!("fault: {fault}"));
    println!("{} faults", faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
