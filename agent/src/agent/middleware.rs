//! Middleware of agents: hooks at the places of a loop, tools, and a part of the system prompt.

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Error, LayerInfo, Middleware, Result, Run, RunContext, Summary};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::agent::turn::LoopState;
use crate::place::hooks::{Built, Hooks};
use crate::{Agent, Tool};

/// Middleware of an agent: it adds hooks, tools and a part of the system prompt.
///
/// All methods but [`id`](Self::id) have defaults. [`AgentBuilder::with`](crate::AgentBuilder::with) adds a middleware to
/// an agent, [`AgentRun::with`] to one run, and `for_tree(joins(middleware))` to a run and all agents below it.
///
/// ```
/// use emitree_agent::{Agent, AgentMiddleware, ChatModel, Hooks, ScriptedModel, tool_fn};
/// use emitree_runtime::{Result, RunContext, Runnable};
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// /// Denies a call that was made before with the same arguments.
/// #[derive(Debug)]
/// struct Once;
///
/// impl AgentMiddleware for Once {
///     fn id(&self) -> &str {
///         "once"
///     }
///
///     fn system_prompt(&self) -> Option<String> {
///         Some("Never call a tool twice with the same arguments.".into())
///     }
///
///     fn install(&self, hooks: &mut Hooks) -> Result<()> {
///         let seen = hooks.state::<Vec<String>>();
///         hooks.on_gate(move |batch, ctx| {
///             seen.with(ctx, |seen| {
///                 for gated in batch.open() {
///                     let key = format!("{} {}", gated.call.name, gated.call.arguments);
///                     if seen.contains(&key) {
///                         gated.deny("once", "you have called it so before");
///                     } else {
///                         seen.push(key);
///                     }
///                 }
///             })
///         });
///         Ok(())
///     }
/// }
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Coin {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let flip = tool_fn("flip", "Flips a coin", |_: Coin, _: RunContext| async { Ok("heads") })?;
/// let model = ScriptedModel::new("test").call("flip", json!({})).call("flip", json!({})).text("Heads, once.");
/// let agent = Agent::builder("gambler", ChatModel::new(model)?).tool(flip).with(Once).build()?;
///
/// let answer = agent.ask("Flip twice.").await?;
/// let results: Vec<_> = answer.messages.iter().flat_map(|message| message.tool_results()).collect();
/// assert_eq!(results[0].response, "heads");
/// assert_eq!(results[1].response, "denied by once: you have called it so before");
/// # Ok(())
/// # }
/// ```
pub trait AgentMiddleware: fmt::Debug + Send + Sync + 'static {
    /// Returns the id, unique among the middlewares of an agent. Hooks are called `<id>.<place>` in explanations and errors.
    fn id(&self) -> &str;

    /// Prepares the middleware. Called once, when the middleware is added.
    ///
    /// # Errors
    ///
    /// [`AgentBuilder::build`](crate::AgentBuilder::build) returns the error unchanged.
    fn init(&self) -> Result<()> {
        Ok(())
    }

    /// Returns tools for the agent.
    fn tools(&self) -> Vec<Tool> {
        Vec::new()
    }

    /// Returns a fixed part of the system prompt. Use [`Hooks::prompt`] for a part that is computed for each model call.
    fn system_prompt(&self) -> Option<String> {
        None
    }

    /// Registers hooks. Called once, when the middleware is added.
    ///
    /// # Errors
    ///
    /// [`AgentBuilder::build`](crate::AgentBuilder::build) returns the error unchanged.
    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let _ = hooks;
        Ok(())
    }

    /// Returns the settings of the middleware for explanations, by default its `Debug` output.
    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

/// A middleware whose hooks are registered.
pub(crate) struct Installed {
    pub(crate) id: String,
    pub(crate) tools: Vec<Tool>,
    pub(crate) hooks: Built,
    pub(crate) summary: Summary,
}

impl Installed {
    pub(crate) fn new(middleware: &impl AgentMiddleware) -> Result<Self> {
        // `init` is called first, so that `install` and `tools` can rely on it.
        middleware.init()?;
        let id = middleware.id().to_owned();
        let mut hooks = Hooks::new(&id);
        // The fixed part of the prompt is the middleware's first contribution.
        if let Some(text) = middleware.system_prompt() {
            hooks.prompt(move |_| Ok(text.clone()));
        }
        middleware.install(&mut hooks)?;
        let (tools, hooks) = (middleware.tools(), hooks.build());
        let summary = with_hooks(middleware.debug_summary(), hooks.names());
        Ok(Self { id, tools, hooks, summary })
    }
}

/// Adds the names of hooks to the summary of a middleware.
fn with_hooks(summary: Summary, names: Vec<String>) -> Summary {
    match summary {
        summary if names.is_empty() => summary,
        Summary::Fields(mut fields) => {
            fields.insert("hooks".to_owned(), names.into());
            Summary::Fields(fields)
        }
        text => format!("{text}; hooks: {}", names.join(", ")).into(),
    }
}

