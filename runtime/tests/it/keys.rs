//! R15: a run's key continues the key of the run above, stays the same when the run is made again, and belongs to one
//! run at a time.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::support::ends::{OUTCOMES, begun, end_as, endless_run, settle, waits_at, work_to};
use crate::support::{Gate, Recorder, TestResult, below, silence_planned_panics};
use emitree_emitter::Emitter;
use emitree_runtime::{
    AnyRunnable, BoxRunnable, Data, Error, ErrorKind, Layer, Next, Op, Result, RunContext, RunKey, Runnable, Stage,
    runnable_fn,
};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;

/// Returns a runnable that returns its key.
fn step(name: &'static str) -> Arc<impl Runnable<Input = (), Output = Option<String>>> {
    Arc::new(runnable_fn(name, |(): (), ctx: RunContext| async move { Ok(key_of(&ctx)) }))
}

/// Returns a runnable whose work is a function of its context.
fn scope<O, F>(name: &'static str, work: F) -> Arc<impl Runnable<Input = (), Output = O>>
where
    O: Data,
    F: Fn(RunContext) -> BoxFuture<'static, Result<O>> + Send + Sync + 'static,
{
    Arc::new(runnable_fn(name, move |(): (), ctx: RunContext| work(ctx)))
}

fn key_of(ctx: &RunContext) -> Option<String> {
    ctx.key().map(|key| key.to_string())
}

#[tokio::test]
async fn a_key_continues_the_key_of_the_nearest_run_above_that_has_one() -> TestResult {
    let between = scope("between", |ctx| {
        Box::pin(async move { Ok((key_of(&ctx), step("charge").run(()).key("charge").await?)) })
    });
    let order = scope("order", move |_| between.run_shared(()).boxed());
    for _ in 0..2 {
        let keys = order.run(()).key("order-17").await?;
        assert_eq!(keys, (None, Some("order-17/charge".to_owned())), "the same when the runs are made again");
    }
    assert_eq!(order.run(()).await?, (None, Some("charge".to_owned())), "no run above has a key");
    Ok(())
}

#[tokio::test]
async fn further_calls_add_parts_and_the_whole_path_is_compared() -> TestResult {
    let turn = scope("turn", |_| {
        Box::pin(async move {
            let mut keys = vec![step("note").run(()).key("12").await?];
            for part in ["0", "1", "0"] {
                keys.push(step("note").run(()).key("12").key(part).await.unwrap_or_else(|error| {
                    assert!(error.to_string().contains("`order-17/12/0`"), "{error}");
                    Some("refused".to_owned())
                }));
            }
            Ok(keys)
        })
    });
    let keys = turn.run(()).key("order-17").await?.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>();
    assert_eq!(keys, ["order-17/12", "order-17/12/0", "order-17/12/1", "refused"]);
    let error = step("note").run(()).key("12").key("a/b").await.expect_err("it cannot be a part");
    assert!(error.to_string().starts_with(r#""a/b""#), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_key_of_a_function_is_made_when_it_is_first_read_and_is_not_compared() -> TestResult {
    let made = Arc::new(AtomicUsize::new(0));
    let order = RunKey::new("order-17")?.child("12")?;
    let key = || {
        let (made, order) = (Arc::clone(&made), order.clone());
        move || {
            made.fetch_add(1, Ordering::Relaxed);
            order.clone()
        }
    };
    let nothing = runnable_fn("nothing", |(): (), _: RunContext| async { Ok(()) });
    nothing.run(()).key_with(key()).await?;
    assert_eq!(made.load(Ordering::Relaxed), 0, "nobody reads the key");

    let keys = scope("outer", |ctx| {
        Box::pin(async move {
            let below = step("charge").run(()).key("charge").await?;
            Ok([key_of(&ctx), key_of(&ctx), below])
        })
    });
    let (made_before, twice) = (key(), key());
    let outer = scope("above", move |_| {
        let (keys, first, second) = (Arc::clone(&keys), made_before.clone(), twice.clone());
        Box::pin(async move {
            let keys_of_first = keys.run(()).key_with(first).await?;
            assert_eq!(
                keys_of_first,
                keys.run(()).key("replaced").key_with(second).await?,
                "equal keys are not refused"
            );
            Ok(keys_of_first.map(Option::unwrap_or_default))
        })
    });
    let expected = ["order-17/12", "order-17/12", "order-17/12/charge"];
    assert_eq!(outer.run(()).key("another").await?, expected, "not continued from the run above");
    assert_eq!(made.load(Ordering::Relaxed), 2, "once for each run");
    Ok(())
}

// R14
#[tokio::test]
async fn the_function_that_makes_a_key_is_dropped_inside_the_run_above() -> TestResult {
    struct Noted(Recorder);

    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.note(RunContext::current().map_or_else(|| "no run".to_owned(), |run| run.name().to_owned()));
        }
    }

    let (recorder, kept) = (Recorder::new(), Arc::new(OnceLock::new()));
    let (notes, keeps) = (recorder.clone(), Arc::clone(&kept));
    let inner = scope("inner", move |ctx| {
        let kept = keeps.set(ctx).map_err(|_| Error::new("called once"));
        Box::pin(async { kept })
    });
    let outer = scope("outer", move |_| {
        let noted = Noted(notes.clone());
        let key = move || {
            let _its = &noted;
            RunKey::new("a").expect("a key")
        };
        inner.run_shared(()).key_with(key).boxed()
    });
    outer.run(()).await?;
    recorder.expect([""; 0]);
    drop(kept);
    drop(outer);
    recorder.expect(["outer"]);
    Ok(())
}

#[test]
fn a_key_is_built_of_parts_that_are_checked_like_those_of_runs() {
    let key = RunKey::new("order-17").and_then(|key| key.child("charge")).expect("a key");
    assert_eq!(key.as_str(), "order-17/charge");
    for refused in [RunKey::new("a/b"), key.child("a/b"), RunKey::new(""), key.child("")] {
        let error = refused.expect_err("it cannot be a part of a key");
        assert_eq!(error.kind(), &ErrorKind::Invalid);
        assert!(error.to_string().contains("cannot be the key of a run"), "{error}");
    }
}

#[tokio::test]
async fn the_key_around_is_the_key_of_the_nearest_run_that_has_one() -> TestResult {
    let around = |ctx: &RunContext| ctx.key_around().map(|key| key.to_string()).unwrap_or_default();
    let inner = scope("inner", move |ctx| Box::pin(async move { Ok(around(&ctx)) }));
    let between = scope("between", move |_| {
        let inner = Arc::clone(&inner);
        Box::pin(async move { Ok((inner.run(()).await?, inner.run(()).key("own").await?)) })
    });
    let outer = scope("outer", move |_| between.run_shared(()).boxed());
    let expect = |above: &str, own: &str| (above.to_owned(), own.to_owned());
    assert_eq!(outer.run(()).key("order").await?, expect("order", "order/own"));
    assert_eq!(outer.run(()).await?, expect("", "own"));
    Ok(())
}

#[tokio::test]
async fn a_middleware_may_take_a_key_for_its_run_if_the_run_has_none() -> TestResult {
    let takes = |ctx: &RunContext| ctx.take_key("order-17");
    let order = scope("order", |_| step("charge").run_shared(()).key("charge").boxed());
    assert_eq!(order.run(()).middleware(takes).await?.as_deref(), Some("order-17/charge"));

    let error = order.run(()).key("mine").middleware(takes).await.expect_err("it has a key").to_string();
    assert!(error.contains("order`") && error.contains("already has the key `mine`"), "{error}");
    let invalid = order.run(()).middleware(|ctx: &RunContext| ctx.take_key("a/b")).await;
    assert!(invalid.expect_err("it cannot be a key").to_string().starts_with(r#""a/b""#));

    let two = scope("two", move |_| {
        let order = Arc::clone(&order);
        Box::pin(async move {
            order.run(()).middleware(takes).await?;
            Ok(order.run(()).middleware(takes).await.expect_err("the key is taken").to_string())
        })
    });
    let error = two.run(()).key("batch").await?;
    assert!(error.contains("`batch/order-17`") && error.contains("has succeeded"), "{error}");
    Ok(())
}

/// A runnable that is idempotent, and returns whether its run is.
struct Lookup(Emitter);

impl Runnable for Lookup {
    type Input = ();
    type Output = bool;

    fn emitter(&self) -> &Emitter {
        &self.0
    }

    async fn execute(&self, (): &(), ctx: &RunContext) -> Result<bool> {
        Ok(ctx.is_idempotent())
    }

    fn is_idempotent(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_run_is_idempotent_if_its_runnable_is() -> TestResult {
    let seen = |ctx: &RunContext| if ctx.is_idempotent() { Ok(()) } else { Err(Error::new("seen too late")) };
    let lookup = || Lookup(Emitter::new());
    assert!(lookup().run(()).middleware(seen).await?);
    assert!(BoxRunnable::new(lookup()).run(()).middleware(seen).await?);
    let lookup: Box<dyn AnyRunnable> = Box::new(lookup());
    assert_eq!(lookup.run_json(serde_json::Value::Null).await?, true);
    Ok(())
}

#[tokio::test]
async fn the_work_of_a_keyed_run_has_begun_once_it_says_so() -> TestResult {
    let work = scope("work", |ctx| {
        Box::pin(async move {
            let before = ctx.has_begun();
            ctx.begin();
            let below = scope("below", |ctx| Box::pin(async move { Ok(ctx.has_begun()) }));
            Ok((before, ctx.has_begun(), below.run(()).key("below").await?))
        })
    });
    assert_eq!(work.run(()).key("a").await?, (false, true, false));
    assert_eq!(work.run(()).key_with(|| RunKey::new("a").expect("a key")).await?, (false, true, false));
    assert_eq!(work.run(()).await?, (false, false, false), "a run without a key");
    Ok(())
}

#[tokio::test]
async fn the_fence_of_a_key_is_the_number_of_the_commit_and_is_not_compared() -> TestResult {
    let work = scope("work", |ctx| {
        Box::pin(async move {
            let before = ctx.key();
            ctx.set_fence(NonZeroU64::new(7).expect("a number"));
            let fence = |key: Option<RunKey>| key.and_then(|key| key.fence());
            Ok((before == ctx.key(), fence(before), fence(ctx.key())))
        })
    });
    assert_eq!(work.run(()).key("a").await?, (true, None, NonZeroU64::new(7)));
    assert_eq!(work.run(()).await?, (true, None, None), "a run without a key");
    Ok(())
}

#[tokio::test]
async fn an_id_that_cannot_be_a_key_is_refused_before_start_with_an_error_that_quotes_it() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let step = below(&tree, "step", |(): (), ctx: RunContext| async move { Ok(key_of(&ctx)) });
    let long = "ü".repeat(101);
    for (id, quoted, fault) in [
        ("", r#""""#, "empty"),
        ("a/b", r#""a/b""#, "contains `/`"),
        ("a\nb", r#""a\nb""#, "control character"),
        ("a\u{7f}", r#""a\u{7f}""#, "control character"),
        (&long, &*format!("{:?}…", "ü".repeat(40)), "too long"),
    ] {
        let error = step.run(()).key(id).await.expect_err("it cannot be a key");
        assert_eq!(error.kind(), &ErrorKind::Invalid);
        let text = error.to_string();
        assert!(text.starts_with(quoted) && text.contains(fault), "{text}");
        recorder.expect([""; 0]);
    }
    let long = "ü".repeat(100);
    for id in ["a", " ", "charge-3f9a…", &long] {
        assert_eq!(step.run(()).key(id).await?.as_deref(), Some(id));
    }
    Ok(())
}

#[tokio::test]
async fn a_key_of_a_run_under_way_is_refused_with_an_error_that_names_both_runs() -> TestResult {
    let outer = scope("outer", |_| {
        Box::pin(async move {
            let waits = begun(endless_run(&Emitter::new(), "waits").key("charge"));
            let error = step("pay").run(()).key("charge").await.expect_err("the key is taken").to_string();
            drop(waits);
            step("pay").run(()).key("charge").await?;
            Ok(error)
        })
    });
    for (run, key) in [(outer.run(()).key("order"), "`order/charge`"), (outer.run(()), "`charge`")] {
        let error = run.await?;
        for part in ["waits`", "pay`", key, "is under way"] {
            assert!(error.contains(part), "{part} in: {error}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_key_is_free_after_its_run_unless_the_run_has_succeeded() -> TestResult {
    silence_planned_panics();
    let outer = scope("outer", |_| {
        Box::pin(async move {
            let mut refused = Vec::new();
            for (outcome, name) in OUTCOMES {
                end_as(outcome, work_to(outcome, &Emitter::new()).run_shared(()).key(name)).await;
                if let Err(error) = step("again").run(()).key(name).await {
                    assert!(error.to_string().contains("has succeeded in the same attempt"), "{error}");
                    refused.push(outcome.as_str().to_owned());
                }
            }
            Ok(refused)
        })
    });
    assert_eq!(outer.run(()).key("order").await?, ["success"]);
    assert_eq!(outer.run(()).await?, ["success"]);
    Ok(())
}

#[tokio::test]
async fn a_dropped_run_has_its_key_until_the_listeners_of_its_last_events_have_ended() -> TestResult {
    let outer = scope("outer", |_| {
        Box::pin(async move {
            let gate = Gate::new();
            let waits = endless_run(&Emitter::new(), "waits").register(waits_at(&gate, Stage::Error));
            drop(begun(waits.key("charge")));
            let error = step("pay").run(()).key("charge").await.expect_err("the run has not ended").to_string();
            gate.open();
            settle().await;
            step("pay").run(()).key("charge").await?;
            Ok(error)
        })
    });
    let error = outer.run(()).key("order").await?;
    assert!(error.contains("waits`") && error.contains("is under way"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_run_that_fails_to_bind_releases_its_key() -> TestResult {
    let outer = scope("outer", |_| {
        Box::pin(async move {
            let fails = |_: &RunContext| Err(Error::new("not here"));
            step("charge").run(()).key("charge").middleware(fails).await.expect_err("it is not bound");
            step("charge").run(()).key("charge").await
        })
    });
    assert_eq!(outer.run(()).key("order").await?.as_deref(), Some("order/charge"));
    Ok(())
}

#[tokio::test]
async fn keys_are_compared_below_the_nearest_keyed_run_or_without_one_in_the_parent() -> TestResult {
    let agent = scope("agent", |_| step("charge").run_shared(()).key("charge").boxed());
    let two = scope("two", move |ctx| {
        let agent = Arc::clone(&agent);
        Box::pin(async move {
            let first = agent.run(()).await?;
            let second = match ctx.get("own").is_some() {
                true => agent.run(()).key("second").await,
                false => agent.run(()).await,
            };
            Ok((first, second.unwrap_or_else(|_| Some("refused".to_owned()))))
        })
    });
    let keys = |first: &str, second: &str| (Some(first.to_owned()), Some(second.to_owned()));
    assert_eq!(two.run(()).key("order").await?, keys("order/charge", "refused"));
    let own = two.run(()).key("order").context(serde_json::json!({"own": true}));
    assert_eq!(own.await?, keys("order/charge", "order/second/charge"));
    assert_eq!(two.run(()).await?, keys("charge", "charge"), "no run above has a key, and the parents differ");
    Ok(())
}

/// A layer that executes a run once more if it fails.
#[derive(Debug)]
struct OnceMore;

impl<O: Op> Layer<O> for OnceMore {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        match next.run(input).await {
            Err(error) => {
                ctx.discard_attempt(error.to_string(), ()).await?;
                next.run(input).await
            }
            result => result,
        }
    }
}

/// Returns a runnable that executes a keyed step, and fails at its first call.
fn fails_once(error: fn(&'static str) -> Error) -> Arc<impl Runnable<Input = (), Output = Option<String>>> {
    let calls = AtomicUsize::new(0);
    scope("fails_once", move |_| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let key = step("charge").run(()).key("charge").await?;
            if call == 0 { Err(error("once more")) } else { Ok(key) }
        })
    })
}

// M7
#[tokio::test]
async fn another_attempt_uses_the_same_keys() -> TestResult {
    let run = fails_once(Error::retry).run_shared(()).key("a").max_middleware_retries(1);
    assert_eq!(run.await?.as_deref(), Some("a/charge"));
    let run = fails_once(Error::new).run_shared(()).key("a").layers(|stack| stack.layer(OnceMore));
    assert_eq!(run.await?.as_deref(), Some("a/charge"));
    // Another attempt of a run between the two.
    let outer = scope("outer", |_| fails_once(Error::retry).run_shared(()).max_middleware_retries(1).boxed());
    assert_eq!(outer.run(()).key("a").await?.as_deref(), Some("a/charge"));
    Ok(())
}

#[tokio::test]
async fn a_middleware_sees_key_and_mark_of_its_run_and_runs_below_inherit_neither() -> TestResult {
    let recorder = Recorder::new();
    let notes = recorder.clone();
    let sees = move |ctx: &RunContext| {
        notes.note(format!("{} {:?} {}", ctx.name(), key_of(ctx), ctx.is_idempotent()));
        Ok(())
    };
    let outer = scope("outer", |_| step("inner").run_shared(()).boxed());
    let bound = emitree_runtime::for_tree(sees);
    outer.run(()).middleware(bound).key("order").idempotent().await?;
    recorder.expect([r#"outer Some("order") true"#, "inner None false"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_runs_on_several_threads_with_one_key_exactly_one_succeeds() -> TestResult {
    for _ in 0..100 {
        let outer = scope("outer", |ctx| {
            Box::pin(async move {
                let tasks = (0..8).map(|_| ctx.spawn(step("charge").run_shared(()).key("charge")));
                Ok(join_all(tasks).await.into_iter().filter(|ended| matches!(ended, Ok(Ok(_)))).count())
            })
        });
        assert_eq!(outer.run(()).key("order").await?, 1);
    }
    Ok(())
}

/// A run, and the runs that it makes one after the other in each attempt.
#[derive(Clone, Debug)]
struct Node {
    name: String,
    key: Option<&'static str>,
    fails: bool,
    /// The number of attempts that the run discards.
    discards: u32,
    children: Vec<Arc<Self>>,
}

fn node(children: impl Strategy<Value = Vec<Node>>) -> impl Strategy<Value = Node> {
    let key = proptest::sample::select(&[None, Some("a"), Some("b")][..]);
    let discards = prop_oneof![3 => Just(0), 1 => 1..3_u32];
    ("[a-z]{4}", key, any::<bool>(), discards, children).prop_map(|(name, key, fails, discards, children)| {
        let children = children.into_iter().map(Arc::new).collect();
        Node { name, key, fails, discards, children }
    })
}

fn tree() -> impl Strategy<Value = Node> {
    node(Just(Vec::new())).prop_recursive(4, 32, 4, |inner| node(vec(inner, 0..5)))
}

/// Runs a tree, and records the key of each attempt and the end of each run.
fn execute(node: Arc<Node>, recorder: Recorder) -> BoxFuture<'static, ()> {
    let (work, notes) = (Arc::clone(&node), recorder.clone());
    let runnable = runnable_fn(node.name.clone(), move |(): (), ctx: RunContext| {
        let (node, recorder) = (Arc::clone(&work), notes.clone());
        async move {
            recorder.note(format!("{} {:?}", node.name, key_of(&ctx)));
            for child in &node.children {
                execute(Arc::clone(child), recorder.clone()).await;
            }
            match (ctx.attempt() < node.discards, node.fails) {
                (true, _) => Err(Error::retry("another attempt")),
                (false, true) => Err(Error::new("a planned failure")),
                (false, false) => Ok(()),
            }
        }
    });
    let run = Arc::new(runnable).run_shared(()).max_middleware_retries(node.discards);
    let run = if let Some(key) = node.key { run.key(key) } else { run };
    Box::pin(async move {
        let end = match run.await {
            Ok(()) => "ok",
            Err(error) if error.to_string().contains("cannot have the key") => "refused",
            Err(_) => "failed",
        };
        recorder.note(format!("{} {end}", node.name));
    })
}

/// Computes what `execute` records. `taken` are the keys that are taken where the key of this run is compared, and
/// `above` is the key of the nearest run above that has one.
fn expected(node: &Node, above: Option<&str>, taken: &mut BTreeSet<&'static str>, notes: &mut Vec<String>) {
    let name = &node.name;
    if node.key.is_some_and(|key| !taken.insert(key)) {
        return notes.push(format!("{name} refused"));
    }
    let key = node.key.map(|key| above.map_or_else(|| key.to_owned(), |above| format!("{above}/{key}")));
    let before = taken.clone();
    for _ in 0..=node.discards {
        notes.push(format!("{name} {key:?}"));
        let mut own = BTreeSet::new();
        taken.clone_from(&before);
        let inner = if key.is_some() || above.is_none() { &mut own } else { &mut *taken };
        for child in &node.children {
            expected(child, key.as_deref().or(above), inner, notes);
        }
    }
    if let Some(key) = node.key.filter(|_| node.fails) {
        taken.remove(key);
    }
    notes.push(format!("{name} {}", if node.fails { "failed" } else { "ok" }));
}

proptest! {
    #[test]
    fn in_any_tree_of_runs_a_key_belongs_to_one_run_and_is_free_after_failures_and_discarded_attempts(tree in tree()) {
        let (recorder, mut notes) = (Recorder::new(), Vec::new());
        execute(Arc::new(tree.clone()), recorder.clone()).now_or_never().expect("it waits for nothing");
        expected(&tree, None, &mut BTreeSet::new(), &mut notes);
        recorder.expect(notes.iter().map(String::as_str));
    }
}
