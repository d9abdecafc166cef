//! Budgets: the usage of a run and the runs below it is recorded. If the usage exceeds a limit, the work of the run is
//! stopped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Failing, TestResult, instance};
use emitree_emitter::{AnyEvent, Emitter, EventMeta};
use emitree_middleware::budget::{
    BudgetBuilder, BudgetClosed, BudgetWarning, Charged, Price, PriceTable, StartDenied, UnknownPrice, Usage, charge,
    expects_usage, remaining, spent,
};
use emitree_middleware::{Budget, Limits};
use emitree_runtime::{Error, Result, Run, RunContext, Runnable, for_tree, runnable_fn};
use futures_util::FutureExt;
use futures_util::future::join_all;
use proptest::prelude::*;
use rust_decimal::Decimal;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a number of hundredths as a decimal.
fn cents(cents: i64) -> Decimal {
    Decimal::new(cents, 2)
}

fn built(builder: BudgetBuilder) -> Budget {
    builder.build().expect("options that are right")
}

/// Returns a model that charges the usages in its input. Its output is the number of remaining tokens.
fn model(root: &Emitter) -> impl Runnable<Input = Vec<Usage>, Output = Option<u64>> + 'static {
    instance(root, "Model", "m", |usages: Vec<Usage>, ctx: RunContext| async move {
        for usage in usages {
            charge(&ctx, usage).await?;
        }
        Ok(remaining(&ctx).and_then(|left| left.tokens))
    })
}

fn tokens(tokens: u64) -> Vec<Usage> {
    vec![Usage::new().input_tokens(tokens)]
}

/// Returns a runnable that calls the model with each input, ignores failures, and returns the results as texts.
fn desk(root: &Emitter) -> impl Runnable<Input = Vec<Vec<Usage>>, Output = Vec<String>> + 'static {
    let model = Arc::new(model(root));
    instance(root, "Assistant", "Desk", move |calls: Vec<Vec<Usage>>, _: RunContext| {
        let model = Arc::clone(&model);
        async move {
            let mut results = Vec::new();
            for usages in calls {
                results.push(match model.run(usages).await {
                    Ok(left) => format!("{left:?}"),
                    Err(error) => error.explain(),
                });
            }
            Ok(results)
        }
    })
}

#[tokio::test]
async fn reaching_a_limit_is_allowed_and_exceeding_it_halts_the_run() -> TestResult {
    let model = model(&Emitter::new());
    let run = |used| model.run(tokens(used)).middleware(built(Budget::builder().tokens(100)));
    assert_eq!((run(99).await?, run(100).await?), (Some(1), Some(0)));
    let error = run(101).await.expect_err("it is too much");
    assert_eq!(
        error.explain(),
        "halted by budget: the budget is exceeded: 101 tokens (limit: 100)\n  limit: \"tokens\""
    );
    Ok(())
}

#[tokio::test]
async fn usage_is_counted_by_a_budget_without_limits_and_ignored_without_a_budget() -> TestResult {
    let root = Emitter::new();
    let read = instance(&root, "Tool", "read", |(): (), ctx: RunContext| async move {
        charge(&ctx, Usage::new().output_tokens(7).cost(cents(5))).await?;
        Ok(spent(&ctx).map(|spent| (spent.tokens, spent.cost)))
    });
    assert_eq!(read.run(()).await?, None);
    assert_eq!(read.run(()).middleware(built(Budget::builder())).await?, Some((7, cents(5))));
    Ok(())
}

#[tokio::test]
async fn the_run_that_holds_the_budget_is_halted_even_if_its_work_swallows_the_error() -> TestResult {
    let desk = desk(&Emitter::new());
    let budget = built(Budget::builder().tokens(100));
    assert_eq!(desk.run(vec![tokens(40), tokens(60)]).middleware(budget.clone()).await?, ["Some(60)", "Some(0)"]);
    // The desk swallows every error.
    let error = desk.run(vec![tokens(40), tokens(61), tokens(1)]).middleware(budget).await.expect_err("it is stopped");
    assert!(error.is_halted());
    assert_eq!(error.to_string(), "the budget is exceeded: 101 tokens (limit: 100)");
    Ok(())
}

