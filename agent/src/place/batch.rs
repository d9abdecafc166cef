//! The calls of a turn at the gate.

use std::sync::Arc;

use emitree_emitter::json::check_depth;
use emitree_runtime::{Answer, Answers, Error, Interrupt, Result, RunContext};
use serde::de::DeserializeOwned;

use crate::ToolCall;
use crate::place::built::Gate;
use crate::place::filters::apply_caught;
use crate::session::record::Fact;
use crate::session::turn::LiveTurn;
use crate::tool::output::ToolOutput;

/// All tool calls of a turn, before any of them starts: the value at [`Place::ToolGate`](crate::Place::ToolGate).
///
/// A gate edits the batch: it changes calls and decides on them. It cannot add, remove or reorder calls. A call that a
/// gate replaces, for example with a call of another batch, is denied.
#[derive(Debug)]
pub struct Batch(pub(crate) Vec<GatedCall>);

impl Batch {
    /// Returns the calls that have no verdict yet, and whose tool exists and accepts their arguments.
    pub fn open(&mut self) -> impl Iterator<Item = &mut GatedCall> {
        self.0.iter_mut().filter(|gated| gated.is_open())
    }

    /// Returns all calls.
    pub fn calls(&self) -> impl Iterator<Item = &GatedCall> {
        self.0.iter()
    }

    /// Passes the calls through all gates, before any tool starts. The turn keeps the gates that let a call pass.
    pub(crate) async fn pass_gates(
        &mut self,
        gates: impl Iterator<Item = &Gate>,
        ctx: &RunContext,
        asks: Asks,
    ) -> Result<()> {
        let asks = Arc::new(asks);
        self.0.iter_mut().for_each(|gated| gated.asks = Some(Arc::clone(&asks)));
        let originals: Vec<_> = self.0.iter_mut().map(GatedCall::mark).collect();
        let mut names = Names::default();
        for gate in gates {
            let (Gate::Batch(by, _) | Gate::Each(by, _)) = gate;
            let name = names.name(by);
            // A call that an earlier run has brought through this gate does not come here again.
            let passed: Vec<_> = self.0.extract_if(.., |gated| gated.passed.contains(&name)).collect();
            if passed.is_empty() {
                self.pass_gate(gate, ctx, &originals).await?;
            } else {
                let is_here = |original: &&Original| !passed.iter().any(|gated| gated.position == original.position);
                let here: Vec<_> = originals.iter().filter(is_here).cloned().collect();
                if !here.is_empty() {
                    self.pass_gate(gate, ctx, &here).await?;
                }
                self.0.extend(passed);
                self.0.sort_by_key(|gated| gated.position);
            }
            // After each gate, so that a resume does not call this gate again if a later one ends the run (A22).
            for gated in &mut self.0 {
                gated.end_gate(&name, &asks);
            }
        }
        Ok(())
    }

    async fn pass_gate(&mut self, gate: &Gate, ctx: &RunContext, originals: &[Original]) -> Result<()> {
        match gate {
            Gate::Batch(by, filters) => {
                let passed = apply_caught(filters, self, ctx).await;
                // Restored first, so that a failure applies to the calls of this turn.
                self.restore(originals, by);
                if let Err(error) = passed {
                    // The failed gate might have denied any open call, so its error applies to all open calls.
                    self.open().try_for_each(|gated| gated.decide_by(by, &error))?;
                    // Even if no call is open, some errors end the run, for example a halt or a fatal error.
                    if ends_the_run(&error) {
                        return Err(error);
                    }
                }
            }
            Gate::Each(by, filters) => {
                for gated in self.open() {
                    if let Err(error) = apply_caught(filters, gated, ctx).await {
                        gated.decide_by(by, &error)?;
                    }
                }
                self.restore(originals, by);
            }
        }
        Ok(())
    }

    /// Restores the calls of the turn, in order and with their ids, because results are matched to calls by position
    /// and id. A call that the gate has replaced is denied.
    fn restore(&mut self, originals: &[Original], by: &str) {
        let is_of = |gated: &GatedCall, original: &Original| {
            gated.original.as_ref().is_some_and(|marked| Arc::ptr_eq(marked, &original.call))
        };
        if self.0.len() != originals.len() || !self.0.iter().zip(originals).all(|(gated, it)| is_of(gated, it)) {
            let mut left = std::mem::take(&mut self.0);
            let mut find = |original: &Original| match left.iter().position(|gated| is_of(gated, original)) {
                Some(at) => left.swap_remove(at),
                None => GatedCall::removed(original, by),
            };
            self.0 = originals.iter().map(&mut find).collect();
        }
        for (gated, original) in self.0.iter_mut().zip(originals) {
            gated.call.id.clone_from(&original.call.id);
        }
    }
}

