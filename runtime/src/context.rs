//! The run that one is in: its ids, emitter, context, extensions (R2, R9).

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Context as TaskContext;
use std::time::Duration;

use emitree_emitter::{BuildError, Context, Delivery, Emitter, RunLinks, Scope, Trace};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{Level, Span, level_enabled};
use uuid::Uuid;

use crate::abort::Node;
use crate::below::Place;
use crate::chain::Slot;
use crate::current::CURRENT;
use crate::life::{AnyLife, Drive, Life, Who};
use crate::lifecycle::{Data, RunTypes, Stages};
use crate::tasks::Tasks;
use crate::traced::{is_in_span, is_traced};
use crate::{Extensions, Instance};

/// A run, as its work, its middlewares and its listeners see it; cheap to clone.
///
/// The work gets it as an argument; anywhere inside of a run, [`current`](Self::current) gives it.
#[derive(Clone)]
pub struct RunContext(Arc<Inner>);

/// A run's context that does not keep it.
#[derive(Clone)]
pub(crate) struct WeakRun(Weak<Inner>);

impl WeakRun {
    pub(crate) fn upgrade(&self) -> Option<RunContext> {
        self.0.upgrade().map(RunContext)
    }
}

/// A run: what is the same for all, and the part that knows its types.
pub(crate) struct Inner<L: ?Sized = dyn AnyLife> {
    emitter: Emitter,
    parent: Option<Above>,
    started: Instant,
    /// Made with the first.
    extensions: OnceLock<Mutex<Extensions>>,
    tasks: Tasks,
    span: Span,
    node: Node,
    slot: Slot,
    life: L,
}

/// The run in which a run was started, and its place below it.
struct Above {
    run: RunContext,
    place: Place,
    /// The place has been given up.
    has_left: AtomicBool,
}

impl Above {
    /// None if the run above takes no more.
    fn of(run: WeakRun, above: RunContext) -> Option<Self> {
        if above.node().is_closed() {
            return None;
        }
        let place = above.node().below().add(run);
        let above = Self { run: above, place, has_left: AtomicBool::new(false) };
        // Either this sees that the run above has closed, or that sees the place.
        let is_closed = above.run.node().is_closed();
        (!is_closed).then_some(above)
    }

    /// The run that has the place is there: if the work of the one above is over, that may wait for it.
    fn arrive(&self) {
        fence(Ordering::SeqCst);
        if self.run.node().fate().is_settled() {
            self.run.node().below().tell();
        }
    }

    fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
        self.run.node().below().remove(self.place);
    }
}

/// A run that could not be made gives its place up here.
impl Drop for Above {
    fn drop(&mut self) {
        if !*self.has_left.get_mut() {
            self.leave();
            self.run.node().below().tell();
        }
    }
}

/// A run whose types are known.
pub(crate) struct Typed<I, O> {
    ctx: RunContext,
    types: PhantomData<fn(I) -> O>,
}

impl<I: Data, O: Data> Typed<I, O> {
    /// The part that knows them.
    #[expect(clippy::expect_used, reason = "made where the types are known")]
    pub(crate) fn typed_life(&self) -> &Life<I, O> {
        (self.ctx.life() as &dyn Any).downcast_ref().expect("the types that it was made with")
    }

    /// What the work gets.
    #[expect(clippy::expect_used, reason = "set before the work begins, or the run ends")]
    pub(crate) fn input(&self) -> &I {
        self.typed_life().input().expect("a run that has started has its input")
    }
}

impl<I, O> Clone for Typed<I, O> {
    fn clone(&self) -> Self {
        self.ctx.clone().typed()
    }
}

impl<I, O> Deref for Typed<I, O> {
    type Target = RunContext;

    fn deref(&self) -> &RunContext {
        &self.ctx
    }
}

impl RunContext {
    /// The run that one is in: in its work, while middlewares are bound, and in listeners of its events, wherever they
    /// are registered. None outside of a run, and in tasks that were not spawned with [`spawn`](Self::spawn).
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    fn is_current(run: *const ()) -> bool {
        CURRENT.try_with(|current| Arc::as_ptr(&current.0).cast::<()>() == run).unwrap_or(false)
    }

