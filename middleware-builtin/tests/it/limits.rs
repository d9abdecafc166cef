//! The number and the depth of runs below a run, and the number of runs in a group, are limited. An excess run is
//! denied, fails, or ends the bound run.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::support::{Failing, TestResult, instance};
use emitree_emitter::{Emitter, EventMeta};
use emitree_middleware::Limits;
use emitree_middleware::limits::{OnLimit, Reached};
use emitree_runtime::{Error, Result, RunContext, Runnable, Stage, for_nested, for_tree};
use tokio::runtime::Builder;

/// Returns a desk. The desk starts the given number of tools, and returns the number of successes and the first error.
fn desk(root: &Emitter) -> impl Runnable<Input = u64, Output = (u64, Option<String>)> + 'static {
    let tool = Arc::new(instance(root, "Tool", "echo", |n: u64, _: RunContext| async move { Ok(n) }));
    instance(root, "Assistant", "Desk", move |n: u64, _: RunContext| {
        let tool = Arc::clone(&tool);
        async move {
            let (mut ran, mut failed) = (0, None);
            for i in 0..n {
                match tool.run(i).await {
                    Ok(_) => ran += 1,
                    Err(error) => failed = failed.or(Some(error.explain())),
                }
            }
            Ok((ran, failed))
        }
    })
}

/// A runnable that runs itself recursively to the given depth, and returns the depth that it reached.
#[derive(Clone)]
struct Diver(Emitter);

impl Runnable for Diver {
    type Input = u64;
    type Output = u64;

    fn emitter(&self) -> &Emitter {
        &self.0
    }

    async fn execute(&self, depth: &u64, _: &RunContext) -> Result<u64> {
        if *depth == 0 {
            return Ok(0);
        }
        match Box::pin(self.run(depth - 1)).await {
            Ok(deeper) => Ok(deeper + 1),
            Err(error) if error.is_denied() => Ok(0),
            Err(error) => Err(error),
        }
    }
}

fn diver() -> Diver {
    Diver(Emitter::new().child("diver").expect("a valid name"))
}

#[tokio::test]
async fn limits_without_options_limit_nothing() -> TestResult {
    assert_eq!(desk(&Emitter::new()).run(50).middleware(Limits::builder().build()).await?, (50, None));
    Ok(())
}

#[tokio::test]
async fn runs_below_are_limited_in_total_or_by_kind() -> TestResult {
    let all =
        "denied by limits: at most 3 runs are allowed below the run that sets the limit\n  limit: \"runs\"\n  most: 3";
    let tools = "denied by limits: at most 2 runs of Tool are allowed below the run that sets the limit\n  limit: \"kind\"\n  most: 2";
    let rows = [
        (Limits::builder().runs(3), (3, Some(all))),
        (Limits::builder().of_kind("Tool", 2), (2, Some(tools))),
        (Limits::builder().of_kind("Tool", 2).runs(9), (2, Some(tools))),
        (Limits::builder().of_kind("Tool", 9).runs(3), (3, Some(all))),
        (Limits::builder().of_kind("Tool", 9).of_kind("Tool", 2), (2, Some(tools))),
        (Limits::builder().of_kind("Model", 0), (5, None)),
    ];
    let desk = desk(&Emitter::new());
    for (limits, (ran, failed)) in rows {
        let shown = format!("{limits:?}");
        let result = desk.run(5).middleware(limits.build()).await?;
        assert_eq!(result, (ran, failed.map(ToOwned::to_owned)), "{shown}");
    }
    Ok(())
}

#[tokio::test]
async fn each_bound_run_counts_its_own_runs_below() -> TestResult {
    let (desk, limits) = (desk(&Emitter::new()), Limits::builder().runs(2).build());
    for _ in 0..3 {
        assert_eq!(desk.run(5).middleware(limits.clone()).await?.0, 2);
    }
    Ok(())
}

#[tokio::test]
async fn depth_counts_the_levels_below_the_run() -> TestResult {
    for most in [0, 1, 3] {
        let limits = Limits::builder().depth(most).build();
        assert_eq!(diver().run(9).middleware(limits).await?, u64::try_from(most)?);
    }
    assert_eq!(diver().run(9).middleware(Limits::builder().depth(9).build()).await?, 9);
    Ok(())
}

#[tokio::test]
async fn depth_is_counted_from_the_bound_run_even_if_it_is_nested() -> TestResult {
    let diver = diver();
    let outer = instance(&Emitter::new(), "Assistant", "Desk", move |most: usize, _: RunContext| {
        let diver = diver.clone();
        async move { diver.run(9).middleware(Limits::builder().depth(most).build()).await }
    });
    for most in [0, 1, 3] {
        assert_eq!(outer.run(most).await?, u64::try_from(most)?);
    }
    Ok(())
}

