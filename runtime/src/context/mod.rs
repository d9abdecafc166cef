//! The context of a run: its ids, emitter, context values, extensions and tasks (R2, R9).

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
use std::sync::{Arc, OnceLock, Weak};
use std::task::Context as TaskContext;
use std::time::Duration;

use emitree_emitter::rt::{Delivery, Scope};
use emitree_emitter::{BuildError, Emitter, Trace};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{Level, Span, level_enabled};
use uuid::Uuid;

use crate::abort::AbortNode;
use crate::context::current::{enter, enter_some, look};
use crate::context::emitter::{EmitterSpec, LazyEmitter};
use crate::context::extensions::{RunExtensions, Values};
use crate::context::span::span;
use crate::context::tasks::TaskSet;
use crate::key::OwnKey;
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
use crate::{Instance, Runnable};

/// A handle to a run, for use in its work, middlewares and listeners. Clones are cheap.
///
/// The work, layers and middlewares receive the handle as an argument. Other code inside a run gets the handle from
/// [`current`](Self::current).
#[derive(Clone)]
pub struct RunContext(Handle);

/// A reference to a run. In a task of the run, this is a reference to the task's [`OfTask`] instead, so that threads
/// that clone and drop handles do not contend for one counter.
#[derive(Clone)]
enum Handle {
    OfRun(Arc<SharedRun>),
    OfTask(Arc<OfTask>),
}

/// A reference count for the handles of one task. The alignment keeps it off the cache lines of other counts.
#[repr(align(128))]
struct OfTask(Arc<SharedRun>);

/// A handle that does not keep the run alive.
#[derive(Clone)]
pub(crate) struct WeakRun(Weak<SharedRun>);

impl WeakRun {
    pub(crate) fn upgrade(&self) -> Option<RunContext> {
        self.0.upgrade().map(|run| RunContext(Handle::OfRun(run)))
    }
}

