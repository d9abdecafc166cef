//! The state of a run: an extension of the agent's run.

use std::collections::HashSet;
use std::sync::Arc;

use emitree_runtime::{Error, Result, TextFilter};
use parking_lot::Mutex;

use super::events::FinalAnswer;
use super::plan::Plan;
use super::rules::Step;
use emitree_agent::{CallResult, How, ToolCall};

/// The steps of a run. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Steps {
    all: Arc<Vec<Step>>,
    succeeded: Arc<Vec<Step>>,
}

impl Steps {
    pub(super) fn seen(&self, counts_failures: bool) -> &[Step] {
        if counts_failures { &self.all } else { &self.succeeded }
    }

    /// Adds a call that is about to be executed.
    pub(super) fn expect(&mut self, call: &ToolCall) {
        self.push(Step::new(call.clone(), None), true);
    }

    fn push(&mut self, step: Step, has_succeeded: bool) {
        if has_succeeded {
            Arc::make_mut(&mut self.succeeded).push(step.clone());
        }
        Arc::make_mut(&mut self.all).push(step);
    }
}

/// A final answer while the model writes it.
pub(super) struct StreamedAnswer {
    pub(super) event: FinalAnswer,
    /// The text so far, as the filter left it. Listeners do not change it.
    pub(super) text: String,
    /// The filter of the agent's run for the text.
    pub(super) filter: Option<Box<dyn TextFilter>>,
}

/// No user code is called while the state is locked.
#[derive(Default)]
pub(super) struct InRun(Mutex<State>);

#[derive(Default)]
struct State {
    steps: Steps,
    plan: Arc<Plan>,
    /// The number of the turn that has begun and not ended.
    turn: Option<u32>,
    /// The calls of this turn that passed the gate.
    admitted: HashSet<String>,
    /// `true` if a call of this turn has succeeded.
    has_succeeded: bool,
    /// The reason of the first refusal of this turn, unless a call of the turn has succeeded.
    refused: Option<String>,
    /// The number of turns since the last step in which the model was refused.
    retries: u32,
    /// The last call, and how often it was made in a row.
    repeated: Option<(Step, u32)>,
    /// The tool that is not offered in this turn because of equal calls.
    blocked: Option<(Arc<str>, u32)>,
    answer: Option<StreamedAnswer>,
}

impl InRun {
    /// Forgets the attempt before.
    pub(super) fn reset(&self) {
        *self.0.lock() = State::default();
    }

    pub(super) fn steps(&self) -> Steps {
        self.0.lock().steps.clone()
    }

    pub(super) fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.0.lock().plan)
    }

    /// Ends a turn, and returns its number.
    pub(super) fn end_turn(&self) -> Option<u32> {
        self.0.lock().turn.take()
    }

    /// Counts a retry if all that the model did in the last turn was refused.
    ///
    /// # Errors
    ///
    /// Returns an error with the reason if there were too many retries.
    pub(super) fn check_retries(&self, most: u32) -> Result<()> {
        let mut state = self.0.lock();
        let Some(reason) = state.refused.take() else { return Ok(()) };
        if state.retries == most {
            return Err(Error::new(format!(
                "the model still does not follow its requirements (`max_retries_per_step({most})`): {reason}"
            )));
        }
        state.retries += 1;
        Ok(())
    }

    /// Returns the tool that was called so often in a row with equal arguments, and forgets these calls.
    pub(super) fn block_repeated(&self, most: u32) -> Option<(Arc<str>, u32)> {
        let mut state = self.0.lock();
        let repeated = state.repeated.take_if(|(_, times)| *times >= most);
        state.blocked = repeated.map(|(step, times)| (step.tool().into(), times));
        state.blocked.clone()
    }

    pub(super) fn blocked(&self) -> Option<(Arc<str>, u32)> {
        self.0.lock().blocked.clone()
    }

    pub(super) fn begin_turn(&self, turn: u32, plan: Arc<Plan>) {
        let mut state = self.0.lock();
        (state.turn, state.plan, state.answer) = (Some(turn), plan, None);
        state.has_succeeded = false;
        state.admitted.clear();
    }

    pub(super) fn refuse(&self, reason: String) {
        let mut state = self.0.lock();
        if !state.has_succeeded {
            state.refused.get_or_insert(reason);
        }
    }

    pub(super) fn admit(&self, call: &ToolCall) {
        self.0.lock().admitted.insert(call.id.clone());
    }

    /// Returns `true` if the call of a result has passed the gate.
    pub(super) fn is_admitted(&self, result: &CallResult) -> bool {
        self.0.lock().admitted.contains(&result.call.id)
    }

    /// Adds the call of a result to the steps.
    pub(super) fn record(&self, result: &CallResult) {
        let is_done = matches!(result.how, How::Executed | How::Answered);
        let has_succeeded = is_done && !result.output.is_error;
        let step = Step::new(result.call.clone(), Some(result.output.clone()));
        let mut state = self.0.lock();
        // Failed calls count too: a model that repeats a call that fails is stuck as well.
        match &mut state.repeated {
            Some((last, times)) if last.is_call_like(&step) => *times += 1,
            repeated => *repeated = Some((step.clone(), 1)),
        }
        state.steps.push(step, has_succeeded);
        if has_succeeded {
            // A step that succeeds is progress: refusals of this turn, earlier and later ones, do not count.
            (state.refused, state.retries, state.has_succeeded) = (None, 0, true);
        }
    }

    /// Takes the final answer while its listeners are called, or returns `None` if there may be none in this turn.
    pub(super) fn take_answer(&self, is_first: bool) -> Option<StreamedAnswer> {
        let mut state = self.0.lock();
        if !state.plan.offers_answer() {
            return None;
        }
        let new = || StreamedAnswer {
            event: FinalAnswer { delta: String::new(), structured: None, output: String::new() },
            text: String::new(),
            filter: None,
        };
        match state.answer.take() {
            Some(answer) if !is_first => Some(answer),
            _ => Some(new()),
        }
    }

    pub(super) fn put_answer(&self, answer: StreamedAnswer) {
        self.0.lock().answer = Some(answer);
    }
}
