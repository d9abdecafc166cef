//! The log of a run: the commits, the calls and the signals of its processes, line by line.
//!
//! A process is *late* in an entry from when another process has claimed the entry that it held, until it says that
//! it has lost its claim. A commit that it begins meanwhile must be refused, and its run must end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::places::{begun, entry_of, entry_of_commits, kind, place_of, session_of};
use crate::{Checked, ID, PHASES};

/// The signals of all runs.
#[derive(Default)]
pub(crate) struct Signals {
    pub(crate) by_phase: [usize; PHASES.len()],
    pub(crate) points: BTreeSet<String>,
    pub(crate) stops: usize,
    /// The number of processes that were late.
    pub(crate) late: usize,
}

/// A run, as its log tells it.
#[derive(Default)]
pub(crate) struct Log {
    /// The commits that the store has acknowledged, or that a process has found in it.
    stored: BTreeSet<String>,
    /// The first key of each effect.
    pub(crate) keys: BTreeMap<String, String>,
    pub(crate) calls: BTreeMap<String, usize>,
    /// The places of the calls before which a process was killed, or became late, after they were stored as begun.
    pub(crate) uncalled: BTreeSet<String>,
    pub(crate) models: usize,
    /// The number of times that each step of the job has begun, and the kind of its last commit.
    steps: BTreeMap<String, (usize, String)>,
    /// The number of times that a person had a step executed again.
    again: BTreeMap<String, usize>,
    /// The answers of which a process knows that they are stored.
    pub(crate) answered: BTreeMap<String, String>,
    /// The texts that each process has sent, in their order.
    pub(crate) sent: BTreeMap<String, Vec<String>>,
    /// The texts of which a process knows that they are stored.
    pub(crate) saved: BTreeSet<String>,
    pub(crate) kills: usize,
    /// The number of times that a process became late.
    pub(crate) late: usize,
    /// `true` if the run of the session has ended, and nothing has begun since then that may start another one.
    has_ended: bool,
    /// The number of times that another run may have begun.
    begins: usize,
    /// The process that holds an entry, and the revision since when.
    holders: BTreeMap<String, (Option<String>, u64)>,
    processes: BTreeMap<String, Process>,
    pub(crate) faults: Vec<String>,
}

/// A process, as its lines tell it.
#[derive(Default)]
struct Process {
    phase: usize,
    /// The words of its last line.
    last: Vec<String>,
    /// The places of the calls that its commits say have begun, and that it has not made yet.
    begins: BTreeSet<String>,
    /// The places of the calls that it may make: a commit of this process says that they have begun.
    permits: BTreeSet<String>,
    /// The sessions for which a commit of this process says that its run has begun.
    runs: BTreeSet<String>,
    /// The entries in which it is late.
    late: BTreeSet<String>,
    /// The number of model calls while it was late.
    late_models: usize,
    /// For each load that it has begun, whether the run of the session had ended then.
    loads: BTreeMap<String, bool>,
    /// The commits of each entry that it has found last.
    found: BTreeMap<String, BTreeSet<String>>,
    /// The commit of each entry that it is making.
    making: BTreeMap<String, Making>,
    /// `true` if it has to notice that it was late.
    must_notice: bool,
}

#[derive(Default)]
struct Making {
    is_late: bool,
    /// The commits that were stored before.
    repeats: BTreeSet<String>,
    /// The number of times that another run may have begun before.
    begins: usize,
}

impl Log {
    pub(crate) fn check(&mut self, is_right: bool, fault: impl Into<String>) {
        if !is_right {
            self.faults.push(fault.into());
        }
    }

    fn has_stored(&self, commit: &str) -> bool {
        self.stored.contains(commit)
    }

