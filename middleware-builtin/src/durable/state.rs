//! The state of a job: the fold of its records.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use emitree_runtime::{AbortHandle, Answer, Answers, Error, ErrorReport, Interrupt, Result, RunKey};
use serde_json::{Value, json};

use super::AlreadyAnswered;
use super::record::{AfterBegun, AfterStuck, BEGAN, FORMAT, Record, STUCK, Submission};
use super::scope::{is_of_store, is_question};
use crate::store::{Entry, EntryStatus, OpenQuestion, Rest, StoreError, joined_parts};

pub(super) struct JobState {
    pub(super) input: Option<Value>,
    steps: BTreeMap<String, Step>,
    /// The ends of sleeps, by their keys.
    sleeps: BTreeMap<String, DateTime<Utc>>,
    /// The end of the sleep until which the job was given back to its queue.
    asleep: Option<DateTime<Utc>>,
    questions: Vec<Interrupt>,
    /// The answers that the runs of the job find. One that did not fit is removed.
    pub(super) answers: Answers,
    /// The last answer to each question, also if it did not fit.
    answered: BTreeMap<String, Answer>,
    /// The deadlines of questions, by their ids.
    deadlines: BTreeMap<String, Answer>,
    pub(super) published: BTreeMap<String, Value>,
    pub(super) output: Option<Value>,
    pub(super) submission: Option<Submission>,
    /// How the last start of a submitted job has failed.
    stopped: Option<Box<ErrorReport>>,
    /// `true` if the worker gives its attempt back: it goes away, so another one goes on, or it has tried nothing.
    pub(super) is_handed_over: bool,
    /// `true` if the next append counts the attempts of workers from 0 again.
    gets_on: bool,
    /// The status while no run works on the job.
    pub(super) status: EntryStatus,
    /// The status that was last given to the store.
    pub(super) listed: EntryStatus,
    /// The records that are not stored yet.
    unstored: Vec<Bytes>,
    /// The names of the values that were published and are not stored yet.
    unstored_names: BTreeSet<String>,
    pub(super) start: Start,
}

/// The start of a job that is under way in this process, or that was the last.
#[derive(Default)]
pub(super) struct Start {
    /// Aborts the run of the job. Set while it is under way.
    pub(super) run: Option<AbortHandle>,
    /// The ids of the questions that were open before.
    open: BTreeSet<String>,
    /// The ids of the questions that other processes have answered since.
    late: BTreeSet<String>,
    /// The steps that were started.
    used: BTreeSet<String>,
    /// The steps that were executed, or answered with their error.
    tried: BTreeSet<String>,
    /// The steps that were answered.
    answered: BTreeSet<String>,
    /// The ends of the sleeps that are under way, by their keys.
    pub(super) sleeping: BTreeMap<String, DateTime<Utc>>,
    /// `true` once the steps that had begun before are asked about.
    has_asked_begun: bool,
    /// `true` once the result of the start is recorded.
    has_ended: bool,
    /// `true` if workers go on with the job after some time, because it has failed.
    comes_back: bool,
    /// `true` if somebody has woken the job meanwhile.
    is_woken: bool,
    /// The reason with which somebody has stopped the job.
    pub(super) stops_with: Option<String>,
}

struct Step {
    input: Value,
    began: DateTime<Utc>,
    /// `true` if the step may be executed again after a kill.
    may_repeat: bool,
    /// `true` if the step has asked.
    waits: bool,
    end: Option<std::result::Result<Value, Box<ErrorReport>>>,
}

impl Step {
    /// Returns the question about a step that had begun.
    fn question(&self, key: &RunKey) -> Interrupt {
        let data = json!({"key": key.as_str(), "input": self.input, "began": self.began});
        Interrupt::new(BEGAN, data).about(key)
    }
}

/// Reads the key of a stored step.
fn key_of(path: &str) -> Option<RunKey> {
    let mut parts = path.split('/');
    let first = RunKey::new(parts.next()?).ok()?;
    parts.try_fold(first, |key, part| key.child(part).ok())
}

impl Start {
    pub(super) fn new(run: AbortHandle) -> Self {
        Self { run: Some(run), ..Self::default() }
    }
}

/// The stored part of a step.
pub(super) enum Found {
    /// The step has to be executed.
    New,
    Output(Value),
    Error(Box<ErrorReport>),
    /// It may have had effects: the question about it.
    Began(Interrupt),
    OtherInput(Value),
}

