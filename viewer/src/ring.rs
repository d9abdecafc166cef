//! The newest records of a program, in memory.
//!
//! 1. The number of a cursor counts records. Its position counts events, where a gap counts as the events that it
//!    stands for. Both grow with each record, so the events between two cursors are counted by a subtraction, even if
//!    no record between them is kept.
//! 2. `gone` is the cursor of the last record that is no longer kept. The kept records follow it, and none is missing
//!    between them.
//! 3. The kept records have at most `capacity` bytes as JSON.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emitree_emitter::{BoxError, Progress, Sink, SinkRecord};
use emitree_sinks::runs::{Batch, Cursor, Fact, Head, Source, SourceError};

const CAPACITY: usize = 64 << 20;

/// The newest records of a program, in memory: a sink, and the source of a page. Clones share their records.
///
/// [`Viewer::sink`](crate::Viewer::sink) returns the ring that the page shows. It keeps records of up to 64 MB, counted
/// as the bytes of their JSON; the heads that the page lists come on top. Older records are removed, and a
/// [gap](Fact::Gap) at the beginning counts their events. A reader that is slower than the program receives a gap with
/// the number of events that it has missed.
///
/// An event of more than 64 MB is not kept: it counts as failed, and a gap takes its place.
///
/// # As a sink
///
/// An emit waits if 1024 records wait for the sink. The sink only writes to memory, so a browser that is slow, or absent,
/// never makes an emit wait.
///
/// Each record can be read once it is written, so `flush` and `close` have nothing to do. The records stay after
/// [`SinkHandle::close`](emitree_emitter::SinkHandle::close), as long as the viewer or a clone of the ring exists.
/// Dropping the viewer does not detach the sink: it keeps its memory until it is closed or unpiped.
#[derive(Clone)]
pub struct Ring {
    capacity: usize,
    state: Arc<Mutex<State>>,
}

struct State {
    kept: VecDeque<Kept>,
    /// The bytes of the kept records (3).
    bytes: usize,
    gone: Cursor,
    last: Cursor,
}

struct Kept {
    head: Head,
    json: Box<str>,
}

impl Ring {
    pub(crate) fn new() -> Self {
        Self::with_capacity(CAPACITY)
    }

    fn with_capacity(capacity: usize) -> Self {
        // The keys of the hasher are random, so a cursor of an earlier process belongs to another recording.
        let recording = RandomState::new().hash_one(std::process::id());
        let start = Cursor { recording, position: 0, number: 0 };
        let state = State { kept: VecDeque::new(), bytes: 0, gone: start, last: start };
        Self { capacity, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Poisoning is ignored: nothing under the lock panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, mut head: Head, json: Box<str>) {
        let mut state = self.state();
        head.cursor = state.next(&head.fact);
        state.last = head.cursor;
        state.bytes += json.len();
        state.kept.push_back(Kept { head, json });
        state.shrink(self.capacity);
    }
}

impl State {
    /// Returns the cursor of the next record (1).
    fn next(&self, fact: &Fact) -> Cursor {
        let events = match fact {
            Fact::Gap { lost } => *lost,
            _ => 1,
        };
        let Cursor { recording, position, number } = self.last;
        Cursor { recording, position: position.saturating_add(events), number: number + 1 }
    }

    /// Removes the oldest records until the others fit (3).
    fn shrink(&mut self, capacity: usize) {
        while self.bytes > capacity
            && let Some(oldest) = self.kept.pop_front()
        {
            self.bytes -= oldest.json.len();
            self.gone = oldest.head.cursor;
        }
    }

    fn is_gone(&self, cursor: Cursor) -> bool {
        let Cursor { recording, position, number } = self.gone;
        cursor.recording == recording && (1..=number).contains(&cursor.number) && cursor.position <= position
    }

    /// Returns the index of a kept record.
    fn index_of(&self, cursor: Cursor) -> Result<usize, SourceError> {
        let index = cursor.number.checked_sub(self.gone.number + 1).and_then(|index| usize::try_from(index).ok());
        let is_there = |index: &usize| self.kept.get(*index).is_some_and(|kept| kept.head.cursor == cursor);
        index.filter(is_there).ok_or(SourceError::NoRecord(cursor))
    }

