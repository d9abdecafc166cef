//! Maximum numbers of runs, and the counts that they are compared with.

use std::borrow::Cow;
use std::fmt;

use super::{Limit, Reached, Scope};

/// The maximum numbers of runs: of all kinds together, and of single kinds.
#[derive(Clone, Default)]
pub(super) struct MaxRuns {
    all: Option<u64>,
    kinds: Vec<(Cow<'static, str>, u64)>,
}

/// The numbers of counted runs: of all kinds together, and of each kind that has a maximum.
#[derive(Default)]
pub(super) struct Counts {
    all: u64,
    kinds: Vec<u64>,
}

impl MaxRuns {
    pub(super) fn set_all(&mut self, most: u64) {
        self.all = Some(most);
    }

    pub(super) fn set_kind(&mut self, kind: Cow<'static, str>, most: u64) {
        match self.kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, known)) => *known = most,
            None => self.kinds.push((kind, most)),
        }
    }

    pub(super) fn is_none(&self) -> bool {
        self.all.is_none() && self.kinds.is_empty()
    }

    /// Returns the kinds that have a maximum.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &Cow<'static, str>> {
        self.kinds.iter().map(|(kind, _)| kind)
    }

    /// Returns the limit that one more run of a kind would exceed.
    pub(super) fn reached(&self, kind: &str, counts: &Counts, scope: Scope) -> Option<Reached> {
        let of_kind = self.index_of(kind).filter(|&at| counts.of(at) >= self.kinds[at].1);
        let all = || self.all.filter(|&most| counts.all >= most);
        match of_kind {
            Some(at) => Some(Reached { limit: Limit::Kind, scope, most: self.kinds[at].1, kind: kind.to_owned() }),
            None => all().map(|most| Reached { limit: Limit::Runs, scope, most, kind: kind.to_owned() }),
        }
    }

    pub(super) fn count(&self, kind: &str, counts: &mut Counts) {
        counts.all = counts.all.saturating_add(1);
        if let Some(at) = self.index_of(kind) {
            // The list starts empty, so that a run whose kind has no maximum allocates nothing.
            counts.kinds.resize(self.kinds.len(), 0);
            counts.kinds[at] = counts.kinds[at].saturating_add(1);
        }
    }

    fn index_of(&self, kind: &str) -> Option<usize> {
        self.kinds.iter().position(|(known, _)| known == kind)
    }

    pub(super) fn describe<'a>(&'a self, of: &'a str) -> impl Iterator<Item = String> + 'a {
        let all = self.all.iter().map(move |most| format!("{most} runs{of}"));
        all.chain(self.kinds.iter().map(move |(kind, most)| format!("{most} of {kind}{of}")))
    }
}

impl Counts {
    fn of(&self, at: usize) -> u64 {
        self.kinds.get(at).copied().unwrap_or(0)
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, scope, most, kind } = self;
        let place = match scope {
            Scope::Run => "below the run that sets the limit",
            Scope::Group => "in the group",
        };
        match limit {
            Limit::Runs => write!(f, "at most {most} runs are allowed {place}"),
            Limit::Kind => write!(f, "at most {most} runs of {kind} are allowed {place}"),
            Limit::Depth => write!(f, "runs may be nested at most {most} levels {place}"),
        }
    }
}
