//! The answers to the questions of runs: [`Answers`] (M8).
//!
//! A question was asked if a run has looked its answer up since the answer was set or removed. Both are noted under one
//! lock.

mod answer;
mod ask;
mod keep;
mod pending;
mod question;
mod unmatched;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::OnceCell;

pub use answer::Answer;
pub use keep::KeptValue;
pub use unmatched::UnmatchedAnswers;

use crate::{Interrupt, Result, RunContext};

/// The answers to the questions of runs, by the ids of the questions. A question that has an answer is not asked again.
///
/// Put a value of this type into the [extensions](crate::Run::extension) of a run: the run, and the runs below it, find
/// their answers there when they [ask](RunContext::ask). Clones share their answers. Answers stay until
/// [`forget`](Self::forget) removes them. If the run is interrupted, and nobody has asked for one of the answers, it
/// emits [`UnmatchedAnswers`].
///
/// The JSON is an object from ids to [`Answer`]s. It can be stored, and restored for runs of another process.
///
/// ```
/// use emitree_runtime::Answers;
/// use serde_json::json;
///
/// let answers = Answers::new();
/// answers.answer("order-17/paint/5d0f", json!("red"));
/// let stored = serde_json::to_string(&answers)?;
///
/// let restored: Answers = serde_json::from_str(&stored)?;
/// assert_eq!(restored.get("order-17/paint/5d0f").unwrap().value, "red");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Answers {
    table: Arc<AnswerTable>,
    /// Where answers are looked up that this value does not have.
    others: Option<Arc<Self>>,
    settles_edits: bool,
    keeps_values: bool,
    /// Called for each question that interrupts a run which asks through this value.
    on_open: Option<fn(&Interrupt, &RunContext)>,
    on_deadline: Option<Arc<OnDeadline>>,
}

/// Keeps the deadline of an open question, or answers the question if it is over, and returns `true`.
type OnDeadline = dyn Fn(&mut Interrupt) -> Result<bool> + Send + Sync;

/// The state that clones share. No thread holds both locks at once.
#[derive(Default)]
struct AnswerTable {
    known: Mutex<Known>,
    asking: Mutex<HashMap<String, AnswerCell>>,
}

#[derive(Default)]
struct Known {
    answers: BTreeMap<String, Answer>,
    /// The ids of questions that were asked since their answer was set or removed.
    asked: HashSet<String>,
}

impl Known {
    fn note_asked(&mut self, id: &str) {
        if !self.asked.contains(id) {
            self.asked.insert(id.to_owned());
        }
    }
}

impl AnswerTable {
    fn get(&self, id: &str) -> Option<Answer> {
        self.known.lock().answers.get(id).cloned()
    }

    fn look_up(&self, id: &str) -> Option<Answer> {
        let mut known = self.known.lock();
        known.note_asked(id);
        known.answers.get(id).cloned()
    }

    /// Removes an answer, unless it was replaced meanwhile.
    fn remove(&self, id: &str, answer: &Answer) {
        let mut known = self.known.lock();
        if known.answers.get(id) == Some(answer) {
            known.answers.remove(id);
        }
    }
}

/// The outcome of a question that is being asked. The cell is empty until the outcome is known.
type AnswerCell = Arc<OnceCell<Result<Answer>>>;

impl Answers {
    /// Creates an empty value.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the nearest answers of a run: in its own extensions, or in the extensions that it inherits.
    #[must_use]
    pub fn of(run: &RunContext) -> Option<Self> {
        run.own_extension::<Self>().or_else(|| run.extension()).map(Arc::unwrap_or_clone)
    }

    /// Sets the answer to a question, and replaces an earlier answer. If [`Answer::at`] is `None`, it becomes the
    /// current time.
    pub fn answer(&self, id: impl Into<String>, answer: impl Into<Answer>) {
        let id = id.into();
        let mut answer = answer.into();
        answer.at.get_or_insert_with(SystemTime::now);
        let mut known = self.table.known.lock();
        known.asked.remove(&id);
        let before = known.answers.insert(id, answer);
        drop(known);
        drop(before);
    }

    /// Returns the answer to the question with this id, or `None` if it has no answer.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Answer> {
        self.table.get(id).or_else(|| self.others.as_ref()?.get(id))
    }

    /// Removes an answer, so that the question is asked again.
    pub fn forget(&self, id: &str) {
        let mut known = self.table.known.lock();
        known.asked.remove(id);
        let before = known.answers.remove(id);
        drop(known);
        drop(before);
    }

    /// Returns the number of answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.known.lock().answers.len()
    }

    /// Returns `true` if there are no answers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if a run of this process has asked the question through this value or a clone, since its answer
    /// was last set or removed.
    #[must_use]
    pub fn was_asked(&self, id: &str) -> bool {
        self.table.known.lock().asked.contains(id)
    }

    /// Returns the answer to a question for code that asks it, and notes that the question [was
    /// asked](Self::was_asked).
    #[must_use]
    pub fn look_up(&self, id: &str) -> Option<Answer> {
        self.table.look_up(id).or_else(|| self.others.as_ref()?.look_up(id))
    }

    /// Looks answers up in another value if this one does not have them.
    #[must_use]
    pub fn or(mut self, others: Self) -> Self {
        self.others = Some(Arc::new(others));
        self
    }

    /// Calls a function for each question that [interrupts](Self::interrupt) a run, before the run gets the error, for code
    /// that must know it even if the run goes on. The function belongs to this value, and to clones that are made of it:
    /// it is not called for runs that have other answers, which look theirs up here ([`or`](Self::or)).
    #[must_use]
    pub const fn on_open(mut self, call: fn(&Interrupt, &RunContext)) -> Self {
        self.on_open = Some(call);
        self
    }

    /// Calls a function for each question with a [deadline](Interrupt::with_deadline) that has no answer when it is asked
    /// through this value, for code that stores questions. The function sets the deadline that is stored. If this is over,
    /// it [answers](Self::answer) the question here, and returns `true`, or leaves it open, and returns `false`. It belongs
    /// to this value as the function of [`on_open`](Self::on_open) does.
    #[must_use]
    pub fn on_deadline(mut self, call: impl Fn(&mut Interrupt) -> Result<bool> + Send + Sync + 'static) -> Self {
        self.on_deadline = Some(Arc::new(call));
        self
    }

    /// Marks this value, and clones that are made of it: the code that set it as an extension executes the edits of live
    /// approvals. A middleware that gets an edit from a person stores it as the answer and interrupts the run, instead
    /// of executing the edited input itself.
    #[must_use]
    pub const fn settling_edits(mut self) -> Self {
        self.settles_edits = true;
        self
    }

    /// Returns `true` if the value was marked with [`settling_edits`](Self::settling_edits).
    #[must_use]
    pub const fn settles_edits(&self) -> bool {
        self.settles_edits
    }
}

impl Serialize for Answers {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let answers = self.table.known.lock().answers.clone();
        answers.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Answers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let known = Known { answers: BTreeMap::deserialize(deserializer)?, asked: HashSet::new() };
        let table = AnswerTable { known: Mutex::new(known), asking: Mutex::default() };
        Ok(Self { table: Arc::new(table), ..Self::default() })
    }
}

/// Shows only the number of answers, because answers may contain secrets.
impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answers({})", self.len())
    }
}