    /// Returns a gap for the events after a position that are gone, if there are any.
    fn gap_after(&self, position: u64) -> Option<Head> {
        let lost = self.gone.position.saturating_sub(position);
        (lost > 0).then(|| Head::gap(lost, self.gone))
    }
}

impl Source for Ring {
    /// A cursor of another process, or of another ring, begins anew.
    fn heads(&self, after: Option<Cursor>, limit: usize) -> Result<Batch, SourceError> {
        let state = self.state();
        let own = after.filter(|after| after.recording == state.last.recording);
        let (gap, from) = match own {
            Some(after) if !state.is_gone(after) => (None, state.index_of(after)? + 1),
            _ => (state.gap_after(own.map_or(0, |after| after.position)), 0),
        };
        let mut heads = Vec::from_iter(gap);
        let to = state.kept.len().min(from + limit.saturating_sub(heads.len()));
        heads.extend(state.kept.range(from..to).map(|kept| kept.head.clone()));
        let has_restarted = after.is_some() && own.is_none();
        Ok(Batch { heads, has_restarted, is_end: to == state.kept.len(), incomplete: 0 })
    }

    fn record(&self, at: Cursor) -> Result<String, SourceError> {
        let state = self.state();
        if state.is_gone(at) {
            return Err(SourceError::Gone(at));
        }
        Ok(state.kept[state.index_of(at)?].json.to_string())
    }
}

impl Sink for Ring {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        // The ring sets the cursor when it adds the head.
        let nowhere = Cursor { recording: 0, position: 0, number: 0 };
        let json = serde_json::to_string(record)?;
        let bytes = json.len();
        let capacity = self.capacity;
        if bytes <= capacity {
            self.push(Head::of(record, nowhere), json.into());
            return Ok(());
        }
        self.push(Head::gap(1, nowhere), r#"{"gap":{"lost":1}}"#.into());
        Err(format!("an event of {bytes} bytes is not shown: the page keeps the newest {capacity} bytes").into())
    }

