//! Data that a server needs back with a message: its reasoning, and signatures of reasoning, texts and calls.
//!
//! The data is kept in `extra` of reasoning and of calls, as JSON with four members: the server's address, the requested
//! model, the checksum of the text that the data belongs to, and the fields as they came.
//!
//! Invariant: the fields go back only to this server and model, and only with the text that they came with. To any other
//! server goes what that server [demands](Demand) of every message with calls.

use serde_json::{Map, Value, json};

use crate::openai::calls::CallData;
use crate::openai::rules::{Demand, Rules};
use crate::{Arguments, Message, Part, ToolCall};

/// The field of a message with its reasoning. Its text is not stored twice: `fields` has `null`, because the text is
/// the reasoning of the message.
const REASONING: &str = "reasoning_content";
/// The field of a message with `OpenRouter`'s details of its reasoning.
const DETAILS: &str = "reasoning_details";
/// The field of a message or of a call with Gemini's signature.
const CONTENT: &str = "extra_content";

/// A checksum of text that arrives in pieces (FNV-1a). It finds changes by middleware; nobody attacks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Checksum {
    pub(super) fn add(&mut self, text: &str) {
        self.0 = text.bytes().fold(self.0, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }

    fn of(text: &str) -> Self {
        let mut sum = Self::default();
        sum.add(text);
        sum
    }

    /// Returns a checksum of JSON that does not depend on the order of members.
    fn of_json(value: &Value) -> Self {
        let mut sum = Self::default();
        match value {
            Value::Array(items) => items.iter().for_each(|item| sum.add(&Self::of_json(item).0.to_string())),
            Value::Object(members) => {
                let members = members.iter().map(|(name, member)| {
                    let mut sum = Self::of(name);
                    sum.add(&format!(":{}", Self::of_json(member).0));
                    sum.0
                });
                let members = members.fold(1, u64::wrapping_add);
                sum.add(&format!("{{{members}"));
            }
            scalar => sum.add(&scalar.to_string()),
        }
        sum
    }

    fn of_call(name: &str, arguments: &Arguments) -> u64 {
        let arguments = match arguments {
            Arguments::Json(value) => Self::of_json(value),
            Arguments::Malformed(text) => Self::of(text),
        };
        let mut sum = Self::of(name);
        sum.add(&format!("({}", arguments.0));
        sum.0
    }

    /// Returns the checksum of the text that the fields of a message belong to. Only Gemini signs the text.
    fn of_message(fields: &Map<String, Value>, reasoning: Self, text: Self) -> u64 {
        if fields.contains_key(CONTENT) { reasoning.0 ^ text.0.rotate_left(1) } else { reasoning.0 }
    }
}

/// The server and the model of a request.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) server: String,
    pub(super) model: String,
}

impl Peer {
    fn extra(&self, of: u64, fields: &Map<String, Value>) -> Value {
        json!({"server": self.server, "model": self.model, "of": of, "fields": fields})
    }

    /// Returns the fields in `extra` if they came from this server and model.
    fn fields<'e>(&self, extra: &'e Value) -> Option<&'e Map<String, Value>> {
        let is_own = extra["server"] == *self.server && extra["model"] == *self.model;
        extra["fields"].as_object().filter(|_| is_own)
    }

    /// Returns the data of a call, with the call as the server sent it.
    pub(super) fn sign_call(&self, call: &CallData<'_>) -> Value {
        let of = Checksum::of_call(call.name, &Arguments::parse(call.arguments));
        self.extra(of, &Map::from_iter([(CONTENT.to_owned(), call.extra.clone())]))
    }
}

/// The fields of a message, as they arrive in a reply.
#[derive(Default)]
pub(super) struct Received {
    fields: Map<String, Value>,
    details: Vec<Value>,
    pub(super) reasoning: Checksum,
    pub(super) text: Checksum,
}

impl Received {
    /// Notes that the reasoning arrives in the field that has to be sent back.
    pub(super) fn add_reasoning_field(&mut self) {
        self.fields.insert(REASONING.to_owned(), Value::Null);
    }

    /// Adds the other fields of a message, or of a piece of it.
    pub(super) fn add(&mut self, details: Option<Value>, content: Option<Value>) {
        if let Some(content) = content.filter(|content| !content.is_null()) {
            self.fields.insert(CONTENT.to_owned(), content);
        }
        if let Some(Value::Array(details)) = details {
            details.into_iter().for_each(|detail| self.add_detail(detail));
        }
    }

    /// Adds a detail. A stream sends the text of a detail in pieces, which are joined. Other details are complete.
    fn add_detail(&mut self, mut detail: Value) {
        let is_text = matches!(detail["type"].as_str(), Some("reasoning.text" | "reasoning.summary"));
        let known = self
            .details
            .last_mut()
            .filter(|last| is_text && ["type", "index"].iter().all(|name| last.get(name) == detail.get(name)));
        let (Some(Value::Object(known)), Some(more)) = (known, detail.as_object_mut()) else {
            self.details.push(detail);
            return;
        };
        for (name, value) in std::mem::take(more) {
            match (known.get_mut(&name), value) {
                (_, Value::Null) => {}
                (Some(Value::String(text)), Value::String(more)) if name == "text" || name == "summary" => {
                    text.push_str(&more);
                }
                (_, value) => drop(known.insert(name, value)),
            }
        }
    }