impl JobState {
    pub(super) fn new() -> Self {
        Self {
            input: None,
            steps: BTreeMap::new(),
            sleeps: BTreeMap::new(),
            asleep: None,
            questions: Vec::new(),
            answers: Answers::new(),
            answered: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            published: BTreeMap::new(),
            output: None,
            submission: None,
            stopped: None,
            is_handed_over: false,
            gets_on: false,
            status: EntryStatus::Running,
            listed: EntryStatus::Running,
            unstored: Vec::new(),
            unstored_names: BTreeSet::new(),
            start: Start::default(),
        }
    }

    /// Reads a stored job.
    pub(super) fn read(entry: &Entry) -> Result<Self, StoreError> {
        let id = &entry.head.id;
        if entry.head.kind != super::job::KIND {
            let kind = &entry.head.kind;
            let problem = format!("it is of the kind `{kind}`, not a job: give the job another id");
            return Err(StoreError::Invalid { id: id.clone(), problem });
        }
        let mut state = Self { status: entry.head.status, listed: entry.head.status, ..Self::new() };
        for (n, part) in joined_parts(entry)?.iter().enumerate() {
            let record: Record = serde_json::from_slice(part)
                .map_err(|error| StoreError::damaged(id, format!("its part {n} cannot be read: {error}")))?;
            state.apply(record).map_err(|problem| StoreError::damaged(id, format!("its part {n}: {problem}")))?;
        }
        Ok(state)
    }

