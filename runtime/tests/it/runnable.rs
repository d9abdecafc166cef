//! R1: runnables, the first poll of a run, and the parent of a run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::support::{Recorder, TestResult, below, current_id};
use emitree_emitter::{Creator, Emitter};
use emitree_runtime::{
    AnyRunnable, AsInstance, BoxRunnable, ErrorKind, IntoMiddleware, IntoShared, Layer, Middleware, Next, Result, Run,
    RunContext, Runnable, RunnableFn, Stack, Stage, Status, lifecycle, middleware_fn, runnable_fn,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// An input that is not `Clone`: a run does not require `Clone`.
#[derive(Serialize, Deserialize)]
struct Document(String);

struct CountWords {
    emitter: Emitter,
    middlewares: Vec<Arc<dyn Middleware>>,
}

impl Runnable for CountWords {
    type Input = Document;
    type Output = usize;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &self.middlewares
    }

    async fn execute(&self, document: &Document, _: &RunContext) -> Result<usize> {
        Ok(document.0.split_whitespace().count())
    }
}

fn count_words<Sort>(tree: &Emitter, middleware: impl IntoMiddleware<Sort>) -> CountWords {
    CountWords {
        emitter: tree.child("count").expect("a valid name"),
        middlewares: vec![Arc::new(middleware.into_middleware())],
    }
}

/// Returns a runnable whose runs return the id of their parent.
fn whose_child(tree: &Emitter) -> impl Runnable<Input = (), Output = Option<String>> + 'static {
    below(tree, "child", |(), ctx: RunContext| async move { Ok(parent_of(&ctx)) })
}

fn parent_of(ctx: &RunContext) -> Option<String> {
    let by_trace = ctx.trace().parent_run_id.map(|id| id.to_string());
    assert_eq!(by_trace, ctx.parent().map(|parent| parent.run_id().to_string()));
    by_trace
}

// R1
#[tokio::test]
async fn a_runnable_has_an_emitter_middlewares_and_typed_input_and_output() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let notes = recorder.clone();
    let words = count_words(&tree, move |_: &RunContext| {
        notes.note("bound");
        Ok(())
    });

    assert_eq!(words.run(Document("to be or not to be".into())).await?, 6);
    recorder.expect(["bound", "count.run.start", "count.run.success", "count.run.finish"]);
    Ok(())
}

#[tokio::test]
async fn a_context_returns_the_types_of_its_run_during_bind() -> TestResult {
    let recorder = Recorder::new();
    let notes = recorder.clone();
    let words = count_words(&Emitter::new(), move |ctx: &RunContext| {
        let types = ctx.types();
        for name in [types.runnable, types.input, types.output] {
            notes.note(name.rsplit("::").next().unwrap_or(name));
        }
        Ok(())
    });
    words.run(Document("to be".into())).await?;
    recorder.expect(["CountWords", "Document", "usize"]);
    Ok(())
}

// R1
#[tokio::test]
async fn a_run_does_nothing_before_its_first_poll_and_has_no_effect_if_dropped_before() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let notes = recorder.clone();
    let bind = move |_: &RunContext| {
        notes.note("bound");
        Ok(())
    };
    let words = count_words(&tree, bind.clone());

    let run = words.run(Document("to be".into())).middleware(bind).on("*.*", |_: &mut crate::support::Any, _| ());
    assert_eq!(format!("{run:?}"), "Run(built)");
    tokio::task::yield_now().await;
    drop(run);
    recorder.expect([]);
}

