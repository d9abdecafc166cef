//! A trajectory has one line for each `start`, `success` and `error` of a run and the runs below it, indented by depth
//! and written whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use emitree_emitter::{Emitter, Options};
use emitree_middleware::trajectory::{Trajectory, TrajectoryBuilder, TrajectoryEvent};
use emitree_middleware::{Retry, Runs};
use emitree_runtime::{Error, Result, RunContext, Runnable};
use emitree_sinks::Memory;
use serde_json::{Value, json};
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
async fn an_error_line_shows_the_explanation_of_the_error_and_repeats_the_input() -> TestResult {
    let page = Page::new();
    failing_desk(&Emitter::new()).run(question()).middleware(page.trajectory()).await?;
    page.expect([
        LINES[0],
        r#"--> Tool[read_file][start]: path: """#,
        LINES[2],
        LINES[3],
        "<-- Tool[read_file][error]: not found: no path",
        "  | caused by: entity not found",
        r#"  | input: path: """#,
        "Assistant[Desk][success]: I could not read it",
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
    page.expect(["Tool[fail][start]", "Tool[fail][error]: denied by house rules: no", "  | rule: 7"]);
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
    let trajectory = page.built(|builder| builder.json().pretty(true));
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
        // The numbers of runs that overlap.
        let number = piece.find(" #").map_or(0..0, |at| at..at + piece[at..].find(':').expect("a value"));
        let piece = piece[..number.start].to_owned() + &piece[number.end..];
        *seen.entry(piece).or_default() += 1;
    }
    let expected = (0..100).flat_map(|n| {
        [
            format!("Tool[top][start]: {n}\n"),
            format!("--> Tool[below][start]: {n}\n"),
            format!("<-- Tool[below][success]: {n}\n"),
            format!("Tool[top][success]: {n}\n"),
        ]
    });
    assert_eq!(seen, expected.map(|line| (line, 5)).collect());
    Ok(())
}

#[tokio::test]
async fn concurrent_runs_of_one_name_are_told_apart_by_numbers_which_the_runs_below_show_too() -> TestResult {
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
        let number = if n == 1 { "" } else { " #2" };
        assert!(text.contains(&format!("\n--> Tool[branch][start]{number}: {n}\n")), "{text}");
        assert!(text.contains(&format!("\n    --> Tool[leaf][start] #{n}: {n}\n")), "{text}");
        assert!(text.contains(&format!("\n    <-- Tool[leaf][success] #{n}: {n}\n")), "{text}");
        assert!(text.contains(&format!("\n<-- Tool[branch][success] #{n}: {n}\n")), "{text}");
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
        let trajectory =
            page.built(|builder| if shows_ticks { builder.every().events("**.tick") } else { builder.every() });
        run_a_crowd(20, trajectory).await?;
        let text = page.take();
        for n in 1..=20 {
            // When the first one starts, there is nothing to tell it apart from.
            let number = if n == 1 { String::new() } else { format!(" #{n}") };
            assert!(text.contains(&format!("\n--> Tool[branch][start]{number}: {n}\n")), "{text}");
            assert!(text.contains(&format!("\n    --> Tool[leaf][start]{number}: {n}\n")), "{text}");
            assert!(text.contains(&format!("\n    <-- Tool[leaf][success] #{n}: {n}\n")), "{text}");
            assert!(text.contains(&format!("\n<-- Tool[branch][success] #{n}: {n}\n")), "{text}");
            assert_eq!(text.contains(&format!("\n    <-- Tool[leaf][tick] #{n}: {n}\n")), shows_ticks, "{text}");
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
        let sorted = "e: 1, i: 1, o: 1, p: 1, q: 1, r: 1, t: 1, u: 1, w: 1, y: 1";
        page.expect([&*format!("Tool[echo][start]: {sorted}"), &*format!("Tool[echo][success]: {sorted}")]);
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
    page.expect(["Tool[double][start]: 20", "Tool[double][success]: 42"]);
    Ok(())
}

type Start = emitree_runtime::Start<u32, u32>;

#[tokio::test]
async fn an_output_set_at_start_is_shown() -> TestResult {
    let page = Page::new();
    let double = instance(&Emitter::new(), "Tool", "double", |n: u32, _| async move { Ok(n * 2) });
    double.run(1).middleware(page.trajectory()).on_start(|start, _| start.output = Some(7)).await?;
    page.expect(["Tool[double][start]: 1 => 7", "Tool[double][success]: 7"]);
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
        "Tool[double][start]: 1",
        "Tool[double][success]: 2",
        "Tool[double][start]: 2",
        "Tool[double][success]: 4",
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

/// Returns the lines of the sample in the documentation of `Trajectory`.
fn sample() -> String {
    let source = include_str!("../../src/trajectory/mod.rs");
    let (_, sample) = source.split_once("/// ```text\n").expect("a sample");
    let (sample, _) = sample.split_once("/// ```\n").expect("an end");
    sample
        .lines()
        .map(|line| line.trim_start_matches("///").strip_prefix(' ').unwrap_or_default().to_owned() + "\n")
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_documentation_shows_ten_lines_that_a_trajectory_and_its_replay_print() -> TestResult {
    let root = Emitter::new();
    let memory = Memory::new();
    let recording = root.pipe_to(memory.clone())?;
    let attempts = AtomicUsize::new(0);
    let model = instance(&root, "ChatModel", "gpt", move |_: Value, _| {
        let attempt = attempts.fetch_add(1, Relaxed);
        async move {
            if attempt == 0 {
                let busy = Error::new("too many requests").retryable(true);
                return Err(busy.detail("status", 429).detail("retry_after_ms", 1_200));
            }
            let call =
                |city: &str| json!({"type": "tool_call", "id": city, "name": "weather", "arguments": {"city": city}});
            Ok(json!({"message": {"role": "assistant", "parts": [call("Oslo"), call("Rome")]}}))
        }
    });
    let weather = instance(&root, "Tool", "weather", |arguments: Value, _| async move {
        let is_oslo = arguments["city"] == "Oslo";
        // The other call starts meanwhile, and the call for Oslo ends first.
        for _ in 0..if is_oslo { 1 } else { 3 } {
            tokio::task::yield_now().await;
        }
        if is_oslo { Ok(json!({"content": "9 °C, rain"})) } else { Err(Error::new("no answer")) }
    });
    let (model, weather) = (Arc::new(model.middleware(Retry::new())), Arc::new(weather));
    let desk = instance(&root, "Agent", "desk", move |input: Value, _| {
        let (model, weather) = (Arc::clone(&model), Arc::clone(&weather));
        async move {
            let reply = model.run(input).await?;
            let arguments = |nth: usize| reply["message"]["parts"][nth]["arguments"].clone();
            let (oslo, rome) = tokio::join!(weather.run(arguments(0)), weather.run(arguments(1)));
            assert!(oslo.is_ok() && rome.is_err());
            let answer = "Oslo has 9 °C and rain. Rome did not answer.";
            Ok(json!({"answer": {"role": "assistant", "parts": [{"type": "text", "content": answer}]}}))
        }
    });
    let question = json!({"type": "text", "content": "How is the weather in Oslo and in Rome?"});
    let page = Page::new();
    let messages = json!({"messages": [{"role": "user", "parts": [question]}]});
    desk.run(messages).middleware(page.trajectory()).await?;
    assert_eq!(page.take(), sample());
    recording.flush().await.complete()?;
    let mut replay = page.trajectory().replay();
    memory.records().iter().try_for_each(|record| replay.show(record))?;
    assert_eq!(page.take(), sample(), "the replay");
    assert_eq!(sample().lines().count(), 10);
    Ok(())
}

/// Runs 100 tools one after the other, of which the 50th fails, each with a run below. Returns the live lines and the
/// lines of a replay.
async fn a_hundred(options: fn(TrajectoryBuilder) -> TrajectoryBuilder) -> TestResult<[Vec<String>; 2]> {
    let root = Emitter::new();
    let memory = Memory::new();
    let recording = root.pipe_to(memory.clone())?;
    let parse = Arc::new(instance(&root, "Tool", "parse", |n: u32, _| async move { Ok(n) }));
    let fetch = Arc::new(instance(&root, "Tool", "fetch", move |n: u32, _| {
        let parse = Arc::clone(&parse);
        async move { if n == 50 { Err(Error::new("no answer")) } else { parse.run(n).await } }
    }));
    let crawl = instance(&root, "Tool", "crawl", move |(): (), _: RunContext| {
        let fetch = Arc::clone(&fetch);
        async move {
            for n in 1..=100 {
                fetch.run(n).await.ok();
            }
            Ok(())
        }
    });
    let page = Page::new();
    let trajectory = page.built(options);
    crawl.run(()).middleware(trajectory.clone()).await?;
    recording.flush().await.complete()?;
    let live = page.take();
    let mut replay = trajectory.replay();
    memory.records().iter().try_for_each(|record| replay.show(record))?;
    Ok([live, page.take()].map(|text| text.lines().map(ToOwned::to_owned).collect()))
}

#[tokio::test]
async fn from_the_twentieth_sibling_on_successes_are_one_line_with_their_number_p50_and_maximum() -> TestResult {
    for lines in a_hundred(|builder| builder).await? {
        let of_fetch =
            |lines: &[String]| lines.iter().filter(|line| line.contains("Tool[fetch]")).cloned().collect::<Vec<_>>();
        assert_eq!(of_fetch(&lines[..1 + 19 * 4]).len(), 19 * 2);
        let [first, error, input, folded, end] = &lines[1 + 19 * 4..] else { panic!("{lines:#?}") };
        assert_eq!(first, "... Tool[fetch]: from here on, successes are counted and shown at the end");
        assert_eq!((&**error, &**input), ("<-- Tool[fetch][error]: no answer", "  | input: 50"));
        assert!(folded.starts_with("<-- Tool[fetch][success]: 80 more, p50 "), "{folded}");
        assert!(folded.contains(", max "), "{folded}");
        assert_eq!(end, "Tool[crawl][success]");
    }
    Ok(())
}

#[tokio::test]
async fn every_shows_all_siblings() -> TestResult {
    let [live, replayed] = a_hundred(TrajectoryBuilder::every).await?;
    assert_eq!(live, replayed);
    // The failed one has no run below, and a row with its input.
    assert_eq!(live.len(), 2 + 100 * 4 - 1);
    Ok(())
}
