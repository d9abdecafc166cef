//! The tree of emitters: parents, inherited properties, and runs.
//!
//! To emit an event, [`dispatch`](crate::dispatch) walks up the tree from an emitter and calls the listeners in each
//! [`registry`](crate::registry). The submodules hold the parts of an emitter (namespace, context, group, creator,
//! pipes); `scope` and `run_end` belong to the emitters of runs.

pub(crate) mod builder;
pub(crate) mod context;
pub(crate) mod creator;
pub(crate) mod group;
pub(crate) mod id;
pub(crate) mod namespace;
pub(crate) mod no_listener_cache;
pub(crate) mod pipe;
pub(crate) mod run_end;
pub(crate) mod scope;
pub(crate) mod unreached;

use std::borrow::Cow;
use std::fmt;
use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use uuid::Uuid;

use crate::emitter::context::{OwnContext, RESERVED};
use crate::emitter::namespace::OwnNamespace;
use crate::emitter::no_listener_cache::{NoListenerCache, invalidate, invalidate_in_runs};
use crate::emitter::run_end::RunEnd;
use crate::emitter::scope::drop_within;
use crate::event::declared::Declared;
use crate::name::check;
use crate::registry::Registry;
use crate::rt::Scope;
use crate::{AsName, BuildError, Context, Creator, EmitterBuilder, IntoNamespace, NameError, Namespace, Trace};

/// A tree node on which events are emitted and listeners are registered.
///
/// An event is delivered to the emitter it is emitted on, then to the parent, and so on up to the root.
///
/// Cloning an emitter is cheap, and returns another handle to the same node. Two handles are equal if they belong to
/// the same node. A child keeps its parent alive, but a parent does not keep its children alive. Dropping the last
/// handle to an emitter drops the emitter and its listeners.
///
/// ```
/// use emitree_emitter::Emitter;
///
/// let app = Emitter::new();
/// let model = app.child("model")?;
/// app.on("model.new_token", |token: &mut String, _| token.make_ascii_uppercase())?;
///
/// let mut token = "to".to_owned();
/// model.emit_now("new_token", &mut token)?;
/// assert_eq!(token, "TO");
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Order
///
/// An event first reaches the emitter on which it is emitted. It then reaches, in this order, the emitter's parent in
/// the tree, the emitter of the parent run, and the target of each of the emitter's pipes. From each of these emitters,
/// it goes on in the same way before it reaches the next one. If several ways lead to an emitter, only the last way
/// counts, so each emitter receives an event at most once.
///
/// On one emitter, listeners are called by priority, highest first, and then in the order of registration. All
/// listeners that may change an event are called before all observers. The last events of a run whose future was
/// dropped are an exception: all sync listeners and observers are called before the async ones.
#[derive(Clone)]
pub struct Emitter(Arc<Node>);

/// The shared part of an [`Emitter`].
pub(crate) struct Node {
    pub(crate) parent: Option<Emitter>,
    pub(crate) run: Option<RunLink>,
    /// `true` for the emitter of a run, and for every emitter below it in the tree.
    pub(crate) is_in_run: bool,
    /// `true` if events emitted here count as emitted by the run above (E4). This applies to a `()` child of a run's
    /// emitter, and to a `()` child of such a child. A child with its own creator or trace is an exception.
    pub(crate) emits_for_run: bool,
    /// `true` once a child or the emitter of a run was made below this emitter.
    pub(crate) has_below: AtomicBool,
    /// Allocated with the first listener or pipe.
    pub(crate) registry: OnceLock<Box<Registry>>,
    /// Only used outside runs.
    pub(crate) no_listener_cache: NoListenerCache,
    /// `None` for a root, and for an emitter that has the namespace of its parent, such as the emitter of a run.
    pub(crate) namespace: Option<OwnNamespace>,
    pub(crate) namespace_hash: u64,
    pub(crate) context: OwnContext,
    /// The group id that was set or inherited when the emitter was created (E3). A group id that is set later is in
    /// `context`.
    pub(crate) group_id: Option<Arc<str>>,
    pub(crate) creator: Option<Creator>,
    pub(crate) trace: Option<Arc<Trace>>,
    pub(crate) declared: Option<Arc<Declared>>,
}

