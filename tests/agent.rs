//! The example `agent` answers questions about real files, and its guards take effect.

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::example::example;

#[path = "support/example.rs"]
mod example;
// This file runs the unit tests of the rules: `cargo test` builds no program of an example that has tests of its own.
#[path = "../examples/agent/rules.rs"]
#[expect(dead_code, reason = "the unit tests call only some of the functions")]
mod rules;

/// Runs the example in the repository, with these arguments and this standard input.
fn run(arguments: &[&str], typed: &str) -> Output {
    run_in(Path::new(env!("CARGO_MANIFEST_DIR")), arguments, typed)
}

fn run_in(dir: &Path, arguments: &[&str], typed: &str) -> Output {
    let mut child = example("agent")
        .current_dir(dir)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example runs");
    child.stdin.take().expect("piped").write_all(typed.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

fn answer(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Returns the paths of all lifecycle events in a recording, in order.
fn recorded_runs(file: &str) -> Vec<String> {
    let recording = std::fs::read_to_string(file).expect("a recording");
    let path_of = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["path"].clone();
    let paths = recording.lines().map(|line| path_of(line).as_str().expect("an event").to_owned());
    paths.filter(|path| path.contains(".run.")).collect()
}

fn license() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/LICENSE-MIT")).expect("a file")
}

#[test]
fn the_example_counts_and_calculates_with_tools_and_its_trajectory_shows_what_was_asked_and_answered() {
    let output = run(&["How many words has LICENSE-MIT, and what is that times 17?"], "");
    let words = license().split_whitespace().count();
    assert_eq!(answer(&output), format!("words of LICENSE-MIT: {words}\nwhat is that times 17: {}\n", words * 17));
    let trajectory = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(trajectory.starts_with("The model is `rules`"), "{trajectory}");
    let product = words * 17;
    let expected = [
        "Agent[librarian][start]: How many words has LICENSE-MIT, and what is that times 17?".to_owned(),
        "--> ChatModel[rules][start]: How many words has LICENSE-MIT, and what is that times 17?".to_owned(),
        "<-- ChatModel[rules][success]: count(path: LICENSE-MIT, what: words)".to_owned(),
        "--> Tool[count][start]: path: LICENSE-MIT, what: words".to_owned(),
        format!("<-- Tool[count][success]: {words}"),
        format!("--> ChatModel[rules][start]: count → {words}"),
        format!("<-- ChatModel[rules][success]: calculate(expression: {words} * 17)"),
        format!("--> Tool[calculate][start]: expression: {words} * 17"),
        format!("<-- Tool[calculate][success]: {product}"),
        format!("--> ChatModel[rules][start]: calculate → {product}"),
        format!("<-- ChatModel[rules][success]: words of LICENSE-MIT: {words}\\nwhat is that times 17: {product}"),
        format!("Agent[librarian][success]: words of LICENSE-MIT: {words}\\nwhat is that times 17: {product}"),
        "3 turns, 2 tool calls".to_owned(),
    ];
    assert_eq!(trajectory.lines().skip(1).collect::<Vec<_>>(), expected);
}

#[test]
fn the_example_searches_reads_and_lists_real_files_only_in_its_directory() {
    let lines: Vec<_> = license().lines().map(str::to_lowercase).collect();
    let hits: Vec<_> = (1..=lines.len()).filter(|n| lines[n - 1].contains("software")).collect();
    let found = answer(&run(&["which lines of LICENSE-MIT mention \"software\"?"], ""));
    assert!(found.contains(&format!("\"lines\":{}", serde_json::to_string(&hits).expect("JSON"))), "{found}");
    assert!(answer(&run(&["list docs/"], "")).contains("\"limits.md\""));
    assert!(answer(&run(&["read LICENSE-MIT"], "")).contains("Permission is hereby granted"));
    assert!(answer(&run(&["read ../etc/passwd"], "")).contains("outside the current directory"));
    assert!(answer(&run(&["sing me a song"], "")).starts_with("I do not understand \"sing me a song\""));
}

#[cfg(unix)]
#[test]
fn the_example_reads_no_file_through_a_link_that_leaves_its_directory() -> std::io::Result<()> {
    let dir = tempfile::tempdir()?;
    let desk = dir.path().join("desk");
    std::fs::create_dir(&desk)?;
    std::fs::write(dir.path().join("secret.txt"), "hunter2")?;
    std::fs::write(desk.join("note.txt"), "a note")?;
    std::os::unix::fs::symlink("../secret.txt", desk.join("out.txt"))?;
    std::os::unix::fs::symlink("note.txt", desk.join("in.txt"))?;
    assert!(answer(&run_in(&desk, &["read in.txt"], "")).contains("a note"));
    assert!(answer(&run_in(&desk, &["read out.txt"], "")).contains("`out.txt` is outside the current directory"));
    Ok(())
}

#[test]
fn a_guarded_agent_asks_before_a_tool_runs_and_records_the_runs_of_agent_model_and_tool() {
    let refused = answer(&run(&["--guarded", "how many lines has LICENSE-MIT?"], "n\n"));
    assert_eq!(refused, "I could not answer: denied by approval: you said no\n");
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.jsonl");
    let file = file.to_str().expect("UTF-8");
    let allowed = answer(&run(&["--guarded", "--record", file, "how many lines has LICENSE-MIT?"], "y\n"));
    assert_eq!(allowed, format!("lines of LICENSE-MIT: {}\n", license().lines().count()));
    let expected = [
        "agent.librarian.run.start",
        "backend.chat.scripted.run.start",
        "backend.chat.scripted.run.success",
        "backend.chat.scripted.run.finish",
        "tool.count.run.start",
        "tool.count.run.success",
        "tool.count.run.finish",
        "backend.chat.scripted.run.start",
        "backend.chat.scripted.run.success",
        "backend.chat.scripted.run.finish",
        "agent.librarian.run.success",
        "agent.librarian.run.finish",
    ];
    assert_eq!(recorded_runs(file), expected);
}

#[test]
fn an_invalid_model_name_is_quoted_and_a_base_url_needs_a_model() {
    refuses(&["--base-url", "http://localhost:1/v1", "hi"], "`--base-url` needs the name of a model");
    // The example may have been built by `cargo run --example agent`, without the feature `openai`.
    let message = "needs the feature `openai`: cargo run --features openai --example agent -- --model ollama:granite4";
    let without = run(&["--model", "granite4", "hi"], "");
    let has_openai = !String::from_utf8_lossy(&without.stderr).contains("needs the feature");
    if has_openai {
        refuses(&["--model", "granite4", "hi"], "`granite4` does not name a provider");
        refuses(
            &["--model", "openai:m", "--base-url", "http://127.0.0.1:1/v1", "hi"],
            "`openai` at http://127.0.0.1:1/v1 cannot be reached",
        );
    } else {
        refuses(&["--model", "ollama:granite4", "hi"], message);
    }
}

fn refuses(arguments: &[&str], message: &str) {
    let output = run(arguments, "");
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success() && errors.contains(message), "{arguments:?}: {errors}");
}