    /// Reports no buffered events, because each written record can be read.
    fn progress(&self) -> Option<Progress> {
        Some(Progress::default())
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Ring")
            .field("records", &state.kept.len())
            .field("bytes", &state.bytes)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns an event whose JSON has 300 bytes.
    fn event(number: u64) -> SinkRecord {
        let record = |payload: &str| {
            json!({
                "id": "01a220d4-9313-71fe-a093-78e0a2246515", "path": format!("n{number}"),
                "created_at": "2026-01-01T00:00:00Z", "creator": null, "context": {}, "group_id": null, "trace": null,
                "payload_type": "T", "payload": payload,
            })
        };
        let empty = SinkRecord::from_json(&record("").to_string()).unwrap();
        let rest = 300 - serde_json::to_string(&empty).unwrap().len();
        SinkRecord::from_json(&record(&"x".repeat(rest)).to_string()).unwrap()
    }

    fn gap(lost: u64) -> SinkRecord {
        SinkRecord::from_json(&json!({"gap": {"lost": lost}}).to_string()).unwrap()
    }

    /// Makes a ring that has room for this many events, and writes records.
    fn ring(room: usize, records: impl IntoIterator<Item = SinkRecord>) -> Ring {
        let mut ring = Ring::with_capacity(room * 300);
        records.into_iter().for_each(|record| ring.write(&record).unwrap());
        ring
    }

    /// Formats heads as `n0 -3 n1`: events by their path, and gaps as negative counts.
    fn show(heads: &[Head]) -> String {
        let show = |head: &Head| match &head.fact {
            Fact::Gap { lost } => format!("-{lost}"),
            _ => head.path.to_string(),
        };
        heads.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    fn all(ring: &Ring, after: Option<Cursor>) -> String {
        show(&ring.heads(after, usize::MAX).unwrap().heads)
    }

    #[test]
    fn what_the_ring_has_lost_is_a_gap_at_its_beginning() {
        for (written, expected) in [(0, ""), (1, "n0"), (3, "n0 n1 n2"), (4, "-1 n1 n2 n3"), (9, "-6 n6 n7 n8")] {
            assert_eq!(all(&ring(3, (0..written).map(event)), None), expected);
        }
    }

    #[test]
    fn a_gap_that_is_removed_counts_as_its_events() {
        let mut ring = ring(2, [event(0), gap(40), event(1), event(2)]);
        assert_eq!(all(&ring, None), "-41 n1 n2");
        ring.write(&gap(2)).unwrap();
        assert_eq!(all(&ring, None), "-42 n2 -2");
    }

    /// V1 for a source that forgets: no event is missed without a gap, and none is counted twice.
    #[test]
    fn a_reader_of_any_speed_sees_or_misses_each_event_once() {
        for (room, burst, limit) in [(1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 7, 2), (5, 4, 3), (5, 5, 9), (5, 6, 9)] {
            let mut ring = ring(room, []);
            let mut after = None;
            let mut next = 0;
            for written in 0..200 {
                ring.write(&event(written)).unwrap();
                if written % burst != 0 {
                    continue;
                }
                let batch = ring.heads(after, limit).unwrap();
                assert!(batch.heads.len() <= limit && !batch.has_restarted);
                for head in &batch.heads {
                    match head.fact {
                        Fact::Gap { lost } => next += lost,
                        _ => {
                            assert_eq!(&*head.path, format!("n{next}"));
                            next += 1;
                        }
                    }
                }
                after = batch.heads.last().map(|head| head.cursor).or(after);
                assert_eq!(batch.is_end, next == written + 1, "room {room}, burst {burst}, limit {limit}");
            }
            assert!(next >= 190, "{next}");
        }
    }

    #[test]
    fn a_cursor_of_another_process_begins_anew() {
        let earlier = ring(3, [event(0), event(1)]).heads(None, 2).unwrap().heads[1].cursor;
        let batch = ring(2, (5..8).map(event)).heads(Some(earlier), 9).unwrap();
        assert_eq!((batch.has_restarted, &*show(&batch.heads)), (true, "-1 n6 n7"));
    }

    #[test]
    fn an_event_that_is_larger_than_the_ring_removes_no_other_and_leaves_a_gap() {
        let mut ring = ring(2, [event(0)]);
        let large =
            SinkRecord::from_json(&serde_json::to_string(&event(1)).unwrap().replace("xx", &"x".repeat(20))).unwrap();
        let error = ring.write(&large).unwrap_err().to_string();
        assert!(error.ends_with("is not shown: the page keeps the newest 600 bytes"), "{error}");
        assert_eq!(all(&ring, None), "n0 -1");
    }

    #[test]
    fn a_record_is_read_by_its_cursor_until_it_is_removed() {
        let mut ring = ring(2, [event(0), event(1)]);
        let cursors: Vec<_> = ring.heads(None, 9).unwrap().heads.iter().map(|head| head.cursor).collect();
        assert_eq!(ring.record(cursors[1]).unwrap(), serde_json::to_string(&event(1)).unwrap());
        ring.write(&event(2)).unwrap();
        let error = ring.record(cursors[0]).unwrap_err();
        assert!(matches!(error, SourceError::Gone(at) if at == cursors[0]), "{error}");
        assert!(error.to_string().contains(&format!("`{}`", cursors[0])), "{error}");
        assert_eq!(ring.record(cursors[1]).unwrap(), serde_json::to_string(&event(1)).unwrap());
    }

    #[test]
    fn a_cursor_that_the_ring_never_had_is_an_error_that_quotes_it() {
        let ring = ring(2, (0..4).map(event));
        let last = ring.heads(None, 9).unwrap().heads[2].cursor;
        let behind = Cursor { number: last.number + 1, ..last };
        let between = Cursor { position: last.position + 1, ..last };
        let before = Cursor { position: 0, number: 0, ..last };
        for at in [behind, between, before] {
            for result in [ring.record(at).map(drop), ring.heads(Some(at), 9).map(drop)] {
                let error = result.unwrap_err();
                assert!(matches!(error, SourceError::NoRecord(_)), "{error}");
                assert!(error.to_string().ends_with(&format!("`{at}`")), "{error}");
            }
        }
    }
}