/// A tool call at the gate.
#[derive(Debug)]
#[non_exhaustive]
pub struct GatedCall {
    /// The call. If a gate changes its name or arguments, they are checked again. A change of the id is undone.
    ///
    /// The history keeps the call as the model wrote it, because some providers check signatures of their responses.
    /// Hooks of [`tool.result`](crate::Place::ToolResult) and listeners for [`ToolResponse`](crate::ToolResponse)
    /// receive the changed call. To tell the model about the change, mention the change in the result.
    pub call: ToolCall,
    verdict: Option<Verdict>,
    /// The reason why the call cannot be executed. Gates do not decide on a call with a fault.
    pub(crate) fault: Option<String>,
    /// The call before the gates. Its address identifies the call, even if a gate swaps calls.
    original: Option<Arc<ToolCall>>,
    /// The position of the call in its turn.
    pub(crate) position: usize,
    /// The gates that have let the call pass in an earlier run.
    pub(crate) passed: Vec<String>,
    /// The gate that has interrupted the call, or the asker of an earlier run.
    pub(crate) asked_by: Option<String>,
    asks: Option<Arc<Asks>>,
}

/// Where gates find the answers to their questions.
#[derive(Debug)]
pub(crate) struct Asks {
    answers: Answers,
    ctx: RunContext,
    /// The turn of the calls, which have keys. `None` in a test of hooks.
    calls: Option<Arc<LiveTurn>>,
}

impl Asks {
    pub(crate) fn of_turn(answers: &Answers, ctx: &RunContext, calls: &Arc<LiveTurn>) -> Self {
        Self { answers: answers.clone(), ctx: ctx.clone(), calls: Some(Arc::clone(calls)) }
    }

    pub(crate) fn of_test(ctx: &RunContext) -> Self {
        Self { answers: Answers::of(ctx).unwrap_or_default(), ctx: ctx.clone(), calls: None }
    }
}

/// A call as it comes to the gates.
#[derive(Clone, Debug)]
struct Original {
    position: usize,
    call: Arc<ToolCall>,
}

/// Names the gates of an agent: the id of the middleware, with a number if it has several.
#[derive(Default)]
struct Names<'a>(Vec<&'a str>);

impl<'a> Names<'a> {
    fn name(&mut self, by: &'a str) -> String {
        self.0.push(by);
        match self.0.iter().filter(|other| **other == by).count() {
            1 => by.to_owned(),
            count => format!("{by}#{count}"),
        }
    }
}

/// A decision about a call at the gate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// The tool does not run. The call has this output instead.
    Answer(ToolOutput),
    /// The tool does not run. The model receives this reason as a result that is not an error.
    Skip(String),
    /// The tool does not run. The model receives an error with the name of the middleware and the reason.
    Deny {
        /// The name of the middleware that denies the call.
        by: String,
        /// The reason.
        reason: String,
    },
    /// The tool does not run, because a question must be answered first. The agent's run is interrupted when the other
    /// calls have settled.
    Interrupt(Interrupt),
}

impl GatedCall {
    pub(crate) const fn new(position: usize, call: ToolCall, fault: Option<String>) -> Self {
        Self { call, verdict: None, fault, original: None, position, passed: Vec::new(), asked_by: None, asks: None }
    }

    /// Makes a call whose question is still open.
    pub(crate) fn interrupted(position: usize, call: ToolCall, question: Interrupt, by: String) -> Self {
        let mut gated = Self::new(position, call, None);
        (gated.verdict, gated.asked_by) = (Some(Verdict::Interrupt(question)), Some(by));
        gated
    }

    /// Keeps that a gate has let the call pass, and how the gate has left it, or that it has asked.
    fn end_gate(&mut self, gate: &str, asks: &Asks) {
        if matches!(self.verdict, Some(Verdict::Interrupt(_))) {
            self.asked_by.get_or_insert_with(|| gate.to_owned());
        }
        let is_new = self.is_open() && !self.passed.iter().any(|passed| passed == gate);
        if let Some(calls) = &asks.calls
            && is_new
        {
            // The gate is not called again, so it does not ask again.
            calls.use_answers(self.position, &asks.answers);
            calls.note_all(self.position, |known| {
                let passed = [Fact::Passed(gate.to_owned())];
                passed.into_iter().chain(calls.change_to(known, self.position, &self.call, false)).collect()
            });
        }
    }

