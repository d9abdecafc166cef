//! Requirements that can never be met, which are errors of `build`.

use std::collections::BTreeSet;

use emitree_runtime::{Error, Result};

use super::ID;
use super::requirement::Requirement;
use emitree_agent::hook::AgentSpec;

/// Checks a requirement alone.
pub(super) fn check_one(requirement: &Requirement, agent: &AgentSpec) -> Result<()> {
    let Requirement { tools, force_after, only_after, only_before, .. } = requirement;
    let lists = [("force_after", force_after), ("only_after", only_after), ("only_before", only_before)];
    let error = |fault: String| Err(Error::new(format!("`{requirement:?}` {fault}")));
    if tools.is_empty() {
        return error("names no tool: name at least one".to_owned());
    }
    for tool in tools.iter().chain(lists.iter().flat_map(|(_, list)| *list)) {
        agent.expect_tool(ID, tool)?;
    }
    for (name, list) in lists {
        if let Some(tool) = tools.iter().find(|tool| list.contains(tool)) {
            return error(format!("has `{tool}` in its own `{name}`: name other tools there"));
        }
    }
    if let Some(tool) = only_after.iter().find(|tool| only_before.contains(tool)) {
        return error(format!("is both after and before `{tool}`: remove one of them"));
    }
    if requirement.force_at_step == Some(0) {
        return error("forces a step 0: steps are counted from 1".to_owned());
    }
    if let Some(option) = requirement.option_of_asking()
        && requirement.responder.is_none()
    {
        return error(format!("asks nobody (`{option}`): set a responder with `by`"));
    }
    Ok(())
}

/// Checks requirements against each other.
pub(super) fn check_all(requirements: &[Requirement]) -> Result<()> {
    requirements.iter().try_for_each(|requirement| {
        requirement.tools.iter().try_for_each(|tool| check_tool(requirement, tool, requirements))
    })
}

fn check_tool(requirement: &Requirement, tool: &str, all: &[Requirement]) -> Result<()> {
    let error = |fault: String| Err(Error::new(format!("`{requirement:?}` can never be met: {fault}")));
    let needed = prerequisites(tool, all);
    if needed.contains(tool) {
        return error(format!("`{tool}` would have to be called before itself"));
    }
    let before = of(tool, all).flat_map(|other| &other.only_before);
    if let Some(other) = before.map(|other| &**other).find(|other| needed.contains(other)) {
        return error(format!("`{tool}` may be called only before `{other}`, and only after it"));
    }
    let most = |tool: &str| of(tool, all).filter_map(|other| other.at_most).min();
    if let Some(most) = most(tool).filter(|&most| requirement.at_least > most) {
        return error(format!("`at_least({})` exceeds `at_most({most})` of `{tool}`", requirement.at_least));
    }
    if !requirement.needs_calls() {
        return Ok(());
    }
    if let Some(never) = [tool].into_iter().chain(needed.iter().copied()).find(|tool| most(tool) == Some(0)) {
        return error(format!("`{never}` has `at_most(0)`"));
    }
    match requirement.force_at_step {
        Some(step) if step <= needed.len() => {
            let needed: Vec<_> = needed.iter().map(|tool| format!("`{tool}`")).collect();
            error(format!("at step {step}, {} cannot all have been called before `{tool}`", needed.join(", ")))
        }
        _ => Ok(()),
    }
}

/// Returns the requirements for a tool.
fn of<'a>(tool: &'a str, all: &'a [Requirement]) -> impl Iterator<Item = &'a Requirement> {
    all.iter().filter(move |requirement| requirement.tools.iter().any(|name| **name == *tool))
}

/// Returns the tools that have to be called before a tool.
fn prerequisites<'a>(tool: &'a str, all: &'a [Requirement]) -> BTreeSet<&'a str> {
    let mut needed = BTreeSet::new();
    let mut open = vec![tool];
    while let Some(tool) = open.pop() {
        let after = of(tool, all).flat_map(|requirement| &requirement.only_after);
        open.extend(after.map(|after| &**after).filter(|after| needed.insert(*after)));
    }
    needed
}
