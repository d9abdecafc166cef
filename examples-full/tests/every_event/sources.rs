//! The sources of the crates, read as text. rustfmt has formatted them: an item begins at the left margin, and its fields
//! at four spaces.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the crates that emit events.
const CRATES: [&str; 5] = ["emitter", "runtime", "middleware-builtin", "agent", "agent-kit"];

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_in(&path)) } else { files.push(path) }
    }
    files
}

/// Returns the lines of a source without comments and unit tests.
fn code(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().take_while(|line| *line != "#[cfg(test)]");
    lines.map(str::trim).filter(|line| !line.starts_with("//"))
}

fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Returns the folder of a file. A type may implement `Event` in another file of its folder.
pub(crate) fn folder_of(file: &str) -> String {
    file.rsplit_once('/').unwrap().0.to_owned()
}

/// Returns the types that implement `Event`, by hand or by a macro that sets their names, with their folders.
pub(crate) fn declared_events() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for folder in CRATES {
        for file in files_in(&root().join(folder).join("src")) {
            let source = fs::read_to_string(&file).unwrap();
            let name = folder_of(file.strip_prefix(root()).unwrap().to_str().unwrap());
            let mut in_macro = false;
            for line in code(&source) {
                if line.starts_with("impl") && line.contains(" Event for ") && line.ends_with('{') {
                    let ident = word(line.split_once(" Event for ").unwrap().1);
                    if !ident.is_empty() {
                        found.insert((name.clone(), ident.to_owned()));
                    }
                }
                in_macro |= line.starts_with("own_events! {") || line.starts_with("named! {");
                if in_macro {
                    let line = line.split_once("! {").map_or(line, |(_, rest)| rest);
                    for part in line.split(';').filter(|part| part.contains(" = \"")) {
                        found.insert((name.clone(), word(part.trim()).to_owned()));
                    }
                    in_macro &= !line.ends_with('}');
                }
            }
        }
    }
    found
}

/// The documentation of a type: the first paragraph, and the fields with theirs.
pub(crate) struct Documented {
    pub(crate) text: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl Documented {
    pub(crate) fn of(file: &str, ident: &str) -> Self {
        let source = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let lines: Vec<_> = source.lines().collect();
        let is_item = |line: &&str| {
            ["struct", "enum"]
                .iter()
                .any(|item| line.strip_prefix(&format!("pub {item} ")).is_some_and(|rest| word(rest) == ident))
        };
        let at = lines.iter().position(is_item).unwrap_or_else(|| panic!("no `{ident}` in {file}"));
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with("///") || line.starts_with("#["));
        let mut above: Vec<_> = above.filter_map(|line| line.strip_prefix("///")).collect();
        above.reverse();
        let text = paragraph(above.iter().copied());

        let mut fields = Vec::new();
        let mut docs = Vec::new();
        for line in lines[at..].iter().take_while(|line| **line != "}").skip(1) {
            if let Some(doc) = line.strip_prefix("    ///") {
                docs.push(doc);
            } else if let Some(field) = line.strip_prefix("    pub ").filter(|field| field.contains(": ")) {
                fields.push((word(field).to_owned(), paragraph(docs.drain(..))));
            } else if !line.starts_with("    #[") {
                docs.clear();
            }
        }
        Self { text, fields }
    }
}

/// Joins the lines of the first paragraph, and replaces links by their texts.
fn paragraph<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines = lines.map(str::trim).take_while(|line| !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join(" ");
    let mut text = String::new();
    let mut rest = joined.as_str();
    while let Some(begin) = rest.find('[') {
        let Some(end) = rest[begin..].find(']').map(|end| begin + end) else { break };
        text.push_str(&rest[..begin]);
        let after = &rest[end + 1..];
        let is_link = rest[begin + 1..].starts_with('`') || after.starts_with('(');
        text.push_str(if is_link { &rest[begin + 1..end] } else { &rest[begin..=end] });
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    text + rest
}
