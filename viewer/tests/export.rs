//! An exported page contains every record, and no text of a recording ends an element.

use std::fs;

use emitree_sinks::runs::RecordingFile;
use emitree_viewer::export;
use serde_json::Value;

const HOSTILE: &str = "</script><script>alert(1)</script><!-- \\u003c";

fn line(number: usize) -> String {
    let payload = serde_json::json!({"text": HOSTILE, "number": number});
    let record = serde_json::json!({
        "id": "01a220d4-9313-71fe-a093-78e0a2246515", "path": "note", "created_at": "2026-01-01T00:00:00Z",
        "creator": {"kind": HOSTILE, "name": HOSTILE, "id": 1}, "context": {HOSTILE: HOSTILE}, "group_id": null,
        "trace": null, "payload_type": HOSTILE, "payload": payload,
    });
    record.to_string()
}

/// Returns the JSON of an element with an id.
fn embedded(page: &str, id: &str) -> Value {
    let begin = format!("<script type=\"application/json\" id=\"{id}\">");
    let (_, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no element {id}"));
    serde_json::from_str(rest.split_once("</script>").expect("an end").0).expect("JSON")
}

#[test]
fn an_exported_page_has_each_record_and_no_element_of_the_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.jsonl");
    let mut lines: Vec<String> = (0..1100).map(line).collect();
    lines[3] = HOSTILE.to_owned();
    lines[4] = "{\"gap\":{\"lost\":5}}".to_owned();
    fs::write(&path, lines.join("\n") + "\n{\"torn").expect("a file");
    let mut page = Vec::new();
    let exported = export(&RecordingFile::new(&path), HOSTILE, &mut page).expect("a page");
    let page = String::from_utf8(page).expect("text");

    assert_eq!((exported.records, exported.runs, exported.lost, exported.malformed), (1100, 0, 5, 2));
    let recording = embedded(&page, "recording");
    assert_eq!((recording["title"].as_str(), recording["incomplete"].as_u64()), (Some(HOSTILE), Some(6)));
    assert_eq!(recording["heads"].as_array().map(Vec::len), Some(1100));
    let blocks: Vec<Value> = (0..3).map(|index| embedded(&page, &format!("records-{index}"))).collect();
    let records: Vec<&Value> = blocks.iter().flat_map(|block| block.as_array().expect("an array")).collect();
    assert_eq!(records.len(), 1100);
    for (number, record) in records.iter().enumerate() {
        match number {
            3 => assert_eq!(**record, HOSTILE),
            4 => assert_eq!(record["gap"]["lost"], 5),
            _ => assert_eq!(
                (&record["payload"]["text"], &record["payload"]["number"]),
                (&HOSTILE.into(), &number.into())
            ),
        }
    }
    // 9 scripts, the heads and three blocks.
    assert_eq!(
        (page.matches("<script").count(), page.matches("</script").count(), page.matches("<style").count()),
        (13, 13, 1)
    );
    assert!(!page.contains("<!--") && !page.contains(" src="));
}

#[test]
fn the_policy_of_an_exported_page_allows_only_its_own_scripts() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut page = Vec::new();
    export(&RecordingFile::new(folder.path().join("none.jsonl")), "none", &mut page).expect("a page");
    let page = String::from_utf8(page).expect("text");
    let policy = page.split_once("Content-Security-Policy\" content=\"").expect("a policy").1;
    let policy = policy.split_once('"').expect("an end").0;
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(policy.matches("'sha256-").count(), 10);
}
