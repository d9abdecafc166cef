//! Which run one is in (R9).

use crate::RunContext;

tokio::task_local! {
    /// Entered around every poll of a run's work and of listeners of its events.
    pub(crate) static CURRENT: RunContext;
}
