//! Middleware that adds hooks, tools and a part of the system prompt to an agent.

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Description, Error, HookInfo, Middleware, Result, Run, RunContext, Summary};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::agent::answer;
use crate::agent::own_hooks::{BUILDER, OwnHooks};
use crate::agent::spec::AgentSpec;
use crate::agent::turn::{AsksOnce, LoopState};
use crate::place::built::Built;
use crate::place::hooks::Hooks;
use crate::{Agent, Place, ToolSpec};

/// A middleware for agents: it adds hooks, tools and a part of the system prompt.
///
/// All methods except [`id`](Self::id) have defaults. [`AgentBuilder::with`](crate::AgentBuilder::with) adds a
/// middleware to an agent, [`AgentRun::with`] to one run, and `for_tree(joins(middleware))` to a run and all agents
/// below it.
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
    /// Returns the id, which must be unique among the middlewares of an agent. Errors and the output of `explain()`
    /// name each hook `<id>.<place>`.
    fn id(&self) -> &str;

    /// Prepares the middleware. This method is called once, when the middleware is added.
    ///
    /// # Errors
    ///
    /// [`AgentBuilder::build`](crate::AgentBuilder::build) returns the error unchanged. If the middleware is added to a
    /// run, the run fails with the error.
    fn init(&self) -> Result<()> {
        Ok(())
    }

    /// Returns a fixed part of the system prompt. For a part that is computed for each model call, use
    /// [`Hooks::prompt`].
    fn system_prompt(&self) -> Option<String> {
        None
    }

    /// Registers hooks, tools and middlewares. This method is called once, when the middleware is added.
    ///
    /// # Errors
    ///
    /// [`AgentBuilder::build`](crate::AgentBuilder::build) returns the error unchanged. If the middleware is added to a
    /// run, the run fails with the error.
    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let _ = hooks;
        Ok(())
    }

    /// Checks the middleware against its agent, whose tools `init` and `install` do not see.
    /// [`AgentBuilder::build`](crate::AgentBuilder::build) calls this method after all middlewares were added. If the
    /// middleware is added to a run, it is called at the beginning of the run's first attempt, with the tools of all
    /// middlewares of the run. A middleware that names a tool calls [`AgentSpec::expect_tool`].
    ///
    /// # Errors
    ///
    /// As for [`install`](Self::install).
    fn check(&self, agent: &AgentSpec) -> Result<()> {
        let _ = agent;
        Ok(())
    }

    /// Returns `true` if the hooks are guards. By default, returns `false`. Hooks that are registered with
    /// [`AgentBuilder::hooks`](crate::AgentBuilder::hooks) replace the hooks of middlewares at the same place, but
    /// never the hooks of guards.
    fn is_guard(&self) -> bool {
        false
    }

    /// Returns a summary of the middleware for the output of `explain()`, by default its `Debug` output.
    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

/// An [`AgentMiddleware`] whose hooks have been registered.
#[derive(Clone)]
pub(crate) struct Installed {
    pub(crate) id: String,
    pub(crate) is_guard: bool,
    pub(crate) hooks: Built,
    /// All hooks, including the hooks that the builder's hooks replace.
    pub(crate) described: Vec<HookInfo>,
    pub(crate) summary: Summary,
    /// The middleware itself, for its `check`.
    middleware: Option<Arc<dyn AgentMiddleware>>,
    /// Identifies the registration, which copies share.
    registered: Arc<()>,
    /// `true` if these are hooks of another agent, whose middleware has checked that agent.
    is_part: bool,
}

impl Installed {
    pub(crate) fn new(middleware: &impl AgentMiddleware) -> Result<Self> {
        // `init` is called first, so that `install` can rely on it.
        middleware.init()?;
        let id = middleware.id().to_owned();
        let mut hooks = Hooks::new(&id);
        // Register the fixed part first, so that it precedes the parts that `install` registers.
        if let Some(text) = middleware.system_prompt() {
            hooks.prompt(move |_| Ok(text.clone()));
        }
        middleware.install(&mut hooks)?;
        hooks.check()?;
        let hooks = hooks.build();
        let is_guard = middleware.is_guard();
        let described = hooks.describe(is_guard);
        let summary = middleware.debug_summary();
        let registered = Arc::default();
        Ok(Self { id, is_guard, hooks, described, summary, middleware: None, registered, is_part: false })
    }

