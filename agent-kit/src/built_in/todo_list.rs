//! A list of what an agent has to do, which the model writes: [`TodoList`].

use emitree_emitter::{Emitter, Event, EventName, Namespace};
use emitree_middleware::own_events::{OwnEvents, UserTexts};
use emitree_runtime::{Result, RunContext, Summary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use emitree_agent::{AgentMiddleware, Batch, Hooks, Session, State, Tool, ToolError, tool_fn};

/// The id of the middleware, and the key of its state.
const ID: &str = "todo_list";

/// The name of the tool.
const TOOL: &str = "write_todos";

const PROMPT: &str = "For a task with three or more steps, keep a list with the tool `write_todos`: write the steps \
                      before you begin, set a step to `in_progress` when you begin it, and to `completed` as soon as \
                      it is done. Each call writes the whole list. Do not use the list for simple tasks.";

/// Gives the model a tool, `write_todos`, with which it plans the steps of a long task and keeps track of them.
///
/// Each call of the tool replaces the whole list. If the model calls the tool several times in one turn, only the last
/// call is executed. A part of the system prompt tells the model when to use the tool.
///
/// ```
/// use emitree_agent_kit::built_in::{TodoList, TodoState};
/// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let todos = json!([{"text": "Read", "state": "completed"}, {"text": "Write", "state": "pending"}]);
/// let script = ScriptedModel::new("test").call("write_todos", json!({"todos": todos})).text("I have read.");
/// let agent = Agent::builder("author", ChatModel::new(script)?).with(TodoList::new()).build()?;
///
/// let session = Session::new();
/// agent.ask("Read, then write.").session(&session).await?;
/// let open: Vec<_> = TodoList::of(&session)?.into_iter().filter(|todo| todo.state != TodoState::Completed).collect();
/// assert_eq!(open[0].text, "Write");
/// # Ok(())
/// # }
/// ```
///
/// # What it remembers
///
/// The list, in the session ([`TodoList::of`]). Each agent below that gets the middleware by `for_tree(joins(…))` has a
/// list of its own, because it has a session of its own. A discarded attempt takes its changes of the list back.
///
/// # Its own events
///
/// `middleware.todo_list.todos`, a [`TodosWritten`], on the run of the tool, and so on the agent's run above, after each
/// call.
///
/// # Order
///
/// The gate that denies all calls of a turn but the last sees the calls as earlier gates left them.
///
/// # When it fails
///
/// A call with arguments that do not fit is answered with an error for the model, and the list stays. If a stored
/// session has something else under the id `todo_list`, each call is answered with that error.
#[derive(Clone, Debug)]
pub struct TodoList(OwnEvents);

/// A step of a [`TodoList`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Todo {
    /// The step, in a few words.
    pub text: String,
    /// The state of the step.
    pub state: TodoState,
}

/// The state of a [`Todo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TodoState {
    /// The step has not begun.
    Pending,
    /// The step has begun.
    InProgress,
    /// The step is done.
    Completed,
}

/// The event `middleware.todo_list.todos`: the model has written the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TodosWritten {
    /// The list before the call.
    pub before: Vec<Todo>,
    /// The list that the call wrote.
    pub after: Vec<Todo>,
}

impl Event for TodosWritten {
    const NAME: EventName = EventName::new("todos");
}

impl UserTexts for TodosWritten {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.before.iter_mut().chain(&mut self.after).for_each(|todo| change(&mut todo.text));
    }
}

#[derive(Deserialize, JsonSchema)]
struct Todos {
    /// All steps, in order.
    todos: Vec<Todo>,
}

impl TodoList {
    /// Creates the middleware.
    #[must_use]
    pub fn new() -> Self {
        Self(OwnEvents::new(Namespace::new("middleware.todo_list")))
    }

    /// Returns the list of a session, which is empty if the model has written none.
    ///
    /// # Errors
    ///
    /// As for [`Session::state`].
    pub fn of(session: &Session) -> Result<Vec<Todo>> {
        session.state(ID).map(Option::unwrap_or_default)
    }

    /// Returns the emitter of the middleware's own events, for listeners that receive the events of all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.0.emitter()
    }

    fn tool(&self, list: State<Vec<Todo>>) -> Result<Tool, ToolError> {
        let events = self.0.clone();
        tool_fn(TOOL, "Writes the list of the steps of your task.", move |Todos { todos }, ctx: RunContext| {
            let list = list.clone();
            let events = events.clone();
            async move {
                let before = list.with(&ctx, |list| std::mem::replace(list, todos.clone()))?;
                let written = written(&todos);
                events.emit(&ctx, || TodosWritten { before, after: todos }).await;
                Ok(written)
            }
        })
    }
}

impl Default for TodoList {
    fn default() -> Self {
        Self::new()
    }
}

impl AgentMiddleware for TodoList {
    fn id(&self) -> &str {
        ID
    }

    fn system_prompt(&self) -> Option<String> {
        Some(PROMPT.to_owned())
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let list = hooks.state();
        hooks.tool(self.tool(list));
        hooks.on_gate(|batch, _| keep_last(batch));
        Ok(())
    }

    fn debug_summary(&self) -> Summary {
        ID.into()
    }
}

/// Denies all calls of the tool but the last: the calls of a turn run concurrently, so another call could be the last to
/// write.
fn keep_last(batch: &mut Batch) {
    let mut calls: Vec<_> = batch.open().filter(|gated| gated.call.name == TOOL).collect();
    calls.pop();
    calls.into_iter().for_each(|gated| gated.deny(ID, "a later call of this turn writes the list"));
}

/// Returns the result that the model receives.
fn written(todos: &[Todo]) -> String {
    let completed = todos.iter().filter(|todo| todo.state == TodoState::Completed).count();
    format!("steps: {}, completed: {completed}", todos.len())
}
