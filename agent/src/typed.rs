//! Rust types on a model's side: the schema that describes a type, the value that a model wrote, and the error that it
//! can act on.
//!
//! ```
//! use emitree_agent::typed::{from_value, schema_of};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//! use serde_json::json;
//!
//! #[derive(Debug, Deserialize, JsonSchema)]
//! struct City {
//!     inhabitants: u32,
//! }
//!
//! assert_eq!(schema_of::<City>()["required"], json!(["inhabitants"]));
//! assert_eq!(from_value::<City>(&json!({"inhabitants": 7}))?.inhabitants, 7);
//! let fault = from_value::<City>(&json!({"inhabitants": "many"})).unwrap_err();
//! assert_eq!(fault, "at `inhabitants`: invalid type: string \"many\", expected u32");
//! # Ok::<(), String>(())
//! ```

pub(crate) mod in_text;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use in_text::json_in;

/// Makes the JSON Schema of a type, as models receive it. The schema has no `$schema` and no `title`, because they cost tokens and do
/// not help a model. Only the schema of a recursive type has references, because some servers do not resolve them.
#[must_use]
pub fn schema_of<T: JsonSchema + ?Sized>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
    }
    schema
}

/// Deserializes a value that a model wrote.
///
/// # Errors
///
/// Returns a text for the model, with the path and the description of the problem. A long description is
/// [shortened].
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let fault = error.into_inner();
        shortened(&if path == "." { fault.to_string() } else { format!("at `{path}`: {fault}") })
    })
}

/// A text is shortened if it has more characters than this.
const MAX_TEXT: usize = 500;

/// Shortens a text of more than 500 characters, such as a name from a model or the description of a problem. Only the
/// middle is removed, where a description may quote a value of any size: the beginning names the place, and the end
/// states what is wrong.
#[must_use]
pub fn shortened(text: &str) -> String {
    let chars = text.chars().count();
    if chars <= MAX_TEXT {
        return text.to_owned();
    }
    let half = MAX_TEXT / 2;
    text.chars().take(half).chain(" … ".chars()).chain(text.chars().skip(chars - half)).collect()
}