    /// Registers the hooks of a middleware, and keeps the middleware for its `check`.
    pub(crate) fn of(middleware: impl AgentMiddleware) -> Result<Arc<Self>> {
        let installed = Self::new(&middleware)?;
        Ok(Arc::new(Self { middleware: Some(Arc::new(middleware)), ..installed }))
    }

    pub(crate) fn of_builder(hooks: Built) -> Self {
        let described = hooks.describe(false);
        let id = BUILDER.to_owned();
        let summary = Summary::from(BUILDER);
        let registered = Arc::default();
        Self { id, is_guard: false, hooks, described, summary, middleware: None, registered, is_part: false }
    }

    pub(crate) fn check(&self, agent: &AgentSpec) -> Result<()> {
        match &self.middleware {
            Some(middleware) if !self.is_part => middleware.check(agent),
            _ => Ok(()),
        }
    }

    /// Returns the stages and the guards for replies, or `None` if there are none.
    pub(crate) fn only_replies(&self) -> Option<Self> {
        let hooks = self.hooks.only_replies()?;
        let described = hooks.describe(true);
        Some(Self { hooks, described, is_guard: true, is_part: true, ..Self::clone(self) })
    }

    /// Returns `true` if both have the hooks of one registration, or a part of them.
    pub(crate) fn is_same_middleware(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.registered, &other.registered)
    }

    /// Returns the middleware without its hooks at these places. A guard keeps all its hooks.
    pub(crate) fn without(self: &Arc<Self>, places: &[Place]) -> Arc<Self> {
        if self.is_guard || places.is_empty() {
            return Arc::clone(self);
        }
        Arc::new(Self { hooks: self.hooks.without(places), ..Self::clone(self) })
    }
}

/// Binds the layers of `agent.run` and the middlewares of the run, and lists all hooks in the run's explanation.
impl Middleware for Installed {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if !self.hooks.agent_run.is_empty() {
            self.hooks.agent_run.bind(ctx)?;
        }
        self.hooks.middlewares.iter().try_for_each(|middleware| ctx.bind(middleware))
    }

    /// Returns `false` if a guard among the middlewares does not handle the run, so that `build` refuses it.
    fn handles(&self, kind: &str, name: &str) -> bool {
        let mut parts = self.hooks.middlewares.iter().filter(|part| !part.handles(kind, name));
        !parts.any(|part| part.describe().layers().iter().any(|layer| layer.position.is_guard()))
    }

    fn name(&self) -> &str {
        &self.id
    }

    fn describe(&self) -> Description<'_> {
        let middlewares = &self.hooks.middlewares;
        Description::of(self)
            .with_summary(|| self.summary.clone())
            .with_layers(|| {
                let mut layers = self.hooks.agent_run.layers();
                layers.extend(middlewares.iter().flat_map(|middleware| middleware.describe().layers()));
                layers
            })
            .with_hooks(|| self.described.clone())
            .with_names_below(|see| middlewares.iter().for_each(|middleware| middleware.describe().names_below(see)))
    }
}

/// Prepares a run of an agent. This middleware is bound after the agent's other middleware.
#[derive(Debug)]
pub(crate) struct Prepare {
    pub(crate) summary: Map<String, Value>,
    /// The agent's tools.
    pub(crate) specs: Arc<Vec<ToolSpec>>,
    pub(crate) own: Arc<OwnHooks>,
}

