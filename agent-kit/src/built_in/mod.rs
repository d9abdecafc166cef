//! Middlewares that agents often need.
//!
//! | | |
//! |---|---|
//! | [`SlidingWindow`] | shows the model only the last messages |
//! | [`ClearToolResults`] | shows the model a placeholder for old results of tools |
//! | [`Summarize`] | replaces the older part of the history with a summary |
//! | [`CallLimit`] | limits the calls of tools and of the model |
//! | [`Guardrail`] | judges inputs, replies or results of tools with a function |
//! | [`LargeResults`] | puts large results of tools into a key-value store |
//! | [`Title`] | asks a model for a title of the conversation |
//! | [`Structured`] | makes the model answer with JSON of a Rust type |
//! | [`TodoList`] | gives the model a list of the steps of its task |
//! | [`ToolSelector`] | offers the model only the tools that suit the user's message |
//!
//! The tool [`ask_user`] lets the model ask the user. A [`TokenCounter`] counts the tokens of messages for these
//! middlewares and for your own.

mod ask_user;
mod call_limit;
mod clear_tool_results;
mod guardrail;
mod large_results;
mod partial;
mod sliding_window;
pub(crate) mod structured;
mod summarize;
mod title;
mod todo_list;
mod tool_selector;
mod transcript;

pub use ask_user::{ASK_USER, UserQuestion, ask_user};
pub use call_limit::{CallLimit, Then};
pub use clear_tool_results::ClearToolResults;
pub use emitree_agent::{EstimatedTokens, TokenCounter};
pub use guardrail::{Guardrail, Hold, Judgement};
pub use large_results::{LargeResultFailed, LargeResultStored, LargeResults};
pub use partial::{Partial, PartialDiscarded};
pub use sliding_window::SlidingWindow;
pub use structured::Structured;
pub use summarize::{Summarize, Summarized, SummaryFailed};
pub use title::{Title, TitleFailed, Titled};
pub use todo_list::{Todo, TodoList, TodoState, TodosWritten};
pub use tool_selector::{SelectionFailed, ToolSelector, ToolsSelected};
pub(crate) use transcript::shown;
pub use transcript::transcript;

/// Returns `true` if an error is control flow that a middleware passes on, or fatal.
fn ends_the_run(error: &emitree_runtime::Error) -> bool {
    error.is_aborted() || error.is_halted() || error.is_interrupted() || error.is_retry() || error.is_fatal()
}
