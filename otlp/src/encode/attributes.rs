//! The attributes of a span, from the rows of its dialect.
//!
//! 1. If several rows set an attribute, the first that fits and has a value does: rows of the user, of the dialect,
//!    of all dialects.
//! 2. Required attributes are never left out, because they are counted first.
//! 3. `emitree.cut` names the attributes that are shortened or left out.

use std::borrow::Cow;
use std::collections::HashSet;

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use serde_json::Value;

use super::limits::{Limits, List};
use super::messages::{
    flat_messages, flat_tools, instructions, json_within, messages, output_messages, tool_definitions,
};
use super::value::{is_nested, plain};
use crate::dialect::{Dialect, Form, Row};
use crate::spans::{Fact, Span};

/// Makes the attributes of spans.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    pub(crate) dialect: Dialect,
    /// The rows that the user adds.
    pub(crate) own: Vec<Row>,
    pub(crate) limits: Limits,
}

impl Attributes {
    /// Returns the attributes of a span.
    pub(super) fn of(&self, span: &Span) -> List {
        let mut list = List::new(self.limits);
        let (required, others): (Vec<_>, Vec<_>) = self.rows(span).into_iter().partition(|(row, _)| row.is_required);
        let is_flat = |row: &Row| matches!(row.form, Form::FlatMessages | Form::FlatTools);
        let (flat, single): (Vec<_>, Vec<_>) = others.into_iter().partition(|(row, _)| is_flat(row));
        // Required attributes come first (2), and flat lists last: a long conversation gets the room that is left.
        for (row, value) in required.into_iter().chain(single) {
            let (value, was) = self.value(row.form, &value);
            list.push(row, value, was);
        }
        for (row, value) in flat {
            list.push_flat(row.attribute, if row.form == Form::FlatTools { flat_tools } else { flat_messages }(&value));
        }
        list.with_cut()
    }

    /// Returns the rows that have a value, one for each attribute (1).
    fn rows<'a>(&'a self, span: &'a Span) -> Vec<(&'a Row, Cow<'a, Value>)> {
        let value = |fact: &Fact| match fact {
            Fact::Constant(text) => Some(Cow::Owned((*text).into())),
            fact => span.facts.get(fact).map(Cow::Borrowed),
        };
        let mut named = HashSet::new();
        let rows = self.own.iter().chain(self.dialect.rows().map(|row| -> &'a Row { row }));
        let with_value = rows.filter(|row| row.fits(&span.run.kind)).filter_map(|row| Some((row, value(&row.fact)?)));
        // A row without a value is skipped before it takes the name, so that a later row can set the attribute (1).
        with_value.filter(|(row, _)| named.insert(row.attribute)).collect()
    }

    /// Returns a value in its form, and its number of bytes before it was cut.
    fn value(&self, form: Form, value: &Value) -> (Any, Option<usize>) {
        let json = |value: &Value| {
            let (text, was) = json_within(value, self.limits.value_bytes);
            (Any::StringValue(text), was)
        };
        match form {
            Form::Json => json(value),
            // Nested values are cut as JSON and not as text, so that they stay JSON (O6).
            Form::Plain if is_nested(value) => json(value),
            Form::Text if !value.is_string() => json(value),
            Form::Messages => json(&messages(value)),
            Form::OutputMessages => json(&output_messages(value)),
            Form::Instructions => json(&instructions(value)),
            Form::ToolDefinitions => json(&tool_definitions(value)),
            Form::MimeType => (plain(&if value.is_string() { "text/plain" } else { "application/json" }.into()), None),
            Form::First => self.limits.shortened(plain(value.get(0).unwrap_or(value))),
            Form::Provider => (plain(&self.dialect.provider(value.as_str().unwrap_or_default()).into()), None),
            Form::Plain | Form::Text | Form::FlatMessages | Form::FlatTools => self.limits.shortened(plain(value)),
        }
    }
}
