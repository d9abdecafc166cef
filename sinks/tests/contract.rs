//! E13: sinks receive owned records. A sink chooses what happens when it is slower than the events (block, drop oldest,
//! drop newest). Its queue is always bounded, lost events are counted, and a gap record marks their place. `flush()`
//! and `close(deadline)` report how many events were delivered and how many were not.

mod support;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use emitree_emitter::{BoxError, EmitErrorKind, Emitter, Overflow, Progress, Report, Sink, SinkHandle, SinkRecord};
use support::{Calls, Gate, Gated, Seen, after_a_poll, is_done_after_a_poll};

const EVER: Duration = Duration::MAX;

fn emit_now(emitter: &Emitter, numbers: impl IntoIterator<Item = u32>) {
    for mut number in numbers {
        emitter.emit_now("n", &mut number).unwrap();
    }
}

/// Returns `[delivered, lost, failed, pending]`.
fn counts(report: &Report) -> [u64; 4] {
    [report.delivered, report.lost, report.failed, report.pending]
}

/// Pipes an emitter to a sink, and stalls the sink in the write of event 0, with an empty queue.
fn stalled(capacity: usize, overflow: Overflow) -> (Emitter, SinkHandle, Gate, Seen) {
    let emitter = Emitter::new();
    let (sink, gate, seen) = Gated::new(capacity, overflow);
    let handle = emitter.pipe_to(sink).unwrap();
    let first = emitter.clone();
    // Emit on another thread, because `block_on` panics inside the runtime of an async test.
    thread::spawn(move || block_on(async move { first.emit("n", &mut 0_u32).await.unwrap() })).join().unwrap();
    gate.entered();
    (emitter, handle, gate, seen)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// E13.
#[test]
fn a_stalled_drop_oldest_sink_loses_the_oldest_events_and_a_gap_marks_their_place() {
    let (emitter, handle, gate, seen) = stalled(3, Overflow::DropOldest);
    emit_now(&emitter, 1..10);
    assert_eq!(handle.lost(), 6);
    drop(gate);
    let report = handle.close_blocking(EVER);
    assert_eq!(seen.line(), "0 -6 7 8 9");
    assert_eq!(counts(&report), [4, 6, 0, 0]);
    assert_eq!(
        report.complete().unwrap_err().to_string(),
        "the delivery of a sink is incomplete: 4 delivered, 6 lost, 0 failed, 0 pending"
    );
}

/// E13.
#[test]
fn a_stalled_drop_newest_sink_loses_the_newest_events_and_a_gap_marks_their_place() {
    let (emitter, handle, gate, seen) = stalled(3, Overflow::DropNewest);
    emit_now(&emitter, 1..10);
    drop(gate);
    let report = handle.close_blocking(EVER);
    assert_eq!(seen.line(), "0 1 2 3 -6");
    assert_eq!(counts(&report), [4, 6, 0, 0]);
}

/// E13.
#[test]
fn each_stretch_of_losses_has_its_own_gap() {
    for (overflow, expected) in [(Overflow::DropNewest, "0 1 2 -2 5 6 -1"), (Overflow::DropOldest, "0 -2 3 4 -1 6 7")] {
        let (emitter, handle, gate, seen) = stalled(2, overflow);
        emit_now(&emitter, 1..5);
        gate.step();
        gate.entered();
        emit_now(&emitter, 5..8);
        drop(gate);
        let report = handle.close_blocking(EVER);
        assert_eq!(seen.line(), expected, "{overflow:?}");
        assert_eq!(counts(&report), [5, 3, 0, 0], "{overflow:?}");
    }
}

/// E13.
#[tokio::test]
async fn a_full_sink_that_blocks_makes_the_emit_wait_and_loses_nothing() {
    let (emitter, handle, gate, seen) = stalled(2, Overflow::Block);
    emitter.emit("n", &mut 1_u32).await.unwrap();
    emitter.emit("n", &mut 2_u32).await.unwrap();
    let mut number = 3_u32;
    let mut third = pin!(emitter.emit("n", &mut number));
    assert!(!is_done_after_a_poll(third.as_mut()).await, "two of two wait");
    drop(gate);
    third.await.unwrap();
    let report = handle.close(EVER).await;
    assert_eq!(seen.line(), "0 1 2 3");
    assert!(report.is_complete(), "{report}");
}

/// E13, E17: `emit_now` fails only while the emit would have to wait for the sink.
#[test]
fn emit_now_to_a_sink_that_blocks_is_an_error_while_it_is_full() {
    let (emitter, handle, gate, seen) = stalled(2, Overflow::Block);
    let heard = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&heard);
    emitter
        .on("n", move |_: &mut u32, _| {
            counter.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    emit_now(&emitter, 1..3);
    let error = emitter.emit_now("n", &mut 3_u32).unwrap_err();
    assert!(matches!(error.kind(), EmitErrorKind::WouldAwait { .. }), "{error}");
    assert_eq!(heard.load(Ordering::Relaxed), 2, "nobody hears what is refused");
    drop(gate);
    assert!(handle.close_blocking(EVER).is_complete());
    emitter.emit_now("n", &mut 4_u32).expect("a closed sink listens no more");
    assert_eq!(seen.line(), "0 1 2");
}

/// E13: the queue stays bounded when waiting emits are dropped.
#[tokio::test]
async fn an_event_whose_waiting_emit_is_dropped_is_lost_and_counted() {
    let (emitter, handle, gate, seen) = stalled(2, Overflow::Block);
    emitter.emit("n", &mut 1_u32).await.unwrap();
    emitter.emit("n", &mut 2_u32).await.unwrap();
    for mut given_up in 3..6_u32 {
        let mut emit = Box::pin(emitter.emit("n", &mut given_up));
        assert!(!is_done_after_a_poll(emit.as_mut()).await);
    }
    let mut number = 6_u32;
    let mut last = pin!(emitter.emit("n", &mut number));
    assert!(!is_done_after_a_poll(last.as_mut()).await);
    drop(gate);
    last.await.unwrap();
    let report = handle.close(EVER).await;
    assert_eq!(seen.line(), "0 1 2 -3 6");
    assert_eq!(counts(&report), [4, 3, 0, 0]);
}

/// E13: the event of a waiting emit has already been accepted.
#[tokio::test]
async fn close_releases_waiting_emits_and_delivers_their_events() {
    let (emitter, handle, gate, seen) = stalled(1, Overflow::Block);
    emitter.emit("n", &mut 1_u32).await.unwrap();
    let mut number = 2_u32;
    let mut waiting = pin!(emitter.emit("n", &mut number));
    assert!(!is_done_after_a_poll(waiting.as_mut()).await);
    assert_eq!(counts(&handle.close(Duration::ZERO).await), [0, 0, 0, 3]);
    waiting.await.unwrap();
    emitter.emit("n", &mut 3_u32).await.unwrap();
    drop(gate);
    assert_eq!(counts(&handle.close(EVER).await), [3, 0, 0, 0]);
    assert_eq!(seen.line(), "0 1 2");
}

fn noting(write: impl FnMut(&str) -> Result<(), BoxError> + Send + 'static) -> (impl Sink, Seen) {
    let seen = Seen::default();
    (Calls { write, seen: seen.clone(), overflow: Overflow::DropNewest }, seen)
}

/// E13.
#[tokio::test]
async fn flush_waits_for_earlier_events_and_reports_them() {
    let (sink, seen) = noting(|_| Ok(()));
    let emitter = Emitter::new();
    let handle = emitter.pipe_to(sink).unwrap();
    emit_now(&emitter, 0..3);
    assert_eq!(counts(&handle.flush().await), [3, 0, 0, 0]);
    assert_eq!(seen.line(), "0 1 2 flush");
    emit_now(&emitter, 3..4);
    assert_eq!(counts(&handle.flush_blocking()), [4, 0, 0, 0]);
    assert_eq!(seen.line(), "0 1 2 flush 3 flush");
    assert!(handle.close(EVER).await.is_complete());
    assert_eq!(counts(&handle.flush().await), [4, 0, 0, 0], "after the end there is nothing to wait for");
    assert_eq!(seen.line(), "0 1 2 flush 3 flush close");
}

/// E13: an event that is emitted after the request is not counted, even if the sink takes it in the same batch.
#[tokio::test]
async fn flush_answers_for_the_events_that_were_emitted_before_it() {
    let (emitter, handle, gate, seen) = stalled(3, Overflow::DropNewest);
    emit_now(&emitter, 1..2);
    let mut flush = pin!(handle.flush());
    assert!(!is_done_after_a_poll(flush.as_mut()).await);
    // The sink takes 1 to 3 in one batch, and 4 and 5 are lost.
    emit_now(&emitter, 2..6);
    let mut second = pin!(handle.flush());
    assert!(!is_done_after_a_poll(second.as_mut()).await);
    gate.step();
    gate.entered();
    gate.step();
    // The sink is stalled in the write of 2, and has been flushed before.
    gate.entered();
    let first = after_a_poll(flush).await.expect("the sink has been flushed after 1");
    assert_eq!(first.complete().expect("0 and 1 are written"), 2);
    drop(gate);
    assert_eq!(counts(&second.await), [4, 2, 0, 0]);
    assert_eq!(seen.line(), "0 1 2 3 -2");
}

/// E13.
#[tokio::test]
async fn flush_answers_only_for_earlier_events_if_later_events_fail() {
    let (inside, gate) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let ((entered, was_entered), (open, opened)) = (inside, gate);
    let (sink, seen) = noting(move |event| {
        if event == "0" {
            entered.send(()).expect("the test waits");
            opened.recv().expect("the test opens the gate");
        }
        if event == "1" { Err("full".into()) } else { Ok(()) }
    });
    let emitter = Emitter::new();
    let handle = emitter.pipe_to(sink).unwrap();
    emit_now(&emitter, 0..1);
    was_entered.recv().expect("the sink writes");
    let mut flush = pin!(handle.flush());
    assert!(!is_done_after_a_poll(flush.as_mut()).await);
    emit_now(&emitter, 1..2);
    open.send(()).expect("the sink waits");
    assert_eq!(flush.await.complete().expect("event 1 came later"), 1);
    assert_eq!(counts(&handle.flush().await), [1, 0, 1, 0]);
    assert_eq!(seen.line(), "0 flush flush");
}

/// E13.
#[tokio::test]
async fn close_reports_pending_events_after_the_deadline() {
    let (emitter, handle, gate, seen) = stalled(8, Overflow::DropNewest);
    emit_now(&emitter, 1..3);
    let soon = Duration::from_millis(5);
    assert_eq!(counts(&handle.close(soon).await), [0, 0, 0, 3]);
    assert_eq!(counts(&handle.close_blocking(soon)), [0, 0, 0, 3]);
    emit_now(&emitter, 3..4);
    drop(gate);
    assert_eq!(counts(&handle.close(EVER).await), [3, 0, 0, 0], "what came after the close is not for this sink");
    assert_eq!(seen.line(), "0 1 2");
}

/// E13.
#[test]
fn a_write_that_fails_or_panics_is_counted_and_the_sink_continues() {
    let (sink, seen) = noting(|text| match text {
        "1" => panic!("no ones"),
        "2" => Err("no twos".into()),
        _ => Ok(()),
    });
    let emitter = Emitter::new();
    let handle = emitter.pipe_to(sink).unwrap();
    emit_now(&emitter, 0..2);
    let report = handle.flush_blocking();
    assert_eq!((counts(&report), report.error.as_deref()), ([1, 0, 1, 0], Some("the sink panicked: no ones")));
    emit_now(&emitter, 2..4);
    let report = handle.close_blocking(EVER);
    assert_eq!((counts(&report), report.error.as_deref()), ([2, 0, 2, 0], Some("no twos")));
    assert_eq!(seen.line(), "0 flush 3 close");
}

/// A sink that refuses event 7 and buffers all others. It reports the number of buffered events if `tells` is set.
struct Buffers {
    held: u64,
    tells: bool,
    flushes: bool,
}

impl Sink for Buffers {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        if support::show(record) == "7" {
            return Err("no sevens".into());
        }
        self.held += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        if !self.flushes {
            return Err("no room".into());
        }
        self.held = 0;
        Ok(())
    }

    fn progress(&self) -> Option<Progress> {
        self.tells.then(|| Progress::default().with_buffered(self.held))
    }
}

/// E13: a report does not count an event as delivered while the sink still buffers it.
#[test]
fn buffered_events_do_not_count_as_delivered_and_fail_if_they_are_dropped_with_the_sink() {
    for tells in [false, true] {
        for (flushes, flushed, closed) in [(true, [2, 0, 1], [4, 0, 1]), (false, [0, 2, 1], [0, 0, 5])] {
            let counts = |report: &Report| [report.delivered, report.buffered, report.failed];
            let emitter = Emitter::new();
            let handle = emitter.pipe_to(Buffers { held: 0, tells, flushes }).unwrap();
            emit_now(&emitter, [1, 7, 2]);
            assert_eq!(counts(&handle.flush_blocking()), flushed, "{tells} {flushes}");
            emit_now(&emitter, [3, 4]);
            let report = handle.close_blocking(EVER);
            assert_eq!(counts(&report), closed, "{tells} {flushes}: {report}");
            assert_eq!((report.lost, report.pending), (0, 0));
        }
    }
}

/// E13: the counts of a report add up, even if the sink reports impossible numbers.
#[test]
fn impossible_progress_of_a_sink_does_not_break_the_counts_of_its_report() {
    struct Boasts;

    impl Sink for Boasts {
        fn write(&mut self, _: &SinkRecord) -> Result<(), BoxError> {
            Ok(())
        }

        fn progress(&self) -> Option<Progress> {
            Some(Progress::default().with_failed(1).with_buffered(u64::MAX).with_synced(u64::MAX))
        }
    }

    let emitter = Emitter::new();
    let handle = emitter.pipe_to(Boasts).unwrap();
    emit_now(&emitter, 0..3);
    let report = handle.flush_blocking();
    assert_eq!([report.delivered, report.synced, report.buffered, report.failed], [0, 0, 2, 1]);
    assert_eq!(report.to_string(), "0 delivered, 2 buffered, 0 lost, 1 failed, 0 pending");
    assert_eq!(handle.close_blocking(EVER).failed, 3);
}

/// A sink that panics when it writes, flushes or is dropped.
struct Hostile;

impl Sink for Hostile {
    fn write(&mut self, _: &SinkRecord) -> Result<(), BoxError> {
        panic!("write")
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        panic!("flush")
    }

    fn overflow(&self) -> Overflow {
        Overflow::DropOldest
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        panic!("drop")
    }
}

/// E13: flush and close return a report, even if the sink panics.
#[test]
fn flush_and_close_return_a_report_even_if_the_sink_panics() {
    let emitter = Emitter::new();
    let handle = emitter.pipe_to(Hostile).unwrap();
    emit_now(&emitter, 0..3);
    assert_eq!(handle.flush_blocking().error.as_deref(), Some("the sink panicked: flush"));
    let report = handle.close_blocking(EVER);
    assert_eq!((counts(&report), report.error.as_deref()), ([0, 0, 3, 0], Some("the sink panicked: drop")));
}

/// Sends a message when the sink's thread ends and drops this value.
struct Tells(mpsc::Sender<()>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// E13: the thread of a sink ends when the emitter is dropped or closed.
#[test]
fn a_sink_ends_with_its_emitter_after_it_has_written_everything() {
    for (name, end) in [("dropped", drop as fn(Emitter)), ("closed", |emitter| emitter.close())] {
        let (ended, has_ended) = mpsc::channel();
        let tells = Tells(ended);
        let (sink, seen) = noting(move |_| {
            let _tells = &tells;
            Ok(())
        });
        let emitter = Emitter::new();
        drop(emitter.pipe_to(sink).unwrap());
        emit_now(&emitter, 0..3);
        end(emitter);
        has_ended.recv().unwrap();
        assert_eq!(seen.line(), "0 1 2 close", "{name}");
    }
}

/// E13.
#[test]
fn an_unpiped_sink_writes_all_earlier_events_and_ends() {
    let (sink, seen) = noting(|_| Ok(()));
    let emitter = Emitter::new();
    let handle = emitter.pipe_to(sink).unwrap();
    emit_now(&emitter, 0..2);
    handle.unpipe();
    handle.unpipe();
    emit_now(&emitter, 2..4);
    assert_eq!(counts(&handle.close_blocking(EVER)), [2, 0, 0, 0]);
    assert_eq!(seen.line(), "0 1 close");
}

/// A sink that has a flush interval and sends a message at each flush.
struct Impatient(mpsc::Sender<()>);

impl Sink for Impatient {
    fn write(&mut self, _: &SinkRecord) -> Result<(), BoxError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        Ok(self.0.send(())?)
    }

    fn flush_interval(&self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }

    fn overflow(&self) -> Overflow {
        Overflow::DropOldest
    }
}

/// E9, E13: a sink is closed when its emitter is dropped, not when the emitter's listeners are reset.
#[test]
fn a_reset_leaves_the_sinks_of_an_emitter_and_its_drop_closes_them() {
    let emitter = Emitter::new().child("original").unwrap();
    let (sink, _) = noting(|_| Ok(()));
    let handle = emitter.pipe_to(sink).unwrap();
    assert_eq!(emitter.reset(), 0);
    emitter.emit_now("n", &mut 1_u32).unwrap();
    drop(emitter);
    assert_eq!(counts(&handle.close_blocking(EVER)), [1, 0, 0, 0]);
}

/// E13.
#[test]
fn a_sink_with_a_flush_interval_is_flushed_without_calls_and_without_further_events() {
    let (flushed, has_flushed) = mpsc::channel();
    let emitter = Emitter::new();
    emitter.pipe_to(Impatient(flushed)).unwrap();
    for _ in 0..3 {
        emit_now(&emitter, 0..1);
        has_flushed.recv().unwrap();
    }
}

/// E13.
#[test]
fn each_event_is_delivered_or_lost_and_the_events_of_each_thread_keep_their_order() {
    const THREADS: u32 = 4;
    const EACH: u32 = 500;
    for overflow in [Overflow::Block, Overflow::DropOldest, Overflow::DropNewest] {
        let emitter = Emitter::new();
        let seen = Seen::default();
        let handle = emitter.pipe_to(Small(seen.clone(), overflow)).unwrap();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let emitter = &emitter;
                scope.spawn(move || {
                    block_on(async move {
                        for mut number in thread * EACH..(thread + 1) * EACH {
                            emitter.emit("n", &mut number).await.unwrap();
                        }
                    });
                });
            }
        });
        let report = handle.close_blocking(EVER);
        assert_eq!(report.delivered + report.lost, u64::from(THREADS * EACH), "{overflow:?}: {report}");
        assert_eq!((report.failed, report.pending), (0, 0), "{overflow:?}: {report}");
        check(&seen.line(), &report, EACH);
    }
}

fn check(line: &str, report: &Report, each: u32) {
    let numbers: Vec<i64> = line.split(' ').map(|text| text.parse().unwrap()).collect();
    let gaps: i64 = numbers.iter().filter(|number| **number < 0).sum();
    assert_eq!(gaps.unsigned_abs(), report.lost);
    let events: Vec<i64> =
        line.split(' ').filter(|text| !text.starts_with('-')).map(|text| text.parse().unwrap()).collect();
    assert_eq!(events.len() as u64, report.delivered);
    for thread in 0..4 {
        let own: Vec<_> = events.iter().filter(|number| **number / i64::from(each) == thread).collect();
        assert!(own.is_sorted(), "{own:?}");
    }
}

struct Small(Seen, Overflow);

impl Sink for Small {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        self.0.add(support::show(record));
        Ok(())
    }

    fn capacity(&self) -> usize {
        4
    }

    fn overflow(&self) -> Overflow {
        self.1
    }
}
