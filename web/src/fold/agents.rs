//! The agents of a run: the asked one, those to which it transfers the conversation, and sub-agents.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use uuid::Uuid;

use crate::fold::{Fold, Held, Steps};
use crate::step::{AgentEnd, Owner, Step};

/// The agents that have begun, by their runs.
#[derive(Debug, Default)]
pub(super) struct Agents {
    known: HashMap<Uuid, Known>,
    /// The agent that is about to take the conversation over, and the agent that transfers it.
    expected: Option<(Owner, String)>,
    /// The agents that have transferred the conversation.
    transferred: HashSet<Owner>,
}

#[derive(Debug)]
struct Known {
    owner: Owner,
    above: Vec<Uuid>,
    /// `true` if the agent is shown as a sub-agent that is under way.
    is_open: bool,
}

impl Agents {
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the owner of the parts of an agent.
    pub(super) fn owner(&self, run: Uuid) -> Option<Owner> {
        self.known.get(&run).map(|known| known.owner.clone())
    }

    pub(super) fn expect(&mut self, from: Owner, to: String) {
        self.transferred.insert(from.clone());
        self.expected = Some((from, to));
    }

    /// Returns `true` if another agent has written, or writes, for an agent.
    pub(super) fn was_transferred(&self, owner: &Owner) -> bool {
        self.transferred.contains(owner)
    }

    /// Returns the owners of the agents that are a run, or below it.
    fn owners_below(&self, run: Uuid) -> Vec<Owner> {
        let is_below = |(own, known): &(&Uuid, &Known)| **own == run || known.above.contains(&run);
        self.known.iter().filter(is_below).map(|(_, known)| known.owner.clone()).collect()
    }
}

impl Fold {
    pub(super) fn start_agent(
        &mut self,
        run: Uuid,
        name: Arc<str>,
        call: Option<Arc<str>>,
        above: Vec<Uuid>,
        steps: &mut Steps,
    ) {
        if self.agents.known.contains_key(&run) {
            // Another attempt of the same run.
            return;
        }
        let parent = above.iter().find_map(|above| self.agents.owner(*above));
        let takes_over = self.agents.expected.take_if(|(from, to)| Some(&*from) == parent.as_ref() && **to == *name);
        let is_asked = self.agents.known.is_empty();
        let owner: Owner = match (takes_over, is_asked) {
            (Some((from, _)), _) => from,
            (None, true) => None,
            (None, false) => Some(run.to_string().into()),
        };
        let is_open = owner.is_some() && parent.as_ref() != Some(&owner);
        if let Some(id) = owner.clone().filter(|_| is_open) {
            let above = parent.unwrap_or_default();
            let call = call.map(|given| self.calls.last(&above, &given));
            steps.push(Step::AgentStarted { id, name, call, above });
        }
        self.agents.known.insert(run, Known { owner, above, is_open });
    }

    pub(super) fn end_agent(&mut self, run: Uuid, owner: Owner, end: AgentEnd, steps: &mut Steps) {
        let Some(known) = self.agents.known.get_mut(&run).filter(|known| known.is_open) else { return };
        known.is_open = false;
        let is_open = |held: &Held| held.part.owner == owner && held.message.is_none();
        if end == AgentEnd::Withheld {
            self.take_back(is_open, steps);
        } else {
            self.take_back(|held| is_open(held) && held.is_open && held.part.call().is_some(), steps);
        }
        self.close_texts(|held| held.part.owner == owner, steps);
        let Some(id) = owner else { return };
        steps.push(Step::AgentEnded { id, end });
    }

    /// Ends the sub-agents whose ends were not reported, the innermost ones first.
    pub(super) fn end_agents(&mut self, end: AgentEnd, steps: &mut Steps) {
        let mut open: Vec<_> = self.agents.known.values_mut().filter(|known| known.is_open).collect();
        open.sort_by(|a, b| b.above.len().cmp(&a.above.len()).then_with(|| a.owner.cmp(&b.owner)));
        for known in open {
            known.is_open = false;
            steps.extend(known.owner.clone().map(|id| Step::AgentEnded { id, end }));
        }
    }

    /// Takes back the parts of the agents that are a run, or below it.
    pub(super) fn drop_run(&mut self, run: Uuid, steps: &mut Steps) {
        let owners = self.agents.owners_below(run);
        self.take_back(|held| owners.contains(&held.part.owner) && held.is_of_attempt(), steps);
    }
}

impl Held {
    /// Returns `true` unless the part is the result of an earlier run's call, which a discarded attempt keeps.
    const fn is_of_attempt(&self) -> bool {
        !matches!(self.message, Some(0))
    }
}