// R1
#[tokio::test]
async fn an_error_in_building_a_run_is_returned_at_the_first_poll_before_start() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let notes = recorder.clone();
    let echo = below(&tree, "echo", |n: u32, _: RunContext| async move { Ok(n) }).middleware(move |_: &RunContext| {
        notes.note("bound");
        Ok(())
    });

    let cases = [
        (echo.run(1).on("", |_: &mut crate::support::Any, _| ()), "an empty matcher matches nothing", &["bound"][..]),
        (
            echo.run(1).on("new_[token", |_: &mut crate::support::Any, _| ()),
            "`new_[token` is not a valid glob",
            &["bound"],
        ),
        (echo.run(1).observe("no-name", |_: &crate::support::Any, _| ()), "`no-name`", &["bound"]),
        (echo.run(1).context(json!({"internal": true})), "context key `internal` is set by the runtime", &[]),
    ];
    for (run, message, before) in cases {
        let error = run.await.expect_err("it was built wrongly");
        assert!(error.to_string().contains(message), "expected `{message}` in `{error}`");
        // The instance's middlewares are bound before the run's listeners (R4).
        recorder.expect(before.iter().copied());
    }
}

// R1
#[tokio::test]
async fn the_parent_of_a_run_is_the_run_in_which_it_was_made_even_if_it_is_spawned() -> TestResult {
    let tree = Emitter::new();
    let child: &'static _ = Box::leak(Box::new(whose_child(&tree)));
    let parent = below(&tree, "parent", move |(), ctx: RunContext| async move {
        let own = Some(ctx.run_id().to_string());
        let awaited = child.run(()).await?;
        let spawned = tokio::spawn(child.run(())).await?;
        let called_elsewhere = tokio::spawn(async { child.run(()).await }).await?;
        assert_eq!((awaited, spawned?, called_elsewhere?), (own.clone(), own, None));
        Ok(())
    });
    parent.run(()).await?;
    assert_eq!(child.run(()).await?, None);
    Ok(())
}

// R1
#[tokio::test]
async fn a_run_made_in_a_listener_or_in_bind_has_the_current_run_as_its_parent() -> TestResult {
    let tree = Emitter::new();
    let (child, recorder) = (Arc::new(whose_child(&tree)), Recorder::new());
    let parent = below(&tree, "parent", |(), ctx: RunContext| async move { Ok(ctx.run_id().to_string()) });
    let (in_listener, notes) = (Arc::clone(&child), recorder.clone());
    let id = parent
        .run(())
        .on_async("parent.run.start", move |_: &mut crate::support::Any, _| {
            let (child, notes) = (Arc::clone(&in_listener), notes.clone());
            Box::pin(async move {
                notes.note(child.run(()).await?.unwrap_or_default());
                Ok(())
            })
        })
        .await?;
    recorder.expect([&*id]);

    let stored: &'static Mutex<Option<Run<'static, _>>> = Box::leak(Box::new(Mutex::new(None)));
    let child: &'static _ = Box::leak(Box::new(whose_child(&tree)));
    let keep = move |_: &RunContext| {
        *stored.lock().expect("nobody panics here") = Some(child.run(()));
        Ok(())
    };
    let (inside, notes) = (runnable_fn("inside", |(), _: RunContext| async { Ok(()) }), recorder.clone());
    let id = below(&tree, "parent", move |(), ctx: RunContext| {
        let notes = notes.clone();
        async move {
            let run = stored.lock().expect("nobody panics here").take().expect("bound");
            notes.note(run.await?.unwrap_or_default());
            Ok(ctx.run_id().to_string())
        }
    })
    .middleware(keep)
    .run(())
    .await?;
    inside.run(()).await?;
    recorder.expect([&*id]);
    Ok(())
}

// R1
#[tokio::test]
async fn a_shared_run_that_is_spawned_keeps_the_parent_in_which_it_was_made() -> TestResult {
    let tree = Emitter::new();
    let child = Arc::new(whose_child(&tree));
    let parent = below(&tree, "parent", move |(), ctx: RunContext| {
        let run = child.run_shared(());
        async move {
            let spawned = tokio::spawn(run).await.expect("it does not panic")?;
            Ok((spawned, ctx.run_id().to_string()))
        }
    });
    let (spawned, parent) = parent.run(()).await?;
    assert_eq!(spawned, Some(parent));
    Ok(())
}

