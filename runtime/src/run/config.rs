//! What was said about a run before it began.

use std::mem::take;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Context, Creator, Registration};
use smallvec::SmallVec;

use crate::abort::watch::Watch;
use crate::chain::Bound;
use crate::context::emitter::EmitterSpec;
use crate::context::extensions::Values;
use crate::context::{Seed, ThinRun, TypedRun};
use crate::lifecycle::subscribers::Subscribers;
use crate::middleware::Inherited;
use crate::middleware::order::InOrder;
use crate::run::drive::RunCore;
use crate::run::shutdown::may_begin;
use crate::{AbortSignal, Error, Middleware, Result, RunContext, Runnable};

/// Why a run cannot begin whose parent takes no more.
const TOO_LATE: &str = "the run that it was made in ended before it was first polled";

/// A run that has begun, with its types.
pub(crate) type StartedRun<R> = TypedRun<<R as Runnable>::Input, <R as Runnable>::Output>;

/// A run that has not begun.
pub(crate) struct RunConfig<'a, R: Runnable> {
    pub(crate) runnable: RunnableRef<'a, R>,
    /// Until the run has it.
    pub(crate) input: Option<R::Input>,
    /// The run in which it was made.
    pub(crate) parent: Option<RunContext>,
    pub(crate) signal: Option<AbortSignal>,
    /// Most runs have none.
    pub(crate) overrides: Option<Box<Overrides>>,
}

/// What belongs to this run only.
#[derive(Default)]
pub(crate) struct Overrides {
    /// In the order of the calls (R4).
    pub(crate) bindings: SmallVec<[Binding; 2]>,
    pub(crate) context: Context,
    pub(crate) group_id: Option<Arc<str>>,
    pub(crate) extensions: Values,
    /// Beyond the first.
    pub(crate) signals: Vec<AbortSignal>,
    pub(crate) timeout: Option<Duration>,
}

/// What is bound to this run.
pub(crate) enum Binding {
    /// Until it is registered.
    Listener(Option<Registration>),
    Middleware(Arc<dyn Middleware>),
}

/// The same, to be put in order with what is bound by others.
pub(crate) enum PendingBinding<'a> {
    Listener(&'a mut Option<Registration>),
    Middleware(&'a Arc<dyn Middleware>),
}

impl PendingBinding<'_> {
    pub(crate) fn bind(&mut self, ctx: &RunContext) -> Result<()> {
        match self {
            Self::Middleware(middleware) => middleware.bind(ctx),
            Self::Listener(registration) => {
                let Some(registration) = registration.take() else { return Ok(()) };
                ctx.emitter().register(registration)?;
                Ok(())
            }
        }
    }
}

impl InOrder for PendingBinding<'_> {
    fn middleware(&self) -> Option<&Arc<dyn Middleware>> {
        match self {
            Self::Middleware(middleware) => Some(middleware),
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

    fn pending(&mut self) -> impl Iterator<Item = PendingBinding<'_>> {
        self.bindings.iter_mut().map(|bindings| match bindings {
            Binding::Listener(registration) => PendingBinding::Listener(registration),
            Binding::Middleware(middleware) => PendingBinding::Middleware(middleware),
        })
    }
}

impl<R: Runnable> RunConfig<'_, R> {
    /// Makes the run. Where nobody can ask for its input before the work does, it has that at once.
    pub(crate) fn begin(&mut self) -> Result<ThinRun<R::Input, R::Output>> {
        may_begin()?;
        let is_heard = self.is_heard();
        // Looked at once: a run is observed from its start, or not by what is bound above meanwhile; nor is that bound to it.
        let subscribers = Subscribers::new(self.parent.as_ref());
        let inherited = self.parent.as_ref().map(|above| above.inherited().for_below()).unwrap_or_default();
        let bound = self.bound(&inherited);
        let may_be_asked = is_heard || self.overrides.is_some() || bound.is_some() || !subscribers.is_empty();
        let input = if may_be_asked { None } else { self.input.take() };
        let mut own = EmitterSpec { creator: own_creator(&*self.runnable), ..EmitterSpec::default() };
        let mut extensions = Values::default();
        if let Some(overrides) = &mut self.overrides {
            overrides.context.refuse_reserved()?;
            own.context = take(&mut overrides.context);
            own.group_id = overrides.group_id.take();
            extensions = take(&mut overrides.extensions);
        }
        let (instance, core) = (self.runnable.emitter(), RunCore::new(self.runnable.face().0, input));
        let seed = Seed { instance, own, extensions, subscribers, inherited, bound, is_heard, core };
        RunContext::begin(seed, self.parent.take()).map_err(|parent| {
            self.parent = Some(parent);
            Error::aborted(TOO_LATE)
        })
    }

    /// Whether anybody hears it from the beginning.
    fn is_heard(&self) -> bool {
        self.runnable.emitter().is_heard()
            || self.parent.as_ref().is_some_and(RunContext::is_heard)
            || self.overrides.as_ref().is_some_and(|overrides| overrides.has_listeners())
    }

    /// The middlewares that are bound to it, if there are any.
    fn bound(&self, inherited: &Inherited) -> Option<Bound> {
        let is_bound = !inherited.is_empty() || self.overrides.is_some() || !self.runnable.middlewares().is_empty();
        if is_bound { self.all_bound(inherited) } else { None }
    }

    #[inline(never)]
    fn all_bound(&self, inherited: &Inherited) -> Option<Bound> {
        let mut bound = Bound::new();
        if let Some(inherited) = inherited.all() {
            bound.extend(inherited.iter().cloned());
        }
        bound.extend(self.runnable.middlewares().iter().cloned());
        if let Some(overrides) = &self.overrides {
            bound.extend(overrides.middlewares().cloned());
        }
        (!bound.is_empty()).then_some(bound)
    }

    /// Begins to look at what may stop it from outside, beyond the first signal.
    pub(crate) fn limit(&mut self, ctx: &RunContext, watch: &mut Watch) -> Result<()> {
        let Some(overrides) = &mut self.overrides else { return Ok(()) };
        overrides.signals.drain(..).for_each(|signal| watch.add(signal, ctx));
        overrides.timeout.map_or(Ok(()), |after| watch.timeout(after))
    }

    /// What is bound to it, in order: the instance's own, then the run's.
    pub(crate) fn middlewares(&self) -> impl Iterator<Item = &Arc<dyn Middleware>> {
        let overrides = self.overrides.iter().flat_map(|overrides| overrides.middlewares());
        self.runnable.middlewares().iter().chain(overrides)
    }

    /// The same with the run's listeners among it, to be bound; and the input, which may be kept then.
    pub(crate) fn pending(&mut self) -> (impl Iterator<Item = PendingBinding<'_>>, &Option<R::Input>) {
        let Self { runnable, input, overrides, .. } = self;
        let overrides = overrides.iter_mut().flat_map(|overrides| overrides.pending());
        (runnable.middlewares().iter().map(PendingBinding::Middleware).chain(overrides), input)
    }
}

/// A creator of the run's own where the runnable is not called as its emitter's creator is.
fn own_creator<R: Runnable>(runnable: &R) -> Option<Creator> {
    let (kind, name) = (runnable.kind(), runnable.name());
    let known = runnable.emitter().creator();
    let known_as = known.is_some_and(|creator| same(creator.kind(), kind) && same(creator.name(), name));
    (!known_as).then(|| Creator::new(kind.to_owned(), name.to_owned()))
}

/// Most are the very same text.
fn same(a: &str, b: &str) -> bool {
    std::ptr::eq(a, b) || a == b
}

/// What is run, borrowed or shared.
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
