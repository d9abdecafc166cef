//! `docs/events.md` has every event: its path, its fields, and an example. It is written from one example value for each
//! type that the crates emit as an event, and from the documentation of these types:
//!
//! ```text
//! EVENTS=overwrite cargo test -p emitree-examples --test every_event
//! ```

mod registry;
mod sources;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use registry::{Example, Group, groups};
use sources::{Documented, declared_events, folder_of, root};

const HEAD: &str = "# Every event

Each event with its path, its payload and an example. A listener takes an event by its path, by a pattern, or on its
own emitter by its name: [Your first middleware](first-middleware.md) shows how. Names in angle brackets are yours, such as
the name of a tool. The events of middleware are emitted on the middleware's own emitter, and on the run that they are
about, under the same path.

This page is generated from one example of each type: `EVENTS=overwrite cargo test -p emitree-examples --test
every_event` writes it.
";

/// Writes an event: its path, its type, its fields and its JSON.
fn event(page: &mut String, example: &Example) {
    let Documented { text, fields } = Documented::of(&example.file(), example.ident());
    let type_name = example.public_name();
    let text = wrapped(&format!("`{type_name}`: {text}"));
    writeln!(page, "\n### `{}`\n\n{text}\n", example.path).unwrap();
    if !fields.is_empty() {
        writeln!(page, "| field | |\n|---|---|").unwrap();
        for (name, text) in fields {
            writeln!(page, "| `{name}` | {} |", text.replace('|', "\\|")).unwrap();
        }
        writeln!(page).unwrap();
    }
    writeln!(page, "```json\n{}\n```", example.json).unwrap();
}

/// Breaks a text into lines of fewer than 120 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().unwrap();
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + word.chars().count() < 118 {
            write!(line, " {word}").unwrap();
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

fn page(groups: &[Group]) -> String {
    let mut page = HEAD.to_owned();
    for group in groups {
        write!(page, "\n## {}\n", group.title).unwrap();
        if !group.text.is_empty() {
            write!(page, "\n{}\n", group.text).unwrap();
        }
        group.examples.iter().for_each(|example| event(&mut page, example));
    }
    page
}

#[tokio::test]
async fn the_page_has_the_example_of_each_event() {
    let written = page(&groups().await);
    let path = root().join("docs/events.md");
    if std::env::var("EVENTS").is_ok_and(|mode| mode == "overwrite") {
        fs::write(&path, &written).unwrap();
    }
    let kept = fs::read_to_string(Path::new(&path)).unwrap_or_default();
    let differs = written.lines().zip(kept.lines()).find(|(written, kept)| written != kept);
    assert!(written == kept, "docs/events.md is old, write it with EVENTS=overwrite: {differs:?}");
}

#[tokio::test]
async fn no_type_of_an_event_is_missing() {
    let groups = groups().await;
    let examples = groups.iter().flat_map(|group| &group.examples);
    let shown: BTreeSet<_> = examples.map(|example| (folder_of(&example.file()), example.ident().to_owned())).collect();
    let missing: Vec<_> = declared_events().difference(&shown).cloned().collect();
    assert!(missing.is_empty(), "add an example to the registry: {missing:#?}");
}
