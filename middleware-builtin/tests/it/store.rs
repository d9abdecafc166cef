//! Heads, changes and errors of stores (S5). `emitree_stores::conformance` tests the store in memory.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use emitree_middleware::store::{
    Append, Entry, EntryHead, EntryStatus, Filter, MemoryStore, OpenQuestion, Revision, Store, StoreError,
};
use futures_util::FutureExt;
use serde_json::{Value, json};

fn waiting(deadline: SystemTime) -> EntryHead {
    let mut head = EntryHead::new("order-17", "session");
    head.status = EntryStatus::Waiting;
    head.queue = Some("orders".to_owned());
    let deadline = Some(deadline);
    head.questions = vec![OpenQuestion { id: "order-17/1/0/pay-3f".to_owned(), kind: "approval".to_owned(), deadline }];
    head.meta.insert("user".to_owned(), json!("ada"));
    head.revision = Revision::new(4);
    head
}

#[test]
fn a_head_is_json_without_what_a_store_keeps_beside_it_and_without_empty_fields() {
    let head = waiting(UNIX_EPOCH + Duration::new(1_795_849_230, 5_000_000));
    let json = Append::new(head.clone()).check().expect("a valid head");
    let expected = json!({
        "id": "order-17", "kind": "session", "status": "waiting",
        "questions": [{"id": "order-17/1/0/pay-3f", "kind": "approval", "deadline": "2026-11-28T07:00:30.005Z"}],
        "meta": {"user": "ada"},
    });
    assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), expected);
    let mut read = EntryHead::from_json("order-17", Revision::new(4), &json).expect("the head");
    assert_eq!(read.queue.take(), None, "a store keeps it beside");
    read.queue = head.queue.clone();
    assert_eq!(read, head);

    let bare = Append::new(EntryHead::new("a", "job")).check().expect("a valid head");
    assert_eq!(bare, r#"{"id":"a","kind":"job","status":"running"}"#);
}

#[test]
fn the_name_of_a_status_is_the_name_in_json() {
    let all = Filter::unfinished().statuses.into_iter().chain([EntryStatus::Ended, EntryStatus::Failed]);
    for status in all {
        assert_eq!(json!(status), json!(status.as_str()));
    }
}

#[test]
fn a_head_that_is_not_as_it_was_stored_is_an_error_that_names_the_entry() {
    let table = [
        (r#"{"id":"a","kind":"job","status":"run"#, "the stored entry `a` is damaged: its head cannot be read: EOF"),
        (
            r#"{"id":"a","kind":"job","status":"gone"}"#,
            "the stored entry `a` is damaged: its head cannot be read: unknown variant `gone`, expected one of `queued`",
        ),
        (
            r#"{"id":"b","kind":"job","status":"ended"}"#,
            "the stored entry `a` is damaged: its head belongs to the entry `b`",
        ),
    ];
    for (json, expected) in table {
        let error = EntryHead::from_json("a", Revision::NONE, json).expect_err("a damaged head").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn what_breaks_a_limit_is_an_error_that_quotes_it_and_names_the_limit() {
    let too_early = waiting(UNIX_EPOCH - Duration::from_secs(1));
    let too_late = waiting(UNIX_EPOCH + Duration::from_secs(u64::MAX >> 8));
    let mut deep = EntryHead::new("a", "job");
    // The value could be read by itself, but not inside of a head.
    deep.meta.insert("deep".to_owned(), (0..126).fold(json!(1), |value, _| json!([value])));
    let mut large = EntryHead::new("a", "job");
    large.meta.insert("text".to_owned(), json!("x".repeat(70_000)));
    let part = Append::new(EntryHead::new("a", "job")).part("").part(vec![0; 524_289]);
    let table = [
        (
            Append::new(EntryHead::new("", "job")),
            r#"the entry "" is not valid: its id is empty: give it a text such as"#,
        ),
        (
            Append::new(EntryHead::new("x".repeat(1_025), "job")),
            &format!(r#"the entry "{}…" is not valid: its id has 1025 bytes, and at most 1024 are"#, "x".repeat(200)),
        ),
        (
            Append::new(EntryHead::new("a\nb", "job")),
            r#"the entry "a\nb" is not valid: its id has the control character '\n'"#,
        ),
        (Append::new(too_early), r#"the entry "order-17" is not valid: its head: second time provided was later"#),
        (Append::new(too_late), r#"the entry "order-17" is not valid: its head: the time is too far in the"#),
        (Append::new(deep), r#"the entry "a" is not valid: its head: recursion limit exceeded"#),
        (Append::new(large), r#"the entry "a" is not valid: its head has 70061 bytes as JSON, and at most 65536 are"#),
        (part, r#"the entry "a" is not valid: part 1 has 524289 bytes, and at most 524288 are allowed: cut it over"#),
    ];
    for (append, expected) in table {
        let error = append.check().expect_err("a limit").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_conflict_says_whether_the_entry_is_new_gone_or_changed() {
    let table = [
        (0, 5, "the entry `a` exists already, at revision 5: load it first"),
        (3, 0, "there is no entry `a`, and the change was made for its revision 3: it was removed"),
        (3, 5, "the entry `a` is at revision 5, and the change was made for revision 3: load it again"),
    ];
    for (after, current, expected) in table {
        let (after, current) = (Revision::new(after), Revision::new(current));
        assert_eq!(StoreError::Conflict { id: "a".to_owned(), after, current }.to_string(), expected);
    }
}

#[test]
fn debug_output_shows_no_parts() {
    let store = MemoryStore::new();
    let append = Append::new(EntryHead::new("a", "job")).part("secret");
    store.append(&append).now_or_never().expect("ready").expect("stored");
    let entry: Option<Entry> = store.load("a").now_or_never().expect("ready").expect("loaded");
    let shown = format!("{store:?} {append:?} {entry:?}");
    assert!(shown.starts_with("MemoryStore { len: 1 } Append") && !shown.contains("secret"), "{shown}");
    assert_eq!(shown.matches("parts: [6]").count(), 2, "{shown}");
}
