//! Runs the example `quickstart` on files that the tests create. The example counts as `wc` and `grep` do, `replay`
//! prints the live trajectory byte for byte, and a run that fails is recorded to its end.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use emitree::lifecycle::Stage;
use emitree::sinks::EventRecord;
use emitree::sinks::read_jsonl;
use tempfile::TempDir;

use crate::example::example;

#[path = "support/example.rs"]
mod example;

fn quickstart(arguments: &[&str]) -> Output {
    example("quickstart").args(arguments).output().expect("the example runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("the example prints UTF-8")
}

/// Makes a folder with one file in it.
fn file(content: &[u8]) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("unseen.txt");
    std::fs::write(&path, content).expect("a writable folder");
    let path = path.to_str().expect("a plain path").to_owned();
    (folder, path)
}

/// Returns the number that a standard tool prints, in a UTF-8 locale.
fn counted_by(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool).args(arguments).env("LC_ALL", "C.UTF-8").output().expect("a Unix system");
    text(&output.stdout).split_whitespace().next().expect("a number").to_owned()
}

const CONTENTS: [&[u8]; 8] = [
    b"",
    b"one line, no newline at its end",
    b"tabs\tand\x0bvertical\r\nCRLF lines\r\n\r\n   spaces   \n",
    "dashes \u{2014} alone, caf\u{e9}, no\u{a0}break, \u{3000}wide\u{3000}\n\u{1f980} crab\n".as_bytes(),
    b"the emitter\nan emitter of emitters\nEmitter\n(emitter.*)\n",
    "a\u{2028}b \u{85} c\u{2060}d\n\n".as_bytes(),
    b"emit\xffter\nemitter\n",
    b"emitter\0emitter\nbar\0\nemitter\n",
];

