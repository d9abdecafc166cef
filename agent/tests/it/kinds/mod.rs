//! The kinds of agents of `emitree_agent::kinds`.

mod react;
mod requirements;
mod together;
