//! A built-in is registered in four places, which must agree: this crate's manifest, `lib.rs`, the facade's manifest,
//! and a row of `docs/middleware.md`. In this crate's manifest, its feature is also part of `full`.

use std::collections::BTreeSet;

const MANIFEST: &str = include_str!("../../Cargo.toml");
const LIB: &str = include_str!("../../src/lib.rs");
const FACADE: &str = include_str!("../../../Cargo.toml");
const PAGE: &str = include_str!("../../../docs/middleware.md");

/// Features that are no built-ins: several built-ins share them, or agents use them.
const SHARED: [&str; 4] = ["key", "own_events", "runs", "values"];

/// Modules that are no built-ins: the contracts of stores.
const CONTRACTS: [&str; 2] = ["store", "values"];

/// Returns the modules of `lib.rs` with a built-in, each with the name that it exports at the root.
fn built_ins() -> Vec<(&'static str, &'static str)> {
    let modules = LIB.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let modules = modules.filter(|module| !CONTRACTS.contains(module));
    let name = |module: &str| {
        let gate = format!("#[cfg(feature = \"{module}\")]\n");
        let (_, after) = LIB.split_once(&format!("{gate}pub mod {module};\n{gate}pub use {module}::"))?;
        after.split_once(";\n").map(|(name, _)| name)
    };
    modules.map(|module| (module, name(module).expect("a feature, a module and a name below each other"))).collect()
}

/// Returns the names of the features in a manifest.
fn features(manifest: &'static str) -> BTreeSet<&'static str> {
    let (_, features) = manifest.split_once("[features]\n").expect("features");
    let lines = features.lines().take_while(|line| !line.starts_with("[dep"));
    lines.filter_map(|line| line.split_once(" = [").map(|(name, _)| name)).filter(|name| *name != "default").collect()
}

fn names(built_ins: &[(&'static str, &'static str)]) -> BTreeSet<&'static str> {
    built_ins.iter().map(|(module, _)| *module).collect()
}

#[test]
fn the_manifest_has_a_feature_for_each_built_in_and_full_enables_all() {
    let expected: BTreeSet<_> = names(&built_ins()).into_iter().chain(SHARED).chain(["full"]).collect();
    assert_eq!(features(MANIFEST), expected);
    let (_, full) = MANIFEST.split_once("\nfull = [\n").expect("a list");
    let full: BTreeSet<_> = full.lines().map_while(|line| line.trim().strip_prefix('"')?.strip_suffix("\",")).collect();
    let missing: Vec<_> = expected.difference(&full).collect();
    assert_eq!(missing, [&"full", &"own_events"], "what another one brings along need not be there");
}

#[test]
fn the_facade_forwards_each_feature() {
    // The facade re-exports the scanner, whose types appear in the API of some built-ins.
    let passed = |feature: &str| {
        let forwards = |others: &str| format!("\n{feature} = [{others}\"emitree-middleware/{feature}\"]\n");
        ["", "\"secrets\", "].into_iter().any(|others| FACADE.contains(&forwards(others)))
    };
    let passed: BTreeSet<_> = features(FACADE).into_iter().filter(|feature| passed(feature)).collect();
    // A crate of a user needs `OwnEvents` for a middleware, `KeyValues` or `Store` for a database, without any built-in.
    let expected: BTreeSet<_> = names(&built_ins()).into_iter().chain(["durable", "own_events", "values"]).collect();
    assert_eq!(passed, expected);
}

#[test]
fn the_page_has_a_row_for_each_built_in() {
    let (_, table) =
        PAGE.split_once("| feature | middleware | what it does | adds |\n|---|---|---|---|\n").expect("a table");
    let rows = table.lines().map_while(|row| {
        let mut cells = row.strip_prefix("| ")?.split(" | ").map(|cell| cell.trim_matches('`'));
        Some((cells.next()?, cells.next()?))
    });
    assert_eq!(rows.collect::<Vec<_>>(), built_ins());
}
