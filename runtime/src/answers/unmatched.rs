//! Answers that a run was given, and that match none of its questions, although it was interrupted by another one.

use std::iter::successors;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_emitter::{AnyEvent, Event, EventMeta, EventName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{AnswerTable, Answers};
use crate::context::span::Title;
use crate::lifecycle::erased::LifecycleRef;
use crate::{RunContext, Stage, Status};

/// The event `unmatched_answers`: a run ends with a question, although it has [`Answers`] that nobody has asked for.
///
/// Emitted on the run whose extensions have the answers, at its `finish`. If nobody has asked for any of the answers, a
/// warning is logged as well, once for each instance. The answers belong to other questions, so the run was interrupted again, and what it did before the
/// question happens again in the next run. Answer the question with the id of the [`Interrupt`](crate::Interrupt); the
/// questions of an agent's session are answered with `Session::answer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnmatchedAnswers {
    /// The id of the first question that had no answer.
    pub question: String,
    /// The ids of the answers that nobody has asked for.
    pub ids: Vec<String>,
}

impl Event for UnmatchedAnswers {
    const NAME: EventName = EventName::new("unmatched_answers");

    fn head(&self) -> Option<Value> {
        Some(json!(self))
    }
}

/// Set for a run whose answers are compared with its questions when it ends.
#[derive(Default)]
struct Watched(AtomicBool);

impl Answers {
    /// Compares the answers that a run above, or this run, was given with the questions that were asked, when that run
    /// ends. Called when a question has no answer: other runs pay nothing.
    pub(super) fn watch_unmatched(&self, question: &str, run: &RunContext) {
        let table = self.given();
        if table.unasked().is_empty() {
            return;
        }
        // The outermost run that has these answers: they were given to it.
        let has_them = |run: &&RunContext| Self::of(run).is_some_and(|answers| Arc::ptr_eq(answers.given(), table));
        let Some(given_to) = successors(Some(run), |run| run.parent()).take_while(has_them).last() else { return };
        if given_to.own_extension_or_default::<Watched>().0.swap(true, Ordering::Relaxed) {
            return;
        }
        let table = Arc::clone(table);
        let question = question.to_owned();
        let watched =
            given_to.emitter().on_async(Stage::Finish, move |event: &mut dyn AnyEvent, meta: &EventMeta<'_>| {
                // Until now, a run beside the asking one may have asked for the other answers.
                let ids = if is_interrupted(event, meta) { table.unasked() } else { Vec::new() };
                let none_is_asked = !table.has_asked();
                let event = UnmatchedAnswers { question: question.clone(), ids };
                let run = RunContext::current().filter(|_| !event.ids.is_empty());
                Box::pin(async move {
                    if let Some(run) = run {
                        if none_is_asked {
                            warn(&event, &run);
                        }
                        emit(event, &run).await;
                    }
                    Ok(())
                })
            });
        // A run that accepts no listeners has ended, so nobody waits for the event.
        watched.ok();
    }

    /// Returns the table that is asked last: an agent or a job looks its own answers up first.
    fn given(&self) -> &Arc<AnswerTable> {
        let mut answers = self;
        while let Some(others) = &answers.others {
            answers = others;
        }
        &answers.table
    }
}

impl AnswerTable {
    fn unasked(&self) -> Vec<String> {
        let known = self.known.lock();
        known.answers.keys().filter(|id| !known.asked.contains(*id)).cloned().collect()
    }

    /// Returns `true` if somebody has asked for one of the answers.
    fn has_asked(&self) -> bool {
        let known = self.known.lock();
        known.answers.keys().any(|id| known.asked.contains(id))
    }
}

fn is_interrupted(event: &dyn AnyEvent, meta: &EventMeta<'_>) -> bool {
    matches!(LifecycleRef::of(event, meta), Some(LifecycleRef::Finish(finish)) if finish.status() == Status::Interrupted)
}

fn warn(event: &UnmatchedAnswers, run: &RunContext) {
    let title = Title { kind: run.kind(), name: run.name() };
    run.warn_once("answers.unmatched", || {
        format!(
            "the run of `{title}` was interrupted by the question `{}`, and its answers match no question of it: {}; write \
             `answers.answer(interrupt.id, …)` with the id of the interrupt, or `session.answer(id, …)` and \
             `agent.resume(&session)` for an agent's session",
            event.question,
            event.ids.join(", ")
        )
    });
}

async fn emit(mut event: UnmatchedAnswers, run: &RunContext) {
    if run.has_listeners()
        && let Err(error) = run.emitter().emit_event(&mut event).await
    {
        tracing::warn!(%error, "a listener of `unmatched_answers` failed");
    }
}