#[tokio::test]
async fn a_group_limit_counts_all_runs_of_the_group_until_the_group_is_forgotten() -> TestResult {
    let (desk, limits) = (desk(&Emitter::new()), Limits::builder().group_runs(9).group_of_kind("Tool", 5).build());
    let run = |group: &'static str| {
        let run = desk.run(3).middleware(limits.clone()).group_id(group);
        async { run.await.map(|(ran, _)| ran) }
    };
    assert_eq!((run("one").await?, run("one").await?, run("two").await?, run("one").await?), (3, 2, 3, 0));
    limits.forget_group("one");
    assert_eq!(run("one").await?, 3);
    // Without a group, no run is counted.
    assert_eq!(desk.run(50).middleware(limits).await?.0, 50);
    Ok(())
}

#[tokio::test]
async fn a_run_is_counted_once_in_a_group_even_if_several_runs_above_it_are_limited() -> TestResult {
    let root = Emitter::new();
    let desk = Arc::new(desk(&root));
    let outer = instance(&root, "Agent", "outer", move |n: u64, _: RunContext| {
        let desk = Arc::clone(&desk);
        async move { desk.run(n).await }
    });
    let limits = Limits::builder().group_runs(4).build();
    // Four runs are counted: the desk and three tools below it.
    assert_eq!(outer.run(5).middleware(for_tree(limits.clone())).group_id("one").await?.0, 3);
    // The result is the same if the limits are bound twice.
    assert_eq!(outer.run(5).middleware(limits.clone()).middleware(limits).group_id("two").await?.0, 3);
    Ok(())
}

#[tokio::test]
async fn a_run_that_one_limit_refuses_is_not_counted_by_another() -> TestResult {
    let limits = Limits::builder().runs(3).group_runs(4).build();
    let desk = desk(&Emitter::new());
    assert_eq!(desk.run(50).middleware(limits.clone()).group_id("one").await?.0, 3);
    assert_eq!(desk.run(50).middleware(limits).group_id("one").await?.0, 1);
    Ok(())
}

#[tokio::test]
async fn a_run_beyond_the_limit_is_denied_or_fails_or_halts_the_bound_run_as_configured() -> TestResult {
    let desk = desk(&Emitter::new());
    let run = |on_limit| desk.run(5).middleware(Limits::builder().runs(2).on_limit(on_limit).build());
    let reason = "at most 2 runs are allowed below the run that sets the limit";
    assert!(run(OnLimit::Deny).await?.1.expect("one failed").starts_with(&format!("denied by limits: {reason}")));
    assert!(run(OnLimit::Fail).await?.1.expect("one failed").starts_with(reason));
    let error = run(OnLimit::End).await.expect_err("it ends");
    assert_eq!(error.explain(), format!("halted by limits: {reason}\n  limit: \"runs\"\n  most: 2"));
    Ok(())
}

#[tokio::test]
async fn a_failure_by_a_limit_contains_reached_as_its_cause() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(instance(&root, "Tool", "echo", |n: u64, _: RunContext| async move { Ok(n) }));
    let outer = instance(&root, "Assistant", "Desk", move |n: u64, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(n).await }
    });
    let limits = Limits::builder().runs(0).on_limit(OnLimit::Fail).build();
    let error: Error = outer.run(1).middleware(limits).await.expect_err("none is allowed");
    assert_eq!(error.find::<Reached>().map(|reached| (reached.most, &*reached.kind)), Some((0, "Tool")));
    Ok(())
}

#[tokio::test]
async fn a_refused_run_calls_no_start_listener_no_layer_and_no_work_and_emits_finish() -> TestResult {
    let root = Emitter::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &'static str| {
        let heard = Arc::clone(&heard);
        move || heard.lock().expect("nobody panics").push(what)
    };
    let (worked, looked, started, finished) = (note("work"), note("input"), note("start"), note("finish"));
    let look = emitree_runtime::layer_fn("look", move |input: &(), _, next: emitree_runtime::Next<'_, Any>| {
        looked();
        Box::pin(async move { next.run(input).await })
    });
    struct Any;
    impl emitree_runtime::Op for Any {
        type In = ();
        type Out = ();
    }
    let tool = instance(&root, "Tool", "noisy", move |(): (), _: RunContext| {
        worked();
        async { Ok(()) }
    });
    tool.emitter().on(Stage::Start, move |_: &mut dyn emitree_emitter::AnyEvent, _| started())?;
    tool.emitter().on(Stage::Finish, move |_: &mut dyn emitree_emitter::AnyEvent, _| finished())?;
    let tool = Arc::new(tool.middleware(emitree_runtime::Stack::<Any>::builder().layer(look).build()));
    let outer = instance(&root, "Assistant", "Desk", move |(): (), _: RunContext| {
        let tool = Arc::clone(&tool);
        async move { tool.run(()).await }
    });
    let error = outer.run(()).middleware(Limits::builder().runs(0).build()).await.expect_err("none is allowed");
    assert!(error.is_denied());
    assert_eq!(*heard.lock().expect("nobody panics"), ["finish"]);
    Ok(())
}