    /// Marks the call before it passes through the gates.
    fn mark(&mut self) -> Original {
        let call = Arc::new(self.call.clone());
        self.original = Some(Arc::clone(&call));
        Original { position: self.position, call }
    }

    /// Restores and denies a call that a gate has removed from its batch.
    fn removed(original: &Original, by: &str) -> Self {
        let mut gated = Self::new(original.position, ToolCall::clone(&original.call), None);
        gated.original = Some(Arc::clone(&original.call));
        gated.deny(by, "the gate removed the call; it can only edit calls and decide on them");
        gated
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.verdict.is_none() && self.fault.is_none()
    }

    /// Returns the verdict, if there is one.
    #[must_use]
    pub const fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    pub(crate) fn into_parts(self) -> (ToolCall, Option<Verdict>, Option<String>) {
        (self.call, self.verdict, self.fault)
    }

    /// Sets the verdict. If the call already has a verdict, the new verdict is ignored.
    pub fn decide(&mut self, verdict: Verdict) {
        self.verdict.get_or_insert(verdict);
    }

    /// Sets the output of the call. The tool does not run.
    pub fn answer(&mut self, output: ToolOutput) {
        self.decide(Verdict::Answer(output));
    }

    /// Skips the call. The model receives the reason as a result that is not an error.
    pub fn skip(&mut self, reason: impl Into<String>) {
        self.decide(Verdict::Skip(reason.into()));
    }

    /// Denies the call. `by` is the name of the middleware.
    pub fn deny(&mut self, by: impl Into<String>, reason: impl Into<String>) {
        self.decide(Verdict::Deny { by: by.into(), reason: reason.into() });
    }

    /// Asks a question about the call. Returns the answer, or `None` if there is none yet: then the call is interrupted,
    /// and so is the agent's run when the other calls have settled. When the run is
    /// [resumed](crate::Agent::resume), the gate is called again with this call, asks again, and gets the answer. Returns
    /// `None` and asks nothing if the call has a verdict.
    ///
    /// The question belongs to this call with exactly these arguments. If an answer is no `T`, it is removed: the
    /// question is open again, with the refused answer and the reason in its data.
    ///
    /// ```
    /// use emitree_agent::{Hooks, hooks_fn};
    /// use emitree_runtime::Interrupt;
    /// use serde_json::json;
    ///
    /// let cashier = hooks_fn("cashier", |hooks: &mut Hooks| {
    ///     hooks.on_gate_each(|gated, _| {
    ///         let question = Interrupt::new("large", json!({"call": gated.call}));
    ///         if gated.ask::<bool>(question)? == Some(false) {
    ///             gated.deny("cashier", "the cashier refused");
    ///         }
    ///         Ok(())
    ///     });
    /// });
    /// # let _ = cashier;
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Answers::ask`](emitree_runtime::Answers::ask), except that an open question is no error.
    pub fn ask<T: DeserializeOwned>(&mut self, question: Interrupt) -> Result<Option<T>> {
        if !self.is_open() {
            return Ok(None);
        }
        let Some(asks) = self.asks.clone() else { return Ok(None) };
        let asked = match &asks.calls {
            None => asks.answers.ask(question, &asks.ctx),
            Some(calls) => {
                check_depth(&question.data)?;
                let key = calls.key(self.position, Some(&self.call));
                asks.answers.ask_as(question.about(&key), &asks.ctx, Answer::read)
            }
        };
        let error = match asked {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        match error.interrupt() {
            Some(question) if error.is_interrupted() => self.decide(Verdict::Interrupt(question.clone())),
            _ => return Err(error),
        }
        Ok(None)
    }

    /// Turns an error into the verdict, as the gate does with the error of its hook: an interrupt interrupts the call, and
    /// any other failure denies it. `by` is the name of the middleware.
    ///
    /// # Errors
    ///
    /// Returns the error if it ends the run: a halt, an abort, a request for a retry or a fatal error.
    pub fn decide_by(&mut self, by: &str, error: &Error) -> Result<()> {
        if let Some(interrupt) = error.interrupt()
            && error.is_interrupted()
        {
            self.decide(Verdict::Interrupt(interrupt.clone()));
            return Ok(());
        }
        if ends_the_run(error) {
            return Err(error.clone());
        }
        self.deny(by, error.to_string());
        Ok(())
    }
}

/// Returns `true` if an error of a hook ends the agent's run instead of becoming a result for the model.
pub(crate) fn ends_the_run(error: &Error) -> bool {
    error.is_halted() || error.is_aborted() || error.is_retry() || error.is_fatal()
}
