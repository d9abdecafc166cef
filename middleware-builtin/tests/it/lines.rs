//! A trajectory has one line for each `start`, `success` and `error` of a run and the runs below it, indented by depth
//! and written whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use emitree_emitter::{Emitter, Options};
use emitree_middleware::Runs;
use emitree_middleware::trajectory::{Trajectory, TrajectoryEvent};
use emitree_runtime::{Error, Result, RunContext, Runnable};
use tokio::sync::Barrier;

use crate::support::{LINES, Page, TestResult, desk, failing_desk, instance, question};

#[tokio::test]
async fn each_run_is_shown_below_the_run_in_which_it_was_started() -> TestResult {
    let page = Page::new();
    desk(&Emitter::new()).run(question()).middleware(page.trajectory()).await?;
    page.expect(LINES);
    Ok(())
}

#[tokio::test]
async fn an_error_line_shows_the_explanation_of_the_error() -> TestResult {
    let page = Page::new();
    failing_desk(&Emitter::new()).run(question()).middleware(page.trajectory()).await?;
    page.expect([
        r#"Assistant[Desk][start]: {"input":{"question":"how many words?"}}"#,
        r#"--> Tool[read_file][start]: {"input":{"path":""}}"#,
        r#"    --> Tool[decode][start]: {"input":[1,2]}"#,
        r#"    <-- Tool[decode][success]: {"input":[1,2],"output":2}"#,
        "<-- Tool[read_file][error]: not found: no path\n  | caused by: entity not found",
        r#"Assistant[Desk][success]: {"input":{"question":"how many words?"},"output":"I could not read it"}"#,
    ]);
    Ok(())
}

#[tokio::test]
async fn an_error_of_the_outermost_run_is_shown() {
    let page = Page::new();
    let fail = instance(&Emitter::new(), "Tool", "fail", |(): (), _| async {
        Err::<(), _>(Error::denied("house rules", "no").detail("rule", 7))
    });
    assert!(fail.run(()).middleware(page.trajectory()).await.is_err());
    page.expect(["Tool[fail][start]: {}", "Tool[fail][error]: denied by house rules: no\n  | rule: 7"]);
}

#[tokio::test]
async fn the_bound_run_is_shown_at_level_0_even_if_it_is_nested() -> TestResult {
    let page = Page::new();
    let levels = levels_of_a_desk_below_a_run(page.trajectory(), &Emitter::new()).await?;
    assert_eq!(levels, [(0, 1), (1, 2), (2, 3), (2, 3), (1, 2), (0, 1)]);
    page.expect(LINES);
    Ok(())
}

#[tokio::test]
async fn the_absolute_level_is_the_depth_of_the_run_even_below_an_excluded_run() -> TestResult {
    let trajectory = Page::new().built(|builder| builder.excluded(Runs::named("read_file")));
    // The bound run has the absolute level 1; the run below the hidden run has the level 3.
    let levels = levels_of_a_desk_below_a_run(trajectory, &Emitter::new()).await?;
    assert_eq!(levels, [(0, 1), (1, 3), (1, 3), (0, 1)]);
    Ok(())
}

/// Returns the relative and the absolute level of each line of a trajectory that is bound to the second run.
async fn levels_of_a_desk_below_a_run(trajectory: Trajectory, root: &Emitter) -> TestResult<Vec<(usize, usize)>> {
    let (inner, levels) = (Arc::new(desk(root)), Arc::<Mutex<Vec<_>>>::default());
    let seen = Arc::clone(&levels);
    trajectory.emitter().observe("{start,success}", move |event: &TrajectoryEvent, _| {
        seen.lock().expect("nobody panics here").push((event.level.relative, event.level.absolute));
    })?;
    let outer = instance(root, "Assistant", "outer", move |(): (), _| {
        let (inner, trajectory) = (Arc::clone(&inner), trajectory.clone());
        async move { inner.run(question()).middleware(trajectory).await }
    });
    outer.run(()).await?;
    let levels = levels.lock().expect("nobody panics here").clone();
    Ok(levels)
}

