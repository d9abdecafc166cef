//! The spans that wait for their request, and the counts of all others. The numbers are invariants of the module above.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::Span as Message;
use prost::Message as _;

/// The most spans of a request.
const BATCH: usize = 512;
/// The most bytes of a request, unless one span has more. Collectors often refuse requests of 2 or 4 MB.
const BATCH_BYTES: usize = 1 << 20;
/// The time that a span waits for others.
const DELAY: Duration = Duration::from_secs(1);

/// The numbers of spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Spans that were neither sent nor have failed.
    pub(crate) pending: u64,
    pub(crate) failed: u64,
}

#[derive(Debug)]
pub(super) struct Waiting {
    most_bytes: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    spans: VecDeque<(Message, usize)>,
    bytes: usize,
    /// The time since which spans wait; `None` if none waits.
    since: Option<Instant>,
    pushed: u64,
    delivered: u64,
    failed: u64,
    /// Spans up to this number are sent without delay.
    flush_to: u64,
    error: Option<String>,
    closed_at: Option<Instant>,
    /// Nothing is sent any more.
    has_ended: bool,
}

impl State {
    fn settled(&self) -> u64 {
        self.delivered + self.failed
    }

    fn fail(&mut self, spans: usize, error: &str) {
        self.failed += spans as u64;
        self.error = Some(error.to_owned());
    }

    /// Removes the oldest span.
    fn pop(&mut self) -> Option<Message> {
        let (span, bytes) = self.spans.pop_front()?;
        self.bytes -= bytes;
        if self.spans.is_empty() {
            self.since = None;
        }
        Some(span)
    }

    /// Returns the time until the next request, or `None` if nothing waits.
    fn due_in(&self) -> Option<Duration> {
        let since = self.since?;
        let is_due = self.spans.len() >= BATCH || self.bytes >= BATCH_BYTES || self.settled() < self.flush_to;
        let is_due = is_due || self.closed_at.is_some();
        Some(if is_due { Duration::ZERO } else { DELAY.saturating_sub(since.elapsed()) })
    }
}

impl Waiting {
    pub(super) fn new(most_bytes: usize) -> Self {
        Self { most_bytes, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Poisoning is ignored: nothing under the lock panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, span: Message) {
        let bytes = span.encoded_len();
        let mut state = self.state();
        state.pushed += 1;
        if state.has_ended {
            state.failed += 1;
            return;
        }
        state.spans.push_back((span, bytes));
        state.bytes += bytes;
        state.since.get_or_insert_with(Instant::now);
        // The oldest spans make room (2). The new one fails too if it is too large by itself.
        while state.bytes > self.most_bytes && state.pop().is_some() {
            let error = format!("more than {} bytes of spans wait for the collector", self.most_bytes);
            state.fail(1, &error);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the spans of the next request. Returns `None` at the end.
    pub(super) fn next(&self) -> Option<Vec<Message>> {
        let mut state = self.state();
        loop {
            if state.has_ended {
                return None;
            }
            // A push, a flush and the close wake this thread too, so the time is computed again after each wake.
            state = match state.due_in() {
                Some(Duration::ZERO) => break,
                Some(wait) => self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        // A span above the limit is sent alone, because otherwise it would block the queue. The batch stays pending
        // until `settle` counts it (1).
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some((_, size)) = state.spans.front()
            && batch.len() < BATCH
            && (batch.is_empty() || bytes + size <= BATCH_BYTES)
        {
            bytes += size;
            batch.extend(state.pop());
        }
        Some(batch)
    }

    /// Counts the spans of a request (1).
    pub(super) fn settle(&self, delivered: usize, failed: usize, error: Option<&str>) {
        let mut state = self.state();
        state.delivered += delivered as u64;
        if let Some(error) = error {
            state.fail(failed, error);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for a time. Returns `false` if the end comes first.
    pub(super) fn pause(&self, until: Instant) -> bool {
        let mut state = self.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.has_ended || left.is_zero() {
                return !state.has_ended;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn flush(&self) -> Result<(), String> {
        let mut state = self.state();
        // Spans that are pushed from now on are not waited for, so a flush ends while runs go on.
        let target = state.pushed;
        state.flush_to = target;
        self.changed.notify_all();
        while state.settled() < target && !state.has_ended {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    pub(super) fn close(&self) {
        self.state().closed_at.get_or_insert_with(Instant::now);
        self.changed.notify_all();
    }

    pub(super) fn closed_at(&self) -> Option<Instant> {
        self.state().closed_at
    }

    /// Ends the sending. All spans that wait have failed.
    pub(super) fn end(&self, reason: &str) {
        let mut state = self.state();
        state.has_ended = true;
        let left = state.spans.len();
        if left > 0 {
            state.spans.clear();
            state.bytes = 0;
            state.fail(left, reason);
        }
        state.error.get_or_insert_with(|| reason.to_owned());
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn counts(&self) -> Counts {
        let state = self.state();
        Counts { pending: state.pushed - state.settled(), failed: state.failed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A span of about this many bytes.
    fn span(bytes: usize) -> Message {
        Message { name: "x".repeat(bytes), ..Message::default() }
    }

    #[test]
    fn each_span_is_counted_once_and_the_oldest_fail_above_the_limit() {
        let waiting = Waiting::new(1000);
        for (bytes, pending, failed) in [(300, 1, 0), (300, 2, 0), (300, 3, 0), (300, 3, 1), (600, 2, 3), (2000, 0, 6)]
        {
            waiting.push(span(bytes));
            assert_eq!(waiting.counts(), Counts { pending, failed }, "{bytes}");
        }
        // Nothing waits, so nothing is sent.
        assert_eq!(waiting.state().due_in(), None);
    }

    #[test]
    fn the_spans_of_a_request_are_pending_until_they_are_settled() {
        let waiting = Waiting::new(1000);
        (0..3).for_each(|_| waiting.push(span(100)));
        waiting.close();
        assert_eq!(waiting.next().map(|spans| spans.len()), Some(3));
        assert_eq!(waiting.counts(), Counts { pending: 3, failed: 0 });
        waiting.settle(2, 1, Some("no"));
        assert_eq!(waiting.counts(), Counts { pending: 0, failed: 1 });
        assert_eq!((waiting.flush(), waiting.flush()), (Err("no".to_owned()), Ok(())));
    }

    #[test]
    fn after_the_end_spans_fail_and_nobody_waits() {
        let waiting = Waiting::new(1000);
        waiting.push(span(100));
        waiting.end("the reason");
        waiting.push(span(100));
        assert_eq!(waiting.counts(), Counts { pending: 0, failed: 2 });
        assert_eq!((waiting.flush(), waiting.next()), (Err("the reason".to_owned()), None));
        assert!(!waiting.pause(Instant::now() + Duration::from_secs(3600)));
    }
}
