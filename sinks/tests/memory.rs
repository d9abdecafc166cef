//! E13: `Memory` keeps the events of its emitter, and the clones of a `Memory` share these events.

mod support;

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use emitree_emitter::{BoxError, Emitter, Overflow, Progress, Sink, SinkRecord};
use emitree_sinks::Memory;
use support::show;

/// A memory sink that sends a message before each write, and then stalls until the sender of `go` is dropped.
struct Stalling {
    memory: Memory,
    entered: Sender<()>,
    go: Receiver<()>,
}

impl Sink for Stalling {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        let _ = self.entered.send(());
        let _ = self.go.recv();
        self.memory.write(record)
    }

    fn progress(&self) -> Option<Progress> {
        self.memory.progress()
    }

    fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    fn overflow(&self) -> Overflow {
        self.memory.overflow()
    }
}

/// E13.
#[tokio::test]
async fn a_clone_of_a_memory_sink_shares_its_records() {
    let emitter = Emitter::new();
    let memory = Memory::default();
    assert!(memory.is_empty());
    let handle = emitter.pipe_to(memory.clone()).unwrap();
    for name in ["start", "token", "finish"] {
        emitter.emit(name, &mut name.len()).await.unwrap();
    }
    assert!(handle.flush().await.is_complete());
    assert_eq!(memory.paths(), ["start", "token", "finish"]);
    let lengths: Vec<usize> =
        memory.records().iter().map(|record| record.as_event().unwrap().payload().unwrap()).collect();
    assert_eq!(lengths, [5, 5, 6]);
    assert_eq!((memory.len(), memory.take().len(), memory.len()), (3, 3, 0));
}

/// E13: the sink is stalled in the write of event 0 while the other events are emitted.
#[test]
fn capacity_and_overflow_of_a_memory_sink_determine_which_events_are_lost() {
    for (overflow, expected) in
        [(Overflow::DropNewest, ["0", "1", "2", "-7"]), (Overflow::DropOldest, ["0", "-7", "8", "9"])]
    {
        let emitter = Emitter::new();
        let memory = Memory::new().with_capacity(2).with_overflow(overflow);
        let ((entered, has_entered), (stall, go)) = (mpsc::channel(), mpsc::channel());
        let handle = emitter.pipe_to(Stalling { memory: memory.clone(), entered, go }).unwrap();
        emitter.emit_now("n", &mut 0).unwrap();
        has_entered.recv().unwrap();
        for mut number in 1..10 {
            emitter.emit_now("n", &mut number).unwrap();
        }
        drop(stall);
        let report = handle.close_blocking(Duration::MAX);
        assert_eq!(memory.records().iter().map(show).collect::<Vec<_>>(), expected, "{overflow:?}");
        assert_eq!((report.delivered, report.lost), (3, 7), "{report}");
    }
}
