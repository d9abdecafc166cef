//! Builds emitters with a context, creator, group id, trace or declared events, and the emitters of runs (E3, R2).

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::emitter::context::OwnContext;
use crate::emitter::no_listener_cache::NoListenerCache;
use crate::emitter::run_end::RunEnd;
use crate::emitter::{Node, RunLink};
use crate::event::ExpectedType;
use crate::event::declared::Declared;
use crate::name::check;
use crate::rt::Scope;
use crate::{BuildError, Context, Creator, Emitter, Event, Trace};

/// Builds an emitter. [`Emitter::builder`] and [`Emitter::child_builder`] return this builder.
#[must_use = "nothing is built until `build` is called"]
#[derive(Debug)]
pub struct EmitterBuilder {
    below: Option<(Emitter, Option<String>)>,
    context: Context,
    group_id: Option<Arc<str>>,
    creator: Option<Creator>,
    trace: Option<Trace>,
    declared: Option<Declared>,
}

impl EmitterBuilder {
    pub(crate) const fn new(below: Option<(Emitter, Option<String>)>) -> Self {
        Self { below, context: Context::new(), group_id: None, creator: None, trace: None, declared: None }
    }

    /// Adds keys to the context. They override the same keys of the parent's context.
    pub fn context(mut self, context: impl Into<Context>) -> Self {
        self.context = self.context.merged(&context.into());
        self
    }

    /// Sets the creator of the emitter's events.
    pub fn creator(mut self, creator: Creator) -> Self {
        self.creator = Some(creator);
        self
    }

    /// Sets the group id.
    pub fn group_id(mut self, group_id: impl Into<Arc<str>>) -> Self {
        self.group_id = Some(group_id.into());
        self
    }

    /// Sets the trace of the emitter's events. It takes precedence over the ids of the run that the emitter is in.
    pub const fn trace(mut self, trace: Trace) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Declares an event and its payload type.
    ///
    /// Emitting a declared event with another type fails, and a listener for the exact name or path of a declared event
    /// that takes another type cannot be registered. The same applies to the runs of the emitter. Other events may still
    /// be emitted and listened for. If a listener names an event that is not declared, but differs from a declared name
    /// only in one letter or in two swapped letters, a warning that names the declared event is logged.
    ///
    /// Names with a dot, such as `"run.start"`, are not checked, nor are the events of the emitter's children.
    pub fn declares<T: serde::Serialize + Send + Sync + 'static>(mut self, name: impl Into<String>) -> Self {
        self.declared.get_or_insert_default().add(name.into(), ExpectedType::of::<T>());
        self
    }

    /// Declares an event whose payload type carries its name.
    pub fn declares_event<E: Event>(self) -> Self {
        self.declares::<E>(E::NAME.as_str())
    }

    /// Declares an event as data: its payload can be read, changed and written back as JSON by code that does not know
    /// its type, with [`EventMeta::change_data`](crate::EventMeta::change_data). A redaction, for example, replaces
    /// secrets in all its texts.
    ///
    /// ```
    /// use emitree_emitter::{AnyEvent, BoxError, Emitter, Event, EventMeta, EventName};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Sent { to: String }
    ///
    /// impl Event for Sent {
    ///     const NAME: EventName = EventName::new("sent");
    /// }
    ///
    /// let emitter = Emitter::builder().declares_data::<Sent>().build()?;
    /// emitter.on("*.*", |event: &mut dyn AnyEvent, meta: &EventMeta<'_>| {
    ///     meta.change_data(event, |json| {
    ///         json["to"] = "[hidden]".into();
    ///         true
    ///     })?;
    ///     Ok::<_, BoxError>(())
    /// })?;
    /// let mut sent = Sent { to: "maria".to_owned() };
    /// emitter.emit_event_now(&mut sent)?;
    /// assert_eq!(sent.to, "[hidden]");
    /// # Ok::<(), BoxError>(())
    /// ```
    pub fn declares_data<E: Event + DeserializeOwned>(mut self) -> Self {
        self.declared.get_or_insert_default().add_data::<E>(false);
        self
    }

    /// Declares an event [as data](Self::declares_data), and states that the emitting code filters the text that arrives
    /// in pieces in these events. In a run, the code passes the text through the filters that middleware has added to
    /// the run, and builds the run's output from the same text. Middleware that holds back text in events, which the
    /// output would then lack, refuses such an event; see [`Emitter::filters_text`].
    pub fn declares_text<E: Event + DeserializeOwned>(mut self) -> Self {
        self.declared.get_or_insert_default().add_data::<E>(true);
        self
    }

    /// Creates the emitter.
    ///
    /// # Errors
    ///
    /// Returns an error if a name is not valid, if an event is declared twice or under a name with a dot, or if the
    /// context sets the key `internal`, which is reserved for the runtime.
    pub fn build(self) -> Result<Emitter, BuildError> {
        self.context.refuse_reserved()?;
        self.declared.as_ref().map_or(Ok(()), Declared::check)?;
        let (node, context) = match &self.below {
            None => (Node::root(), self.context),
            Some((parent, namespace)) => {
                namespace.as_deref().map_or(Ok(()), check)?;
                (Node::below(parent, namespace.as_deref()), parent.context().merged(&self.context))
            }
        };
        Ok(Emitter::from_node(with(node, |node| {
            // An emitter with its own creator or trace does not emit for the run above (E4).
            node.emits_for_run &= self.creator.is_none() && self.trace.is_none();
            node.context = OwnContext::new(context);
            if self.group_id.is_some() {
                node.group_id = self.group_id;
            }
            node.creator = self.creator;
            node.trace = self.trace.map(Arc::new);
            node.declared = self.declared.map(Arc::new);
        })))
    }
}