#[tokio::test]
async fn work_that_ignores_the_exceeding_charge_and_succeeds_is_halted() {
    let careless = instance(&Emitter::new(), "Model", "m", |(): (), ctx: RunContext| async move {
        drop(charge(&ctx, Usage::new().input_tokens(11)).await);
        Ok("done".to_owned())
    });
    let error = careless.run(()).middleware(built(Budget::builder().tokens(10))).await.expect_err("it is too much");
    assert!(error.is_halted());
}

#[tokio::test]
async fn a_nested_budget_is_capped_by_the_remainder_of_the_outer_budget() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(model(&root).run_with(built(Budget::builder().tokens(80))));
    let outer = instance(&root, "Assistant", "Desk", move |used: Vec<u64>, ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            let mut left = Vec::new();
            for used in used {
                left.push(inner.run(tokens(used)).await?);
            }
            Ok((left, spent(&ctx).map(|spent| spent.tokens)))
        }
    });
    let budget = built(Budget::builder().tokens(100));
    let (left, spent) = outer.run(vec![10, 30, 60]).middleware(budget.clone()).await?;
    // 80 - 10 and 80 - 30 remain of the inner budgets; nothing remains of the outer budget.
    assert_eq!((left, spent), (vec![Some(70), Some(50), Some(0)], Some(100)));
    let error = outer.run(vec![81]).middleware(budget.clone()).await.expect_err("too much below");
    assert_eq!(error.to_string(), "the budget is exceeded: 81 tokens (limit: 80)");
    let error = outer.run(vec![60, 60]).middleware(budget).await.expect_err("too much above");
    assert_eq!(error.to_string(), "the budget is exceeded: 120 tokens (limit: 100)");
    Ok(())
}

trait RunWith: Runnable + Sized {
    fn run_with(self, budget: Budget) -> Bound<Self> {
        Bound(self, [Arc::new(budget)])
    }
}
impl<R: Runnable> RunWith for R {}

/// A runnable with its own budget.
struct Bound<R>(R, [Arc<dyn emitree_runtime::Middleware>; 1]);

impl<R: Runnable> Runnable for Bound<R> {
    type Input = R::Input;
    type Output = R::Output;

    fn emitter(&self) -> &Emitter {
        self.0.emitter()
    }

    async fn execute(&self, input: &R::Input, ctx: &RunContext) -> Result<R::Output> {
        self.0.execute(input, ctx).await
    }

    fn middlewares(&self) -> &[Arc<dyn emitree_runtime::Middleware>] {
        &self.1
    }
}

#[tokio::test]
async fn costs_from_a_table_a_function_or_the_usage_are_summed_without_rounding() -> TestResult {
    let table = PriceTable::new().model("small", Price::per_million(cents(10), cents(30))?);
    let root = Emitter::new();
    let rows: [(BudgetBuilder, Usage, Decimal); 4] = [
        (Budget::builder().prices(table.clone()), Usage::of("small").input_tokens(1), Decimal::new(1, 7)),
        (Budget::builder().prices(table.clone()), Usage::of("small").output_tokens(3), Decimal::new(9, 7)),
        (Budget::builder().prices(table), Usage::of("small").output_tokens(3).cost(cents(7)), cents(7)),
        (
            Budget::builder().prices(|usage: &Usage| Ok(Some(Decimal::from(usage.tokens())))),
            Usage::new().input_tokens(2),
            Decimal::TWO,
        ),
    ];
    for (budget, usage, cost) in rows {
        let ten = instance(&root, "Model", "ten", move |usage: Usage, ctx: RunContext| async move {
            for _ in 0..10 {
                charge(&ctx, usage.clone()).await?;
            }
            Ok(spent(&ctx).map(|spent| spent.cost))
        });
        let run = ten.run(usage).middleware(built(budget.cost(Decimal::ONE_HUNDRED)));
        assert_eq!(run.await?, Some(cost * Decimal::TEN));
    }
    Ok(())
}

