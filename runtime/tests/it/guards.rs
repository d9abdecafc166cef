//! M5: guards fail closed, and can be evaluated without denying.

use std::future::{Future, Ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::layers::doubling;
use crate::support::{Recorder, silence_planned_panics};
use emitree_runtime::{
    Checked, Error, ErrorKind, Guard, GuardOptions, Interrupt, JsonRun, Next, Op, Outcome, Phase, Result, RunContext,
    Runnable, Stack, StackBuilder, WouldDeny, layer_fn,
};

/// The behavior of a check.
#[derive(Clone, Copy, Debug)]
enum Check {
    Passes,
    Fails,
    Panics,
    Hangs,
    /// Blocks its thread for longer than [`MOMENT`].
    Blocks,
    Halts,
    /// Blocks its thread for longer than [`MOMENT`], and then halts.
    HaltsLate,
    /// Fails with an error that panics when it is displayed.
    FailsBadly,
    Interrupts,
}

/// An error that panics when it is displayed.
#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("planned")
    }
}

impl std::error::Error for Unspeakable {}

impl Check {
    async fn act(self) -> Result<()> {
        match self {
            Self::Passes => Ok(()),
            Self::Fails => Err(Error::new("a word is missing")),
            Self::Panics => panic!("planned"),
            Self::Hangs => std::future::pending().await,
            Self::Blocks => {
                std::thread::sleep(10 * MOMENT);
                Ok(())
            }
            Self::Halts => Err(Error::halted("budget", "spent")),
            Self::HaltsLate => {
                std::thread::sleep(10 * MOMENT);
                Err(Error::halted("budget", "spent"))
            }
            Self::FailsBadly => Err(Unspeakable.into()),
            Self::Interrupts => Err(Error::interrupted(Interrupt::new("approval", 1))),
        }
    }
}

#[derive(Debug)]
struct Desk {
    input: Check,
    output: Check,
}

impl<O: Op> Guard<O> for Desk {
    async fn check_input(&self, _: &O::In, _: &RunContext) -> Result<()> {
        self.input.act().await
    }

    async fn check_output(&self, _: &O::Out, _: &RunContext) -> Result<()> {
        self.output.act().await
    }

    fn name(&self) -> &str {
        "desk"
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);

async fn guarded(check: Check, at: Checked, options: GuardOptions) -> (Result<u32>, Recorder) {
    let recorder = Recorder::new();
    let double = doubling(&recorder);
    let desk = match at {
        Checked::Input => Desk { input: check, output: Check::Passes },
        Checked::Output => Desk { input: Check::Passes, output: check },
    };
    let notes = recorder.clone();
    let told = move |would: &WouldDeny, _: &emitree_emitter::EventMeta<'_>| {
        notes.note(format!("{} would deny the {:?}: {}", would.guard, would.at, would.reason));
    };
    let run = double.run(1).observe("would_deny", told).layers(|stack| stack.guard_with(options, desk));
    (run.await, recorder)
}

// M5
#[tokio::test(start_paused = true)]
async fn a_guard_that_fails_panics_or_times_out_denies_with_the_reason() {
    silence_planned_panics();
    let rows = [
        (Check::Fails, "a word is missing"),
        (Check::Panics, "the guard panicked: planned"),
        (Check::Hangs, "the guard took longer than 1s"),
    ];
    for (check, reason) in rows {
        for at in [Checked::Input, Checked::Output] {
            let (result, recorder) = guarded(check, at, GuardOptions::new().timeout(SECOND)).await;
            let error = result.expect_err("it is denied");
            assert_eq!(error.kind(), &ErrorKind::Denied { by: "desk".to_owned() });
            assert_eq!(error.to_string(), reason);
            recorder.expect(if at == Checked::Input { &[][..] } else { &["work 1"] }.iter().copied());
        }
    }
}

// M5: no timer fires while the check blocks.
#[tokio::test]
async fn a_guard_that_blocks_its_thread_past_its_timeout_denies_with_the_reason() {
    for at in [Checked::Input, Checked::Output] {
        let (result, recorder) = guarded(Check::Blocks, at, GuardOptions::new().timeout(MOMENT)).await;
        let error = result.expect_err("it is denied");
        assert_eq!(error.kind(), &ErrorKind::Denied { by: "desk".to_owned() });
        assert_eq!(error.to_string(), "the guard took longer than 1ms");
        recorder.expect(if at == Checked::Input { &[][..] } else { &["work 1"] }.iter().copied());
    }
    let (result, _) = guarded(Check::Blocks, Checked::Input, GuardOptions::new()).await;
    assert!(result.is_ok(), "without a timeout it may take its time: {result:?}");
}

// M5
#[tokio::test]
async fn a_guard_denies_on_late_control_flow_and_on_errors_that_cannot_be_displayed() {
    silence_planned_panics();
    for (check, reason) in
        [(Check::HaltsLate, "the guard took longer than 1ms"), (Check::FailsBadly, "the error cannot be displayed")]
    {
        for at in [Checked::Input, Checked::Output] {
            let (result, _) = guarded(check, at, GuardOptions::new().timeout(MOMENT)).await;
            let error = result.expect_err("it is denied");
            assert_eq!((error.is_denied(), error.to_string().as_str()), (true, reason));
        }
    }
}

