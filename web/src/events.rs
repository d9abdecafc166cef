//! Any run as server-sent events: [`events`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use emitree_emitter::{BoxError, EventRecord, IntoMatcher, Sink, SinkRecord};
use emitree_runtime::{Error, ErrorKind, Result, Run, RunStream, Runnable, StreamItem};
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

/// The time after which a comment is sent if there is nothing else.
const PAUSE: Duration = Duration::from_secs(15);
/// The path of the record that has the result of a run. No event has a path with a space.
const RESULT: &str = "the result";

/// Makes a response of a run: its events and the events of the runs below it that match, as server-sent events.
///
/// Each event has the data `{"path": …, "payload": …}`. The last event has the type `result` and the data
/// `{"output": …}`, or the type `error` and the data `{"kind": …, "message": …}`. If events were lost, because the run
/// emitted many at once, an event of the type `gap` has the data `{"lost": …}`.
///
/// The messages of denials and halts are sent. Any other error is logged, and sent as "internal error".
///
/// A client that closes its connection drops the run, which aborts it.
///
/// ```
/// use std::sync::Arc;
///
/// use axum::response::IntoResponse;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let count = Arc::new(runnable_fn("count", |to: u32, ctx: RunContext| async move {
///     for mut n in 1..=to {
///         ctx.emitter().emit("counted", &mut n).await?;
///     }
///     Ok("done".to_owned())
/// }));
/// let response = emitree_web::events(count.run_shared(2), "counted").into_response();
/// let body = axum::body::to_bytes(response.into_body(), 10_000).await?;
/// assert_eq!(
///     std::str::from_utf8(&body)?,
///     "data: {\"path\":\"counted\",\"payload\":1}\n\n\
///      data: {\"path\":\"counted\",\"payload\":2}\n\n\
///      event: result\ndata: {\"output\":\"done\"}\n\n"
/// );
/// # Ok(())
/// # }
/// ```
pub fn events<R: Runnable + 'static>(run: Run<'static, R>, matcher: impl IntoMatcher) -> Events<R> {
    let collected = Collected::default();
    Events { stream: run.events(matcher), sink: Box::new(collected.clone()), collected }
}

/// A response with the events of a run. Made by [`events`].
#[must_use = "a run does nothing until its response is sent"]
pub struct Events<R: Runnable + 'static> {
    stream: RunStream<'static, R>,
    sink: Box<dyn Sink>,
    collected: Collected,
}

/// A sink that writes into a response. See [`Events::through`].
#[derive(Clone, Debug, Default)]
pub struct Collected(Arc<Mutex<VecDeque<SinkRecord>>>);

impl Sink for Collected {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        self.0.lock().push_back(record.clone());
        Ok(())
    }
}

impl<R: Runnable + 'static> Events<R> {
    /// Sends all events, and the result, through a sink that changes them: `through(|sink| redact.sink(sink))` redacts
    /// them. A record that the sink refuses is not sent, and ends the response with an error.
    pub fn through<S: Sink>(self, wrap: impl FnOnce(Collected) -> S) -> Self {
        Self { sink: Box::new(wrap(self.collected.clone())), ..self }
    }
}

impl<R: Runnable + 'static> fmt::Debug for Events<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<R: Runnable + 'static> IntoResponse for Events<R>
where
    R::Output: Serialize,
{
    fn into_response(self) -> Response {
        let events = stream::unfold(Some(self), |events| async {
            let mut events = events?;
            let (sent, is_last) = events.next().await;
            Some((stream::iter(sent), (!is_last).then_some(events)))
        });
        Sse::new(as_infallible(events.flatten())).keep_alive(KeepAlive::new().interval(PAUSE)).into_response()
    }
}

fn as_infallible(events: impl Stream<Item = Event>) -> impl Stream<Item = Result<Event, Infallible>> {
    events.map(Ok)
}

impl<R: Runnable + 'static> Events<R>
where
    R::Output: Serialize,
{
    /// Waits for further events. Returns `true` with the last ones.
    async fn next(&mut self) -> (Vec<Event>, bool) {
        let (record, is_last) = match self.stream.recv().await {
            Some(StreamItem::Event(record)) => (Ok(SinkRecord::Event(record)), false),
            Some(StreamItem::Missed(lost)) => {
                (SinkRecord::from_json(&json!({"gap": {"lost": lost}}).to_string()), false)
            }
            Some(StreamItem::Result(result)) => (record_of(&data_of(result)), true),
            _ => (record_of(&failure("failed", "internal error")), true),
        };
        let written = record.map_err(BoxError::from).and_then(|record| self.write(&record, is_last));
        let mut events: Vec<_> = take(&mut *self.collected.0.lock()).iter().map(event_of).collect();
        if let Err(error) = &written {
            tracing::error!(%error, "an event of a response cannot be sent");
            events.push(event_of_result(&failure("failed", "internal error")));
        }
        (events, is_last || written.is_err())
    }

    fn write(&mut self, record: &SinkRecord, is_last: bool) -> Result<(), BoxError> {
        self.sink.write(record)?;
        if is_last { self.sink.close() } else { Ok(()) }
    }
}

/// Returns the data of a result.
fn data_of(result: Result<impl Serialize>) -> Value {
    let output = result.and_then(|output| serde_json::to_value(output).map_err(Error::from));
    match output {
        Ok(output) => json!({ "output": output }),
        Err(error) => match error.kind() {
            ErrorKind::Denied { .. } => failure("denied", &error.to_string()),
            ErrorKind::Halted { .. } => failure("halted", &error.to_string()),
            ErrorKind::TimedOut => failure("timed_out", "the run took too long"),
            ErrorKind::Aborted | ErrorKind::Dropped => failure("aborted", "the run was aborted"),
            _ => {
                tracing::error!(error = error.explain(), "the run of a response has failed");
                failure("failed", "internal error")
            }
        },
    }
}

fn failure(kind: &str, message: &str) -> Value {
    json!({"kind": kind, "message": message})
}

/// Makes a record of a result, so that sinks can change it. Its id and its time are not sent.
fn record_of(data: &Value) -> serde_json::Result<SinkRecord> {
    let record = json!({
        "id": "00000000-0000-0000-0000-000000000000",
        "path": RESULT,
        "created_at": "1970-01-01T00:00:00Z",
        "creator": null,
        "context": {},
        "group_id": null,
        "trace": null,
        "payload_type": RESULT,
        "payload": data,
    });
    serde_json::from_str::<EventRecord>(&record.to_string()).map(|record| SinkRecord::Event(Box::new(record)))
}

fn event_of(record: &SinkRecord) -> Event {
    match record {
        SinkRecord::Event(record) if *record.path == *RESULT => event_of_result(&record.to_json()),
        SinkRecord::Event(record) => {
            Event::default().data(json!({"path": record.path, "payload": record.to_json()}).to_string())
        }
        SinkRecord::Gap(gap) => Event::default().event("gap").data(json!({"lost": gap.lost}).to_string()),
        _ => Event::default().comment("unknown record"),
    }
}

fn event_of_result(data: &Value) -> Event {
    let kind = if data.get("output").is_some() { "result" } else { "error" };
    Event::default().event(kind).data(data.to_string())
}