#[tokio::test]
async fn a_cost_above_the_limit_fails_the_run() -> TestResult {
    let budget = built(Budget::builder().cost(cents(100)));
    let model = model(&Emitter::new());
    let run = |cost| model.run(vec![Usage::new().cost(cost)]).middleware(budget.clone());
    run(cents(100)).await?;
    let error = run(Decimal::new(10001, 4)).await.expect_err("it costs too much");
    assert_eq!(error.to_string(), "the budget is exceeded: a cost of 1.0001 (limit: 1.00)");
    Ok(())
}

// M5: guards fail closed.
#[tokio::test]
async fn usage_that_cannot_be_priced_closes_the_budget() -> TestResult {
    let table = || PriceTable::new().model("small", Price::per_million(cents(1), cents(1)).expect("prices"));
    let limited = || Budget::builder().cost(cents(100));
    let rows: [(BudgetBuilder, Usage, &str); 6] = [
        (limited(), Usage::of("large"), "the price of `large` is not known"),
        (limited(), Usage::new(), "the price of usage without a model is not known"),
        (limited().prices(table()), Usage::of("large"), "the price of `large` is not known"),
        (
            limited().prices(|_: &Usage| Err(Error::new("no network"))),
            Usage::of("large"),
            "the price of `large` could not be determined: no network",
        ),
        (
            limited().prices(|_: &Usage| panic!("oh no")),
            Usage::of("large"),
            "the price of `large` could not be determined: oh no",
        ),
        (limited(), Usage::of("large").cost(cents(-1)), "the cost of `large` is negative: `-0.01`"),
    ];
    let desk = desk(&Emitter::new());
    for (budget, usage, reason) in rows {
        let error = desk.run(vec![vec![usage], tokens(0)]).middleware(built(budget)).await.expect_err(reason);
        assert_eq!(error.explain(), format!("denied by budget: {reason}"));
    }
    Ok(())
}

