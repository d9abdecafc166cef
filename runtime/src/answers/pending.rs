//! Questions that are being asked: runs that have the same question at the same time ask it once.
//!
//! 1. `asking` has an entry for a question as long as a run asks it or waits for its answer.
//! 2. If several runs have the same question at the same time, one run asks and the others wait. If the asking run is
//!    dropped or aborted, one of the waiting runs asks.
//! 3. An answer is stored before any run continues with it.

use std::future::Future;
use std::sync::Arc;

use super::{Answer, AnswerCell, AnswerTable, Answers};
use crate::{Result, RunContext};

impl Answers {
    /// Asks a question with a future. If another run is already asking the same question, waits for that run's answer or
    /// failure instead. If the question has an answer, returns it.
    ///
    /// # Errors
    ///
    /// Returns the future's error, which is not stored, or the error of the future for which this run has waited.
    ///
    /// # Cancel safety
    ///
    /// If the asking run is dropped or aborted, one of the waiting runs asks.
    pub async fn ask_once(
        &self,
        id: &str,
        run: &RunContext,
        ask: impl Future<Output = Result<Answer>> + Send,
    ) -> Result<Answer> {
        // Join before the first await, so that runs which ask from now on share this cell.
        let question = PendingQuestion::join(&self.table, id);
        let asks = || async {
            // Another run may have stored the answer after this run's lookup and before this run joined (2).
            if let Some(answer) = self.get(id) {
                return Ok(Ok(answer));
            }
            let answer = ask.await;
            match &answer {
                // Store the answer before the cell is set and any waiting run continues with it (3).
                Ok(answer) => self.answer(id, answer.clone()),
                // Return `Err` to leave the cell empty: an aborted run has no answer, so a waiting run asks next (2).
                Err(error) if error.is_aborted() || run.is_aborted() => return Err(error.clone()),
                Err(_) => {}
            }
            Ok(answer)
        };
        let answer = question.answer.get_or_try_init(asks).await?.clone();
        // Setting the answer has cleared the note: this run has the answer that it asked for.
        self.table.known.lock().note_asked(id);
        answer
    }
}

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
