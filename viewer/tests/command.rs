//! The command line of `emitree-view`.

use std::process::{Command, Output};

fn view(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_emitree-view")).args(arguments).output().expect("the program")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn help_names_each_option() {
    for help in ["--help", "-h"] {
        let output = view(&["run.jsonl", help]);
        let text = text(&output.stdout);
        assert!(output.status.success() && text.starts_with("Shows a recording in the browser"), "{text}");
        for option in ["RECORDING.jsonl", "--listen ADDRESS", "--allow-remote", "--export FILE", "EMITREE_VIEW_TOKEN"] {
            assert!(text.contains(option), "{option}: {text}");
        }
    }
}

#[test]
fn a_wrong_command_line_is_an_error_that_quotes_it() {
    let missing = "/no-such-folder/run.jsonl";
    let cases: [(&[&str], &str); 8] = [
        (&[], "no recording is named; use `emitree-view RECORDING.jsonl`"),
        (&["a.jsonl", "b.jsonl"], "unexpected argument \"b.jsonl\""),
        (&["a.jsonl", "--nonsense"], "invalid option '--nonsense'"),
        (&["a.jsonl", "--listen"], "missing argument for option '--listen'"),
        (&["a.jsonl", "--listen", "nonsense"], "could not listen on `nonsense`: "),
        (&["a.jsonl", "--listen", "0.0.0.0:0"], "`0.0.0.0:0` is reachable from other machines; "),
        (&[missing, "--export", "page.html"], "cannot read `/no-such-folder/run.jsonl`: "),
        (&["Cargo.toml", "--export", "/no-such-folder/page.html"], "cannot write `/no-such-folder/page.html`: "),
    ];
    for (arguments, expected) in cases {
        let output = view(arguments);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.starts_with(&format!("error: {expected}")), "{arguments:?}: {error}");
    }
}

#[test]
fn a_recording_is_not_overwritten_by_its_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.jsonl");
    std::fs::write(&path, "{\"gap\":{\"lost\":3}}\n").expect("a file");
    let same = folder.path().join(".").join("run.jsonl");
    let (path, same) = (path.to_str().expect("text"), same.to_str().expect("text"));
    let output = view(&[path, "--export", same]);
    assert!(text(&output.stderr).contains("is the recording itself"), "{output:?}");
    assert_eq!(std::fs::read_to_string(path).expect("a file"), "{\"gap\":{\"lost\":3}}\n");
}

#[test]
fn an_export_prints_what_the_page_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, page) = (folder.path().join("run.jsonl"), folder.path().join("page.html"));
    std::fs::write(&path, "{\"gap\":{\"lost\":3}}\nnonsense\n").expect("a file");
    let output = view(&[path.to_str().expect("text"), "--export", page.to_str().expect("text")]);
    let expected = "2 records, 0 runs (0 unfinished)\n3 events lost, 1 malformed lines\n";
    assert_eq!(text(&output.stdout), expected);
    assert!(std::fs::read_to_string(page).expect("a page").contains("nonsense"));
}
