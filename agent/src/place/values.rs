//! The key-value store of an agent, and the layers around its reads and writes.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::json::to_value_exact;
use emitree_middleware::values::{KeyValues, MemoryValues, ValueKey};
use emitree_runtime::{Op, Result, RunContext, Stack};
use serde::Serialize;
use serde_json::Value;

use crate::place::built::Built;

/// The reading of a value from an agent's store: a kind of work that layers can wrap, from a key to its value.
/// [`Hooks::values_read`](crate::Hooks::values_read) registers layers.
#[derive(Debug)]
pub struct ReadValue;

impl Op for ReadValue {
    type In = ValueKey;
    type Out = Option<Value>;

    fn name() -> &'static str {
        "values.read"
    }
}

/// The writing or removal of a value in an agent's store: a kind of work that layers can wrap.
/// [`Hooks::values_write`](crate::Hooks::values_write) registers layers.
#[derive(Debug)]
pub struct WriteValue;

impl Op for WriteValue {
    type In = Change;
    type Out = Written;

    fn name() -> &'static str {
        "values.write"
    }
}

/// A change to an agent's store: the input of [`WriteValue`].
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Change {
    /// The key.
    pub key: ValueKey,
    /// The value that the key gets. `None` removes its value.
    pub value: Option<Value>,
}

impl Change {
    /// Makes a change that sets the value of a key, or with `None` removes it.
    #[must_use]
    pub const fn new(key: ValueKey, value: Option<Value>) -> Self {
        Self { key, value }
    }
}

/// Shows the key only, because values may be secret.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.value.is_some() { "Write" } else { "Remove" };
        f.debug_tuple(name).field(&self.key).finish()
    }
}

/// The outcome of a [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Written {
    /// The store has the change, as the layers passed it on.
    Stored,
    /// A layer dropped the change. The store keeps the value from before.
    Skipped,
}

/// The key-value store of the nearest agent, as seen from one run. Returned by
/// [`AgentContext::values`](crate::AgentContext::values).
///
/// Reads pass the layers of [`Hooks::values_read`](crate::Hooks::values_read). Writes and removals pass the layers of
/// [`Hooks::values_write`](crate::Hooks::values_write). The layers receive the context of the run that asked for the
/// store. The builder's layers come first, then the layers of the agent's middlewares, of the inherited middlewares,
/// and of the run's middlewares, sorted by phase.
///
/// The store belongs to the program, not to the session: a discarded attempt does not take its writes back. The keys
/// that a layer changes are the keys in the store, so [`keys`](Self::keys) returns them as changed.
///
/// ```
/// use emitree_agent::values::Written;
/// use emitree_agent::{Agent, AgentContext, ChatModel, ScriptedModel, tool_fn};
/// use emitree_middleware::values::{KeyValues, MemoryValues, ValueKey};
/// use emitree_runtime::RunContext;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Note { text: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let note = tool_fn("note", "Keeps a note", |note: Note, ctx: RunContext| async move {
///     let written = ctx.values()?.write(&ValueKey::new(["note"])?, note.text).await?;
///     Ok(if written == Written::Stored { "kept" } else { "not kept" })
/// });
/// let store = MemoryValues::new();
/// let model = ScriptedModel::new("test").call("note", json!({"text": "Buy milk."})).text("Noted.");
/// let agent = Agent::builder("clerk", ChatModel::new(model)?).tool(note).values(store.clone()).build()?;
/// agent.ask("Note that I need milk.").await?;
/// assert_eq!(store.read(&ValueKey::new(["note"])?).await?, Some(json!("Buy milk.")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Values {
    layered: LayeredValues,
    ctx: RunContext,
}

impl Values {
    pub(crate) const fn new(layered: LayeredValues, ctx: RunContext) -> Self {
        Self { layered, ctx }
    }

    /// Returns the value of a key, or `None` if it has none.
    ///
    /// # Errors
    ///
    /// Returns the error of the store or of a layer, for example the denial of a guard.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the layers and the store's future.
    pub async fn read(&self, key: &ValueKey) -> Result<Option<Value>> {
        let LayeredValues { store, read, .. } = &self.layered;
        read.call_with(key, &self.ctx, &**store, |store, key, _| store.read(key)).await
    }

    /// Sets the value of a key, and replaces an earlier value. Returns [`Written::Skipped`] if a layer dropped the
    /// change.
    ///
    /// # Errors
    ///
    /// Returns an error with a path if the value contains a NaN or an infinity, and the error of the store or of a layer,
    /// for example the denial of a guard.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store either has the change or does not have it.
    pub async fn write(&self, key: &ValueKey, value: impl Serialize + Send) -> Result<Written> {
        let value = to_value_exact(&value)?;
        self.change(Change::new(key.clone(), Some(value))).await
    }

    /// Removes the value of a key, if it has one, as [`write`](Self::write) sets it.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub async fn remove(&self, key: &ValueKey) -> Result<Written> {
        self.change(Change::new(key.clone(), None)).await
    }

    async fn change(&self, change: Change) -> Result<Written> {
        let LayeredValues { store, write, .. } = &self.layered;
        let apply = async |store: &dyn KeyValues, change: &Change| {
            match &change.value {
                Some(value) => store.write(&change.key, value).await?,
                None => store.remove(&change.key).await?,
            }
            Ok(Written::Stored)
        };
        write.call_with(&change, &self.ctx, &**store, |store, change, _| Box::pin(apply(store, change))).await
    }

    /// Returns the keys in the store as [`KeyValues::keys`] does. Layers are not called.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    pub async fn keys(&self, prefix: Option<&ValueKey>) -> Result<Vec<ValueKey>> {
        self.layered.store.keys(prefix).await
    }
}

/// A store, and the layers around it.
#[derive(Clone, Debug)]
pub(crate) struct LayeredValues {
    store: Arc<dyn KeyValues>,
    read: Stack<ReadValue>,
    write: Stack<WriteValue>,
}

impl LayeredValues {
    /// Wraps a store into the layers of middlewares, in their order.
    pub(crate) fn new<'a>(store: Arc<dyn KeyValues>, middlewares: impl IntoIterator<Item = &'a Built>) -> Self {
        let none = Self { store, read: Stack::default(), write: Stack::default() };
        none.with_layers(middlewares)
    }

    /// Adds the layers of further middlewares. Copies nothing but three pointers if they have none.
    pub(crate) fn with_layers<'a>(&self, middlewares: impl IntoIterator<Item = &'a Built>) -> Self {
        let mut layered = self.clone();
        for hooks in middlewares {
            if !hooks.values_read.is_empty() {
                layered.read = Stack::builder().stack(&layered.read).stack(&hooks.values_read).build();
            }
            if !hooks.values_write.is_empty() {
                layered.write = Stack::builder().stack(&layered.write).stack(&hooks.values_write).build();
            }
        }
        layered
    }
}

impl Default for LayeredValues {
    fn default() -> Self {
        Self::new(Arc::new(MemoryValues::new()), [])
    }
}
