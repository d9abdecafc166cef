//! The size of a schema, with references counted out: checking arguments may take time that grows with it.

use std::collections::HashMap;

use serde_json::Value;

use crate::limits::Limits;

/// Checks the size of a schema.
///
/// # Errors
///
/// Returns a text that names the limit, or the reference that cannot be followed.
pub(super) fn check_size(schema: &Value, limits: &Limits) -> Result<(), String> {
    // Nothing may recurse into a schema before its levels are known.
    if !has_at_most(schema, limits.schema_levels) {
        return Err(format!("its schema has more than {} levels", limits.schema_levels));
    }
    let bytes = schema.to_string().len();
    if bytes > limits.schema_bytes {
        return Err(format!("its schema has {bytes} bytes, more than {}", limits.schema_bytes));
    }
    let mut counter = Counter { root: schema, anchors: HashMap::new(), sizes: HashMap::new() };
    counter.find_anchors(schema, true)?;
    if counter.size(schema)? > limits.schema_nodes {
        return Err(format!("its schema has more than {} values, with references counted out", limits.schema_nodes));
    }
    Ok(())
}

fn has_at_most(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return false };
    match value {
        Value::Array(items) => items.iter().all(|item| has_at_most(item, below)),
        Value::Object(fields) => fields.values().all(|field| has_at_most(field, below)),
        _ => true,
    }
}

struct Counter<'a> {
    root: &'a Value,
    anchors: HashMap<&'a str, &'a Value>,
    /// The sizes of the values that references name; `None` while one is being counted, so a cycle counts once.
    sizes: HashMap<String, Option<usize>>,
}

impl<'a> Counter<'a> {
    fn find_anchors(&mut self, value: &'a Value, is_root: bool) -> Result<(), String> {
        if !is_root && (value["$id"].is_string() || value["id"].as_str().is_some_and(|id| id.contains(':'))) {
            // References below it would be relative to it, and could not be counted.
            return Err("its schema has an `$id` below its root".to_owned());
        }
        for name in ["$anchor", "$dynamicAnchor"] {
            if let Some(anchor) = value[name].as_str() {
                self.anchors.insert(anchor, value);
            }
        }
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.find_anchors(item, false)),
            Value::Object(fields) => fields.values().try_for_each(|field| self.find_anchors(field, false)),
            _ => Ok(()),
        }
    }

    /// Returns the number of values of a schema, as often as references name them.
    fn size(&mut self, value: &'a Value) -> Result<usize, String> {
        let mut size = 1_usize;
        match value {
            Value::Array(items) => {
                for item in items {
                    size = size.saturating_add(self.size(item)?);
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    let target =
                        matches!(name.as_str(), "$ref" | "$dynamicRef" | "$recursiveRef").then(|| field.as_str());
                    size = size.saturating_add(match target.flatten() {
                        Some(reference) => self.size_of_reference(reference)?,
                        None => self.size(field)?,
                    });
                }
            }
            _ => {}
        }
        Ok(size)
    }

    fn size_of_reference(&mut self, reference: &str) -> Result<usize, String> {
        if let Some(size) = self.sizes.get(reference) {
            return Ok(size.unwrap_or(1));
        }
        let target =
            self.find(reference).ok_or_else(|| format!("its schema refers to `{reference}`, which is not in it"))?;
        self.sizes.insert(reference.to_owned(), None);
        let size = self.size(target)?;
        self.sizes.insert(reference.to_owned(), Some(size));
        Ok(size)
    }

    fn find(&self, reference: &str) -> Option<&'a Value> {
        let own = self.root["$id"].as_str().unwrap_or_default();
        let fragment = reference.strip_prefix(own).unwrap_or(reference);
        let fragment = fragment.strip_prefix('#').or_else(|| fragment.is_empty().then_some(""))?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return self.root.pointer(&percent_decoded(fragment));
        }
        self.anchors.get(fragment).copied()
    }
}

/// Decodes the characters that a pointer may have encoded as `%24`.
fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let code = after.get(..2).filter(|_| *byte == b'%').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) => {
                decoded.push(code);
                rest = &after[2..];
            }
            None => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(schema: &Value) -> String {
        check_size(schema, &Limits::default()).unwrap_err()
    }

    /// A schema whose definitions refer twice to the next one.
    fn doubling(times: usize) -> Value {
        let mut definitions = json!({});
        for n in 0..times {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            definitions[format!("d{n}")] = json!({"allOf": [next, next]});
        }
        definitions[format!("d{times}")] = json!({"type": "string"});
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions})
    }

    #[test]
    fn references_are_counted_out() {
        assert!(check_size(&doubling(8), &Limits::default()).is_ok());
        assert_eq!(fault(&doubling(30)), "its schema has more than 10000 values, with references counted out");
        assert!(check_size(&doubling(8), &Limits::default().schema_nodes(300)).is_err());
    }

    #[test]
    fn a_cycle_counts_once() {
        let tree = json!({"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}});
        assert!(check_size(&tree, &Limits::default()).is_ok());
        let list =
            json!({"type": "object", "$defs": {"n": {"$anchor": "node", "properties": {"next": {"$ref": "#node"}}}}});
        assert!(check_size(&list, &Limits::default()).is_ok());
    }

    #[test]
    fn deep_and_long_schemas_are_refused() {
        let deep = (0..40).fold(json!({}), |inner, _| json!({"items": inner}));
        assert_eq!(fault(&deep), "its schema has more than 32 levels");
        assert!(fault(&json!({"description": "x".repeat(70_000)})).contains("bytes, more than 65536"));
    }

    #[test]
    fn references_out_of_the_schema_are_refused() {
        for (schema, expected) in [
            (
                json!({"$ref": "https://elsewhere.example/a"}),
                "its schema refers to `https://elsewhere.example/a`, which is not in it",
            ),
            (json!({"$ref": "#/$defs/a"}), "its schema refers to `#/$defs/a`, which is not in it"),
            (json!({"$defs": {"a": {"$id": "https://b.example"}}}), "its schema has an `$id` below its root"),
        ] {
            assert_eq!(fault(&schema), expected);
        }
        let encoded = json!({"$ref": "#/%24defs/a", "$defs": {"a": true}});
        assert!(check_size(&encoded, &Limits::default()).is_ok());
    }
}