#[tokio::test]
async fn with_for_tree_the_outermost_run_counts_all_runs_below_it_and_each_run_below_counts_its_own() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(desk(&root));
    // Each desk starts five tools; a desk that is refused or halted counts as `None`.
    let outer = instance(&root, "Assistant", "Office", move |desks: usize, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            let mut ran = Vec::new();
            for _ in 0..desks {
                ran.push(inner.run(5).await.ok().map(|(ran, _)| ran));
            }
            Ok(ran)
        }
    });
    let tools = |on_limit| Limits::builder().of_kind("Tool", 3).on_limit(on_limit).build();
    assert_eq!(outer.run(2).middleware(for_tree(tools(OnLimit::Deny))).await?, [Some(3), Some(0)]);
    assert_eq!(outer.run(2).middleware(for_nested(tools(OnLimit::Deny))).await?, [Some(3), Some(3)]);
    // The desk's own limits are nearer to its tools than the limits of the office, so only the desk is halted.
    assert_eq!(outer.run(1).middleware(for_tree(tools(OnLimit::End))).await?, [None]);
    assert!(outer.run(1).middleware(tools(OnLimit::End)).await.expect_err("the office is halted").is_halted());
    let six = Limits::builder().runs(6).build();
    assert_eq!(outer.run(2).middleware(for_tree(six)).await?, [Some(5), None], "the second desk is the seventh run");
    Ok(())
}

/// Returns an office with its own limits. The office starts models and tools in turn, and returns the number of each
/// that succeeded.
fn office(root: &Emitter, limits: Limits) -> impl Runnable<Input = u64, Output = (u64, u64)> + 'static {
    let kind = |kind| Arc::new(instance(root, kind, "echo", |n: u64, _: RunContext| async move { Ok(n) }));
    let (model, tool) = (kind("Model"), kind("Tool"));
    let inner = instance(root, "Assistant", "Office", move |n: u64, _: RunContext| {
        let (model, tool) = (Arc::clone(&model), Arc::clone(&tool));
        async move {
            let mut ran = (0, 0);
            for i in 0..n {
                ran.0 += u64::from(model.run(i).await.is_ok());
                ran.1 += u64::from(tool.run(i).await.is_ok());
            }
            Ok(ran)
        }
    });
    inner.middleware(limits)
}

/// Returns a house that starts `offices` offices concurrently, each on its own task.
fn house(
    root: &Emitter,
    offices: u64,
    limits: Limits,
) -> impl Runnable<Input = u64, Output = Vec<(u64, u64)>> + 'static {
    let office = Arc::new(office(root, limits));
    instance(root, "Agent", "House", move |n: u64, ctx: RunContext| {
        let office = Arc::clone(&office);
        async move {
            let start = |_| {
                let office = Arc::clone(&office);
                ctx.spawn(async move { office.run(n).await })
            };
            let tasks: Vec<_> = (0..offices).map(start).collect();
            let mut ran = Vec::new();
            for task in tasks {
                ran.push(task.await??);
            }
            Ok(ran)
        }
    })
}

#[tokio::test]
async fn a_run_that_inner_limits_refuse_is_not_counted_by_outer_limits() -> TestResult {
    let no_models = || Limits::builder().of_kind("Model", 0).group_of_kind("Tool", 9).build();
    // The office is the first run that the outer limits count.
    let rows = [
        (Limits::builder().runs(4), (0, 3)),
        (Limits::builder().group_runs(4), (0, 3)),
        (Limits::builder().runs(4).group_runs(3), (0, 2)),
        (Limits::builder().runs(50), (0, 9)),
    ];
    for (outer, ran) in rows {
        let (shown, root) = (format!("{outer:?}"), Emitter::new());
        let run = house(&root, 1, no_models()).run(20).middleware(outer.build()).group_id("one").await?;
        assert_eq!(run, [ran], "{shown}");
    }
    Ok(())
}

#[tokio::test]
async fn a_run_that_outer_limits_refuse_is_not_counted_by_inner_limits() -> TestResult {
    let root = Emitter::new();
    let limits = Limits::builder().group_runs(5).build();
    let office = office(&root, limits.clone());
    let outer = for_tree(Limits::builder().of_kind("Model", 0).build());
    assert_eq!(office.run(20).middleware(outer).group_id("one").await?, (0, 5));
    Ok(())
}

