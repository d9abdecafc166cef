//! On a terminal, a trajectory colors outcomes, prints durations, cuts values to the width and wraps errors, live and in a
//! replay.

use std::process::Command;
use std::sync::{Arc, Mutex};

use emitree_emitter::Emitter;
use emitree_middleware::Trajectory;
use emitree_middleware::trajectory::TrajectoryEvent;
use emitree_runtime::{Error, Result, RunContext, Runnable, runnable_fn};
use emitree_sinks::Memory;

const FAILURE: &str = "a long message of an error, which says what was wrong and what would be right, is not cut";

/// Prints a trajectory and its replay, each after a line `--`.
#[tokio::test]
#[ignore = "the other tests of this file run it on a terminal"]
async fn print_on_a_terminal() -> Result<()> {
    let emitter = Emitter::new();
    let memory = Memory::new();
    let recording = emitter.pipe_to(memory.clone())?;
    let trajectory = match std::env::var("EMITREE_TEST_FULL") {
        Ok(_) => Trajectory::builder().full().build()?,
        Err(_) => Trajectory::stdout(),
    };
    let below = Arc::new(runnable_fn("below", |_: String, _: RunContext| async { Err::<(), _>(Error::new(FAILURE)) }));
    let top = runnable_fn("top", move |text: String, _: RunContext| {
        let below = Arc::clone(&below);
        async move {
            below.run("語".to_owned()).await.ok();
            Ok(text.repeat(500))
        }
    });
    let messages = Arc::new(Mutex::new(Vec::new()));
    let of_listener = Arc::clone(&messages);
    trajectory.emitter().on("success", move |event: &mut TrajectoryEvent, _| {
        of_listener.lock().unwrap().push(event.message.clone());
    })?;
    println!("\n--");
    top.with_emitter(emitter).run("ab".to_owned()).middleware(trajectory.clone()).await?;
    recording.flush().await.complete()?;
    println!("--");
    let mut replay = trajectory.replay();
    memory.records().iter().try_for_each(|record| replay.show(record))?;
    println!("--");
    // A program that changes messages gets the same ones on a terminal as without it.
    let message = format!("Run[top][success]: {}", "ab".repeat(500));
    assert_eq!(*messages.lock().unwrap(), [message]);
    println!("--");
    Ok(())
}

/// Returns the live lines and the replayed lines of a terminal with 60 columns, without the numbers of durations, and with
/// their rows joined.
fn lines(variables: &str) -> [Vec<String>; 2] {
    let program = std::env::current_exe().unwrap();
    let test = "--exact terminal::print_on_a_terminal --ignored --nocapture";
    let command = format!("stty rows 24 cols 60; {variables} {} {test}", program.display());
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm");
    let output = script.output().expect("`script`, which is part of util-linux");
    let text = String::from_utf8(output.stdout).unwrap().replace('\r', "");
    let parts: Vec<_> = text.split("--\n").collect();
    let [_, live, replayed, _, _] = &*parts else { panic!("{text}") };
    assert!(live.lines().all(|row| row.chars().count() <= 60 + 9), "{live}");
    [live, replayed].map(|part| part.replace("\n  | ", "").lines().map(without_duration).collect())
}

fn without_duration(line: &str) -> String {
    match (line.split_once(" ("), line.split_once("s): ")) {
        (Some((before, _)), Some((_, after))) => format!("{before} (_): {after}"),
        _ => line.to_owned(),
    }
}

#[test]
fn outcomes_have_colors_and_durations_and_values_are_cut() {
    let [live, replayed] = lines("");
    let [start, start_below, error, success] = &*live else { panic!("{live:#?}") };
    assert_eq!(start, "Run[top][start]: ab");
    assert_eq!(start_below, "--> Run[below][start]: 語");
    assert_eq!(error, &format!("<-- Run[below]\u{1b}[31m[error]\u{1b}[0m (_): {FAILURE}input: 語"));
    assert!(success.starts_with("Run[top]\u{1b}[32m[success]\u{1b}[0m (_): abab"), "{success}");
    assert!(success.ends_with(" … 1.0 KB"), "{success}");
    // The colors have 9 bytes and no columns, and a duration has more columns than its mark.
    assert!(success.chars().count() <= 60 + 9, "{success}");
    // The durations may have other lengths, which leave room for more or less of a value.
    assert_eq!(live[..3], replayed[..3]);
    assert!(replayed[3].ends_with(" … 1.0 KB") && replayed[3][..45] == success[..45], "{}", replayed[3]);
}

#[test]
fn the_colors_and_the_cut_can_be_turned_off() {
    let [live, replayed] = lines("NO_COLOR=1 EMITREE_TEST_FULL=1");
    assert_eq!(live, replayed);
    assert_eq!(live[2], format!("<-- Run[below][error] (_): {FAILURE}input: 語"));
    assert_eq!(live[3], format!("Run[top][success] (_): {}", "ab".repeat(500)));
}
