//! Tests that share a process: one binary links faster than several.

mod defects;
mod durable;
mod frozen;
mod gone;
mod in_turn;
mod interleavings;
mod journal;
mod kill;
mod memory;
mod model;
mod place;
mod postgres;
mod sqlite;
mod values;
mod wakes;

/// Returns how often a test whose tasks race is repeated: more than once only in the long form.
pub(crate) fn repeats(long: usize) -> usize {
    if std::env::var_os("EMITREE_LONG").is_some() { long } else { 1 }
}
