//! The routes of a chat.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::chat::Shared;
use crate::encode::{Protocol, Reads};
use crate::live::{Live, Position, Reader, response};
use crate::serve::ask::Asked;
use crate::serve::begin::{begin, begun};
use crate::serve::failure::Refusal;
use crate::serve::thread::Visitor;
use crate::step::STOPPED;

/// A chat that speaks one protocol.
#[derive(Clone)]
struct Page {
    shared: Arc<Shared>,
    protocol: Protocol,
}

pub(crate) fn router(shared: Arc<Shared>, protocol: Protocol) -> Router {
    let read = match protocol {
        Protocol::AgUi => "/{id}/events",
        Protocol::UiMessages => "/{id}/stream",
    };
    Router::new()
        .route("/", post(ask))
        .route(read, get(read_on))
        .route("/{id}/stop", post(stop))
        .with_state(Page { shared, protocol })
}

async fn ask(State(page): State<Page>, request: Request) -> Result<Response, Refusal> {
    let (parts, body): (Parts, Body) = request.into_parts();
    let visitor = Visitor::of(&page.shared.owner, &parts)?;
    let asked = Asked::read(page.protocol, &parts.headers, body).await?;
    let (live, reads) = begin(&page.shared, &visitor, asked).await?;
    let reader = Reader::new(Arc::clone(&live), page.protocol, reads);
    // From here on, a page that goes aborts the run.
    let reader = if page.shared.keeps_running { reader } else { reader.aborting() };
    begun(&live).await?;
    Ok(response(reader))
}

/// Sends the steps of a run that is under way, or has just ended.
async fn read_on(State(page): State<Page>, Path(id): Path<String>, request: Request) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let Some(live) = find(&page, &id, &parts).await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let reader = Reader::new(live, page.protocol, Reads::Anew);
    Ok(response(match (page.protocol, last_event(&parts.headers)?) {
        (Protocol::AgUi, Some(position)) => reader.behind(position),
        // The AI SDK sends no id, and takes the message from its start.
        _ => reader,
    }))
}

/// Ends a run. A run that has ended stays as it is.
async fn stop(State(page): State<Page>, Path(id): Path<String>, request: Request) -> Result<StatusCode, Refusal> {
    let (parts, _) = request.into_parts();
    if let Some(live) = find(&page, &id, &parts).await? {
        live.abort.abort(STOPPED);
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the run of a thread, if its steps can be read.
async fn find(page: &Page, id: &str, parts: &Parts) -> Result<Option<Arc<Live>>, Refusal> {
    let visitor = Visitor::of(&page.shared.owner, parts)?;
    // The steps of a session that was removed are nobody's.
    let is_known = visitor.has(&*page.shared.store, id).await?;
    Ok(page.shared.runs.get(id).filter(|_| is_known))
}

fn last_event(headers: &HeaderMap) -> Result<Option<Position>, Refusal> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    let text = id.to_str().unwrap_or_default();
    let position = Position::parse(text);
    let refusal = || Refusal::bad(format!("the event id {text:?} was not sent here: ids are such as `7.1`"));
    position.map(Some).ok_or_else(refusal)
}
