//! E13: `Memory` keeps the events of its emitter, and its clones share them.

use std::time::Duration;

use emitree_emitter::{Emitter, Overflow};
use emitree_sinks::Memory;

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

/// E13.
#[test]
fn the_events_that_a_memory_sink_drops_count_as_lost() {
    let emitter = Emitter::new();
    let memory = Memory::new().with_capacity(1).with_overflow(Overflow::DropNewest);
    let handle = emitter.pipe_to(memory.clone()).unwrap();
    for mut number in 0..100 {
        emitter.emit_now("n", &mut number).unwrap();
    }
    let report = handle.close_blocking(Duration::MAX);
    assert_eq!(report.delivered + report.lost, 100, "{report}");
    assert_eq!(memory.paths().len() as u64, report.delivered);
}
