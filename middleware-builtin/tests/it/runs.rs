//! A selection (`Runs`) selects the same runs in every middleware that takes one, and in `Runs::only`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_emitter::{Context, Creator, Emitter, Trace};
use emitree_middleware::approval::{Decision, Request};
use emitree_middleware::{Approval, Budget, Concurrency, OverrideOutput, RateLimit, RunInfo, Runs};
use emitree_runtime::{
    AnyRunnable, BoxRunnable, Error, IntoMiddleware, Middleware, Result, RunContext, Runnable, for_nested, for_tree,
    runnable_fn,
};
use proptest::prelude::*;
use serde_json::json;

use crate::support::{Page, TestResult};

struct Calculator;

/// Returns a runnable that doubles a number.
fn double() -> impl Runnable<Input = u32, Output = u64> + 'static {
    let emitter = Emitter::new().child("maths").expect("a name");
    let emitter = emitter.child_with(Creator::of("Tool", "double", Arc::new(Calculator)));
    runnable_fn("double", |n: u32, _: RunContext| async move {
        tokio::task::yield_now().await;
        Ok(u64::from(n) * 2)
    })
    .with_emitter(emitter)
}

/// Selections, each with `true` if it contains the runs of `double` with `"user": 7` in their context.
fn rows(double: &(impl Runnable + 'static), other: &impl Runnable) -> Vec<(Runs, bool)> {
    let (tools, models) = (|| Runs::of_kind("Tool"), || Runs::of_kind("Model"));
    vec![
        (Runs::all(), true),
        (tools(), true),
        (models(), false),
        (Runs::named("double"), true),
        (Runs::named("triple"), false),
        (Runs::of_type::<Calculator>(), true),
        (Runs::of_type::<u32>(), true),
        (Runs::of_type::<u64>(), true),
        (Runs::of_type::<u8>(), false),
        (Runs::of_instance(double), true),
        (Runs::of_instance(other), false),
        (Runs::matching(|run| run.namespace() == "maths"), true),
        (Runs::matching(|run| run.context().get("user").is_some_and(|user| *user == 7)), true),
        (Runs::matching(|run| run.run().is_none_or(|run| run.depth() > 9)), false),
        (tools().and(Runs::named("triple")), false),
        (tools().and(Runs::named("double")), true),
        (models().or(tools()), true),
        (models().or(Runs::named("triple")), false),
        (Runs::all().except(tools()), false),
        (tools().except(Runs::named("triple")), true),
    ]
}

async fn run<Sort>(
    double: &impl Runnable<Input = u32, Output = u64>,
    middleware: impl IntoMiddleware<Sort>,
) -> Result<u64> {
    // A guard that is bound to `double` alone, and does not handle it, would be refused (M11).
    double.run(3).context(json!({ "user": 7 })).middleware(for_tree(middleware)).await
}

#[tokio::test]
async fn all_middlewares_select_the_same_runs_by_the_same_selection() -> TestResult {
    let (double, other) = (Arc::new(double()), double());
    let started = Arc::clone(&double);
    let outer = runnable_fn("outer", move |(): (), _: RunContext| {
        let double = Arc::clone(&started);
        async move { double.run(3).await }
    });
    for (runs, expected) in rows(&*double, &other) {
        let rate = RateLimit::builder(1, Duration::from_secs(9)).runs(runs.clone()).build()?;
        run(&*double, rate.clone()).await?;
        let rate_limit = run(&*double, rate).await.is_err();

        let one = Concurrency::builder(1).runs(runs.clone()).build()?;
        let (_, second) = tokio::join!(run(&*double, one.clone()), run(&*double, one));

        let no = Budget::builder().calls(0).runs(runs.clone()).build()?;
        let budget = outer.run(()).context(json!({ "user": 7 })).middleware(no).await.is_err();

        let reject = Approval::by(|_: Request| async { Ok(Decision::reject("no")) }).runs(runs.clone());
        let approval = run(&*double, reject).await.is_err();

        let answered = run(&*double, OverrideOutput::json(7).runs(runs.clone())).await? == 7;

        let page = Page::new();
        run(&*double, page.built(|builder| builder.included(runs.clone()))).await?;
        let shown = !page.take().is_empty();

        let only = run(&*double, runs.clone().only(OverrideOutput::json(7))).await? == 7;

        let all = [rate_limit, second.is_err(), budget, approval, answered, shown, only];
        assert_eq!(all, [expected; 7], "{runs:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_trajectory_applies_its_selection_to_each_run_separately() -> TestResult {
    let double = Arc::new(double());
    let of_double = [Runs::of_instance(&*double), Runs::matching(|run| run.run().is_some_and(|run| run.depth() == 1))];
    let outer = runnable_fn("outer", move |(): (), _: RunContext| {
        let double = Arc::clone(&double);
        async move { double.run(3).await }
    });
    for runs in of_double {
        let page = Page::new();
        outer.run(()).middleware(page.built(|builder| builder.included(runs))).await?;
        let lines = ["--> Tool[double][start]: 3", "<-- Tool[double][success]: 6"];
        page.expect(lines);
    }
    Ok(())
}

struct Delete {
    emitter: Emitter,
}

impl Runnable for Delete {
    type Input = String;
    type Output = bool;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, _: &String, _: &RunContext) -> Result<bool> {
        Ok(true)
    }
}

// M4
#[tokio::test]
async fn a_guard_for_a_type_of_runnable_denies_its_runs_in_any_wrapper() {
    let delete = Arc::new(Delete { emitter: Emitter::new() });
    let boxed = Arc::new(BoxRunnable::new(Arc::clone(&delete)));
    let any: Arc<dyn AnyRunnable> = delete.clone();
    let boxed_any: Arc<dyn AnyRunnable> = boxed.clone();
    let path = || "/".to_owned();
    let outer = runnable_fn("outer", move |how: String, _: RunContext| {
        let (delete, boxed, any, boxed_any) = (delete.clone(), boxed.clone(), any.clone(), boxed_any.clone());
        async move {
            match &*how {
                "borrowed" => Delete::run(&delete, path()).await.map(drop),
                "a reference" => delete.as_ref().run(path()).await.map(drop),
                "an arc" => delete.run(path()).await.map(drop),
                "shared" => delete.run_shared(path()).await.map(drop),
                "boxed" => boxed.run(path()).await.map(drop),
                "of any type" => any.run_json(json!("/")).await.map(drop),
                "boxed, of any type" => boxed_any.run_json(json!("/")).await.map(drop),
                _ => (&any as &dyn AnyRunnable).run_json(json!("/")).await.map(drop),
            }
        }
    })
    .middleware(for_tree(Runs::of_type::<Delete>().only(|_: &RunContext| Err(Error::denied("desk", "closed")))));
    let ways = ["borrowed", "a reference", "an arc", "shared", "boxed", "of any type", "boxed, of any type", "nested"];
    for how in ways {
        let result = outer.run(how.to_owned()).await;
        assert!(result.is_err_and(|error| error.is_denied()), "{how}: not denied");
    }
}

// M5
#[tokio::test]
async fn a_guard_denies_a_run_if_its_selecting_predicate_panics() -> TestResult {
    let double = double();
    let panics = || Runs::matching(|_| panic!("planned"));
    let rate = RateLimit::builder(1, Duration::from_secs(9)).runs(panics()).build()?;
    let concurrency = Concurrency::builder(1).runs(panics()).build()?;
    let asks = Approval::by_interrupt().runs(panics());
    let only = panics().only(OverrideOutput::json(7));
    let errors =
        [run(&double, rate).await, run(&double, concurrency).await, run(&double, asks).await, run(&double, only).await];
    for (error, by) in errors.into_iter().zip(["rate_limit", "concurrency", "approval", "override_output"]) {
        let reason = "the predicate that selects runs panicked: planned";
        assert_eq!(error.expect_err("it is denied").explain(), format!("denied by {by}: {reason}"));
    }
    Ok(())
}

#[tokio::test]
async fn explain_lists_the_selection_of_a_for_tree_middleware() -> TestResult {
    let double = Arc::new(double());
    let started = Arc::clone(&double);
    let outer = runnable_fn("outer", move |n: u32, _: RunContext| {
        let double = Arc::clone(&started);
        async move { Ok(double.run(n).await? + 1) }
    });
    let answers = for_tree(Runs::of_kind("Tool").only(OverrideOutput::json(7)));
    let run = outer.run(3).middleware(answers);
    let listed = run.explain().to_string();
    assert!(listed.contains("; only runs of Tool"), "{listed}");
    assert_eq!(run.await?, 8, "only the run below is answered");
    Ok(())
}

/// Returns the names of the runs that a middleware is bound to, among `outer`, `middle` below `outer`, and `inner`
/// below `middle`.
async fn bound_to<Sort, M: IntoMiddleware<Sort>>(binds: impl FnOnce(Notes) -> M) -> Result<Vec<String>> {
    let inner = Arc::new(runnable_fn("inner", |(): (), _: RunContext| async { Ok(()) }));
    let middle = Arc::new(runnable_fn("middle", move |(): (), _: RunContext| inner.run_shared(())));
    let outer = runnable_fn("outer", move |(): (), _: RunContext| middle.run_shared(()));
    let notes = Notes::default();
    outer.run(()).middleware(binds(notes.clone())).await?;
    let bound = std::mem::take(&mut *notes.0.lock().expect("no panic"));
    Ok(bound)
}

/// A middleware that records the names of the runs that it is bound to.
#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Middleware for Notes {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.0.lock().expect("no panic").push(ctx.name().to_owned());
        Ok(())
    }
}

