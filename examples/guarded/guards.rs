//! The five guards of a run that answers a letter, and of the tools below it.

use std::time::Duration;

use emitree::middleware::{Budget, Cache, ExfilGuard, Redact, Retry, Runs};
use emitree::runnable::RunnableFn;
use emitree::{Middleware, Result, for_tree};

/// - `budget`: a letter may not take more than six tools.
/// - `redact`: what the desk keeps of a letter names nobody.
/// - `cache`: the same letter is read once.
/// - `retry`: the register is asked again while it is busy.
/// - `exfil_guard`: nothing is sent to hosts that nobody has allowed.
pub(crate) fn guarded<F, I, O>(clerk: RunnableFn<F, I, O>) -> Result<RunnableFn<F, I, O>> {
    Ok(clerk
        .middleware(Budget::builder().calls(6).of_kind("Tool").build()?)
        .middleware(Redact::new())
        .middleware(on_tool("read", Cache::json().build()?))
        .middleware(on_tool("look_up", Retry::builder().base_delay(Duration::from_millis(20)).build()?))
        .middleware(on_tool("send", ExfilGuard::new().allow_hosts(["desk.example.org"]))))
}

fn on_tool(name: &'static str, middleware: impl Middleware) -> impl Middleware {
    for_tree(Runs::of_kind("Tool").and(Runs::named(name)).only(middleware))
}
