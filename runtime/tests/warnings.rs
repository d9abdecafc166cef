//! Mistakes that a run finds in the program are logged once for each instance, with the line to write.

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use emitree_emitter::Emitter;
use emitree_runtime::{Answers, Interrupt, RunContext, Runnable, runnable_fn};
use journal::Journal;
use serde_json::json;
use support::{TestResult, below};

/// Returns the messages that are logged while a future is awaited.
async fn logged<T>(work: impl Future<Output = T>) -> Vec<String> {
    let journal = Journal::default();
    let _guard = tracing::subscriber::set_default(journal.clone());
    drop(work.await);
    journal.take()
}

// M8
#[tokio::test]
async fn answers_that_match_no_question_of_the_run_are_warned_of_once() {
    let paint = below(&Emitter::new(), "paint", |(): (), ctx: RunContext| async move {
        ctx.ask::<String>(Interrupt::new("colour", json!({})))
    });
    let answers = Answers::new();
    answers.answer("order-16/abc", json!("red"));
    let run = || paint.run(()).key("order-17").extension(answers.clone());
    let lines = logged(run()).await;
    let [line] = &*lines else { panic!("{lines:?}") };
    let parts = ["`Run paint`", "`order-17/", "order-16/abc", "answers.answer(", "session.answer("];
    assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    assert_eq!(logged(run()).await, [""; 0]);
    assert_eq!(logged(paint.run(()).extension(Answers::new())).await, [""; 0]);
}

#[tokio::test]
async fn a_warning_is_logged_once_for_each_instance_and_mistake() -> TestResult {
    let works = || {
        runnable_fn("works", |(): (), ctx: RunContext| async move {
            ctx.warn_once("one", || "one".to_owned());
            ctx.warn_once("two", || "two".to_owned());
            ctx.warn_once("panic", || panic!("a planned panic"));
            Ok(())
        })
    };
    let first = works();
    let lines = logged(async { first.run(()).await.and(first.run(()).await) }).await;
    assert_eq!(lines.iter().filter(|line| *line == "one" || *line == "two").count(), 2, "{lines:?}");
    let lines = logged(works().run(())).await;
    assert_eq!(lines.iter().filter(|line| *line == "one").count(), 1, "another instance: {lines:?}");
    Ok(())
}
