//! Tool calls and their arguments.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::{extra, is_false};

/// A model's request to call a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "CallRepr", into = "CallRepr")]
#[non_exhaustive]
pub struct ToolCall {
    /// The id. In a [`History`](crate::History), the calls of a message have different ids.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub arguments: Arguments,
    /// Data that the provider needs back with the call, as in [`Part::Reasoning`](crate::Part::Reasoning).
    pub extra: Option<Value>,
    /// The arguments as the model wrote them.
    pub(crate) written: Written,
}

impl ToolCall {
    /// Makes a call, without data of a provider.
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<Arguments>) -> Self {
        let written = Written::default();
        Self { id: id.into(), name: name.into(), arguments: arguments.into(), extra: None, written }
    }

    /// Makes a call from the text of its arguments, as the model wrote it.
    pub(crate) fn parsed(id: String, name: String, text: &str, extra: Option<Value>) -> Self {
        let arguments = Arguments::parse(text);
        // The text of the value itself need not be kept.
        let written = if arguments.to_string() == text { Written::default() } else { Written(Some(text.into())) };
        Self { id, name, arguments, extra, written }
    }

    /// Returns the text of the arguments: as the model wrote it, unless they have been edited.
    pub(crate) fn arguments_text(&self) -> Cow<'_, str> {
        match self.written_text() {
            Some(text) => Cow::Borrowed(text),
            None => Cow::Owned(self.arguments.to_string()),
        }
    }

    /// Returns the text that the model wrote if it says the same as the arguments, so an edit needs no notice.
    fn written_text(&self) -> Option<&Arc<str>> {
        let text = self.written.0.as_ref()?;
        let value = self.arguments.json()?;
        let is_same = serde_json::from_str::<Value>(text).is_ok_and(|written| written == *value);
        is_same.then_some(text)
    }
}

/// The text of a call's arguments, with the order of keys, the spaces and the escapes of the model, if it differs from
/// the text of the JSON value. A server's cache of prompts compares texts.
///
/// Invariant: the text is used only where it says the same as the arguments. It is no part of what a call says: calls
/// are equal with any text, and neither `Debug` nor the JSON of an event shows it. There, a redaction might not find a
/// secret behind the model's escapes. A [stored session](storing) has the text.
#[derive(Clone, Default)]
pub(crate) struct Written(Option<Arc<str>>);

impl PartialEq for Written {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

thread_local! {
    /// `true` while a session is being stored.
    static IS_STORING: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function that serializes a session. The JSON of calls then has the text that the model wrote.
pub(crate) fn storing<T>(serialize: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_STORING.set(self.0);
        }
    }
    let _restore = Restore(IS_STORING.replace(true));
    serialize()
}

/// The maximum nesting of arguments and results. `serde_json` reads at most 127 levels, and a stored session adds a few
/// levels around each value, so a session with a deeper value could become unreadable.
pub(crate) const MAX_NESTING: usize = 64;

/// Returns `true` if arrays and objects are nested more than [`MAX_NESTING`] levels deep.
pub(crate) fn is_too_deep(value: &Value) -> bool {
    fn exceeds(value: &Value, levels: usize) -> bool {
        match value {
            Value::Array(values) => levels == 0 || values.iter().any(|value| exceeds(value, levels - 1)),
            Value::Object(map) => levels == 0 || map.values().any(|value| exceeds(value, levels - 1)),
            _ => false,
        }
    }
    exceeds(value, MAX_NESTING)
}

/// The arguments of a [`ToolCall`].
#[derive(Clone, Debug, PartialEq)]
pub enum Arguments {
    /// A JSON value, usually an object.
    Json(Value),
    /// Text that is not JSON, or JSON that is nested too deeply, as the model wrote it. Malformed text never equals a
    /// JSON string.
    Malformed(String),
}

impl Arguments {
    /// Parses arguments from a model's text. Empty text, `null` and `[]` become an empty object, because some models and
    /// servers send them for a tool without parameters. An object that is written several times is read once, because
    /// some servers repeat it at the end of a stream. JSON that is nested more than 64 levels deep counts as malformed,
    /// so that a stored session can be read again.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.trim().is_empty() {
            return Self::Json(Value::Object(Map::new()));
        }
        // `null`: <https://github.com/openclaw/openclaw/pull/72628>. `[]` is how PHP writes an empty map:
        // <https://github.com/prism-php/prism/pull/896>.
        match serde_json::from_str(text).ok().or_else(|| repeated(text)) {
            Some(Value::Null) => Self::Json(Value::Object(Map::new())),
            Some(Value::Array(list)) if list.is_empty() => Self::Json(Value::Object(Map::new())),
            Some(value) if !is_too_deep(&value) => Self::Json(value),
            _ => Self::Malformed(text.to_owned()),
        }
    }

    /// Returns the JSON value, or `None` for malformed text.
    #[must_use]
    pub const fn json(&self) -> Option<&Value> {
        match self {
            Self::Json(value) => Some(value),
            Self::Malformed(_) => None,
        }
    }
}

/// Returns the object that a text repeats. vLLM and others have sent the whole arguments again after their pieces
/// (<https://github.com/vllm-project/vllm/issues/51697>, <https://github.com/lidge-jun/opencodex/issues/361>).
fn repeated(text: &str) -> Option<Value> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let first = values.next()?.ok()?;
    for other in values {
        if other.ok()? != first {
            return None;
        }
    }
    if first.is_object() { Some(first) } else { None }
}

impl From<Value> for Arguments {
    fn from(value: Value) -> Self {
        Self::Json(value)
    }
}

/// Writes JSON, or malformed text unchanged.
impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(value) => value.fmt(f),
            Self::Malformed(text) => f.write_str(text),
        }
    }
}

/// The JSON form of a call. A flag distinguishes malformed text from a JSON string.
#[derive(Serialize, Deserialize)]
struct CallRepr {
    #[serde(default)]
    id: String,
    name: String,
    #[serde(default)]
    arguments: Value,
    #[serde(default, skip_serializing_if = "is_false")]
    malformed: bool,
    #[serde(default, with = "extra", skip_serializing_if = "extra::is_left_out")]
    extra: Option<Value>,
    /// The arguments as the model wrote them, in a stored session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    written: Option<Arc<str>>,
}

impl From<ToolCall> for CallRepr {
    fn from(call: ToolCall) -> Self {
        let written = if IS_STORING.get() { call.written_text().cloned() } else { None };
        let ToolCall { id, name, arguments, extra, .. } = call;
        let malformed = matches!(arguments, Arguments::Malformed(_));
        let arguments = match arguments {
            Arguments::Json(value) => value,
            Arguments::Malformed(text) => Value::String(text),
        };
        Self { id, name, arguments, malformed, extra, written }
    }
}

impl From<CallRepr> for ToolCall {
    fn from(CallRepr { id, name, arguments, malformed, extra, written }: CallRepr) -> Self {
        let arguments = match arguments {
            Value::String(text) if malformed => Arguments::Malformed(text),
            value => Arguments::Json(value),
        };
        Self { id, name, arguments, extra, written: Written(written) }
    }
}