/// The part of a [`Node`] that only the emitter of a run has.
pub(crate) struct RunLink {
    /// The emitter of the run in which this run was started.
    pub(crate) parent: Option<Emitter>,
    pub(crate) id: OnceLock<Uuid>,
    pub(crate) scope: Option<Weak<dyn Scope>>,
    pub(crate) is_inside: Option<fn(*const ()) -> bool>,
    pub(crate) end: RunEnd,
}

impl RunLink {
    /// Returns `true` if the calling code runs inside the scope of this run.
    #[inline]
    fn is_inside(&self) -> bool {
        let inside = self.scope.as_ref().zip(self.is_inside);
        inside.is_some_and(|(scope, is_inside)| is_inside(scope.as_ptr().cast()))
    }
}

impl Emitter {
    /// Returns the root emitter of the process.
    #[must_use]
    pub fn root() -> Self {
        static ROOT: OnceLock<Emitter> = OnceLock::new();
        ROOT.get_or_init(Self::new).clone()
    }

    /// Creates the root of a separate tree.
    #[must_use]
    pub fn new() -> Self {
        Self::from_node(Node::root())
    }

    /// Returns a builder for the root of a separate tree with a context, creator, group id, trace or declared events.
    pub fn builder() -> EmitterBuilder {
        EmitterBuilder::new(None)
    }

    /// Creates a child.
    ///
    /// The namespace is one dotted name or several segments, `"backend.chat"` or `["backend", "chat"]`. With `()`, the
    /// child has the namespace of its parent.
    ///
    /// Each call creates another emitter, even for the same name. Two such children do not receive each other's events,
    /// and the parent receives the events of both. Keep the child as long as you need its listeners.
    ///
    /// A `()` child of a run's emitter emits the run's own events. A listener for `"progress"` or `"*"` on the run or
    /// its instance receives an event of the child as if the run had emitted it. Listeners on the child receive only
    /// events emitted on the child or below it.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is not valid.
    ///
    /// # Examples
    ///
    /// ```
    /// use emitree_emitter::Emitter;
    ///
    /// let backend = Emitter::new().child("backend")?;
    /// let chat = backend.child("chat")?;
    /// assert_eq!(chat.namespace(), "backend.chat");
    /// assert_eq!(chat.parent(), Some(&backend));
    /// # Ok::<(), emitree_emitter::NameError>(())
    /// ```
    pub fn child(&self, namespace: impl IntoNamespace) -> Result<Self, NameError> {
        let namespace = namespace.namespace();
        namespace.as_deref().map_or(Ok(()), check)?;
        Ok(self.child_unchecked(namespace.as_deref()))
    }

    /// Creates a child in a namespace that was checked in a `const`.
    #[must_use]
    pub fn child_of(&self, namespace: Namespace) -> Self {
        self.child_unchecked(Some(namespace.as_str()))
    }

    fn child_unchecked(&self, namespace: Option<&str>) -> Self {
        let mut node = Node::below(self, namespace);
        node.context = OwnContext::new(self.context());
        Self::from_node(node)
    }

    /// Creates a child in the same namespace with its own creator.
    #[must_use]
    pub fn child_with(&self, creator: Creator) -> Self {
        let mut node = Node::below(self, None);
        node.context = OwnContext::new(self.context());
        node.creator = Some(creator);
        // A child with its own creator does not emit for the run above (E4).
        node.emits_for_run = false;
        Self::from_node(node)
    }

    /// Returns a builder for a child with its own context, creator, group id, trace or declared events.
    ///
    /// A `()` child of a run's emitter emits the run's own events, as described at [`child`](Self::child), unless the
    /// child has its own creator or trace.
    pub fn child_builder(&self, namespace: impl IntoNamespace) -> EmitterBuilder {
        EmitterBuilder::new(Some((self.clone(), namespace.namespace().map(Cow::into_owned))))
    }

