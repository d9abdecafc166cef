//! What was said about a run before it began.

use std::ops::Deref;
use std::sync::Arc;

use emitree_emitter::{Context, Creator, Registration, RunLinks};

use crate::{Extensions, Middleware, Result, RunContext, Runnable};

/// A run that has not begun.
pub(crate) struct Plan<'a, R: Runnable> {
    pub(crate) runnable: Held<'a, R>,
    pub(crate) input: R::Input,
    /// The run in which it was made.
    pub(crate) parent: Option<RunContext>,
    /// Most runs have none.
    pub(crate) extras: Option<Box<Extras>>,
}

/// What belongs to this run only.
#[derive(Default)]
pub(crate) struct Extras {
    pub(crate) registrations: Vec<Registration>,
    pub(crate) middlewares: Vec<Arc<dyn Middleware>>,
    pub(crate) context: Context,
    pub(crate) group_id: Option<Arc<str>>,
    pub(crate) extensions: Extensions,
}

impl<R: Runnable> Plan<'_, R> {
    /// Makes the run's context, and registers its listeners: what can fail before middlewares are bound.
    pub(crate) fn begin(&mut self) -> Result<RunContext> {
        // A parent that has ended is none.
        let parent = self.parent.take().filter(|parent| !parent.has_ended());
        let creator = own_creator(&*self.runnable);
        let instance = self.runnable.emitter();
        let mut links = RunLinks::new();
        links = creator.into_iter().fold(links, RunLinks::creator);
        let Some(extras) = &mut self.extras else {
            return Ok(RunContext::begin(instance, parent, links, &Extensions::default()));
        };
        links = links.context(std::mem::take(&mut extras.context))?;
        links = extras.group_id.take().into_iter().fold(links, RunLinks::group_id);
        let ctx = RunContext::begin(instance, parent, links, &extras.extensions);
        for registration in extras.registrations.drain(..) {
            ctx.emitter().register(registration)?;
        }
        Ok(ctx)
    }

    /// What is bound to it, in order: the instance's own, then the run's.
    pub(crate) fn middlewares(&self) -> impl Iterator<Item = &Arc<dyn Middleware>> {
        let extras = self.extras.iter().flat_map(|extras| &extras.middlewares);
        self.runnable.middlewares().iter().chain(extras)
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
