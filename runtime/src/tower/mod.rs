//! Where runs and tower meet: its services as runnables, runs as services, its layers around runs.
//!
//! 1. A service is called under a lock that admits in order of arrival ([`Queued`](queued::Queued)): whoever has the lock
//!    waits until the service is ready. What it answers with is awaited without the lock.
//! 2. Between readiness and the call nothing is awaited: whoever gives up waiting has called nothing, and the next one
//!    goes on where it stopped.
//! 3. Around a run a service never sees input or output. It is called with a [`Ticket`]; the work is done in the run's
//!    own future, when the ticket's turn has come.
//! 4. The current run is that of the polling task. A service may call the one below it in another task: then the run goes
//!    along in the request ([`WithRun`]), or the call's run is started in the run that first polls it.

mod call;
mod enter;
mod identity;
mod layer;
mod propagate;
mod queued;
mod run;
mod runnable;
mod ticket;
mod with_run;

pub use call::RunServiceFuture;
pub use enter::{EnterRun, EnterRunFuture, EnterRunLayer};
pub use layer::{TowerLayer, tower_layer};
pub use propagate::{PropagateRun, PropagateRunLayer};
pub use run::{RunLayer, RunService};
pub use runnable::TowerRunnable;
pub use ticket::{Ticket, TicketFuture, TicketService};
pub use with_run::WithRun;
