//! Values that panic when they are dropped, also as what a panic carries.

use std::panic::panic_any;

/// What a panic carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    Text,
    /// What panics when it is dropped.
    Bad,
}

impl Payload {
    pub(crate) fn panic(self) -> ! {
        match self {
            Self::Text => panic!("planned"),
            Self::Bad => panic_any(Bad(Self::Text)),
        }
    }
}

/// Panics when it is dropped, unless something else does.
pub(crate) struct Bad(pub(crate) Payload);

impl Drop for Bad {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.panic();
        }
    }
}
