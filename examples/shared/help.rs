//! The answer of an example to `--help`: the comment at the top of its source.

use std::io::Write;

/// Prints the comment at the top of a source, if the command line contains `--help` or `-h`. Returns `true` if it did.
pub(crate) fn is_asked(source: &str) -> bool {
    let is_asked = std::env::args().skip(1).any(|argument| argument == "--help" || argument == "-h");
    if is_asked {
        let comment = source.lines().map_while(|line| line.strip_prefix("//!"));
        let lines = comment.filter(|line| !line.trim().starts_with("```"));
        let text: String = lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect();
        // A reader such as `head` may close the pipe early.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    is_asked
}
