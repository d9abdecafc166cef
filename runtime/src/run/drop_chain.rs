//! Drops long chains of runs in a loop. The stack does not grow with the length of the chain: a run that is dropped in
//! the loop does not drop its parent itself, but adds it to the list of the loop.

use std::cell::RefCell;

use crate::tree::parent::Parent;

thread_local! {
    /// The parents that the outermost `drop_chain` of this thread has yet to drop; `None` while no call is running.
    static DUE: RefCell<Option<Vec<Parent>>> = const { RefCell::new(None) };
}

/// Drops `above`, the last handle of a run, and then, in a loop, each parent that loses its last handle. A nested call
/// only adds its parent to the list of the outermost call.
pub(crate) fn drop_chain(above: Parent) {
    let Some(above) = first(above) else { return };
    let _at_it = TakesDown;
    drop(above);
    while let Some(above) = next() {
        drop(above);
    }
}

/// Returns the parent if this is the outermost call, or if the thread is ending and its list is gone. Otherwise adds
/// the parent to the list.
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

/// Removes the list when the outermost call returns or unwinds, and drops the remaining parents.
struct TakesDown;

impl Drop for TakesDown {
    fn drop(&mut self) {
        let left = DUE.try_with(|due| due.borrow_mut().take());
        drop(left);
    }
}
