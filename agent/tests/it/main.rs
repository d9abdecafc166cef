//! Tests of the public API, in one binary.

mod agents;
mod models;
mod places;
mod support;
