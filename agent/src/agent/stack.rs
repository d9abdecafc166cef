//! Stack for agents that are nested deeply.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::future::BoxFuture;

/// The stack that has to be left when an agent's loop is polled. One agent inside another needs less than this, also in
/// a debug build with a dozen layers around each run.
const LEFT: usize = 1 << 20;

/// The size of a new stack. The system provides the memory page by page, when it is used.
const NEW: usize = 8 << 20;

/// Polls a future on a new stack if little is left of the thread's stack. The polls of nested agents are nested, too, so
/// a limit on their depth protects against a stack overflow only if each level has enough stack.
pub(crate) struct OnEnoughStack<'a, T>(pub(crate) BoxFuture<'a, T>);

impl<T> Future for OnEnoughStack<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        stacker::maybe_grow(LEFT, NEW, || self.0.as_mut().poll(cx))
    }
}
