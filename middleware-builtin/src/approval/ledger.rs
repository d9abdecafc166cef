//! The answers that an approval keeps: [`Approvals`].
//!
//! 1. `asking` has an entry for a question as long as a run asks it or waits for its answer.
//! 2. If several runs have the same question at the same time, one run asks and the others wait. If the asking run is
//!    dropped or aborted, one of the waiting runs asks.
//! 3. An answer is stored in `answers` before any run continues with it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use emitree_runtime::{Result, RunContext};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::OnceCell;

use super::Decision;

/// A ledger that maps the id of a question to its answer. A question that has an answer is not asked again.
///
/// A ledger is serialized as a JSON object such as `{"approval-5d0f…": "approve"}`. It can be stored, and restored for
/// runs of another process. Clones share their answers. Answers stay until [`forget`](Self::forget) removes them.
///
/// ```
/// use emitree_middleware::approval::{Approvals, Decision};
///
/// let approvals = Approvals::new();
/// approvals.answer("approval-5d0f", Decision::Approve);
/// let stored = serde_json::to_string(&approvals)?;
/// assert_eq!(stored, r#"{"approval-5d0f":"approve"}"#);
///
/// let restored: Approvals = serde_json::from_str(&stored)?;
/// assert_eq!(restored.decision("approval-5d0f"), Some(Decision::Approve));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Approvals(Arc<AnswerTable>);

/// The shared state of a ledger. No thread holds both locks at once.
#[derive(Default)]
struct AnswerTable {
    answers: Mutex<BTreeMap<String, Decision>>,
    asking: Mutex<HashMap<String, AnswerCell>>,
}

/// The outcome of a question that is being asked. The cell is empty until the outcome is known.
type AnswerCell = Arc<OnceCell<Result<Decision>>>;

impl Approvals {
    /// Creates an empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the answer to a question, and replaces an earlier answer. Pass the id of the question's
    /// [`Interrupt`](emitree_runtime::Interrupt) or [`Request`](super::Request).
    pub fn answer(&self, id: impl Into<String>, decision: Decision) {
        self.0.answers.lock().insert(id.into(), decision);
    }

    /// Returns the answer to the question with this id, or `None` if it has no answer.
    #[must_use]
    pub fn decision(&self, id: &str) -> Option<Decision> {
        self.0.answers.lock().get(id).cloned()
    }

    /// Removes an answer, so that the question is asked again.
    pub fn forget(&self, id: &str) {
        self.0.answers.lock().remove(id);
    }

    /// Returns the number of answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.answers.lock().len()
    }

    /// Returns `true` if there are no answers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.answers.lock().is_empty()
    }

    /// Returns the ledger of a run tree. The ledger is stored in the extensions of the outermost run.
    pub(super) fn of_tree(run: &RunContext) -> Self {
        let outermost = std::iter::successors(Some(run), |run| run.parent()).last().unwrap_or(run);
        outermost.extension_or_default::<TreeApprovals>().0.clone()
    }

    /// Asks a question. If another run is already asking the same question, waits for that run's answer or failure
    /// instead.
    ///
    /// # Cancel safety
    ///
    /// If the asking run is dropped or aborted, one of the waiting runs asks.
    pub(super) async fn ask_once(
        &self,
        id: &str,
        ctx: &RunContext,
        ask: impl Future<Output = Result<Decision>> + Send,
    ) -> Result<Decision> {
        // Join before the first await, so that runs which ask from now on share this cell.
        let question = PendingQuestion::join(&self.0, id);
        let asks = || async {
            // Another run may have stored the answer after this run's lookup and before this run joined (2).
            if let Some(decision) = self.decision(id) {
                return Ok(Ok(decision));
            }
            let answer = ask.await;
            match &answer {
                // Store the answer before the cell is set and any waiting run continues with it (3).
                Ok(decision) => self.answer(id, decision.clone()),
                // Return `Err` to leave the cell empty: an aborted run has no answer, so a waiting run asks next (2).
                Err(error) if error.is_aborted() || ctx.is_aborted() => return Err(error.clone()),
                Err(_) => {}
            }
            Ok(answer)
        };
        question.answer.get_or_try_init(asks).await?.clone()
    }
}

/// The ledger of a run tree for which no ledger was set.
#[derive(Default)]
struct TreeApprovals(Approvals);

/// One run's handle to a pending question. Dropping the last handle removes the question from `asking`.
struct PendingQuestion<'a> {
    table: &'a AnswerTable,
    id: &'a str,
    answer: AnswerCell,
}

impl<'a> PendingQuestion<'a> {
    fn join(table: &'a AnswerTable, id: &'a str) -> Self {
        let answer = Arc::clone(table.asking.lock().entry(id.to_owned()).or_default());
        Self { table, id, answer }
    }
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        let mut asking = self.table.asking.lock();
        // The cell is cloned only under this lock, so a count of two means that only the table and this handle still
        // hold the cell (1).
        if Arc::strong_count(&self.answer) == 2 {
            asking.remove(self.id);
        }
    }
}

impl Serialize for Approvals {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let answers = self.0.answers.lock().clone();
        answers.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Approvals {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let answers = Mutex::new(BTreeMap::deserialize(deserializer)?);
        Ok(Self(Arc::new(AnswerTable { answers, asking: Mutex::default() })))
    }
}

/// Shows only the number of answers, because answers may contain secrets.
impl fmt::Debug for Approvals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Approvals({})", self.len())
    }
}