    pub(crate) fn from_node(node: Node) -> Self {
        Self(Arc::new(node))
    }

    /// Returns the path that an event with this name has when it is emitted on this emitter.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is not valid.
    pub fn path_of(&self, name: impl AsName) -> Result<String, NameError> {
        let name = name.as_name();
        name.check()?;
        Ok(self.join(name.as_str()))
    }

    /// Returns the parent in the tree.
    #[must_use]
    pub fn parent(&self) -> Option<&Self> {
        self.0.parent.as_ref()
    }

    /// Returns the creator that was set on this emitter, or else on the nearest emitter above that has a creator.
    #[must_use]
    pub fn creator(&self) -> Option<&Creator> {
        self.upwards().find_map(|emitter| emitter.0.creator.as_ref())
    }

    /// Returns the context that every event emitted here carries.
    #[must_use]
    pub fn context(&self) -> Context {
        self.0.context.get()
    }

    /// Sets a key of the context, for later events, children and runs.
    ///
    /// The runtime may change the value before it is set, for example to redact it.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is `internal`, which is reserved for the runtime.
    pub fn set_context(&self, key: impl Into<String>, value: impl Into<serde_json::Value>) -> Result<(), BuildError> {
        let key = key.into();
        let value = value.into();
        if key == RESERVED {
            return Err(BuildError::ReservedKey(RESERVED));
        }
        // The runtime may change the value. `admit` is called outside the context's lock, because it runs user code.
        let value = match self.scope() {
            Some(scope) => scope.admit(&key, value),
            None => value,
        };
        self.0.context.set(key, value);
        Ok(())
    }

    /// Returns the id of the group that this emitter belongs to.
    ///
    /// A new emitter takes the group id of its parent, unless its builder sets a group id. A run takes the group id of
    /// the run in which it was started, or else the group id of its instance.
    #[must_use]
    pub fn group_id(&self) -> Option<&str> {
        self.group().map(|id| &**id)
    }

    fn group(&self) -> Option<&Arc<str>> {
        self.0.context.group().or(self.0.group_id.as_ref())
    }

    /// Returns the group id as a shared string.
    #[must_use]
    pub fn shared_group_id(&self) -> Option<Arc<str>> {
        self.group().cloned()
    }

    /// Sets the group id, for later events, children and runs.
    ///
    /// The emitter keeps its earlier ids in memory until it is dropped.
    pub fn set_group_id(&self, group_id: impl Into<Arc<str>>) {
        self.0.context.set_group(group_id.into());
    }

    /// Returns the ids of the run in which events emitted here happen.
    ///
    /// The search begins at this emitter and goes up the tree, to the first emitter that has a trace or is the emitter
    /// of a run. Its trace is returned, or else the ids of its run. Without such an emitter, the result is `None`.
    #[must_use]
    pub fn trace(&self) -> Option<Trace> {
        let run = self.trace_source()?;
        if let TraceSource::Given(trace) = run {
            return Some(*trace);
        }
        // The first source above is the parent run. The last source supplies the trace id: it is the outermost run, or
        // a trace that was set.
        let mut above = successors(run.above(), TraceSource::above);
        let run_id = run.run_id();
        let parent = above.next();
        let top = above.last().or(parent);
        Some(Trace { id: top.map_or(run_id, TraceSource::id), run_id, parent_run_id: parent.map(TraceSource::run_id) })
    }

