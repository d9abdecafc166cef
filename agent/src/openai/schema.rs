//! The schemas of tools in the dialect of a server.
//!
//! Nothing that a schema says is lost: a keyword that the server refuses is expressed by others, or moves as text into
//! the description, where the model reads it. What can be said in neither way is an error.

use emitree_runtime::{Error, Result};
use serde_json::{Map, Value, json};

use crate::ToolSpec;
use crate::openai::rules::Dialect;

type Schema = Map<String, Value>;

/// The keywords of a choice between schemas.
const CHOICES: [&str; 3] = ["anyOf", "oneOf", "allOf"];

/// Returns the schema of a tool's arguments as a server accepts it.
///
/// # Errors
///
/// Returns an error that names the tool and the keyword if the server accepts no schema with the same meaning.
pub(super) fn adapted(spec: &ToolSpec, dialect: Dialect) -> Result<Value> {
    let mut root = spec.parameters.as_object().cloned().unwrap_or_default();
    let of = format!("the tool `{}`", spec.name);
    let refuse = |keyword: &str, why: &str| refused(&of, keyword, why);
    // A definition may name another one. A cycle ends at a missing definition or at the limit.
    for _ in 0..32 {
        let Some(target) = root.get("$ref").and_then(Value::as_str) else { break };
        let target = resolved(&spec.parameters, target).cloned();
        let target = target.ok_or_else(|| refuse("$ref", "it does not refer to a definition of the schema"))?;
        root.remove("$ref");
        for (name, value) in target {
            root.entry(name).or_insert(value);
        }
    }
    // Arguments are an object, also those of a tool without parameters.
    if !CHOICES.iter().any(|name| root.contains_key(*name)) {
        root.entry("type").or_insert_with(|| "object".into());
    }
    if root.get("type").is_some_and(|kind| kind == "object") {
        root.entry("properties").or_insert_with(|| json!({}));
    }
    match dialect {
        Dialect::Any => {}
        Dialect::OpenAi | Dialect::Anthropic => {
            for name in ["anyOf", "oneOf", "allOf", "enum", "not"] {
                if root.contains_key(name) && !has_properties(&root) {
                    return Err(refuse(name, "the server demands an object with `properties`: put it into a field"));
                }
                move_to_description(&mut root, name);
            }
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
            let is_name = |name: &String| (1..=64).contains(&name.len()) && name.chars().all(fits);
            let unfit = properties(&root).find(|name| !is_name(name));
            if let (Dialect::Anthropic, Some(name)) = (dialect, unfit) {
                return Err(refuse(
                    "properties",
                    &format!("`{name}` is not 1 to 64 letters, digits, `_`, `.` and `-`"),
                ));
            }
        }
        Dialect::LlamaCpp => anchor(&mut root),
        Dialect::Gemini => return Gemini::new(&of, &spec.parameters).convert(root, 1).map(Value::Object),
    }
    Ok(root.into())
}

/// Returns the schema of a response format as a server accepts it. Unlike arguments, an answer may be of any type.
///
/// # Errors
///
/// As [`adapted`], with the name of the format.
pub(super) fn adapted_format(name: &str, schema: &Value, dialect: Dialect) -> Result<Value> {
    let Value::Object(root) = schema else { return Ok(schema.clone()) };
    match dialect {
        Dialect::Any | Dialect::OpenAi | Dialect::Anthropic => Ok(schema.clone()),
        Dialect::LlamaCpp => {
            let mut root = root.clone();
            anchor(&mut root);
            Ok(root.into())
        }
        Dialect::Gemini => {
            let of = format!("the response format `{name}`");
            Gemini::new(&of, schema).convert(root.clone(), 1).map(Value::Object)
        }
    }
}

/// `of` says whose schema it is.
fn refused(of: &str, keyword: &str, why: &str) -> Error {
    Error::new(format!("the server refuses `{keyword}` in the schema of {of}: {why}"))
}

/// Returns the definition that a reference names.
fn resolved<'s>(root: &'s Value, reference: &str) -> Option<&'s Schema> {
    root.pointer(reference.strip_prefix('#')?)?.as_object()
}

fn properties(schema: &Schema) -> impl Iterator<Item = &String> {
    schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys)
}

fn has_properties(schema: &Schema) -> bool {
    properties(schema).next().is_some()
}

/// Replaces a keyword by a text in the description.
fn move_to_description(schema: &mut Schema, keyword: &str) {
    let Some(value) = schema.remove(keyword) else { return };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let note = format!("{keyword}: {text}");
    let description = match schema.get("description").and_then(Value::as_str) {
        Some(before) if !before.is_empty() => format!("{before}\n{note}"),
        _ => note,
    };
    schema.insert("description".to_owned(), description.into());
}

