//! One event, from its emit to the last listener: `emit.rs` says what is emitted, `route.rs` who receives it, `sync.rs` calls them,
//! `awaited.rs` goes on where one has to be awaited. Listeners are called in these two, and nowhere else.
//!
//! 1. All that may change the event are called first, one after the other, all the way up; then all that observe it (E5). A [`Cursor`](route::Cursor)
//!    walks the whole route in that order, and one loop calls what is there.
//! 2. Sync listeners are called where they stand. At the first one that has to be awaited the rest becomes a future.
//! 3. A failure of a listener that may change the event ends the changing; observers still receive the event (E11).
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
