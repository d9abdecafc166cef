//! The five middlewares that guard the clerk and its tools.

use std::time::Duration;

use emitree::middleware::{Budget, Cache, ExfilGuard, Redact, Retry, Runs};
use emitree::runnable::RunnableFn;
use emitree::{Middleware, Result, for_tree};

/// Binds five built-in middlewares to the clerk:
///
/// - `budget` limits a letter to six runs of tools;
/// - `redact` removes personal data from the answers that the desk keeps;
/// - `cache` makes sure that each letter is read only once;
/// - `retry` calls the register again if it is busy;
/// - `exfil_guard` denies letters to hosts that are not allowed.
pub(crate) fn guarded<F, I, O>(clerk: RunnableFn<F, I, O>) -> Result<RunnableFn<F, I, O>> {
    Ok(clerk
        .middleware(Budget::builder().calls(6).of_kind("Tool").build()?)
        .middleware(Redact::new())
        .middleware(on_tool("read", Cache::json().build()?))
        .middleware(on_tool("look_up", Retry::builder().base_delay(Duration::from_millis(20)).build()?))
        .middleware(on_tool("send", ExfilGuard::new().allow_hosts(["desk.example.org"]))))
}

/// Limits a middleware to the runs of one tool, at any depth.
fn on_tool(name: &'static str, middleware: impl Middleware) -> impl Middleware {
    for_tree(Runs::of_kind("Tool").and(Runs::named(name)).only(middleware))
}
