//! One event, from its emit to its last listener. `emit.rs` begins the emit, `route.rs` finds the listeners, and
//! `sync.rs` calls them, some of them in batches (`batch.rs`). `awaited.rs` continues from the first listener that has
//! to be awaited. No module outside this folder calls listeners.
//!
//! 1. First, listeners that may change the event are called one after the other, on all emitters. Then the observers
//!    are called (E5). A [`Cursor`](route::Cursor) walks the whole route in that order, and one loop calls the
//!    listeners.
//! 2. Sync listeners are called by the loop itself. The first listener that has to be awaited turns the rest of the
//!    dispatch into a future.
//! 3. If a listener that may change the event fails, no further listener that may change it is called, unless the
//!    failure is isolated. Observers still receive the event (E11).
//! 4. No lock is held while a listener is called.

mod awaited;
pub(crate) mod batch;
mod delivery;
pub(crate) mod emit;
mod failure;
mod route;
mod sync;

pub use self::delivery::Delivery;
pub use self::emit::{Emitted, PendingDispatch};