// R1
#[tokio::test]
async fn a_run_whose_parent_could_not_be_bound_does_not_begin() -> TestResult {
    let tree = Emitter::new();
    let child: &'static _ = Box::leak(Box::new(whose_child(&tree)));
    let left: Arc<Mutex<Option<Run<'static, _>>>> = Arc::default();
    let leave = Arc::clone(&left);
    let parent = below(&tree, "parent", |(), _: RunContext| async { Ok(()) }).middleware(move |_: &RunContext| {
        *leave.lock().expect("nobody panics here") = Some(child.run(()));
        Err(emitree_runtime::Error::new("cannot be bound"))
    });

    assert!(parent.run(()).await.is_err());
    let run = left.lock().expect("nobody panics here").take().expect("bind has left one");
    assert!(run.await.is_err_and(|error| error.is_aborted()));
    Ok(())
}

// R1
#[tokio::test]
async fn runnable_fn_makes_a_runnable_that_keeps_its_name_under_any_emitter() -> TestResult {
    let double = |n: u32, _: RunContext| async move { Ok(n * 2) };
    let plain = runnable_fn("double", double);
    assert_eq!((Runnable::kind(&plain), Runnable::name(&plain)), ("Run", "double"));
    assert_eq!(plain.run(21).await?, 42);

    let elsewhere = plain.with_emitter(Emitter::new().child("tools")?);
    assert_eq!((Runnable::kind(&elsewhere), Runnable::name(&elsewhere)), ("Run", "double"));

    let creator = Creator::new("Tool", "desk");
    let tool = elsewhere.with_emitter(Emitter::builder().creator(creator).build()?);
    assert_eq!((Runnable::kind(&tool), Runnable::name(&tool)), ("Tool", "double"));
    Ok(())
}

// R1
#[tokio::test]
async fn events_of_a_run_contain_the_kind_and_name_of_its_runnable() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    tree.observe("*.*", move |_: &crate::support::Any, meta| {
        let creator = meta.creator().expect("a runnable");
        notes.note(format!("{}[{}][{}]", creator.kind(), creator.name(), meta.name()));
    })?;
    below(&tree, "double", |n: u32, _: RunContext| async move { Ok(n * 2) }).run(2).await?;
    recorder.expect(["Run[double][start]", "Run[double][success]", "Run[double][finish]"]);
    Ok(())
}

// R1
#[tokio::test]
async fn an_arc_of_an_instance_is_that_instance() -> TestResult {
    let tree = Emitter::new();
    let words = Arc::new(count_words(&tree, |_: &RunContext| Ok(())));
    let shared = Arc::clone(&words);
    assert_eq!(shared.instance_emitter(), &words.emitter);
    assert_eq!((shared.kind(), shared.name()), ("Run", "count"));
    assert_eq!(shared.middlewares().len(), 1);

    let counted = tokio::spawn(async move { shared.run(Document("a b".into())).await }).await?;
    assert_eq!(counted?, 2);
    Ok(())
}

/// A layer that fits only one type of runnable.
#[derive(Debug)]
struct OneMore;

impl Layer<CountWords> for OneMore {
    async fn call(&self, input: &Document, _: &RunContext, next: Next<'_, CountWords>) -> Result<usize> {
        Ok(next.run(input).await? + 1)
    }
}

