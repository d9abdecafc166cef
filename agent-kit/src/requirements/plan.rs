//! The merge of the rules of a turn, and the request that follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::events::RequirementsStart;
use super::rules::{Effect, Rule};
use emitree_agent::{ChatRequest, Message, Part, Role, ToolChoice, ToolSpec};

/// The tools that may be called next, and the reasons for the others.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The tools among which the rules choose.
    tools: Arc<Vec<ToolSpec>>,
    /// The name of the tool for the final answer.
    answer: Option<&'static str>,
    denied: BTreeMap<Arc<str>, Vec<String>>,
    hidden: BTreeSet<Arc<str>>,
    forced: Option<Arc<str>>,
    prevents_end: Vec<(Arc<str>, String)>,
}

impl Plan {
    pub(super) fn new(
        tools: Arc<Vec<ToolSpec>>,
        answer: Option<&'static str>,
        rules: impl Iterator<Item = Rule>,
    ) -> Self {
        let mut plan = Self { tools, answer, ..Self::default() };
        let mut forced = Vec::new();
        for Rule { tool, effect } in rules {
            match effect {
                Effect::Deny(reason) => plan.denied.entry(tool).or_default().push(reason),
                Effect::Hide => _ = plan.hidden.insert(tool),
                Effect::Force(priority) => forced.push((priority, tool)),
                Effect::PreventEnd(reason) => plan.prevents_end.push((tool, reason)),
            }
        }
        forced.retain(|(_, tool)| plan.allows(tool) && plan.tools.iter().any(|spec| *spec.name == **tool));
        // `max_by_key` returns the last of equal elements.
        plan.forced = forced.into_iter().rev().max_by_key(|(priority, _)| *priority).map(|(_, tool)| tool);
        plan
    }

    fn allows(&self, tool: &str) -> bool {
        !self.denied.contains_key(tool) && !self.hidden.contains(tool)
    }

    pub(super) const fn may_end(&self) -> bool {
        self.prevents_end.is_empty()
    }

    pub(super) const fn tools(&self) -> &Arc<Vec<ToolSpec>> {
        &self.tools
    }

    pub(super) fn is_answer(&self, tool: &str) -> bool {
        self.answer == Some(tool)
    }

    /// Returns the names of the offered tools.
    pub(super) fn offered(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|spec| spec.name.as_str()).filter(|tool| self.offers(tool))
    }

    /// Returns `true` if the final answer is a tool that may be called.
    pub(super) fn offers_answer(&self) -> bool {
        self.answer.is_some_and(|answer| self.offers(answer))
    }

    pub(super) fn to_event(&self, turn: u32, tool_choice: Option<ToolChoice>) -> RequirementsStart {
        let offered = self.offered().map(str::to_owned).collect();
        let refused = self.tools.iter().filter_map(|spec| Some((spec.name.clone(), self.reason(&spec.name)?)));
        RequirementsStart { turn, offered, refused: refused.collect(), tool_choice }
    }

    pub(super) fn offers(&self, tool: &str) -> bool {
        if self.is_answer(tool) {
            return self.may_end() && self.allows(tool);
        }
        self.allows(tool) && self.forced.as_ref().is_none_or(|forced| **forced == *tool)
    }

    /// Returns the reason for which a tool is not offered.
    pub(super) fn reason(&self, tool: &str) -> Option<String> {
        if self.offers(tool) {
            return None;
        }
        if let Some(reasons) = self.denied.get(tool) {
            return Some(reasons.join("; "));
        }
        Some(match &self.forced {
            _ if self.hidden.contains(tool) => format!("`{tool}` is not available"),
            _ if self.is_answer(tool) => self.why_not_end(),
            Some(forced) => format!("`{forced}` has to be called now"),
            None => format!("`{tool}` is not available"),
        })
    }

    /// Returns the reasons for which the run may not end.
    pub(super) fn why_not_end(&self) -> String {
        let reasons: Vec<_> = self.prevents_end.iter().map(|(tool, reason)| format!("`{tool}`: {reason}")).collect();
        format!("the final answer is not allowed yet ({})", reasons.join("; "))
    }

    /// Returns an error text if the model could neither call a tool nor end the run.
    pub(super) fn dead_end(&self) -> Option<String> {
        if self.may_end() || self.offered().next().is_some() {
            return None;
        }
        let names = self.tools.iter().map(|spec| spec.name.as_str()).filter(|tool| !self.is_answer(tool));
        let reasons: Vec<_> =
            names.filter_map(|tool| self.reason(tool).map(|reason| format!("`{tool}`: {reason}"))).collect();
        Some(format!("no tool may be called ({}), but {}", reasons.join("; "), self.why_not_end()))
    }

    /// Leaves the offered tools in a request, sets its `tool_choice`, and adds the part of the prompt.
    pub(super) fn apply(&self, request: &mut ChatRequest) {
        if !request.tools.iter().all(|spec| self.offers(&spec.name)) {
            let offered = request.tools.iter().filter(|spec| self.offers(&spec.name)).cloned();
            request.tools = Arc::new(offered.collect());
        }
        let chosen = request.options.tool_choice.take();
        request.options.tool_choice = if request.tools.is_empty() { None } else { self.choose(chosen) };
        if let Some(part) = self.prompt() {
            add_to_prompt(request, &part);
        }
    }

    /// Returns the `tool_choice`, as close to the user's own as the rules allow.
    fn choose(&self, chosen: Option<ToolChoice>) -> Option<ToolChoice> {
        if let Some(forced) = &self.forced {
            return Some(ToolChoice::Tool(forced.to_string()));
        }
        let chosen = chosen.filter(|choice| !matches!(choice, ToolChoice::Tool(tool) if !self.offers(tool)));
        match chosen {
            Some(ToolChoice::Tool(tool)) => Some(ToolChoice::Tool(tool)),
            _ if !self.may_end() => Some(ToolChoice::Required),
            None if self.answer.is_some() => Some(ToolChoice::Required),
            chosen => chosen,
        }
    }

    /// Returns the part of the system prompt: the tools that are not allowed, and the reasons.
    fn prompt(&self) -> Option<String> {
        let mut parts = Vec::new();
        if let Some(forced) = &self.forced {
            parts.push(format!("Call the tool `{forced}` now."));
        }
        let visible = self.tools.iter().filter(|spec| !self.hidden.contains(spec.name.as_str()));
        let denied = visible.filter_map(|spec| Some((&spec.name, self.denied.get(spec.name.as_str())?)));
        let denied: String = denied.map(|(tool, reasons)| format!("\n- `{tool}`: {}", reasons.join("; "))).collect();
        if !denied.is_empty() {
            parts.push(format!("You cannot call these tools now:{denied}"));
        }
        if !self.may_end() {
            let reasons = self.prevents_end.iter().map(|(tool, reason)| format!("\n- `{tool}`: {reason}"));
            parts.push(format!("You cannot give your final answer yet:{}", reasons.collect::<String>()));
        }
        (!parts.is_empty()).then(|| parts.join("\n\n"))
    }
}

/// Adds a part to the system prompt, which a hook of `model.wire` has made the first message.
fn add_to_prompt(request: &mut ChatRequest, part: &str) {
    if let Some(system) = &mut request.system {
        *system = format!("{system}\n\n{part}");
        return;
    }
    let is_first = request.messages.first().is_some_and(|message| message.role == Role::System);
    if !is_first {
        request.system = Some(part.to_owned());
        return;
    }
    let first = &mut Arc::make_mut(&mut request.messages)[0];
    let message: &mut Message = Arc::make_mut(first);
    message.parts.push(Part::Text { content: format!("\n\n{part}") });
}
