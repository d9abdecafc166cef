//! Every page in `docs/` is linked, every program in it is compiled, and every link has a target.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).expect("a folder").map(|entry| entry.expect("a file").path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain([root.join("README.md")]).map(|path| (path.clone(), fs::read_to_string(path).expect("text"))).collect()
}

/// Returns the text of a page without its programs.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let links = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    links.map(|(link, _)| link.to_owned()).filter(|link| !link.starts_with("http")).collect()
}

/// Returns the anchors of a page's headings, as GitHub generates them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page);
    let headings = headings.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    headings.map(anchor).collect()
}

/// Returns the pages outside of `docs/` that have links.
fn other_pages() -> impl Iterator<Item = (PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = ["ARCHITECTURE.md", "CONTRIBUTING.md", "RULES.md", "benches/README.md", "tests/originals.md"];
    names.into_iter().map(|name| (root.join(name), fs::read_to_string(root.join(name)).expect("text")))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut count = 0;
    for (path, page) in pages().into_iter().chain(other_pages()) {
        for link in links(&page) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            assert!(target.exists(), "{}: {link}", path.display());
            if !anchor.is_empty() {
                let target = fs::read_to_string(&target).expect("text");
                assert!(anchors(&target).contains(anchor), "{}: {link}", path.display());
            }
            count += 1;
        }
    }
    assert!(count >= 50, "{count} links");
}

#[test]
fn every_page_is_listed() {
    let listed = links(include_str!("../docs/README.md"));
    for (path, _) in pages() {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        assert!(name == "README.md" || listed.contains(&name), "docs/README.md does not list {name}");
    }
}

#[test]
fn every_page_with_programs_is_compiled() {
    let sources = [include_str!("../docs/guides/lib.rs"), include_str!("../src/lib.rs"), include_str!("readme.rs")];
    let compiled = sources.concat();
    for (path, page) in pages() {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        assert!(!page.contains("```rust") || compiled.contains(&format!("/{name}\")")), "nothing compiles {name}");
    }
}

#[test]
fn every_place_of_an_agent_has_a_row_with_a_program_in_the_order_of_a_turn() {
    let page = include_str!("../docs/agents.md");
    let mut rest = page;
    for place in emitree::agent::Place::ALL {
        let row =
            rest.find(&format!("\n| `{place}` |")).unwrap_or_else(|| panic!("no row for {place} where it belongs"));
        rest = &rest[row + 1..];
        let row = rest.lines().next().expect("a row");
        assert!(row.ends_with(") |") && row.contains("[program](#"), "no program for {place}");
    }
}

#[test]
fn each_rule_has_one_number() {
    let rules = include_str!("../RULES.md");
    let numbers: Vec<_> = rules.lines().filter_map(|line| line.strip_prefix("**")?.split_once("** ")).collect();
    let unique: BTreeSet<_> = numbers.iter().map(|(number, _)| number).collect();
    assert!(unique.len() >= 99, "only {} rules: numbers are never given up", unique.len());
    assert_eq!(numbers.len(), unique.len());
}

#[test]
fn the_page_about_stability_names_the_version_of_each_stored_format() {
    let page = include_str!("../docs/stability.md");
    let formats = [
        ("agent/src/session/fold/mod.rs", "FORMAT", "sessions, as JSON and in a store"),
        ("middleware-builtin/src/durable/record.rs", "FORMAT", "jobs in a store"),
        ("stores/src/sqlite/file.rs", "FORMAT", "files of `SqliteStore`"),
        ("stores/src/postgres/schema.rs", "FORMAT", "schemas of `PostgresStore`"),
        ("middleware-builtin/src/record/journal.rs", "VERSION", "journals of `Record`"),
    ];
    for (file, name, format) in formats {
        let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("a source file");
        let line = source.lines().find(|line| line.contains(&format!("const {name}: "))).expect("a version");
        let (_, version) = line.trim_end_matches(';').split_once(" = ").expect("a number");
        assert!(page.contains(&format!("| {format} | {version} |")), "stability.md: {format} are version {version}");
    }
    let manifest = include_str!("../Cargo.toml");
    let (_, rust) = manifest.split_once("rust-version = \"").expect("a Rust version");
    let rust = rust.split_once('"').expect("a version").0;
    assert!(page.contains(&format!("now {rust},")), "stability.md: the Rust version is {rust}");
}
