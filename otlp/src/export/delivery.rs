//! The thread that sends spans: one request after the other, each repeated while the collector is not ready.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::runtime::{Builder, Runtime};

use super::client::{Client, Failure, Target};
use super::waiting::Waiting;
use crate::encode;

/// How spans are sent.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) target: Target,
    pub(crate) resource: Vec<KeyValue>,
    /// The time after which a request is not repeated.
    pub(crate) retry_for: Duration,
    pub(crate) pending_bytes: usize,
}

struct Delivery<'a> {
    settings: &'a Settings,
    waiting: &'a Waiting,
    runtime: Runtime,
    client: Client,
    /// The time before which the collector wants no request.
    not_before: Option<Instant>,
}

/// Sends spans until the end.
pub(super) fn run(settings: &Settings, waiting: &Waiting) {
    let _guard = EndGuard(waiting);
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return waiting.end(&format!("the runtime that sends spans could not be started: {error}")),
    };
    let client = match Client::new(settings.target.clone()) {
        Ok(client) => client,
        Err(error) => return waiting.end(&error.to_string()),
    };
    let mut delivery = Delivery { settings, waiting, runtime, client, not_before: None };
    let mut logged = None;
    while let Some(spans) = waiting.next() {
        let count = spans.len();
        let (failed, report) = match delivery.send(spans) {
            Ok(None) => (0, None),
            // A collector may report more rejected spans than it was sent, but each span counts once (O7).
            Ok(Some(partial)) => (partial.rejected.min(count), Some(partial.message)),
            Err(error) => (count, Some(error)),
        };
        let has_failed = failed > 0;
        // A warning alone is no error of a flush. Failed spans always come with a report, so `settle` counts them.
        waiting.settle(count - failed, failed, report.as_deref().filter(|_| has_failed));
        // A series of failures, or of warnings of the collector, is logged once.
        if let Some(report) = report.as_deref().filter(|_| logged != Some(has_failed)) {
            let what = if has_failed { "spans were not exported" } else { "spans were exported with a warning" };
            tracing::warn!("{what}: {report}");
        }
        logged = report.map(|_| has_failed);
    }
}

/// Ends the sending if the thread panics, for example in a subscriber of `tracing`, so that nobody waits for it.
struct EndGuard<'a>(&'a Waiting);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.end("the thread that sends spans has ended");
    }
}

/// The collector has rejected some of the spans, or none and warns.
pub(super) struct Partial {
    pub(super) rejected: usize,
    pub(super) message: String,
}

impl Delivery<'_> {
    /// Sends spans until the request succeeds, fails for good, or takes too long.
    fn send(&mut self, spans: Vec<Span>) -> Result<Option<Partial>, String> {
        let spans = encode::resource_spans(self.settings.resource.clone(), spans);
        let body = Bytes::from(ExportTraceServiceRequest { resource_spans: vec![spans] }.encode_to_vec());
        let mut delays = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(5))
            // Time limits the repetitions, not their number.
            .without_max_times()
            .with_jitter()
            .build();
        let began = Instant::now();
        let mut last = "the collector wants no request yet".to_owned();
        loop {
            // If the batch before was given up while the collector asked to wait, this one waits too (O8).
            // The deadline comes before the pause: a request that would be too late fails at once.
            if let Some(at) = self.not_before {
                if at > self.deadline(began) {
                    return Err(format!("{last}; given up, because it would take too long to try again"));
                }
                if !self.waiting.pause(at) {
                    return Err(last);
                }
            }
            // Cleared only here: a batch that is given up above leaves the time to the next one.
            self.not_before = None;
            match self.runtime.block_on(self.client.post(body.clone())) {
                Ok(partial) => return Ok(partial),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Retry { error, after }) => {
                    let delay = after.or_else(|| delays.next()).unwrap_or_default();
                    self.not_before = Instant::now().checked_add(delay);
                    if self.not_before.is_none() {
                        return Err(error);
                    }
                    last = error;
                }
            }
        }
    }

    /// Returns the time after which a request is not repeated. All requests after the close share one.
    fn deadline(&self, began: Instant) -> Instant {
        let began = self.waiting.closed_at().map_or(began, |closed| closed.min(began));
        let far = Duration::from_secs(365 * 24 * 60 * 60);
        began + self.settings.retry_for.min(far)
    }
}
