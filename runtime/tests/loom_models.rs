//! Checks what the models of this crate assume about loom and its wrappers in `support/loom_sync.rs`.

#[path = "support/loom_sync.rs"]
mod sync;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::thread;

use self::sync::{AtomicU16, Ordering};

type Words = [AtomicU16; 2];

/// Returns the distinct pairs of values that two threads load, over all executions.
fn explored(accesses: [fn(&Words) -> u16; 2]) -> BTreeSet<[u16; 2]> {
    let explored = Arc::new(Mutex::new(BTreeSet::new()));
    let adds = Arc::clone(&explored);
    loom::model(move || {
        let words = Arc::new([AtomicU16::new(0), AtomicU16::new(0)]);
        let threads = accesses.map(|access| {
            let words = Arc::clone(&words);
            thread::spawn(move || access(&words))
        });
        let loaded = threads.map(|thread| thread.join().expect("it does not panic"));
        adds.lock().expect("nobody panics").insert(loaded);
    });
    std::mem::take(&mut explored.lock().expect("nobody panics"))
}

#[test]
fn loom_explores_every_interleaving_of_two_threads_that_load_and_then_modify() {
    let access = |words: &Words| {
        let loaded = words[0].load(Ordering::Acquire);
        words[0].fetch_or(1, Ordering::AcqRel);
        loaded
    };
    assert_eq!(explored([access, access]), [[0, 0], [0, 1], [1, 0]].into());
}

#[test]
fn loom_lets_a_relaxed_load_return_an_old_value_but_not_a_seq_cst_load() {
    fn access(words: &Words, own: usize, order: Ordering) -> u16 {
        words[own].store(1, order);
        words[1 - own].load(order)
    }
    let relaxed = explored([|words| access(words, 0, Ordering::Relaxed), |words| access(words, 1, Ordering::Relaxed)]);
    assert_eq!(relaxed, [[0, 0], [0, 1], [1, 0], [1, 1]].into());
    let strictest = explored([|words| access(words, 0, Ordering::SeqCst), |words| access(words, 1, Ordering::SeqCst)]);
    assert_eq!(strictest, [[0, 1], [1, 0], [1, 1]].into());
}