/// A value that panics when it is dropped.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Bad;

impl Drop for Bad {
    fn drop(&mut self) {
        panic!("planned")
    }
}

// M5
#[tokio::test]
async fn a_run_is_denied_even_if_the_denied_value_panics_when_dropped() {
    silence_planned_panics();
    let bad = emitree_runtime::runnable_fn("bad", |(): (), _: RunContext| async { Ok(Bad) });
    let desk = || Desk { input: Check::Passes, output: Check::Fails };
    let refuses = || emitree_runtime::map_output(|_: &mut Bad, _: &RunContext| Err(Error::new("no"))).guard();
    assert!(bad.run(()).layers(|stack| stack.guard(desk())).await.is_err_and(|error| error.is_denied()));
    assert!(bad.run(()).middleware(refuses()).await.is_err_and(|error| error.is_denied()));
}

// M5
#[tokio::test]
async fn the_cause_of_a_denial_is_the_error_of_the_guard() {
    let (result, _) = guarded(Check::Fails, Checked::Input, GuardOptions::new()).await;
    let error = result.expect_err("it is denied");
    let report = error.report();
    assert_eq!(
        (report.message.as_str(), &*report.causes),
        ("a word is missing", &["a word is missing".to_owned()][..])
    );
    // The output of `explain` does not repeat the reason.
    assert_eq!(error.explain(), "denied by desk: a word is missing");
    assert_eq!(error.message("not now").explain(), "denied by desk: not now\n  caused by: a word is missing");
}

// M5, M9
#[tokio::test]
async fn control_flow_of_a_guard_keeps_its_status() {
    for (check, status) in [(Check::Halts, "halted"), (Check::Interrupts, "interrupted")] {
        let (result, _) = guarded(check, Checked::Input, GuardOptions::new().timeout(SECOND)).await;
        let error = result.expect_err("it is stopped");
        assert_eq!(Outcome::<()>::of_error(&error).status().as_str(), status);
    }
}

// M5
#[tokio::test(start_paused = true)]
async fn a_guard_that_only_evaluates_denies_nothing_and_emits_what_it_would_deny() {
    silence_planned_panics();
    let rows = [
        (Check::Passes, None),
        (Check::Fails, Some("a word is missing")),
        (Check::Panics, Some("the guard panicked: planned")),
        (Check::Hangs, Some("the guard took longer than 1s")),
        (Check::Halts, Some("spent")),
    ];
    for (check, reason) in rows {
        for at in [Checked::Input, Checked::Output] {
            let (result, recorder) = guarded(check, at, GuardOptions::new().evaluate_only().timeout(SECOND)).await;
            assert_eq!(result.expect("it evaluates only"), 2);
            let told = reason.map(|reason| format!("desk would deny the {at:?}: {reason}"));
            let work = "work 1".to_owned();
            let lines: Vec<_> = if at == Checked::Input {
                told.into_iter().chain([work]).collect()
            } else {
                [work].into_iter().chain(told).collect()
            };
            recorder.expect(lines.iter().map(String::as_str));
        }
    }
}

// M5
#[tokio::test]
async fn a_failing_listener_of_would_deny_does_not_make_the_guard_deny() {
    let double = doubling(&Recorder::new());
    let (only, desk) = (GuardOptions::new().evaluate_only(), Desk { input: Check::Fails, output: Check::Passes });
    let run = double
        .run(1)
        .on("would_deny", |_: &mut WouldDeny, _| Err(Error::new("too late").into()))
        .layers(|stack| stack.guard_with(only, desk));
    assert_eq!(run.await.expect("it evaluates only"), 2);
}

