//! The emitter of a run (R2).
//!
//! A run without listeners has no emitter until code calls [`RunContext::emitter`], which is rare. The inherited
//! context is read when the run begins, so it does not matter when the emitter is made.
//!
//! It is a child of its instance's emitter, with the same namespace, and its events also rise to the emitter of the
//! parent run. It has a weak reference to the run, as a `Scope`, and enters this scope around every listener of the run's
//! events and where it drops values of the run. So [`RunContext::current`] returns the run even in a listener on the
//! root.

use std::iter::successors;
use std::sync::{Arc, OnceLock, Weak};

use emitree_emitter::rt::{NoListenerCache, RunLinks, Scope};
use emitree_emitter::{Context, Creator, Emitter, new_id};
use smallvec::SmallVec;
use uuid::Uuid;

use crate::context::{SharedRun, WeakRun};
use crate::{RunContext, TraceParent};

/// From this depth on, a run remembers that it has no listeners, so that the runs above are not searched again for each
/// run below.
const DEEP: usize = 32;

/// The instance of a run, and the run's own emitter, which is made on demand.
pub(crate) struct LazyEmitter {
    pub(crate) instance: Emitter,
    own: EmitterSpec,
    /// Set if the run's span needed the id before there was an emitter.
    run_id: Option<Uuid>,
    made: OnceLock<Made>,
    /// Used from depth `DEEP` on.
    no_listeners: NoListenerCache,
}

/// The properties of a run's emitter.
pub(crate) struct EmitterSpec {
    pub(crate) context: Context,
    pub(crate) group_id: Option<Arc<str>>,
    pub(crate) creator: Option<Creator>,
    /// The span of another process that the run was given as its parent (R16).
    pub(crate) trace_parent: Option<Box<TraceParent>>,
}

/// The emitter of a run.
struct Made {
    emitter: Emitter,
    /// The scope of an emitter that was made later than the run. The emitter has only a weak reference to the scope, so
    /// the scope is kept here.
    scope: Option<Arc<WeakRun>>,
}

impl LazyEmitter {
    /// Reads the inherited context and group, which `own` overrides. The run inherits the context values of its
    /// instance and of its parent; if both have a key, the parent's value is taken. The run inherits the parent's
    /// group, or else the instance's group.
    #[inline(always)]
    pub(crate) fn new(instance: &Emitter, above: Option<&RunContext>, own: EmitterSpec, run_id: Option<Uuid>) -> Self {
        let inherited = match above {
            Some(above) => instance.context().merged(&above.context()),
            None => instance.context(),
        };
        let inherited_group = || above.and_then(RunContext::group).or_else(|| instance.shared_group_id());
        let group_id = own.group_id.or_else(inherited_group);
        let own = EmitterSpec { context: inherited.merged(&own.context), group_id, ..own };
        Self { instance: instance.clone(), own, run_id, made: OnceLock::new(), no_listeners: NoListenerCache::new() }
    }

    /// Makes the emitter together with the run, because the run has listeners.
    pub(crate) fn make_with(&self, above: Option<&RunContext>, scope: Weak<dyn Scope>) {
        self.made.get_or_init(|| Made { emitter: self.make(above, scope), scope: None });
    }

    fn make(&self, above: Option<&RunContext>, scope: Weak<dyn Scope>) -> Emitter {
        let EmitterSpec { context, group_id, creator, trace_parent } = &self.own;
        let mut links = RunLinks::new().inherited(context.clone()).scope(scope).inside_if(RunContext::is_current);
        if let Some(above) = above {
            links = links.parent(above.emitter());
        }
        if let Some(group_id) = group_id {
            links = links.group_id(Arc::clone(group_id));
        }
        if let Some(creator) = creator {
            links = links.creator(creator.clone());
        }
        let run_id = self.run_id.or_else(|| trace_parent.as_ref().map(|_| new_id()));
        if let Some(run_id) = run_id {
            links = links.run_id(run_id);
        }
        // A run with a parent here keeps its place below this parent (R16).
        if let (None, Some(trace_parent), Some(run_id)) = (above, trace_parent, run_id) {
            links = links.trace(trace_parent.trace_of(run_id));
        }
        self.instance.for_run(links)
    }

    /// Returns `true` if the run, its instance, or an emitter above the instance has listeners. The runs above are not
    /// checked.
    #[inline]
    fn has_listeners(&self) -> bool {
        self.made().map_or_else(|| self.instance.has_listeners(), Emitter::has_listeners_in_tree)
    }

    /// Returns the emitter if it has been made.
    #[inline]
    pub(crate) fn made(&self) -> Option<&Emitter> {
        self.made.get().map(|made| &made.emitter)
    }

    /// Returns `true` if this is the scope of an emitter that was made later than the run.
    pub(crate) fn is_scope(&self, scope: *const ()) -> bool {
        let own = self.made.get().and_then(|made| made.scope.as_ref());
        own.is_some_and(|own| Arc::as_ptr(own).cast::<()>() == scope)
    }
}