    /// Returns the data of the message, if there is any.
    pub(super) fn sign(self, peer: &Peer) -> Option<Value> {
        let Self { mut fields, details, reasoning, text } = self;
        if !details.is_empty() {
            fields.insert(DETAILS.to_owned(), details.into());
        }
        let of = Checksum::of_message(&fields, reasoning, text);
        (!fields.is_empty()).then(|| peer.extra(of, &fields))
    }
}

/// Adds the fields that a server needs back to the messages of a request.
pub(super) struct Returning {
    pub(super) peer: Peer,
    pub(super) rules: Rules,
    /// `true` if fields are not sent, because middleware has changed the text that they belong to.
    pub(super) has_changed: bool,
}

impl Returning {
    /// Adds fields to a model's message in the form of the protocol. `is_current` is `true` in the current turn, which
    /// begins after the last message of the user.
    pub(super) fn add(&mut self, sent: &mut Map<String, Value>, message: &Message, is_current: bool) {
        self.add_to_message(sent, message);
        let Some(Value::Array(calls)) = sent.get_mut("tool_calls") else { return };
        for (sent, call) in calls.iter_mut().zip(message.tool_calls()) {
            if let Some(content) = self.content_of(call) {
                sent[CONTENT] = content;
            }
        }
        match self.rules.demand {
            Demand::Signature if is_current && calls[0].get(CONTENT).is_none() => {
                // The value that Gemini's documentation names for calls of other models.
                calls[0][CONTENT] = json!({"google": {"thought_signature": "skip_thought_signature_validator"}});
            }
            Demand::Reasoning if !sent.contains_key(REASONING) => drop(sent.insert(REASONING.to_owned(), "".into())),
            _ => {}
        }
    }

    /// Returns `true` if the server needs a message back even if it has neither text nor calls. Reasoning is needed
    /// with calls only.
    pub(super) fn needs(sent: &Map<String, Value>) -> bool {
        sent.contains_key(DETAILS) || sent.contains_key(CONTENT)
    }

    fn add_to_message(&mut self, sent: &mut Map<String, Value>, message: &Message) {
        let mut reasoning = String::new();
        let mut extras = Vec::new();
        for part in &message.parts {
            if let Part::Reasoning { content, extra } = part {
                reasoning.push_str(content);
                extras.extend(extra);
            }
        }
        let found = extras.into_iter().find_map(|extra| Some((extra, self.peer.fields(extra)?)));
        let Some((extra, fields)) = found else { return };
        if extra["of"] != Checksum::of_message(fields, Checksum::of(&reasoning), Checksum::of(&message.text())) {
            self.has_changed = true;
            return;
        }
        sent.extend(fields.clone());
        if let Some(text) = sent.get_mut(REASONING) {
            *text = reasoning.into();
        }
    }

    /// Returns the field of a call that goes back with the call.
    fn content_of(&mut self, call: &ToolCall) -> Option<Value> {
        let extra = call.extra.as_ref()?;
        let fields = self.peer.fields(extra)?;
        if extra["of"] != Checksum::of_call(&call.name, &call.arguments) {
            self.has_changed = true;
            return None;
        }
        fields.get(CONTENT).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_call_depends_on_its_name_and_arguments_and_not_on_the_order_of_members() {
        let of = |name: &str, text: &str| Checksum::of_call(name, &Arguments::parse(text));
        let call = of("t", r#"{"a": 1, "b": [{"c": "x", "d": null}]}"#);
        assert_eq!(call, of("t", r#"{"b": [{"d": null, "c": "x"}], "a": 1}"#));
        let others = [
            ("u", r#"{"a": 1, "b": [{"c": "x", "d": null}]}"#),
            ("t", r#"{"a": 2, "b": [{"c": "x", "d": null}]}"#),
            ("t", r#"{"a": 1, "b": [{"c": "y", "d": null}]}"#),
            ("t", r#"{"a": 1, "b": [{"d": "x", "c": null}]}"#),
            ("t", r#"{"a": 1, "b": {"c": "x", "d": null}}"#),
            ("t", r#"{"a": 1}"#),
            ("t", r#"{"a": 1, "b""#),
        ];
        for (name, text) in others {
            assert_ne!(call, of(name, text), "{name} {text}");
        }
    }

    #[test]
    fn the_pieces_of_a_detail_are_joined_and_other_details_are_kept_as_they_came() {
        let mut received = Received::default();
        let pieces = [
            json!({"type": "reasoning.text", "text": "I ", "index": 0, "signature": null, "format": "f"}),
            json!({"type": "reasoning.text", "text": "add.", "index": 0}),
            json!({"type": "reasoning.text", "text": "", "index": 0, "signature": "s"}),
            json!({"type": "reasoning.encrypted", "data": "x", "index": 1}),
            json!({"type": "reasoning.encrypted", "data": "y", "index": 1}),
            json!({"type": "reasoning.summary", "summary": "a", "index": 2}),
            json!({"type": "reasoning.summary", "summary": "b", "index": 3}),
            json!("odd"),
        ];
        pieces.into_iter().for_each(|piece| received.add(Some(json!([piece])), None));
        let expected = json!([
            {"type": "reasoning.text", "text": "I add.", "index": 0, "signature": "s", "format": "f"},
            {"type": "reasoning.encrypted", "data": "x", "index": 1},
            {"type": "reasoning.encrypted", "data": "y", "index": 1},
            {"type": "reasoning.summary", "summary": "a", "index": 2},
            {"type": "reasoning.summary", "summary": "b", "index": 3},
            "odd",
        ]);
        assert_eq!(Value::from(received.details), expected);
    }
}
