//! E19: a sink receives of each event what it asks for. Values that no sink asks for are not serialized.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_emitter::{BoxError, Creator, Detail, DetailFn, Emitter, Event, EventName, EventRecord, Sink, SinkRecord};
use emitree_sinks::Memory;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// A sink that asks for heads, except of events with this kind and name.
struct Heads(Memory, [&'static str; 2]);

impl Sink for Heads {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        self.0.write(record)
    }

    fn detail(&self) -> DetailFn {
        let full = self.1;
        Box::new(move |kind, event| if [kind, event] == full { Detail::Full } else { Detail::Heads })
    }
}

const NONE: [&str; 2] = ["", "no event"];

/// A payload that counts how often it is serialized.
#[derive(Default)]
struct Counted(Arc<AtomicUsize>);

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        serializer.serialize_str("a value")
    }
}

#[derive(Serialize)]
struct Called {
    id: u32,
    arguments: Counted,
}

impl Event for Called {
    const NAME: EventName = EventName::new("called");

    fn head(&self) -> Option<Value> {
        Some(json!({"id": self.id}))
    }
}

#[derive(Serialize)]
struct Faulty;

impl Event for Faulty {
    const NAME: EventName = EventName::new("faulty");

    fn head(&self) -> Option<Value> {
        panic!("planned")
    }
}

fn events(memory: &Memory) -> Vec<EventRecord> {
    memory.records().iter().filter_map(|record| record.as_event().cloned()).collect()
}

/// Emits into sinks, and returns how often the values were serialized.
fn emitted(sinks: impl IntoIterator<Item = Box<dyn Sink>>) -> usize {
    let tool = Emitter::new().child_with(Creator::new("Tool", "send"));
    let handles: Vec<_> = sinks.into_iter().map(|sink| tool.pipe_to(sink).unwrap()).collect();
    let count = Arc::new(AtomicUsize::new(0));
    tool.emit_now("text", &mut Counted(Arc::clone(&count))).unwrap();
    tool.emit_event_now(&mut Called { id: 7, arguments: Counted(Arc::clone(&count)) }).unwrap();
    for handle in handles {
        handle.close_blocking(Duration::MAX).complete().unwrap();
    }
    count.load(Ordering::Relaxed)
}

/// E19.
#[test]
fn a_sink_of_heads_receives_heads_and_no_value_is_serialized() {
    let memory = Memory::new();
    assert_eq!(emitted([Box::new(Heads(memory.clone(), NONE)) as Box<dyn Sink>]), 0);
    let [text, called] = &*events(&memory) else { panic!("two events") };
    assert_eq!((text.detail, text.payload.get()), (Detail::Heads, "null"));
    assert_eq!((called.detail, called.payload.get()), (Detail::Heads, r#"{"id":7}"#));
    assert!(text.payload_type.ends_with("Counted") && called.payload_type.ends_with("Called"));
}

/// E19.
#[test]
fn sinks_of_different_detail_serialize_a_value_once() {
    let (whole, heads) = (Memory::new(), Memory::new());
    assert_eq!(emitted([Box::new(whole.clone()) as Box<dyn Sink>, Box::new(Heads(heads.clone(), NONE))]), 2);
    let details = |memory: &Memory| events(memory).iter().map(|event| event.detail).collect::<Vec<_>>();
    assert_eq!([details(&whole), details(&heads)], [[Detail::Full; 2], [Detail::Heads; 2]]);
    assert_eq!(events(&whole)[1].to_json(), json!({"id": 7, "arguments": "a value"}));
}

/// E19.
#[test]
fn the_detail_is_decided_by_kind_and_name() {
    for (full, expected) in [
        (["Tool", "text"], [Detail::Full, Detail::Heads]),
        (["Tool", "called"], [Detail::Heads, Detail::Full]),
        (["", "text"], [Detail::Heads; 2]),
    ] {
        let memory = Memory::new();
        let serialized = emitted([Box::new(Heads(memory.clone(), full)) as Box<dyn Sink>]);
        assert_eq!(events(&memory).iter().map(|event| event.detail).collect::<Vec<_>>(), expected, "{full:?}");
        assert_eq!(serialized, expected.iter().filter(|detail| **detail == Detail::Full).count(), "{full:?}");
    }
}

/// E19.
#[tokio::test]
async fn an_awaited_emit_has_the_same_head() {
    let (emitter, memory) = (Emitter::new(), Memory::new());
    let handle = emitter.pipe_to(Heads(memory.clone(), NONE)).unwrap();
    emitter.emit_event(&mut Called { id: 8, arguments: Counted::default() }).await.unwrap();
    handle.close(Duration::MAX).await.complete().unwrap();
    assert_eq!(events(&memory)[0].to_json(), json!({"id": 8}));
}

/// E19.
#[test]
fn a_head_that_panics_is_replaced_by_the_reason() {
    let (emitter, memory) = (Emitter::new(), Memory::new());
    let handle = emitter.pipe_to(Heads(memory.clone(), NONE)).unwrap();
    emitter.emit_event_now(&mut Faulty).unwrap();
    handle.close_blocking(Duration::MAX).complete().unwrap();
    assert_eq!(events(&memory)[0].to_json(), json!("<detail::Faulty has no head: it panicked: planned>"));
}

/// E19.
#[test]
fn a_record_of_a_head_says_so_in_json_and_is_read_back() {
    let (whole, heads) = (Memory::new(), Memory::new());
    emitted([Box::new(whole.clone()) as Box<dyn Sink>, Box::new(Heads(heads.clone(), NONE))]);
    let json = |memory: &Memory| -> Vec<String> {
        memory.records().iter().map(|record| serde_json::to_string(record).unwrap()).collect()
    };
    assert!(json(&whole).iter().all(|line| !line.contains("\"detail\"")));
    for line in json(&heads) {
        assert!(line.contains(r#""detail":"heads","payload":"#), "{line}");
        let read = SinkRecord::from_json(&line).unwrap();
        assert_eq!(read.as_event().map(|event| event.detail), Some(Detail::Heads));
    }
}

/// E19.
#[test]
fn a_sink_whose_detail_panics_misses_the_event_and_the_emit_succeeds() {
    struct Picky(Memory);
    impl Sink for Picky {
        fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
            self.0.write(record)
        }

        fn detail(&self) -> DetailFn {
            Box::new(|_, event| if event == "odd" { panic!("planned") } else { Detail::Full })
        }
    }
    let (emitter, memory) = (Emitter::new(), Memory::new());
    let handle = emitter.pipe_to(Picky(memory.clone())).unwrap();
    for name in ["odd", "even"] {
        emitter.emit_now(name, &mut 1).unwrap();
    }
    assert_eq!(emitter.isolated_failures(), 1);
    handle.close_blocking(Duration::MAX).complete().unwrap();
    assert_eq!(memory.paths(), ["even"]);
}
