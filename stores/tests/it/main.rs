//! Tests that share a process: one binary links faster than several.

mod defects;
mod durable;
mod frozen;
mod journal;
mod memory;
mod model;
mod sqlite;
