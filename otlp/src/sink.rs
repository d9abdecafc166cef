//! The sink: records become spans, and spans are sent.

use std::fmt;

use emitree_emitter::{BoxError, Detail, DetailFn, Overflow, Progress, Sink, SinkRecord};

use crate::encode::Encoder;
use crate::export::Exporter;
use crate::spans::Spans;

/// A sink that sends the runs of its records as spans. Made by [`Otlp::sink`](crate::Otlp::sink).
///
/// # Its spans
///
/// Each run has one span, from `start` for the duration that `finish` reports. A run whose `start` was recorded late,
/// or was lost, begins at its end minus its duration. A run that is open at the close, or whose `finish` was lost and
/// the run above has ended, is sent with `emitree.incomplete`. No name is empty.
///
/// A trace is exported whole or not at all. The process that began it decides: of the traces that begin here, the
/// sampler takes a share by the last 56 bits of their ids. A run that joins a foreign trace lies below the foreign
/// span, and a run with a parent here has a link to it.
///
/// # Its counts
///
/// A run counts as one event, the first that the sink receives of it. In a [`Report`](emitree_emitter::Report), this
/// event is `buffered` until the run has ended and its span was sent, and `failed` if the span could not be sent. All
/// other events count as `delivered` once they were read.
///
/// # When the queue is full
///
/// 8192 events may wait for the sink. Then the oldest are lost, so that no run waits, unless
/// [`Otlp::overflow`](crate::Otlp::overflow) says otherwise. Open spans have the number of lost events in
/// `emitree.lost_events`.
///
/// A collector that is slow does not fill the queue, because spans are sent on a thread of their own. A flush waits for
/// this thread, at most for the [time of the retries](crate::Otlp::retry_for) of each request.
pub struct OtlpSink {
    /// `None` if the exporter is disabled.
    active: Option<Active>,
}

pub(crate) struct Active {
    pub(crate) spans: Spans,
    pub(crate) encoder: Encoder,
    pub(crate) exporter: Exporter,
    pub(crate) overflow: Overflow,
}

impl OtlpSink {
    pub(crate) const fn new(active: Option<Active>) -> Self {
        Self { active }
    }
}

impl Sink for OtlpSink {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        if let Some(active) = &mut self.active {
            active.spans.add(record).iter().for_each(|span| active.exporter.push(active.encoder.span(span)));
        }
        Ok(())
    }

    /// Waits until the spans of all runs that have ended were sent, or have failed.
    fn flush(&mut self) -> Result<(), BoxError> {
        self.active.as_ref().map_or(Ok(()), |active| Ok(active.exporter.flush()?))
    }

    /// Sends the spans of runs that have not ended, with `emitree.incomplete`, and flushes.
    fn close(&mut self) -> Result<(), BoxError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.spans.close().iter().for_each(|span| active.exporter.push(active.encoder.span(span)));
        active.exporter.close();
        Ok(active.exporter.flush()?)
    }

    fn progress(&self) -> Option<Progress> {
        let Some(active) = &self.active else { return Some(Progress::default()) };
        let counts = active.exporter.counts();
        Some(Progress::default().with_buffered(active.spans.open() as u64 + counts.pending).with_failed(counts.failed))
    }

    fn capacity(&self) -> usize {
        8192
    }

    fn overflow(&self) -> Overflow {
        self.active.as_ref().map_or(Overflow::DropOldest, |active| active.overflow)
    }

    /// Asks for heads, and for whole payloads only if they have content that is exported.
    fn detail(&self) -> DetailFn {
        let heads: DetailFn = Box::new(|_, _| Detail::Heads);
        self.active.as_ref().map_or(heads, |active| active.spans.detail())
    }
}

/// Prints counts only: open spans may have content.
impl fmt::Debug for OtlpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.active.as_ref().map(|active| active.spans.open());
        let counts = self.active.as_ref().map(|active| active.exporter.counts());
        f.debug_struct("OtlpSink").field("open", &open).field("counts", &counts).finish()
    }
}
