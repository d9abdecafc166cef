//! M2: `explain` lists the middlewares and the chain of a run.

use std::any::type_name;
use std::sync::{Arc, OnceLock};

use crate::support::TestResult;
use emitree_runtime::{
    Description, Explanation, Guard, GuardOptions, HookInfo, JsonRun, Middleware, Next, Op, Order, Position, Result,
    RunContext, Runnable, Stack, Summary, for_nested, for_tree, layer_fn, map_input, map_output, ordered, runnable_fn,
};
use futures_util::FutureExt;
use serde_json::json;

#[derive(Debug)]
struct Policy {
    #[expect(dead_code, reason = "read by Debug")]
    rules: u32,
}

impl<O: Op> Guard<O> for Policy {
    fn name(&self) -> &str {
        "policy"
    }
}

/// A middleware whose summary has fields.
#[derive(Debug)]
struct Budget;

impl Middleware for Budget {
    fn bind(&self, _: &RunContext) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> &str {
        "budget"
    }

    fn describe(&self) -> Description<'_> {
        let fields = json!({"tokens": 100});
        Description::of(self).with_summary(move || fields.as_object().cloned().unwrap_or_default())
    }
}

fn any(name: &str) -> Stack<JsonRun> {
    let layer = layer_fn(name, |input, _, next: Next<'_, JsonRun>| Box::pin(next.run(input)));
    Stack::builder().layer(layer).build()
}

const LINES: [&str; 14] = [
    "double",
    "  bound:",
    "    keeps",
    "    policy: Policy { rules: 3 }, evaluates only",
    "    keeps too",
    "    budget: tokens=100",
    "    trim",
    "    any: LayerFn { name: \"any\", .. }",
    "  passes:",
    "    input     keeps",
    "    input     trim",
    "    transform any: LayerFn { name: \"any\", .. }",
    "    guard     policy: Policy { rules: 3 }, evaluates only",
    "    output    keeps too",
];

// M2
#[tokio::test]
async fn explain_lists_the_middlewares_and_the_chain_before_and_during_the_run() -> TestResult {
    let keeps = || map_input(|_: &mut u32, _: &RunContext| Ok(()));
    let double =
        runnable_fn("double", |_: u32, ctx: RunContext| async move { Ok(serde_json::to_value(ctx.explain())?) });
    let double = double
        .middleware(keeps().named("keeps"))
        .layers(|stack| stack.guard_with(GuardOptions::new().evaluate_only(), Policy { rules: 3 }));
    let run = double
        .run(1)
        .middleware(map_output(|_: &mut serde_json::Value, _: &RunContext| Ok(())).named("keeps too"))
        .middleware(Budget)
        .middleware(keeps().named("trim"))
        .middleware(any("any"));
    let before = run.explain();
    assert_eq!(before.to_string(), LINES.join("\n"));
    let inside: Explanation = serde_json::from_value(run.await?)?;
    assert_eq!(inside, before);
    Ok(())
}

/// A middleware without a summary of its own, whose `Debug` output is long.
#[derive(Debug)]
struct Wordy(#[expect(dead_code, reason = "read by Debug")] String);

impl Middleware for Wordy {
    fn bind(&self, _: &RunContext) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> &str {
        "wordy"
    }
}

fn function(_: &RunContext) -> Result<()> {
    Ok(())
}

// M2
#[test]
fn the_summary_of_a_middleware_is_its_truncated_debug_output_or_the_name_of_a_function() {
    let plain = runnable_fn("plain", |(): (), _: RunContext| async move { Ok(()) });
    let wordy = || Wordy("a".repeat(5_000));
    let run = plain.run(()).middleware(wordy()).middleware(for_tree(wordy())).middleware(function);
    let said = run.explain().middlewares;
    for wordy in &said[..2] {
        let expected = format!("Wordy(\"{}", "a".repeat(Summary::MAX_BYTES - 7));
        assert_eq!((&*wordy.name, &wordy.summary), ("wordy", &Summary::Text(expected)));
    }
    let name = std::any::type_name_of_val(&function);
    assert_eq!((&*said[2].name, &said[2].summary), (name, &name.into()));
    assert_eq!(said[2].to_string(), name);
}

// M2, M4
#[tokio::test]
async fn explain_lists_inherited_layers_before_and_during_the_run() -> TestResult {
    let outer = runnable_fn("outer", |(): (), _: RunContext| async move {
        let inner = runnable_fn("inner", |(): (), ctx: RunContext| async move { Ok(ctx.explain()) });
        let run = inner.run(()).middleware(any("own"));
        Ok((run.explain(), run.await?))
    });
    let (before, inside) = outer.run(()).middleware(for_tree(any("inherited"))).await?;
    let names: Vec<_> = before.chain.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!((before.runnable.as_str(), names), ("inner", vec!["inherited", "own"]));
    assert_eq!(before, inside);
    Ok(())
}

/// A middleware whose summary contains the number of hooks and the name of the run.
#[derive(Debug)]
struct Counts;

impl Middleware for Counts {
    fn bind(&self, _: &RunContext) -> Result<()> {
        Ok(())
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self)
            .with_hooks(|| vec![HookInfo::new("counts.end", false), HookInfo::new("counts.end", true)])
            .with_summary_in_run(|bound, ctx| {
                let hooks: usize = bound.iter().map(|info| info.hooks.len()).sum();
                Some(format!("{hooks} hooks, {}", ctx.map_or("not begun", RunContext::name)).into())
            })
    }
}

// M2
#[tokio::test]
async fn hooks_are_listed_through_wrappers_and_a_summary_may_depend_on_the_run() -> TestResult {
    let plain = runnable_fn("plain", |(): (), ctx: RunContext| async move { Ok(ctx.explain()) });
    let early = ordered(Counts, Order::new().before("none"));
    let run = plain.run(()).middleware(Arc::new(Counts)).middleware(for_tree(Counts)).middleware(early);
    let lines = |explanation: &Explanation| {
        let hooked = explanation.middlewares.iter().filter(|info| !info.hooks.is_empty());
        hooked.map(|info| info.to_string().replace(type_name::<Counts>(), "Counts")).collect::<Vec<_>>()
    };
    let before = lines(&run.explain());
    assert_eq!(before[1], "Counts: 6 hooks, not begun; hooks: counts.end");
    assert_eq!(before[2], "Counts: 6 hooks, not begun (before none); hooks: counts.end");
    let inside = run.await?;
    assert_eq!(lines(&inside)[1], "Counts: 6 hooks, plain; hooks: counts.end");
    let json = serde_json::to_value(&inside.middlewares[1].hooks)?;
    assert_eq!(json, json!([{"name": "counts.end"}, {"name": "counts.end", "is_guard": true}]));
    let below = plain.run(()).middleware(for_nested(Counts)).await?;
    assert_eq!(below.middlewares[0].hooks, []);
    Ok(())
}

// M2
#[tokio::test]
async fn a_run_knows_the_names_of_its_own_and_inherited_middlewares_until_it_ends() -> TestResult {
    let has = |ctx: &RunContext| ["budget", "own", "other"].map(|name| ctx.has_middleware(|bound| bound == name));
    let ended = Arc::new(OnceLock::new());
    let keeps = Arc::clone(&ended);
    let outer = runnable_fn("outer", move |(): (), _: RunContext| {
        let keeps = Arc::clone(&keeps);
        async move {
            let inner = runnable_fn("inner", move |(): (), ctx: RunContext| {
                let names = has(&ctx);
                keeps.set(ctx).expect("one run");
                async move { Ok(names) }
            });
            let own = map_output(|_: &mut [bool; 3], _: &RunContext| Ok(())).named("own");
            inner.run(()).middleware(own).await
        }
    });
    assert_eq!(outer.run(()).middleware(for_tree(Budget)).await?, [true, true, false]);
    assert_eq!(ended.get().map(has), Some([false; 3]));
    Ok(())
}

// M2
#[tokio::test]
async fn explain_lists_nothing_for_a_run_without_middleware() -> TestResult {
    let plain = runnable_fn("plain", |(): (), ctx: RunContext| async move { Ok(ctx.explain()) });
    let run = plain.run(());
    let before = run.explain();
    assert_eq!(before.to_string(), "plain\n  bound:\n  passes:");
    assert_eq!(run.await?, before);
    Ok(())
}

// M2: in the chain, a guard that is registered as innermost comes after guards that are bound later.
#[tokio::test]
async fn explain_lists_an_innermost_guard_after_all_other_layers_before_and_during_the_run() -> TestResult {
    let double = runnable_fn("double", |(): (), ctx: RunContext| async move { Ok(ctx.explain()) });
    let last = || layer_fn("last", |input, _, next: Next<'_, _>| next.run(input).boxed());
    let run = double.run(()).layers(|stack| stack.innermost(last())).layers(|stack| stack.guard(Policy { rules: 3 }));
    let before = run.explain();
    let names: Vec<_> = before.chain.iter().map(|layer| (layer.name.as_str(), layer.position)).collect();
    assert_eq!(names, [("policy", Position::Guard), ("last", Position::InnermostGuard)]);
    assert_eq!(run.await?, before);
    Ok(())
}
