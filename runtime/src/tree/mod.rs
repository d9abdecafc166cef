//! Where a run hangs: below its parent, above its children.

pub(crate) mod children;
pub(crate) mod parent;