    /// Makes a run that begins, with an emitter of its own (R2). A parent that has ended is none.
    pub(crate) fn begin<I: Data, O: Data>(
        instance: &Emitter,
        parent: Option<Self>,
        links: RunLinks<'_>,
        extensions: &Extensions,
        life: (&'static Stages, Option<I>),
    ) -> Typed<I, O> {
        let run = Arc::new_cyclic(|this: &Weak<Inner<Life<I, O>>>| {
            let parent = parent.and_then(|parent| Above::of(WeakRun(this.clone()), parent));
            let above = parent.as_ref().map(|above| &above.run);
            let links = links.scope(this.clone()).inside_if(Self::is_current);
            let emitter = match above {
                Some(above) => instance.for_run(links.parent(above.emitter())),
                None => instance.for_run(links),
            };
            Inner {
                span: span(&emitter, above),
                emitter,
                started: Instant::now(),
                extensions: inherited(above, extensions),
                tasks: Tasks::default(),
                node: Node::default(),
                slot: Slot::of::<I, O>(),
                life: Life::new(life.0, life.1),
                parent,
            }
        });
        if let Some(above) = &run.parent {
            above.arrive();
            run.node.follow(above.run.node());
        }
        Self(run).typed()
    }

    /// To be called with the types that it was made with.
    pub(crate) const fn typed<I, O>(self) -> Typed<I, O> {
        Typed { ctx: self, types: PhantomData }
    }

    pub(crate) fn life(&self) -> &dyn AnyLife {
        &self.0.life
    }

    /// The run is over.
    pub(crate) fn end(&self) {
        self.0.node.end();
        if let Some(above) = &self.0.parent {
            above.leave();
        }
    }

    pub(crate) fn downgrade(&self) -> WeakRun {
        WeakRun(Arc::downgrade(&self.0))
    }

    pub(crate) fn node(&self) -> &Node {
        &self.0.node
    }

    pub(crate) fn delivery(&self) -> &Delivery {
        self.0.life.delivery()
    }

    /// From now on a task brings it to its end.
    pub(crate) fn supervised(&self) {
        self.0.life.supervised();
    }

    /// Brings the run to its end without its work, inside of it.
    pub(crate) fn drive(&self, who: Who, cx: &mut TaskContext<'_>) -> Drive {
        self.inside(|| self.0.life.drive(self, who, cx))
    }

    /// The run's own emitter: what is emitted there is heard by the run, its instance, everything above that, and by
    /// the runs that it was started in.
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        &self.0.emitter
    }

    /// Which runnable it is a run of.
    #[must_use]
    pub fn instance(&self) -> Instance {
        Instance::new(self.instance_ref().clone())
    }

    /// The types of what it is a run of, and of what goes in and comes out.
    #[must_use]
    pub fn types(&self) -> RunTypes {
        self.0.life.types()
    }

    pub(crate) fn instance_ref(&self) -> &Emitter {
        self.0.emitter.parent().unwrap_or(&self.0.emitter)
    }

    /// The run in which it was started.
    #[must_use]
    pub fn parent(&self) -> Option<&Self> {
        self.0.parent.as_ref().map(|above| &above.run)
    }

    /// How many runs it is nested in.
    #[must_use]
    pub fn depth(&self) -> usize {
        std::iter::successors(self.parent(), |run| run.parent()).count()
    }

