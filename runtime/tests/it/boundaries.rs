//! M1, M2: a dispatcher can be built from kinds of work and layers, with permissions, a log, and answers that skip the
//! work. Stores and executors are in `boundary_store.rs` and `boundary_exec.rs`.

use crate::support::Recorder;
use emitree_runtime::{
    Error, Guard, Layer, Next, Observe, Op, Result, RunContext, Runnable, Stack, Transform, runnable_fn,
};

/// The kind of work that passes a call to an operator.
struct Dispatch;

#[derive(Clone, Debug)]
struct Call {
    operator: String,
    payload: String,
}

impl Op for Dispatch {
    type In = Call;
    type Out = String;

    fn name() -> &'static str {
        "dispatch"
    }
}

/// Records each call and its result.
#[derive(Debug)]
struct Log(Recorder);

impl Observe<Dispatch> for Log {
    type Memo = String;

    fn before(&self, call: &Call, _: &RunContext) -> String {
        self.0.note(format!("log {}({})", call.operator, call.payload));
        call.operator.clone()
    }

    fn after(&self, operator: String, result: &Result<String>, _: &RunContext) {
        match result {
            Ok(answer) => self.0.note(format!("log {operator} = {answer}")),
            Err(error) => self.0.note(format!("log {operator} failed: {error}")),
        }
    }
}

/// Replaces old names of operators, and adds a mark to answers.
#[derive(Debug)]
struct Aliases(Recorder);

impl Transform<Dispatch> for Aliases {
    async fn input(&self, call: &Call, _: &RunContext) -> Result<Option<Call>> {
        self.0.note(format!("alias {}", call.operator));
        let renamed = call.operator.strip_prefix("old_");
        Ok(renamed.map(|operator| Call { operator: operator.to_owned(), ..call.clone() }))
    }

    async fn output(&self, answer: String, _: &RunContext) -> Result<String> {
        Ok(format!("{answer}."))
    }
}

/// Denies calls of one operator.
#[derive(Debug)]
struct Deny(&'static str, Recorder);

impl Guard<Dispatch> for Deny {
    async fn check_input(&self, call: &Call, _: &RunContext) -> Result<()> {
        self.1.note(format!("guard {}", call.operator));
        if call.operator == self.0 { Err(Error::new(format!("`{}` is not for you", self.0))) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        "deny"
    }
}

/// Answers a known call without calling the operator.
#[derive(Debug)]
struct Known(&'static str);

impl Layer<Dispatch> for Known {
    async fn call(&self, call: &Call, _: &RunContext, next: Next<'_, Dispatch>) -> Result<String> {
        if call.payload == self.0 { Ok("known".to_owned()) } else { next.run(call).await }
    }
}

fn stack(recorder: &Recorder) -> Stack<Dispatch> {
    // The guard is registered first and the observer last, but the phases determine the order of the layers.
    Stack::builder()
        .guard(Deny("shell", recorder.clone()))
        .transform(Aliases(recorder.clone()))
        .layer(Known("ping"))
        .observe(Log(recorder.clone()))
        .build()
}

async fn dispatch(operator: &str, payload: &str) -> (Result<String>, Recorder) {
    let recorder = Recorder::new();
    let (stack, notes) = (stack(&recorder), recorder.clone());
    let call = Call { operator: operator.to_owned(), payload: payload.to_owned() };
    let run = runnable_fn("dispatcher", move |(): (), ctx: RunContext| {
        let (stack, notes, call) = (stack.clone(), notes.clone(), call.clone());
        async move {
            let work = |notes: &Recorder, call: &Call| {
                notes.note(format!("work {}", call.operator));
                format!("{} did {}", call.operator, call.payload)
            };
            stack.call_with(&call, &ctx, &notes, |notes, call, _| Box::pin(async move { Ok(work(notes, call)) })).await
        }
    });
    (run.run(()).await, recorder)
}

// M2
#[tokio::test]
async fn a_call_is_logged_then_changed_then_checked_then_done() {
    let (answer, recorder) = dispatch("old_search", "rust").await;
    assert_eq!(answer.expect("it may be called"), "search did rust.");
    recorder.expect([
        "log old_search(rust)",
        "alias old_search",
        "guard search",
        "work search",
        "log old_search = search did rust.",
    ]);
}

// M2, M5
#[tokio::test]
async fn a_guard_denies_an_operator_by_the_name_that_a_transform_has_set() {
    let (answer, recorder) = dispatch("old_shell", "rm").await;
    let error = answer.expect_err("it is denied");
    assert!(error.explain().starts_with("denied by deny: `shell` is not for you"), "{error:?}");
    recorder.expect([
        "log old_shell(rm)",
        "alias old_shell",
        "guard shell",
        "log old_shell failed: `shell` is not for you",
    ]);
}

// M1
#[tokio::test]
async fn a_layer_can_answer_a_call_without_the_guard_or_the_work() {
    let (answer, recorder) = dispatch("search", "ping").await;
    assert_eq!(answer.expect("it is known"), "known.");
    recorder.expect(["log search(ping)", "alias search", "log search = known."]);
}
