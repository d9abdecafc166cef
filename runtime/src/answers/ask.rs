//! Asking: a run gets its answer, or is interrupted with the question.

use std::iter::successors;

use emitree_emitter::json::check_depth;
use serde::de::DeserializeOwned;

use super::{Answer, Answers};
use crate::context::span::Title;
use crate::{Error, ErrorKind, Interrupt, Result, RunContext};

impl Answers {
    /// Asks a question of a run: returns its answer, or interrupts the run with the question.
    ///
    /// The question gets the id of [`Interrupt::about`], with the run's [key](RunContext::key). In a run without a key,
    /// the id is the question's kind, a `-`, and a hash that covers the run's kind and name as well, so equal questions
    /// of such runs share their answer. If a run above has a key, the id begins with this key and the run's name, so only
    /// runs below the same key share it.
    ///
    /// # Errors
    ///
    /// - Without an answer: an interrupt with the question.
    /// - If the answer does not fit `T`: the same interrupt, and the answer is [removed](Self::refuse).
    /// - If the question is to be asked, and the work of the run, or of a run above, has [begun](RunContext::begin) and
    ///   is not [idempotent](RunContext::is_idempotent): an error that names the run and the question. The work would
    ///   start from its beginning after the answer, and have its effects twice.
    /// - If the question's data is nested too deeply, or if the answer of its deadline is or does not fit `T`: an error of
    ///   kind `Invalid`.
    pub fn ask<T: DeserializeOwned>(&self, question: Interrupt, run: &RunContext) -> Result<T> {
        // Hashing recurses: data that is nested too deeply would overflow the stack.
        let deadline = question.deadline.as_ref().map_or(Ok(()), |answer| check_depth(&answer.value));
        check_depth(&question.data).and(deadline).map_err(|error| {
            Error::of_kind(ErrorKind::Invalid, format!("the question `{}` cannot be asked: {error}", question.kind))
        })?;
        self.ask_as(question.asked_by(run), run, Answer::read)
    }

    /// Asks a question that has its id already, and reads the answer with a function. An answer for which the function
    /// returns an error is removed, with the error's message as the reason.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask), except that the data is not checked.
    pub fn ask_as<T>(
        &self,
        mut question: Interrupt,
        run: &RunContext,
        read: impl Fn(&Answer) -> Result<T>,
    ) -> Result<T> {
        if let Some(Err(error)) = question.deadline.as_ref().map(&read) {
            let problem = format!("the question `{}` cannot be asked: at its deadline, {error}", question.kind);
            return Err(Error::of_kind(ErrorKind::Invalid, problem));
        }
        let mut refused = None;
        let mut is_over = false;
        loop {
            let answer = self.look_up(&question.id);
            match answer.map(|answer| (read(&answer), answer)) {
                Some((Ok(value), _)) => return Ok(value),
                Some((Err(error), answer)) => refused = Some((answer, error.to_string())),
                None => {}
            }
            // Look the answer of a deadline that is over up once: it may not fit either.
            if is_over || !self.meet_deadline(&mut question)? {
                let refused = refused.as_ref().map(|(answer, reason)| (answer, &**reason));
                return Err(self.interrupt(question, run, refused));
            }
            is_over = true;
        }
    }

    /// Returns `true` if an open question has a deadline that is over, and that has answered it.
    fn meet_deadline(&self, question: &mut Interrupt) -> Result<bool> {
        match &self.on_deadline {
            Some(call) if question.deadline.is_some() => call(question),
            _ => Ok(false),
        }
    }

    /// Returns the error that interrupts a run with a question, for code that reads answers itself. An answer that was
    /// refused is [removed](Self::refuse). If the run cannot ask, because its work has begun, the error says so, and the
    /// answer stays.
    #[must_use]
    pub fn interrupt(&self, question: Interrupt, run: &RunContext, refused: Option<(&Answer, &str)>) -> Error {
        if question.kept.is_some() && !self.keeps_values {
            return Error::new(format!(
                "the question `{}` cannot keep a value: only the run of an agent's tool keeps one",
                question.kind
            ));
        }
        if let Err(error) = check_restart(run, &question) {
            return error;
        }
        let question = match refused {
            None => {
                self.watch_unmatched(&question.id, run);
                question
            }
            Some((answer, reason)) => self.refuse(question, answer, reason),
        };
        if let Some(call) = self.on_open {
            call(&question, run);
        }
        Error::interrupted(question)
    }

    /// Refuses an answer: removes it, unless it was replaced meanwhile, and returns the question with the answer and
    /// the reason in its data. The question is open again under its id.
    ///
    /// The data gets the member `"refused": {"answer": …, "reason": …}`. Other data than an object becomes
    /// `{"data": …, "refused": …}`.
    #[must_use]
    pub fn refuse(&self, question: Interrupt, answer: &Answer, reason: &str) -> Interrupt {
        for answers in successors(Some(self), |answers| answers.others.as_deref()) {
            answers.table.remove(&question.id, answer);
        }
        question.with_refused(answer, reason)
    }
}

/// Returns an error if a run that waits for an answer could not be made again without effects.
fn check_restart(run: &RunContext, question: &Interrupt) -> Result<()> {
    // A call that keeps a value goes on where it was.
    let first = if question.kept.is_some() { run.parent() } else { Some(run) };
    let begun = successors(first, |run| run.parent()).find(|run| run.has_begun() && !run.is_idempotent());
    let Some(begun) = begun else { return Ok(()) };
    let (title, Interrupt { id, kind, .. }) = (Title { kind: begun.kind(), name: begun.name() }, question);
    Err(Error::new(format!(
        "the question `{kind}` ({id}) cannot be asked, because the work of `{title}` has begun and an answer would start it again: mark the tool `idempotent`, or ask at the gate"
    )))
}

impl RunContext {
    /// Asks a question: returns the answer from the nearest [`Answers`] in the extensions of the run, or interrupts the
    /// run with the question. [`Answers::ask`] has the details.
    ///
    /// The work of an interrupted run starts from its beginning when the run is made again, so ask before the work has
    /// effects, or in a run that is [idempotent](Self::is_idempotent), or put the effects into steps of a job.
    ///
    /// ```
    /// use emitree_runtime::{Answers, Interrupt, RunContext, Runnable, runnable_fn};
    /// use serde_json::json;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let paint = runnable_fn("paint", |(): (), ctx: RunContext| async move {
    ///     let colour: String = ctx.ask(Interrupt::new("colour", json!({"choices": ["red", "blue"]})))?;
    ///     Ok(format!("painted {colour}"))
    /// });
    /// let answers = Answers::new();
    /// let run = || paint.run(()).key("order-17").extension(answers.clone());
    ///
    /// let error = run().await.unwrap_err();
    /// answers.answer(&error.interrupt().unwrap().id, json!("red"));
    /// assert_eq!(run().await?, "painted red");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Answers::ask`].
    pub fn ask<T: DeserializeOwned>(&self, question: Interrupt) -> Result<T> {
        Answers::of(self).unwrap_or_default().ask(question, self)
    }
}
