//! Checks the history of a session (A1).

use std::collections::HashMap;
use std::sync::Arc;

use emitree::agent::{Arguments, Message, ToolCall, ToolResult};

use crate::agents::Begun;

/// Returns the violations in a history.
pub(crate) fn check(messages: &[Arc<Message>], begun: &Begun) -> Vec<String> {
    let mut open = HashMap::<&str, &ToolCall>::new();
    let mut broken = Vec::new();
    for message in messages {
        for result in message.tool_results() {
            match open.remove(result.id.as_str()) {
                Some(call) => broken.extend(check_result(call, result, begun)),
                None => broken.push(format!("a result without a call: {result:?}")),
            }
        }
        if message.tool_results().next().is_none() {
            broken.extend(open.drain().map(|(_, call)| format!("a call without a result: {call:?}")));
        }
        for call in message.tool_calls() {
            if open.insert(&call.id, call).is_some() {
                broken.push(format!("two calls with one id: {call:?}"));
            }
        }
    }
    broken.extend(open.drain().map(|(_, call)| format!("a call without a result: {call:?}")));
    broken
}

fn check_result(call: &ToolCall, result: &ToolResult, begun: &Begun) -> Option<String> {
    let Arguments::Json(arguments) = &call.arguments else { return Some(format!("no arguments: {call:?}")) };
    let times = begun.count(arguments["key"].as_str().unwrap_or_default());
    let text = result.response.as_str().unwrap_or_default();
    let is_true = match times {
        // Without a call of the function, only an error that says so, or leaves it open, is true.
        0 => result.is_error,
        1 => !text.starts_with("not executed"),
        _ => false,
    };
    (!is_true).then(|| format!("the function was called {times} times, but {call:?} has {result:?}"))
}