#[tokio::test]
async fn an_unknown_price_is_allowed_if_it_is_free_or_if_cost_is_not_limited() -> TestResult {
    let model = model(&Emitter::new());
    let free = Budget::builder().cost(cents(1)).unknown_prices(UnknownPrice::Free);
    for budget in [free, Budget::builder().tokens(5)] {
        model.run(vec![Usage::of("large")]).middleware(built(budget)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn sums_too_large_for_their_type_exceed_every_limit() -> TestResult {
    let model = model(&Emitter::new());
    let huge = PriceTable::new().model("huge", Price::per_million(Decimal::MAX, Decimal::MAX)?);
    let rows = [
        (Budget::builder().tokens(u64::MAX - 1), vec![Usage::new().input_tokens(u64::MAX).output_tokens(u64::MAX)]),
        (Budget::builder().cost(Decimal::ONE_HUNDRED), vec![Usage::new().cost(Decimal::MAX); 2]),
        (Budget::builder().cost(Decimal::MAX - Decimal::ONE), vec![Usage::new().cost(Decimal::MAX - Decimal::TWO); 2]),
        (Budget::builder().cost(Decimal::ONE_HUNDRED).prices(huge), vec![Usage::of("huge").input_tokens(u64::MAX)]),
    ];
    for (budget, usages) in rows {
        let error = model.run(usages).middleware(built(budget)).await.expect_err("it is too much");
        assert!(error.is_halted(), "{error:?}");
    }
    Ok(())
}

/// The timer of the outer run has not been polled when the work makes the call.
#[tokio::test(start_paused = true)]
async fn a_call_after_the_time_limit_does_not_begin_even_if_the_timer_has_not_been_polled() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let root = Emitter::new();
    let tool = Arc::new(instance(&root, "Tool", "t", move |(): (), _: RunContext| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    }));
    let outer = instance(&root, "Assistant", "Desk", move |(): (), _: RunContext| {
        let tool = Arc::clone(&tool);
        async move {
            tokio::time::advance(ms(11)).await;
            tool.run(()).await
        }
    });
    let error = outer.run(()).middleware(built(Budget::builder().wall_time(ms(10)))).await.expect_err("it is late");
    assert_eq!(error.to_string(), "the budget is exceeded: the time has run out (limit: 10ms)");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_call_beyond_the_limit_does_not_begin() -> TestResult {
    let root = Emitter::new();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let tool = Arc::new(instance(&root, "Tool", "t", move |(): (), _: RunContext| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    }));
    let outer = instance(&root, "Assistant", "Desk", move |n: usize, ctx: RunContext| {
        let tool = Arc::clone(&tool);
        async move {
            drop(join_all((0..n).map(|_| tool.run(()))).await);
            Ok(remaining(&ctx).and_then(|left| left.calls))
        }
    });
    let run = |n, budget: BudgetBuilder| outer.run(n).middleware(built(budget));
    assert_eq!(run(3, Budget::builder().calls(3)).await?, Some(0));
    assert_eq!(run(9, Budget::builder().calls(3).of_kind("Model")).await?, Some(3));
    calls.store(0, Ordering::Relaxed);
    let error = run(9, Budget::builder().calls(3).of_kind("Tool")).await.expect_err("one too many");
    assert_eq!(error.to_string(), "the budget is exceeded: 4 calls (limit: 3)");
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    Ok(())
}

#[tokio::test]
async fn a_call_is_counted_in_all_budgets_above_or_in_none() -> TestResult {
    let root = Emitter::new();
    let tool = Arc::new(instance(&root, "Tool", "t", |(): (), _: RunContext| async { Ok(()) }));
    let inner = instance(&root, "Assistant", "Inner", move |n: u64, _: RunContext| {
        let tool = Arc::clone(&tool);
        async move {
            for _ in 0..n {
                tool.run(()).await?;
            }
            Ok(())
        }
    });
    let inner = Arc::new(inner.run_with(built(Budget::builder().calls(2))));
    let outer = instance(&root, "Assistant", "Outer", move |n: u64, ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            let failed = inner.run(n).await.err().map(|error| error.to_string());
            Ok((failed, spent(&ctx).map(|spent| spent.calls)))
        }
    });
    let run = |n| outer.run(n).middleware(built(Budget::builder().calls(9)));
    assert_eq!(run(2).await?, (None, Some(3)));
    // The inner budget refuses the third call, so the outer budget does not count it.
    assert_eq!(run(5).await?, (Some("the budget is exceeded: 3 calls (limit: 2)".to_owned()), Some(3)));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_spans_all_attempts_from_the_binding() -> TestResult {
    let root = Emitter::new();
    let again = instance(&root, "Tool", "again", |after: u64, _: RunContext| async move {
        sleep(ms(after)).await;
        Err::<(), _>(Error::retry("not yet"))
    });
    let begun = Instant::now();
    let run = again.run(40).middleware(built(Budget::builder().wall_time(ms(100)))).max_middleware_retries(9);
    let error = run.await.expect_err("it never succeeds");
    assert_eq!(
        error.explain(),
        "halted by budget: the budget is exceeded: the time has run out (limit: 100ms)\n  limit: \"wall_time\""
    );
    assert_eq!(begun.elapsed(), ms(100));

    let nap = instance(&root, "Tool", "nap", |after: u64, _: RunContext| async move {
        sleep(ms(after)).await;
        Ok(())
    });
    nap.run(100).middleware(built(Budget::builder().wall_time(ms(100)))).await?;
    nap.run(100).middleware(built(Budget::builder().wall_time(Duration::MAX))).await?;
    Ok(())
}

/// Records the budget events that the run receives.
fn listen<'a, R: Runnable>(run: Run<'a, R>, heard: &Arc<Mutex<Vec<String>>>) -> Run<'a, R> {
    let heard = Arc::clone(heard);
    run.on("middleware.budget.*", move |event: &mut dyn AnyEvent, meta: &EventMeta<'_>| {
        let mut json = event.to_json();
        // Leave out the holder, which is different in each run.
        json.as_object_mut().map(|json| json.remove("holder"));
        json.sort_all_objects();
        heard.lock().expect("nobody panics").push(format!("{} {json}", meta.name()));
    })
}