#[tokio::test]
async fn each_line_is_written_in_one_write() -> TestResult {
    let page = Page::new();
    let trajectory = page.built(|builder| builder.pretty(true));
    failing_desk(&Emitter::new()).run(question()).middleware(trajectory).await?;
    let pieces = page.pieces();
    assert_eq!(pieces.len(), 6);
    assert!(pieces.iter().all(|piece| piece.ends_with('\n')));
    assert_eq!(
        pieces[0],
        "Assistant[Desk][start]: {\n  |   \"input\": {\n  |     \"question\": \"how many words?\"\n  |   }\n  | }\n"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_trajectory_shared_by_100_concurrent_runs_shows_each_completely() -> TestResult {
    let page = Page::new();
    let trajectory = page.trajectory();
    let together = Arc::new(Barrier::new(100));
    let tasks: Vec<_> = (0..100_u32)
        .map(|n| {
            let (trajectory, together) = (trajectory.clone(), Arc::clone(&together));
            tokio::spawn(async move {
                let below = Arc::new(instance(&Emitter::new(), "Tool", "below", |n: u32, _| async move { Ok(n) }));
                let top = instance(&Emitter::new(), "Tool", "top", move |n: u32, _| {
                    let (below, together) = (Arc::clone(&below), Arc::clone(&together));
                    async move {
                        together.wait().await;
                        below.run(n).await
                    }
                });
                for _ in 0..5 {
                    top.run(n).middleware(trajectory.clone()).await.expect("it only adds");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let mut seen: HashMap<String, usize> = HashMap::new();
    for piece in page.pieces() {
        *seen.entry(piece).or_default() += 1;
    }
    let expected = (0..100).flat_map(|n| {
        [
            format!("Tool[top][start]: {{\"input\":{n}}}\n"),
            format!("--> Tool[below][start]: {{\"input\":{n}}}\n"),
            format!("<-- Tool[below][success]: {{\"input\":{n},\"output\":{n}}}\n"),
            format!("Tool[top][success]: {{\"input\":{n},\"output\":{n}}}\n"),
        ]
    });
    assert_eq!(seen, expected.map(|line| (line, 5)).collect());
    Ok(())
}

#[tokio::test]
async fn concurrent_runs_below_one_run_are_shown_at_their_own_levels() -> TestResult {
    let page = Page::new();
    let root = Emitter::new();
    let together = Arc::new(Barrier::new(2));
    let leaf = Arc::new(instance(&root, "Tool", "leaf", |n: u32, _| async move { Ok(n) }));
    let branch = Arc::new(instance(&root, "Tool", "branch", move |n: u32, _| {
        let (leaf, together) = (Arc::clone(&leaf), Arc::clone(&together));
        async move {
            together.wait().await;
            leaf.run(n).await
        }
    }));
    let top = instance(&root, "Tool", "top", move |(): (), _: RunContext| {
        let branch = Arc::clone(&branch);
        async move {
            let (a, b) = tokio::join!(branch.run(1), branch.run(2));
            Ok(a? + b?)
        }
    });
    top.run(()).middleware(page.trajectory()).await?;
    let text = page.take();
    for n in 1..=2 {
        assert!(text.contains(&format!("\n--> Tool[branch][start]: {{\"input\":{n}}}\n")), "{text}");
        assert!(text.contains(&format!("\n    --> Tool[leaf][start]: {{\"input\":{n}}}\n")), "{text}");
        assert!(text.contains(&format!("\n    <-- Tool[leaf][success]: {{\"input\":{n},\"output\":{n}}}\n")), "{text}");
    }
    assert_eq!(text.lines().count(), 10);
    Ok(())
}

/// Starts `many` concurrent runs. Each of them starts one more run, and that run emits `tick`.
async fn run_a_crowd(many: u32, trajectory: Trajectory) -> TestResult {
    let root = Emitter::new();
    let together = Arc::new(Barrier::new(many as usize));
    let leaf = Arc::new(instance(&root, "Tool", "leaf", move |n: u32, ctx: RunContext| {
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            ctx.emitter().emit("tick", &mut n.clone()).await?;
            Ok(n)
        }
    }));
    let branch = Arc::new(instance(&root, "Tool", "branch", move |n: u32, _| {
        let leaf = Arc::clone(&leaf);
        async move { leaf.run(n).await }
    }));
    let top = instance(&root, "Tool", "top", move |(): (), _: RunContext| {
        let branch = Arc::clone(&branch);
        async move {
            let mut runs: Vec<_> = (1..=many).map(|n| Box::pin(branch.run(n))).collect();
            std::future::poll_fn(|cx| {
                runs.retain_mut(|run| run.as_mut().poll(cx).is_pending());
                if runs.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
            })
            .await
        }
    });
    top.run(()).middleware(trajectory).await?;
    Ok(())
}

#[tokio::test]
async fn twenty_concurrent_runs_and_their_events_are_shown_at_their_levels() -> TestResult {
    for shows_ticks in [false, true] {
        let page = Page::new();
        let trajectory = page.built(|builder| if shows_ticks { builder.events("**.tick") } else { builder });
        run_a_crowd(20, trajectory).await?;
        let text = page.take();
        for n in 1..=20 {
            assert!(text.contains(&format!("\n--> Tool[branch][start]: {{\"input\":{n}}}\n")), "{text}");
            assert!(text.contains(&format!("\n    --> Tool[leaf][start]: {{\"input\":{n}}}\n")), "{text}");
            assert!(
                text.contains(&format!("\n    <-- Tool[leaf][success]: {{\"input\":{n},\"output\":{n}}}\n")),
                "{text}"
            );
            assert!(
                text.contains(&format!("\n<-- Tool[branch][success]: {{\"input\":{n},\"output\":{n}}}\n")),
                "{text}"
            );
            assert_eq!(text.contains(&format!("\n    <-- Tool[leaf][tick]: {n}\n")), shows_ticks, "{text}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_order_of_keys_is_the_same_from_run_to_run() -> TestResult {
    let page = Page::new();
    let echo = instance(&Emitter::new(), "Tool", "echo", |map: HashMap<String, u32>, _| async { Ok(map) });
    let keys = ["q", "w", "e", "r", "t", "y", "u", "i", "o", "p"];
    for _ in 0..20 {
        // Each new map has a new order of keys.
        let map = keys.into_iter().map(|key| (key.to_owned(), 1)).collect();
        echo.run(map).middleware(page.trajectory()).await?;
        let sorted = r#"{"e":1,"i":1,"o":1,"p":1,"q":1,"r":1,"t":1,"u":1,"w":1,"y":1}"#;
        page.expect([
            &*format!("Tool[echo][start]: {{\"input\":{sorted}}}"),
            &*format!("Tool[echo][success]: {{\"input\":{sorted},\"output\":{sorted}}}"),
        ]);
    }
    Ok(())
}

#[tokio::test]
async fn a_line_shows_the_input_and_output_as_all_listeners_left_them() -> TestResult {
    let page = Page::new();
    let root = Emitter::new();
    let double = instance(&root, "Tool", "double", |n: u32, _| async move { Ok(n * 2) });
    double
        .run(1)
        .middleware(page.trajectory())
        .register(Options::new().priority(-100).on("tool.double.run.start", |start: &mut Start, _| start.input = 20))
        .on_success(|success, _| success.output += 2)
        .await?;
    page.expect([r#"Tool[double][start]: {"input":20}"#, r#"Tool[double][success]: {"input":20,"output":42}"#]);
    Ok(())
}

type Start = emitree_runtime::Start<u32, u32>;

#[tokio::test]
async fn an_output_set_at_start_is_shown() -> TestResult {
    let page = Page::new();
    let double = instance(&Emitter::new(), "Tool", "double", |n: u32, _| async move { Ok(n * 2) });
    double.run(1).middleware(page.trajectory()).on_start(|start, _| start.output = Some(7)).await?;
    page.expect([r#"Tool[double][start]: {"input":1,"output":7}"#, r#"Tool[double][success]: {"input":1,"output":7}"#]);
    Ok(())
}

#[tokio::test]
async fn a_trajectory_of_an_instance_shows_each_of_its_runs() -> TestResult {
    let page = Page::new();
    let double = instance(&Emitter::new(), "Tool", "double", |n: u32, _| async move { Ok(n * 2) });
    let double = double.middleware(page.trajectory());
    double.run(1).await?;
    double.run(2).await?;
    page.expect([
        r#"Tool[double][start]: {"input":1}"#,
        r#"Tool[double][success]: {"input":1,"output":2}"#,
        r#"Tool[double][start]: {"input":2}"#,
        r#"Tool[double][success]: {"input":2,"output":4}"#,
    ]);
    Ok(())
}

#[tokio::test]
async fn runs_that_have_ended_or_were_dropped_before_their_first_poll_keep_no_handle_of_their_trajectory() -> TestResult
{
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    struct Held;
    impl Drop for Held {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Relaxed);
        }
    }
    ALIVE.fetch_add(1, Relaxed);
    let held = Held;
    let page = Page::new();
    let trajectory = page.built(|builder| {
        builder.included(Runs::matching(move |_| {
            let _ = &held;
            true
        }))
    });
    let run: Result<String> = desk(&Emitter::new()).run(question()).middleware(trajectory.clone()).await;
    run?;
    let unfinished = desk(&Emitter::new());
    drop(unfinished.run(question()).middleware(trajectory.clone()));
    drop::<Trajectory>(trajectory);
    assert_eq!(ALIVE.load(Relaxed), 0);
    Ok(())
}
