//! An agent that answers questions about the files of a folder.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use emitree::agent::{Agent, ChatModel, Tool, tool_fn};
use emitree::middleware::{Budget, Redact, Retry, Runs};
use emitree::{Error, Result, RunContext, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Deserialize, JsonSchema)]
struct File {
    /// The path of the file, relative to the folder.
    path: PathBuf,
}

/// Reads files of this folder, and no others.
fn read_file(folder: &Path) -> Result<Tool> {
    let folder = folder.to_owned();
    let tool = tool_fn("read_file", "Reads a text file", move |file: File, _: RunContext| {
        let folder = folder.clone();
        async move {
            if !file.path.components().all(|part| matches!(part, Component::Normal(_))) {
                return Err(Error::denied("read_file", format!("{} is outside of the folder", file.path.display())));
            }
            Ok(tokio::fs::read_to_string(folder.join(file.path)).await?)
        }
    })?;
    Ok(tool)
}

/// Builds the agent. A test passes a scripted model.
///
/// # Errors
///
/// Returns an error if a setting is not valid.
pub fn librarian(model: ChatModel, folder: &Path) -> Result<Agent> {
    let retry = Retry::builder().max_retries(2).base_delay(Duration::from_millis(500)).build()?;
    Agent::builder("librarian", model)
        .prompt("Answer questions about the files of a folder. Read a file before you answer.")
        .tool(read_file(folder)?)
        .max_steps(10)
        .middleware(for_tree(Runs::of_kind("ChatModel").only(retry)))
        .middleware(for_tree(Redact::new()))
        .middleware(Budget::builder().tokens(100_000).build()?)
        .build()
}
