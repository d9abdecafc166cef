//! The routes of the page: its files, the heads as server-sent events, and single records.
//!
//! 1. The id of each event is the cursor of its last head. A page that connects again sends the id, so no head is
//!    missed and none is sent twice, even after a restart of the server.
//! 2. Reading blocks, so it is done on the threads for blocking work.
//! 3. A feed ends when its viewer is dropped: without that, an open page would keep its connection, and the source.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use emitree_sinks::runs::{Batch, Cursor, Head, SourceError};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::guard::{Token, check_host, check_token};
use crate::page::{ASSETS, INDEX};
use crate::viewer::Shown;

/// The largest number of heads in one event.
const LIMIT: usize = 500;
/// The time between two looks at a recording that has no new records.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn routes(shown: Arc<Shown>, token: Token) -> Router {
    let records = Router::new()
        .route("/heads", get(heads))
        .route("/record/{cursor}", get(record))
        .with_state(shown)
        .layer(from_fn_with_state(token, check_token));
    let mut router = records.route("/", get(|| async { Html(INDEX) }));
    for asset in ASSETS {
        let send = move || async move { ([(CONTENT_TYPE, asset.media_type)], asset.text) };
        router = router.route(&format!("/{}", asset.name), get(send));
    }
    router.layer(from_fn(check_host))
}

async fn record(State(shown): State<Arc<Shown>>, Path(cursor): Path<String>) -> Response {
    let at: Cursor = match cursor.parse() {
        Ok(at) => at,
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
    };
    match blocking(move || shown.source.record(at)).await {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error @ SourceError::NoRecord(_)) => refused(StatusCode::NOT_FOUND, &error),
        Err(error @ SourceError::Gone(_)) => refused(StatusCode::GONE, &error),
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &error),
    }
}

async fn heads(State(shown): State<Arc<Shown>>, headers: HeaderMap) -> Response {
    let after = headers.get("last-event-id").map(|id| id.to_str().unwrap_or("not text").to_owned());
    let after = match after.filter(|id| !id.is_empty()).map(|id| id.parse::<Cursor>()).transpose() {
        Ok(after) => after,
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
    };
    let about = event("about", &json!({"title": shown.title}));
    let stopped = stopped(shown.stop.clone());
    let feed = stream::iter([about]).chain(feed(shown, after)).map(Ok::<_, Infallible>);
    Sse::new(feed.take_until(stopped)).keep_alive(KeepAlive::default()).into_response()
}

/// Waits until the viewer is dropped (3).
pub(crate) async fn stopped(mut stop: watch::Receiver<()>) {
    // Nothing is ever sent, so this is the error of a dropped sender.
    let _ = stop.changed().await;
}

fn refused(status: StatusCode, error: &dyn std::error::Error) -> Response {
    (status, error.to_string()).into_response()
}

/// The position of one reader.
struct Reader {
    shown: Arc<Shown>,
    after: Option<Cursor>,
    /// The end and the incomplete bytes that the page has been told.
    told: Option<(bool, u64)>,
    has_failed: bool,
}

/// Returns the events that follow a cursor. After a failure, the stream ends, and the page connects again.
fn feed(shown: Arc<Shown>, after: Option<Cursor>) -> impl Stream<Item = Event> {
    let reader = Reader { shown, after, told: None, has_failed: false };
    let events = stream::unfold(reader, |mut reader| async {
        if reader.has_failed {
            return None;
        }
        let events = reader.next().await.unwrap_or_else(|error| {
            reader.has_failed = true;
            vec![event("fault", &error.to_string())]
        });
        Some((stream::iter(events), reader))
    });
    events.flatten()
}

impl Reader {
    /// Waits for further heads.
    async fn next(&mut self) -> Result<Vec<Event>, SourceError> {
        loop {
            let shown = Arc::clone(&self.shown);
            let after = self.after;
            let batch = blocking(move || shown.source.heads(after, LIMIT)).await?;
            let state = (batch.is_end, batch.incomplete);
            if batch.heads.is_empty() && !batch.has_restarted && self.told == Some(state) {
                sleep(PAUSE).await;
                continue;
            }
            self.told = Some(state);
            return Ok(self.events_of(&batch));
        }
    }

    fn events_of(&mut self, batch: &Batch) -> Vec<Event> {
        let mut events = Vec::new();
        if batch.has_restarted {
            self.after = None;
            // An empty id makes the page forget the old cursor.
            events.push(event("restart", &()).id(""));
        }
        let last = batch.heads.last().map(|head| head.cursor).or(self.after);
        self.after = last;
        let heads = event("heads", &HeadsOf::new(batch));
        events.push(match last {
            Some(last) => heads.id(last.to_string()),
            None => heads,
        });
        events
    }
}

/// A batch as the page reads it.
#[derive(Serialize)]
pub(crate) struct HeadsOf<'a> {
    /// In hexadecimal digits, because it does not fit into a number of JavaScript.
    recording: String,
    heads: &'a [Head],
    end: bool,
    incomplete: u64,
}

impl<'a> HeadsOf<'a> {
    pub(crate) fn new(batch: &'a Batch) -> Self {
        let recording = batch.heads.first().map_or(0, |head| head.cursor.recording);
        Self {
            recording: format!("{recording:x}"),
            heads: &batch.heads,
            end: batch.is_end,
            incomplete: batch.incomplete,
        }
    }
}

fn event(name: &str, data: &impl Serialize) -> Event {
    // Heads are written by `derive(Serialize)` without maps, so they never fail.
    Event::default().event(name).data(serde_json::to_string(data).unwrap_or_default())
}

async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    // The task is lost only if its source panics, or if the runtime shuts down.
    spawn_blocking(read).await.unwrap_or_else(|error| Err(SourceError::Io(error.into())))
}
