//! An agent for the pages of browsers.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::http::request::Parts;
use emitree_agent::Agent;
use emitree_emitter::{IntoMatcher, Matcher, MatcherError};
use emitree_middleware::store::Store;

use crate::encode::Protocol;
use crate::serve::{self, Runs};

/// An agent that pages talk to. Each thread of a page is a session in a store.
///
/// ```
/// use axum::Router;
/// use emitree_agent::{Agent, ChatModel, ScriptedModel};
/// use emitree_middleware::store::MemoryStore;
/// use emitree_web::Chat;
///
/// # fn main() -> emitree_runtime::Result<()> {
/// let agent = Agent::builder("guide", ChatModel::new(ScriptedModel::new("test").text("Everest."))?).build()?;
/// let chat = Chat::new(agent, MemoryStore::new())
///     .owner(|parts| parts.headers.get("x-user").and_then(|user| user.to_str().ok()).map(str::to_owned));
/// let app: Router = Router::new().nest("/agent", chat.ag_ui()).nest("/api/chat", chat.ui_messages());
/// # Ok(())
/// # }
/// ```
///
/// A chat without an owner has no routers, so nobody publishes the threads of all users by mistake:
///
/// ```compile_fail
/// # use emitree_agent::Agent;
/// # use emitree_middleware::store::MemoryStore;
/// # fn router(agent: Agent) -> axum::Router {
/// emitree_web::Chat::new(agent, MemoryStore::new()).ag_ui() // add `.owner(…)` or `.public()`
/// # }
/// ```
///
/// # Threads
///
/// A page chooses the id of its thread. The first request with an unknown id makes the session, with its owner in
/// [`Session::meta`](emitree_agent::Session::meta). For everyone else, and for sessions that no chat has made, the answer
/// is 404. The page is not believed: from a request come the last message of the user and the answers to questions.
///
/// # When the page goes
///
/// A page that closes its connection aborts the run, unless [`keep_running`](Self::keep_running) is set. Dropping the
/// chat and its routers aborts all runs.
///
/// # Errors of requests
///
/// | status | |
/// |---|---|
/// | 400, 413, 415, 408 | the body is no JSON of the protocol, is larger than 1 MiB, has another type, or does not arrive |
/// | 401 | the request has no owner |
/// | 404 | there is no such thread or question |
/// | 409 | the question was answered, or a run of the thread is under way |
/// | 422 | the answer is not allowed, or the request asks for nothing |
#[derive(Clone)]
pub struct Chat {
    shared: Arc<Shared>,
}

/// A chat whose threads have no owner yet. Made by [`Chat::new`].
#[must_use = "a chat without an owner has no routers: add `owner` or `public`"]
pub struct NewChat {
    agent: Agent,
    store: Arc<dyn Store>,
}

/// The state that all requests share.
pub(crate) struct Shared {
    pub(crate) agent: Agent,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) owner: Owners,
    pub(crate) keeps_running: bool,
    pub(crate) shown: Vec<Matcher>,
    pub(crate) runs: Arc<Runs>,
}

/// A function that returns the owner of a request.
type OwnerOf = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// The owner of a thread.
#[derive(Clone)]
pub(crate) enum Owners {
    /// Whoever knows its id.
    Everyone,
    By(Arc<OwnerOf>),
}

impl Chat {
    /// Makes a chat with an agent, whose sessions a store keeps.
    #[expect(clippy::new_ret_no_self, reason = "a chat has an owner, or is public")]
    pub fn new(agent: Agent, store: impl Store + Clone) -> NewChat {
        NewChat { agent, store: Arc::new(store) }
    }

    /// Lets runs go on when their page goes. A page that comes back reads on; `POST /{id}/stop` ends a run. The steps of
    /// a run are kept until a minute after its end.
    #[must_use]
    pub fn keep_running(self) -> Self {
        self.with(|shared| shared.keeps_running = true)
    }

    /// Shows further events, such as the progress of a tool: as `CUSTOM` events with the name `emitree.<path>`, or as
    /// parts of the type `data-emitree-<name>`. Whoever reads the page reads their payloads.
    ///
    /// # Errors
    ///
    /// Returns the error of an invalid matcher.
    pub fn show(self, matcher: impl IntoMatcher) -> Result<Self, MatcherError> {
        let matcher = matcher.into_matcher()?;
        Ok(self.with(|shared| shared.shown.push(matcher)))
    }

    /// Returns a router that speaks AG-UI 1.0: `POST /`, `GET /{id}/events` and `POST /{id}/stop`.
    pub fn ag_ui(&self) -> Router {
        serve::router(Arc::clone(&self.shared), Protocol::AgUi)
    }

    /// Returns a router that speaks the UI message stream of the AI SDK: `POST /`, `GET /{id}/stream` and
    /// `POST /{id}/stop`.
    pub fn ui_messages(&self) -> Router {
        serve::router(Arc::clone(&self.shared), Protocol::UiMessages)
    }

    /// Changes a copy of the options, with the runs of before.
    fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let Shared { agent, store, owner, keeps_running, shown, runs } = &*self.shared;
        let mut shared = Shared {
            agent: agent.clone(),
            store: Arc::clone(store),
            owner: owner.clone(),
            keeps_running: *keeps_running,
            shown: shown.clone(),
            runs: Arc::clone(runs),
        };
        change(&mut shared);
        Self { shared: Arc::new(shared) }
    }
}

impl NewChat {
    /// Sets who owns the threads of a request, such as the user of its login. A request for which the function returns
    /// `None` is refused with 401.
    #[must_use]
    pub fn owner(self, owner: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Chat {
        self.owned(Owners::By(Arc::new(owner)))
    }

    /// Lets everyone who knows the id of a thread read it and write in it.
    #[must_use]
    pub fn public(self) -> Chat {
        self.owned(Owners::Everyone)
    }

    fn owned(self, owner: Owners) -> Chat {
        let Self { agent, store } = self;
        let shared = Shared { agent, store, owner, keeps_running: false, shown: Vec::new(), runs: Arc::default() };
        Chat { shared: Arc::new(shared) }
    }
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { agent, keeps_running, runs, .. } = &*self.shared;
        f.debug_struct("Chat")
            .field("agent", agent)
            .field("keeps_running", keeps_running)
            .field("runs", runs)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for NewChat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewChat").field("agent", &self.agent).finish_non_exhaustive()
    }
}