#[tokio::test(start_paused = true)]
async fn a_warning_is_emitted_once_per_limit() -> TestResult {
    let (root, heard) = (Emitter::new(), Arc::new(Mutex::new(Vec::new())));
    let desk = desk(&root);
    let budget = Budget::builder().tokens(100).calls(4).warn_at(0.5);
    let run = desk.run(vec![tokens(49), tokens(1), tokens(40), tokens(10)]).middleware(built(budget));
    listen(run, &heard).await?;
    let charged = |tokens: u64| {
        format!(
            r#"charged {{"cached_input_tokens":0,"charged":"0","cost":null,"input_tokens":{tokens},"model":null,"output_tokens":0}}"#
        )
    };
    let expected = [
        charged(49),
        r#"warning {"limit":"calls","most":4,"spent":2}"#.to_owned(),
        charged(1),
        r#"warning {"limit":"tokens","most":100,"spent":50}"#.to_owned(),
        charged(40),
        charged(10),
    ];
    assert_eq!(std::mem::take(&mut *heard.lock().expect("nobody panics")), expected);

    let nap = instance(&root, "Tool", "nap", |after: u64, _: RunContext| async move {
        sleep(ms(after)).await;
        Ok(())
    });
    listen(nap.run(90).middleware(built(Budget::builder().wall_time(ms(100)))), &heard).await?;
    assert_eq!(*heard.lock().expect("nobody panics"), [r#"warning {"limit":"wall_time","most":100,"spent":80}"#]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_work_continues_while_a_listener_of_the_warning_is_awaited() -> TestResult {
    let worked = Arc::new(Notify::new());
    let (tell, root) = (Arc::clone(&worked), Emitter::new());
    let nap = instance(&root, "Tool", "nap", move |after: u64, _: RunContext| {
        let tell = Arc::clone(&tell);
        async move {
            sleep(ms(after)).await;
            tell.notify_one();
            Ok(())
        }
    });
    let run = |after, waits: Duration| {
        let worked = Arc::clone(&worked);
        let run = nap.run(after).middleware(built(Budget::builder().wall_time(ms(100))));
        run.on_async("middleware.budget.warning", move |_: &mut dyn AnyEvent, _| {
            let worked = Arc::clone(&worked);
            Box::pin(async move { Ok(timeout(waits, worked.notified()).await?) })
        })
    };
    let begun = Instant::now();
    // The listener waits for work that is done after the warning.
    run(90, Duration::MAX).await?;
    assert_eq!(begun.elapsed(), ms(90));
    // If the time ends while the listener waits, the work is stopped, and the listener is not notified.
    let error = run(110, ms(200)).await.expect_err("it takes too long");
    assert_eq!(
        error.explain().lines().next(),
        Some("halted by budget: the budget is exceeded: the time has run out (limit: 100ms)")
    );
    assert!(worked.notified().now_or_never().is_none());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn closed_and_denied_are_emitted_with_the_reason_after_the_exceeding_charge() -> TestResult {
    let (root, heard) = (Emitter::new(), Arc::new(Mutex::new(Vec::new())));
    let model = Arc::new(model(&root));
    let outer = instance(&root, "Assistant", "Desk", move |used: u64, ctx: RunContext| {
        // The work is stopped only after its current poll, so `join` still attempts the second call.
        let (first, second) = (model.run_shared(tokens(used)), model.run_shared(tokens(1)));
        async move {
            futures_util::future::join(first, second).await.0?;
            drop(ctx);
            Ok(())
        }
    });
    let run = outer.run(11).middleware(built(Budget::builder().tokens(10).warn_at(1.0)));
    listen(run, &heard).await.expect_err("it is too much");
    let expected = [
        r#"charged {"cached_input_tokens":0,"charged":"0","cost":null,"input_tokens":11,"model":null,"output_tokens":0}"#,
        r#"warning {"limit":"tokens","most":10,"spent":11}"#,
        r#"closed {"limit":"tokens","reason":"the budget is exceeded: 11 tokens (limit: 10)"}"#,
        r#"denied {"reason":"the budget is exceeded: 11 tokens (limit: 10)"}"#,
    ];
    assert_eq!(*heard.lock().expect("nobody panics"), expected);
    Ok(())
}

#[tokio::test]
async fn events_of_a_budget_reach_its_emitter_with_the_run_s_ids() -> TestResult {
    let (budget, heard) = (built(Budget::builder().tokens(10).warn_at(0.0)), Arc::new(Mutex::new(Vec::new())));
    let to = Arc::clone(&heard);
    budget.emitter().on("*", move |_: &mut dyn AnyEvent, meta: &EventMeta<'_>| {
        let run = RunContext::current().expect("in a run");
        assert_eq!(meta.trace().map(|trace| trace.run_id), Some(run.run_id()));
        to.lock().expect("nobody panics").push(meta.path().to_owned());
    })?;
    model(&Emitter::new()).run(tokens(11)).middleware(budget).await.expect_err("too much");
    let expected = ["middleware.budget.charged", "middleware.budget.warning", "middleware.budget.closed"];
    assert_eq!(*heard.lock().expect("nobody panics"), expected);
    Ok(())
}

// M5: observers fail open.
#[tokio::test]
async fn a_failing_listener_does_not_affect_a_budget() -> TestResult {
    let budget = built(Budget::builder().tokens(10).calls(1).warn_at(0.0));
    let failing: [Failing; 4] = Default::default();
    budget.emitter().on("charged", failing[0].listener::<Charged>())?;
    budget.emitter().on("warning", failing[1].listener::<BudgetWarning>())?;
    budget.emitter().on("closed", failing[2].listener::<BudgetClosed>())?;
    budget.emitter().on("denied", failing[3].listener::<StartDenied>())?;
    let root = Emitter::new();
    let desk = desk(&root);
    assert_eq!(desk.run(vec![tokens(10)]).middleware(budget.clone()).await?, ["Some(0)"]);
    assert!(desk.run(vec![tokens(10), tokens(1)]).middleware(budget.clone()).await.expect_err("too much").is_halted());
    // The second of the concurrent calls closes the budget, and the third call is denied.
    let model = Arc::new(model(&root));
    let crowd = instance(&root, "Assistant", "Crowd", move |calls: usize, _: RunContext| {
        let model = Arc::clone(&model);
        async move { Ok(join_all((0..calls).map(|_| model.run(tokens(10)))).await.len()) }
    });
    assert!(crowd.run(3).middleware(budget).await.expect_err("too many").is_halted());
    assert_eq!(failing.map(|failing| failing.calls()), [3, 6, 2, 1]);
    Ok(())
}

#[tokio::test]
async fn a_budget_is_shared_by_100_concurrent_runs_and_each_has_its_own_account() {
    let (model, budget) = (model(&Emitter::new()), built(Budget::builder().tokens(50)));
    let runs = (0..100).map(|n| model.run(tokens(n + 1)).middleware(budget.clone()));
    let results = join_all(runs).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 50);
}

#[tokio::test]
async fn a_run_is_counted_in_each_account_above_it_even_if_it_has_its_own_account() -> TestResult {
    let (desk, calls) = (desk(&Emitter::new()), || built(Budget::builder().calls(2)));
    let run = |n| desk.run(vec![Vec::new(); n]);
    for n in [2, 3] {
        let results = [
            run(n).middleware(for_tree(calls())).await,
            run(n).middleware(for_tree(calls())).middleware(built(Budget::builder())).await,
            run(n).middleware(built(Budget::builder())).middleware(for_tree(calls())).await,
            run(n).middleware(for_tree(calls())).middleware(for_tree(calls())).await,
        ];
        for (i, result) in results.into_iter().enumerate() {
            let result = result.map(drop).map_err(|error| error.to_string());
            let expected = if n == 2 { Ok(()) } else { Err("the budget is exceeded: 3 calls (limit: 2)".to_owned()) };
            assert_eq!(result, expected, "{i}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_call_beyond_the_budget_halts_the_run_even_if_another_middleware_refuses_the_call() {
    let one = Limits::builder().runs(1).build();
    let run = desk(&Emitter::new());
    let run = run.run(vec![Vec::new(); 2]).middleware(one).middleware(built(Budget::builder().calls(1)));
    assert!(run.await.expect_err("the budget is closed").is_halted());
}

#[tokio::test]
async fn a_call_beyond_the_budget_halts_the_run_even_if_its_work_returns_the_denial() {
    let model = Arc::new(model(&Emitter::new()));
    let passes_up = instance(&Emitter::new(), "Assistant", "Desk", move |(): (), _: RunContext| {
        let model = Arc::clone(&model);
        async move {
            model.run(Vec::new()).await?;
            model.run(Vec::new()).await
        }
    });
    let error = passes_up.run(()).middleware(built(Budget::builder().calls(1))).await.expect_err("one too many");
    assert_eq!(error.explain().lines().next(), Some("halted by budget: the budget is exceeded: 2 calls (limit: 1)"));
}

#[tokio::test]
async fn a_budget_keeps_no_context_of_an_ended_run_alive() -> TestResult {
    struct Gone(Arc<AtomicU64>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let gone = Arc::new(AtomicU64::new(0));
    for _ in 0..2 {
        let gone = Gone(Arc::clone(&gone));
        let run = model(&Emitter::new());
        let budget = built(Budget::builder().tokens(50).calls(1));
        run.run(tokens(1)).extension(gone).middleware(for_tree(budget)).await?;
    }
    assert_eq!(gone.load(Ordering::Relaxed), 2);
    Ok(())
}

#[test]
fn invalid_limits_warnings_and_prices_are_errors_that_quote_the_value() {
    let rows = [
        (Budget::builder().cost(cents(-1)), "the cost limit `-0.01` is negative: use 0 or more"),
        (Budget::builder().warn_at(1.5), "cannot warn at `1.5` of a limit: use a fraction from 0 to 1, such as 0.8"),
        (
            Budget::builder().warn_at(f64::NAN),
            "cannot warn at `NaN` of a limit: use a fraction from 0 to 1, such as 0.8",
        ),
    ];
    for (builder, message) in rows {
        assert_eq!(builder.build().expect_err("it cannot be").to_string(), message);
    }
    let error = Price::per_million(cents(1), cents(-2)).expect_err("nobody is paid");
    assert_eq!(error.to_string(), "the price `-0.02` is negative: use 0 or more");
}

#[test]
fn explain_lists_a_budget_with_its_limits() {
    let budget = Budget::builder().tokens(10).cost(cents(5)).calls(3).of_kind("Tool").wall_time(ms(30_000));
    let lines = [
        "m",
        "  bound:",
        "    budget: 10 tokens, cost 0.05, 3 calls of Tool, 30s",
        "  passes:",
        "    observe   budget: 10 tokens, cost 0.05, 3 calls of Tool, 30s",
    ];
    assert_eq!(model(&Emitter::new()).run(tokens(1)).middleware(built(budget)).explain().to_string(), lines.join("\n"));
}

/// The steps of one nested run, each with a number of yields and a number of tokens. A step yields, charges the tokens,
/// and starts a run.
type Script = Vec<(u64, u64)>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn under_any_interleaving_all_charges_are_recorded_and_no_run_starts_after_the_limit(
        scripts in prop::collection::vec(prop::collection::vec((0..4_u64, 0..30_u64), 0..6), 0..8),
        most in 0..200_u64,
    ) {
        let one = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let many = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
        for (runtime, threads) in [(one, false), (many, true)] {
            runtime.block_on(interleaved(scripts.clone(), u64::MAX, threads));
            runtime.block_on(interleaved(scripts.clone(), most, threads));
        }
    }
}

#[derive(Default)]
struct Witness {
    charged: AtomicU64,
    began_late: AtomicU64,
    holder: Mutex<Option<RunContext>>,
}

async fn interleaved(scripts: Vec<Script>, most: u64, threads: bool) {
    let (root, witness) = (Emitter::new(), Arc::new(Witness::default()));
    let seen = Arc::clone(&witness);
    let leaf = Arc::new(instance(&root, "Tool", "leaf", move |(): (), ctx: RunContext| {
        let is_late = remaining(&ctx).is_some_and(|left| !left.is_open);
        seen.began_late.fetch_add(u64::from(is_late), Ordering::SeqCst);
        async { Ok(()) }
    }));
    let seen = Arc::clone(&witness);
    // The work continues after every error.
    let spender = Arc::new(instance(&root, "Model", "spends", move |script: Script, ctx: RunContext| {
        let (seen, leaf) = (Arc::clone(&seen), Arc::clone(&leaf));
        async move {
            for (waits, tokens) in script {
                for _ in 0..waits {
                    tokio::task::yield_now().await;
                }
                seen.charged.fetch_add(tokens, Ordering::SeqCst);
                drop(charge(&ctx, Usage::new().input_tokens(tokens)).await);
                drop(leaf.run(()).await);
            }
            Ok(())
        }
    }));
    let seen = Arc::clone(&witness);
    let all = instance(&root, "Assistant", "Desk", move |scripts: Vec<Script>, ctx: RunContext| {
        let (spender, seen) = (Arc::clone(&spender), Arc::clone(&seen));
        async move {
            let tasks = scripts.into_iter().map(|script| ctx.spawn(spender.run_shared(script)));
            let tasks: Vec<_> = tasks.collect();
            *seen.holder.lock().expect("nobody panics") = Some(ctx);
            drop(join_all(tasks).await);
            Ok(())
        }
    });
    let sum: u64 = scripts.iter().flatten().map(|(_, tokens)| tokens).sum();
    let result = all.run(scripts).middleware(built(Budget::builder().tokens(most))).await;
    assert_eq!(result.as_ref().is_err_and(Error::is_halted), sum > most, "{result:?}");
    let holder = witness.holder.lock().expect("nobody panics").take().expect("it has begun");
    let (charged, recorded) = (witness.charged.load(Ordering::SeqCst), spent(&holder).expect("a budget").tokens);
    assert_eq!(recorded, charged);
    assert!(sum > most || charged == sum);
    // On one thread, no other code runs between the check of the budget and the beginning of a run.
    assert!(threads || witness.began_late.load(Ordering::SeqCst) == 0);
}

#[tokio::test]
async fn an_estimate_is_not_charged_if_usage_has_to_be_reported_and_the_next_call_is_denied() {
    let budget = built(Budget::builder().tokens(10).require_reported());
    let closed = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&closed);
    let listener = move |_: &mut BudgetClosed, _: &EventMeta<'_>| {
        counts.fetch_add(1, Ordering::Relaxed);
    };
    budget.emitter().on("closed", listener).expect("a name");
    let work = runnable_fn("work", |(): (), ctx: RunContext| async move {
        assert!(expects_usage(&ctx).await?);
        charge(&ctx, Usage::of("small").input_tokens(99).estimated()).await?;
        assert_eq!(spent(&ctx).map(|spent| spent.tokens), Some(0));
        expects_usage(&ctx).await
    });
    let error = work.run(()).middleware(budget).await.expect_err("the second call is denied");
    assert!(error.is_denied(), "{error}");
    assert_eq!(
        error.to_string(),
        "the usage of `small` is not known: its last call reported none (`require_reported`)"
    );
    assert_eq!(closed.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn usage_is_expected_only_below_a_limit_on_tokens_or_cost() {
    let work = runnable_fn("work", |(): (), ctx: RunContext| async move { expects_usage(&ctx).await });
    let rows = [
        (Budget::builder().tokens(1), true),
        (Budget::builder().cost(cents(1)), true),
        (Budget::builder().calls(1).require_reported(), false),
    ];
    for (budget, expected) in rows {
        assert_eq!(work.run(()).middleware(built(budget)).await.ok(), Some(expected));
    }
    assert_eq!(work.run(()).await.ok(), Some(false));
}
