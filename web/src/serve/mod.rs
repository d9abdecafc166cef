//! The server: requests of pages, and the runs that they begin.
//!
//! A request passes `routes`, which asks `thread` who may use the session and `ask` what the body says. `begin` gives the
//! answers to the session, and starts the task of a run, of which `runs` allows one for each thread.

mod ask;
mod begin;
mod failure;
mod routes;
mod runs;
mod thread;

pub(crate) use self::routes::router;
pub(crate) use self::runs::Runs;
