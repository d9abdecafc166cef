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
//! 4. No lock is held while a listener is called. Dropping a closure may run user code, so removed listeners are dropped
//!    after the registry is unlocked.
//!
//! All listeners of an event are found before the first is called. Async observers are started in order, and awaited
//! together at the end. With `Delivery::sync_first`, the loop stores the place of each async listener and goes on; these
//! listeners are awaited after all sync listeners.
//!
//! Four decisions make the common path cheap.
//!
//! 1. **Nothing is allocated before a listener is found.** An emitter has no registry until its first listener or pipe.
//!    A registry has a 64-bit filter of the names that its listeners may match, so the walk up the tree costs at most
//!    three atomic loads per emitter. The meta borrows its data from the emit. An emitter outside runs remembers that
//!    there are no listeners on it or above it (`emitter/no_listener_cache`).
//! 2. **Listeners are read without a lock** (`registry/published`). A snapshot of many listeners does not copy them:
//!    until its table has an event, the event's listeners are searched under the lock, by their groups, so a change and
//!    the next emit cost no more if there are more listeners.
//! 3. **Matches are cached where the listeners are registered**, not where the event is emitted (`matching/cache`). A new
//!    run of an instance reuses the matches that earlier runs added to the instance's table, and a listener on one run
//!    does not affect the tables of other emitters.
//! 4. **Adjacent listeners are checked together** (`batch.rs`), and one `catch_unwind` covers all sync listeners up to
//!    the next that fails or must be awaited.

mod awaited;
pub(crate) mod batch;
mod delivery;
pub(crate) mod emit;
mod failure;
mod route;
mod sync;

pub use self::delivery::Delivery;
pub use self::emit::{Emitted, PendingDispatch};
