//! E13: a sink may emit on its emitter, close its own handle and attach other sinks. No call waits forever, and each
//! event is counted once.

mod support;

use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use emitree_emitter::{BoxError, Emitter, Overflow, Progress, Report, Sink, SinkHandle, SinkRecord};
use support::{Gated, Seen, show};

const EVER: Duration = Duration::MAX;

type Write = Box<dyn FnMut(&str) + Send>;

/// A sink that notes each record, and calls a function with it.
struct Acts {
    act: Write,
    seen: Seen,
    capacity: usize,
    overflow: Overflow,
}

impl Sink for Acts {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        let text = show(record);
        self.seen.add(&text);
        (self.act)(&text);
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn overflow(&self) -> Overflow {
        self.overflow
    }
}

fn acts(overflow: Overflow, act: impl FnMut(&str) + Send + 'static) -> (Acts, Seen) {
    let seen = Seen::default();
    (Acts { act: Box::new(act), seen: seen.clone(), capacity: 2, overflow }, seen)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Returns `[delivered, lost, failed]`, and checks that no event is pending or buffered.
fn counts(report: &Report) -> [u64; 3] {
    assert_eq!((report.pending, report.buffered), (0, 0), "{report}");
    [report.delivered, report.lost, report.failed]
}

/// E13: if the emit waited, the sink would wait for room that only the sink itself can make.
#[test]
fn a_full_sink_that_awaits_an_emit_to_itself_loses_and_counts_the_event_and_continues() {
    let emitter = Emitter::new();
    let itself = emitter.clone();
    let (sink, seen) = acts(Overflow::Block, move |text| {
        if text == "0" {
            for mut number in 1..=5_u32 {
                block_on(itself.emit("n", &mut number)).unwrap();
            }
        }
    });
    let handle = emitter.pipe_to(sink).unwrap();
    block_on(emitter.emit("n", &mut 0_u32)).unwrap();
    // After the flush, the first write is over, and the events that it emitted are written or lost.
    assert_eq!(handle.flush_blocking().error, None);
    assert_eq!(counts(&handle.close_blocking(EVER)), [3, 3, 0]);
    assert_eq!(seen.line(), "0 1 2 -3");
}

/// E13: each event causes another event, until a close ends the chain.
#[test]
fn a_sink_that_emits_to_itself_forever_can_be_closed() {
    for overflow in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Block] {
        let emitter = Emitter::new();
        let itself = emitter.clone();
        let (often, has_often) = mpsc::channel();
        let mut writes = 0;
        let (sink, _) = acts(overflow, move |_| {
            writes += 1;
            if writes == 100 {
                let _ = often.send(());
            }
            let _ = block_on(itself.emit("n", &mut 1_u32));
        });
        let handle = emitter.pipe_to(sink).unwrap();
        block_on(emitter.emit("n", &mut 0_u32)).unwrap();
        has_often.recv().unwrap();
        let report = handle.close_blocking(EVER);
        assert!(report.delivered >= 100 && report.is_complete(), "{overflow:?}: {report}");
    }
}

/// E13.
#[test]
fn a_sink_that_flushes_and_closes_its_own_handle_does_not_wait_for_itself() {
    let emitter = Emitter::new();
    let own: Arc<OnceLock<SinkHandle>> = Arc::default();
    let handle = Arc::clone(&own);
    let reports: Arc<Mutex<Vec<Report>>> = Arc::default();
    let notes = Arc::clone(&reports);
    let (sink, seen) = acts(Overflow::Block, move |text| {
        let handle = handle.wait();
        notes.lock().unwrap().push(match text {
            "0" => handle.flush_blocking(),
            "1" => block_on(handle.flush()),
            "2" => handle.close_blocking(EVER),
            _ => block_on(handle.close(EVER)),
        });
    });
    own.set(emitter.pipe_to(sink).unwrap()).unwrap();
    block_on(async {
        emitter.emit("n", &mut 0_u32).await.unwrap();
        emitter.emit("n", &mut 1_u32).await.unwrap();
        emitter.emit("n", &mut 2_u32).await.unwrap();
    });
    let report = own.wait().close_blocking(EVER);
    assert_eq!(counts(&report), [3, 0, 0]);
    assert_eq!(seen.line(), "0 1 2");
    let reports = reports.lock().unwrap();
    let errors: Vec<_> = reports.iter().map(|report| report.error.as_deref()).collect();
    assert_eq!(errors, [None, None, Some("the sink cannot wait for itself: it closes after this call returns")]);
}