// M4
#[tokio::test]
async fn runs_only_binds_for_tree_and_for_nested_relative_to_the_selected_runs() -> TestResult {
    let named = |name: &'static str| Runs::named(name);
    let none: [&str; 0] = [];
    assert_eq!(bound_to(|notes| named("outer").only(for_tree(notes))).await?, ["outer", "middle", "inner"]);
    assert_eq!(bound_to(|notes| named("outer").only(for_nested(notes))).await?, ["middle", "inner"]);
    assert_eq!(bound_to(|notes| named("middle").only(for_tree(notes))).await?, none);
    assert_eq!(bound_to(|notes| for_tree(named("middle").only(for_tree(notes)))).await?, ["middle", "inner"]);
    assert_eq!(bound_to(|notes| for_tree(named("middle").only(for_nested(notes)))).await?, ["inner"]);
    assert_eq!(bound_to(|notes| for_nested(named("outer").only(for_tree(notes)))).await?, none);
    Ok(())
}

/// Returns the middlewares with a selection, each with `true` if it restricts what the middleware does in the runs that
/// it is bound to. The others act on the runs below.
fn with_selection(runs: &Runs) -> TestResult<Vec<(Box<dyn Middleware>, bool)>> {
    let page = Page::new();
    Ok(vec![
        (Box::new(RateLimit::builder(1, Duration::from_secs(9)).runs(runs.clone()).build()?), true),
        (Box::new(Concurrency::builder(1).runs(runs.clone()).build()?), true),
        (Box::new(Approval::by_interrupt().runs(runs.clone())), true),
        (Box::new(OverrideOutput::json(7).runs(runs.clone())), true),
        (Box::new(runs.clone().only(Notes::default())), true),
        (Box::new(runs.clone().only(for_tree(Notes::default()))), true),
        (Box::new(Budget::builder().calls(0).runs(runs.clone()).build()?), false),
        (Box::new(page.built(|builder| builder.included(runs.clone()))), false),
        (Box::new(for_tree(runs.clone().only(Notes::default()))), false),
        (Box::new(for_nested(runs.clone().only(Notes::default()))), false),
    ])
}

