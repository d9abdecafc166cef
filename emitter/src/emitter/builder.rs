//! Emitters with more than a name: context, creator, group, trace, declared events, or a run (E3).

use std::sync::{Arc, OnceLock, Weak};

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

/// Builds an emitter. Made by [`Emitter::builder`] and [`Emitter::child_builder`].
#[must_use = "nothing is made before `build`"]
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

    /// Lays keys over the parent's context.
    pub fn context(mut self, context: impl Into<Context>) -> Self {
        self.context = self.context.merged(&context.into());
        self
    }

    /// Says who emits.
    pub fn creator(mut self, creator: Creator) -> Self {
        self.creator = Some(creator);
        self
    }

    /// Sets the group.
    pub fn group_id(mut self, group_id: impl Into<Arc<str>>) -> Self {
        self.group_id = Some(group_id.into());
        self
    }

    /// Sets the trace that events emitted here, outside of a run, belong to.
    pub const fn trace(mut self, trace: Trace) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Declares an event. An emitter that declares events refuses listeners and emits of others (E7).
    pub fn declares<T: serde::Serialize + Send + Sync + 'static>(mut self, name: impl Into<String>) -> Self {
        self.declared.get_or_insert_default().add(name.into(), ExpectedType::of::<T>());
        self
    }

    /// Declares an event that carries its name.
    pub fn declares_event<E: Event>(self) -> Self {
        self.declares::<E>(E::NAME.as_str())
    }

    /// Makes the emitter.
    ///
    /// # Errors
    ///
    /// If a name is not valid, or the context sets the runtime's key.
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
            // Somebody else, or another run, emits for itself.
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

/// What a runtime says of a run when it makes the run's emitter.
#[must_use = "nothing is made before `Emitter::for_run`"]
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
    /// A run that was started in no other.
    pub fn new() -> Self {
        Self::default()
    }

    /// The emitter of the run that it was started in, which hears it too.
    pub const fn parent(mut self, parent: &'a Emitter) -> Self {
        self.parent = Some(parent);
        self
    }

    /// The instance's context with the parent run's over it, where they were looked at before, when the run began: else they
    /// are as they are now.
    pub fn inherited(mut self, context: Context) -> Self {
        self.inherited = Some(context);
        self
    }

    /// Keys laid over the instance's context and the parent run's.
    ///
    /// # Errors
    ///
    /// If the context sets the runtime's key.
    pub fn context(mut self, context: Context) -> Result<Self, BuildError> {
        context.refuse_reserved()?;
        self.context = context;
        Ok(self)
    }

    /// The group, if not the parent run's or the instance's.
    pub fn group_id(mut self, group_id: impl Into<Arc<str>>) -> Self {
        self.group_id = Some(group_id.into());
        self
    }

    /// Who runs, if not the instance's creator.
    pub fn creator(mut self, creator: Creator) -> Self {
        self.creator = Some(creator);
        self
    }

    /// The run's id, where it has been told already: else it is made when it is first asked for.
    pub const fn run_id(mut self, run_id: Uuid) -> Self {
        self.run_id = Some(run_id);
        self
    }

    /// The ids, where it is not a new run that is to be heard, but one that has begun elsewhere: what speaks for that
    /// run on an instance of its own emits with them.
    pub const fn trace(mut self, trace: Trace) -> Self {
        self.trace = Some(trace);
        self
    }

    /// What is entered around the listeners of the run's events.
    pub fn scope(mut self, scope: Weak<dyn Scope>) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Tells, of the address of a scope, whether one is inside of it. Then it is not entered again: who emits in its own
    /// run pays for no handle.
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
    /// Makes the emitter of one run of the instance that this emitter belongs to (R2): a child with the same
    /// namespace, heard by the parent run's emitter too.
    #[must_use]
    pub fn for_run(&self, links: RunLinks<'_>) -> Self {
        let inherited = links.inherited.unwrap_or_else(|| match links.parent {
            Some(parent) => self.context().merged(&parent.context()),
            None => self.context(),
        });
        let inherited_group = || links.parent.and_then(Self::shared_group_id).or_else(|| self.shared_group_id());
        let group_id = links.group_id.or_else(inherited_group);
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
    /// An object is taken as it is; anything else becomes the value of the key `value`.
    fn from(value: Value) -> Self {
        match value {
            Value::Object(map) => map.into(),
            Value::Null => Self::new(),
            other => Map::from_iter([("value".to_owned(), other)]).into(),
        }
    }
}
