//! M11: a middleware that is bound to a run that it does not handle is refused if it is a guard, and warned of
//! otherwise.

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use emitree_emitter::Emitter;
use emitree_runtime::{
    AnyRun, BoxRunnable, Description, Error, ErrorKind, Guard, HookInfo, Middleware, Op, Order, Result, RunContext,
    Runnable, Stack, Summary, check_guards, for_nested, for_tree, map_input, ordered, runnable_fn,
};
use journal::Journal;
use support::{TestResult, below};

/// Binds a middleware to the runs with one name.
#[derive(Clone, Debug)]
struct Named<M>(&'static str, M);

impl<M: Middleware> Middleware for Named<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if ctx.name() == self.0 { self.1.bind(ctx) } else { Ok(()) }
    }
    fn name(&self) -> &'static str {
        "named"
    }
    fn handles(&self, _: &str, name: &str) -> bool {
        name == self.0
    }
    fn describe(&self) -> Description<'_> {
        self.1.describe().with_summary(|| Summary::of(self))
    }
}

/// A guard that denies every run.
#[derive(Debug)]
struct Closed;

impl<O: Op> Guard<O> for Closed {
    async fn check_input(&self, _: &O::In, _: &RunContext) -> Result<()> {
        Err(Error::new("closed"))
    }
    fn name(&self) -> &'static str {
        "closed"
    }
}

fn closed() -> Stack<AnyRun> {
    Stack::builder().guard(Closed).build()
}

/// Returns a runnable `outer` that runs `inner`, and the number of runs that have begun their work.
fn outer() -> (impl Runnable<Input = (), Output = ()> + 'static, Arc<AtomicU32>) {
    let (tree, worked) = (Emitter::new(), Arc::new(AtomicU32::new(0)));
    let works = Arc::clone(&worked);
    let inner = Arc::new(below(&tree, "inner", move |(): (), _: RunContext| {
        works.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    }));
    let works = Arc::clone(&worked);
    let outer = below(&tree, "outer", move |(): (), _: RunContext| {
        works.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    });
    (outer, worked)
}

/// A hook that is a guard, and does nothing else.
#[derive(Debug)]
struct GuardHook;

impl Middleware for GuardHook {
    fn bind(&self, _: &RunContext) -> Result<()> {
        Ok(())
    }
    fn describe(&self) -> Description<'_> {
        Description::of(self).with_hooks(|| vec![HookInfo::new("gate", true)])
    }
}

fn guards() -> Vec<Arc<dyn Middleware>> {
    let order = Order::new().after("nothing");
    vec![
        Arc::new(Named("inner", closed())),
        Arc::new(Named("inner", map_input(|(): &mut (), _: &RunContext| Err(Error::new("closed"))).guard())),
        Arc::new(Named("inner", GuardHook)),
        Arc::new(Named(
            "inner",
            Stack::<AnyRun>::builder()
                .innermost(emitree_runtime::layer_fn("last", |i, _, next| Box::pin(next.run(i))))
                .build(),
        )),
        Arc::new(Named("inner", for_tree(closed()))),
        Arc::new(Arc::new(Named("inner", closed()))),
        Arc::new(ordered(Named("inner", closed()), order)),
    ]
}