/// Bound to each run of the agents that have this middleware, so that the run's explanation lists the hooks.
impl Middleware for Installed {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if self.hooks.agent_run.is_empty() { Ok(()) } else { self.hooks.agent_run.bind(ctx) }
    }

    fn name(&self) -> &str {
        &self.id
    }

    fn debug_summary(&self) -> Summary {
        self.summary.clone()
    }

    fn layers(&self) -> Vec<LayerInfo> {
        self.hooks.agent_run.layers()
    }
}

/// Prepares a run of an agent. It is bound last of the agent's own middleware.
#[derive(Debug)]
pub(crate) struct Prepare {
    pub(crate) summary: Map<String, Value>,
}

impl Middleware for Prepare {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        LoopState::prepare(ctx);
        // Inherited middleware was bound before the agent's, but comes behind it, so its layers are bound only now.
        let joined = ctx.own_extension::<Joined>();
        joined.iter().flat_map(|joined| joined.all()).try_for_each(|installed| installed.bind(ctx))
    }

    fn name(&self) -> &str {
        "agent"
    }

    fn debug_summary(&self) -> Summary {
        self.summary.clone().into()
    }
}

/// Turns a middleware of agents into a middleware of runs. Bound to the run of an agent, it adds the middleware to that
/// run; bound to any other run, it does nothing.
///
/// `for_tree(joins(middleware))` adds the middleware to a run and to the runs of all agents below it.
#[expect(clippy::needless_pass_by_value, reason = "a middleware is given away: its hooks keep what they need")]
pub fn joins(middleware: impl AgentMiddleware) -> Joins {
    let id = middleware.id().to_owned();
    Joins { id, installed: Installed::new(&middleware).map(Arc::new), is_on_agent: false }
}

/// A middleware of agents that can be bound to runs. Made by [`joins`].
///
/// If `init` or `install` of the middleware failed, each run of an agent that it is bound to fails with that error.
#[derive(Clone)]
pub struct Joins {
    id: String,
    installed: Result<Arc<Installed>>,
    /// `true` if the run that it is bound to is certainly an agent's run.
    is_on_agent: bool,
}

impl Middleware for Joins {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // `for_tree` binds it to the runs of models and tools as well.
        if ctx.types().runnable != std::any::type_name::<Agent>() {
            return Ok(());
        }
        let installed = self.installed.clone()?;
        ctx.own_extension_or_default::<Joined>().add(Arc::clone(&installed))?;
        // If the agent's own middleware is not bound yet, `Prepare` binds the layers later.
        if LoopState::of(ctx).is_some() { installed.bind(ctx) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        &self.id
    }

    fn debug_summary(&self) -> Summary {
        self.installed.as_ref().map_or_else(|error| error.to_string().into(), |installed| installed.summary.clone())
    }

    fn layers(&self) -> Vec<LayerInfo> {
        match &self.installed {
            Ok(installed) if self.is_on_agent => installed.layers(),
            // The run may not be an agent's, and then has no layers of this middleware.
            _ => Vec::new(),
        }
    }
}

impl fmt::Debug for Joins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Joins").field(&self.id).finish()
    }
}

/// The middlewares that were bound to one run of an agent.
#[derive(Default)]
pub(crate) struct Joined(Mutex<Vec<Arc<Installed>>>);

impl Joined {
    fn add(&self, installed: Arc<Installed>) -> Result<()> {
        // Only ids are compared under the lock: no user code.
        let mut joined = self.0.lock();
        if joined.iter().any(|other| other.id == installed.id) {
            return Err(twice(&installed.id));
        }
        joined.push(installed);
        Ok(())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Installed>> {
        self.0.lock().clone()
    }
}

pub(crate) fn twice(id: &str) -> Error {
    Error::new(format!(
        "the agent has the middleware `{id}` twice: ids are unique, since state and errors are named by them"
    ))
}

/// The methods of an agent's runs.
pub trait AgentRun: Sized {
    /// Adds a middleware to this run. Its hooks are called after the hooks of the agent's middlewares.
    #[must_use]
    fn with(self, middleware: impl AgentMiddleware) -> Self;

    /// Streams the answers of this agent's model, and calls a function with each piece.
    ///
    /// The function is also called with the tokens of other models below this run, such as a sub-agent's, if streaming is
    /// on for them. A listener for `"new_token"` on an agent is never called, because tokens are events of the model's
    /// run. The function is called before output middleware and guards receive the answer.
    #[must_use]
    fn on_token(self, f: impl Fn(&mut crate::NewToken) + Send + Sync + 'static) -> Self;

    /// Continues a session: the model receives the session's history before the input, and the messages of this run are
    /// added to the history.
    #[must_use]
    fn session(self, session: &crate::Session) -> Self;
}

impl AgentRun for Run<'_, Agent> {
    fn with(self, middleware: impl AgentMiddleware) -> Self {
        self.middleware(Joins { is_on_agent: true, ..joins(middleware) })
    }

    fn on_token(self, f: impl Fn(&mut crate::NewToken) + Send + Sync + 'static) -> Self {
        let run = self.on_start(|start, _| start.input.options.stream = Some(true));
        run.on("**.new_token", move |token: &mut crate::NewToken, _| f(token))
    }

    fn session(self, session: &crate::Session) -> Self {
        self.own_extension(session.clone())
    }
}
