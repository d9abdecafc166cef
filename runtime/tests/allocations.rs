//! Runs leak no memory, and a run without listeners makes few allocations.
mod support;

use std::sync::Arc;

use allocation_counter::{AllocationInfo, measure};
use emitree_emitter::Emitter;
use emitree_runtime::{AbortHandle, Error, Result, RunContext, RunEvent, RunKey, Runnable, map_output, runnable_fn};
use support::Any;
use tokio::runtime::{Builder, Runtime};

/// A runnable that doubles its input, or fails if the input is zero. The work allocates only the error.
struct Double(Emitter);

impl Runnable for Double {
    type Input = u32;
    type Output = u32;

    fn emitter(&self) -> &Emitter {
        &self.0
    }

    async fn execute(&self, n: &u32, _: &RunContext) -> Result<u32> {
        n.checked_mul(2).filter(|double| *double > 0).ok_or_else(|| Error::new("nothing to double"))
    }
}

impl Double {
    fn new() -> Self {
        Self(Emitter::new().child("double").expect("a valid name"))
    }

    /// Returns a runnable with the name of its emitter's creator, so that its runs do not allocate a name.
    fn named() -> Self {
        let creator = emitree_emitter::Creator::new("Tool", "double");
        Self(Emitter::new().child_builder("double").creator(creator).build().expect("a valid name"))
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime")
}

/// Returns the number of measured runs. No byte may be left, so a leak in one of 10,000 runs is found; the long form
/// finds rarer ones.
fn runs() -> u32 {
    if std::env::var_os("EMITREE_LONG").is_some() { 100_000 } else { 10_000 }
}

/// Measures the allocations of runs. A first run, which is not measured, allocates the values that a process creates
/// only once.
fn measure_runs(once: impl Fn(&Runtime, u32)) -> AllocationInfo {
    let runtime = runtime();
    once(&runtime, 1);
    measure(|| (0..runs()).for_each(|n| once(&runtime, n)))
}

#[test]
fn runs_dropped_before_their_first_poll_leak_no_memory() {
    let double = Double::new();
    let info = measure_runs(|_, n| drop(double.run(n).on("*.*", |_: &mut Any, _| ()).extension(n)));
    assert_eq!(info.bytes_current, 0, "{info:?}");
}

#[test]
fn finished_runs_leak_no_memory() {
    let double = Double::new();
    let info = measure_runs(|runtime, n| drop(runtime.block_on(double.run(n))));
    assert_eq!(info.bytes_current, 0, "{info:?}");
}

#[test]
fn runs_with_listeners_context_and_middlewares_leak_no_memory() {
    let double = Double::new();
    double.0.observe("*.*", |_: &Any, _| ()).expect("a valid matcher");
    let bind = |ctx: &RunContext| {
        ctx.set("key", "value")?;
        ctx.set_extension(7_u64);
        Ok(())
    };
    let info = measure_runs(|runtime, n| {
        let run = double.run(n).middleware(bind).on("*.*", |_: &mut Any, _| ()).on_start(|start, _| start.input += 1);
        drop(runtime.block_on(run));
    });
    assert_eq!(info.bytes_current, 0, "{info:?}");
}

#[test]
fn runs_with_layers_and_retries_leak_no_memory() {
    let double = Double::new();
    let again = || {
        map_output(
            |n: &mut u32, ctx: &RunContext| {
                if ctx.attempt() == 0 { Err(Error::retry_with("once more", *n)) } else { Ok(()) }
            },
        )
    };
    let info = measure_runs(|runtime, n| {
        let run = double.run(n).layers(|stack| stack.layer_fn("through", |n, _, next| Box::pin(next.run(n))));
        drop(runtime.block_on(run.middleware(again()).max_middleware_retries(1)));
    });
    assert_eq!(info.bytes_current, 0, "{info:?}");
}

#[test]
fn a_run_does_not_accumulate_memory_for_finished_tasks() {
    let (runtime, tree) = (runtime(), Emitter::new());
    let spawn = support::below(&tree, "spawn", |n: u32, ctx: RunContext| async move {
        for _ in 0..n {
            ctx.spawn(async {}).await?;
        }
        Ok(())
    });
    let most_of = |n| measure(|| runtime.block_on(spawn.run(n)).expect("no task panics")).bytes_max;
    most_of(10);
    let (few, many) = (most_of(10), most_of(1_000));
    assert!(many < few * 2, "{few} bytes at most with 10 tasks, {many} with 1,000");
}

/// R15: a run that fails releases its key, and leaves nothing in the run above.
#[test]
fn a_run_does_not_accumulate_memory_for_keys_of_failed_runs() {
    let (runtime, tree, double) = (runtime(), Emitter::new(), Arc::new(Double::new()));
    let order = support::below(&tree, "order", move |n: u32, _: RunContext| {
        let double = Arc::clone(&double);
        async move {
            for id in 0..n {
                double.run(0).key(id.to_string()).await.expect_err("nothing to double");
            }
            Ok(())
        }
    });
    let most_of = |n| measure(|| runtime.block_on(order.run(n).key("order")).expect("no key is taken")).bytes_max;
    most_of(10);
    let (few, many) = (most_of(10), most_of(1_000));
    assert!(many < few * 2, "{few} bytes at most with 10 runs, {many} with 1,000");
}

/// The number of allocations of a run: its future and its context, but no emitter, name, path, id, time or payload.
const OF_A_RUN: u64 = 2;

/// The number of additional allocations if a runnable's name differs from the name of its emitter's creator: a creator,
/// its kind and its name.
const OF_ITS_CREATOR: u64 = 3;

/// R2: the run has no emitter, which would be another allocation.
#[test]
fn a_run_without_listeners_allocates_at_most_twice() {
    let (runtime, double, unnamed) = (runtime(), Double::named(), Double::new());
    let allocations = |double: &Double| measure(|| drop(runtime.block_on(double.run(2)))).count_total;
    // The first call also allocates the values that a process creates only once.
    allocations(&double);
    let (named, unnamed) = (allocations(&double), allocations(&unnamed));
    assert!(named <= OF_A_RUN, "{named} allocations");
    assert!(unnamed <= OF_A_RUN + OF_ITS_CREATOR, "{unnamed} allocations where a creator is made too");
}

/// E15.
#[test]
fn a_run_with_only_a_subscriber_has_no_emitter() {
    let looks = |ctx: &RunContext| {
        ctx.subscribe(|_: &RunEvent<'_>| ());
        Ok(())
    };
    let runtime = runtime();
    let run =
        runnable_fn("run", |asks: bool, ctx: RunContext| async move { Ok(asks && ctx.emitter().has_listeners()) });
    let allocations = |asks: bool| measure(|| drop(runtime.block_on(run.run(asks).middleware(looks)))).count_total;
    // The first call also allocates the values that a process creates only once.
    allocations(true);
    assert!(allocations(false) < allocations(true));
}

/// R15.
#[test]
fn a_run_with_a_function_for_its_key_allocates_one_time_more() {
    let (runtime, double, order) = (runtime(), Double::named(), RunKey::new("order").expect("a key"));
    let plain = || drop(runtime.block_on(double.run(2).idempotent()));
    let keyed = || {
        let order = order.clone();
        drop(runtime.block_on(double.run(2).idempotent().key_with(move || order.clone())));
    };
    // The first call also allocates the values that a process creates only once.
    plain();
    let (plain, keyed) = (measure(plain).count_total, measure(keyed).count_total);
    assert!(keyed <= plain + 1, "{plain} allocations without a key, {keyed} with one");
}

#[test]
fn a_run_that_is_built_and_not_awaited_allocates_nothing() {
    let double = Double::new();
    assert_eq!(measure(|| drop(double.run(2))).count_total, 0);
}

#[test]
fn runs_bound_to_an_abort_handle_leave_no_memory_in_the_handle() {
    let (double, handle) = (Double::new(), AbortHandle::new());
    let info = measure_runs(|runtime, n| drop(runtime.block_on(double.run(n).abort_on(&handle))));
    assert_eq!(info.bytes_current, 0, "{info:?}");
}
