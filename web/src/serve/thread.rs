//! Threads of pages: sessions, and who may use them.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::request::Parts;
use emitree_agent::Session;
use emitree_agent::past::PastError;
use emitree_middleware::store::Store;
use serde_json::{Map, Value};

use crate::chat::Owners;
use crate::serve::failure::Refusal;

/// The name of the owner in [`Session::meta`]. A public thread has `null`.
const OWNER: &str = "owner";
/// The largest length of an id, which is also the one of a session.
const MAX_ID_BYTES: usize = 200;

/// The author of a request.
#[derive(Debug)]
pub(crate) struct Visitor {
    /// `None` for everyone.
    pub(crate) name: Option<String>,
}

impl Visitor {
    pub(crate) fn of(owners: &Owners, parts: &Parts) -> Result<Self, Refusal> {
        let name = match owners {
            Owners::Everyone => None,
            Owners::By(owner) => {
                let none = || Refusal::new(StatusCode::UNAUTHORIZED, "the request has no owner: log in");
                Some(owner(parts).ok_or_else(none)?)
            }
        };
        Ok(Self { name })
    }

    /// Opens a thread of the visitor. Returns `None` if there is no session with this id.
    pub(crate) async fn open(&self, store: &Arc<dyn Store>, id: &str) -> Result<Option<Session>, Refusal> {
        if !self.has(&**store, id).await? {
            return Ok(None);
        }
        let session = Session::open(store, id).await?;
        // Another process may have changed it.
        session.refresh().await?;
        Ok(Some(session))
    }

    /// Makes a thread, with its owner. If another request has made it meanwhile, that one's owner has it.
    pub(crate) async fn make(&self, store: &Arc<dyn Store>, id: &str) -> Result<Session, Refusal> {
        let meta = Map::from_iter([(OWNER.to_owned(), self.as_json())]);
        match Session::open(store, id).create(meta).await {
            Err(PastError::Exists { .. }) => self.open(store, id).await?.ok_or_else(|| Refusal::no_thread(id)),
            made => Ok(made?),
        }
    }

    /// Returns `true` if there is a thread of the visitor. One of another owner is refused.
    pub(crate) async fn has(&self, store: &dyn Store, id: &str) -> Result<bool, Refusal> {
        check_id(id)?;
        match store.load(id).await? {
            Some(entry) if !self.owns(entry.head.meta.get(OWNER)) => Err(Refusal::no_thread(id)),
            entry => Ok(entry.is_some()),
        }
    }

    fn owns(&self, owner: Option<&Value>) -> bool {
        owner.is_some_and(|owner| *owner == self.as_json())
    }

    fn as_json(&self) -> Value {
        self.name.as_deref().into()
    }
}

/// Sessions of sub-agents and of jobs have ids with slashes, which no page may open.
fn check_id(id: &str) -> Result<(), Refusal> {
    let is_valid = !id.is_empty() && id.len() <= MAX_ID_BYTES && !id.contains(|c: char| c == '/' || c.is_control());
    if is_valid {
        return Ok(());
    }
    let problem = format!("has to have 1 to {MAX_ID_BYTES} bytes, and neither slashes nor control characters");
    Err(Refusal::bad(format!(
        "the id {:?} of the thread is not valid: it {problem}",
        id.chars().take(80).collect::<String>()
    )))
}
