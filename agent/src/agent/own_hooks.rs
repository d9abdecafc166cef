//! The hooks that an agent's builder registers, and the middlewares' hooks that they replace.

use std::collections::HashSet;
use std::sync::Arc;

use emitree_middleware::values::KeyValues;
use emitree_runtime::{HookInfo, MiddlewareInfo};
use serde_json::{Map, Value};

use crate::agent::middleware::Installed;
use crate::place::values::LayeredValues;
use crate::{Hooks, Place};

/// The id of the builder's hooks.
pub(crate) const BUILDER: &str = "builder";

/// Determines which hooks of middlewares are called in the runs of an agent, and has the agent's key-value store.
#[derive(Debug, Default)]
pub(crate) struct OwnHooks {
    /// The ids of the agent's middlewares, and [`BUILDER`] if the builder has hooks.
    pub(crate) ids: Vec<String>,
    /// The places at which the builder has hooks that replace others.
    pub(crate) places: Vec<Place>,
    /// All hooks of the agent, including replaced hooks. The builder's hooks come first.
    described: Vec<HookInfo>,
    /// The store, with the layers of the builder and of the agent's middlewares.
    pub(crate) values: LayeredValues,
}

impl OwnHooks {
    /// Puts the builder's hooks in front of the hooks of the agent's middlewares, and removes the hooks that the
    /// builder's hooks replace.
    pub(crate) fn new(hooks: Hooks, installed: &mut Vec<Arc<Installed>>, store: Arc<dyn KeyValues>) -> Self {
        let hooks = hooks.build();
        let places = hooks.replaces();
        if !hooks.is_empty() {
            installed.iter_mut().for_each(|installed| *installed = Installed::without(installed, &places));
            installed.insert(0, Arc::new(Installed::of_builder(hooks)));
        }
        let ids = installed.iter().map(|installed| installed.id.clone()).collect();
        let described = installed.iter().flat_map(|installed| installed.described.iter().cloned()).collect();
        let values = LayeredValues::new(store, installed.iter().map(|installed| &installed.hooks));
        Self { ids, places, described, values }
    }

    /// Returns no hooks, and a store.
    pub(crate) fn of_values(values: LayeredValues) -> Self {
        Self { values, ..Self::default() }
    }

    /// For `model.wire` and each place at which the builder has a hook, adds to `fields` the name of the hook that
    /// is called and the names of the hooks that it replaces. Except at `model.wire`, hooks of guards are called as
    /// well, and are not listed. `more` contains the hooks of the middlewares that are bound to the run.
    pub(crate) fn describe(&self, more: &[HookInfo], fields: &mut Map<String, Value>) {
        for place in Place::ALL {
            let suffix = format!(".{place}");
            let hooks = self.described.iter().chain(more).filter(|hook| hook.name.ends_with(&suffix));
            let explicit = self.places.contains(&place).then(|| format!("{BUILDER}{suffix}"));
            let (mut called, mut replaced): (Vec<_>, Vec<_>) = hooks
                .partition(|hook| explicit.as_ref().is_none_or(|explicit| hook.is_guard || hook.name == *explicit));
            // At `model.wire`, only the last of the remaining hooks is called.
            let used = if place == Place::ModelWire {
                let used = called.pop();
                replaced.append(&mut called);
                used.map(|hook| hook.name.clone())
            } else {
                explicit
            };
            if let Some(used) = used {
                fields.insert(place.to_string(), used.into());
            }
            if !replaced.is_empty() {
                let names: Vec<_> = replaced.into_iter().map(|hook| hook.name.as_str()).collect();
                fields.insert(format!("{place} replaced"), names.into());
            }
        }
    }

    /// Returns the hooks that the listed middlewares will add to a run, and the ids of the middlewares that will be
    /// skipped because an earlier middleware has the same id. The agent's own hooks are left out.
    pub(crate) fn expect(&self, listed: &[MiddlewareInfo]) -> (Vec<HookInfo>, Vec<String>) {
        let mut ids = HashSet::new();
        let hooked = listed.iter().filter(|middleware| !middleware.hooks.is_empty());
        let (joined, skipped): (Vec<_>, Vec<_>) = hooked.partition(|middleware| ids.insert(middleware.name.as_str()));
        let hooks = joined.into_iter().flat_map(|middleware| &middleware.hooks);
        let hooks = hooks.filter(|hook| self.described.iter().all(|own| own.name != hook.name)).cloned().collect();
        (hooks, skipped.into_iter().map(|middleware| middleware.name.clone()).collect())
    }
}
