//! The tree: emitters, what they inherit, and what is above them (E1, E3).

pub(crate) mod builder;
pub(crate) mod context;
pub(crate) mod creator;
pub(crate) mod group;
pub(crate) mod id;
pub(crate) mod no_listener_cache;
pub(crate) mod pipe;
pub(crate) mod run_end;
pub(crate) mod scope;

use std::borrow::Cow;
use std::fmt;
use std::iter::successors;
use std::sync::{Arc, OnceLock, Weak};

use uuid::Uuid;

use crate::emitter::context::{OwnContext, RESERVED};
use crate::emitter::no_listener_cache::{NoListenerCache, invalidate, invalidate_in_runs};
use crate::emitter::run_end::RunEnd;
use crate::emitter::scope::drop_within;
use crate::event::declared::Declared;
use crate::name::namespace::{join, join_shared};
use crate::name::{check, fingerprint};
use crate::registry::Registry;
use crate::rt::Scope;
use crate::{AsName, BuildError, Context, Creator, EmitterBuilder, IntoNamespace, NameError, Namespace, Trace};

/// A place where events are emitted and listened to; cheap to clone.
///
/// Emitters form a tree. What is emitted on one is heard by it first, then by its parent, and so on up to the
/// root. Two handles are equal when they are of the same emitter.
///
/// A child holds its parent; a parent holds nothing of its children. An emitter is gone with its last handle, and
/// with it its listeners.
#[derive(Clone)]
pub struct Emitter(Arc<Node>);

pub(crate) struct Node {
    pub(crate) parent: Option<Emitter>,
    pub(crate) run: Option<RunLink>,
    /// Whether it is a run's, or below one in the tree: mostly none is.
    pub(crate) is_in_run: bool,
    /// Whether what is emitted here counts as emitted by the run above: this is a child of a run's emitter without a name, or a child
    /// without a name of such a child.
    pub(crate) emits_for_run: bool,
    /// Made with the first listener.
    pub(crate) registry: OnceLock<Box<Registry>>,
    /// Outside of runs.
    pub(crate) no_listener_cache: NoListenerCache,
    /// If it is not that of what is above it: a run's is its instance's.
    pub(crate) namespace: Option<Arc<str>>,
    pub(crate) namespace_hash: u64,
    pub(crate) context: OwnContext,
    /// As it was given to it, or taken over when it was made; `context` has a later one (E3).
    pub(crate) group_id: Option<Arc<str>>,
    pub(crate) creator: Option<Creator>,
    pub(crate) trace: Option<Arc<Trace>>,
    pub(crate) declared: Option<Arc<Declared>>,
}

/// What makes an emitter a run's.
pub(crate) struct RunLink {
    /// The emitter of the run in which this one was started.
    pub(crate) parent: Option<Emitter>,
    pub(crate) id: OnceLock<Uuid>,
    pub(crate) scope: Option<Weak<dyn Scope>>,
    pub(crate) is_inside: Option<fn(*const ()) -> bool>,
    pub(crate) end: RunEnd,
}

impl RunLink {
    /// Whether one is inside of its scope.
    #[inline]
    fn is_inside(&self) -> bool {
        let inside = self.scope.as_ref().zip(self.is_inside);
        inside.is_some_and(|(scope, is_inside)| is_inside(scope.as_ptr().cast()))
    }
}

impl Emitter {
    /// The process's root emitter.
    #[must_use]
    pub fn root() -> Self {
        static ROOT: OnceLock<Emitter> = OnceLock::new();
        ROOT.get_or_init(Self::new).clone()
    }

    /// The root of an isolated tree.
    #[must_use]
    pub fn new() -> Self {
        Self::from_node(Node::root())
    }

    /// Builds the root of an isolated tree, with context, creator, group id, trace or declared events.
    pub fn builder() -> EmitterBuilder {
        EmitterBuilder::new(None)
    }

    /// Makes a child. Takes one dotted name or several segments: `"backend.chat"`, `["backend", "chat"]`; or `()` for a
    /// child in the same namespace.
    ///
    /// Each call makes another one: of two children of the same name, neither hears the other, and what is above hears both. Keep
    /// it: with its last handle it is gone, and whoever listens there.
    ///
    /// A `()` child of a run's emitter emits the run's own events: a listener of the run or of its instance under `"progress"` or `"*"`
    /// receives what is emitted on the child as if it were emitted on the run. Its listeners receive only what is emitted on it
    /// or below it.
    ///
    /// # Errors
    ///
    /// If the name is not valid.
    pub fn child(&self, namespace: impl IntoNamespace) -> Result<Self, NameError> {
        let namespace = namespace.namespace();
        namespace.as_deref().map_or(Ok(()), check)?;
        Ok(self.child_unchecked(namespace.as_deref()))
    }

