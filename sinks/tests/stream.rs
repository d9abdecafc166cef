//! E13: a stream that `emitter.stream(matcher, capacity)` returns follows the rules of sinks.

mod support;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_emitter::{Emitter, EventStream};
use serde::{Serialize, Serializer};
use support::{is_done_after_a_poll, show};

async fn drain(stream: &mut EventStream) -> String {
    let mut seen = Vec::new();
    while let Some(record) = stream.recv().await {
        seen.push(show(&record));
    }
    seen.join(" ")
}

fn emit(emitter: &Emitter, numbers: std::ops::Range<u32>) {
    for mut number in numbers {
        emitter.emit_now("n", &mut number).unwrap();
    }
}

/// E13.
#[tokio::test]
async fn a_slow_reader_receives_a_gap_with_the_number_of_lost_events_at_their_place() {
    let emitter = Emitter::new();
    let mut stream = emitter.stream("n", 3).unwrap();
    emit(&emitter, 0..5);
    assert_eq!(stream.lost(), 2);
    assert_eq!(show(&stream.recv().await.unwrap()), "-2");
    assert_eq!(show(&stream.recv().await.unwrap()), "2");
    emit(&emitter, 5..8);
    emitter.close();
    assert_eq!(drain(&mut stream).await, "-2 5 6 7");
    assert_eq!(stream.lost(), 4);
}

/// E13.
#[tokio::test]
async fn a_stream_waits_for_the_next_event_and_ends_with_its_emitter() {
    let emitter = Emitter::new();
    let mut stream = emitter.stream("n", 3).unwrap();
    {
        let mut next = pin!(stream.recv());
        assert!(!is_done_after_a_poll(next.as_mut()).await);
        emit(&emitter, 0..1);
        assert_eq!(next.await.as_ref().map(show).as_deref(), Some("0"));
    }
    emit(&emitter, 1..2);
    drop(emitter);
    assert_eq!(drain(&mut stream).await, "1");
    assert!(stream.recv().await.is_none(), "it has ended for good");
}

/// E13.
#[tokio::test]
async fn a_waiting_reader_is_woken_by_an_event() {
    let emitter = Emitter::new();
    let mut stream = emitter.stream("n", 3).unwrap();
    let reader = tokio::spawn(async move { drain(&mut stream).await });
    tokio::task::yield_now().await;
    emit(&emitter, 0..2);
    tokio::task::yield_now().await;
    drop(emitter);
    assert_eq!(reader.await.unwrap(), "0 1");
}

/// A payload that counts how often it is written into a record.
struct Counted(Arc<AtomicUsize>);

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        serializer.serialize_unit()
    }
}

/// E13.
#[test]
fn a_dropped_stream_receives_no_more_events() {
    let emitter = Emitter::new();
    let records = Arc::new(AtomicUsize::new(0));
    let mut event = Counted(Arc::clone(&records));
    let stream = emitter.stream("n", 3).unwrap();
    emitter.emit_now("n", &mut event).unwrap();
    drop(stream);
    emitter.emit_now("n", &mut event).unwrap();
    assert_eq!(records.load(Ordering::Relaxed), 1);
}
