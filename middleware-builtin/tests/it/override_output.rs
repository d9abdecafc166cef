//! A run returns a given value or the result of a function, and its work is not called.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::{Any, Failing, TestResult, instance};
use emitree_emitter::{Emitter, EventMeta};
use emitree_middleware::override_output::{Answered, Defaults, WouldRun};
use emitree_middleware::{OverrideOutput, Runs};
use emitree_runtime::{
    Data, Error, Guard, Lifecycle, Op, Result, RunContext, Runnable, Stage, Start, Transform, for_tree, map_output,
};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Returns a tool whose work must not be called.
fn never<I: Data + Clone, O: Data>(
    root: &Emitter,
    name: &'static str,
) -> impl Runnable<Input = I, Output = O> + 'static {
    instance(root, "Tool", name, |_: I, _: RunContext| async { Err::<O, _>(Error::new("the work was done")) })
}

fn double(root: &Emitter) -> impl Runnable<Input = u32, Output = u32> + 'static {
    instance(root, "Tool", "double", |n: u32, _: RunContext| async move { Ok(n * 2) })
}

#[tokio::test]
async fn a_value_a_function_or_a_table_answers_the_run_typed_or_as_json() -> TestResult {
    let rows = [
        OverrideOutput::value(7_u32),
        OverrideOutput::with(|n: &u32, _: &RunContext| Ok(Some(n + 4))),
        OverrideOutput::with_async(|n: &u32, _: &RunContext| {
            Box::pin(async move {
                tokio::task::yield_now().await;
                Ok(Some(n + 4))
            })
        }),
        OverrideOutput::json(7),
        OverrideOutput::json_with(|n, _| Ok(n.as_u64().map(|n| json!(n + 4)))),
        OverrideOutput::canned([(1, 1), (3, 7), (3, 8)])?,
    ];
    for answer in rows {
        let never = never::<u32, u32>(&Emitter::new(), "never");
        assert_eq!(never.run(3).middleware(answer.clone()).await?, 7, "{answer:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_work_runs_if_the_function_or_table_has_no_answer() -> TestResult {
    let double = double(&Emitter::new());
    let rows = [
        OverrideOutput::with(|_: &u32, _: &RunContext| Ok(None::<u32>)),
        OverrideOutput::json_with(|_, _| Ok(None)),
        OverrideOutput::canned([(1, 1)])?,
    ];
    for answer in rows {
        assert_eq!(double.run(3).middleware(answer).await?, 6);
    }
    Ok(())
}

#[tokio::test]
async fn an_error_or_panic_of_the_answering_function_ends_the_run() {
    let double = double(&Emitter::new());
    let run = |answer| async { double.run(3).middleware(answer).await.expect_err("it fails") };
    let fails = run(OverrideOutput::with(|_: &u32, _: &RunContext| Err::<Option<u32>, _>(Error::new("no")))).await;
    assert_eq!((fails.to_string(), fails.is_control_flow()), ("no".to_owned(), false));
    let denies = run(OverrideOutput::json_with(|_, _| Err(Error::denied("policy", "not this")))).await;
    assert!(denies.is_denied(), "{denies}");
    let panics = run(OverrideOutput::json_with(|_, _| -> Result<Option<Value>> { panic!("oh") })).await;
    assert!(panics.explain().contains("panicked"), "{}", panics.explain());
}

#[tokio::test]
async fn only_runs_that_meet_every_condition_are_answered() -> TestResult {
    let root = Emitter::new();
    let (double, other) = (double(&root), double(&root));
    let answer = || OverrideOutput::json(7);
    let rows = [
        (answer().of_kind("Tool"), true),
        (answer().of_kind("Agent"), false),
        (answer().runs(Runs::named("double")), true),
        (answer().runs(Runs::named("triple")), false),
        (answer().runs(Runs::of_kind("Tool").and(Runs::named("triple"))), false),
        (answer().runs(Runs::of_instance(&double)), true),
        (answer().runs(Runs::of_instance(&other)), false),
        (answer().runs(Runs::matching(|run| run.namespace().contains("double"))), true),
        (answer().when_input(|n| *n == 3), true),
        (answer().when_input(|n| *n == 4), false),
        (answer().when_input(|n| *n == 3).when_input(|n| *n == 4), false),
    ];
    for (answer, is_answered) in rows {
        let expected = if is_answered { 7 } else { 6 };
        assert_eq!(double.run(3).middleware(answer.clone()).await?, expected, "{answer:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_output_set_by_a_listener_stays_and_the_first_of_several_overrides_answers() -> TestResult {
    let double = double(&Emitter::new());
    let set = |output| move |start: &mut Start<u32, u32>, _: &EventMeta<'_>| start.output = output;
    let answer = OverrideOutput::value(7_u32);
    assert_eq!(double.run(3).on_start(set(Some(1))).middleware(answer.clone()).await?, 1);
    assert_eq!(double.run(3).middleware(answer.clone()).on_start(set(Some(0))).await?, 0);
    assert_eq!(double.run(3).middleware(answer.clone()).middleware(OverrideOutput::json(8)).await?, 7);
    double.on_start(set(None))?;
    assert_eq!(double.run(3).middleware(answer).await?, 6, "listeners above come later");
    Ok(())
}

#[tokio::test]
async fn an_override_receives_the_input_as_the_run_s_other_listeners_left_it() -> TestResult {
    let double = double(&Emitter::new());
    let answer = OverrideOutput::with(|n: &u32, _: &RunContext| Ok(Some(n * 10)));
    let later = |ctx: &RunContext| {
        ctx.emitter().on(Stage::Start, |start: &mut Start<u32, u32>, _| start.input += 1)?;
        Ok(())
    };
    assert_eq!(double.run(3).middleware(answer).middleware(later).await?, 40);
    Ok(())
}

#[tokio::test]
async fn an_override_of_another_type_fails_the_run_with_an_error_that_names_both_types() {
    let double = double(&Emitter::new());
    let rows = [
        (OverrideOutput::value("x"), "a value of `&str` cannot answer a run"),
        (
            OverrideOutput::with(|_: &String, _: &RunContext| Ok(Some(1_u32))),
            "a function from `alloc::string::String` to `u32` cannot answer a run",
        ),
        (OverrideOutput::json("x"), "the output `\"x\"` does not fit `u32`"),
    ];
    for (answer, message) in rows {
        let error = double.run(3).middleware(answer).await.expect_err(message).to_string();
        assert!(error.starts_with(message) && error.contains("u32"), "{error}");
    }
}

#[derive(Debug)]
struct AddOne;
impl<O: Op<In = u32, Out = u32>> Transform<O> for AddOne {
    async fn output(&self, output: u32, _: &RunContext) -> Result<u32> {
        Ok(output + 1)
    }
}

#[derive(Debug)]
struct Small;
impl<O: Op<In = u32, Out = u32>> Guard<O> for Small {
    async fn check_output(&self, output: &u32, _: &RunContext) -> Result<()> {
        if *output < 10 { Ok(()) } else { Err(Error::new("too large")) }
    }
}

// M6.
#[tokio::test]
async fn guards_layers_and_output_middlewares_receive_the_answer() -> TestResult {
    let never = never::<u32, u32>(&Emitter::new(), "never");
    let run = |output: u32| {
        let tenfold = map_output(|n: &mut u32, _: &RunContext| {
            *n *= 10;
            Ok(())
        });
        let layered = never.run(1).layers(|stack| stack.transform(AddOne).guard(Small));
        layered.middleware(tenfold).middleware(OverrideOutput::value(output))
    };
    assert_eq!(run(5).await?, 60);
    assert!(run(12).await.expect_err("a guard says no").is_denied());
    Ok(())
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Report {
    lines: Vec<String>,
}

#[tokio::test]
async fn a_dry_run_emits_would_run_and_answers_with_an_empty_or_default_value_or_fails_if_none_fits() -> TestResult {
    let root = Emitter::new();
    let dry = OverrideOutput::dry_run();
    let told = told(&dry)?;
    macro_rules! empty {
        ($($type:ty = $expected:expr),* $(,)?) => {$(
            let output = never::<u32, $type>(&root, "never").run(1).middleware(dry.clone()).await?;
            assert_eq!(output, $expected);
        )*};
    }
    empty!(
        () = (),
        Option<u32> = None,
        Value = Value::Null,
        bool = false,
        u64 = 0,
        f64 = 0.0,
        String = "",
        Vec<u8> = [0_u8; 0],
        std::collections::BTreeMap<String, u32> = std::collections::BTreeMap::new(),
    );
    let report = never::<u32, Report>(&root, "report");
    let error = report.run(1).middleware(dry).await.expect_err("it has no empty value").to_string();
    assert!(error.starts_with("no empty value fits the output of Tool[report], whose `start` event is"), "{error}");
    assert_eq!(*told.lock().expect("nobody panics"), ["would_run never"; 9], "the report is not answered");
    let dry = OverrideOutput::dry_run_with(Defaults::new().of::<u32>().of::<Report>());
    let told = self::told(&dry)?;
    assert_eq!(report.run(1).middleware(dry).await?, Report::default());
    assert_eq!(*told.lock().expect("nobody panics"), ["would_run report"]);
    Ok(())
}

/// Records the name of each event of an override, with the name of the answered instance.
fn told(answer: &OverrideOutput) -> TestResult<Arc<Mutex<Vec<String>>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    answer.emitter().observe("*.*", move |event: &Any, meta| {
        let instance = event.to_json()["name"].as_str().unwrap_or_default().to_owned();
        tell.lock().expect("nobody panics").push(format!("{} {instance}", meta.name()));
    })?;
    Ok(told)
}

#[tokio::test]
async fn a_dry_run_with_for_tree_calls_no_tool_and_emits_would_run_for_each_call() -> TestResult {
    let (root, done) = (Emitter::new(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&done);
    let tool = Arc::new(instance(&root, "Tool", "delete", move |path: String, _: RunContext| {
        count.fetch_add(1, Ordering::Relaxed);
        async move { Ok(path) }
    }));
    let agent = instance(&root, "Agent", "cleaner", move |(): (), _: RunContext| {
        let tool = Arc::clone(&tool);
        async move {
            let both = tool.run("/a".to_owned()).await? + &tool.run("/b".to_owned()).await?;
            Ok(format!("deleted [{both}]"))
        }
    });
    let dry = OverrideOutput::dry_run().of_kind("Tool");
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    dry.emitter().on("would_run", move |would: &mut WouldRun, _| {
        tell.lock().expect("nobody panics").push((would.kind.clone(), would.name.clone(), would.input.clone()));
    })?;
    assert_eq!(agent.run(()).middleware(for_tree(dry)).await?, "deleted []");
    assert_eq!(done.load(Ordering::Relaxed), 0);
    let expected = ["/a", "/b"].map(|path| ("Tool".to_owned(), "delete".to_owned(), json!(path)));
    assert_eq!(*told.lock().expect("nobody panics"), expected);
    Ok(())
}

#[tokio::test]
async fn events_of_an_override_reach_its_emitter_and_the_run_with_the_run_s_ids() -> TestResult {
    let answer = OverrideOutput::value(7_u32);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let note = |who: &'static str| {
        let heard = Arc::clone(&heard);
        move |event: &mut Answered, meta: &EventMeta<'_>| {
            let (run, path) = (meta.trace().map(|trace| trace.run_id), meta.path().to_owned());
            heard.lock().expect("nobody panics").push((who, run, path, event.name.clone()));
        }
    };
    answer.emitter().on("answered", note("own"))?;
    let run_id = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&run_id);
    let double = double(&Emitter::new());
    let run = double.run(20).middleware(answer).on("middleware.override_output.answered", note("run"));
    run.middleware(move |ctx: &RunContext| {
        *keep.lock().expect("nobody panics") = Some(ctx.run_id());
        Ok(())
    })
    .await?;
    let run_id = *run_id.lock().expect("nobody panics");
    let path = "middleware.override_output.answered".to_owned();
    let expected = ["own", "run"].map(|who| (who, run_id, path.clone(), "double".to_owned()));
    assert_eq!(*heard.lock().expect("nobody panics"), expected);
    Ok(())
}

// M5: observers fail open.
#[tokio::test]
async fn a_failing_listener_does_not_affect_an_override() -> TestResult {
    let (answer, failing) = (OverrideOutput::value(7_u32), Failing::default());
    answer.emitter().on("*.*", failing.listener::<Any>())?;
    assert_eq!(double(&Emitter::new()).run(3).middleware(answer).await?, 7);
    assert_eq!(failing.calls(), 1);
    Ok(())
}

#[tokio::test]
async fn an_override_is_shared_by_100_concurrent_runs() -> TestResult {
    let (double, answer) = (
        double(&Emitter::new()),
        OverrideOutput::with_async(|n: &u32, _: &RunContext| {
            Box::pin(async move {
                tokio::task::yield_now().await;
                Ok(n.is_multiple_of(2).then_some(n + 1))
            })
        }),
    );
    let results = join_all((0..100).map(|n| double.run(n).middleware(answer.clone()))).await;
    for (n, result) in (0..100).zip(results) {
        assert_eq!(result?, if n % 2 == 0 { n + 1 } else { n * 2 });
    }
    Ok(())
}

#[test]
fn explain_lists_an_override_with_its_conditions() -> TestResult {
    let double = double(&Emitter::new());
    let run = double
        .run(1)
        .middleware(OverrideOutput::value(1_u32).of_kind("Tool"))
        .middleware(OverrideOutput::json(2))
        .middleware(OverrideOutput::canned([(1, 2)])?.runs(Runs::named("double")).when_input(|_| true))
        .middleware(OverrideOutput::json_with(|_, _| Ok(None)))
        .middleware(OverrideOutput::dry_run());
    let lines = [
        "double",
        "  bound:",
        "    override_output: a value of u32, runs of Tool",
        "    override_output: json 2",
        "    override_output: 1 canned answers, runs named double, by input",
        "    override_output: a json function",
        "    override_output: dry run",
    ];
    let explained = run.explain().to_string();
    assert!(explained.starts_with(&lines.join("\n")), "{explained}");
    Ok(())
}
