//! The run that one is in: its ids, emitter, context, extensions (R2, R9).

pub(crate) mod current;
pub(crate) mod emitter;
pub(crate) mod extensions;
pub(crate) mod inherited;
pub(crate) mod span;
pub(crate) mod tasks;

use std::any::Any;
use std::cell::OnceCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::mem::replace;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::task::Context as TaskContext;
use std::time::Duration;

use emitree_emitter::rt::{Delivery, Scope};
use emitree_emitter::{BuildError, Emitter, Trace};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{Level, Span, level_enabled};
use uuid::Uuid;

use crate::Instance;
use crate::abort::AbortNode;
use crate::context::current::{enter, enter_some, look};
use crate::context::emitter::{EmitterSpec, LazyEmitter};
use crate::context::extensions::{RunExtensions, Values};
use crate::context::span::span;
use crate::context::tasks::TaskSet;
use crate::lifecycle::subscribers::Subscribers;
use crate::middleware::Inherited;
use crate::run::bindings::{Bindings, Bound};
use crate::run::cleanup::Deferred;
use crate::run::drive::{Driven, ErasedRun, RunCore};
use crate::run::drop_chain::drop_chain;
use crate::run::lease::Driver;
use crate::run::panic::{discard, isolated};
use crate::run::state::RunState;
use crate::runnable::value::{Data, RunTypes};
use crate::tree::parent::Parent;

/// A run, as its work, its middlewares and its listeners see it; cheap to clone.
///
/// The work gets it as an argument; anywhere inside of a run, [`current`](Self::current) gives it.
#[derive(Clone)]
pub struct RunContext(Handle);

/// Handles are counted by the run; in a task of the run, by the task: so those that are made and dropped on several threads
/// do not meet.
#[derive(Clone)]
enum Handle {
    OfRun(Arc<SharedRun>),
    OfTask(Arc<OfTask>),
}

/// On cache lines of its own.
#[repr(align(128))]
struct OfTask(Arc<SharedRun>);

/// A run's context that does not keep it.
#[derive(Clone)]
pub(crate) struct WeakRun(Weak<SharedRun>);

impl WeakRun {
    pub(crate) fn upgrade(&self) -> Option<RunContext> {
        self.0.upgrade().map(|run| RunContext(Handle::OfRun(run)))
    }
}

/// A run as all its handles share it; `core` is the part that knows the types.
pub(crate) struct SharedRun<L: ErasedRun + ?Sized = dyn ErasedRun> {
    pub(crate) lazy_emitter: LazyEmitter,
    pub(crate) parent: Option<Parent>,
    /// The number of runs above it.
    depth: usize,
    started: Instant,
    pub(crate) extensions: RunExtensions,
    pub(crate) subscribers: Subscribers,
    pub(crate) inherited: Inherited,
    pub(crate) tasks: TaskSet,
    pub(crate) span: Span,
    pub(crate) node: AbortNode,
    pub(crate) bindings: Bindings,
    pub(crate) core: L,
}

/// A run as it was made: a thin pointer, which is handed on in a register.
pub(crate) type ThinRun<I, O> = Arc<SharedRun<RunCore<I, O>>>;

/// What a run is made of.
pub(crate) struct Seed<'a, I: 'static, O> {
    pub(crate) instance: &'a Emitter,
    pub(crate) own: EmitterSpec,
    pub(crate) extensions: Values,
    /// Those of the run above.
    pub(crate) subscribers: Subscribers,
    /// The same.
    pub(crate) inherited: Inherited,
    pub(crate) bound: Option<Bound>,
    pub(crate) is_heard: bool,
    pub(crate) core: RunCore<I, O>,
}

impl<I: Data, O: Data> Seed<'_, I, O> {
    /// A run that begins, in another one or not.
    #[inline(always)]
    fn below(self, parent: Option<Parent>) -> SharedRun<RunCore<I, O>> {
        let above = parent.as_ref().map(Parent::run);
        let told = OnceCell::new();
        let span = if level_enabled!(Level::INFO) { span(self.instance, above, &told) } else { Span::none() };
        let is_bound = self.is_heard || self.bound.is_some() || !self.subscribers.all.is_empty();
        SharedRun {
            lazy_emitter: LazyEmitter::new(self.instance, above, self.own, told.into_inner()),
            span,
            started: Instant::now(),
            extensions: RunExtensions::new(above, self.extensions),
            subscribers: self.subscribers,
            inherited: self.inherited,
            tasks: TaskSet::new(),
            node: AbortNode::new(if is_bound { RunState::bound() } else { RunState::open() }),
            bindings: Bindings::new::<I, O>(self.bound),
            core: self.core,
            depth: above.map_or(0, |above| above.depth() + 1),
            parent,
        }
    }
}

