//! A response that reads the steps of a run.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use serde_json::Value;

use crate::encode::{Protocol, Reads};
use crate::live::Live;
use crate::live::log::Position;
use crate::step::{GONE, Owner, Part, Step, TextKind};

/// The time after which a comment is sent if there is nothing else.
const PAUSE: Duration = Duration::from_secs(15);

/// A reader of the steps of a run.
#[derive(Debug)]
pub(crate) struct Reader {
    live: Arc<Live>,
    protocol: Protocol,
    reads: Reads,
    at: Position,
    waiting: VecDeque<Event>,
    open: Vec<Open>,
    has_ended: bool,
    /// `true` if the run is aborted when the page goes.
    aborts: bool,
}

/// A text or a call that the page has as open.
#[derive(Debug)]
struct Open {
    id: Arc<str>,
    owner: Owner,
    /// `None` for a call.
    kind: Option<TextKind>,
    /// The arguments of a call so far.
    text: String,
}

impl Reader {
    /// Reads a run from its beginning.
    pub(crate) fn new(live: Arc<Live>, protocol: Protocol, reads: Reads) -> Self {
        let (at, waiting) = (Position::default(), VecDeque::new());
        Self { live, protocol, reads, at, waiting, open: Vec::new(), has_ended: false, aborts: false }
    }

    /// Goes on behind a position that the page names.
    pub(crate) fn behind(mut self, named: Position) -> Self {
        let read = {
            let log = &self.live.state.lock().log;
            self.at = log.position(named);
            log.before(self.at)
        };
        // The page has open what these steps have opened.
        read.iter().for_each(|step| self.follow(step));
        self
    }

    /// Aborts the run when the page goes.
    pub(crate) const fn aborting(mut self) -> Self {
        self.aborts = true;
        self
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            let live = Arc::clone(&self.live);
            let mut changed = pin!(live.changed.notified());
            changed.as_mut().enable();
            let next = self.live.state.lock().log.after(self.at);
            match next {
                Some((entry, step)) => self.take(entry, &step),
                None => changed.await,
            }
        }
    }

    fn take(&mut self, entry: u64, step: &Step) {
        let skipped = if self.at.entry == entry { self.at.within } else { 0 };
        let events = self.protocol.encode(step, &self.live.ids, self.reads);
        match step {
            Step::Delta { text, .. } | Step::CallDelta { text, .. } => {
                self.at = Position { entry, within: skipped + text.len() };
                self.write(events);
            }
            Step::Reset { .. } => {
                let closed: Vec<_> = self.open.iter().map(Open::close).collect();
                let closed = closed.iter().flat_map(|step| self.protocol.encode(step, &self.live.ids, self.reads));
                let events = closed.chain(events).collect();
                self.write_numbered(entry, skipped, events);
            }
            _ => self.write_numbered(entry, skipped, events),
        }
        self.follow(step);
        if matches!(step, Step::Ended(_)) {
            self.has_ended = true;
            if self.protocol == Protocol::UiMessages {
                self.waiting.push_back(Event::default().data("[DONE]"));
            }
        }
    }

    /// Writes the events of a step that a page may have in part.
    fn write_numbered(&mut self, entry: u64, skipped: usize, events: Vec<Value>) {
        for (number, event) in events.into_iter().enumerate().skip(skipped) {
            self.at = Position { entry, within: number + 1 };
            self.write(vec![event]);
        }
        // The entry is read, also if it has no events.
        self.at = Position { entry: entry + 1, within: 0 };
    }

    /// Writes events after which a page can go on at the current position.
    fn write(&mut self, events: Vec<Value>) {
        let id = self.at.to_string();
        for event in events {
            // Unlike `to_string`, this does not format.
            let data = serde_json::to_string(&event).unwrap_or_default();
            self.waiting.push_back(Event::default().id(&id).data(data));
        }
    }

    /// Notes what the page has as open.
    fn follow(&mut self, step: &Step) {
        match step {
            Step::Opened { id, kind, owner } => self.open.push(Open::new(id, owner, Some(*kind))),
            Step::CallOpened { id, owner, .. } => self.open.push(Open::new(id, owner, None)),
            Step::CallDelta { id, text, .. } => {
                let call = self.open.iter_mut().find(|open| open.id == *id);
                call.into_iter().for_each(|call| call.text.push_str(text));
            }
            Step::Closed { id, .. } | Step::CallClosed { id, .. } | Step::CallCut { id, .. } => {
                self.open.retain(|open| open.id != *id);
            }
            // A reset opens calls again whose arguments are not complete.
            Step::Reset { parts, .. } => self.open = parts.iter().filter_map(Open::of).collect(),
            _ => {}
        }
    }
}

impl Open {
    fn new(id: &Arc<str>, owner: &Owner, kind: Option<TextKind>) -> Self {
        Self { id: Arc::clone(id), owner: owner.clone(), kind, text: String::new() }
    }

    /// Returns a part as open if it is a call whose arguments are not complete.
    fn of(part: &Part) -> Option<Self> {
        let call = part.call().filter(|call| call.input.is_none())?;
        Some(Self { text: call.text.clone(), ..Self::new(&part.id, &part.owner, None) })
    }

    fn close(&self) -> Step {
        let (id, owner) = (Arc::clone(&self.id), self.owner.clone());
        match self.kind {
            Some(kind) => Step::Closed { id, kind, owner },
            None => Step::CallCut { id, owner, text: self.text.clone() },
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.aborts && !self.has_ended {
            self.live.abort.abort(GONE);
        }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.entry, self.within)
    }
}

impl Position {
    /// Reads the id of an event.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (entry, within) = text.split_once('.')?;
        Some(Self { entry: entry.parse().ok()?, within: within.parse().ok()? })
    }
}

/// Returns the response of a reader.
pub(crate) fn response(reader: Reader) -> Response {
    let protocol = reader.protocol;
    let mut response = Sse::new(events(reader)).keep_alive(KeepAlive::new().interval(PAUSE)).into_response();
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would keep events back otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    if protocol == Protocol::UiMessages {
        headers.insert("x-vercel-ai-ui-message-stream", HeaderValue::from_static("v1"));
    }
    response
}

fn events(reader: Reader) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(reader, |mut reader| async { reader.next().await.map(|event| (Ok(event), reader)) })
}
