//! The librarian's tools. They read files and directories below the current directory, and evaluate expressions.

use std::fs;
use std::path::{Component, Path, PathBuf};

use emitree::agent::{IntoTool, ToolError, tool_fn};
use emitree::{Error, Result, RunContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Deserialize, JsonSchema)]
struct Read {
    /// The path of a file.
    path: String,
    /// The first line to read, from 1.
    #[serde(default)]
    from_line: Option<usize>,
    /// The maximum number of lines to read; 40 by default.
    #[serde(default)]
    lines: Option<usize>,
}

#[derive(Deserialize, JsonSchema)]
struct List {
    /// The path of a directory; `.` is the current directory.
    path: String,
}

#[derive(Deserialize, JsonSchema)]
struct Search {
    /// The path of a file.
    path: String,
    /// The text to look for, in any case.
    text: String,
}

#[derive(Serialize)]
struct Found {
    count: usize,
    lines: Vec<usize>,
}

#[derive(Deserialize, JsonSchema)]
struct Count {
    /// The path of a file.
    path: String,
    /// The things to count.
    what: What,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum What {
    Words,
    Lines,
    Characters,
    Bytes,
}

#[derive(Deserialize, JsonSchema)]
struct Calculate {
    /// An expression of numbers, `+ - * / ^` and parentheses, such as `(3 + 4) * 17`.
    expression: String,
}

/// Returns all tools. The builder of the agent reports a tool that cannot be created.
pub(crate) fn all() -> [Result<emitree::agent::Tool, ToolError>; 5] {
    [
        tool_fn("read", "Reads lines of a text file", |args: Read, _: RunContext| async move {
            let text = text_of(&args.path)?;
            let from = args.from_line.unwrap_or(1).saturating_sub(1);
            let lines: Vec<_> = text.lines().skip(from).take(args.lines.unwrap_or(40)).collect();
            Ok(lines.join("\n"))
        }),
        tool_fn("list", "Lists a directory; names of directories end in /", |args: List, _: RunContext| async move {
            let mut names = Vec::new();
            for entry in fs::read_dir(allowed(&args.path)?).map_err(|error| failed(&args.path, error))? {
                let entry = entry?;
                let end = if entry.file_type()?.is_dir() { "/" } else { "" };
                names.push(format!("{}{end}", entry.file_name().to_string_lossy()));
            }
            names.sort();
            Ok(names)
        }),
        tool_fn(
            "search",
            "Finds the lines of a text file that contain a text",
            |args: Search, _: RunContext| async move {
                let (text, wanted) = (text_of(&args.path)?, args.text.to_lowercase());
                let hits = text.lines().enumerate().filter(|(_, line)| line.to_lowercase().contains(&wanted));
                let lines: Vec<_> = hits.map(|(i, _)| i + 1).collect();
                Ok(Found { count: lines.len(), lines })
            },
        ),
        tool_fn(
            "count",
            "Counts words, lines, characters or bytes of a text file",
            |args: Count, _: RunContext| async move {
                let text = text_of(&args.path)?;
                Ok(match args.what {
                    What::Words => text.split_whitespace().count(),
                    What::Lines => text.lines().count(),
                    What::Characters => text.chars().count(),
                    What::Bytes => text.len(),
                })
            },
        ),
        tool_fn("calculate", "Calculates an expression", |args: Calculate, _: RunContext| async move {
            calculate(&args.expression)
        }),
    ]
    .map(IntoTool::into_tool)
}

fn calculate(expression: &str) -> Result<serde_json::Number> {
    // The parser takes quadratic time, and the text comes from a model.
    if expression.len() > 1000 {
        return Err(Error::new(format!(
            "an expression may have 1000 bytes, and this expression has {}",
            expression.len()
        )));
    }
    let value: f64 = exmex::eval_str(expression)
        .map_err(|error| Error::new(format!("`{expression}` cannot be calculated: {error}")))?;
    let whole = value as i64;
    #[expect(clippy::float_cmp, reason = "asks for exactly that")]
    let number = if whole as f64 == value { Some(whole.into()) } else { serde_json::Number::from_f64(value) };
    number.ok_or_else(|| Error::new(format!("`{expression}` has no finite value")))
}

fn text_of(path: &str) -> Result<String> {
    fs::read_to_string(allowed(path)?).map_err(|error| failed(path, error))
}

fn failed(path: &str, error: std::io::Error) -> Error {
    Error::from(error).message(format!("cannot read `{path}`"))
}

/// Returns the target of a path. Denies absolute paths, `..`, and symbolic links that leave the current directory.
fn allowed(path: &str) -> Result<PathBuf> {
    let stays = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if Path::new(path).components().all(stays) {
        let target = fs::canonicalize(path).map_err(|error| failed(path, error))?;
        if target.starts_with(fs::canonicalize(".")?) {
            return Ok(target);
        }
    }
    Err(Error::denied("librarian", format!("`{path}` is outside the current directory")))
}