/// A guard that records its name when it is called.
#[derive(Debug)]
struct Asked(&'static str, Check, Recorder);

impl<O: Op> Guard<O> for Asked {
    async fn check_input(&self, _: &O::In, _: &RunContext) -> Result<()> {
        self.2.note(self.0);
        self.1.act().await
    }

    fn name(&self) -> &str {
        self.0
    }
}

// M2, M5
#[tokio::test(start_paused = true)]
async fn all_guards_must_pass_and_the_first_that_denies_is_named() {
    silence_planned_panics();
    let rows = [
        ([Check::Passes, Check::Passes, Check::Passes], "a b c", "4"),
        ([Check::Passes, Check::Fails, Check::Panics], "a b", "denied by b: a word is missing"),
        ([Check::Panics, Check::Passes, Check::Fails], "a", "denied by a: the guard panicked: planned"),
        ([Check::Passes, Check::Passes, Check::Halts], "a b c", "halted by budget: spent"),
        ([Check::Passes, Check::Hangs, Check::Fails], "a b", "denied by b: the guard took longer than 1s"),
    ];
    for ([a, b, c], asked, end) in rows {
        let recorder = Recorder::new();
        let guard = |name, check| Asked(name, check, recorder.clone());
        let options = GuardOptions::new().timeout(SECOND);
        let guards = |stack: StackBuilder<_>| {
            stack
                .guard_with(options, guard("a", a))
                .guard_with(options, guard("b", b))
                .guard_with(options, guard("c", c))
        };
        let result = doubling(&Recorder::new()).run(2).layers(guards).await;
        let said = result.map_or_else(|error| error.explain(), |output| output.to_string());
        assert_eq!((recorder.take().join(" ").as_str(), said.lines().next()), (asked, Some(end)));
    }
}

/// A guard that panics before it returns a future.
#[derive(Debug)]
struct Eager;

impl<O: Op> Guard<O> for Eager {
    fn check_input(&self, _: &O::In, _: &RunContext) -> impl Future<Output = Result<()>> + Send {
        eager()
    }

    fn check_output(&self, _: &O::Out, _: &RunContext) -> impl Future<Output = Result<()>> + Send {
        eager()
    }

    fn name(&self) -> &str {
        "eager"
    }
}

fn eager() -> Ready<Result<()>> {
    panic!("planned")
}

// M5
#[tokio::test]
async fn a_guard_that_panics_before_it_returns_a_future_denies_unless_it_only_evaluates() {
    silence_planned_panics();
    let recorder = Recorder::new();
    let double = doubling(&recorder);
    let denial = |error: Error| error.explain().lines().next().map(ToOwned::to_owned);
    let reason = Some("denied by eager: the guard panicked: planned".to_owned());
    let plain = double.run(1).layers(|stack| stack.guard(Eager)).await.expect_err("it is denied");
    assert_eq!(denial(plain), reason);
    recorder.expect([]);
    let only = GuardOptions::new().timeout(SECOND).evaluate_only();
    assert_eq!(double.run(1).layers(|stack| stack.guard_with(only, Eager)).await.expect("it evaluates only"), 2);
}

/// Notes each output that it checks, and denies `7`.
#[derive(Debug)]
struct NotSeven(&'static str, Arc<Mutex<Vec<String>>>);

impl<O: Op<Out: std::fmt::Debug>> Guard<O> for NotSeven {
    async fn check_output(&self, output: &O::Out, _: &RunContext) -> Result<()> {
        let output = format!("{output:?}").replace("Number(", "").replace(')', "");
        self.1.lock().expect("no panic").push(format!("{} {output}", self.0));
        if output == "7" { Err(Error::new("seven")) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        self.0
    }
}

// M4
#[tokio::test]
async fn a_layer_that_answers_by_itself_can_have_its_output_checked_by_the_guards_inside() {
    for (answer, denied_by) in [(6, None), (7, Some("json"))] {
        let log = Arc::default();
        let guard = |name| NotSeven(name, Arc::clone(&log));
        let answers = layer_fn("answers", move |_, _, next: Next<'_, _>| {
            Box::pin(async move {
                next.check_output(&answer).await?;
                Ok(answer)
            })
        });
        let json = Stack::<JsonRun>::builder().guard(guard("json")).build();
        // A layer that counts calls is not called.
        let counts = layer_fn("counts", |_, _, _: Next<'_, _>| Box::pin(async { Err(Error::new("called")) }));
        let double = doubling(&Recorder::default());
        let run =
            double.run(21).layers(|stack| stack.guard(guard("typed")).layer_in(Phase::Guard, counts).layer(answers));
        let result = run.middleware(json).await;
        match denied_by {
            None => assert_eq!(result.expect("an answer"), answer),
            Some(by) => assert_eq!(result.expect_err("denied").kind(), &ErrorKind::Denied { by: by.to_owned() }),
        }
        // The innermost guard is the last that was bound.
        let seen = log.lock().expect("no panic").clone();
        assert_eq!(seen[0], format!("json {answer}"));
        assert_eq!(seen.get(1), denied_by.is_none().then(|| format!("typed {answer}")).as_ref());
    }
}

// M2
#[tokio::test]
async fn an_innermost_layer_is_inside_all_other_layers_of_its_phase_but_outside_the_next_phase() {
    let log: Arc<Mutex<Vec<&str>>> = Arc::default();
    let layer = |name: &'static str| {
        let log = Arc::clone(&log);
        layer_fn(name, move |input: &u32, _, next: Next<'_, _>| {
            log.lock().expect("no panic").push(name);
            Box::pin(next.run(input))
        })
    };
    use Phase::{Observe, Retry, Transform};
    let double = doubling(&Recorder::default());
    let run = double.run(21).layers(|stack| {
        let stack = stack.innermost_in(Observe, layer("inner observe")).layer_in(Observe, layer("observe"));
        stack.layer_in(Transform, layer("transform")).layer_in(Retry, layer("retry"))
    });
    assert_eq!(run.await.expect("an answer"), 42);
    assert_eq!(*log.lock().expect("no panic"), ["observe", "inner observe", "retry", "transform"]);
}
