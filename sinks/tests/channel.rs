//! E13: `Channel` sends records into a bounded channel, and lost events are counted.

mod support;

use std::time::Duration;

use emitree_emitter::{Emitter, Overflow, SinkRecord};
use emitree_sinks::Channel;
use support::show;
use tokio::sync::mpsc::Receiver;

const EVER: Duration = Duration::MAX;

async fn drain(mut records: Receiver<SinkRecord>) -> Vec<String> {
    let mut seen = Vec::new();
    while let Some(record) = records.recv().await {
        seen.push(show(&record));
    }
    seen
}

/// E13.
#[tokio::test]
async fn a_closed_channel_ends_after_its_last_record() {
    let emitter = Emitter::new();
    let (channel, records) = Channel::new(4);
    let handle = emitter.pipe_to(channel).unwrap();
    let reader = tokio::spawn(drain(records));
    for mut number in 0..20 {
        emitter.emit("n", &mut number).await.unwrap();
    }
    assert!(handle.close(EVER).await.is_complete());
    let expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    assert_eq!(reader.await.unwrap(), expected);
}

/// E13.
#[tokio::test]
async fn losses_of_a_channel_that_is_not_read_are_counted_and_marked_by_gaps() {
    let emitter = Emitter::new();
    let (channel, records) = Channel::new(2);
    let handle = emitter.pipe_to(channel.with_overflow(Overflow::DropOldest)).unwrap();
    for mut number in 0..50 {
        emitter.emit_now("n", &mut number).unwrap();
    }
    let stuck = handle.close(Duration::ZERO).await;
    assert_eq!(stuck.delivered + stuck.lost + stuck.pending, 50, "{stuck}");
    assert!(stuck.pending > 0, "{stuck}");
    let seen = drain(records).await;
    let report = handle.close(EVER).await;
    assert_eq!((report.delivered + report.lost, report.pending), (50, 0), "{report}");
    let gaps: i64 = seen.iter().filter_map(|text| text.parse::<i64>().ok()).filter(|number| *number < 0).sum();
    assert_eq!(gaps.unsigned_abs(), report.lost, "{seen:?}");
    assert_eq!(seen.last().map(String::as_str), Some("49"));
}

/// E13.
#[tokio::test]
async fn without_a_receiver_each_record_counts_as_failed() {
    let emitter = Emitter::new();
    let (channel, records) = Channel::new(2);
    let handle = emitter.pipe_to(channel).unwrap();
    drop(records);
    for mut number in 0..3 {
        emitter.emit("n", &mut number).await.unwrap();
    }
    let report = handle.close(EVER).await;
    assert_eq!((report.failed, report.delivered), (3, 0));
    assert_eq!(report.error.as_deref(), Some("the receiver of the channel was closed or dropped"));
}
