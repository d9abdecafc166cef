//! The compiler prints every message that `docs/compiler-messages.md` quotes.

use std::fs;
use std::path::Path;

/// Returns the lines of all messages in trybuild's `.stderr` files.
fn printed() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dirs =
        ["emitter/tests/ui/fail", "runtime/tests/ui/fail"].map(|dir| fs::read_dir(root.join(dir)).expect("a folder"));
    let files = dirs.into_iter().flatten().map(|entry| entry.expect("a file").path());
    let messages = files.filter(|path| path.extension().is_some_and(|extension| extension == "stderr"));
    messages
        .flat_map(|path| fs::read_to_string(path).expect("text").lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn the_compiler_prints_every_message_that_the_page_quotes() {
    let (printed, mut quoted) = (printed(), 0);
    let page = include_str!("../docs/compiler-messages.md");
    for block in page.split("```text\n").skip(1) {
        for line in block.lines().take_while(|line| *line != "```") {
            let says = line.trim_end_matches('…');
            assert!(printed.iter().any(|printed| printed.contains(says)), "nothing prints: {line}");
            quoted += 1;
        }
    }
    assert!(quoted >= 9, "one for each section: {quoted}");
}
