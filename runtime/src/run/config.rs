//! The configuration of a run. It makes the run, and binds the run's middlewares and listeners.

use std::mem::take;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use emitree_emitter::rt::binding;
use emitree_emitter::{Context, Creator, Registration};
use smallvec::SmallVec;

use crate::abort::watch::Watch;
use crate::context::emitter::EmitterSpec;
use crate::context::extensions::Values;
use crate::context::{Seed, ThinRun, TypedRun};
use crate::key::OwnKey;
use crate::lifecycle::subscribers::Subscribers;
use crate::middleware::Inherited;
use crate::middleware::order::{InOrder, in_order};
use crate::run::bindings::Bound;
use crate::run::drive::RunCore;
use crate::run::shutdown::{CLOSED, REASON};
use crate::{AbortSignal, Error, Middleware, Result, RunContext, Runnable, TraceParent};

/// The error message of a run whose parent has closed before the first poll.
const TOO_LATE: &str = "the parent run ended before this run was first polled";

/// A run that has begun, and whose types are known.
pub(crate) type StartedRun<R> = TypedRun<<R as Runnable>::Input, <R as Runnable>::Output>;

/// The configuration of a run that has not begun.
pub(crate) struct RunConfig<'a, R: Runnable> {
    pub(crate) runnable: RunnableRef<'a, R>,
    /// `Some` until the run takes the input.
    pub(crate) input: Option<R::Input>,
    /// The run in which this run was made.
    pub(crate) parent: Option<RunContext>,
    pub(crate) signal: Option<AbortSignal>,
    /// The whole key of the run, made when it is first read.
    pub(crate) key: Option<Box<OwnKey>>,
    /// `None` for most runs.
    pub(crate) overrides: Option<Box<Overrides>>,
}

/// Settings that apply to one run only.
#[derive(Default)]
pub(crate) struct Overrides {
    /// The listeners and middlewares, in the order of the calls (R4).
    pub(crate) bindings: SmallVec<[Binding; 2]>,
    pub(crate) context: Context,
    pub(crate) group_id: Option<Arc<str>>,
    pub(crate) trace_parent: Option<Box<TraceParent>>,
    pub(crate) extensions: Values,
    /// All signals except the first signal.
    pub(crate) signals: Vec<AbortSignal>,
    pub(crate) timeout: Option<Duration>,
    /// The run's own parts of its key, to be compared in the scope.
    pub(crate) key: Vec<Box<str>>,
    pub(crate) is_idempotent: bool,
}

/// A listener or middleware of one run.
pub(crate) enum Binding {
    /// `Some` until the listener is registered.
    Listener(Option<Registration>),
    Middleware(Arc<dyn Middleware>),
}

/// A binding that is sorted together with other bindings, and then bound.
enum PendingBinding<'a> {
    Listener(&'a mut Option<Registration>),
    Inherited(&'a dyn Middleware),
    Middleware(&'a dyn Middleware),
}

impl InOrder for PendingBinding<'_> {
    fn middleware(&self) -> Option<&dyn Middleware> {
        match self {
            Self::Inherited(middleware) | Self::Middleware(middleware) => Some(*middleware),
            Self::Listener(_) => None,
        }
    }
}

impl Overrides {
    fn has_listeners(&self) -> bool {
        self.bindings.iter().any(|bindings| matches!(bindings, Binding::Listener(_)))
    }

    fn middlewares(&self) -> impl Iterator<Item = &Arc<dyn Middleware>> {
        self.bindings.iter().filter_map(|bindings| match bindings {
            Binding::Middleware(middleware) => Some(middleware),
            Binding::Listener(_) => None,
        })
    }
}

impl<R: Runnable> RunConfig<'_, R> {
    /// Makes the run. If no listener, subscriber or binding can see the input before the work begins, the input is
    /// moved into the run at once.
    pub(crate) fn begin(&mut self) -> Result<ThinRun<R::Input, R::Output>> {
        if CLOSED.load(Ordering::Acquire) {
            return Err(Error::aborted(REASON));
        }
        let parent = self.parent.as_ref();
        let has_listeners = self.runnable.emitter().has_listeners()
            || parent.is_some_and(RunContext::has_listeners)
            || self.overrides.as_ref().is_some_and(|overrides| overrides.has_listeners());
        // Read once: a subscriber or middleware that is bound to a run above from now on does not apply to this run.
        let subscribers = Subscribers::new(parent);
        let inherited = Inherited::new(parent.and_then(|parent| parent.shared().inherited.all()));
        let has_middlewares =
            !inherited.is_empty() || self.overrides.is_some() || !self.runnable.middlewares().is_empty();
        let overrides = self.overrides.as_deref();
        let bound = if has_middlewares { bound(&inherited, self.runnable.middlewares(), overrides) } else { None };
        let may_be_asked = has_listeners || self.overrides.is_some() || bound.is_some() || !subscribers.all.is_empty();
        let input = if may_be_asked { None } else { self.input.take() };
        let creator = own_creator(&*self.runnable);
        let mut own = EmitterSpec { context: Context::new(), group_id: None, creator, trace_parent: None };
        let mut extensions = Values::NONE;
        let mut is_idempotent = self.runnable.is_idempotent();
        if let Some(overrides) = &mut self.overrides {
            overrides.context.refuse_reserved()?;
            own.context = take(&mut overrides.context);
            own.group_id = overrides.group_id.take();
            own.trace_parent = overrides.trace_parent.take();
            extensions = take(&mut overrides.extensions);
            is_idempotent |= overrides.is_idempotent;
        }
        let instance = self.runnable.emitter();
        let core = RunCore::new(self.runnable.face().0, input);
        let seed = Seed {
            instance,
            own,
            key: self.key.take(),
            extensions,
            is_idempotent,
            subscribers,
            inherited,
            bound,
            has_listeners,
            core,
        };
        RunContext::make(seed, self.parent.take()).map_err(|parent| {
            self.parent = Some(parent);
            Error::aborted(TOO_LATE)
        })
    }

    /// Sets the run's timeout, all signals except the first, and the run's key, and binds its middlewares and listeners.
    pub(crate) fn bind(&mut self, ctx: &RunContext, watch: &mut Option<Watch>) -> Result<()> {
        bind(self.runnable.middlewares(), self.overrides.as_deref_mut(), ctx, watch)?;
        // No listener has seen the input yet, because `start` comes next: keep the caller's value for `original`.
        if let (Some(chain), Some(input)) = (ctx.existing_chain(), &self.input) {
            chain.keep_input(input);
        }
        Ok(())
    }

    /// Returns the instance's middlewares, and then the run's own.
    pub(crate) fn middlewares(&self) -> impl Iterator<Item = &Arc<dyn Middleware>> {
        let overrides = self.overrides.iter().flat_map(|overrides| overrides.middlewares());
        self.runnable.middlewares().iter().chain(overrides)
    }
}