/// What the drop of its values starts belongs to the run above, wherever the last handle was (R1). A chain of runs is taken
/// down link by link, not by recursion.
impl<L: ErasedRun + ?Sized> Drop for SharedRun<L> {
    fn drop(&mut self) {
        let above = self.parent.take();
        if self.core.has_values() || !self.extensions.is_empty() {
            enter_some(above.as_ref().map(Parent::run), || {
                replace(&mut self.extensions, RunExtensions::new(None, Values::NONE)).discard();
                discard(self.bindings.chain.take());
                self.core.drop_values();
            });
        }
        let Some(above) = above else { return };
        if above.run().is_last() { drop_chain(above) } else { drop(above) }
    }
}

/// A run whose types are known.
pub(crate) struct TypedRun<I, O> {
    ctx: RunContext,
    types: PhantomData<fn(I) -> O>,
}

impl<I: Data, O: Data> TypedRun<I, O> {
    /// The part that knows them.
    #[expect(clippy::expect_used, reason = "made where the types are known")]
    pub(crate) fn core(&self) -> &RunCore<I, O> {
        (&self.ctx.shared().core as &dyn Any).downcast_ref().expect("the types that it was made with")
    }

    /// What the work gets.
    #[expect(clippy::expect_used, reason = "set before the work begins, or the run ends")]
    pub(crate) fn input(&self) -> &I {
        self.core().input().expect("a run that has started has its input")
    }
}

impl<I: Data, O: Data> From<ThinRun<I, O>> for TypedRun<I, O> {
    fn from(run: ThinRun<I, O>) -> Self {
        Self { ctx: RunContext(Handle::OfRun(run)), types: PhantomData }
    }
}

impl<I, O> Clone for TypedRun<I, O> {
    fn clone(&self) -> Self {
        Self { ctx: self.ctx.clone(), types: PhantomData }
    }
}

impl<I, O> Deref for TypedRun<I, O> {
    type Target = RunContext;

    fn deref(&self) -> &RunContext {
        &self.ctx
    }
}

impl RunContext {
    /// The run that one is in: in its work, while middlewares are bound, and in listeners of its events, wherever they
    /// are registered. None outside of a run, and in tasks that were not spawned with [`spawn`](Self::spawn), nor are in its
    /// [`scope`](Self::scope).
    #[must_use]
    pub fn current() -> Option<Self> {
        look(Self::clone)
    }

    /// The run that a run is started in which is made here. Where one takes no more, as in listeners of its `finish`, that is the
    /// next above that does; only what is made at the very end of a run that is in no other stands alone (R1).
    pub(crate) fn to_start_in() -> Option<Self> {
        let open = |current: &Self| {
            if matches!(current.0, Handle::OfTask(_)) || !current.node().state.is_closed() {
                return Some(current.clone());
            }
            let above = || std::iter::successors(current.parent(), |run| run.parent());
            above().find(|run| !run.node().state.is_closed()).or_else(|| above().last()).cloned()
        };
        look(open).flatten()
    }

    /// Whether a scope, by its address, is that of the run that one is in.
    pub(crate) fn is_current(scope: *const ()) -> bool {
        let is_its =
            |run: &Self| Arc::as_ptr(run.shared()).cast::<()>() == scope || run.shared().lazy_emitter.is_scope(scope);
        look(is_its).unwrap_or(false)
    }

    /// Makes a run that begins (R2). Gives its parent back if that takes no more: without it, what is bound there for the runs below would
    /// not be bound to it (R1).
    ///
    /// Inlined, as is what makes its parts: what is handed on through memory in small pieces and read in large ones
    /// would be waited for.
    #[inline(always)]
    pub(crate) fn begin<I: Data, O: Data>(seed: Seed<'_, I, O>, parent: Option<Self>) -> Result<ThinRun<I, O>, Self> {
        let is_heard = seed.is_heard;
        let run = match parent {
            // Nobody knows of it before it is there: it needs no handle while it is made.
            None => Arc::new(seed.below(None)),
            Some(parent) if parent.node().state.is_closed() => {
                enter(&parent, || discard(seed));
                return Err(parent);
            }
            Some(parent) => {
                let mut refused = None;
                let run = Arc::new_cyclic(|this: &Weak<SharedRun<RunCore<I, O>>>| {
                    let above = Parent::of(WeakRun(this.clone()), parent);
                    seed.below(above.map_err(|parent| refused = Some(parent)).ok())
                });
                if let Some(parent) = refused {
                    enter(&parent, || discard(run));
                    return Err(parent);
                }
                run
            }
        };
        if is_heard {
            let scope: Weak<SharedRun<RunCore<I, O>>> = Arc::downgrade(&run);
            run.lazy_emitter.make_with(run.parent.as_ref().map(Parent::run), scope);
        }
        if let Some(above) = &run.parent {
            above.arrive();
            run.node.follow(above.run().node());
        }
        Ok(run)
    }

    /// The run behind the handle. It takes some steps to get there: code that looks at several fields of a run calls this once.
    #[inline]
    pub(crate) fn shared(&self) -> &Arc<SharedRun> {
        match &self.0 {
            Handle::OfRun(run) => run,
            Handle::OfTask(task) => &task.0,
        }
    }

