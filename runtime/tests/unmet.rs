//! M12: a middleware for the runs below a run that has handled none of them is warned of, if its name is misspelled.

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::{
    AnyRun, Description, Guard, Middleware, Op, Order, Result, RunContext, Runnable, Stack, for_nested, for_tree,
    ordered,
};
use journal::Journal;
use support::{TestResult, below};

#[derive(Debug)]
struct Lets;

impl<O: Op> Guard<O> for Lets {}

/// A guard, or a layer that is none, for the runs with one name. Names with the same first letter are near.
#[derive(Clone, Debug)]
struct Named {
    name: &'static str,
    is_guard: bool,
}

impl Named {
    fn stack(&self) -> Stack<AnyRun> {
        if self.is_guard { Stack::builder().guard(Lets).build() } else { Stack::builder().build() }
    }
}

impl Middleware for Named {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if ctx.name() == self.name { self.stack().bind(ctx) } else { Ok(()) }
    }
    fn name(&self) -> &'static str {
        "named"
    }
    fn handles(&self, _: &str, name: &str) -> bool {
        name == self.name
    }
    fn describe(&self) -> Description<'_> {
        let near_miss =
            |_: &str, name: &str| if name.get(..1) == self.name.get(..1) { Some(self.name.to_owned()) } else { None };
        Description::of(self).with_layers(|| self.stack().layers()).with_near_miss(near_miss)
    }
}

const fn guard(name: &'static str) -> Named {
    Named { name, is_guard: true }
}

type Names = &'static [&'static str];

/// Lists runs that may be started.
#[derive(Debug)]
struct Lists(Names);

impl Middleware for Lists {
    fn bind(&self, _: &RunContext) -> Result<()> {
        Ok(())
    }
    fn describe(&self) -> Description<'_> {
        Description::of(self).with_names_below(|see| self.0.iter().for_each(|name| see("Tool", name)))
    }
}

/// Runs `outer`, which runs these runs one after another, and returns what is logged. `middle` of `middle/read` runs
/// `read`.
async fn logged(middleware: Vec<Arc<dyn Middleware>>, runs: Names) -> Result<Vec<String>> {
    let journal = Journal::default();
    let _guard = tracing::subscriber::set_default(journal.clone());
    let tree = Emitter::new();
    let works = tree.clone();
    let outer = below(&tree, "outer", move |(): (), _: RunContext| {
        let tree = works.clone();
        async move {
            for path in runs {
                let (first, second) = path.split_once('/').map_or((*path, None), |(a, b)| (a, Some(b)));
                let below_that = tree.clone();
                let run = below(&tree, first, move |(): (), _: RunContext| {
                    let inner = second.map(|name| below(&below_that, name, |(): (), _: RunContext| async { Ok(()) }));
                    async move { if let Some(inner) = inner { inner.run(()).await } else { Ok(()) } }
                });
                run.run(()).await?;
            }
            Ok(())
        }
    });
    let run = middleware.into_iter().fold(outer.run(()), |run, middleware| run.middleware(middleware));
    run.await?;
    Ok(journal.take())
}

// M12
#[tokio::test]
async fn a_middleware_that_handled_no_run_is_warned_of_at_the_end_if_a_run_below_has_nearly_its_name() -> TestResult {
    let order = Order::new().after("nothing");
    // Each row has a name of its own, because a warning is logged once.
    let other = |name| Named { name, is_guard: false };
    let rows: [(&str, Arc<dyn Middleware>, Names); 7] = [
        ("guard", Arc::new(for_tree(guard("raed"))), &["write", "read"]),
        ("guard", Arc::new(for_nested(guard("raed2"))), &["read"]),
        ("guard", Arc::new(for_tree(guard("raed3"))), &["middle/read"]),
        ("guard", Arc::new(ordered(for_tree(guard("raed4")), order.clone())), &["read"]),
        ("guard", Arc::new(for_tree(Arc::new(ordered(guard("raed5"), order)))), &["read", "read"]),
        ("middleware", Arc::new(for_tree(other("raed6"))), &["read"]),
        ("middleware", Arc::new(for_nested(other("raed7"))), &["middle/read"]),
    ];
    for (what, middleware, runs) in rows {
        let logged = logged(vec![Arc::clone(&middleware)], runs).await?;
        let [line] = &*logged else { panic!("{middleware:?}: {logged:?}") };
        let what = format!("the {what} `named`");
        let parts = [&*what, "no run of Run `outer`", "it selects `raed", "there is Run `read`"];
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
    Ok(())
}

// M12
#[tokio::test]
async fn a_misspelled_guard_is_warned_of_once_in_a_process() -> TestResult {
    let bound: Arc<dyn Middleware> = Arc::new(for_tree(guard("once")));
    assert_eq!(logged(vec![Arc::clone(&bound)], &["onec"]).await?.len(), 1);
    assert_eq!(logged(vec![bound], &["onec"]).await?, [""; 0]);
    assert_eq!(logged(vec![Arc::new(for_tree(guard("once")))], &["onec"]).await?, [""; 0]);
    Ok(())
}

// M12
#[tokio::test]
async fn a_middleware_is_not_warned_of_if_it_met_a_run_or_its_run_may_be_started_or_no_name_is_near() -> TestResult {
    let lists = || Arc::new(Lists(&["delete", "deletes"]));
    let rows: [(Vec<Arc<dyn Middleware>>, Names); 7] = [
        (vec![Arc::new(for_tree(guard("read")))], &["reads", "read"]),
        (vec![Arc::new(for_tree(Named { name: "read", is_guard: false }))], &["reads", "read"]),
        (vec![Arc::new(for_tree(guard("read")))], &["middle/read", "reads"]),
        (vec![Arc::new(for_tree(guard("outer")))], &["other"]),
        (vec![Arc::new(for_tree(guard("delete"))), lists()], &["deletes"]),
        (vec![Arc::new(for_tree(guard("xyz")))], &["read"]),
        (vec![Arc::new(for_tree(Stack::<AnyRun>::builder().guard(Lets).build()))], &["read"]),
    ];
    for (middleware, runs) in rows {
        let text = format!("{middleware:?}");
        assert_eq!(logged(middleware, runs).await?, [""; 0], "{text}");
    }
    Ok(())
}

// M12
#[tokio::test]
async fn a_guard_is_warned_of_if_a_run_that_may_be_started_has_nearly_its_name() -> TestResult {
    let lists = Arc::new(for_tree(Lists(&["format_disk"])));
    let logged = logged(vec![Arc::new(for_tree(guard("fromat_disk"))), lists], &[]).await?;
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].contains("there is Tool `format_disk`"), "{logged:?}");
    Ok(())
}
