//! Marks the listeners that a middleware has bound.

use std::cell::Cell;

thread_local! {
    static IS_BINDING: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function that binds a middleware to a run. The listeners that it registers receive events even if another
/// listener has consumed them (E20).
pub fn binding<R>(bind: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            IS_BINDING.set(self.0);
        }
    }
    let _reset = Reset(IS_BINDING.replace(true));
    bind()
}

pub(crate) fn is_binding() -> bool {
    IS_BINDING.get()
}
