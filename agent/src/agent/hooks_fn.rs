//! Middleware for agents, made from closures.

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Result, Summary};

use crate::{AgentMiddleware, HookResult, Hooks};

/// Makes a middleware from a closure that registers hooks, tools and middlewares. For an `init`, a `check` or a fixed
/// part of the system prompt, implement [`AgentMiddleware`].
///
/// ```
/// use emitree_agent::{Agent, ChatModel, Message, ScriptedModel, hooks_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let polite = hooks_fn("polite", |hooks| {
///     hooks.prompt(|_| Ok("Be polite.".to_owned()));
///     hooks.on_action(|action, _| {
///         if !action.response.text().contains("please") {
///             action.inject.push(Message::user("Say please."));
///         }
///     });
/// });
/// let script = ScriptedModel::new("test").text("Wait.").text("Wait, please.");
/// let agent = Agent::builder("clerk", ChatModel::new(script.clone())?).with(polite).build()?;
/// assert_eq!(agent.ask("May I come in?").await?.text(), "Wait, please.");
/// assert_eq!(script.requests()[0].system.as_deref(), Some("Be polite."));
/// # Ok(())
/// # }
/// ```
///
/// The closure is called once, when the middleware is added. It returns nothing or a `Result<()>`. If the closure
/// fails, [`install`](AgentMiddleware::install) returns its error.
pub fn hooks_fn<Out: HookResult>(
    id: impl Into<String>,
    install: impl Fn(&mut Hooks) -> Out + Send + Sync + 'static,
) -> HooksFn {
    HooksFn { id: id.into(), install: Arc::new(move |hooks| install(hooks).into_result()), is_guard: false }
}

type Install = Arc<dyn Fn(&mut Hooks) -> Result<()> + Send + Sync>;

/// An [`AgentMiddleware`] whose hooks are registered by a closure. Created by [`hooks_fn`].
#[derive(Clone)]
pub struct HooksFn {
    id: String,
    install: Install,
    is_guard: bool,
}

impl HooksFn {
    /// Marks the hooks as guards (see [`AgentMiddleware::is_guard`]).
    #[must_use]
    pub const fn guard(mut self) -> Self {
        self.is_guard = true;
        self
    }
}

impl AgentMiddleware for HooksFn {
    fn id(&self) -> &str {
        &self.id
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        (self.install)(hooks)
    }

    fn is_guard(&self) -> bool {
        self.is_guard
    }

    fn debug_summary(&self) -> Summary {
        self.id.as_str().into()
    }
}

impl fmt::Debug for HooksFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HooksFn").field(&self.id).finish()
    }
}