impl Middleware for Prepare {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        LoopState::prepare(ctx, Arc::clone(&self.own))?;
        answer::bind(ctx)?;
        // Inherited middleware is bound before the agent's middleware, but its layers have to follow the agent's
        // layers. Therefore, its layers are bound only now.
        let Some(joined) = ctx.own_extension::<Joined>() else { return Ok(()) };
        joined.come_behind(&self.own);
        joined.all().iter().try_for_each(|installed| installed.bind(ctx))
    }

    fn name(&self) -> &str {
        "agent"
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self)
            .with_summary(|| self.summary_with(&[], Vec::new()))
            .with_summary_in_run(|bound, ctx| {
                let (hooks, skipped) = ctx.map_or_else(|| self.own.expect(bound), described);
                Some(self.summary_with(&hooks, skipped))
            })
            .with_names_below(|see| self.specs.iter().for_each(|spec| see("Tool", &spec.name)))
    }
}

impl Prepare {
    fn summary_with(&self, hooks: &[HookInfo], skipped: Vec<String>) -> Summary {
        let mut fields = self.summary.clone();
        self.own.describe(hooks, &mut fields);
        if !skipped.is_empty() {
            fields.insert("skipped".to_owned(), skipped.into());
        }
        fields.into()
    }
}

/// Returns the hooks of the middlewares that [`Joins`] added to a run, and the ids of the middlewares that were
/// skipped.
fn described(ctx: &RunContext) -> (Vec<HookInfo>, Vec<String>) {
    let Some(joined) = ctx.own_extension::<Joined>() else { return Default::default() };
    let JoinedList { installed, skipped } = joined.0.lock().clone();
    (installed.iter().flat_map(|installed| installed.described.iter().cloned()).collect(), skipped)
}

/// Converts an [`AgentMiddleware`] into a [`Middleware`]. If the result is bound to an agent's run, it adds the
/// middleware to that run. If the result is bound to any other run, it does nothing.
///
/// `for_tree(joins(middleware))` adds the middleware to a run and to the runs of all agents below it. If an agent
/// already has a middleware with the same id, this middleware is skipped in the agent's runs, and their explanations
/// list its id as `skipped`. If several runs above bind middlewares with the same id, only the middleware of the
/// outermost run is added. To bind a guard that no agent below can skip or replace, bind a stack with a guard instead:
/// `for_tree(Stack::<AnyRun>::builder().guard(…).build())`.
pub fn joins(middleware: impl AgentMiddleware) -> Joins {
    let id = middleware.id().to_owned();
    Joins { id, installed: Installed::of(middleware), is_on_agent: false }
}

/// An [`AgentMiddleware`] that can be bound to runs. Created by [`joins`].
///
/// If `init` or `install` of the middleware failed, each agent's run to which the middleware is bound fails
/// with that error.
#[derive(Clone)]
pub struct Joins {
    id: String,
    installed: Result<Arc<Installed>>,
    /// `true` if the middleware was added to an agent's run with [`AgentRun::with`].
    is_on_agent: bool,
}

impl Middleware for Joins {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // `for_tree` also binds this middleware to the runs of models and tools.
        if !ctx.is_run_of_type::<Agent>() {
            return Ok(());
        }
        let installed = self.installed.clone()?;
        let joined = ctx.own_extension_or_default::<Joined>();
        let Some(state) = LoopState::of(ctx) else {
            // The agent's own middleware is not bound yet: `Prepare` skips this middleware or binds its layers later.
            joined.add(installed);
            return Ok(());
        };
        if joined.has(&installed.id) || state.own.ids.contains(&installed.id) {
            if self.is_on_agent {
                return Err(twice(&installed.id));
            }
            joined.skip(&installed.id);
            return Ok(());
        }
        let installed = installed.without(&state.own.places);
        joined.add(Arc::clone(&installed));
        installed.bind(ctx)
    }

    fn name(&self) -> &str {
        &self.id
    }

    /// Returns `true` for the runs of agents: any other run ignores the middleware.
    fn handles(&self, kind: &str, _: &str) -> bool {
        kind == "Agent"
    }

    fn describe(&self) -> Description<'_> {
        let installed = match &self.installed {
            Ok(installed) => installed,
            Err(error) => return Description::of(self).with_summary(|| error.to_string()),
        };
        let description = installed.describe().with_names_below(|see| {
            installed.hooks.tools.iter().for_each(|tool| see("Tool", &tool.spec().name));
            installed.describe().names_below(see);
        });
        if self.is_on_agent {
            return description;
        }
        // Layers are bound only to agents' runs, and this run may be of another kind.
        description.with_layers(Vec::new)
    }
}

