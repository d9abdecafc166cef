//! What was said about a run before it began.

use std::mem::take;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Context, Creator, Registration};
use smallvec::SmallVec;

use crate::abort::watch::Watch;
use crate::chain::Bound;
use crate::context::emitter::Own;
use crate::context::extensions::Values;
use crate::context::{Seed, ThinRun, Typed};
use crate::lifecycle::subscribers::Subscribers;
use crate::middleware::Inherited;
use crate::middleware::order::InOrder;
use crate::run::core::Life;
use crate::run::shutdown::may_begin;
use crate::{AbortSignal, Error, Middleware, Result, RunContext, Runnable};

/// Why a run cannot begin whose parent takes no more.
const TOO_LATE: &str = "the run that it was made in ended before it was first polled";

/// A run that has begun, with its types.
pub(crate) type Begun<R> = Typed<<R as Runnable>::Input, <R as Runnable>::Output>;

/// A run that has not begun.
pub(crate) struct Plan<'a, R: Runnable> {
    pub(crate) runnable: Held<'a, R>,
    /// Until the run has it.
    pub(crate) input: Option<R::Input>,
    /// The run in which it was made.
    pub(crate) parent: Option<RunContext>,
    pub(crate) signal: Option<AbortSignal>,
    /// Most runs have none.
    pub(crate) extras: Option<Box<Extras>>,
}

/// What belongs to this run only.
#[derive(Default)]
pub(crate) struct Extras {
    /// In the order of the calls (R4).
    pub(crate) said: SmallVec<[Said; 2]>,
    pub(crate) context: Context,
    pub(crate) group_id: Option<Arc<str>>,
    pub(crate) extensions: Values,
    /// Beyond the first.
    pub(crate) signals: Vec<AbortSignal>,
    pub(crate) timeout: Option<Duration>,
}

/// What is bound to this run.
pub(crate) enum Said {
    /// Until it is registered.
    Listener(Option<Registration>),
    Middleware(Arc<dyn Middleware>),
}

/// The same, to be put in order with what is bound by others.
pub(crate) enum Due<'a> {
    Listener(&'a mut Option<Registration>),
    Middleware(&'a Arc<dyn Middleware>),
}

impl Due<'_> {
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

impl InOrder for Due<'_> {
    fn middleware(&self) -> Option<&Arc<dyn Middleware>> {
        match self {
            Self::Middleware(middleware) => Some(middleware),
            Self::Listener(_) => None,
        }
    }
}

impl Extras {
    fn has_listeners(&self) -> bool {
        self.said.iter().any(|said| matches!(said, Said::Listener(_)))
    }

    fn middlewares(&self) -> impl Iterator<Item = &Arc<dyn Middleware>> {
        self.said.iter().filter_map(|said| match said {
            Said::Middleware(middleware) => Some(middleware),
            Said::Listener(_) => None,
        })
    }

    fn due(&mut self) -> impl Iterator<Item = Due<'_>> {
        self.said.iter_mut().map(|said| match said {
            Said::Listener(registration) => Due::Listener(registration),
            Said::Middleware(middleware) => Due::Middleware(middleware),
        })
    }
}

impl<R: Runnable> Plan<'_, R> {
    /// Makes the run. Where nobody can ask for its input before the work does, it has that at once.
    pub(crate) fn begin(&mut self) -> Result<ThinRun<R::Input, R::Output>> {
        may_begin()?;
        let is_heard = self.is_heard();
        // Looked at once: a run is observed from its start, or not by what is bound above meanwhile; nor is that bound to it.
        let subscribers = Subscribers::new(self.parent.as_ref());
        let inherited = self.parent.as_ref().map(|above| above.inherited().for_below()).unwrap_or_default();
        let bound = self.bound(&inherited);
        let may_be_asked = is_heard || self.extras.is_some() || bound.is_some() || !subscribers.is_empty();
        let input = if may_be_asked { None } else { self.input.take() };
        let mut own = Own { creator: own_creator(&*self.runnable), ..Own::default() };
        let mut extensions = Values::default();
        if let Some(extras) = &mut self.extras {
            extras.context.refuse_reserved()?;
            own.context = take(&mut extras.context);
            own.group_id = extras.group_id.take();
            extensions = take(&mut extras.extensions);
        }
        let (instance, life) = (self.runnable.emitter(), Life::new(self.runnable.face().0, input));
        let seed = Seed { instance, own, extensions, subscribers, inherited, bound, is_heard, life };
        RunContext::begin(seed, self.parent.take()).map_err(|parent| {
            self.parent = Some(parent);
            Error::aborted(TOO_LATE)
        })
    }

    /// Whether anybody hears it from the beginning.
    fn is_heard(&self) -> bool {
        self.runnable.emitter().is_heard()
            || self.parent.as_ref().is_some_and(RunContext::is_heard)
            || self.extras.as_ref().is_some_and(|extras| extras.has_listeners())
    }

    /// The middlewares that are bound to it, if there are any.
    fn bound(&self, inherited: &Inherited) -> Option<Bound> {
        let is_bound = !inherited.is_empty() || self.extras.is_some() || !self.runnable.middlewares().is_empty();
        if is_bound { self.all_bound(inherited) } else { None }
    }

    #[inline(never)]
    fn all_bound(&self, inherited: &Inherited) -> Option<Bound> {
        let mut bound = Bound::new();
        if let Some(inherited) = inherited.all() {
            bound.extend(inherited.iter().cloned());
        }
        bound.extend(self.runnable.middlewares().iter().cloned());
        if let Some(extras) = &self.extras {
            bound.extend(extras.middlewares().cloned());
        }
        (!bound.is_empty()).then_some(bound)
    }

    /// Begins to look at what may stop it from outside, beyond the first signal.
    pub(crate) fn limit(&mut self, ctx: &RunContext, watch: &mut Watch) -> Result<()> {
        let Some(extras) = &mut self.extras else { return Ok(()) };
        extras.signals.drain(..).for_each(|signal| watch.add(signal, ctx));
        extras.timeout.map_or(Ok(()), |after| watch.timeout(after))
    }

    /// What is bound to it, in order: the instance's own, then the run's.
    pub(crate) fn middlewares(&self) -> impl Iterator<Item = &Arc<dyn Middleware>> {
        let extras = self.extras.iter().flat_map(|extras| extras.middlewares());
        self.runnable.middlewares().iter().chain(extras)
    }

    /// The same with the run's listeners among it, to be bound; and the input, which may be kept then.
    pub(crate) fn due(&mut self) -> (impl Iterator<Item = Due<'_>>, &Option<R::Input>) {
        let Self { runnable, input, extras, .. } = self;
        let extras = extras.iter_mut().flat_map(|extras| extras.due());
        (runnable.middlewares().iter().map(Due::Middleware).chain(extras), input)
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
pub(crate) enum Held<'a, R> {
    Borrowed(&'a R),
    Shared(Arc<R>),
}

impl<R> Deref for Held<'_, R> {
    type Target = R;

    fn deref(&self) -> &R {
        match self {
            Self::Borrowed(runnable) => runnable,
            Self::Shared(runnable) => runnable,
        }
    }
}
