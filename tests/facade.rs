//! The root of the crate exports a short list of names; all other names are in modules by topic.

/// Returns the names that `pub use` brings to the root.
fn root_names(source: &str) -> Vec<&str> {
    let uses = source.split(';').filter_map(|item| item.rsplit_once("\npub use ").map(|(_, path)| path));
    let names = uses.flat_map(|path| path.split_once("::").map_or(path, |(_, names)| names).split(','));
    names
        .map(|name| name.trim_matches(|c: char| c.is_whitespace() || "{}".contains(c)))
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn the_root_has_at_most_thirty_names() {
    let names = root_names(include_str!("../src/lib.rs"));
    assert!(names.contains(&"Emitter") && names.contains(&"runnable_fn"), "{names:?}");
    assert!(!names.iter().any(|name| name.ends_with('*')), "a glob hides the number of names: {names:?}");
    assert!(names.len() <= 30, "{} names: {names:?}", names.len());
}
