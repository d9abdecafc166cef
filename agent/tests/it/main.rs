//! Tests of the public API, in one binary.

mod agents;
mod explain;
mod gates;
mod hook_test;
mod models;
mod names;
mod places;
mod sessions;
mod support;
mod tools;