/// Moves each pattern that llama.cpp cannot convert to a grammar: it must have both anchors, and classes such as `\d`
/// are not understood.
fn anchor(schema: &mut Schema) {
    let is_grammar = |pattern: &str| pattern.starts_with('^') && pattern.ends_with('$') && !pattern.contains('\\');
    if schema.get("pattern").and_then(Value::as_str).is_some_and(|pattern| !is_grammar(pattern)) {
        move_to_description(schema, "pattern");
    }
    for (name, value) in schema.iter_mut() {
        match value {
            // The members of these are schemas by name, so `pattern` may be a name.
            Value::Object(members)
                if matches!(
                    &**name,
                    "properties" | "patternProperties" | "dependentSchemas" | "$defs" | "definitions"
                ) =>
            {
                for member in members.values_mut().filter_map(Value::as_object_mut) {
                    anchor(member);
                }
            }
            // These are values, and no schemas.
            _ if matches!(&**name, "const" | "default" | "enum" | "examples") => {}
            Value::Object(inner) => anchor(inner),
            Value::Array(items) => {
                for item in items.iter_mut().filter_map(Value::as_object_mut) {
                    anchor(item);
                }
            }
            _ => {}
        }
    }
}

/// The deepest nesting of arrays and objects. Gemini's limit is not documented; schemas with fewer levels have been
/// refused.
const GEMINI_DEPTH: usize = 10;

/// The maximum number of schemas in a tool's schema whose references are replaced by their definitions.
const MAX_SCHEMAS: usize = 2_000;

/// Converts schemas to Gemini's, which are a part of `OpenAPI` 3.0.
struct Gemini<'s> {
    /// Whose schema it is, for errors.
    of: &'s str,
    root: &'s Value,
    /// The references that are being replaced by their definitions.
    open: Vec<String>,
    /// The number of schemas so far: definitions that name others twice would grow without end.
    schemas: usize,
}

impl<'s> Gemini<'s> {
    const fn new(of: &'s str, root: &'s Value) -> Self {
        Self { of, root, open: Vec::new(), schemas: 0 }
    }

    fn convert(&mut self, mut schema: Schema, depth: usize) -> Result<Schema> {
        self.count()?;
        if depth > GEMINI_DEPTH {
            return Err(refused(self.of, "properties", &format!("it is nested more than {GEMINI_DEPTH} levels deep")));
        }
        if let Some(Value::String(reference)) = schema.remove("$ref") {
            return self.inline(reference, schema, depth);
        }
        for name in ["$defs", "definitions", "$schema", "$id", "$comment"] {
            schema.remove(name);
        }
        allow_null(&mut schema);
        // One alternative is no choice.
        for name in CHOICES {
            match schema.remove(name) {
                Some(Value::Array(mut choices)) if choices.len() == 1 => {
                    for (name, value) in choices.pop().map(object).unwrap_or_default() {
                        schema.entry(name).or_insert(value);
                    }
                    return self.convert(schema, depth);
                }
                // Which of several fits is for the tool to check, so `oneOf` is `anyOf`.
                Some(Value::Array(mut choices))
                    if name != "allOf" && !has_properties(&schema) && !schema.contains_key("anyOf") =>
                {
                    // The server refuses a type beside a choice.
                    if let Some(kind) = schema.remove("type") {
                        for choice in choices.iter_mut().filter_map(Value::as_object_mut) {
                            choice.entry("type").or_insert_with(|| kind.clone());
                        }
                    }
                    schema.insert("anyOf".to_owned(), choices.into());
                }
                Some(choices) => {
                    schema.insert(name.to_owned(), self.inlined(choices)?);
                    move_to_description(&mut schema, name);
                }
                None => {}
            }
        }
        constants(&mut schema);
        let mut converted = Schema::new();
        let mut rest = Schema::new();
        for (name, value) in schema {
            let value = match (&*name, value) {
                ("properties", Value::Object(members)) => {
                    let mut properties = Schema::new();
                    for (name, member) in members {
                        properties.insert(name, self.convert(object(member), depth + 1)?.into());
                    }
                    properties.into()
                }
                ("items", value @ (Value::Object(_) | Value::Bool(_))) => {
                    self.convert(object(value), depth + 1)?.into()
                }
                ("anyOf", Value::Array(choices)) => {
                    let choices = choices.into_iter().map(|one| self.convert(object(one), depth));
                    choices.collect::<Result<Vec<_>>>()?.into()
                }
                ("items" | "prefixItems", Value::Array(items)) => {
                    let why = "the server has no tuples of different types: use a struct, or an array of one type";
                    let first = items.first().filter(|first| items.iter().all(|item| item == *first));
                    let first = first.cloned().ok_or_else(|| refused(self.of, &name, why))?;
                    converted.insert("items".to_owned(), self.convert(object(first), depth + 1)?.into());
                    continue;
                }
                // An object has no other properties than those that are named, unless its schema says which.
                ("additionalProperties" | "unevaluatedProperties", Value::Bool(_)) => continue,
                (_, value) => value,
            };
            if is_gemini(&name, &value) {
                converted.insert(name, value)
            } else {
                rest.insert(name, value)
            };
        }
        if converted.get("type").is_some_and(|kind| kind == "array") {
            converted.entry("items").or_insert_with(|| json!({}));
        }
        // The keywords that are left become text.
        for (name, value) in rest {
            let is_value = matches!(&*name, "const" | "default" | "enum" | "examples");
            let value = if is_value { value } else { self.inlined(value)? };
            converted.insert(name.clone(), value);
            move_to_description(&mut converted, &name);
        }
        Ok(converted)
    }