    /// Makes a child of a namespace that was checked in a `const`.
    #[must_use]
    pub fn child_of(&self, namespace: Namespace) -> Self {
        self.child_unchecked(Some(namespace.as_str()))
    }

    /// A separate emitter with the same place and properties, but without listeners (E16).
    pub(crate) fn copy_without_listeners(&self) -> Self {
        let (from, mut copy) = (&self.0, Node::root());
        // Of a run that has ended nothing rises: below it, neither does what is emitted on the copy (R14).
        let has_ended = from.run.is_some() && self.has_run_ended();
        copy.parent = if has_ended { Some(self.clone()) } else { from.parent.clone() };
        copy.emits_for_run = from.emits_for_run;
        copy.is_in_run = copy.parent.as_ref().is_some_and(|parent| parent.0.is_in_run);
        copy.namespace.clone_from(&from.namespace);
        copy.namespace_hash = from.namespace_hash;
        copy.context = OwnContext::new(self.context());
        copy.group_id = self.shared_group_id();
        copy.creator.clone_from(&from.creator);
        copy.trace = self.trace().map(Arc::new);
        copy.declared = self.declared().cloned();
        Self::from_node(copy)
    }

    fn child_unchecked(&self, namespace: Option<&str>) -> Self {
        let mut node = Node::below(self, namespace);
        node.context = OwnContext::new(self.context());
        Self::from_node(node)
    }

    /// Makes a child in the same namespace, for a creator.
    #[must_use]
    pub fn child_with(&self, creator: Creator) -> Self {
        let mut node = Node::below(self, None);
        node.context = OwnContext::new(self.context());
        node.creator = Some(creator);
        node.emits_for_run = false;
        Self::from_node(node)
    }

    /// Builds a child with a context, creator, group id, trace or declared events of its own.
    ///
    /// A `()` child of a run's emitter emits the run's own events, as one made by [`child`](Self::child) does, unless it is given a creator
    /// or a trace.
    pub fn child_builder(&self, namespace: impl IntoNamespace) -> EmitterBuilder {
        EmitterBuilder::new(Some((self.clone(), namespace.namespace().map(Cow::into_owned))))
    }

    pub(crate) fn from_node(node: Node) -> Self {
        Self(Arc::new(node))
    }