    /// Whether nobody else holds the run.
    fn is_last(&self) -> bool {
        match &self.0 {
            Handle::OfRun(run) => Arc::strong_count(run) == 1,
            Handle::OfTask(task) => Arc::strong_count(task) == 1 && Arc::strong_count(&task.0) == 1,
        }
    }

    /// A handle whose clones are counted apart from others.
    pub(crate) fn for_task(&self) -> Self {
        Self(Handle::OfTask(Arc::new(OfTask(Arc::clone(self.shared())))))
    }

    /// To be called with the types that it was made with.
    pub(crate) const fn typed<I, O>(self) -> TypedRun<I, O> {
        TypedRun { ctx: self, types: PhantomData }
    }

    pub(crate) fn downgrade(&self) -> WeakRun {
        WeakRun(Arc::downgrade(self.shared()))
    }

    pub(crate) fn node(&self) -> &AbortNode {
        &self.shared().node
    }

    pub(crate) fn delivery(&self) -> &Delivery {
        self.shared().core.delivery()
    }

    /// From now on a task brings it to its end.
    pub(crate) fn supervised(&self) {
        self.shared().core.supervised();
    }

    /// Brings the run to its end without its work, inside of it: without its span, where who is told of that panics.
    pub(crate) fn drive(&self, who: Driver, cx: &mut TaskContext<'_>) -> Driven {
        self.drive_handing_over(who, None, cx)
    }

    /// The same, for the run above: the runs below that have to end before are left to it.
    pub(crate) fn drive_handing_over(&self, who: Driver, mut below: Deferred<'_>, cx: &mut TaskContext<'_>) -> Driven {
        let mut driven = None;
        isolated(|| self.inside(|| driven = Some(self.shared().core.drive(self, who, below.as_deref_mut(), cx))));
        driven.unwrap_or_else(|| enter(self, || self.shared().core.drive(self, who, below, cx)))
    }

    /// Which runnable it is a run of.
    #[must_use]
    pub fn instance(&self) -> Instance {
        Instance::new(self.instance_ref().clone())
    }

    /// The types of what it is a run of, and of what goes in and comes out.
    #[must_use]
    pub fn types(&self) -> RunTypes {
        self.shared().core.stages().types()
    }

    pub(crate) fn instance_ref(&self) -> &Emitter {
        &self.shared().lazy_emitter.instance
    }

    /// The run in which it was started.
    #[must_use]
    pub fn parent(&self) -> Option<&Self> {
        self.shared().parent.as_ref().map(Parent::run)
    }

    /// How many runs it is nested in.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared().depth
    }

    /// The ids of the run and of the one that it was started in.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.emitter().trace().unwrap_or(Trace { id: Uuid::nil(), run_id: Uuid::nil(), parent_run_id: None })
    }

    /// The run's id: a version 7 UUID.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.trace().run_id
    }

    /// The value of a key of the context.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value> {
        self.context().get(key).cloned()
    }

    /// Sets a key of the context: later events of the run carry it, and runs started in it later.
    ///
    /// # Errors
    ///
    /// If the key is the one that belongs to the runtime, `internal`.
    pub fn set(&self, key: impl Into<String>, value: impl Into<Value>) -> Result<(), BuildError> {
        self.emitter().set_context(key, value)
    }

    /// How long ago the run was first polled, by tokio's clock.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.shared().started.elapsed()
    }

    /// The run's span.
    #[must_use]
    pub fn span(&self) -> &Span {
        &self.shared().span
    }

    /// Tells whether the run is over.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.node().state.has_ended()
    }
}

impl RunContext {
    /// Calls inside of the run: it is the current one, and its span is entered.
    pub(crate) fn inside<R>(&self, f: impl FnOnce() -> R) -> R {
        enter(self, || self.span().in_scope(f))
    }
}

impl<I: Data, O: Data> Scope for SharedRun<RunCore<I, O>> {
    fn within(self: Arc<Self>, f: &mut dyn FnMut()) {
        if RunContext::is_current(Arc::as_ptr(&self).cast()) { f() } else { RunContext(Handle::OfRun(self)).inside(f) }
    }

    fn admit(self: Arc<Self>, key: &str, value: Value) -> Value {
        RunContext(Handle::OfRun(self)).exit_value(key, value)
    }
}

/// Entered where the emitter was made later than the run. It does not keep the run.
impl Scope for WeakRun {
    fn within(self: Arc<Self>, f: &mut dyn FnMut()) {
        match self.upgrade() {
            Some(run) if !RunContext::is_current(Arc::as_ptr(&self).cast()) => run.inside(f),
            _ => f(),
        }
    }

    fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }

    fn admit(self: Arc<Self>, key: &str, value: Value) -> Value {
        match self.upgrade() {
            Some(run) => run.exit_value(key, value),
            None => value,
        }
    }
}

/// Whether it is the same run.
impl PartialEq for RunContext {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.shared(), other.shared())
    }
}

impl Eq for RunContext {}

impl Hash for RunContext {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(self.shared()).cast::<()>().hash(state);
    }
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext")
            .field("trace", &self.trace())
            .field("namespace", &self.instance_ref().namespace())
            .field("ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}