    /// Counts one more part of the schema.
    fn count(&mut self) -> Result<()> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            let why = format!("with its definitions in place, the schema has more than {MAX_SCHEMAS} parts");
            return Err(refused(self.of, "$ref", &why));
        }
        Ok(())
    }

    /// Replaces a reference by its definition, and converts it. Members beside it, such as a description, come first.
    fn inline(&mut self, reference: String, mut schema: Schema, depth: usize) -> Result<Schema> {
        for (name, value) in self.open(&reference)? {
            schema.entry(name).or_insert_with(|| value.clone());
        }
        self.open.push(reference);
        let converted = self.convert(schema, depth);
        self.open.pop();
        converted
    }

    /// Returns the definition that a reference names.
    fn open(&self, reference: &str) -> Result<&'s Schema> {
        if self.open.iter().any(|open| open == reference) {
            return Err(refused(self.of, "$ref", "a type that contains itself cannot be written without references"));
        }
        match resolved(self.root, reference) {
            Some(target) => Ok(target),
            None => Err(refused(self.of, "$ref", &format!("`{reference}` is not a definition of the schema"))),
        }
    }

    /// Replaces the references in schemas that become text: the definitions that they name are not sent.
    fn inlined(&mut self, value: Value) -> Result<Value> {
        self.count()?;
        match value {
            Value::Object(mut members) => {
                let Some(Value::String(reference)) = members.remove("$ref") else {
                    let members = members.into_iter().map(|(name, value)| Ok((name, self.inlined(value)?)));
                    return members.collect::<Result<Schema>>().map(Value::Object);
                };
                for (name, value) in self.open(&reference)? {
                    members.entry(name).or_insert_with(|| value.clone());
                }
                self.open.push(reference);
                let inlined = self.inlined(members.into());
                self.open.pop();
                inlined
            }
            Value::Array(items) => items.into_iter().map(|item| self.inlined(item)).collect::<Result<_>>(),
            other => Ok(other),
        }
    }
}

/// Returns a schema as an object. The schema `true` accepts everything, as does an empty one.
fn object(schema: Value) -> Schema {
    match schema {
        Value::Object(schema) => schema,
        Value::Bool(false) => Schema::from_iter([("not".to_owned(), json!({}))]),
        _ => Schema::new(),
    }
}

/// Expresses `null` as `nullable`, and a list of types as a choice.
fn allow_null(schema: &mut Schema) {
    let is_null = |choice: &Value| choice.is_null() || *choice == "null" || choice["type"] == "null";
    for name in ["type", "enum", "anyOf", "oneOf"] {
        let Some(Value::Array(choices)) = schema.get_mut(name) else { continue };
        let before = choices.len();
        if choices.iter().all(is_null) {
            continue;
        }
        // In a list of values, a text `null` is a text.
        choices.retain(|choice| if name == "enum" { !choice.is_null() } else { !is_null(choice) });
        if choices.len() < before {
            schema.insert("nullable".to_owned(), true.into());
        }
    }
    let Some(Value::Array(types)) = schema.get("type").cloned() else { return };
    if let [one] = &*types {
        schema.insert("type".to_owned(), one.clone());
        return;
    }
    // Each type takes the keywords along: those that are not about it say nothing.
    let annotations = ["description", "title", "default", "nullable"];
    let (kept, keywords): (Schema, Schema) =
        std::mem::take(schema).into_iter().partition(|(name, _)| annotations.contains(&&**name));
    let choices = types.into_iter().map(|one| {
        let mut choice = keywords.clone();
        choice.insert("type".to_owned(), one);
        Value::Object(choice)
    });
    *schema = kept;
    schema.insert("anyOf".to_owned(), choices.collect::<Vec<_>>().into());
}

