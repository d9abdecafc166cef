//! Long chains of runs are taken down link by link: what a run was started in is dropped after it, and not in its drop.

use std::cell::RefCell;

use crate::tree::parent::Parent;

thread_local! {
    /// What is dropped by who began with it. None while nobody is at it.
    static DUE: RefCell<Option<Vec<Parent>>> = const { RefCell::new(None) };
}

/// Drops what nobody else holds; in such a drop, leaves it to who is at that.
pub(crate) fn drop_chain(above: Parent) {
    let Some(above) = first(above) else { return };
    let _at_it = TakesDown;
    drop(above);
    while let Some(above) = next() {
        drop(above);
    }
}

/// Gives it back to who is the first that comes, or where a thread has come to its end.
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

/// The values of a run are dropped with it, and may panic: what is left then is dropped all the same.
struct TakesDown;

impl Drop for TakesDown {
    fn drop(&mut self) {
        let left = DUE.try_with(|due| due.borrow_mut().take());
        drop(left);
    }
}
