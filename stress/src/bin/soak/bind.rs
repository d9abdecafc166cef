//! Bindings that hold the context of the run they are bound to. All of them must be dropped when the run has ended. Some
//! panic when they are called or dropped.

use std::iter::successors;
use std::sync::Arc;

use emitree::lifecycle::{RunEvent, Stage};
use emitree::{AnyEvent, Middleware, Options, Result, RunContext, Stack};

use crate::bad::{Bad, Payload};
use crate::plan::{Binding, Manner, Place};
use crate::record::Log;
use crate::tree::{Branch, Shared};

/// The value in a binding. It is called and dropped inside the run or, if runs below share the binding, inside one of them.
struct Held {
    ctx: RunContext,
    binding: Binding,
    log: Log,
    _bad: Option<Bad>,
    /// A clone of `Shared::bound`, which counts the bindings that are not dropped yet.
    _bound: Arc<()>,
}

impl Held {
    fn call(&self) {
        self.log.look_around(self.ctx.run_id().as_u128());
        self.act();
    }

    /// Does the planned action, inside the run or a run below.
    fn act(&self) {
        match self.binding.manner {
            Manner::Panics => Payload::Text.panic(),
            Manner::PanicsBadly => Payload::Bad.panic(),
            Manner::Quiet | Manner::DropsBadly | Manner::DropsWorse => {}
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let current = RunContext::current();
        // A child that is about to begin shares bindings of these kinds. If this run ends first, they may be dropped
        // inside the child.
        let is_shared = matches!(self.binding.place, Place::Observer | Place::Nested);
        let mut around = successors(current.as_ref(), |run| run.parent().filter(|_| is_shared));
        if !around.any(|run| *run == self.ctx) {
            self.log.astray(self.ctx.run_id().as_u128());
        }
    }
}

pub(crate) fn bind(ctx: &RunContext, binding: Binding, shared: &Shared) -> Result<()> {
    shared.log.binds(binding);
    shared.hold(ctx);
    let bad = match binding.manner {
        Manner::DropsBadly => Some(Bad(Payload::Text)),
        Manner::DropsWorse => Some(Bad(Payload::Bad)),
        Manner::Quiet | Manner::Panics | Manner::PanicsBadly => None,
    };
    let held =
        Held { ctx: ctx.clone(), binding, log: shared.log.clone(), _bad: bad, _bound: Arc::clone(&shared.bound) };
    match binding.place {
        Place::Bind => held.call(),
        Place::Listener => listen(ctx, Options::new(), held)?,
        Place::Persistent => listen(ctx, Options::new().persistent(), held)?,
        Place::Layer => lay_around(ctx, held)?,
        Place::Observer => ctx.subscribe(move |_: &RunEvent<'_>| held.act()),
        Place::MapError => ctx.map_error(move |error| {
            held.call();
            error
        }),
        Place::MapContext => {
            ctx.map_context(move |_, value| {
                held.call();
                value
            });
            ctx.set("soak", 0)?;
        }
        Place::Nested => ctx.bind_nested(move |_: &RunContext| {
            held.act();
            Ok(())
        }),
        Place::AtEnd => ctx.on_end(move |_, _| held.call()),
    }
    Ok(())
}

fn listen(ctx: &RunContext, options: Options, held: Held) -> Result<()> {
    ctx.emitter().with(options).observe(Stage::Finish, move |_: &dyn AnyEvent, _| held.call())?;
    Ok(())
}

fn lay_around(ctx: &RunContext, held: Held) -> Result<()> {
    let around = Stack::<Branch>::builder().layer_fn("bound", move |input, _, next| {
        held.call();
        Box::pin(next.run(input))
    });
    around.build().bind(ctx)
}
