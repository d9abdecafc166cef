//! The stored job of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::Checked;
use crate::log::Log;
use crate::session::{LOST, array, check_end, read_records, text};

const ID: &str = "job";
/// The step of the agent, and its session.
const CLERK: &str = "job/clerk";
/// The effects of steps, and the steps. The effect of the last one is a tool's.
const STEPS: [(&str, &str); 4] =
    [("charge j", "job/charge"), ("note l", "job/note"), ("ship n", "job/ship"), ("note m", CLERK)];
/// The step that asks.
const WHO: &str = "job/who";

/// The job that its records make.
#[derive(Default)]
struct Job {
    inputs: usize,
    outputs: Vec<Value>,
    /// The outputs of the steps, by their keys.
    ended: BTreeMap<String, Value>,
    sleeps: usize,
    /// The kinds of all questions, by their ids.
    questions: BTreeMap<String, String>,
    answers: BTreeMap<String, Value>,
}

impl Job {
    /// Takes over a record.
    fn record(&mut self, record: &Value, log: &mut Log) {
        self.inputs += usize::from(record.get("input").is_some());
        self.outputs.extend(record.get("output").cloned());
        self.sleeps += usize::from(record.get("sleeps").is_some());
        if let Some(ended) = record.get("ended") {
            let key = text(&ended["key"]);
            let before = self.ended.insert(key.to_owned(), ended["output"].clone());
            log.check(before.is_none(), format!("the step {key} has ended twice"));
        }
        for question in array(&record["questions"]) {
            self.questions.insert(text(&question["id"]).to_owned(), text(&question["kind"]).to_owned());
        }
        for (id, answer) in record["answered"].as_object().into_iter().flatten() {
            let before = self.answers.insert(id.clone(), answer["value"].clone());
            log.check(before.is_none(), format!("the question {id} has two answers"));
        }
    }
}

/// Checks the job, and returns the results of its effects, by their names.
pub(crate) fn check_job(path: &Path, log: &mut Log) -> Checked<BTreeMap<String, String>> {
    let (head, records) = read_records(path, ID)?;
    check_end(ID, &head, log);
    let (clerk, _) = read_records(path, CLERK)?;
    // A process that has lost the job may still begin the session again after its end, and leave it so.
    if log.late == 0 {
        check_end(CLERK, &clerk, log);
    }
    let mut job = Job::default();
    records.iter().for_each(|record| job.record(record, log));
    log.check(job.inputs == 1, format!("the input of the job was stored {} times", job.inputs));
    log.check(job.sleeps == 1, format!("the end of the sleep was stored {} times", job.sleeps));
    check_answers(&job, log);
    let output = |key: &str| job.ended.get(key).map_or(Value::Null, |output| text_of(output).into());
    let keys = ["job/charge", WHO, "job/note", CLERK, "job/ship"];
    let expected = json!(keys.map(output));
    log.check(job.outputs == [expected], format!("the job has the outputs {:?}", job.outputs));
    Ok(STEPS.iter().map(|(effect, key)| ((*effect).to_owned(), text(&output(key)).to_owned())).collect())
}

/// Checks that each answer of which a process knows is stored, and that the step that asks has returned it.
fn check_answers(job: &Job, log: &mut Log) {
    for (id, answer) in log.answered.clone() {
        let stored = job.answers.get(&id).map(Value::to_string);
        log.check(stored.as_ref() == Some(&answer), format!("{id} was answered with {answer}, and not {stored:?}"));
    }
    let of_who = |(id, _): &(&String, &Value)| job.questions.get(*id).is_some_and(|kind| kind == "who");
    let answers: BTreeSet<_> = job.answers.iter().filter(of_who).map(|(_, answer)| answer.to_string()).collect();
    let output = job.ended.get(WHO).map(Value::to_string).unwrap_or_default();
    let is_lost = output.contains(LOST);
    log.check(is_lost || answers.contains(&output), format!("{WHO} has returned {output}, and not {answers:?}"));
}

/// Returns the text of an output: of a step, or of the answer of an agent.
fn text_of(output: &Value) -> &str {
    let answer = &output["answer"]["parts"][0]["content"];
    answer.as_str().unwrap_or_else(|| text(output))
}