// M11
#[tokio::test]
async fn a_guard_that_does_not_handle_the_run_that_it_is_bound_to_ends_the_run_before_its_start() -> TestResult {
    for guard in guards() {
        let (outer, worked) = outer();
        let started = Arc::new(AtomicU32::new(0));
        let starts = Arc::clone(&started);
        let run = outer.run(()).on_start(move |_, _| _ = starts.fetch_add(1, Ordering::Relaxed));
        let error = run.middleware(Arc::clone(&guard)).await.expect_err("it is refused");
        assert_eq!(error.kind(), &ErrorKind::Invalid, "{guard:?}");
        let text = error.to_string();
        let parts = ["the guard `named`", "Run `outer`", "`.middleware(for_tree(…))`"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!((worked.load(Ordering::Relaxed), started.load(Ordering::Relaxed)), (0, 0), "{guard:?}");
    }
    Ok(())
}

// M11
#[tokio::test]
async fn a_guard_of_the_runnable_that_does_not_handle_its_runs_is_refused_in_each_of_them_and_by_check_guards() {
    for guard in guards() {
        let desk = runnable_fn("desk", |(): (), _: RunContext| async { Ok(()) }).middleware(guard);
        let expected = check_guards(&desk).expect_err("it is refused").to_string();
        let boxed = BoxRunnable::new(desk);
        assert_eq!(check_guards(&boxed).expect_err("it is refused").to_string(), expected);
        for _ in 0..2 {
            assert_eq!(boxed.run(()).await.expect_err("it is refused").to_string(), expected);
        }
    }
}

// M11
#[tokio::test]
async fn a_guard_for_the_runs_below_may_be_bound_to_any_run() -> TestResult {
    let inner = || Named("inner", closed());
    let order = Order::new().after("nothing");
    let binds: [Arc<dyn Middleware>; 4] = [
        Arc::new(for_tree(inner())),
        Arc::new(for_nested(inner())),
        Arc::new(ordered(for_tree(inner()), order.clone())),
        Arc::new(for_tree(ordered(inner(), order))),
    ];
    for guard in binds {
        let (outer, worked) = outer();
        let error = outer.run(()).middleware(Arc::clone(&guard)).await.expect_err("`inner` is closed");
        assert!(error.is_denied(), "{guard:?}: {error}");
        assert_eq!(worked.load(Ordering::Relaxed), 1, "`outer` works: {guard:?}");
    }
    let (outer, _) = outer();
    assert!(outer.run(()).middleware(Named("outer", closed())).await.is_err_and(|error| error.is_denied()));
    Ok(())
}

/// Counts the runs that it is bound to.
#[derive(Clone, Debug, Default)]
struct Counts(Arc<AtomicU32>);

impl Middleware for Counts {
    fn bind(&self, _: &RunContext) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A middleware that counts, and handles no run.
#[derive(Clone, Debug, Default)]
struct Never(Counts);

impl Middleware for Never {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.0.bind(ctx)
    }
    fn name(&self) -> &'static str {
        "never"
    }
    fn handles(&self, _: &str, _: &str) -> bool {
        false
    }
}

// M11
#[tokio::test]
async fn a_middleware_without_a_guard_that_does_not_handle_the_run_is_not_bound_and_warned_of_once_for_each_instance()
-> TestResult {
    let journal = Journal::default();
    let _guard = tracing::subscriber::set_default(journal.clone());
    let never = Never::default();
    let make = || runnable_fn("desk", |(): (), _: RunContext| async { Ok(()) });
    let (desk, other) = (make(), make());
    for _ in 0..3 {
        desk.run(()).middleware(never.clone()).await?;
        other.run(()).middleware(never.clone()).await?;
    }
    let of_instance = make().middleware(never.clone());
    check_guards(&of_instance)?;
    of_instance.run(()).await?;
    of_instance.run(()).await?;

    assert_eq!(never.0.0.load(Ordering::Relaxed), 0, "it is not bound");
    let logged = journal.take();
    assert_eq!(logged.len(), 3, "once for each of three instances: {logged:?}");
    for line in logged {
        assert!(line.contains("`never`") && line.contains("Run `desk`") && line.contains("for_tree"), "{line}");
    }
    Ok(())
}

// M11
#[tokio::test]
async fn explain_lists_a_middleware_that_does_not_handle_the_run_as_never_and_without_its_layers() -> TestResult {
    let desk = runnable_fn("desk", |(): (), ctx: RunContext| async move { Ok(ctx.explain()) });
    let run = desk.run(()).middleware(Named("other", closed())).middleware(Named("desk", closed()));
    let explained = run.explain();
    let never: Vec<_> = explained.middlewares.iter().map(|middleware| middleware.is_never_called).collect();
    assert_eq!(never, [true, false]);
    let listed = explained.to_string();
    assert!(listed.contains("\n    never: named: Named(\"other\""), "{listed}");
    assert_eq!(explained.chain.len(), 1, "{listed}");

    let json = serde_json::to_value(&explained)?;
    assert_eq!(json["middlewares"][0]["is_never_called"], true);
    assert_eq!(json["middlewares"][1].get("is_never_called"), None);

    // In a run, the same holds for a middleware that the run inherits.
    drop(run);
    let desk = Arc::new(desk);
    let above = runnable_fn("above", move |(): (), _: RunContext| desk.run_shared(()));
    let explained = above.run(()).middleware(for_nested(Named("other", closed()))).middleware(Never::default()).await?;
    assert!(explained.to_string().contains("never: named"), "{explained}");
    Ok(())
}
