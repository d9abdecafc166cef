//! The root of the crate stays a list that one can read: everything else is in a module by topic.

/// Names that `pub use` brings to the root, one by one.
fn root_names(source: &str) -> Vec<&str> {
    let uses = source.split(';').filter_map(|item| item.rsplit_once("\npub use ").map(|(_, path)| path));
    let names = uses.flat_map(|path| path.split_once("::").map_or(path, |(_, names)| names).split(','));
    names
        .map(|name| name.trim_matches(|c: char| c.is_whitespace() || "{}".contains(c)))
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn at_most_thirty_names_lie_at_the_root() {
    let names = root_names(include_str!("../src/lib.rs"));
    assert!(names.contains(&"Emitter") && names.contains(&"runnable_fn"), "{names:?}");
    assert!(!names.iter().any(|name| name.ends_with('*')), "a glob hides how many there are: {names:?}");
    assert!(names.len() <= 30, "{} names: {names:?}", names.len());
}
