//! Limits of the attributes of a span.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use serde_json::Value;

use super::value::{key_value, plain, size};
use crate::dialect::Row;

/// The attribute that names what was cut.
const CUT: &str = "emitree.cut";

/// The limits of the attributes of a span. Attributes that the conventions require are shortened, but never left out.
/// `emitree.cut` names each attribute that was shortened or left out, with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most attributes of a span. The default is 128.
    pub attributes: usize,
    /// The most bytes of one value. The default is 32 KB.
    pub value_bytes: usize,
    /// The most bytes of all values of a span. The default is 256 KB.
    pub span_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { attributes: 128, value_bytes: 32 << 10, span_bytes: 256 << 10 }
    }
}

impl Limits {
    /// Sets the most attributes of a span.
    #[must_use]
    pub const fn attributes(mut self, attributes: usize) -> Self {
        self.attributes = attributes;
        self
    }

    /// Sets the most bytes of one value.
    #[must_use]
    pub const fn value_bytes(mut self, bytes: usize) -> Self {
        self.value_bytes = bytes;
        self
    }

    /// Sets the most bytes of all values of a span.
    #[must_use]
    pub const fn span_bytes(mut self, bytes: usize) -> Self {
        self.span_bytes = bytes;
        self
    }

    /// Shortens a string or a list that is too long. Returns the number of bytes that it had, if it was shortened.
    pub(super) fn shortened(&self, value: Any) -> (Any, Option<usize>) {
        let was = size(&value);
        match value {
            Any::StringValue(text) if was > self.value_bytes => {
                (Any::StringValue(cut(&text, self.value_bytes).to_owned() + "…"), Some(was))
            }
            Any::ArrayValue(mut list) if was > self.value_bytes => {
                let mut bytes = 0;
                let fits = |item: &&AnyValue| {
                    bytes += item.value.as_ref().map_or(0, size);
                    bytes <= self.value_bytes
                };
                let fitting = list.values.iter().take_while(fits).count();
                list.values.truncate(fitting);
                (Any::ArrayValue(list), Some(was))
            }
            value => (value, None),
        }
    }
}

/// Returns the beginning of a text, of at most this number of bytes.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Attributes within limits.
pub(super) struct List {
    limits: Limits,
    pub(super) attributes: Vec<KeyValue>,
    /// The bytes of the values.
    pub(super) bytes: usize,
    /// The attributes that were shortened or left out, with their sizes.
    cut: Vec<Value>,
    /// The number of attributes that were left out.
    pub(super) left_out: u32,
}

impl List {
    pub(super) const fn new(limits: Limits) -> Self {
        Self { limits, attributes: Vec::new(), bytes: 0, cut: Vec::new(), left_out: 0 }
    }

    /// Adds an attribute, with the number of bytes that its value had before it was shortened.
    pub(super) fn push(&mut self, row: &Row, value: Any, was: Option<usize>) {
        let bytes = size(&value);
        // Required attributes ignore the limits. They are added first, and leave the rest of the room to others (O6).
        let has_room = row.is_required || self.has_room(1, bytes);
        if let Some(size) = was.or((!has_room).then_some(bytes)) {
            self.cut.push(format!("{} ({size} bytes)", row.attribute).into());
        }
        if has_room {
            self.add(row.attribute, value);
        } else {
            self.left_out += 1;
        }
    }

    /// Adds the newest items of a list that fit, each as attributes of its own. Their numbers begin with 0.
    pub(super) fn push_flat(&mut self, name: &str, items: Vec<Vec<(String, String)>>) {
        let mut count = 0;
        let mut bytes = 0;
        let mut kept = 0;
        // From the end, so that the oldest items are left out, and up to the first that does not fit, so that none is
        // missing in between. A text counts with at most `value_bytes`, because it is shortened below.
        for item in items.iter().rev() {
            count += item.len();
            bytes += item.iter().map(|(_, text)| text.len().min(self.limits.value_bytes)).sum::<usize>();
            if !self.has_room(count, bytes) {
                break;
            }
            kept += 1;
        }
        let old = items.len() - kept;
        if old > 0 {
            self.cut.push(format!("{name} ({old} of {})", items.len()).into());
        }
        let left_out = items[..old].iter().map(Vec::len).sum::<usize>();
        self.left_out = self.left_out.saturating_add(u32::try_from(left_out).unwrap_or(u32::MAX));
        for (number, item) in items.into_iter().skip(old).enumerate() {
            for (end, text) in item {
                let name = format!("{name}.{number}.{end}");
                let (value, was) = self.limits.shortened(Any::StringValue(text));
                self.cut.extend(was.map(|size| Value::from(format!("{name} ({size} bytes)"))));
                self.add(&name, value);
            }
        }
    }

    /// Adds the attribute that names what was cut.
    pub(super) fn with_cut(mut self) -> Self {
        if !self.cut.is_empty() {
            let cut = std::mem::take(&mut self.cut);
            self.add(CUT, plain(&cut.into()));
        }
        self
    }

    /// Returns `true` if there is room, beside the attribute that names what was cut.
    fn has_room(&self, count: usize, bytes: usize) -> bool {
        self.attributes.len() + count < self.limits.attributes && self.bytes + bytes <= self.limits.span_bytes
    }

    fn add(&mut self, name: &str, value: Any) {
        self.bytes += size(&value);
        self.attributes.push(key_value(name, value));
    }
}