    /// The ids of the run and of the one that it was started in.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.0.emitter.trace().unwrap_or(Trace { id: Uuid::nil(), run_id: Uuid::nil(), parent_run_id: None })
    }

    /// The run's id: a version 7 UUID.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.trace().run_id
    }

    /// What every event of the run, and of runs started in it from now on, carries.
    #[must_use]
    pub fn context(&self) -> Context {
        self.0.emitter.context()
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
        self.0.emitter.set_context(key, value)
    }

    /// The typed values that the run carries, as they are now.
    #[must_use]
    pub fn extensions(&self) -> Extensions {
        self.0.extensions.get().map(|extensions| extensions.lock().clone()).unwrap_or_default()
    }

    /// The typed value of a type.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.extensions.get()?.lock().get()
    }

    /// Sets a typed value, for the run and for runs started in it later.
    pub fn set_extension<T: Send + Sync + 'static>(&self, value: T) {
        self.change_extensions(|extensions| extensions.insert(value));
    }

    /// The typed value of a type; where there is none, its default is set. However many ask at the same time, they
    /// get the same one.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let calls = runnable_fn("calls", |(): (), ctx: RunContext| async move {
    ///     ctx.extension_or_default::<AtomicU32>().fetch_add(1, Ordering::Relaxed);
    ///     Ok(ctx.extension_or_default::<AtomicU32>().load(Ordering::Relaxed))
    /// });
    /// assert_eq!(calls.run(()).await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn extension_or_default<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.extension().unwrap_or_else(|| {
            // Making one, and dropping one that comes too late, is user code.
            let made = Arc::new(T::default());
            self.0.extensions.get_or_init(Mutex::default).lock().get_or_insert(&made)
        })
    }

    pub(crate) fn change_extensions(&self, change: impl FnOnce(&mut Extensions)) {
        let replaced = {
            let mut extensions = self.0.extensions.get_or_init(Mutex::default).lock();
            let before = extensions.clone();
            change(&mut extensions);
            before
        };
        // May hold the last handle of a value, whose drop is user code.
        drop(replaced);
    }

    /// How long ago the run was first polled, by tokio's clock.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// The run's span.
    #[must_use]
    pub fn span(&self) -> &Span {
        &self.0.span
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.0.slot
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    /// Tells whether the run is over.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.node.has_ended()
    }
}

/// The typed values of the run above, with a run's own over them.
fn inherited(above: Option<&RunContext>, own: &Extensions) -> OnceLock<Mutex<Extensions>> {
    let extensions = above.map(RunContext::extensions).unwrap_or_default().merged(own);
    if extensions.is_empty() { OnceLock::new() } else { OnceLock::from(Mutex::new(extensions)) }
}

/// One span per run (R12). Its ids are formatted only for those who look at them.
fn span(emitter: &Emitter, parent: Option<&RunContext>) -> Span {
    if !level_enabled!(Level::INFO) || !is_traced() {
        return Span::none();
    }
    let run_id = tracing::field::display(Lazy(|| emitter.trace().map(|trace| trace.run_id)));
    let parent_run_id = tracing::field::display(Lazy(|| emitter.trace().and_then(|trace| trace.parent_run_id)));
    let path = emitter.namespace();
    let span = || tracing::info_span!("run", outcome = tracing::field::Empty, path, run_id, parent_run_id);
    match parent {
        // Started in a task that does not know the parent's span. By its id it could not be named here: another
        // subscriber may have given it.
        Some(parent) if !is_in_span() => parent.span().in_scope(span),
        _ => span(),
    }
}

struct Lazy<F>(F);

impl<F: Fn() -> Option<Uuid>> fmt::Display for Lazy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)().map_or(Ok(()), |id| id.fmt(f))
    }
}

impl RunContext {
    /// Calls inside of the run: it is the current one, and its span is entered.
    pub(crate) fn inside<R>(&self, f: impl FnOnce() -> R) -> R {
        CURRENT.sync_scope(self.clone(), || self.0.span.in_scope(f))
    }
}

impl<I: Data, O: Data> Scope for Inner<Life<I, O>> {
    fn within(self: Arc<Self>, f: &mut dyn FnMut()) {
        if RunContext::is_current(Arc::as_ptr(&self).cast()) { f() } else { RunContext(self).inside(f) }
    }
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext")
            .field("trace", &self.trace())
            .field("namespace", &self.0.emitter.namespace())
            .field("ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}
