//! JSON Schemas of Rust types.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// Makes the schema that a model receives. The schema has no `$schema` and no `title`, because they cost tokens and do
/// not help a model. Only the schema of a recursive type has references, because some servers do not resolve them.
pub(crate) fn schema_of<T: JsonSchema + ?Sized>() -> Value {
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
