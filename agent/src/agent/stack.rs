//! Stack for agents that are nested deeply.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The stack that has to be left when an agent's loop is polled. One agent inside another needs less than this, also in
/// a debug build with a dozen layers around each run.
const LEFT: usize = 1 << 20;

/// The size of a new stack. The system provides the memory page by page, when it is used.
const NEW: usize = 8 << 20;

/// Polls a future on a new stack if little is left of the thread's stack. The polls of nested agents are nested, too, so
/// a limit on their depth protects against a stack overflow only if each level has enough stack.
pub(crate) struct OnEnoughStack<F>(pub(crate) F);

impl<F: Future + Unpin> Future for OnEnoughStack<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        stacker::maybe_grow(LEFT, NEW, || Pin::new(&mut self.0).poll(cx))
    }
}
