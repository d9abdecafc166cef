//! R5: listeners of `start` and `success` may steer the run, typed or through JSON.

use crate::support::{Any, Recorder, TestResult, below, emitter_of};
use emitree_emitter::{AnyEvent, Emitter};
use emitree_runtime::{
    ErrorKind, Lifecycle, LifecycleMut, Outcome, Result, RunContext, Runnable, Stage, Start, Success,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Line {
    item: String,
    count: u32,
}

/// Returns a runnable that finds the largest count in an order, and records its work.
fn count(tree: &Emitter, recorder: &Recorder) -> impl Runnable<Input = Order, Output = Option<u32>> + 'static {
    let notes = recorder.clone();
    below(tree, "count", move |order: Order, _: RunContext| {
        notes.note("worked");
        async move { Ok(order.lines.iter().map(|line| line.count).max()) }
    })
}

fn order(count: u32) -> Order {
    Order { lines: vec![Line { item: "pen".into(), count }] }
}

/// Registers a listener that calls `f` with each lifecycle event of all runs, regardless of their types.
fn steer(
    tree: &Emitter,
    f: impl Fn(LifecycleMut<'_>) -> Result<()> + Send + Sync + 'static,
) -> emitree_emitter::Subscription {
    tree.on("*.*", move |event: &mut Any, meta| {
        LifecycleMut::of(event, meta).map_or(Ok(()), &f)?;
        Ok(())
    })
    .expect("a valid matcher")
}

// R5
#[tokio::test]
async fn listeners_of_start_may_change_the_input() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let count = count(&tree, &recorder);
    let notes = recorder.clone();
    let run = count.run(order(1)).on_start(|start, _| start.input.lines[0].count += 1).on_finish(move |finish, _| {
        notes.note(format!("finish with input {}", finish.input().lines[0].count));
    });
    tree.on(Stage::Start, |start: &mut Start<Order, Option<u32>>, _| start.input.lines[0].count *= 10)?;
    assert_eq!(run.await?, Some(20));
    recorder.expect(["worked", "finish with input 20"]);
    Ok(())
}

// R5
#[tokio::test]
async fn an_output_set_at_start_answers_the_run_without_its_work_for_any_value() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let count = count(&tree, &recorder);
    for answer in [Some(7), Some(0), None] {
        assert_eq!(count.run(order(1)).on_start(move |start, _| start.output = Some(answer)).await?, answer);
        recorder.expect([]);
    }
    let unit = below(&tree, "unit", |(), _: RunContext| async { panic!("not asked") as Result<()> });
    unit.run(()).on_start(|start, _| start.output = Some(())).await?;
    let word = below(&tree, "word", |(), _: RunContext| async { panic!("not asked") as Result<String> });
    assert_eq!(word.run(()).on_start(|start, _| start.output = Some(String::new())).await?, "");
    Ok(())
}

// R5
#[tokio::test]
async fn a_later_listener_of_start_may_take_an_answer_back() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let count = count(&tree, &recorder);
    count.on_start(|start, _| start.output = None)?;
    assert_eq!(count.run(order(3)).on_start(|start, _| start.output = Some(None)).await?, Some(3));
    recorder.expect(["worked"]);
    Ok(())
}

// R5
#[tokio::test]
async fn the_caller_and_finish_receive_the_output_that_a_success_listener_has_changed() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let count = count(&tree, &recorder);
    let notes = recorder.clone();
    count.on_finish(move |finish, _| match finish.outcome() {
        Outcome::Success { output } => notes.note(format!("finish with {output:?}")),
        other => notes.note(format!("{other:?}")),
    })?;
    tree.on(Stage::Success, |success: &mut Success<Order, Option<u32>>, _| success.output = None)?;
    assert_eq!(count.run(order(3)).on_success(|success, _| success.output = Some(9)).await?, None);
    recorder.expect(["worked", "finish with None"]);
    Ok(())
}

// R5
#[tokio::test]
async fn a_listener_for_runs_of_any_type_can_change_the_input_and_output_as_json() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let count = count(&tree, &recorder);
    let notes = recorder.clone();
    steer(&tree, move |event| {
        match event {
            LifecycleMut::Start(start) => {
                notes.note(format!("start {} {:?}", start.input_json(), start.output_json()));
                start.set_input_json(json!({"lines": [{"item": "ink", "count": 5}]}))?;
            }
            LifecycleMut::Success(success) => {
                notes.note(format!("success {} {}", success.input_json(), success.output_json()));
                success.set_output_json(json!(6))?;
            }
            LifecycleMut::Finish(finish) => notes.note(format!("finish {}", finish.outcome_json())),
            _ => {}
        }
        Ok(())
    });
    assert_eq!(count.run(order(1)).await?, Some(6));
    recorder.expect([
        &*format!("start {} None", json!(order(1))),
        "worked",
        &format!("success {} 5", json!({"lines": [{"item": "ink", "count": 5}]})),
        &format!("finish {}", json!({"status": "success", "output": 6})),
    ]);
    Ok(())
}