fn with(mut node: Node, change: impl FnOnce(&mut Node)) -> Node {
    change(&mut node);
    node
}

/// The properties of a run's emitter: its parent run, context, ids and scope. Pass them to [`Emitter::for_run`].
#[must_use = "links do nothing until they are passed to `Emitter::for_run`"]
#[derive(Default)]
pub struct RunLinks<'a> {
    parent: Option<&'a Emitter>,
    inherited: Option<Context>,
    context: Context,
    group_id: Option<Arc<str>>,
    creator: Option<Creator>,
    run_id: Option<Uuid>,
    trace: Option<Trace>,
    scope: Option<Weak<dyn Scope>>,
    is_inside: Option<fn(*const ()) -> bool>,
}

impl<'a> RunLinks<'a> {
    /// Creates the properties of a run that was not started in another run.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the emitter of the run in which this run was started. That emitter also receives the run's events.
    pub const fn parent(mut self, parent: &'a Emitter) -> Self {
        self.parent = Some(parent);
        self
    }

    /// Sets the context that the run inherits. Pass the context of the instance, overridden by the context of the
    /// parent run, as both were when the run began. By default, both contexts are read when the emitter is created.
    pub fn inherited(mut self, context: Context) -> Self {
        self.inherited = Some(context);
        self
    }

    /// Sets keys to be added to the inherited context. The added keys override the inherited keys.
    ///
    /// # Errors
    ///
    /// Returns an error if the context sets the key `internal`, which is reserved for the runtime.
    pub fn context(mut self, context: Context) -> Result<Self, BuildError> {
        context.refuse_reserved()?;
        self.context = context;
        Ok(self)
    }

    /// Sets the group id. By default, the run takes the group id of the parent run, or else the group id of the
    /// instance.
    pub fn group_id(mut self, group_id: impl Into<Arc<str>>) -> Self {
        self.group_id = Some(group_id.into());
        self
    }

    /// Sets the creator. By default, the run has the creator of the instance.
    pub fn creator(mut self, creator: Creator) -> Self {
        self.creator = Some(creator);
        self
    }

    /// Sets the id of the run. By default, the id is generated when it is first read.
    pub const fn run_id(mut self, run_id: Uuid) -> Self {
        self.run_id = Some(run_id);
        self
    }

    /// Sets the ids of a run that was begun elsewhere. The emitter then emits events for that run instead of a new run.
    pub const fn trace(mut self, trace: Trace) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Sets the scope that is entered around listeners of the run's events.
    pub fn scope(mut self, scope: Weak<dyn Scope>) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Sets a function that checks, by the address of a scope, whether the calling code is inside that scope. If the
    /// function returns `true`, the scope is not entered again, so that a run emits its own events at a lower cost.
    pub const fn inside_if(mut self, is_inside: fn(*const ()) -> bool) -> Self {
        self.is_inside = Some(is_inside);
        self
    }
}

impl std::fmt::Debug for RunLinks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunLinks").field("parent", &self.parent).finish_non_exhaustive()
    }
}

impl Emitter {
    /// Creates the emitter of one run of the instance that this emitter belongs to.
    ///
    /// The new emitter is a child of this emitter with the same namespace. Its events also reach the emitter of the
    /// parent run.
    #[doc(hidden)]
    #[must_use]
    pub fn for_run(&self, links: RunLinks<'_>) -> Self {
        let inherited = links.inherited.unwrap_or_else(|| match links.parent {
            // The keys of the parent run override the keys of the instance.
            Some(parent) => self.context().merged(&parent.context()),
            None => self.context(),
        });
        let inherited_group = || links.parent.and_then(Self::shared_group_id).or_else(|| self.shared_group_id());
        let group_id = links.group_id.or_else(inherited_group);
        self.node().note_below();
        Self::from_node(Node {
            parent: Some(self.clone()),
            run: Some(RunLink {
                parent: links.parent.cloned(),
                id: links.run_id.map_or_else(OnceLock::new, OnceLock::from),
                scope: links.scope,
                is_inside: links.is_inside,
                end: RunEnd::default(),
            }),
            is_in_run: true,
            emits_for_run: false,
            has_below: AtomicBool::new(false),
            registry: OnceLock::new(),
            no_listener_cache: NoListenerCache::new(),
            namespace: None,
            namespace_hash: self.namespace_hash(),
            context: OwnContext::new(inherited.merged(&links.context)),
            group_id,
            creator: links.creator,
            trace: links.trace.map(Arc::new),
            declared: None,
        })
    }
}

impl From<Value> for Context {
    /// An object becomes the context, and `null` becomes an empty context. Any other value is set under the key
    /// `value`.
    fn from(value: Value) -> Self {
        match value {
            Value::Object(map) => map.into(),
            Value::Null => Self::new(),
            other => Map::from_iter([("value".to_owned(), other)]).into(),
        }
    }
}
