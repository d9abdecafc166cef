//! Runs and tower: services as runnables, runs as services, and layers of tower around runs.
//!
//! 1. A service is called under a fair lock ([`Queued`](queued::Queued)), whose holder waits until the service is
//!    ready. The response is awaited without the lock.
//! 2. Nothing is awaited between readiness and the call: a caller that stops waiting has not called the service, and
//!    the next caller continues to wait for readiness.
//! 3. A service around a run receives a [`Ticket`] instead of the run's input, and returns no output. The work is done
//!    in the run's own future, once the innermost service has received the ticket and its future is polled.
//! 4. The current run is set only in the task that polls it. A service may call the inner service in another task. In
//!    that case, either the request carries the run ([`WithRun`]), or the call is itself a run, whose parent is the run
//!    in which the call is first polled.

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