/// The state of a run, which its handles share. `core` is the part that depends on the run's types.
pub(crate) struct SharedRun<L: ErasedRun + ?Sized = dyn ErasedRun> {
    pub(crate) lazy_emitter: LazyEmitter,
    pub(crate) parent: Option<Parent>,
    /// The number of runs above this run.
    depth: usize,
    /// The run's own key, if it has one. Set before the middlewares are bound, or by one of them (R15).
    pub(crate) taken_key: OnceLock<Box<OwnKey>>,
    /// The key that the caller of the run has given it with a function.
    pub(crate) given_key: Option<Box<OwnKey>>,
    pub(crate) is_idempotent: bool,
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

/// A run of known types: a thin pointer, which is passed in a register.
pub(crate) type ThinRun<I, O> = Arc<SharedRun<RunCore<I, O>>>;

/// The parts from which a run is made.
pub(crate) struct Seed<'a, I: 'static, O> {
    pub(crate) instance: &'a Emitter,
    pub(crate) own: EmitterSpec,
    pub(crate) key: Option<Box<OwnKey>>,
    pub(crate) extensions: Values,
    pub(crate) is_idempotent: bool,
    /// Inherited from the parent.
    pub(crate) subscribers: Subscribers,
    /// Inherited from the parent.
    pub(crate) inherited: Inherited,
    pub(crate) bound: Option<Bound>,
    pub(crate) has_listeners: bool,
    pub(crate) core: RunCore<I, O>,
}

impl<I: Data, O: Data> Seed<'_, I, O> {
    /// Makes the run, with or without a parent.
    #[inline(always)]
    fn below(self, parent: Option<Parent>) -> SharedRun<RunCore<I, O>> {
        let above = parent.as_ref().map(Parent::run);
        let run_id = OnceCell::new();
        let span = match level_enabled!(Level::INFO) {
            true => span(self.instance, self.own.creator.as_ref(), above, &run_id),
            false => Span::none(),
        };
        let is_bound = self.has_listeners || self.bound.is_some() || !self.subscribers.all.is_empty();
        SharedRun {
            lazy_emitter: LazyEmitter::new(self.instance, above, self.own, run_id.into_inner()),
            span,
            taken_key: OnceLock::new(),
            given_key: self.key,
            is_idempotent: self.is_idempotent,
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

/// Drops the values while the parent is the current run, whichever thread drops the last handle. A run that such a drop
/// starts belongs to the parent, or to a run above that still accepts runs (R1). A chain of runs is dropped in a loop,
/// not by recursion.
impl<L: ErasedRun + ?Sized> Drop for SharedRun<L> {
    fn drop(&mut self) {
        let above = self.parent.take();
        // Most runs have no value whose drop may call user code, and need not enter the parent.
        if self.core.has_values() || !self.extensions.is_empty() || self.own_key().is_some() {
            enter_some(above.as_ref().map(Parent::run), || {
                discard((self.given_key.take(), self.taken_key.take()));
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
    /// Returns the part that depends on the types.
    #[expect(clippy::expect_used, reason = "a `TypedRun` is only made with the types of its run")]
    pub(crate) fn core(&self) -> &RunCore<I, O> {
        (&self.ctx.shared().core as &dyn Any).downcast_ref().expect("the types of the run")
    }

    /// Returns the input of the work.
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
    /// Returns the current run. A run is current in its work, in its tasks and scopes, in a middleware that is being
    /// bound to it, in listeners of its events, in the functions that map its errors and context values, and in drops of
    /// its values. It does not matter on which emitter the listeners are registered.
    ///
    /// Returns `None` outside all runs, for example in a task that was neither spawned with [`spawn`](Self::spawn) nor
    /// wrapped in [`scope`](Self::scope).
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// /// Prefixes a line with the name of the current run.
    /// fn log_line(text: &str) -> String {
    ///     match RunContext::current() {
    ///         Some(run) => format!("{}: {text}", run.name()),
    ///         None => text.to_owned(),
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let greet = runnable_fn("greet", |(): (), _: RunContext| async move { Ok(log_line("hello")) });
    /// assert_eq!(greet.run(()).await?, "greet: hello");
    /// assert_eq!(log_line("hello"), "hello");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn current() -> Option<Self> {
        look(Self::clone)
    }

    /// Returns the parent for a run that the calling code makes: the current run, if it has not closed or if the caller
    /// is in one of its tasks or scopes. Otherwise returns the nearest open run above, or the topmost run if all have
    /// closed. Returns `None` without a current run, or if the current run has closed and has no parent (R1). A run
    /// closes before its `finish` is emitted.
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

    /// Returns `true` if `scope` is the address of the current run's scope.
    pub(crate) fn is_current(scope: *const ()) -> bool {
        let is_its =
            |run: &Self| Arc::as_ptr(run.shared()).cast::<()>() == scope || run.shared().lazy_emitter.is_scope(scope);
        look(is_its).unwrap_or(false)
    }

    /// Makes a run (R2). Returns `Err(parent)` if the parent has closed: a run without its parent would evade the
    /// middlewares that the parent has bound for the runs below (R1).
    ///
    /// This function and the functions that make the run's parts are inlined, so that the parts are written in place. A
    /// copy would stall the processor, because its wide loads follow narrow stores to the same memory.
    #[inline(always)]
    pub(crate) fn make<I: Data, O: Data>(seed: Seed<'_, I, O>, parent: Option<Self>) -> Result<ThinRun<I, O>, Self> {
        let has_listeners = seed.has_listeners;
        let run = match parent {
            // Without a parent, the run is not registered with any other run, so it needs no weak handle to itself.
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
        // If the run has listeners, its emitter is made here, before another handle to the run can request it.
        if has_listeners {
            let scope: Weak<SharedRun<RunCore<I, O>>> = Arc::downgrade(&run);
            run.lazy_emitter.make_with(run.parent.as_ref().map(Parent::run), scope);
        }
        // The run is made now: wake a parent that waits for it, and apply a stop that was written to the parent in the
        // meantime (R7, R13).
        if let Some(above) = &run.parent {
            above.arrive();
            run.node.follow(above.run().node());
        }
        Ok(run)
    }

    /// Returns the run behind the handle. Code that reads several fields calls this once.
    #[inline]
    pub(crate) fn shared(&self) -> &Arc<SharedRun> {
        match &self.0 {
            Handle::OfRun(run) => run,
            Handle::OfTask(task) => &task.0,
        }
    }

    /// Returns `true` if this is the last handle of the run.
    pub(crate) fn is_last(&self) -> bool {
        match &self.0 {
            Handle::OfRun(run) => Arc::strong_count(run) == 1,
            Handle::OfTask(task) => Arc::strong_count(task) == 1 && Arc::strong_count(&task.0) == 1,
        }
    }

    /// Returns a handle for a task. Its clones share a separate reference count.
    pub(crate) fn for_task(&self) -> Self {
        Self(Handle::OfTask(Arc::new(OfTask(Arc::clone(self.shared())))))
    }

    /// Returns a typed handle. `I` and `O` must be the run's input and output types.
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

    /// Reserves the run's lease for supervisors.
    pub(crate) fn supervised(&self) {
        self.shared().core.supervised();
    }

    /// Drives the run toward its end, without polling its work. During the call, the run is the current run.
    pub(crate) fn drive(&self, who: Driver, cx: &mut TaskContext<'_>) -> Driven {
        self.drive_handing_over(who, None, cx)
    }

    /// Drives the run as [`drive`](Self::drive) does. If `below` is a list, adds to it the children that must end before
    /// this run.
    pub(crate) fn drive_handing_over(&self, who: Driver, mut below: Deferred<'_>, cx: &mut TaskContext<'_>) -> Driven {
        let mut driven = None;
        isolated(|| self.inside(|| driven = Some(self.shared().core.drive(self, who, below.as_deref_mut(), cx))));
        driven.unwrap_or_else(|| enter(self, || self.shared().core.drive(self, who, below, cx)))
    }

    /// Returns the instance that this run belongs to.
    #[must_use]
    pub fn instance(&self) -> Instance {
        Instance::new(self.instance_ref().clone())
    }

    /// Returns the names of the types of the runnable, its input and its output.
    #[must_use]
    pub fn types(&self) -> RunTypes {
        self.shared().core.stages().types()
    }

    /// Returns `true` if this is the run of an `R`, which may be boxed.
    #[must_use]
    pub fn is_run_of_type<R: Runnable>(&self) -> bool {
        self.types().runnable == std::any::type_name::<R>()
    }

    pub(crate) fn instance_ref(&self) -> &Emitter {
        &self.shared().lazy_emitter.instance
    }

    /// Returns the parent, or `None` if this run has no parent. The parent is usually the run in which this run was
    /// made.
    #[must_use]
    pub fn parent(&self) -> Option<&Self> {
        self.shared().parent.as_ref().map(Parent::run)
    }

    /// Returns the number of runs above this one.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared().depth
    }

    /// Returns the ids of the run, its parent, and its trace.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.emitter().trace().unwrap_or(Trace { id: Uuid::nil(), run_id: Uuid::nil(), parent_run_id: None })
    }

    /// Returns the run's id, a version 7 UUID.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.trace().run_id
    }

    /// Returns the run's context value for a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value> {
        self.context().get(key).cloned()
    }

    /// Sets a context value of the run. Later events of the run carry the value, and runs that begin later in this run
    /// inherit it.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is `internal`, which is reserved.
    pub fn set(&self, key: impl Into<String>, value: impl Into<Value>) -> Result<(), BuildError> {
        self.emitter().set_context(key, value)
    }

    /// Returns the time since the run was first polled, measured with tokio's clock.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.shared().started.elapsed()
    }

    /// Returns the run's `tracing` span, which is disabled if no `tracing` subscriber accepted it when the run began.
    ///
    /// The span is called `run`. Its fields are the run's `kind` and `name`, both together as `otel.name`, which
    /// exporters for OpenTelemetry show as the span's name, such as `Tool count`, and `path`, `run_id`, `parent_run_id`
    /// and `outcome`.
    #[must_use]
    pub fn span(&self) -> &Span {
        &self.shared().span
    }

    /// Returns `true` if the run has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.node().state.has_ended()
    }
}

impl RunContext {
    /// Calls a function inside the run: the run is the current run, and its span is entered.
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

/// The scope of an emitter that was made later than its run. It does not keep the run alive.
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

/// Two handles are equal if they belong to the same run.
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
