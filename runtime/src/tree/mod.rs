//! The tree of runs: links of a run to its parent and to its children.

pub(crate) mod children;
pub(crate) mod parent;