    fn line(&mut self, id: &str, line: &[&str], signals: &mut Signals) {
        let mut process = self.processes.remove(id).unwrap_or_default();
        match *line {
            ["model", name, turn] => self.model(&mut process, name, turn),
            ["call", effect, key] => self.call(&mut process, effect, key),
            ["job"] => self.job(&process),
            ["again", key] => *self.again.entry(key.to_owned()).or_default() += 1,
            ["answered", question, answer] => {
                let before = self.answered.insert(question.to_owned(), answer.to_owned());
                self.check(before.is_none(), format!("{question} was answered again"));
            }
            ["load", _, load] => _ = process.loads.insert(load.to_owned(), self.has_ended),
            ["send", text] => self.send(id, text),
            ["saved", text] => _ = self.saved.insert(text.to_owned()),
            ["found", load, ref commits @ ..] => {
                let commits: Vec<_> = commits.iter().map(|commit| (*commit).to_owned()).collect();
                let had_ended = process.loads.remove(load).unwrap_or_default();
                self.found(&mut process, commits, had_ended);
            }
            [when @ ("before" | "after"), ref commits @ ..] => {
                let commits: Vec<_> = commits.iter().map(|commit| (*commit).to_owned()).collect();
                if when == "before" {
                    self.before(&mut process, &commits);
                } else {
                    self.after(id, &mut process, &commits);
                }
            }
            ["lost"] => process.has_noticed(),
            ["killed", at] => self.killed(&mut process, at, signals),
            ["stopped", _] => signals.stops += 1,
            _ => {}
        }
        process.last = line.iter().map(|word| (*word).to_owned()).collect();
        self.processes.insert(id.to_owned(), process);
    }

    fn send(&mut self, id: &str, text: &str) {
        self.sent.entry(id.to_owned()).or_default().push(text.to_owned());
        self.begin_again();
    }

    /// Another run may begin, for example for a message, also before that is stored.
    fn begin_again(&mut self) {
        self.has_ended = false;
        self.begins += 1;
        self.stored.remove(&format!("end {ID}"));
    }

    /// Checks what a load has found. `had_ended` is `true` if the run of the session had ended when the load began.
    fn found(&mut self, process: &mut Process, commits: Vec<String>, had_ended: bool) {
        // A message that has come after the end starts another run.
        if let Some(entry) = entry_of_commits(&commits) {
            process.found.insert(entry.to_owned(), commits.iter().cloned().collect());
            let end = format!("end {entry}");
            let is_lost = entry == ID && had_ended && self.has_ended;
            self.check(!is_lost || commits.contains(&end), "the run had ended, and a process has found it unfinished");
            if !commits.contains(&end) {
                self.stored.remove(&end);
            }
        }
        // A process that was killed may have stored the beginning of a step without saying so.
        let mut steps = BTreeMap::new();
        commits.iter().for_each(|commit| note_step(&mut steps, commit));
        for (key, found) in steps {
            let known = self.steps.entry(key).or_default();
            if found.0 > known.0 {
                *known = found;
            }
        }
        // Another run may have begun since it has begun to read.
        self.stored.extend(commits.into_iter().filter(|commit| kind(commit) != "end"));
    }

    fn model(&mut self, process: &mut Process, name: &str, turn: &str) {
        self.models += 1;
        process.phase = 0;
        let entry = if name == "clerk" { "job/clerk" } else { ID };
        if process.late.contains(entry) {
            process.late_models += 1;
            return self.check(process.late_models <= self.late, format!("{name} was asked by a process that is late"));
        }
        let is_response = |commit: &String| {
            let session = commit.strip_prefix("response ").and_then(|place| place.strip_suffix(&format!("/{turn}")));
            session.is_some_and(|session| session == ID && name == "main" || session.ends_with(&format!("/{name}")))
        };
        self.check(self.has_stored(&format!("input {entry}")), "the model was called before the input was stored");
        self.check(!self.has_stored(&format!("end {entry}")), "the model was called after the run had ended");
        self.check(
            !self.stored.iter().any(is_response),
            format!("{name} was asked again for the stored response {turn}"),
        );
    }

