//! A program shows its own events on a page that forgets the oldest, says so, and stops with its viewer (V5).

mod shared;

use std::time::Duration;

use emitree_emitter::{Emitter, SinkHandle};
use emitree_middleware::Redact;
use emitree_sinks::runs::Source;
use emitree_viewer::Viewer;
use serde_json::{Value, json};

use crate::shared::{Client, Result, status};

/// A program with a viewer.
struct Program {
    emitter: Emitter,
    viewer: Viewer,
    client: Client,
    recording: SinkHandle,
}

impl Program {
    async fn start() -> Result<Self> {
        let viewer = Viewer::bind("127.0.0.1:0").await?;
        let emitter = Emitter::new();
        let recording = emitter.pipe_to(viewer.sink())?;
        Ok(Self { emitter, client: Client::of(&viewer)?, viewer, recording })
    }

    async fn emit(&self, path: &str, mut payload: Value) -> Result<()> {
        self.emitter.emit(path.to_owned(), &mut payload).await?;
        self.recording.flush().await.complete()?;
        Ok(())
    }
}

#[tokio::test]
async fn the_page_follows_the_events_of_its_program() -> Result<()> {
    let program = Program::start().await?;
    let mut feed = program.client.feed("").await?;
    program.emit("first", json!(1)).await?;
    assert_eq!(feed.paths(1).await?, ["first"]);
    program.emit("second", json!({"n": 2})).await?;
    assert_eq!(feed.paths(1).await?, ["second"]);
    let (_, record) = program.client.get(&format!("/record/{}", feed.id)).await?;
    assert_eq!(serde_json::from_str::<Value>(&record)?["payload"], json!({"n": 2}));
    Ok(())
}

#[tokio::test]
async fn what_the_ring_has_lost_is_a_visible_gap() -> Result<()> {
    let program = Program::start().await?;
    program.emit("first", json!(1)).await?;
    let mut feed = program.client.feed("").await?;
    assert_eq!(feed.paths(1).await?, ["first"]);
    let seen = feed.id.clone();
    drop(feed);
    // 64 MB have room for three of these events.
    let large = "x".repeat(20 << 20);
    for n in 0..5 {
        program.emit(&format!("large{n}"), json!(large)).await?;
    }
    // The first two large events are gone, and for a new reader also the first.
    for (after, lost) in [(&*seen, 2), ("", 3)] {
        let mut feed = program.client.feed(after).await?;
        let heads = loop {
            let (_, mut data) = feed.next().await?;
            if let Value::Array(heads) = data["heads"].take() {
                break heads;
            }
        };
        assert_eq!((&heads[0]["fact"], &heads[0]["lost"]), (&json!("gap"), &json!(lost)));
        let paths: Vec<_> = heads[1..].iter().map(|head| &head["path"]).collect();
        assert_eq!(paths, ["large2", "large3", "large4"]);
    }
    let answer = program.client.get(&format!("/record/{seen}")).await?;
    assert_eq!(status(&answer), "410");
    assert!(answer.1.contains(&format!("`{seen}` is no longer kept")), "{}", answer.1);
    Ok(())
}

#[tokio::test]
async fn the_cursor_of_an_earlier_process_begins_anew() -> Result<()> {
    let earlier = Program::start().await?;
    earlier.emit("earlier", json!(1)).await?;
    let mut feed = earlier.client.feed("").await?;
    feed.paths(1).await?;
    let program = Program::start().await?;
    program.emit("later", json!(1)).await?;
    let mut feed = program.client.feed(&feed.id).await?;
    assert_eq!([feed.next().await?.0, feed.next().await?.0], ["about", "restart"]);
    assert_eq!(feed.paths(1).await?, ["later"]);
    Ok(())
}

#[tokio::test]
async fn a_redacted_sink_shows_no_secret() -> Result<()> {
    const SECRET: &str = "maria@mailbox.org";
    let viewer = Viewer::bind("127.0.0.1:0").await?;
    let emitter = Emitter::new();
    let recording = emitter.pipe_to(Redact::new().sink(viewer.sink()))?;
    emitter.emit("sent", &mut json!({"to": SECRET, SECRET: 1})).await?;
    emitter.emit("sent", &mut json!({"to": SECRET})).await?;
    recording.flush().await.complete()?;
    let ring = viewer.sink();
    let heads = ring.heads(None, 9)?.heads;
    let (keys, record) = (ring.record(heads[0].cursor)?, ring.record(heads[1].cursor)?);
    assert!(record.contains("[REDACTED:email]") && !record.contains(SECRET), "{record}");
    // A redaction does not see keys, so the text is there if it is not redacted.
    assert_eq!(keys.matches(SECRET).count(), 1, "{keys}");
    Ok(())
}

#[tokio::test]
async fn dropping_the_viewer_closes_its_listener_and_ends_open_feeds() -> Result<()> {
    let program = Program::start().await?;
    let mut feed = program.client.feed("").await?;
    program.emit("first", json!(1)).await?;
    feed.paths(1).await?;
    let Program { viewer, client, recording, .. } = program;
    let ring = viewer.sink();
    drop(viewer);
    while feed.next().await.is_ok() {}
    while client.send("").await.is_ok() {
        tokio::task::yield_now().await;
    }
    // The sink stays attached, and its records stay.
    recording.close(Duration::MAX).await.complete()?;
    assert_eq!(ring.heads(None, 9)?.heads.len(), 1);
    Ok(())
}

#[tokio::test]
async fn serving_keeps_the_page_until_the_future_is_dropped() -> Result<()> {
    let Program { viewer, client, recording, .. } = Program::start().await?;
    let served = tokio::spawn(viewer.serve());
    assert_eq!(status(&client.get("/").await?), "200");
    recording.close(Duration::MAX).await.complete()?;
    assert_eq!(status(&client.get("/").await?), "200", "after the sink is closed");
    served.abort();
    while client.send("").await.is_ok() {
        tokio::task::yield_now().await;
    }
    Ok(())
}
