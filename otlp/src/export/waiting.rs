//! The spans that wait for their request, and the counts of all others.

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
    /// The time since which the oldest span waits.
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
            state = match state.due_in() {
                Some(Duration::ZERO) => break,
                Some(wait) => self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some((_, size)) = state.spans.front()
            && batch.len() < BATCH
            && (batch.is_empty() || bytes + size <= BATCH_BYTES)
        {
            bytes += size;
            batch.extend(state.pop());
        }
        state.since = (!state.spans.is_empty()).then(Instant::now);
        Some(batch)
    }

    /// Counts the spans of a request.
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