// M11
#[test]
fn a_middleware_handles_the_runs_that_its_selection_may_have() -> TestResult {
    let (double, other) = (double(), double());
    for (runs, has) in rows(&double, &other) {
        let may_have = runs.may_have("Tool", "double");
        assert!(may_have || !has, "{runs:?}");
        for (middleware, is_restricted) in with_selection(&runs)? {
            assert_eq!(middleware.handles("Tool", "double"), may_have || !is_restricted, "{middleware:?}");
        }
    }
    assert!(Approval::by_interrupt().handles("Tool", "double"), "all runs");
    Ok(())
}

// M11
#[tokio::test]
async fn a_guard_with_a_selection_is_refused_where_it_is_bound_only_to_a_run_that_it_does_not_select() -> TestResult {
    let no = || Runs::named("triple");
    let approval = double().run(3).middleware(Approval::by_interrupt().runs(no())).await;
    let rate = double().run(3).middleware(RateLimit::builder(1, Duration::from_secs(9)).runs(no()).build()?).await;
    let concurrency = double().run(3).middleware(Concurrency::builder(1).runs(no()).build()?).await;
    let only = double().run(3).middleware(no().only(Approval::by_interrupt())).await;
    // The selections of both have no run in common.
    let both = Runs::of_kind("Tool").only(Approval::by_interrupt().runs(no()));
    let both = double().run(3).middleware(both).await;
    let rows = [
        (approval, "approval"),
        (rate, "rate_limit"),
        (concurrency, "concurrency"),
        (only, "approval"),
        (both, "approval"),
    ];
    for (result, name) in rows {
        let text = result.expect_err("it is refused").to_string();
        assert!(text.starts_with(&format!("the guard `{name}` (")) && text.contains("for_tree(…)"), "{text}");
        assert!(text.contains("is bound to Tool `double`"), "{text}");
    }
    // Other middleware only warns.
    assert_eq!(double().run(3).middleware(no().only(OverrideOutput::json(7))).await?, 6);
    assert_eq!(double().run(3).middleware(OverrideOutput::json(7).runs(no())).await?, 6);
    Ok(())
}