    /// Returns the trace or the run of the nearest emitter that has one, beginning with this emitter.
    fn trace_source(&self) -> Option<TraceSource<'_>> {
        self.upwards().find_map(|emitter| {
            // A trace that was set takes precedence, because an emitter may emit events for a run elsewhere.
            let given = emitter.0.trace.as_deref().map(TraceSource::Given);
            given.or_else(|| emitter.0.run.as_ref().map(|run| TraceSource::Run(run, emitter.parent())))
        })
    }

    /// Iterates over this emitter and the emitters above it in the tree.
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

    pub(crate) fn namespace_hash(&self) -> u64 {
        self.0.namespace_hash
    }

    /// Returns the listeners and pipes of this emitter, or `None` if it never had a listener or pipe.
    #[inline]
    pub(crate) fn registry(&self) -> Option<&Registry> {
        self.0.registry.get().map(|registry| &**registry)
    }

    /// Invalidates every `NoListenerCache` that a listener or pipe added here may affect (E15).
    pub(crate) fn invalidate(&self) {
        if self.0.is_in_run { invalidate_in_runs() } else { invalidate() }
    }

    /// Returns the emitter of the nearest run, from here up the tree.
    #[inline]
    pub(crate) fn run(&self) -> Option<&Self> {
        self.upwards().take_while(|emitter| emitter.0.is_in_run).find(|emitter| emitter.0.run.is_some())
    }

    /// Returns the emitter of the run in which this emitter's run was started. Returns `None` for a run that was not
    /// started in another run, and for an emitter that is not the emitter of a run.
    #[inline]
    #[must_use]
    pub fn run_parent(&self) -> Option<&Self> {
        self.0.run.as_ref()?.parent.as_ref()
    }

    /// Returns `true` if this is the emitter of a run of the instance that `instance` belongs to.
    #[inline]
    #[must_use]
    pub fn is_run_of(&self, instance: &Self) -> bool {
        self.0.run.is_some() && self.parent() == Some(instance)
    }

    /// Returns `true` if events emitted here count as emitted by `other` (E4). In that case, `other` is the emitter of
    /// the run above, or the emitter of that run's instance.
    #[inline]
    pub(crate) fn emits_for(&self, other: &Self) -> bool {
        self.0.emits_for_run && self.run().is_some_and(|run| run == other || run.is_run_of(other))
    }

    /// Returns the scope of the run that this emitter is in. In listeners, `RunContext::current()` finds the run
    /// through this scope (R9).
    pub(crate) fn scope(&self) -> Option<Arc<dyn Scope>> {
        self.run_link()?.scope.as_ref()?.upgrade()
    }

    /// Returns the scope of the run that this emitter is in. Returns `None` if the calling code is already inside that
    /// scope, for example when a run emits its own events.
    #[inline]
    pub(crate) fn scope_to_enter(&self) -> Option<Arc<dyn Scope>> {
        self.run_link().filter(|run| !run.is_inside())?.scope.as_ref()?.upgrade()
    }

    /// Returns the scope in which an emit is continued and the run's values are dropped. If the run is gone, this is
    /// the scope of the next run above (R14). Returns `None` if the calling code is already inside the run's scope.
    pub(crate) fn nearest_scope(&self) -> Option<Arc<dyn Scope>> {
        // Walk up the run parents, to the first run whose scope can still be entered.
        let own = self.run_link().filter(|run| !run.is_inside())?;
        let runs = successors(Some(own), |run| run.parent.as_ref()?.run_link());
        runs.filter_map(|run| run.scope.as_ref()?.upgrade()).find(|scope| scope.is_there())
    }

    /// Returns the [`RunLink`] of the nearest run, from here up the tree.
    #[inline]
    pub(crate) fn run_link(&self) -> Option<&RunLink> {
        self.upwards().take_while(|emitter| emitter.0.is_in_run).find_map(|emitter| emitter.0.run.as_ref())
    }

    /// Returns the declared events that apply to this emitter.
    #[inline]
    pub(crate) fn declared(&self) -> Option<&Arc<Declared>> {
        let declares = if self.0.is_in_run { self.declares_in_run() } else { self };
        declares.0.declared.as_ref()
    }

    /// Returns `true` if this emitter, or the instance of its run, [declares](EmitterBuilder::declares_text) that it
    /// filters the text of the events with this name itself.
    #[must_use]
    pub fn filters_text(&self, name: &str) -> bool {
        self.declared().is_some_and(|declared| declared.filters_text(name))
    }

    /// Returns `true` for the emitter of a run, and for every emitter below it in the tree.
    #[inline]
    pub(crate) fn is_in_run(&self) -> bool {
        self.0.is_in_run
    }

    /// Returns the emitter whose declarations apply to this emitter. Call this only for an emitter in a run. For the
    /// emitter of a run, the result is the instance. For an emitter that emits for a run and declares no events itself,
    /// the result is the instance of that run. Every other emitter has its own declarations.
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
            has_below: AtomicBool::new(false),
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

    /// Enters the scope of the run that this emitter is in, and drops the emitter's listeners there (R14).
    ///
    /// The listeners cannot find the run themselves, because the node that they are registered on is already being
    /// dropped. The emitter of a run has no listeners when it is dropped: they were dropped at the end of the run.
    fn drop_in_run(&mut self) {
        let Some(parent) = self.parent.as_ref().filter(|_| self.is_in_run && self.run.is_none()) else { return };
        let mut registry = self.registry.take();
        // Most emitters have no listeners, so no scope has to be entered.
        if registry.is_some() {
            drop_within(parent.nearest_scope(), || drop(registry.take()));
        }
    }

    /// Releases the nodes above this one. Nodes without another handle are pushed to `orphans`, so that the caller can
    /// drop them without recursion.
    fn detach(&mut self, orphans: &mut Vec<Self>) {
        self.warn_if_unreached();
        // Drop the listeners first, while the run above can still be found, because their drop enters its scope (R14).
        self.drop_in_run();
        if let Some(run_parent) = self.run.as_mut().and_then(|run| run.parent.take()) {
            orphans.extend(Arc::into_inner(run_parent.0));
        }
        if let Some(parent) = self.parent.take() {
            orphans.extend(Arc::into_inner(parent.0));
        }
    }

    /// Records that a child or the emitter of a run was made below this emitter.
    pub(crate) fn note_below(&self) {
        // Mostly read, so that many runs of one instance do not contend for it.
        if !self.has_below() {
            self.has_below.store(true, Ordering::Relaxed);
        }
    }

    fn has_below(&self) -> bool {
        self.has_below.load(Ordering::Relaxed)
    }

    /// Creates a node below `parent`, in a namespace below the parent's or in the same namespace. The caller sets the
    /// context.
    pub(crate) fn below(parent: &Emitter, namespace: Option<&str>) -> Self {
        parent.0.note_below();
        let mut node = Self::root();
        node.group_id = parent.shared_group_id();
        node.parent = Some(parent.clone());
        node.is_in_run = parent.0.is_in_run;
        // A child with a name emits its own events. Only a `()` child emits for the run (E4).
        node.emits_for_run = namespace.is_none() && (parent.0.run.is_some() || parent.0.emits_for_run);
        node.namespace_hash = parent.namespace_hash();
        if let Some(name) = namespace {
            let above = parent.own_namespace().map(|(_, above)| above);
            let own = OwnNamespace::below(above, name);
            node.namespace_hash = own.hash(above.map(|above| (above, parent.namespace_hash())));
            node.namespace = Some(own);
        }
        node
    }
}

/// The source of a [`Trace`]: a trace that was set on an emitter, or the nearest run.
#[derive(Clone, Copy)]
enum TraceSource<'a> {
    Given(&'a Trace),
    Run(&'a RunLink, Option<&'a Emitter>),
}

impl<'a> TraceSource<'a> {
    /// Returns the source of the run above. Returns `None` for a trace that was set, because it already has all ids.
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

    /// Returns the trace id. Call this only for the outermost source.
    fn id(self) -> Uuid {
        match self {
            Self::Given(trace) => trace.id,
            Self::Run(..) => self.run_id(),
        }
    }
}

/// Drops a chain of emitters in a loop. Recursion would overflow the stack for a chain of a million emitters.
impl Drop for Node {
    fn drop(&mut self) {
        let mut orphans = Vec::new();
        self.detach(&mut orphans);
        while let Some(mut orphan) = orphans.pop() {
            // A node that is dropped may have had the last handle to the nodes above it.
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
