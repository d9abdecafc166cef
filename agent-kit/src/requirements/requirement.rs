//! One requirement: when tools may, must or must not be called.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use emitree_runtime::{Error, Result, RunContext};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;

use super::contradictions;
use super::rules::{Rule, Rules, Step};
use emitree_agent::ToolCall;
use emitree_agent::hook::AgentSpec;

type Condition = dyn Fn(&[Step], &RunContext) -> bool + Send + Sync;
type Responder = dyn Fn(ToolCall) -> BoxFuture<'static, Result<bool>> + Send + Sync;

/// When tools may, must or must not be called. Add it to [`Requirements`](super::Requirements).
///
/// [`tool`](Self::tool) is for one tool, and [`ask`](Self::ask) for several whose calls somebody has to allow. All other
/// methods apply to each of these tools.
///
/// | | the tool |
/// |---|---|
/// | [`only_after`](Self::only_after) | may be called only after all of these tools |
/// | [`only_before`](Self::only_before) | may not be called after any of these tools |
/// | [`at_most`](Self::at_most), [`consecutive(false)`](Self::consecutive), [`when`](Self::when) | may not be called more often, twice in a row, or while a function returns `false` |
/// | [`at_least`](Self::at_least) | has to be called this often before the run may end |
/// | [`force_at_step`](Self::force_at_step), [`force_after`](Self::force_after) | has to be called now, if it may be |
///
/// A step is a call of this run that succeeded, or any call with [`counting_failures(true)`](Self::counting_failures).
/// The final answer is no step.
#[derive(Clone)]
pub struct Requirement {
    pub(super) tools: Vec<Arc<str>>,
    pub(super) force_at_step: Option<usize>,
    pub(super) force_after: Vec<Arc<str>>,
    priority: i32,
    is_consecutive: bool,
    pub(super) only_after: Vec<Arc<str>>,
    pub(super) only_before: Vec<Arc<str>>,
    pub(super) at_least: usize,
    pub(super) at_most: Option<usize>,
    because: Option<Arc<str>>,
    conditions: Vec<Arc<Condition>>,
    counts_failures: bool,
    pub(super) asks: bool,
    pub(super) responder: Option<Arc<Responder>>,
    remembers: bool,
    hides_refused: bool,
}

/// The remembered answers of responders: an extension of the agent's run. A responder is identified by its address.
#[derive(Default)]
struct Answers(Mutex<Vec<(usize, String, bool)>>);

impl Requirement {
    fn of(tools: Vec<Arc<str>>, asks: bool) -> Self {
        Self {
            tools,
            force_at_step: None,
            force_after: Vec::new(),
            priority: 0,
            is_consecutive: true,
            only_after: Vec::new(),
            only_before: Vec::new(),
            at_least: 0,
            at_most: None,
            because: None,
            conditions: Vec::new(),
            counts_failures: false,
            asks,
            responder: None,
            remembers: false,
            hides_refused: false,
        }
    }

    /// Makes a requirement for a tool. Without further methods, it requires nothing.
    #[must_use]
    pub fn tool(name: impl Into<Arc<str>>) -> Self {
        Self::of(vec![name.into()], false)
    }

    /// Makes a requirement by which somebody has to allow each call of these tools. Set the responder with
    /// [`by`](Self::by).
    #[must_use]
    pub fn ask<N: Into<Arc<str>>>(tools: impl IntoIterator<Item = N>) -> Self {
        Self::of(names(tools), true)
    }

    /// Sets the responder: an async function that returns `true` to allow a call. The calls of a turn are asked about
    /// one after the other. If the responder fails, the call is denied with its error; if it returns an interrupt, the
    /// call is interrupted.
    ///
    /// The middleware `Approval` asks as well. It also knows edits and interrupts, has events of its own, and keeps its
    /// answers for longer than a run; only a requirement hides what was refused.
    #[must_use]
    pub fn by<F, Fut>(mut self, responder: F) -> Self
    where
        F: Fn(ToolCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool>> + Send + 'static,
    {
        self.responder = Some(Arc::new(move |call| Box::pin(responder(call))));
        self
    }

    /// Asks only once about each tool in a run. The answer applies to all later calls of the tool.
    #[must_use]
    pub const fn remember(mut self) -> Self {
        self.remembers = true;
        self
    }

    /// Hides a tool for the rest of the run when a call of it was refused.
    #[must_use]
    pub const fn hide_refused(mut self) -> Self {
        self.hides_refused = true;
        self
    }

    /// Forces the tool at this step, counted from 1. A tool that is not allowed then is not forced.
    #[must_use]
    pub const fn force_at_step(mut self, step: usize) -> Self {
        self.force_at_step = Some(step);
        self
    }

    /// Forces the tool if the last step was a call of one of these tools.
    #[must_use]
    pub fn force_after<N: Into<Arc<str>>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.force_after.extend(names(tools));
        self
    }