#[tokio::test]
async fn the_nearest_limits_refuse_a_run_that_several_would_refuse() -> TestResult {
    let root = Emitter::new();
    let inner = Limits::builder().runs(0).on_limit(OnLimit::Fail).build();
    let outer = Limits::builder().runs(1).on_limit(OnLimit::End).build();
    assert_eq!(house(&root, 1, inner).run(3).middleware(outer).await?, [(0, 0)]);
    Ok(())
}

#[test]
fn limits_that_count_a_group_in_opposite_order_do_not_deadlock() -> TestResult {
    let [a, b] = [(); 2].map(|()| Limits::builder().group_runs(1_000).build());
    let (ended, ends) = mpsc::channel();
    for (outer, inner) in [(a.clone(), b.clone()), (b, a)] {
        let (house, ended) = (house(&Emitter::new(), 2, inner), ended.clone());
        // A deadlock would block the threads of a runtime for good, so the test itself does not wait for these threads.
        std::thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
            ended.send(runtime.block_on(house.run(50).middleware(outer).group_id("one")))
        });
    }
    for _ in 0..2 {
        let ran = ends.recv_timeout(Duration::from_secs(60)).expect("no deadlock");
        assert_eq!(ran?, [(50, 50); 2]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_the_allowed_number_of_concurrent_runs_starts_under_inner_and_outer_limits() -> TestResult {
    for (most, in_all) in [(30, 30), (40, 40), (50, 40)].repeat(7) {
        let (inner, outer) = (Limits::builder().of_kind("Tool", 5).build(), Limits::builder().of_kind("Tool", most));
        let ran = house(&Emitter::new(), 8, inner).run(20).middleware(outer.build()).await?;
        assert_eq!(ran.iter().map(|(_, tools)| tools).sum::<u64>(), in_all, "{most}: {ran:?}");
    }
    Ok(())
}

#[tokio::test]
async fn limits_are_shared_by_100_concurrent_runs() -> TestResult {
    let (desk, limits) = (desk(&Emitter::new()), Limits::builder().runs(2).group_runs(150).build());
    let runs = (0..100).map(|_| desk.run(5).group_id("all").middleware(limits.clone()));
    let results = futures_util::future::try_join_all(runs).await?;
    assert!(results.iter().all(|(ran, _)| *ran <= 2));
    assert_eq!(results.iter().map(|(ran, _)| ran).sum::<u64>(), 150);
    Ok(())
}

#[tokio::test]
async fn events_of_limits_reach_their_emitter_and_the_run_with_the_refused_run_s_ids() -> TestResult {
    for on_limit in [OnLimit::Deny, OnLimit::Fail, OnLimit::End] {
        let (limits, heard) =
            (Limits::builder().of_kind("Tool", 1).on_limit(on_limit), Arc::new(Mutex::new(Vec::new())));
        let limits = limits.build();
        let note = |who: &'static str| {
            let heard = Arc::clone(&heard);
            move |event: &mut Reached, meta: &EventMeta<'_>| {
                let run = RunContext::current().expect("in the run that is one too many");
                assert_eq!(meta.trace().map(|trace| trace.run_id), Some(run.run_id()));
                assert_eq!(run.depth(), 1);
                heard.lock().expect("nobody panics").push(format!("{who} {} {event}", meta.path()));
            }
        };
        limits.emitter().on("reached", note("own"))?;
        let run =
            desk(&Emitter::new()).run(2).middleware(limits.clone()).on("middleware.limits.reached", note("run")).await;
        assert_eq!(run.is_err(), on_limit == OnLimit::End);
        let said = "middleware.limits.reached at most 1 runs of Tool are allowed below the run that sets the limit";
        assert_eq!(*heard.lock().expect("nobody panics"), [format!("own {said}"), format!("run {said}")]);
    }
    Ok(())
}

// M5: observers fail open.
#[tokio::test]
async fn a_failing_listener_does_not_affect_limits() -> TestResult {
    let (limits, failing) = (Limits::builder().runs(1).build(), Failing::default());
    limits.emitter().on("reached", failing.listener::<Reached>())?;
    assert_eq!(desk(&Emitter::new()).run(3).middleware(limits).await?.0, 1);
    assert_eq!(failing.calls(), 2, "two runs are refused");
    Ok(())
}

#[test]
fn explain_lists_limits_with_their_options() {
    let limits = Limits::builder().runs(9).of_kind("Tool", 5).group_of_kind("Model", 7).depth(3).on_limit(OnLimit::End);
    let lines = [
        "Desk",
        "  bound:",
        "    limits: at most 9 runs, 5 of Tool, 7 of Model in a group, depth 3: ends the run",
        "  passes:",
        "    observe   limits: ends when a limit is reached",
    ];
    assert_eq!(desk(&Emitter::new()).run(1).middleware(limits.build()).explain().to_string(), lines.join("\n"));
}
