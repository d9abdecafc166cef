//! Middlewares that agents often need.
//!
//! | | |
//! |---|---|
//! | [`SlidingWindow`] | shows the model only the last messages |
//!
//! A [`TokenCounter`] counts the tokens of messages for these middlewares and for your own.

mod sliding_window;
mod token_counter;

pub use sliding_window::SlidingWindow;
pub use token_counter::{EstimatedTokens, TokenCounter};
