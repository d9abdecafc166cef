//! Other processes: appends that race, and a process that is killed (S1, S2, S6, F8).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use emitree_middleware::store::{Append, EntryHead, Revision, Store, StoreError};

use super::place::Place;

const PLACE: &str = "EMITREE_TEST_STORE";
const COUNT: &str = "EMITREE_TEST_COUNT";

/// Starts this test binary again, as a process that appends to an entry and prints each number that was stored.
fn appender(place: &Place, count: usize) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "--nocapture", "--ignored", "kill::append_until_the_end"])
        .env(PLACE, place.as_str())
        .env(COUNT, count.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

#[tokio::test]
#[ignore = "the process that the tests start"]
async fn append_until_the_end() {
    let Some(place) = Place::of_process(PLACE) else { return };
    let count: usize = std::env::var(COUNT).expect("a count").parse().expect("a number");
    let store = place.open().await;
    let mut stored = 0;
    while stored < count {
        let entry = store.load("a").await.expect("loaded");
        let (after, parts) = entry.map_or((Revision::NONE, 0), |entry| (entry.head.revision, entry.parts.len()));
        let mut head = EntryHead::new("a", "job");
        head.revision = after;
        // Two parts of one append: a reader finds both or none.
        let append = Append::new(head).part(format!("{} {parts}", std::process::id())).part("and its second half");
        match store.append(&append).await {
            Ok(_) => {
                stored += 1;
                println!("stored {parts}");
                std::io::stdout().flush().expect("written");
            }
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

async fn assert_each_once(place: &Place) {
    let children = [appender(place, 100), appender(place, 100)];
    for child in children {
        assert!(child.wait_with_output().expect("an end").status.success());
    }
    let entry = place.open().await.load("a").await.expect("loaded").expect("an entry");
    let firsts: Vec<_> = entry.parts.iter().step_by(2).map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    assert_eq!(firsts.len(), 200);
    for (n, first) in firsts.iter().enumerate() {
        assert!(first.ends_with(&format!(" {}", n * 2)), "append {n} was made for the one before: {first}");
    }
}

#[tokio::test]
async fn of_the_appends_of_two_processes_each_is_stored_once() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_each_once(&Place::file(folder.path())).await;
    if let Some(place) = Place::server() {
        assert_each_once(&place).await;
    }
}

async fn assert_whole(place: &Place) {
    let mut least = 0;
    for told in [1, 2, 5, 10, 20] {
        let mut child = appender(place, usize::MAX);
        let lines = BufReader::new(child.stdout.take().expect("an output")).lines().map_while(Result::ok);
        let stored = lines.filter(|line| line.starts_with("stored ")).take(told).count();
        child.kill().expect("killed");
        child.wait().expect("an end");
        least += 2 * stored;
        let entry = place.open().await.load("a").await.expect("loaded").expect("an entry");
        assert!(entry.parts.len() >= least && entry.parts.len() % 2 == 0, "{} parts, {least} told", entry.parts.len());
        least = entry.parts.len();
    }
    assert!(least >= 2 * (1 + 2 + 5 + 10 + 20));
}

#[tokio::test]
async fn what_a_killed_process_was_told_is_stored_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_whole(&Place::file(folder.path())).await;
    if let Some(place) = Place::server() {
        assert_whole(&place).await;
    }
}