    /// The names of the emitters from the root down to this one, joined by dots. Empty for a root.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.shared_namespace().map_or("", |namespace| namespace)
    }

    /// The path that an event of that name would have here.
    ///
    /// # Errors
    ///
    /// If the name is not valid.
    pub fn path_of(&self, name: impl AsName) -> Result<String, NameError> {
        let name = name.as_name();
        name.check()?;
        Ok(self.join(name.as_str()))
    }

    /// The emitter above it in the tree.
    #[must_use]
    pub fn parent(&self) -> Option<&Self> {
        self.0.parent.as_ref()
    }

    /// Who emits here, as given to this emitter or to the nearest above it.
    #[must_use]
    pub fn creator(&self) -> Option<&Creator> {
        self.upwards().find_map(|emitter| emitter.0.creator.as_ref())
    }

    /// What every event emitted here carries.
    #[must_use]
    pub fn context(&self) -> Context {
        self.0.context.get()
    }

    /// Sets a key of the context, for later events and for children and runs made later.
    ///
    /// # Errors
    ///
    /// If the key is the one that belongs to the runtime, `internal`.
    pub fn set_context(&self, key: impl Into<String>, value: impl Into<serde_json::Value>) -> Result<(), BuildError> {
        let (key, value) = (key.into(), value.into());
        if key == RESERVED {
            return Err(BuildError::ReservedKey(RESERVED));
        }
        let value = match self.scope() {
            Some(scope) => scope.admit(&key, value),
            None => value,
        };
        self.0.context.set(key, value);
        Ok(())
    }

    /// The group it belongs to, as given to it; else that of the run that its run was started in, or of its parent, when it was
    /// made.
    #[must_use]
    pub fn group_id(&self) -> Option<&str> {
        self.group().map(|id| &**id)
    }

    fn group(&self) -> Option<&Arc<str>> {
        self.0.context.group().or(self.0.group_id.as_ref())
    }

    /// The same, to be kept.
    #[must_use]
    pub fn shared_group_id(&self) -> Option<Arc<str>> {
        self.group().cloned()
    }

    /// Sets the group, for later events and for children and runs made later. The emitter keeps the earlier ids until it is
    /// dropped.
    pub fn set_group_id(&self, group_id: impl Into<Arc<str>>) {
        self.0.context.set_group(group_id.into());
    }

    /// The run that events emitted here happen in: the run it belongs to, or what was given to it or above it.
    #[must_use]
    pub fn trace(&self) -> Option<Trace> {
        let run = self.trace_source()?;
        if let TraceSource::Given(trace) = run {
            return Some(*trace);
        }
        let mut above = successors(run.above(), TraceSource::above);
        let run_id = run.run_id();
        let parent = above.next();
        let top = above.last().or(parent);
        Some(Trace { id: top.map_or(run_id, TraceSource::id), run_id, parent_run_id: parent.map(TraceSource::run_id) })
    }

    /// What says in which run one is here.
    fn trace_source(&self) -> Option<TraceSource<'_>> {
        self.upwards().find_map(|emitter| {
            let given = emitter.0.trace.as_deref().map(TraceSource::Given);
            given.or_else(|| emitter.0.run.as_ref().map(|run| TraceSource::Run(run, emitter.parent())))
        })
    }

    /// This emitter and those above it in the tree.
    #[inline]
    pub(crate) fn upwards(&self) -> impl Iterator<Item = &Self> {
        successors(Some(self), |emitter| emitter.parent())
    }

    pub(crate) fn node(&self) -> &Node {
        &self.0
    }

    pub(crate) fn downgrade(&self) -> Weak<Node> {
        Arc::downgrade(&self.0)
    }

    /// None for a root, and what is below it in no namespace of its own.
    #[inline]
    pub(crate) fn shared_namespace(&self) -> Option<&Arc<str>> {
        self.upwards().find_map(|emitter| emitter.0.namespace.as_ref())
    }

    pub(crate) fn namespace_hash(&self) -> u64 {
        self.0.namespace_hash
    }

    /// Namespace and name, joined by a dot.
    pub(crate) fn join(&self, name: &str) -> String {
        join(self.namespace(), name)
    }

    /// Whether namespace and name, joined, are that path.
    pub(crate) fn joins_to(&self, name: &str, path: &str) -> bool {
        let rest = path.strip_suffix(name);
        match (self.namespace(), rest) {
            ("", Some("")) => true,
            (namespace, Some(rest)) => rest.strip_suffix('.') == Some(namespace) && !namespace.is_empty(),
            (_, None) => false,
        }
    }

    /// The listeners registered here; none if there never were any.
    #[inline]
    pub(crate) fn registry(&self) -> Option<&Registry> {
        self.0.registry.get().map(|registry| &**registry)
    }

    /// Somebody was registered here: whoever has found nobody looks again (E15).
    pub(crate) fn invalidate(&self) {
        if self.0.is_in_run { invalidate_in_runs() } else { invalidate() }
    }

    /// The nearest run's emitter from here up the tree.
    #[inline]
    pub(crate) fn run(&self) -> Option<&Self> {
        self.upwards().take_while(|emitter| emitter.0.is_in_run).find(|emitter| emitter.0.run.is_some())
    }

    /// The emitter of the run in which the run was started whose emitter this is.
    #[inline]
    #[must_use]
    pub fn run_parent(&self) -> Option<&Self> {
        self.0.run.as_ref()?.parent.as_ref()
    }

    /// Tells whether this is the emitter of a run of the instance that the other emitter belongs to.
    #[inline]
    #[must_use]
    pub fn is_run_of(&self, instance: &Self) -> bool {
        self.0.run.is_some() && self.parent() == Some(instance)
    }

    /// Tells whether what is emitted here counts as emitted by a run whose emitter the other one is, or whose instance's (E4).
    #[inline]
    pub(crate) fn emits_for(&self, other: &Self) -> bool {
        self.0.emits_for_run && self.run().is_some_and(|run| run == other || run.is_run_of(other))
    }

    /// What makes `RunContext::current()` right in listeners of its run's events (R9).
    pub(crate) fn scope(&self) -> Option<Arc<dyn Scope>> {
        self.run_link()?.scope.as_ref()?.upgrade()
    }

    /// The same, unless one is inside of it already: mostly it is the run that emits.
    #[inline]
    pub(crate) fn scope_to_enter(&self) -> Option<Arc<dyn Scope>> {
        self.run_link().filter(|run| !run.is_inside())?.scope.as_ref()?.upgrade()
    }

    /// What is entered to go on with an emit that is under way, and to drop what belongs to its run, unless one is inside of it
    /// already: the run, or where that is gone, the next one above.
    pub(crate) fn scope_left(&self) -> Option<Arc<dyn Scope>> {
        let own = self.run_link().filter(|run| !run.is_inside())?;
        let runs = successors(Some(own), |run| run.parent.as_ref()?.run_link());
        runs.filter_map(|run| run.scope.as_ref()?.upgrade()).find(|scope| scope.is_there())
    }

    #[inline]
    pub(crate) fn run_link(&self) -> Option<&RunLink> {
        self.upwards().take_while(|emitter| emitter.0.is_in_run).find_map(|emitter| emitter.0.run.as_ref())
    }

    /// The declarations that hold here.
    #[inline]
    pub(crate) fn declared(&self) -> Option<&Arc<Declared>> {
        let declares = if self.0.is_in_run { self.declares_in_run() } else { self };
        declares.0.declared.as_ref()
    }

    /// Whether it is a run's emitter, or below one in the tree.
    #[inline]
    pub(crate) fn is_in_run(&self) -> bool {
        self.0.is_in_run
    }

    /// A run's are its instance's, and those of what emits for a run are the run's, unless it has its own.
    #[inline(never)]
    fn declares_in_run(&self) -> &Self {
        let emits_for_run = self.0.emits_for_run && self.0.declared.is_none();
        let declares = if emits_for_run { self.run().unwrap_or(self) } else { self };
        if declares.0.run.is_none() { declares } else { declares.parent().unwrap_or(declares) }
    }
}

