//! Starts the examples that `cargo test` has built. A test must not start cargo: this would compile the workspace again,
//! with other features, while other tests wait.

use std::env::consts::EXE_SUFFIX;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// Returns a command that starts an example of this package. It panics if the example is missing or older than its
/// sources, and says how to build it.
pub(crate) fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("a test has a path");
    // Tests are in `deps`, and examples are in the folder beside it.
    let folder = test.ancestors().nth(2).expect("a target folder").join("examples");
    let program = folder.join(format!("{name}{EXE_SUFFIX}"));
    let build = format!("build it with `cargo build -p {} --example {name}`", env!("CARGO_PKG_NAME"));

    let built = modified(&program).unwrap_or_else(|| panic!("the example `{name}` is missing: {build}"));
    // Cargo lists the sources of the example and of the workspace's crates below it as `program: source source`.
    let listed = fs::read_to_string(folder.join(format!("{name}.d"))).expect("cargo has listed the sources");
    let (_, sources) = listed.split_once(": ").expect("an example has sources");
    for source in sources.trim_end().replace("\\ ", "\0").split(' ') {
        let source = source.replace('\0', " ");
        let is_current = modified(Path::new(&source)).is_some_and(|changed| changed <= built);
        assert!(is_current, "the example `{name}` is older than {source}: {build}");
    }
    Command::new(program)
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}