#[test]
fn counts_are_equal_to_the_counts_of_wc_and_grep() {
    for content in CONTENTS {
        let (_folder, path) = file(content);
        let output = quickstart(&["--ask", "How many words and lines?", "--ask", "which lines mention emitter", &path]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let answers = text(&output.stderr);
        for expected in [
            format!("{path}: {} words", counted_by("wc", &["-w", &path])),
            format!("{path}: {} lines\n", counted_by("wc", &["-l", &path])),
            format!("{path}: {} lines mention", counted_by("grep", &["-cF", "emitter", &path])),
        ] {
            assert!(answers.contains(&expected), "{content:?}\nexpected {expected:?} in\n{answers}");
        }
    }
}

#[test]
fn a_replay_is_the_live_trajectory_byte_for_byte() {
    let (folder, path) = file(CONTENTS[3]);
    let recording = folder.path().join("run.jsonl");
    let live = quickstart(&["--record", recording.to_str().expect("a plain path"), &path]);
    let again = example("replay").arg(&recording).output().expect("the example runs");
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!(text(&live.stdout), text(&again.stdout));
    assert!(text(&live.stdout).lines().count() > 20);
}

#[test]
fn runs_are_at_least_three_levels_deep() {
    let (_folder, path) = file(CONTENTS[4]);
    let output = quickstart(&["--ask", "How many words and lines?", &path]);
    let trajectory = text(&output.stdout);
    assert!(trajectory.contains("\n        --> Tool[read_file][start]"), "{trajectory}");
}

#[test]
fn some_runs_are_concurrent() {
    let (folder, path) = file(CONTENTS[1]);
    let (endless, recording) = (endless_file(folder.path()), folder.path().join("run.jsonl"));
    let mut quickstart = example("quickstart");
    // If the second run waited for the first, both would be aborted, and this test would fail.
    quickstart.args(["--ask", "how many words", "--abort-after", "30000", "--record"]).arg(&recording);
    let (mut child, mut lines) = spawn(quickstart.args([&endless, &path]));
    assert!(lines.any(|line| line.contains("<-- Tool[count][success]")), "the second ends first");
    // The first run cannot end before this write.
    std::fs::write(&endless, "three more words").expect("a pipe that somebody reads");
    assert_eq!(lines.filter(|line| line.contains("<-- Tool[count][success]")).count(), 1, "then the first ends");
    assert!(child.0.wait().expect("it ends").success());
    let (first, second) = (0, 1);
    let expected = [
        (first, Stage::Start),
        (second, Stage::Start),
        (second, Stage::Success),
        (second, Stage::Finish),
        (first, Stage::Success),
        (first, Stage::Finish),
    ];
    assert_eq!(stages_below("tool.count", &recording), expected);
}

/// Returns the events of the runs of one tool, in order. Runs are numbered in the order of their first events.
fn stages_below(namespace: &str, recording: &Path) -> Vec<(usize, Stage)> {
    let mut runs = Vec::new();
    let told = lifecycle(recording).into_iter().filter(|(path, ..)| path.starts_with(namespace));
    let numbered = told.map(|(_, run, stage)| {
        let number = runs.iter().position(|known| *known == run).unwrap_or(runs.len());
        runs.extend((number == runs.len()).then_some(run));
        (number, stage)
    });
    numbered.collect()
}

/// Returns the path, the run and the stage of each lifecycle event, in order.
fn lifecycle(recording: &Path) -> Vec<(Box<str>, u128, Stage)> {
    let records = read_jsonl(recording).expect("a recording").map(|record| record.expect("a whole record"));
    let lifecycle = records.filter_map(|record| {
        let event: &EventRecord = record.as_event().expect("nothing was lost");
        Some((event.path.clone(), event.trace?.run_id.as_u128(), Stage::of_record(event)?))
    });
    lifecycle.collect()
}

#[test]
fn the_run_of_a_missing_file_fails_and_is_recorded_to_the_end() {
    let (folder, path) = file(CONTENTS[1]);
    let recording = folder.path().join("run.jsonl");
    let output = quickstart(&["--record", recording.to_str().expect("a plain path"), "no-such-file", &path]);
    assert!(!output.status.success());
    assert!(has_failed_read(text(&output.stdout), "not found: no-such-file"), "{output:?}");
    assert!(text(&output.stderr).contains("error: not found: no-such-file"), "{output:?}");
    assert_every_run_ended_once(&recording);
}

/// Returns `true` if a run of `read_file` has failed with this error. The run has a number if it overlaps with another.
fn has_failed_read(trajectory: &str, error: &str) -> bool {
    let is_failed = |line: &str| line.contains("Tool[read_file][error]") && line.ends_with(&format!(": {error}"));
    trajectory.lines().any(is_failed)
}

/// Checks that every run in a recording has ended as R4 requires.
fn assert_every_run_ended_once(recording: &Path) {
    let mut stages = HashMap::<_, Vec<Stage>>::new();
    for (_, run, stage) in lifecycle(recording) {
        stages.entry(run).or_default().push(stage);
    }
    assert!(stages.len() > 3, "{stages:?}");
    for (run, stages) in stages {
        let end = [Stage::Success, Stage::Error].into_iter().find(|end| stages.get(1) == Some(end));
        assert!(end.is_some_and(|end| stages == [Stage::Start, end, Stage::Finish]), "{run}: {stages:?}");
    }
}

/// Creates a named pipe: opening and reading it blocks until a test writes into it.
fn endless_file(folder: &Path) -> String {
    let path = folder.join("endless");
    assert!(Command::new("mkfifo").arg(&path).status().expect("a Unix system").success());
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn an_aborted_run_reports_the_reason_and_is_recorded_to_the_end() {
    let (folder, path) = file(CONTENTS[1]);
    let recording = folder.path().join("run.jsonl");
    let recorded = recording.to_str().expect("a plain path");
    // Without the abort, the run would take an hour.
    let output = quickstart(&["--slow", "3600000", "--abort-after", "2000", "--record", recorded, &path]);
    assert!(!output.status.success());
    let trajectory = text(&output.stdout);
    assert!(has_failed_read(trajectory, "aborted: it took longer than 2s"), "{trajectory}");
    assert!(trajectory.contains("\nAssistant[Desk][error]: aborted: it took longer than 2s"), "{trajectory}");
    assert_every_run_ended_once(&recording);
}

#[test]
fn runs_that_ctrl_c_drops_are_shown_and_recorded_to_the_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (endless, recording) = (endless_file(folder.path()), folder.path().join("run.jsonl"));
    let mut quickstart = example("quickstart");
    let (mut child, mut lines) =
        spawn(quickstart.args(["--ask", "how many words", "--record"]).arg(&recording).arg(&endless));
    // Read the output until the run waits for the file.
    let begun: Vec<_> = lines.by_ref().take_while(|line| !line.contains("Tool[read_file][start]")).collect();
    assert!(!begun.is_empty());
    let interrupt = Command::new("kill").args(["-INT", &child.0.id().to_string()]).status();
    assert!(interrupt.expect("a Unix system").success());
    let trajectory: Vec<_> = lines.collect();
    let dropped = "the run's future was dropped";
    assert!(
        trajectory.iter().any(|line| line.ends_with(&format!("Tool[read_file][error]: {dropped}"))),
        "{trajectory:?}"
    );
    let [.., desk, input] = &*trajectory else { panic!("{trajectory:?}") };
    assert_eq!(*desk, format!("Assistant[Desk][error]: {dropped}"));
    assert!(input.starts_with("  | input: "), "{input}");
    assert!(!child.0.wait().expect("it ends").success());
    assert_every_run_ended_once(&recording);
}

/// Starts a program, and returns the lines of its output while it runs.
fn spawn(program: &mut Command) -> (Waited, impl Iterator<Item = String> + use<>) {
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the example runs");
    let stdout = child.stdout.take().expect("a pipe");
    (Waited(child), BufReader::new(stdout).lines().map(|line| line.expect("UTF-8")))
}

/// A process that is killed at the end of its test.
struct Waited(Child);

impl Drop for Waited {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

#[test]
fn a_denied_path_is_not_read_and_the_error_names_the_guard() {
    let (_folder, path) = file(b"secret");
    let output = quickstart(&["--deny", "*unseen*", &path]);
    assert!(!output.status.success());
    let reason = format!("denied by house rules: `{path}` is not to be read");
    assert!(text(&output.stdout).contains(&reason), "{output:?}");
    assert!(!text(&output.stdout).contains("Tool[decode]"), "{output:?}");
}

#[test]
fn a_canned_answer_is_returned_without_work() {
    let output = quickstart(&["--canned", "ask me later", "--ask", "anything", "no-such-file"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("ask me later"));
    assert_eq!(text(&output.stdout).lines().count(), 2, "start and success of one run: {output:?}");
}

#[test]
fn the_error_for_an_unknown_question_lists_the_possible_questions() {
    let output = quickstart(&["--ask", "why?", "README.md"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("cannot answer \"why?\"; ask how many words"), "{output:?}");
}