    fn call(&mut self, process: &mut Process, effect: &str, key: &str) {
        process.phase = 2;
        let place = place_of(key);
        let begun = self.has_stored(&format!("began {place}")) || self.has_stored(&format!("job-began {place}"));
        self.check(begun, format!("{effect} was called before it was stored as begun"));
        // A call that had begun in an earlier run begins again with a commit that has the beginning of the run.
        let may = process.permits.remove(place) || process.runs.contains(session_of(place));
        self.check(may, format!("{effect} was called by a process that has not stored that it begins"));
        // The process may have become late directly before the call.
        if !process.late.contains(entry_of(place)) {
            let end = format!("end {}", entry_of(place));
            self.check(!self.has_stored(&end), format!("{effect} was called after the run had ended"));
            let settled =
                self.has_stored(&format!("settled {place}")) || self.has_stored(&format!("job-ended {place}"));
            self.check(!settled, format!("{effect} was called after its result was stored"));
        }
        process.begins.remove(place);
        self.uncalled.remove(place);
        let is_approved = !effect.starts_with("transfer") || self.has_stored(&format!("answer {place}"));
        self.check(is_approved, format!("{effect} was called before it was approved"));
        let first = self.keys.entry(effect.to_owned()).or_insert_with(|| key.to_owned()).clone();
        self.check(first == key, format!("{effect} has had the keys {first} and {key}"));
        let calls = self.calls.entry(effect.to_owned()).or_default();
        *calls += 1;
        let may = *calls <= 1 + self.again.get(place).copied().unwrap_or_default();
        self.check(may || is_idempotent(effect), format!("{effect} was called again"));
    }

    fn job(&mut self, process: &Process) {
        let is_over = self.has_stored("job-output job") && !process.late.contains("job");
        self.check(!is_over, "the job was executed again after its end");
    }

    fn before(&mut self, process: &mut Process, commits: &[String]) {
        let Some(entry) = entry_of_commits(commits) else { return };
        process.begins.extend(begun(commits));
        let is_claim = commits.iter().any(|commit| kind(commit) == "claim");
        if entry == ID && commits.iter().any(|commit| ["claim", "sent"].contains(&kind(commit))) {
            self.begin_again();
        }
        // Messages and answers need no claim, and may change the status.
        let needs_none = ["sent", "answer", "job-answer", "release", "status"];
        let needs_claim = commits.iter().any(|commit| !needs_none.contains(&kind(commit)));
        let is_late = process.late.contains(entry) && needs_claim && !is_claim;
        process.must_notice |= is_late;
        // A call may begin again after its approval. A process that finds nothing to do claims the session for that.
        let may_repeat = [
            "claim",
            "release",
            "renewal",
            "status",
            "other",
            "run",
            "began",
            "asking",
            "end",
            "job-began",
            "job-waiting",
        ];
        // A process that has found a question, and not answered it, asks again.
        let found = process.found.get(entry);
        let asks_again = |commit: &String| {
            ["job-question", "job-unsure"].contains(&kind(commit)) && found.is_some_and(|found| found.contains(commit))
        };
        let repeats = commits
            .iter()
            .filter(|commit| self.has_stored(commit) && !may_repeat.contains(&kind(commit)) && !asks_again(commit));
        process
            .making
            .insert(entry.to_owned(), Making { is_late, repeats: repeats.cloned().collect(), begins: self.begins });
    }

    fn after(&mut self, id: &str, process: &mut Process, commits: &[String]) {
        if let Some(entry) = entry_of_commits(commits) {
            let Making { is_late, repeats, begins } = process.making.remove(entry).unwrap_or_default();
            self.check(!is_late, format!("a process that had lost its claim has stored {commits:?}"));
            repeats.iter().for_each(|commit| self.check(false, format!("`{commit}` had to be stored again")));
            // A process that was stopped may say late that it has stored the end.
            self.has_ended |= begins == self.begins && commits.contains(&format!("end {ID}"));
            self.hold(id, process, entry, commits);
            process.note_runs(commits);
        }
        for commit in commits {
            self.step(commit);
            self.stored.insert(commit.clone());
            process.phase = match kind(commit) {
                "input" | "job-input" => 0,
                "response" | "question" | "answer" => 1,
                "began" | "job-began" => 2,
                "effect" => 3,
                "settled" | "turn" | "end" | "job-ended" => 4,
                _ => process.phase,
            };
        }
    }

    /// Checks that a step of the job which had asked or ended is not one that may have had effects.
    fn step(&mut self, commit: &str) {
        note_step(&mut self.steps, commit);
        if let Some(question) = commit.strip_prefix("job-unsure ") {
            let key = question.rsplit_once('/').map_or(question, |(key, _)| key);
            let (_, last) = self.steps.get(key).cloned().unwrap_or_default();
            self.check(last == "job-began", format!("{key} may have had effects, after the commit `{last}`"));
        }
    }