// M4
#[tokio::test]
async fn a_run_through_an_arc_or_a_reference_is_a_run_of_the_runnable_and_takes_its_layers() -> TestResult {
    let text = || Document("to be".into());
    let words = Arc::new(count_words(&Emitter::new(), |_: &RunContext| Ok(())));
    let borrowed: &CountWords = &words;
    let runs: [Run<'_, CountWords>; 3] = [words.run(text()), borrowed.run(text()), words.run_shared(text())];
    for run in runs {
        assert_eq!(run.layer(OneMore).await?, 3);
    }
    Ok(())
}

// M4
#[tokio::test]
async fn runs_through_any_pointer_or_box_have_the_type_kind_and_name_of_the_runnable() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let (bound, heard) = (recorder.clone(), recorder.clone());
    let stack = Stack::<CountWords>::builder().layer(OneMore).build();
    let words = CountWords {
        emitter: tree.child_builder("count").creator(Creator::new("Tool", "words")).build()?,
        middlewares: vec![
            Arc::new(stack),
            Arc::new(middleware_fn(move |ctx: &RunContext| {
                let of = ctx.types().runnable.rsplit("::").next().unwrap_or_default();
                let name = ctx.explain().runnable;
                bound.note(format!("{of}: {}[{}], explained as {name}", ctx.kind(), ctx.name()));
                Ok(())
            })),
        ],
    };
    tree.observe(lifecycle().only([Stage::Start]), move |_: &crate::support::Any, meta| {
        let creator = meta.creator().expect("a runnable");
        heard.note(format!("{}[{}]", creator.kind(), creator.name()));
    })?;

    let words = Arc::new(words);
    let text = || Document("to be".into());
    assert_eq!(words.run(text()).await?, 3);
    assert_eq!(words.run_shared(text()).await?, 3);
    let boxed = BoxRunnable::new(Arc::clone(&words));
    assert_eq!(boxed.run(text()).await?, 3);
    assert_eq!(Arc::new(BoxRunnable::new(boxed)).run_shared(text()).await?, 3);
    let any: [Box<dyn AnyRunnable>; 3] =
        [Box::new(Arc::clone(&words)), Box::new(BoxRunnable::new(Arc::clone(&words))), {
            let any: Arc<dyn AnyRunnable> = words;
            Box::new(any)
        }];
    for any in any {
        assert_eq!(any.run_json(json!("to be")).await?, 3);
    }
    recorder.expect(["CountWords: Tool[words], explained as words", "Tool[words]"].repeat(7));
    Ok(())
}

// M4
#[tokio::test]
async fn a_boxed_arc_of_a_runnable_is_the_same_instance_and_is_not_wrapped() -> TestResult {
    let words = Arc::new(count_words(&Emitter::new(), |_: &RunContext| Ok(())));
    let boxed = BoxRunnable::new(Arc::clone(&words));
    assert_eq!(Arc::strong_count(&words), 2);
    assert_eq!(boxed.instance_emitter(), words.instance_emitter());
    drop(boxed);
    assert_eq!(Arc::strong_count(&words), 1);
    assert!(Arc::ptr_eq(&words, &Arc::clone(&words).into_shared()));
    Ok(())
}

// R1
#[tokio::test]
async fn an_erased_runnable_can_be_stored_and_runs_through_json() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let words = count_words(&tree, |_: &RunContext| Ok(()));
    let double = below(&tree, "double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    let tools: BTreeMap<&str, Arc<dyn AnyRunnable>> =
        BTreeMap::from([("words", Arc::new(words) as Arc<_>), ("double", Arc::new(double) as Arc<_>)]);

    assert_eq!(tools["words"].run_json(json!("a b c")).await?, json!(3));
    assert_eq!(tools["double"].run_json(json!(4)).await?, json!(8));
    recorder.take();

    let error = tools["double"].run_json(json!({"n": 4})).await.expect_err("not a number");
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    assert!(error.to_string().starts_with(r#"the input `{"n":4}` does not fit `u32`"#), "{error}");
    recorder.expect([]);
    assert_eq!(format!("{:?}", tools["double"]), "Run[double]");
    Ok(())
}

// R1
#[tokio::test]
async fn the_parent_of_an_erased_run_is_the_run_in_which_run_json_was_called() -> TestResult {
    let tree = Emitter::new();
    let child: Arc<dyn AnyRunnable> = Arc::new(whose_child(&tree));
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let child = Arc::clone(&child);
        async move { Ok((current_id(), child.run_json(json!(null)).await?)) }
    });
    let (own, parent_of_child) = parent.run(()).await?;
    assert_eq!(json!(own), parent_of_child);
    Ok(())
}

