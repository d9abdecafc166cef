//! JSON values as values of attributes.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use serde_json::Value;

/// Converts a value: lists of strings stay lists, other lists and objects become JSON strings.
pub(super) fn plain(value: &Value) -> Any {
    match value {
        Value::Bool(value) => Any::BoolValue(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Any::IntValue(int),
            (None, float) => Any::DoubleValue(float.unwrap_or(f64::NAN)),
        },
        Value::String(text) => Any::StringValue(text.clone()),
        Value::Array(values) if values.iter().all(Value::is_string) => {
            let values = values.iter().map(|value| AnyValue { value: Some(plain(value)) }).collect();
            Any::ArrayValue(ArrayValue { values })
        }
        _ => Any::StringValue(value.to_string()),
    }
}

/// Returns `true` if the value of the attribute is JSON.
pub(super) fn is_nested(value: &Value) -> bool {
    value.is_object() || value.as_array().is_some_and(|values| !values.iter().all(Value::is_string))
}

pub(super) fn key_value(key: &str, value: Any) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Returns the number of bytes of an attribute's value.
pub(super) fn size(value: &Any) -> usize {
    match value {
        Any::StringValue(text) => text.len(),
        Any::ArrayValue(array) => array.values.iter().filter_map(|value| value.value.as_ref()).map(size).sum(),
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_type_of_json_has_a_type_of_attribute() {
        let list = ["stop", "length"].map(|text| AnyValue { value: Some(Any::StringValue(text.to_owned())) });
        let table = [
            (json!(true), Any::BoolValue(true)),
            (json!(7), Any::IntValue(7)),
            (json!(u64::MAX), Any::DoubleValue(u64::MAX as f64)),
            (json!(0.5), Any::DoubleValue(0.5)),
            (json!("text"), Any::StringValue("text".to_owned())),
            (json!(["stop", "length"]), Any::ArrayValue(ArrayValue { values: list.to_vec() })),
            (json!([1, "a"]), Any::StringValue("[1,\"a\"]".to_owned())),
            (json!({"a": [1]}), Any::StringValue("{\"a\":[1]}".to_owned())),
            (json!(null), Any::StringValue("null".to_owned())),
        ];
        for (value, expected) in table {
            assert_eq!(plain(&value), expected, "{value}");
        }
    }
}