    /// Sets the priority with which the tool is forced, by default 0. Of several forced tools, the tool of the highest
    /// priority has to be called. A forced tool does not by itself prevent the end of the run: add
    /// [`at_least`](Self::at_least).
    #[must_use]
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets whether the tool may be called twice in a row, by default `true`.
    #[must_use]
    pub const fn consecutive(mut self, is_consecutive: bool) -> Self {
        self.is_consecutive = is_consecutive;
        self
    }

    /// Allows the tool only after a call of each of these tools.
    #[must_use]
    pub fn only_after<N: Into<Arc<str>>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.only_after.extend(names(tools));
        self
    }

    /// Allows the tool only until one of these tools was called.
    #[must_use]
    pub fn only_before<N: Into<Arc<str>>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.only_before.extend(names(tools));
        self
    }

    /// Sets how often the tool has to be called before the run may end.
    #[must_use]
    pub const fn at_least(mut self, calls: usize) -> Self {
        self.at_least = calls;
        self
    }

    /// Sets how often the tool may be called in a run.
    #[must_use]
    pub const fn at_most(mut self, calls: usize) -> Self {
        self.at_most = Some(calls);
        self
    }

    /// Sets the reason that the model reads beside the rule.
    #[must_use]
    pub fn because(mut self, reason: impl Into<Arc<str>>) -> Self {
        self.because = Some(reason.into());
        self
    }

    /// Allows the tool only while a function of the steps returns `true`. With several functions, all must return `true`.
    #[must_use]
    pub fn when(mut self, allows: impl Fn(&[Step], &RunContext) -> bool + Send + Sync + 'static) -> Self {
        self.conditions.push(Arc::new(allows));
        self
    }

    /// Sets whether failed calls are steps, by default `false`. Calls that the requirements themselves refused are never
    /// steps.
    #[must_use]
    pub const fn counting_failures(mut self, counts_failures: bool) -> Self {
        self.counts_failures = counts_failures;
        self
    }

    /// Returns `true` if the tools are ever forced, or have to be called.
    pub(super) const fn needs_calls(&self) -> bool {
        self.force_at_step.is_some() || !self.force_after.is_empty() || self.at_least > 0
    }

    /// Returns the option that has an effect only with a responder.
    pub(super) const fn option_of_asking(&self) -> Option<&'static str> {
        match (self.asks, self.remembers, self.hides_refused) {
            (true, ..) => Some("ask"),
            (_, true, _) => Some("remember"),
            (_, _, true) => Some("hide_refused"),
            _ => None,
        }
    }

    /// Adds the rules for one of the tools.
    fn rules_for(&self, tool: &Arc<str>, steps: &[Step], ctx: &RunContext, rules: &mut Vec<Rule>) {
        let calls = steps.iter().filter(|step| step.tool() == &**tool).count();
        if let Some(reason) = self.obstacle(tool, calls, steps, ctx) {
            rules.push(Rule::deny(Arc::clone(tool), self.explain(reason)));
        } else if self.forces(steps) {
            rules.push(Rule::force(Arc::clone(tool), self.priority));
        }
        if calls < self.at_least {
            let reason = format!("has to be called at least {}", times(self.at_least));
            rules.push(Rule::prevent_end(Arc::clone(tool), self.explain(reason)));
        }
        if self.hides_refused && self.remembered(tool, ctx) == Some(false) {
            rules.push(Rule::hide(Arc::clone(tool)));
        }
    }

    /// Returns the reason for which the tool may not be called.
    fn obstacle(&self, tool: &str, calls: usize, steps: &[Step], ctx: &RunContext) -> Option<String> {
        let is_called = |name: &str| steps.iter().any(|step| step.tool() == name);
        if let Some(most) = self.at_most.filter(|&most| calls >= most) {
            return Some(format!("may be called at most {}", times(most)));
        }
        if !self.is_consecutive && steps.last().is_some_and(|step| step.tool() == tool) {
            return Some("may not be called twice in a row".to_owned());
        }
        if let Some(after) = self.only_after.iter().find(|name| !is_called(name)) {
            return Some(format!("may be called only after `{after}`"));
        }
        if let Some(before) = self.only_before.iter().find(|name| is_called(name)) {
            return Some(format!("may be called only before `{before}`"));
        }
        let is_refused = self.conditions.iter().any(|allows| !allows(steps, ctx));
        is_refused.then(|| "is not allowed now".to_owned())
    }

    fn forces(&self, steps: &[Step]) -> bool {
        let follows = |step: &Step| self.force_after.iter().any(|tool| **tool == *step.tool());
        self.force_at_step == Some(steps.len() + 1) || steps.last().is_some_and(follows)
    }

    fn explain(&self, reason: String) -> String {
        match &self.because {
            Some(because) => format!("{reason} ({because})"),
            None => reason,
        }
    }

    async fn ask_about(&self, call: &ToolCall, responder: &Arc<Responder>, ctx: &RunContext) -> Result<()> {
        let known = self.remembered(&call.name, ctx).filter(|&is_allowed| self.remembers || !is_allowed);
        let is_allowed = match known {
            Some(is_allowed) => is_allowed,
            None => {
                let is_allowed = responder(call.clone()).await?;
                if self.remembers || (self.hides_refused && !is_allowed) {
                    let answers = ctx.own_extension_or_default::<Answers>();
                    answers.0.lock().push((key(responder), call.name.clone(), is_allowed));
                }
                is_allowed
            }
        };
        if is_allowed { Ok(()) } else { Err(Error::new(self.explain("the call was refused".to_owned()))) }
    }

    fn remembered(&self, tool: &str, ctx: &RunContext) -> Option<bool> {
        let key = key(self.responder.as_ref()?);
        let answers = ctx.own_extension::<Answers>()?;
        let answers = answers.0.lock();
        answers.iter().find(|(by, name, _)| *by == key && name == tool).map(|(.., is_allowed)| *is_allowed)
    }
}