impl Node {
    pub(crate) fn root() -> Self {
        Self {
            parent: None,
            run: None,
            is_in_run: false,
            emits_for_run: false,
            registry: OnceLock::new(),
            no_listener_cache: NoListenerCache::new(),
            namespace: None,
            namespace_hash: 0,
            context: OwnContext::default(),
            group_id: None,
            creator: None,
            trace: None,
            declared: None,
        }
    }

    /// Drops the listeners of an emitter that is in a run inside of that run. They do not find it by their home, which is gone; a
    /// run's own emitter has none any more.
    fn drop_in_run(&mut self) {
        let Some(parent) = self.parent.as_ref().filter(|_| self.is_in_run && self.run.is_none()) else { return };
        let mut registry = self.registry.take();
        if registry.is_some() {
            drop_within(parent.scope_left(), || drop(registry.take()));
        }
    }

    /// Lets go of what is above it; adds what nobody else holds.
    fn detach(&mut self, orphans: &mut Vec<Self>) {
        self.drop_in_run();
        if let Some(run_parent) = self.run.as_mut().and_then(|run| run.parent.take()) {
            orphans.extend(Arc::into_inner(run_parent.0));
        }
        if let Some(parent) = self.parent.take() {
            orphans.extend(Arc::into_inner(parent.0));
        }
    }

    /// An emitter below another, in a namespace of its own or in the same. Its context is still empty.
    pub(crate) fn below(parent: &Emitter, namespace: Option<&str>) -> Self {
        let mut node = Self::root();
        node.group_id = parent.shared_group_id();
        node.parent = Some(parent.clone());
        node.is_in_run = parent.0.is_in_run;
        node.emits_for_run = namespace.is_none() && (parent.0.run.is_some() || parent.0.emits_for_run);
        node.namespace = namespace.map(|namespace| join_shared(parent.namespace(), namespace));
        node.namespace_hash = match &node.namespace {
            Some(namespace) => fingerprint(namespace.as_bytes()),
            None => parent.namespace_hash(),
        };
        node
    }
}

/// What says in which run one is: a trace that was given, or a run of an instance.
#[derive(Clone, Copy)]
enum TraceSource<'a> {
    Given(&'a Trace),
    Run(&'a RunLink, Option<&'a Emitter>),
}

impl<'a> TraceSource<'a> {
    /// What says in which run that run is. None above a trace that was given: it says all.
    fn above(&self) -> Option<Self> {
        match *self {
            Self::Given(_) => None,
            Self::Run(run, instance) => run.parent.as_ref().or(instance).and_then(Emitter::trace_source),
        }
    }

    fn run_id(self) -> Uuid {
        match self {
            Self::Given(trace) => trace.run_id,
            Self::Run(run, _) => *run.id.get_or_init(id::new_id),
        }
    }

    /// Of the trace, if nothing is above it.
    fn id(self) -> Uuid {
        match self {
            Self::Given(trace) => trace.id,
            Self::Run(..) => self.run_id(),
        }
    }
}

/// A chain of a million emitters is taken down link by link, not by recursion.
impl Drop for Node {
    fn drop(&mut self) {
        let mut orphans = Vec::new();
        self.detach(&mut orphans);
        while let Some(mut orphan) = orphans.pop() {
            orphan.detach(&mut orphans);
        }
    }
}

impl Default for Emitter {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Arc<Node>> for Emitter {
    fn from(node: Arc<Node>) -> Self {
        Self(node)
    }
}

impl PartialEq for Emitter {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Emitter {}

impl std::hash::Hash for Emitter {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Debug for Emitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emitter")
            .field("namespace", &self.namespace())
            .field("listeners", &self.listener_count())
            .finish_non_exhaustive()
    }
}