// R5
#[tokio::test]
async fn an_output_set_as_json_answers_the_run_even_if_it_is_null() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let count = count(&tree, &recorder);
    for (answer, output) in [(json!(4), Some(4)), (Value::Null, None)] {
        let answered = steer(&tree, move |event| match event {
            LifecycleMut::Start(start) => {
                start.set_output_json(answer.clone())?;
                assert_eq!(start.output_json(), Some(answer.clone()));
                Ok(())
            }
            _ => Ok(()),
        });
        assert_eq!(count.run(order(1)).await?, output);
        recorder.expect([]);
        answered.off();
    }
    Ok(())
}

// R5
#[tokio::test]
async fn a_json_value_that_does_not_fit_is_an_error_that_names_the_place_and_changes_nothing() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let count = count(&tree, &recorder);
    let notes = recorder.clone();
    steer(&tree, move |event| {
        match event {
            LifecycleMut::Start(start) => {
                let input = json!({"lines": [{"item": "ink", "count": 1}, {"item": "pen", "count": "two"}]});
                let error = start.set_input_json(input).expect_err("`two` is no number");
                notes.note(format!("{:?} {error}", error.kind()));
                let error = start.set_output_json(json!([])).expect_err("a list is no number");
                notes.note(format!("{:?} {error}", error.kind()));
                assert_eq!((start.input_json(), start.output_json()), (json!(order(1)), None));
            }
            LifecycleMut::Success(success) => {
                let error = success.set_output_json(json!(-1)).expect_err("negative");
                notes.note(format!("{:?} {error}", error.kind()));
                assert_eq!(success.output_json(), json!(1));
            }
            _ => {}
        }
        Ok(())
    });
    assert_eq!(count.run(order(1)).await?, Some(1));
    let recorded = recorder.take();
    let input = r#"{"lines":[{"count":1,"item":"ink"},{"count":"two","item":"pen"}]}"#;
    let type_name = std::any::type_name::<Order>();
    assert_eq!(
        recorded,
        [
            format!(
                "Invalid the input `{input}` does not fit `{type_name}` at `lines[1].count`: \
                 invalid type: string \"two\", expected u32"
            ),
            "Invalid the output `[]` does not fit `core::option::Option<u32>`: invalid type: sequence, expected u32".into(),
            "worked".into(),
            "Invalid the output `-1` does not fit `core::option::Option<u32>`: invalid value: integer `-1`, expected u32"
                .into(),
        ]
    );
    Ok(())
}

// R5
#[tokio::test]
async fn a_run_fails_as_invalid_if_a_listener_returns_the_error_of_a_value_that_does_not_fit() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let count = count(&tree, &recorder);
    steer(&tree, |event| match event {
        LifecycleMut::Start(start) => start.set_input_json(json!(null)),
        _ => Ok(()),
    });
    let error = count.run(order(1)).await.expect_err("null is no order");
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    recorder.expect([]);
}

// R5
#[tokio::test]
async fn an_error_quotes_only_a_part_of_a_long_json_value() {
    let tree = Emitter::new();
    let count = count(&tree, &Recorder::new());
    steer(&tree, |event| match event {
        LifecycleMut::Start(start) => start.set_input_json(json!("é".repeat(10_000))),
        _ => Ok(()),
    });
    let error = count.run(order(1)).await.expect_err("text is no order");
    assert!(error.to_string().len() < 1_500, "{} bytes", error.to_string().len());
}

// R5
#[tokio::test]
async fn an_observer_receives_the_event_as_listeners_have_changed_it() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let count = count(&tree, &recorder);
    let notes = recorder.clone();
    emitter_of(&count).observe(Stage::Start, move |start: &Start<Order, Option<u32>>, _| {
        notes.note(format!("{}", start.payload_to_json()["input"]["lines"][0]["count"]));
    })?;
    tree.on(Stage::Start, |start: &mut Start<Order, Option<u32>>, _| start.input.lines[0].count = 8)?;
    assert_eq!(count.run(order(1)).await?, Some(8));
    recorder.expect(["8", "worked"]);
    Ok(())
}