impl Rules for Requirement {
    fn rules(&self, steps: &[Step], ctx: &RunContext) -> Vec<Rule> {
        let mut rules = Vec::new();
        self.tools.iter().for_each(|tool| self.rules_for(tool, steps, ctx, &mut rules));
        rules
    }

    fn counts_failures(&self) -> bool {
        self.counts_failures
    }

    fn check(&self, agent: &AgentSpec) -> Result<()> {
        contradictions::check_one(self, agent)
    }

    fn admit<'a>(&'a self, call: &'a ToolCall, ctx: &'a RunContext) -> Option<BoxFuture<'a, Result<()>>> {
        let responder = self.responder.as_ref()?;
        let is_meant = self.tools.iter().any(|tool| **tool == *call.name);
        is_meant.then(|| Box::pin(self.ask_about(call, responder, ctx)) as BoxFuture<'a, _>)
    }
}

/// Writes the requirement as the program that creates it. Functions are `…`.
impl fmt::Debug for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tools.as_slice() {
            [tool] if !self.asks => write!(f, "Requirement::tool({tool:?})")?,
            tools => write!(f, "Requirement::ask({tools:?})")?,
        }
        if self.responder.is_some() {
            f.write_str(".by(…)")?;
        }
        let lists =
            [("force_after", &self.force_after), ("only_after", &self.only_after), ("only_before", &self.only_before)];
        for (name, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            write!(f, ".{name}({list:?})")?;
        }
        let at_least = (self.at_least > 0).then_some(self.at_least);
        let numbers = [("force_at_step", self.force_at_step), ("at_least", at_least), ("at_most", self.at_most)];
        for (name, number) in numbers {
            number.map_or(Ok(()), |number| write!(f, ".{name}({number})"))?;
        }
        if self.priority != 0 {
            write!(f, ".priority({})", self.priority)?;
        }
        if !self.is_consecutive {
            f.write_str(".consecutive(false)")?;
        }
        self.conditions.iter().try_for_each(|_| f.write_str(".when(…)"))?;
        let flags = [
            ("counting_failures(true)", self.counts_failures),
            ("remember()", self.remembers),
            ("hide_refused()", self.hides_refused),
        ];
        flags.iter().filter(|(_, is_set)| *is_set).try_for_each(|(flag, _)| write!(f, ".{flag}"))?;
        self.because.as_ref().map_or(Ok(()), |because| write!(f, ".because({because:?})"))
    }
}

/// Identifies a responder.
fn key(responder: &Arc<Responder>) -> usize {
    Arc::as_ptr(responder).addr()
}

fn names<N: Into<Arc<str>>>(tools: impl IntoIterator<Item = N>) -> Vec<Arc<str>> {
    tools.into_iter().map(Into::into).collect()
}

fn times(calls: usize) -> String {
    if calls == 1 { "once".to_owned() } else { format!("{calls} times") }
}