impl RunContext {
    /// Returns the run's own emitter. Events emitted on it are received by listeners on the run, on its instance, and
    /// on all emitters above the instance. The events also reach each run above, its instance, and the emitters above
    /// that instance.
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        self.shared().lazy_emitter.made().unwrap_or_else(|| self.make_emitter())
    }

    /// Makes the run's emitter, after the emitters of the runs above. These are made in a loop, because runs may be
    /// nested deeply.
    #[cold]
    fn make_emitter(&self) -> &Emitter {
        let unmade = |run: &&Self| run.shared().lazy_emitter.made().is_none();
        let runs: SmallVec<[&Self; 8]> =
            successors(self.parent().filter(unmade), |run| run.parent().filter(unmade)).collect();
        // Begin with the topmost run, because each emitter holds the emitter of its parent run.
        for run in runs.into_iter().rev() {
            run.make_own();
        }
        self.make_own()
    }

    /// Makes the run's emitter. Call this after the parent's emitter has been made, so that the call does not recurse.
    fn make_own(&self) -> &Emitter {
        let made = self.shared().lazy_emitter.made.get_or_init(|| {
            let scope = Arc::new(self.downgrade());
            let entered: Weak<WeakRun> = Arc::downgrade(&scope);
            Made { emitter: self.shared().lazy_emitter.make(self.parent(), entered), scope: Some(scope) }
        });
        // If the run has ended meanwhile, this also ends the new emitter (R14).
        self.bound();
        &made.emitter
    }

    /// Returns the creator of the run's events: the instance's creator, or a separate creator if the runnable's kind or
    /// name differs from the instance's.
    #[must_use]
    pub fn creator(&self) -> Option<&Creator> {
        let LazyEmitter { instance, own, .. } = &self.shared().lazy_emitter;
        own.creator.as_ref().or_else(|| instance.creator())
    }

    /// Returns the kind of the runnable: [`Runnable::kind`](crate::Runnable::kind).
    #[must_use]
    pub fn kind(&self) -> &str {
        self.creator().map_or("Run", Creator::kind)
    }

    /// Returns the name of the runnable: [`Runnable::name`](crate::Runnable::name).
    #[must_use]
    pub fn name(&self) -> &str {
        self.creator().map_or_else(|| self.instance_ref().namespace(), Creator::name)
    }

    /// Returns `true` if events that are emitted on the run may have listeners. Check this before you emit optional
    /// events, because calling [`emitter`](Self::emitter) makes an emitter for the run.
    #[must_use]
    pub fn has_listeners(&self) -> bool {
        !self.node().state.is_released() && self.shared().has_listeners()
    }

    /// Returns the span of another process that the run was given as its parent.
    pub(crate) fn given_trace_parent(&self) -> Option<&TraceParent> {
        self.shared().lazy_emitter.own.trace_parent.as_deref()
    }

    /// Returns the group of the run's events.
    fn group(&self) -> Option<Arc<str>> {
        let lazy = &self.shared().lazy_emitter;
        lazy.made().map_or_else(|| lazy.own.group_id.clone(), Emitter::shared_group_id)
    }

    /// Sets the group of later events of the run, and of runs that are started in it from now on. Runs that have begun
    /// keep their group.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let session = runnable_fn("session", |(): (), ctx: RunContext| async move {
    ///     ctx.set_group_id("session 7");
    ///     Ok(ctx.emitter().group_id().map(str::to_owned))
    /// });
    /// assert_eq!(session.run(()).await?.as_deref(), Some("session 7"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_group_id(&self, group_id: impl Into<Arc<str>>) {
        self.emitter().set_group_id(group_id);
    }

    /// Returns the context values that events of the run carry and nested runs inherit.
    #[must_use]
    pub fn context(&self) -> Context {
        let lazy = &self.shared().lazy_emitter;
        lazy.made().map_or_else(|| lazy.own.context.clone(), Emitter::context)
    }
}

impl SharedRun {
    /// Returns `true` if the run's events may have listeners. The listeners may be registered on the run or a run
    /// above, on the instance of one of these runs, or on an emitter above such an instance.
    pub(crate) fn has_listeners(&self) -> bool {
        if self.depth >= DEEP {
            return self.has_listeners_deep();
        }
        let mut run = self;
        while !run.lazy_emitter.has_listeners() {
            let Some(above) = &run.parent else { return false };
            run = above.run().shared();
        }
        true
    }

    #[cold]
    fn has_listeners_deep(&self) -> bool {
        // Read the epoch before the walk: a listener that is added during the walk changes the epoch, so the result is
        // not reused.
        let epoch = NoListenerCache::epoch();
        let mut run = self;
        while !run.lazy_emitter.no_listeners.holds(epoch) {
            if run.lazy_emitter.has_listeners() {
                return true;
            }
            let Some(above) = &run.parent else { break };
            run = above.run().shared();
        }
        self.lazy_emitter.no_listeners.remember(epoch);
        false
    }
}
