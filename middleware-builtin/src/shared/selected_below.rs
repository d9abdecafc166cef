//! Selections of the runs below a run, by a middleware that is bound to all of them (M12).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_runtime::{Description, ForNested, Middleware, Result, RunContext, for_nested};

use crate::shared::runs::Runs;

/// Watches a selection of the runs below a run: if it selects none of them, and the kind or name of a run is near, the
/// runtime warns (M12). A middleware that is bound to all runs below, because it counts them itself, binds one for each
/// selection.
pub(crate) struct SelectedBelow {
    watch: ForNested<Watch>,
    is_met: Arc<AtomicBool>,
}

impl SelectedBelow {
    pub(crate) fn new(by: &'static str, runs: Runs) -> Self {
        let is_met = Arc::new(AtomicBool::new(false));
        Self { watch: for_nested(Watch { by, runs, is_met: Arc::clone(&is_met) }), is_met }
    }

    /// Watches the runs below a run. Once a run was selected, this binds nothing.
    pub(crate) fn bind(&self, ctx: &RunContext) -> Result<()> {
        if self.is_met.load(Ordering::Relaxed) { Ok(()) } else { self.watch.bind(ctx) }
    }
}

/// A middleware that does nothing. The runtime asks it for the runs that are selected.
struct Watch {
    by: &'static str,
    runs: Runs,
    is_met: Arc<AtomicBool>,
}

impl Middleware for Watch {
    fn bind(&self, _: &RunContext) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> &str {
        self.by
    }

    fn handles(&self, kind: &str, name: &str) -> bool {
        let is_selected = self.runs.may_have(kind, name);
        // The runtime asks with an empty kind and name whether there is a selection.
        if is_selected && !(kind.is_empty() && name.is_empty()) {
            self.is_met.store(true, Ordering::Relaxed);
        }
        is_selected
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_near_miss(|kind, name| self.runs.near_miss(kind, name))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counts runs {:?}", self.runs)
    }
}
