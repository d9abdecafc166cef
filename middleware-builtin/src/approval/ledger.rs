//! What has been answered: [`Approvals`].
//!
//! 1. What is being asked stands in `asking` as long as somebody asks it or waits for the answer.
//! 2. Of those who ask the same at the same time one asks; if it is dropped or stopped, another one does.
//! 3. An answer is in `answers` before anybody goes on with it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use emitree_runtime::{Result, RunContext};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::OnceCell;

use super::Decision;

/// Answers, by the ids of what was asked: what was answered is not asked again (M8).
///
/// In JSON an object: `{"approval-5d0f…": "approve"}`. It can be stored, and given to the runs of another process. Clones
/// are the same one; nothing is forgotten by itself.
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

#[derive(Default)]
struct AnswerTable {
    answers: Mutex<BTreeMap<String, Decision>>,
    asking: Mutex<HashMap<String, AnswerCell>>,
}

/// What is being asked, and what came of it.
type AnswerCell = Arc<OnceCell<Result<Decision>>>;

impl Approvals {
    /// One without answers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers what was asked under an id: that of an [`Interrupt`](emitree_runtime::Interrupt), or of a
    /// [`Request`](super::Request). Another answer to it goes.
    pub fn answer(&self, id: impl Into<String>, decision: Decision) {
        self.0.answers.lock().insert(id.into(), decision);
    }

    /// What was answered.
    #[must_use]
    pub fn decision(&self, id: &str) -> Option<Decision> {
        self.0.answers.lock().get(id).cloned()
    }

    /// Forgets an answer: it is asked again.
    pub fn forget(&self, id: &str) {
        self.0.answers.lock().remove(id);
    }

    /// How many answers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.answers.lock().len()
    }

    /// Tells whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.answers.lock().is_empty()
    }

    /// That of a run tree, kept in the context of its outermost run.
    pub(super) fn of_tree(run: &RunContext) -> Self {
        let outermost = std::iter::successors(Some(run), |run| run.parent()).last().unwrap_or(run);
        outermost.extension_or_default::<TreeApprovals>().0.clone()
    }

    /// Asks, unless somebody asks the same already: then it waits for what comes of that.
    ///
    /// # Cancel safety
    ///
    /// When who asks is dropped, or its run is stopped, one of those who wait asks.
    pub(super) async fn ask_once(
        &self,
        id: &str,
        ctx: &RunContext,
        ask: impl Future<Output = Result<Decision>> + Send,
    ) -> Result<Decision> {
        let question = PendingQuestion::join(&self.0, id);
        let asks = || async {
            // Who asked before may have left since one looked.
            if let Some(decision) = self.decision(id) {
                return Ok(Ok(decision));
            }
            let answer = ask.await;
            match &answer {
                Ok(decision) => self.answer(id, decision.clone()),
                Err(error) if error.is_aborted() || ctx.is_aborted() => return Err(error.clone()),
                Err(_) => {}
            }
            Ok(answer)
        };
        question.answer.get_or_try_init(asks).await?.clone()
    }
}

/// The answers of a run tree to which nobody has given any.
#[derive(Default)]
struct TreeApprovals(Approvals);

/// A part in something that is asked; the last one who leaves takes it away.
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
        // Seats are taken under this lock only: the table's and this one are the last.
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

/// How many answers there are; what they are may be secret.
impl fmt::Debug for Approvals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Approvals({})", self.len())
    }
}
