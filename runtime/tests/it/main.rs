//! Tests that share a binary, because one binary links faster than fifty. A test of a process-wide item, such as the
//! root emitter, the shutdown or the allocator, has its own file beside this folder.

#[path = "../support/mod.rs"]
mod support;

mod abort;
mod answers;
mod any_run;
mod attempted;
mod boundaries;
mod boundary_exec;
mod boundary_store;
mod chains;
mod children;
mod children_first;
mod context;
mod cut;
mod deep;
mod drop;
mod emitters;
mod endings;
mod errors;
mod explain;
mod falls;
mod filters;
mod gone;
mod guards;
mod heads;
mod inherited;
mod interrupts;
#[path = "../../../tests/support/journal.rs"]
mod journal;
mod keys;
mod layers;
mod lifecycle;
mod map_value;
mod needs;
mod nested_layers;
mod on_end;
mod order;
mod ordered;
mod outcomes;
mod outgoing;
mod panics;
mod phases;
mod properties;
mod races;
mod retries;
mod runnable;
mod signals;
mod steering;
mod swallowed;
mod tasks;
mod text_filters;
mod timeout;
mod tokens;
mod trace_parent;
mod types;
mod unheard;
