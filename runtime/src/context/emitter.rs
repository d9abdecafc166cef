//! What a run's emitter is made of, and the emitter (R2).
//!
//! A run that nobody hears when it begins has none until somebody asks for it; most never do. What it inherits was taken
//! down when the run began, so it does not matter when that is.

use std::iter::successors;
use std::sync::{Arc, OnceLock, Weak};

use emitree_emitter::rt::{NoListenerCache, RunLinks, Scope};
use emitree_emitter::{Context, Creator, Emitter};
use smallvec::SmallVec;
use uuid::Uuid;

use crate::RunContext;
use crate::context::{SharedRun, WeakRun};

/// A run that is nested deeper remembers that nobody hears it: a chain of runs is then looked through once, and not once for
/// each of them.
const DEEP: usize = 32;

/// What a run is a run of, and what is known of it from the beginning.
pub(crate) struct LazyEmitter {
    pub(crate) instance: Emitter,
    own: EmitterSpec,
    /// If it was told before there was an emitter.
    run_id: Option<Uuid>,
    made: OnceLock<Made>,
    /// Used by runs that are nested deep.
    nobody: NoListenerCache,
}

/// What was given to a run itself.
pub(crate) struct EmitterSpec {
    pub(crate) context: Context,
    pub(crate) group_id: Option<Arc<str>>,
    pub(crate) creator: Option<Creator>,
}

/// The emitter of a run.
struct Made {
    emitter: Emitter,
    /// What it enters where it was made later than the run: held here.
    scope: Option<Arc<WeakRun>>,
}

impl LazyEmitter {
    /// A run that begins. It inherits the context of its instance, with that of the run above laid over it.
    /// It may have told its id already.
    #[inline(always)]
    pub(crate) fn new(instance: &Emitter, above: Option<&RunContext>, own: EmitterSpec, run_id: Option<Uuid>) -> Self {
        let inherited = match above {
            Some(above) => instance.context().merged(&above.context()),
            None => instance.context(),
        };
        let inherited_group = || above.and_then(RunContext::group).or_else(|| instance.shared_group_id());
        let group_id = own.group_id.or_else(inherited_group);
        let own = EmitterSpec { context: inherited.merged(&own.context), group_id, ..own };
        Self { instance: instance.clone(), own, run_id, made: OnceLock::new(), nobody: NoListenerCache::new() }
    }

    /// Makes its emitter with the run, because somebody hears it.
    pub(crate) fn make_with(&self, above: Option<&RunContext>, scope: Weak<dyn Scope>) {
        self.made.get_or_init(|| Made { emitter: self.make(above, scope), scope: None });
    }

    fn make(&self, above: Option<&RunContext>, scope: Weak<dyn Scope>) -> Emitter {
        let EmitterSpec { context, group_id, creator } = &self.own;
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
        if let Some(run_id) = self.run_id {
            links = links.run_id(run_id);
        }
        self.instance.for_run(links)
    }

    /// Whether anybody hears it who is not above the run that it was started in.
    #[inline]
    fn is_heard(&self) -> bool {
        self.made().map_or_else(|| self.instance.is_heard(), Emitter::is_heard_in_tree)
    }

    /// The emitter, if somebody has asked for it.
    #[inline]
    pub(crate) fn made(&self) -> Option<&Emitter> {
        self.made.get().map(|made| &made.emitter)
    }

    /// Whether that is what a later emitter enters.
    pub(crate) fn is_scope(&self, scope: *const ()) -> bool {
        let own = self.made.get().and_then(|made| made.scope.as_ref());
        own.is_some_and(|own| Arc::as_ptr(own).cast::<()>() == scope)
    }
}

impl RunContext {
    /// The run's own emitter: what is emitted there is heard by the run, its instance, everything above that, and by
    /// the runs that it was started in.
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        self.shared().lazy_emitter.made().unwrap_or_else(|| self.make_emitter())
    }

    /// Those above first; not by recursion, for runs may be nested deep.
    #[cold]
    fn make_emitter(&self) -> &Emitter {
        let unmade = |run: &&Self| run.shared().lazy_emitter.made().is_none();
        let runs: SmallVec<[&Self; 8]> =
            successors(self.parent().filter(unmade), |run| run.parent().filter(unmade)).collect();
        for run in runs.into_iter().rev() {
            run.make_own();
        }
        self.make_own()
    }

    /// Where the run above has its emitter.
    fn make_own(&self) -> &Emitter {
        let made = self.shared().lazy_emitter.made.get_or_init(|| {
            let scope = Arc::new(self.downgrade());
            let entered: Weak<WeakRun> = Arc::downgrade(&scope);
            Made { emitter: self.shared().lazy_emitter.make(self.parent(), entered), scope: Some(scope) }
        });
        self.bound();
        &made.emitter
    }

    /// Who runs: the runnable's creator, or one of the run's own where the runnable is not called as that is.
    #[must_use]
    pub fn creator(&self) -> Option<&Creator> {
        let LazyEmitter { instance, own, .. } = &self.shared().lazy_emitter;
        own.creator.as_ref().or_else(|| instance.creator())
    }

    /// What sort of thing is run: [`Runnable::kind`](crate::Runnable::kind).
    #[must_use]
    pub fn kind(&self) -> &str {
        self.creator().map_or("Run", Creator::kind)
    }

    /// What the thing is called: [`Runnable::name`](crate::Runnable::name).
    #[must_use]
    pub fn name(&self) -> &str {
        self.creator().map_or_else(|| self.instance_ref().namespace(), Creator::name)
    }

    /// Whether anybody hears what the run emits, or may. If not, it has no [`emitter`](Self::emitter) before that is asked
    /// for, so who only would emit asks this first.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        !self.node().state.is_released() && self.shared().is_heard()
    }

    /// The group of later events of the run, and of runs started in it from now on.
    fn group(&self) -> Option<Arc<str>> {
        let lazy = &self.shared().lazy_emitter;
        lazy.made().map_or_else(|| lazy.own.group_id.clone(), Emitter::shared_group_id)
    }

    /// Sets the group of later events of the run, and of runs started in it from now on. Those that have begun keep
    /// theirs.
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

    /// What every event of the run, and of runs started in it from now on, carries.
    #[must_use]
    pub fn context(&self) -> Context {
        let lazy = &self.shared().lazy_emitter;
        lazy.made().map_or_else(|| lazy.own.context.clone(), Emitter::context)
    }
}

impl SharedRun {
    /// Returns `true` if the run's events may reach a listener: of the run, its instance, or above.
    pub(crate) fn is_heard(&self) -> bool {
        if self.depth >= DEEP {
            return self.is_heard_deep();
        }
        let mut run = self;
        while !run.lazy_emitter.is_heard() {
            let Some(above) = &run.parent else { return false };
            run = above.run().shared();
        }
        true
    }

    #[cold]
    fn is_heard_deep(&self) -> bool {
        // Read the epoch before the walk: a listener that comes during the walk invalidates what is remembered.
        let epoch = NoListenerCache::epoch();
        let mut run = self;
        while !run.lazy_emitter.nobody.holds(epoch) {
            if run.lazy_emitter.is_heard() {
                return true;
            }
            let Some(above) = &run.parent else { break };
            run = above.run().shared();
        }
        self.lazy_emitter.nobody.remember(epoch);
        false
    }
}
