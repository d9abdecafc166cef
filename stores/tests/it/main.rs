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