/// E10, E13.
#[test]
fn a_sink_may_attach_another_sink_that_receives_later_events() {
    let emitter = Emitter::new();
    let itself = emitter.clone();
    let (attached, has_attached) = mpsc::channel();
    let (other, other_seen) = acts(Overflow::DropNewest, |_| ());
    let mut other = Some(other);
    let (sink, seen) = acts(Overflow::DropNewest, move |_| {
        if let Some(other) = other.take() {
            attached.send(itself.pipe_to(other).unwrap()).unwrap();
        }
    });
    let handle = emitter.pipe_to(sink).unwrap();
    emitter.emit_now("n", &mut 1_u32).unwrap();
    let attached = has_attached.recv().unwrap();
    emitter.emit_now("n", &mut 2_u32).unwrap();
    assert_eq!(counts(&attached.close_blocking(EVER)), [1, 0, 0]);
    assert_eq!(counts(&handle.close_blocking(EVER)), [2, 0, 0]);
    assert_eq!((seen.line(), other_seen.line()), ("1 2".to_owned(), "2".to_owned()));
}

/// E13.
#[test]
fn a_sink_that_unpipes_itself_or_closes_its_emitter_receives_all_accepted_events() {
    type End = fn(&Emitter, &SinkHandle);
    let ends: [End; 2] = [|_, handle| handle.unpipe(), |emitter, _| emitter.close()];
    for end in ends {
        let (emitter, own) = (Emitter::new(), Arc::new(OnceLock::<SinkHandle>::new()));
        let (itself, handle) = (emitter.clone(), Arc::clone(&own));
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let (sink, seen) = acts(Overflow::Block, move |text| {
            if text == "0" {
                begun.send(()).unwrap();
                let _ = may_go.recv();
                end(&itself, handle.wait());
            }
        });
        own.set(emitter.pipe_to(sink).unwrap()).unwrap();
        emitter.emit_now("n", &mut 0_u32).unwrap();
        has_begun.recv().unwrap();
        emitter.emit_now("n", &mut 1_u32).unwrap();
        drop(go);
        assert_eq!(counts(&own.wait().close_blocking(EVER)), [2, 0, 0]);
        assert_eq!(seen.line(), "0 1");
    }
}

/// E13: the events of these emits have already been accepted.
#[test]
fn emits_that_wait_for_a_full_sink_complete_when_it_is_unpiped_even_on_a_closed_emitter() {
    for is_closed in [false, true] {
        let emitter = Emitter::new();
        let (sink, gate, seen) = Gated::new(1, Overflow::Block);
        let handle = emitter.pipe_to(sink).unwrap();
        block_on(emitter.emit("n", &mut 0_u32)).unwrap();
        gate.entered();
        block_on(emitter.emit("n", &mut 1_u32)).unwrap();
        let waiting: Vec<_> = (2..5_u32)
            .map(|mut number| {
                let emitter = emitter.clone();
                thread::spawn(move || block_on(emitter.emit("n", &mut number)).map_err(|error| error.to_string()))
            })
            .collect();
        // Wait until each of these emits has offered its event and waits for room.
        while handle.report().pending < 5 {
            thread::yield_now();
        }
        if is_closed {
            emitter.close();
        }
        handle.unpipe();
        waiting.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        drop(gate);
        assert_eq!(counts(&handle.close_blocking(EVER)), [5, 0, 0]);
        assert!(seen.line().starts_with("0 1 "), "{}", seen.line());
    }
}

/// A sink that buffers nothing, and hangs in its `close`.
struct HangsInClose(mpsc::Receiver<()>);

impl Sink for HangsInClose {
    fn write(&mut self, _: &SinkRecord) -> Result<(), BoxError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), BoxError> {
        let _ = self.0.recv();
        Err("it was too late".into())
    }

    fn progress(&self) -> Option<Progress> {
        Some(Progress::default())
    }
}

/// E13: the event is delivered, but `close` has not returned yet.
#[test]
fn a_report_is_not_complete_while_the_sink_is_still_being_closed() {
    let emitter = Emitter::new();
    let (go, may_go) = mpsc::channel();
    let handle = emitter.pipe_to(HangsInClose(may_go)).unwrap();
    emitter.emit_now("n", &mut 0_u32).unwrap();
    assert_eq!(handle.flush_blocking().complete().unwrap(), 1);
    let soon = Duration::from_millis(1);
    for report in [
        handle.close_blocking(soon),
        block_on(handle.close(soon)),
        handle.close_blocking(Duration::ZERO),
        block_on(handle.close(Duration::ZERO)),
    ] {
        assert_eq!(counts(&report), [1, 0, 0]);
        assert!(report.error.as_deref().unwrap_or_default().starts_with("the sink was not closed within "), "{report}");
    }
    drop(go);
    assert_eq!(handle.close_blocking(EVER).error.as_deref(), Some("it was too late"));
}

/// E13: the sink receives no events and is closed immediately, and its report is complete.
#[test]
fn a_sink_on_a_closed_or_dropped_emitter_is_closed_at_once() {
    let closed = Emitter::new();
    closed.close();
    for emitter in [closed, Emitter::new()] {
        let (sink, seen) = acts(Overflow::Block, |_| ());
        let handle = emitter.pipe_to(sink).unwrap();
        drop(emitter);
        assert_eq!(counts(&handle.flush_blocking()), [0, 0, 0]);
        assert!(handle.close_blocking(EVER).is_complete());
        assert_eq!(seen.line(), "");
    }
}
