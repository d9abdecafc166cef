//! Values that panic when they are dropped. Some of them are payloads of panics.

use std::panic::panic_any;

/// The payload of a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    Text,
    /// Panics when it is dropped.
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

/// A value that panics when it is dropped, unless the thread is already panicking.
pub(crate) struct Bad(pub(crate) Payload);

impl Drop for Bad {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.panic();
        }
    }
}