impl fmt::Debug for Joins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Joins").field(&self.id).finish()
    }
}

/// The middlewares that [`Joins`] added to one run of an agent.
#[derive(Default)]
pub(crate) struct Joined(Mutex<JoinedList>);

#[derive(Clone, Default)]
struct JoinedList {
    installed: Vec<Arc<Installed>>,
    /// The ids of the middlewares that were skipped because their id was taken.
    skipped: Vec<String>,
}

// Under the lock, ids are compared and `Arc`s are cloned or moved, but no user code is called.
impl Joined {
    pub(crate) fn add(&self, installed: Arc<Installed>) {
        self.0.lock().installed.push(installed);
    }

    fn has(&self, id: &str) -> bool {
        self.0.lock().installed.iter().any(|installed| installed.id == id)
    }

    fn skip(&self, id: &str) {
        self.0.lock().skipped.push(id.to_owned());
    }

    /// Skips each inherited middleware whose id is taken, and removes the hooks that the agent's own hooks replace.
    fn come_behind(&self, own: &OwnHooks) {
        let inherited = std::mem::take(&mut self.0.lock().installed);
        for installed in inherited {
            if own.ids.contains(&installed.id) || self.has(&installed.id) {
                self.skip(&installed.id);
            } else {
                self.add(installed.without(&own.places));
            }
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Installed>> {
        self.0.lock().installed.clone()
    }
}

pub(crate) fn twice(id: &str) -> Error {
    Error::new(format!(
        "the agent has the middleware `{id}` twice: ids must be unique, because state and errors are named by id"
    ))
}

/// Extension methods for the runs of agents.
pub trait AgentRun: Sized {
    /// Adds a middleware to this run. Its hooks are called after the hooks of the agent's middlewares. If the agent
    /// or this run already has a middleware with the same id, the run fails.
    #[must_use]
    fn with(self, middleware: impl AgentMiddleware) -> Self;

    /// Streams the answers of this agent's model, and calls a function with each piece.
    ///
    /// The function is also called with the tokens of other models below this run, such as a sub-agent's model, if
    /// those models stream. A listener for `"new_token"` on an agent receives no tokens, because tokens are events of
    /// the model's run. The function is called before output middleware and guards receive the answer.
    #[must_use]
    fn on_token(self, f: impl Fn(&mut crate::NewToken) + Send + Sync + 'static) -> Self;

    /// Continues a session: the model receives the session's history before the input, and the messages of this run are
    /// added to the history.
    #[must_use]
    fn session(self, session: &crate::Session) -> Self;

    /// Asks once: of all runs of the session with this id, in all processes, one adds its input. A run that comes later
    /// goes on with it if it was left unfinished, as [`Agent::resume`] does, and otherwise returns its answer, as its only
    /// message. The answer then passes the output functions of the later run. The session remembers the last 1,000 ids.
    ///
    /// ```
    /// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let script = ScriptedModel::new("test").text("Everest.");
    /// let agent = Agent::builder("guide", ChatModel::new(script)?).build()?;
    /// let session = Session::new();
    /// for _ in 0..2 {
    ///     let answer = agent.ask("The highest mountain?").session(&session).once("tour/1").await?;
    ///     assert_eq!(answer.text(), "Everest.");
    /// }
    /// assert_eq!(session.history().messages().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The run fails without a session, and while the other run is under way: in another process with
    /// [`StoreError::Held`](emitree_middleware::store::StoreError::Held). It also fails if the other run was left without
    /// an answer and a run with another id has begun since, or if its answer was withheld.
    #[must_use]
    fn once(self, id: impl Into<String>) -> Self;
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

    fn once(self, id: impl Into<String>) -> Self {
        self.own_extension(AsksOnce(id.into()))
    }
}
