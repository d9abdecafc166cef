//! Tools with handwritten JSON Schemas, and the check of arguments against schemas.

use std::fmt::Write;
use std::future::Future;

use emitree_runtime::{Result, RunContext};
use futures_core::future::BoxFuture;
use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use jsonschema::paths::LocationSegment;
use serde::Serialize;
use serde_json::Value;

use crate::tool::{Tool, ToolError, Work, does_not_fit};
use crate::typed::shortened;
use crate::{ToolOutput, ToolSpec};

/// The maximum number of problems that a model receives for one call.
const MAX_FAULTS: usize = 10;

impl Tool {
    /// Makes a tool from a handwritten JSON Schema and an async function that takes JSON. The schema may also come from
    /// a server that offers the tool.
    ///
    /// The schema follows draft 2020-12, unless its `$schema` names another draft. The model receives the schema
    /// unchanged. The function is called only with arguments that fit the schema. Keywords that the draft does not
    /// define, and the keyword `format` since draft 2019-09, are not checked.
    ///
    /// If you do not trust the server, review its schema before you make a tool from it. The time to check arguments
    /// can grow exponentially with the size of the schema, for example if each of 30 definitions refers to the next
    /// definition twice. The check blocks the thread.
    ///
    /// ```
    /// use emitree_agent::Tool;
    /// use emitree_runtime::{Result, RunContext, Runnable};
    /// use serde_json::{Value, json};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let schema = json!({
    ///     "type": "object",
    ///     "properties": { "lines": { "type": "array", "items": { "type": "string", "maxLength": 80 } } },
    ///     "required": ["lines"],
    /// });
    /// let count = Tool::with_schema("count_lines", "Counts lines", schema, |args: Value, _: RunContext| async move {
    ///     Ok(args["lines"].as_array().map(Vec::len))
    /// })?;
    /// assert_eq!(count.run(json!({"lines": ["to be", "or not"]})).await?.content, json!(2));
    ///
    /// let wrong = count.check(&json!({"lines": ["to be", 4]})).unwrap_err();
    /// assert_eq!(wrong, "at `lines[1]`: 4 is not of type \"string\"");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if models cannot call a tool with this name, or if the schema is not valid, does not have the
    /// type `object`, names an unknown draft, or refers to a schema in another document. Other documents are never
    /// fetched.
    pub fn with_schema<O, F, Fut>(
        name: impl Into<String>,
        description: impl Into<String>,
        schema: Value,
        f: F,
    ) -> Result<Self, ToolError>
    where
        O: Serialize + 'static,
        F: Fn(Value, RunContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O>> + Send + 'static,
    {
        let spec = ToolSpec::new(name, description, schema);
        let schema = Schema::of_tool(&spec)?;
        Self::make(spec, Box::new(JsonFunction { schema, f }))
    }
}

/// A function that takes JSON, and the schema that checks its arguments.
struct JsonFunction<F> {
    schema: Schema,
    f: F,
}

impl<O, F, Fut> Work for JsonFunction<F>
where
    O: Serialize + 'static,
    F: Fn(Value, RunContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O>> + Send,
{
    fn check(&self, arguments: &Value) -> Result<(), String> {
        self.schema.check(arguments)
    }

    fn call<'a>(&'a self, arguments: &'a Value, ctx: &'a RunContext) -> BoxFuture<'a, Result<ToolOutput>> {
        Box::pin(async move {
            self.schema.check(arguments).map_err(|fault| does_not_fit(&fault))?;
            ToolOutput::of((self.f)(arguments.clone(), ctx.clone()).await?)
        })
    }
}

/// The JSON Schema of a tool's arguments.
pub(super) struct Schema(jsonschema::Validator);

impl Schema {
    /// Compiles the schema of a tool's arguments. If it is not valid, the error describes the problem.
    pub(super) fn of_tool(spec: &ToolSpec) -> Result<Self, ToolError> {
        // Fetching documents is disabled here, because another crate in the program may enable the features for it.
        let schema = jsonschema::options().offline().build(&spec.parameters);
        schema.map(Self).map_err(|error| ToolError::Schema { name: spec.name.clone(), fault: describe(&error) })
    }

    /// Checks arguments. If they do not fit the schema, returns a text for the model. The text lists at most
    /// [`MAX_FAULTS`] problems, because each problem costs tokens.
    pub(super) fn check(&self, arguments: &Value) -> Result<(), String> {
        let faults: Vec<_> = self.0.iter_errors(arguments).take(MAX_FAULTS).map(|error| describe(&error)).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
    }
}

/// Describes a problem and its place, in the same form as for typed arguments: `` at `lines[1]`: … ``.
fn describe(error: &ValidationError<'_>) -> String {
    if let Some(inner) = the_only_fault(error) {
        return describe(inner);
    }
    let mut path = String::new();
    for segment in error.instance_path().segments() {
        match segment {
            LocationSegment::Property(name) if path.is_empty() => path.push_str(&name),
            LocationSegment::Property(name) => path.extend([".", &*name]),
            // Writing to a string never fails.
            LocationSegment::Index(index) => drop(write!(path, "[{index}]")),
        }
    }
    shortened(&if path.is_empty() { error.to_string() } else { format!("at `{path}`: {error}") })
}

/// If only one alternative of `anyOf` or `oneOf` has the type of the value, returns the first problem with it. For an
/// `Option`, the other alternative is `null`.
fn the_only_fault<'a>(error: &'a ValidationError<'_>) -> Option<&'a ValidationError<'static>> {
    let (ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context }) = error.kind() else {
        return None;
    };
    let has_type = |faults: &&Vec<ValidationError<'_>>| {
        let is_type = |fault: &ValidationError<'_>| matches!(fault.kind(), ValidationErrorKind::Type { .. });
        !faults.iter().any(|fault| is_type(fault) && fault.instance_path() == error.instance_path())
    };
    let mut alternatives = context.iter().filter(has_type);
    let only = alternatives.next().filter(|_| alternatives.next().is_none())?;
    only.first()
}