/// Expresses a constant as a list of one value. Values are texts, others become a part of the description.
fn constants(schema: &mut Schema) {
    if let Some(constant) = schema.remove("const") {
        schema.insert("enum".to_owned(), json!([constant]));
    }
    match schema.get("enum") {
        Some(Value::Array(values)) if values.iter().all(Value::is_string) => {
            schema.entry("type").or_insert_with(|| "string".into());
        }
        Some(_) => move_to_description(schema, "enum"),
        None => {}
    }
}

/// Returns `true` if Gemini knows a keyword with this value: <https://ai.google.dev/api/caching#Schema>.
fn is_gemini(name: &str, value: &Value) -> bool {
    const KNOWN: [&str; 21] = [
        "anyOf",
        "default",
        "description",
        "enum",
        "example",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "nullable",
        "pattern",
        "properties",
        "propertyOrdering",
        "required",
        "title",
        "type",
    ];
    match name {
        // Others are refused for texts: <https://github.com/google-gemini/gemini-cli/issues/3178>.
        "format" => value
            .as_str()
            .is_some_and(|format| matches!(format, "date-time" | "enum" | "float" | "double" | "int32" | "int64")),
        _ => KNOWN.contains(&name),
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;

    use super::*;
    use crate::typed::schema_of;

    fn adapt(parameters: &Value, dialect: Dialect) -> Result<Value> {
        adapted(&ToolSpec::new("t", "", parameters.clone()), dialect)
    }

    #[test]
    fn a_tool_without_arguments_has_an_object_without_properties() -> Result<()> {
        let all = [Dialect::Any, Dialect::OpenAi, Dialect::Anthropic, Dialect::LlamaCpp, Dialect::Gemini];
        for parameters in [json!({"type": "object"}), json!({}), json!(null), json!(true)] {
            for dialect in all {
                assert_eq!(adapt(&parameters, dialect)?, json!({"type": "object", "properties": {}}), "{dialect:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_schema_for_gemini_says_the_same_in_its_own_words() -> Result<()> {
        let table = [
            (json!({"type": ["string", "null"]}), json!({"type": "string", "nullable": true})),
            (
                json!({"type": ["string", "integer", "null"], "description": "d"}),
                json!({"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": true, "description": "d"}),
            ),
            (
                json!({"anyOf": [{"$ref": "#/$defs/p"}, {"type": "null"}], "description": "d"}),
                json!({"type": "object", "properties": {"x": {"type": "integer"}}, "nullable": true, "description": "d"}),
            ),
            (
                json!({"type": ["string", "null"], "enum": ["a", null]}),
                json!({"type": "string", "enum": ["a"], "nullable": true}),
            ),
            (json!({"const": "a"}), json!({"type": "string", "enum": ["a"]})),
            (
                json!({"oneOf": [{"const": "a", "type": "string"}, {"type": "integer"}]}),
                json!({"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "integer"}]}),
            ),
            (json!({"type": "integer", "enum": [1, 2]}), json!({"type": "integer", "description": "enum: [1,2]"})),
            (
                json!({"type": "integer", "format": "uint8", "minimum": 0, "maximum": 255}),
                json!({"type": "integer", "minimum": 0, "maximum": 255, "description": "format: uint8"}),
            ),
            (
                json!({"type": "string", "format": "uri", "description": "A page."}),
                json!({"type": "string", "description": "A page.\nformat: uri"}),
            ),
            (json!({"type": "string", "format": "date-time"}), json!({"type": "string", "format": "date-time"})),
            (
                json!({"type": "object", "additionalProperties": {"type": "integer"}}),
                json!({"type": "object", "description": "additionalProperties: {\"type\":\"integer\"}"}),
            ),
            (json!({"type": "object", "additionalProperties": false}), json!({"type": "object"})),
            (
                json!({"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "minItems": 2}),
                json!({"type": "array", "items": {"type": "number"}, "minItems": 2}),
            ),
            (json!({"type": "array"}), json!({"type": "array", "items": {}})),
            (
                json!({"type": "object", "additionalProperties": {"$ref": "#/$defs/q"}}),
                json!({"type": "object", "description": "additionalProperties: {\"type\":\"boolean\"}"}),
            ),
            (
                json!({"allOf": [{"$ref": "#/$defs/q"}, {"title": "t"}]}),
                json!({"description": "allOf: [{\"type\":\"boolean\"},{\"title\":\"t\"}]"}),
            ),
            (
                json!({"type": "object", "properties": {"x": {}}, "oneOf": [{"$ref": "#/$defs/q"}, {}]}),
                json!({"type": "object", "properties": {"x": {}}, "description": "oneOf: [{\"type\":\"boolean\"},{}]"}),
            ),
            (
                json!({"type": "number", "exclusiveMinimum": 0}),
                json!({"type": "number", "description": "exclusiveMinimum: 0"}),
            ),
        ];
        for (member, expected) in table {
            let root = json!({
                "type": "object", "properties": {"m": member},
                "$defs": {"p": {"type": "object", "properties": {"x": {"type": "integer"}}}, "q": {"type": "boolean"}},
            });
            assert_eq!(
                adapt(&root, Dialect::Gemini)?,
                json!({"type": "object", "properties": {"m": expected}}),
                "{member}"
            );
        }
        Ok(())
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Tree {
        name: Option<String>,
        children: Vec<Self>,
    }

    #[test]
    fn what_a_server_cannot_read_in_any_form_is_an_error_that_names_the_tool_and_the_keyword() {
        let within = |member: Value| json!({"type": "object", "properties": {"m": member}});
        let mut deep = json!({"type": "string"});
        for _ in 0..12 {
            deep = json!({"type": "array", "items": deep});
        }
        let choice = json!({"oneOf": [within(json!({})), within(json!({"type": "string"}))]});
        let table = [
            (schema_of::<Tree>(), Dialect::Gemini, "$ref"),
            (within(json!({"$ref": "https://example.com/s"})), Dialect::Gemini, "$ref"),
            (json!({"$ref": "#/$defs/none"}), Dialect::Any, "$ref"),
            (within(deep), Dialect::Gemini, "properties"),
            (within(json!({"prefixItems": [{"type": "string"}, {"type": "number"}]})), Dialect::Gemini, "prefixItems"),
            (choice.clone(), Dialect::OpenAi, "oneOf"),
            (choice, Dialect::Anthropic, "oneOf"),
            (json!({"type": "object", "properties": {"filter[id]": {}}}), Dialect::Anthropic, "properties"),
        ];
        for (parameters, dialect, keyword) in table {
            let error = adapt(&parameters, dialect).unwrap_err().to_string();
            let begin = format!("the server refuses `{keyword}` in the schema of the tool `t`: ");
            assert!(error.starts_with(&begin), "{error}");
        }
    }

    #[test]
    fn a_choice_beside_properties_and_a_pattern_without_anchors_move_to_the_description() -> Result<()> {
        let root = json!({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]});
        let expected =
            json!({"type": "object", "properties": {"a": {}}, "description": "anyOf: [{\"required\":[\"a\"]}]"});
        assert_eq!(adapt(&root, Dialect::OpenAi)?, expected);
        assert_eq!(adapt(&root, Dialect::Any)?, root);

        let of = |pattern: &str| json!({"type": "string", "pattern": pattern});
        let root =
            json!({"type": "object", "properties": {"pattern": of("^a+$"), "b": of("a"), "c": {"items": of("^\\d$")}}});
        let expected = json!({"type": "object", "properties": {
            "pattern": of("^a+$"), "b": {"type": "string", "description": "pattern: a"},
            "c": {"items": {"type": "string", "description": "pattern: ^\\d$"}},
        }});
        assert_eq!(adapt(&root, Dialect::LlamaCpp)?, expected);
        Ok(())
    }
    #[test]
    fn the_schema_of_a_response_format_is_adapted_too() -> Result<()> {
        let list =
            json!({"type": "array", "items": {"$ref": "#/$defs/p"}, "$defs": {"p": {"type": ["string", "null"]}}});
        let gemini = json!({"type": "array", "items": {"type": "string", "nullable": true}});
        assert_eq!(adapted_format("list", &list, Dialect::Gemini)?, gemini);
        assert_eq!(adapted_format("list", &list, Dialect::OpenAi)?, list);
        let error = adapted_format("tree", &schema_of::<Tree>(), Dialect::Gemini).unwrap_err().to_string();
        assert!(
            error.starts_with("the server refuses `$ref` in the schema of the response format `tree`: "),
            "{error}"
        );
        Ok(())
    }
}
