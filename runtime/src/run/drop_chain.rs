//! Drops long chains of runs in a loop: a run drops its parent after itself, and not inside its own drop, so that a chain of any
//! length needs no stack.

use std::cell::RefCell;

use crate::tree::parent::Parent;

thread_local! {
    /// The parents that the outermost `drop_chain` of this thread has yet to drop; `None` while none is running.
    static DUE: RefCell<Option<Vec<Parent>>> = const { RefCell::new(None) };
}

/// Drops the last handle of a run, and then the parents that become unused by that. Called from inside such a drop, it leaves the
/// parent to the outer call.
pub(crate) fn drop_chain(above: Parent) {
    let Some(above) = first(above) else { return };
    let _at_it = TakesDown;
    drop(above);
    while let Some(above) = next() {
        drop(above);
    }
}

/// Returns the parent to the outermost call, or if the thread is ending and has no list any more.
fn first(above: Parent) -> Option<Parent> {
    let mut above = Some(above);
    let leave = |due: &RefCell<Option<Vec<Parent>>>| match &mut *due.borrow_mut() {
        Some(due) => due.extend(above.take()),
        none => *none = Some(Vec::new()),
    };
    DUE.try_with(leave).ok();
    above
}

fn next() -> Option<Parent> {
    DUE.try_with(|due| due.borrow_mut().as_mut()?.pop()).ok()?
}

/// Clears the list when the outermost call returns, or when the drop of a run's value panics: the rest is dropped all the same.
struct TakesDown;

impl Drop for TakesDown {
    fn drop(&mut self) {
        let left = DUE.try_with(|due| due.borrow_mut().take());
        drop(left);
    }
}
