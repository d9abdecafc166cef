//! Two values that differ, in errors.

use serde_json::Value;

/// A message quotes at most this many characters of an input.
const QUOTED: usize = 160;

/// Returns the JSON of a value, cut if it is long.
pub(crate) fn quoted(input: &Value) -> String {
    let mut input = input.clone();
    input.sort_all_objects();
    let text = input.to_string();
    match text.char_indices().nth(QUOTED) {
        None => format!("`{text}`"),
        Some((end, _)) => format!("`{}…`", &text[..end]),
    }
}

/// Returns the first place where two values differ, as a JSON path: `$.paths[2]`.
pub(crate) fn first_difference(one: &Value, other: &Value) -> String {
    let mut path = "$".to_owned();
    let mut at = (one, other);
    while let Some((step, inner)) = step(at.0, at.1) {
        path.push_str(&step);
        at = inner;
    }
    path
}

/// Returns the next step of the path, and the values there; `None` if the path ends here.
fn step<'v>(one: &'v Value, other: &'v Value) -> Option<(String, (&'v Value, &'v Value))> {
    const ABSENT: &Value = &Value::Null;
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let mut keys: Vec<_> = one.keys().chain(other.keys()).collect();
            keys.sort_unstable();
            let key = keys.into_iter().find(|key| one.get(*key) != other.get(*key))?;
            Some((member(key), (one.get(key).unwrap_or(ABSENT), other.get(key).unwrap_or(ABSENT))))
        }
        (Value::Array(one), Value::Array(other)) => {
            let index = (0..one.len().max(other.len())).find(|i| one.get(*i) != other.get(*i))?;
            Some((format!("[{index}]"), (one.get(index).unwrap_or(ABSENT), other.get(index).unwrap_or(ABSENT))))
        }
        _ => None,
    }
}

fn member(key: &str) -> String {
    let is_plain = key.chars().all(|c| c.is_alphanumeric() || c == '_') && !key.is_empty();
    if is_plain { format!(".{key}") } else { format!("[{}]", Value::from(key)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::first_difference;

    #[test]
    fn the_first_place_where_values_differ_is_found() {
        let table = [
            (json!(1), json!(2), "$"),
            (json!({"a": 1}), json!([1]), "$"),
            (json!({"a": 1, "b": 2}), json!({"b": 3, "a": 1}), "$.b"),
            (json!({"b": 1, "a": 2}), json!({"a": 1, "b": 2}), "$.a"),
            (json!({"a": [1, {"x y": 2}]}), json!({"a": [1, {"x y": 3}]}), r#"$.a[1]["x y"]"#),
            (json!([1, 2]), json!([1, 2, 3]), "$[2]"),
            (json!({"a": {}}), json!({"a": {"b": null}}), "$.a.b"),
            (json!({"a": {}}), json!({"a": {"b": {"c": 1}}}), "$.a.b"),
        ];
        for (one, other, place) in table {
            assert_eq!(first_difference(&one, &other), place, "{one} and {other}");
            assert_eq!(first_difference(&other, &one), place, "{other} and {one}");
        }
    }
}