// M12
#[test]
fn a_selection_names_the_kind_or_name_that_is_nearly_that_of_a_run() {
    let near = |runs: Runs| runs.near_miss("Tool", "delete");
    let rows = [
        (Runs::named("delte"), Some("delte")),
        (Runs::named("Delete"), Some("Delete")),
        (Runs::of_kind("tool"), Some("tool")),
        (Runs::named("tool"), None),
        (Runs::named("delete"), None),
        (Runs::of_kind("ChatModel"), None),
        (Runs::of_kind("Tool").and(Runs::named("dleete")), Some("dleete")),
        (Runs::named("read").or(Runs::named("de-lete")), Some("de-lete")),
        (Runs::all().except(Runs::named("delte")), None),
        (Runs::matching(|_| true).and(Runs::of_type::<u8>()), None),
    ];
    for (runs, expected) in rows {
        let text = format!("{runs:?}");
        assert_eq!(near(runs.clone()).as_deref(), expected, "{text}");
        let approval = Approval::by_interrupt().runs(runs.clone());
        assert_eq!(approval.describe().near_miss("Tool", "delete").as_deref(), expected, "{text}");
        let inside = Runs::of_kind("Tool").only(Approval::by_interrupt().runs(runs.clone()));
        assert_eq!(inside.describe().near_miss("Tool", "delete").as_deref(), expected, "{text}");
        assert_eq!(runs.only(Notes::default()).describe().near_miss("Tool", "delete").as_deref(), expected, "{text}");
    }
}

/// A selection as data. An unknown part has the value that a run will show.
#[derive(Clone, Debug)]
enum Expr {
    Kind(bool),
    Name(bool),
    Unknown(bool),
    Combined(Box<(Self, u8, Self)>),
}

impl Expr {
    fn any() -> impl Strategy<Value = Self> {
        let leaf = (0..3_u8, any::<bool>()).prop_map(|(which, is_in)| match which {
            0 => Self::Kind(is_in),
            1 => Self::Name(is_in),
            _ => Self::Unknown(is_in),
        });
        leaf.prop_recursive(4, 12, 2, |inner| {
            (inner.clone(), 0..3_u8, inner).prop_map(|parts| Self::Combined(Box::new(parts)))
        })
    }

    fn runs(&self) -> Runs {
        match self {
            Self::Kind(is_in) => Runs::of_kind(if *is_in { "Tool" } else { "Model" }),
            Self::Name(is_in) => Runs::named(if *is_in { "double" } else { "triple" }),
            Self::Unknown(is_in) => {
                let is_in = *is_in;
                Runs::matching(move |_| is_in)
            }
            Self::Combined(parts) => match parts.1 {
                0 => parts.0.runs().and(parts.2.runs()),
                1 => parts.0.runs().or(parts.2.runs()),
                _ => parts.0.runs().except(parts.2.runs()),
            },
        }
    }

    /// The model: returns whether the answer may be yes, and may be no, if each unknown part may be either.
    fn may_be(&self) -> (bool, bool) {
        match self {
            Self::Kind(is_in) | Self::Name(is_in) => (*is_in, !is_in),
            Self::Unknown(_) => (true, true),
            Self::Combined(parts) => {
                let ((some_yes, some_no), (other_yes, other_no)) = (parts.0.may_be(), parts.2.may_be());
                match parts.1 {
                    0 => (some_yes && other_yes, some_no || other_no),
                    1 => (some_yes || other_yes, some_no && other_no),
                    _ => (some_yes && other_no, some_no || other_yes),
                }
            }
        }
    }
}

proptest! {
    // M11
    #[test]
    fn a_selection_may_have_a_run_unless_kind_and_name_alone_rule_it_out(expr in Expr::any()) {
        let runs = expr.runs();
        prop_assert_eq!(runs.may_have("Tool", "double"), expr.may_be().0, "{:?}", runs);
        // A run that the selection has is never ruled out.
        let run = Shown;
        prop_assert!(!runs.has(&run) || runs.may_have("Tool", "double"));
    }
}

/// A recorded run of the tool `double`.
struct Shown;

impl RunInfo for Shown {
    fn kind(&self) -> &'static str {
        "Tool"
    }
    fn name(&self) -> &'static str {
        "double"
    }
    fn namespace(&self) -> &'static str {
        "maths"
    }
    fn context(&self) -> Context {
        Context::new()
    }
    fn trace(&self) -> Option<Trace> {
        None
    }
    fn has_type(&self, _: &str) -> bool {
        false
    }
    fn run(&self) -> Option<RunContext> {
        None
    }
}

#[test]
fn the_debug_format_of_runs_describes_the_selection() {
    let (a, b, c) = (|| Runs::of_kind("A"), || Runs::named("b"), || Runs::matching(|_| true));
    let rows = [
        (Runs::all(), "all"),
        (Runs::of_type::<u8>(), "of type u8"),
        (Runs::of_instance(&double()), "of instance maths"),
        (a().or(b()).or(c()), "of A or named b or by a function"),
        (a().or(b().and(c())), "of A or (named b and by a function)"),
        (a().except(b()).except(c()), "(of A except named b) except by a function"),
        (Runs::all().except(a().or(b())), "all except (of A or named b)"),
    ];
    for (runs, words) in rows {
        assert_eq!(format!("{runs:?}"), words);
    }
}
