//! A run that lacks an extension which its work needs ends before its `start`, with the line to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use emitree_emitter::Emitter;
use emitree_runtime::{ErrorKind, Middleware, Order, Result, RunContext, Runnable, Stage, for_tree, needs, ordered};

use crate::support::{Any, TestResult, below};

struct Db;

fn db(ctx: &RunContext) -> Result<()> {
    ctx.set_extension(Db);
    Ok(())
}

#[tokio::test]
async fn a_missing_extension_ends_the_run_before_its_start_with_the_line_to_write() -> TestResult {
    let tree = Emitter::new();
    let works = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&works);
    let tool = below(&tree, "tool", move |(): (), _: RunContext| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    })
    .middleware(needs::<Db>());
    let starts = Arc::new(AtomicU32::new(0));
    let started = Arc::clone(&starts);
    tree.on("*.*", move |_: &mut Any, _| {
        started.fetch_add(1, Ordering::Relaxed);
    })?;

    let error = tool.run(()).await.expect_err("there is no database");
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    let text = error.to_string();
    assert!(["Run tool", "needs::Db`", "write `.extension("].iter().all(|part| text.contains(part)), "{text}");
    assert_eq!((works.load(Ordering::Relaxed), starts.load(Ordering::Relaxed)), (0, 0), "{}", Stage::Start.as_str());

    tool.run(()).extension(Db).await?;
    tool.run(()).own_extension(Db).await?;
    assert_eq!(works.load(Ordering::Relaxed), 2);
    Ok(())
}

#[tokio::test]
async fn an_extension_is_looked_for_when_all_middlewares_are_bound() -> TestResult {
    let tree = Emitter::new();
    let tool = || below(&tree, "tool", |(): (), _: RunContext| async { Ok(()) }).middleware(needs::<Db>());
    // The run's own middleware is bound after the runnable's, an order or not.
    tool().run(()).middleware(db).await?;
    tool().run(()).middleware(ordered(db, Order::new().after("needs-not"))).await?;
    tool().middleware(needs::<Db>()).middleware(db).run(()).await?;
    Ok(())
}

#[tokio::test]
async fn a_run_below_inherits_the_extension_that_it_needs() -> TestResult {
    let tree = Emitter::new();
    let inner = Arc::new(below(&tree, "inner", |(): (), _: RunContext| async { Ok(()) }).middleware(needs::<Db>()));
    let outer = below(&tree, "outer", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    });
    assert!(outer.run(()).await.is_err());
    outer.run(()).extension(Db).await?;
    let all: Arc<dyn Middleware> = Arc::new(for_tree(needs::<Db>()));
    outer.run(()).extension(Db).middleware(Arc::clone(&all)).await?;
    assert!(outer.run(()).middleware(all).await.is_err());
    Ok(())
}