// R1
#[tokio::test]
async fn polling_a_run_again_after_its_end_is_an_error_and_not_a_panic() {
    let double = below(&Emitter::new(), "double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    let mut run = double.run(1);
    assert_eq!((&mut run).await.expect("it succeeds"), 2);
    assert_eq!(format!("{run:?}"), "Run(done)");
    assert!((&mut run).await.expect_err("it has ended").to_string().contains("polled again"));
}

// R1
#[tokio::test]
async fn a_runnable_may_run_itself() -> TestResult {
    struct Countdown(Emitter);
    impl Runnable for Countdown {
        type Input = u32;
        type Output = u32;
        fn emitter(&self) -> &Emitter {
            &self.0
        }
        async fn execute(&self, n: &u32, ctx: &RunContext) -> Result<u32> {
            if *n == 0 { Ok(u32::try_from(ctx.depth())?) } else { self.run(n - 1).await }
        }
    }
    assert_eq!(Countdown(Emitter::new()).run(100).await?, 100);
    Ok(())
}

/// The type of a `RunnableFn` that calls a function pointer can be named, and thus be the type of a field.
#[tokio::test]
async fn a_runnable_fn_of_a_function_pointer_can_be_a_field() -> TestResult {
    type Double = RunnableFn<fn(u32, RunContext) -> std::future::Ready<Result<u32>>, u32, u32>;
    struct Desk {
        double: Double,
    }
    let desk = Desk { double: runnable_fn("double", |n, _| std::future::ready(Ok(n * 2))) };
    let status = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&status);
    let run = desk.double.run(3).on_finish(move |finish, _| {
        *seen.lock().expect("nobody panics here") = Some(finish.outcome().status());
    });
    assert_eq!(run.await?, 6);
    assert_eq!(*status.lock().expect("nobody panics here"), Some(Status::Success));
    Ok(())
}

/// A runnable whose kind and name may differ from the kind and name of its emitter's creator.
struct Called {
    emitter: Emitter,
    kind: &'static str,
    name: &'static str,
}

impl Runnable for Called {
    type Input = ();
    type Output = String;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    fn kind(&self) -> &str {
        self.kind
    }

    fn name(&self) -> &str {
        self.name
    }

    async fn execute(&self, (): &(), ctx: &RunContext) -> Result<String> {
        let creator = ctx.emitter().creator().expect("a runnable");
        Ok(format!("{}[{}]", creator.kind(), creator.name()))
    }
}

// R1
#[tokio::test]
async fn a_run_has_the_kind_and_name_of_its_runnable_and_not_of_its_emitters_creator() -> TestResult {
    for (kind, name, told) in
        [("Tool", "desk", "Tool[desk]"), ("Agent", "desk", "Agent[desk]"), ("Tool", "x", "Tool[x]")]
    {
        let emitter = Emitter::builder().creator(Creator::new("Tool", "desk")).build()?;
        assert_eq!(Called { emitter, kind, name }.run(()).await?, told);
    }
    Ok(())
}

// R1
#[tokio::test]
async fn a_boxed_runnable_runs_as_the_runnable_inside() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let bound = recorder.clone();
    let creator = Creator::new("Tool", "double");
    let emitter = tree.child_builder("tool.double").creator(creator).build()?;
    let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) })
        .with_emitter(emitter)
        .middleware(move |ctx: &RunContext| {
            bound.note(format!("bound to {}[{}]", ctx.kind(), ctx.name()));
            Ok(())
        });
    let boxed = BoxRunnable::new(double);
    assert_eq!(format!("{boxed:?}"), "Tool[double]");
    assert_eq!(boxed.run(21).await?, 42);
    recorder.expect([
        "bound to Tool[double]",
        "tool.double.run.start",
        "tool.double.run.success",
        "tool.double.run.finish",
    ]);
    Ok(())
}