    fn apply(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Submitted(submission) => self.submission = Some(submission),
            Record::Stopped(error) => self.stopped = Some(error),
            Record::Input { format: FORMAT, input } => self.input = Some(input),
            Record::Input { format, .. } => {
                return Err(format!("the job has format {format}, and this version reads format {FORMAT}"));
            }
            Record::Began { key, input, at, may_repeat } => {
                self.steps.insert(key, Step { input, began: at, may_repeat, waits: false, end: None });
            }
            Record::Waiting { key } => self.step(&key)?.waits = true,
            Record::Ended { key, output } => self.step(&key)?.end = Some(Ok(output)),
            Record::Failed { key, error } => self.step(&key)?.end = Some(Err(error)),
            Record::Sleeps { key, until } => _ = self.sleeps.insert(key, until),
            Record::Asleep { until } => self.asleep = Some(until),
            Record::Questions(questions) => self.questions = questions,
            Record::Answered(answers) => answers.into_iter().for_each(|(id, answer)| self.keep_answer(id, answer)),
            Record::Deadlines(deadlines) => self.deadlines.extend(deadlines),
            Record::Published(values) => self.published.extend(values),
            Record::Output(output) => self.output = Some(output),
        }
        Ok(())
    }

    fn step(&mut self, key: &str) -> Result<&mut Step, String> {
        self.steps.get_mut(key).ok_or_else(|| format!("the step `{key}` has ended, and not begun"))
    }

    /// Keeps an answer, which closes its question.
    fn keep_answer(&mut self, id: String, answer: Answer) {
        self.questions.retain(|question| question.id != id);
        self.answered.insert(id.clone(), answer.clone());
        self.answers.answer(id, answer);
    }

    /// Applies a record, and queues it for the store.
    pub(super) fn push(&mut self, record: Record) -> Result<()> {
        let json = record.to_json()?;
        self.gets_on |=
            matches!(record, Record::Ended { .. } | Record::Answered(_) | Record::Asleep { .. } | Record::Output(_));
        self.apply(record).map_err(Error::new)?;
        self.unstored.push(json);
        Ok(())
    }

    /// Takes the records that are not stored yet, with the last value of each name that was published.
    pub(super) fn take_unstored(&mut self) -> Result<Vec<Bytes>> {
        if !self.unstored_names.is_empty() {
            let names = mem::take(&mut self.unstored_names);
            let values =
                names.into_iter().filter_map(|name| self.published.get(&name).cloned().map(|value| (name, value)));
            self.unstored.push(Record::Published(values.collect()).to_json()?);
        }
        Ok(mem::take(&mut self.unstored))
    }

    /// Publishes a value. Returns `true` if it has to be stored.
    pub(super) fn publish(&mut self, name: &str, value: Value) -> Result<bool> {
        if self.published.get(name) == Some(&value) {
            return Ok(false);
        }
        // A value that cannot be stored must not make a later commit fail.
        Record::Published([(name.to_owned(), value.clone())].into()).to_json()?;
        self.published.insert(name.to_owned(), value);
        self.unstored_names.insert(name.to_owned());
        Ok(true)
    }

    /// Returns the job as few records.
    pub(super) fn whole(&self) -> Result<Vec<Bytes>> {
        let submission = self.submission.clone().map(Record::Submitted);
        let input = self.input.iter().map(|input| Record::Input { format: FORMAT, input: input.clone() });
        let steps = self.steps.iter().flat_map(|(key, step)| {
            let key = key.clone();
            let input = step.input.clone();
            let Step { began: at, may_repeat, .. } = *step;
            let waits = step.waits.then(|| Record::Waiting { key: key.clone() });
            let end = step.end.clone().map(|end| match end {
                Ok(output) => Record::Ended { key: key.clone(), output },
                Err(error) => Record::Failed { key: key.clone(), error },
            });
            [Some(Record::Began { key, input, at, may_repeat }), waits, end].into_iter().flatten()
        });
        let sleeps = self.sleeps.iter().map(|(key, until)| Record::Sleeps { key: key.clone(), until: *until });
        let asleep = self.asleep.map(|until| Record::Asleep { until });
        // An answer closes its question, and a question that was asked again is open in spite of it.
        let deadlines = Record::Deadlines(self.deadlines.clone());
        let rest = [Record::Answered(self.answered.clone()), deadlines, Record::Questions(self.questions.clone())];
        let published = (!self.published.is_empty()).then(|| Record::Published(self.published.clone()));
        let stopped = self.stopped.clone().map(Record::Stopped);
        let output = self.output.iter().map(|output| Record::Output(output.clone()));
        submission
            .into_iter()
            .chain(input)
            .chain(steps)
            .chain(sleeps)
            .chain(asleep)
            .chain(rest)
            .chain(published)
            .chain(stopped)
            .chain(output)
            .map(|record| record.to_json())
            .collect()
    }

    /// Returns the status for lists.
    pub(super) fn listed_status(&self) -> EntryStatus {
        match (&self.output, &self.start.run) {
            (Some(_), _) => EntryStatus::Ended,
            (None, Some(_)) => EntryStatus::Running,
            (None, None) => self.status,
        }
    }

    pub(super) fn questions(&self) -> &[Interrupt] {
        &self.questions
    }

    pub(super) fn listed_questions(&self) -> Vec<OpenQuestion> {
        self.questions.iter().map(OpenQuestion::from).collect()
    }

    /// Replaces the open questions.
    pub(super) fn ask(&mut self, questions: Vec<Interrupt>) -> Result<()> {
        if self.questions == questions { Ok(()) } else { self.push(Record::Questions(questions)) }
    }

    /// Closes the open questions: the start that begins asks them again.
    pub(super) fn ask_again(&mut self) -> Result<()> {
        let ids = self.questions.iter().map(|question| &question.id);
        // A start that was cut off may have closed a question, and a process that has read it before may still answer it.
        let asked = self.deadlines.keys().filter(|id| !self.answered.contains_key(*id));
        self.start.open = ids.chain(asked).cloned().collect();
        self.ask(Vec::new())
    }

    /// Keeps the first deadline of a question, also in the question. If it is over, answers the question, and returns
    /// `true`, unless the question was open before this start: somebody may answer it now, so the next start answers it.
    /// `now` is the time by the clock of the store.
    pub(super) fn meet_deadline(&mut self, question: &mut Interrupt, now: SystemTime) -> Result<bool> {
        let Some(deadline) = &mut question.deadline else { return Ok(false) };
        match self.deadlines.get(&question.id) {
            Some(first) => deadline.clone_from(first),
            None => self.push(Record::Deadlines([(question.id.clone(), deadline.clone())].into()))?,
        }
        let is_over = !self.start.open.contains(&question.id) && deadline.at.is_some_and(|at| at <= now);
        if is_over {
            self.push(Record::Answered([(question.id.clone(), deadline.clone())].into()))?;
        }
        Ok(is_over)
    }

    /// Returns the answers of the open questions whose deadlines are over, by the ids of the questions.
    pub(super) fn overdue(&self, now: SystemTime) -> Vec<(String, Answer)> {
        let is_over = |deadline: &&Answer| deadline.at.is_some_and(|at| at <= now);
        let of = |id: &String| Some((id.clone(), self.deadlines.get(id).filter(is_over)?.clone()));
        self.questions.iter().filter_map(|question| of(&question.id)).collect()
    }

    /// Records the end of a start, with the questions that were asked.
    pub(super) fn end(&mut self, result: &Result<Value>, mut asked: Vec<Interrupt>) -> Result<()> {
        self.start.has_ended = true;
        match result {
            Ok(output) => self.push(Record::Output(output.clone())),
            Err(error) => {
                self.status = match error.interrupt() {
                    Some(_) => EntryStatus::Waiting,
                    // Lists have the questions, also if the error came before them.
                    None if is_of_store(error) && !asked.is_empty() => EntryStatus::Waiting,
                    None if error.is_control_flow() || is_of_store(error) => EntryStatus::Paused,
                    None => EntryStatus::Failed,
                };
                self.note_stop(error)?;
                let last = error.interrupt().filter(|last| is_question(last));
                asked.extend(last.filter(|last| asked.iter().all(|question| question.id != last.id)).cloned());
                let has_asked = !asked.is_empty();
                // An answer that has come since the question was asked closes it, unless it was asked again and did not fit.
                let has_answer = |id: &str| self.start.late.contains(id) && self.answers.get(id).is_some();
                asked.retain(|question| !has_answer(&question.id));
                let is_answered = has_asked && asked.is_empty();
                if (is_answered || self.start.is_woken) && self.status == EntryStatus::Waiting {
                    self.status = self.idle();
                }
                self.ask(asked)
            }
        }
    }

    /// Looks a step up that is started.
    pub(super) fn find(&mut self, key: &RunKey, input: &Value, may_repeat: bool) -> Found {
        let Some(step) = self.steps.get(key.as_str()) else { return Found::New };
        if step.input != *input {
            return Found::OtherInput(step.input.clone());
        }
        self.start.used.insert(key.to_string());
        match &step.end {
            Some(Ok(output)) => {
                self.start.answered.insert(key.to_string());
                Found::Output(output.clone())
            }
            Some(Err(error)) if error.is_retryable => Found::New,
            Some(Err(error)) if self.start.tried.insert(key.to_string()) => {
                self.start.answered.insert(key.to_string());
                Found::Error(error.clone())
            }
            None if !may_repeat && !step.waits && !self.start.tried.contains(key.as_str()) => {
                Found::Began(step.question(key))
            }
            Some(Err(_)) | None => Found::New,
        }
    }

    /// Returns the questions about all steps that had begun before this start, that may not be repeated, and whose
    /// question has no answer; nothing if it is called again in this start. A step below one that has ended is answered
    /// with it.
    pub(super) fn take_begun_before(&mut self) -> Vec<Interrupt> {
        if mem::replace(&mut self.start.has_asked_begun, true) {
            return Vec::new();
        }
        let has_ended = |key: &str| self.steps.get(key).is_some_and(|step| step.end.is_some());
        let is_asked = |(key, step): &(&String, &Step)| {
            step.end.is_none()
                && !step.may_repeat
                && !step.waits
                && !self.start.tried.contains(*key)
                && !key.match_indices('/').any(|(at, _)| has_ended(&key[..at]))
        };
        let questions = self.steps.iter().filter(is_asked).filter_map(|(key, step)| Some(step.question(&key_of(key)?)));
        questions.filter(|question| self.answers.get(&question.id).is_none()).collect()
    }

    /// Records that a step begins.
    pub(super) fn begin(&mut self, key: &str, input: Value, may_repeat: bool) -> Result<()> {
        self.push(Record::Began { key: key.to_owned(), input, at: Utc::now(), may_repeat })?;
        self.start.used.insert(key.to_owned());
        self.start.tried.insert(key.to_owned());
        Ok(())
    }

    /// Records the end of a step that a person has given.
    pub(super) fn end_step(&mut self, key: &str, output: Value) -> Result<()> {
        self.start.answered.insert(key.to_owned());
        self.push(Record::Ended { key: key.to_owned(), output })
    }

    /// Returns the stored end of a sleep.
    pub(super) fn sleep(&self, key: &RunKey) -> Option<DateTime<Utc>> {
        self.sleeps.get(key.as_str()).copied()
    }

    /// Returns the keys of stored steps that were not started. Steps below a step that was answered are not missing.
    pub(super) fn unused(&self) -> Vec<String> {
        let is_below_answered =
            |key: &&String| key.match_indices('/').any(|(at, _)| self.start.answered.contains(&key[..at]));
        let unused = self.steps.keys().filter(|key| !self.start.used.contains(*key) && !is_below_answered(key));
        unused.cloned().collect()
    }

    /// Checks the answer to an open question. Returns the key under which the question gets one answer: a question that is
    /// asked again after an answer gets another one.
    pub(super) fn check_answer(&self, id: &str, answer: &Answer) -> Result<String> {
        let Some(question) = self.questions.iter().find(|question| question.id == id) else {
            if let Some(first) = self.answered.get(id).cloned() {
                return Err(AlreadyAnswered { id: id.to_owned(), first }.into());
            }
            let open: Vec<_> = self.questions.iter().map(|question| format!("`{}`", question.id)).collect();
            let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
            return Err(Error::new(format!("the job has no open question `{id}`; open questions: {open}")));
        };
        match &*question.kind {
            BEGAN => _ = AfterBegun::read(answer)?,
            STUCK => _ = AfterStuck::read(answer)?,
            _ => {}
        }
        Ok(self.place(id))
    }

    /// Returns the key of the next answer to a question.
    fn place(&self, id: &str) -> String {
        let last = self.answered.get(id).and_then(|last| last.at).map(DateTime::<Utc>::from);
        last.map_or_else(|| id.to_owned(), |at| format!("{id} after {at:?}"))
    }

    /// Keeps the answer to an open question.
    pub(super) fn answer(&mut self, id: &str, answer: &Answer) -> Result<()> {
        self.check_answer(id, answer)?;
        let is_stuck = self.questions.iter().any(|question| question.id == id && question.kind == STUCK);
        let after_stuck = is_stuck.then(|| AfterStuck::read(answer)).transpose()?;
        self.push(Record::Answered([(id.to_owned(), answer.clone())].into()))?;
        if self.questions.is_empty() {
            self.status = self.idle();
            self.start.comes_back = false;
        }
        match after_stuck {
            Some(AfterStuck::Again) => self.gets_on = true,
            Some(AfterStuck::Fail) => {
                let error = Error::new("a person has given it up, because its processes were gone again and again");
                self.push(Record::Stopped(Box::new(error.report())))?;
                self.status = EntryStatus::Failed;
            }
            None => {}
        }
        Ok(())
    }

    /// Keeps an answer that was sent to the process that works on the job, under a key. A start under way has closed the
    /// question, and finds the answer when it asks again, or when it has ended.
    pub(super) fn take_answer(&mut self, id: &str, answer: Answer, key: Option<&str>) {
        let is_open = self.questions.iter().any(|question| question.id == id);
        let kept = match is_open {
            true => self.answer(id, &answer),
            false if key.is_none_or(|key| key == self.place(id)) => {
                self.start.late.insert(id.to_owned());
                self.push(Record::Answered([(id.to_owned(), answer)].into()))
            }
            false => Err(Error::new("it has another answer, such as that of its deadline")),
        };
        if let Err(error) = kept {
            tracing::warn!(question = id, %error, "an answer to a job is dropped");
        }
    }

    /// Lets a job that waits for an answer go on: it may have come elsewhere. One that is stuck waits for its own answer.
    pub(super) fn wake(&mut self) {
        let is_under_way = self.start.run.is_some() && !self.start.has_ended;
        let is_stuck = self.questions.iter().any(|question| question.kind == STUCK);
        if is_under_way {
            self.start.is_woken = true;
        } else if self.status == EntryStatus::Waiting && !is_stuck {
            (self.status, self.gets_on) = (self.idle(), true);
        }
    }

    /// Pauses the job, which does not run. Returns `false` if it has stopped already, or was never started.
    pub(super) fn stop(&mut self, reason: &str) -> Result<bool> {
        let has_stopped =
            matches!(self.listed_status(), EntryStatus::Ended | EntryStatus::Failed | EntryStatus::Paused);
        if has_stopped && !self.start.comes_back || self.input.is_none() {
            return Ok(false);
        }
        self.status = EntryStatus::Paused;
        self.note_stop(&Error::aborted(reason))?;
        Ok(true)
    }

    /// Returns the status of a job that can go on: a worker does it, or somebody runs it again.
    pub(super) fn idle(&self) -> EntryStatus {
        if self.submission.is_some() { EntryStatus::Queued } else { EntryStatus::Paused }
    }

    /// Records how a start of a submitted job has failed. Workers come back to it if a retry may help.
    fn note_stop(&mut self, error: &Error) -> Result<()> {
        if self.submission.is_none() || self.status == EntryStatus::Waiting {
            return Ok(());
        }
        self.start.comes_back = error.is_retryable() || is_of_store(error);
        if self.start.comes_back {
            self.status = EntryStatus::Queued;
        }
        self.push(Record::Stopped(Box::new(error.report())))
    }

    /// Records the end of a start whose run was stopped before it had a result. Workers go on with one that was dropped,
    /// as if it was handed over.
    pub(super) fn note_abort(&mut self) -> Result<()> {
        let Some(run) = self.start.run.as_ref().filter(|_| !self.start.has_ended) else { return Ok(()) };
        let signal = run.signal();
        self.is_handed_over |= signal.is_dropped();
        let reason = signal.reason().filter(|_| !self.is_handed_over).map(|reason| reason.to_string());
        match self.start.stops_with.take().or(reason) {
            Some(reason) => {
                self.status = EntryStatus::Paused;
                self.note_stop(&Error::aborted(reason))
            }
            None => {
                self.status = self.idle();
                Ok(())
            }
        }
    }

    /// Records that a worker cannot begin the job.
    pub(super) fn note_failed_begin(&mut self, error: &Error) -> Result<()> {
        self.status = self.idle();
        self.note_stop(&error.clone().retryable(true))
    }

    /// Asks what becomes of a job whose processes are gone again and again.
    pub(super) fn ask_stuck(&mut self, question: Interrupt) -> Result<()> {
        self.status = EntryStatus::Waiting;
        self.ask(vec![question])
    }

    /// Returns the error with which the last start has stopped.
    pub(super) fn last_error(&self) -> Option<Error> {
        self.stopped.clone().map(|error| (*error).into())
    }

    /// Returns when workers take the job if it is released now, and its attempts. `now` is the time by the clock of the
    /// store.
    pub(super) fn rest(&self, attempts: u32, now: SystemTime) -> Rest {
        let attempts = if self.is_handed_over { attempts.saturating_sub(1) } else { attempts };
        let due = match self.listed_status() {
            _ if self.submission.is_none() => None,
            EntryStatus::Queued if self.start.comes_back => Some(Rest::backoff(attempts)),
            // The job of a process that is gone is running until its next start.
            EntryStatus::Queued | EntryStatus::Running => Some(Duration::ZERO),
            EntryStatus::Waiting => self.wakes_at(now).map(|at| at.duration_since(now).unwrap_or_default()),
            _ => None,
        };
        Rest { due, attempts }
    }

    /// Returns the time at which a job that waits is due: the first deadline of its questions or, without any, the end of
    /// its sleep.
    fn wakes_at(&self, now: SystemTime) -> Option<SystemTime> {
        if self.is_asleep() {
            return Some(self.asleep.map_or(now, SystemTime::from));
        }
        self.questions.iter().filter_map(|question| question.deadline.as_ref()?.at).min()
    }

    /// Records that the job goes back to its queue until the first of its sleeps is over, and returns this time.
    pub(super) fn fall_asleep(&mut self) -> Result<DateTime<Utc>> {
        let until = self.start.sleeping.values().min().copied();
        let until = until.ok_or_else(|| Error::new("the job does not sleep"))?;
        self.push(Record::Asleep { until })?;
        Ok(until)
    }

    /// Returns `true` if the job was given back to its queue until its sleep is over.
    pub(super) fn is_asleep(&self) -> bool {
        self.status == EntryStatus::Waiting && self.questions.is_empty()
    }

    /// Returns `true` if the attempts are counted from 0 again.
    pub(super) fn take_gets_on(&mut self) -> bool {
        mem::take(&mut self.gets_on)
    }

    /// Returns the output of a job that does not go on, or the error with which it has stopped.
    pub(super) fn outcome(self) -> Result<Value> {
        match (self.output, self.stopped) {
            (Some(output), _) => Ok(output),
            (None, Some(error)) => Err((*error).into()),
            (None, None) => Err(Error::new("the job has stopped, and its process has not stored why")),
        }
    }
}