    /// Notes which process holds an entry after a commit. An answer or a message may release the claim of a process whose
    /// lease has run out.
    fn hold(&mut self, id: &str, process: &mut Process, entry: &str, commits: &[String]) {
        let has = |wanted: &str| commits.iter().any(|commit| kind(commit) == wanted);
        if !has("claim") && !has("release") {
            return;
        }
        if has("claim") {
            process.late.remove(entry);
            process.runs.retain(|session| entry_of(session) != entry);
        }
        let revision = commits.iter().filter_map(|commit| commit.strip_prefix(&format!("at {entry}/"))?.parse().ok());
        let revision: u64 = revision.max().unwrap_or_default();
        let (holder, since) = self.holders.get(entry).cloned().unwrap_or_default();
        // The process was stopped after its commit was stored, and before it could say so.
        if revision < since {
            if has("claim") && !has("release") {
                self.note_late(process, entry);
            }
            return;
        }
        if let Some(mut before) = holder.as_ref().and_then(|holder| self.processes.remove(holder)) {
            if !before.is_killed() {
                self.note_late(&mut before, entry);
            }
            self.processes.extend(holder.map(|holder| (holder, before)));
        }
        let holder = (has("claim") && !has("release")).then(|| id.to_owned());
        self.holders.insert(entry.to_owned(), (holder, revision));
    }

    fn note_late(&mut self, process: &mut Process, entry: &str) {
        process.late.insert(entry.to_owned());
        self.uncalled.extend(process.begins.iter().cloned());
        self.late += 1;
    }

    fn killed(&mut self, process: &mut Process, at: &str, signals: &mut Signals) {
        self.kills += 1;
        signals.by_phase[process.phase] += 1;
        self.uncalled.append(&mut process.begins);
        process.must_notice = false;
        if let ([when, commits @ ..], "at a point") = (&*process.last, at) {
            signals.points.extend(commits.iter().map(|commit| format!("{when} {}", kind(commit))));
        }
    }

    fn end(&mut self, signals: &mut Signals) {
        signals.late += self.late;
        let unaware: Vec<_> =
            self.processes.iter().filter(|(_, process)| process.must_notice).map(|(id, _)| id.clone()).collect();
        self.check(unaware.is_empty(), format!("the processes {unaware:?} have lost a claim, and not noticed it"));
    }
}

impl Process {
    fn is_killed(&self) -> bool {
        self.last.first().is_some_and(|word| word == "killed")
    }

    /// Notes the calls that a commit lets the process make.
    fn note_runs(&mut self, commits: &[String]) {
        self.permits.extend(begun(commits));
        self.runs.extend(commits.iter().filter_map(|commit| commit.strip_prefix("run ")).map(str::to_owned));
    }

    /// Its run has ended, because it has lost its claim.
    fn has_noticed(&mut self) {
        self.must_notice = false;
        self.late.clear();
        self.permits.clear();
        self.runs.clear();
    }
}

fn note_step(steps: &mut BTreeMap<String, (usize, String)>, commit: &str) {
    let Some((kind, key)) = commit.split_once(' ') else { return };
    if ["job-began", "job-waiting", "job-ended"].contains(&kind) {
        let step = steps.entry(key.to_owned()).or_default();
        *step = (step.0 + usize::from(kind == "job-began"), kind.to_owned());
    }
}

pub(crate) fn is_idempotent(effect: &str) -> bool {
    effect.starts_with("note")
}

pub(crate) fn read_log(path: &Path, signals: &mut Signals) -> Checked<Log> {
    let mut log = Log::default();
    for line in fs::read_to_string(path)?.lines() {
        // A process that was killed inside of a line has left a part of it.
        let Ok(line) = serde_json::from_str::<Vec<String>>(line) else { continue };
        let words: Vec<_> = line.iter().map(String::as_str).collect();
        if let [process, ref words @ ..] = *words {
            log.line(process, words, signals);
        }
    }
    log.end(signals);
    Ok(log)
}