// The two functions below have no type parameters: otherwise each type of runnable would compile them again, which took a
// fifth of the time in which a program with hundreds of runnables compiles.

/// Returns the middlewares that are going to be bound to a run, if there are any.
#[inline(never)]
fn bound(inherited: &Inherited, of_instance: &[Arc<dyn Middleware>], overrides: Option<&Overrides>) -> Option<Bound> {
    let mut bound = Bound::new();
    if let Some(inherited) = inherited.all() {
        bound.extend(inherited.iter().cloned());
    }
    bound.extend(of_instance.iter().cloned());
    if let Some(overrides) = overrides {
        bound.extend(overrides.middlewares().cloned());
    }
    if bound.is_empty() { None } else { Some(bound) }
}

/// Sets a run's timeout, all signals except the first, and the run's key. Then binds inherited middlewares, the instance's
/// middlewares, and the run's own middlewares and listeners in the order of the calls. An `Order` may move a middleware
/// (R4).
fn bind(
    of_instance: &[Arc<dyn Middleware>],
    mut overrides: Option<&mut Overrides>,
    ctx: &RunContext,
    watch: &mut Option<Watch>,
) -> Result<()> {
    if let Some(overrides) = &mut overrides {
        for signal in overrides.signals.drain(..) {
            watch.get_or_insert_default().add(signal, ctx);
        }
        if let Some(after) = overrides.timeout {
            watch.get_or_insert_default().timeout(after)?;
        }
        // Before the middlewares, so that they see the key (R15).
        ctx.take_parts(&overrides.key)?;
    }
    // Use a snapshot, because a middleware that is bound here may add middlewares for the runs below to the same list.
    let inherited = ctx.shared().inherited.all();
    let inherited = inherited.iter().flat_map(|inherited| inherited.iter());
    let inherited = inherited.map(|given| PendingBinding::Inherited(&**given));
    let middlewares = of_instance.iter().map(|given| PendingBinding::Middleware(&**given));
    let own = overrides.into_iter().flat_map(|overrides| &mut overrides.bindings).map(|binding| match binding {
        Binding::Listener(registration) => PendingBinding::Listener(registration),
        Binding::Middleware(middleware) => PendingBinding::Middleware(&**middleware),
    });
    for pending in in_order(inherited.chain(middlewares).chain(own))? {
        match pending {
            PendingBinding::Inherited(middleware) => binding(|| middleware.bind(ctx))?,
            // A middleware that this run or its runnable names is meant for this run (M11).
            PendingBinding::Middleware(middleware) => ctx.bind(middleware)?,
            PendingBinding::Listener(registration) => {
                if let Some(registration) = registration.take() {
                    ctx.emitter().register(registration)?;
                }
            }
        }
    }
    Ok(())
}

/// Returns a creator for the run, unless the creator of the runnable's emitter has the same kind and name as the
/// runnable.
fn own_creator<R: Runnable>(runnable: &R) -> Option<Creator> {
    let kind = runnable.kind();
    let name = runnable.name();
    let known = runnable.emitter().creator();
    let known_as = known.is_some_and(|creator| same(creator.kind(), kind) && same(creator.name(), name));
    (!known_as).then(|| Creator::new(kind.to_owned(), name.to_owned()))
}

/// Compares texts by address first, because both are usually the same text in memory.
fn same(a: &str, b: &str) -> bool {
    std::ptr::eq(a, b) || a == b
}

/// A runnable, borrowed or shared.
pub(crate) enum RunnableRef<'a, R> {
    Borrowed(&'a R),
    Shared(Arc<R>),
}

impl<R> Deref for RunnableRef<'_, R> {
    type Target = R;

    fn deref(&self) -> &R {
        match self {
            Self::Borrowed(runnable) => runnable,
            Self::Shared(runnable) => runnable,
        }
    }
}
