//! R2: each run has its own emitter, and every emitter above receives each of its events once.

use std::sync::Arc;

use crate::support::{Recorder, TestResult, below, emitter_of};
use emitree_emitter::{Emitter, EventMeta};
use emitree_runtime::{Result, RunContext, Runnable};

/// `outer` runs `middle`, which runs `inner`, which emits `ping`. The events of each run and each instance are
/// recorded.
fn three_deep(tree: &Emitter, recorder: &Recorder) -> impl Runnable<Input = (), Output = ()> + 'static {
    let inner = Arc::new(below(tree, "inner", |(), ctx: RunContext| async move {
        ctx.emitter().emit("ping", &mut ()).await?;
        Ok(())
    }));
    recorder.watch_as("inner instance", emitter_of(&inner));
    let notes = recorder.clone();
    let middle = Arc::new(below(tree, "middle", move |(), _: RunContext| {
        let (inner, notes) = (Arc::clone(&inner), notes.clone());
        async move { inner.run(()).observe("*.*", notes.sees("inner run")).await }
    }));
    recorder.watch_as("middle instance", emitter_of(&middle));
    let notes = recorder.clone();
    let outer = below(tree, "outer", move |(), _: RunContext| {
        let (middle, notes) = (Arc::clone(&middle), notes.clone());
        async move { middle.run(()).observe("*.*", notes.sees("middle run")).await }
    });
    recorder.watch_as("outer instance", emitter_of(&outer));
    outer
}

// R2
#[tokio::test]
async fn an_event_reaches_its_run_its_instance_the_root_and_every_ancestor_run_once_each() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch_as("root", &tree);
    let outer = three_deep(&tree, &recorder);
    outer.run(()).observe("*.*", recorder.sees("outer run")).await?;

    let ping: Vec<_> = recorder.take().into_iter().filter(|line| line.ends_with(" inner.ping")).collect();
    let heard: Vec<_> = ping.iter().map(|line| line.trim_end_matches(" inner.ping")).collect();
    assert_eq!(
        heard,
        ["inner run", "inner instance", "middle run", "middle instance", "outer run", "outer instance", "root"]
    );
    Ok(())
}

// R2
#[tokio::test]
async fn a_run_receives_the_events_of_all_runs_below_at_any_depth() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let outer = three_deep(&tree, &Recorder::new());
    outer.run(()).observe("*.*", recorder.paths()).await?;
    recorder.expect([
        "outer.run.start",
        "middle.run.start",
        "inner.run.start",
        "inner.ping",
        "inner.run.success",
        "inner.run.finish",
        "middle.run.success",
        "middle.run.finish",
        "outer.run.success",
        "outer.run.finish",
    ]);
    Ok(())
}

// R2
#[tokio::test]
async fn each_run_has_its_own_emitter_with_the_namespace_of_its_instance() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let talk = below(&tree, "talk", |word: String, ctx: RunContext| async move {
        assert_eq!(ctx.emitter().namespace(), "talk");
        assert_eq!(ctx.emitter().parent(), Some(ctx.instance().emitter()));
        tokio::task::yield_now().await;
        ctx.emitter().emit(word.as_str(), &mut ()).await?;
        Ok(())
    });
    let one = talk.run("one".into()).observe("*", recorder.sees("run 1"));
    let two = talk.run("two".into()).observe("*", recorder.sees("run 2"));
    let (one, two) = tokio::join!(one, two);
    one.and(two)?;
    let mut heard = recorder.take();
    heard.sort();
    assert_eq!(heard, ["run 1 talk.one", "run 2 talk.two"]);
    Ok(())
}

// R2
#[tokio::test]
async fn an_instance_receives_events_of_its_own_runs_and_not_of_other_instances() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let [a, b] = ["a", "b"].map(|name| below(&tree, name, |(), _: RunContext| async { Ok(()) }));
    recorder.watch(emitter_of(&a));
    a.run(()).await?;
    b.run(()).await?;
    recorder.expect(["a.run.start", "a.run.success", "a.run.finish"]);
    Ok(())
}

// R2
#[tokio::test]
async fn an_instance_that_runs_itself_receives_each_event_once() -> TestResult {
    struct Twice(Emitter);
    impl Runnable for Twice {
        type Input = u32;
        type Output = ();
        fn emitter(&self) -> &Emitter {
            &self.0
        }
        async fn execute(&self, depth: &u32, ctx: &RunContext) -> Result<()> {
            match depth.checked_sub(1) {
                Some(depth) => self.run(depth).await,
                None => Ok(ctx.emitter().emit("bottom", &mut ()).await?),
            }
        }
    }
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let twice = Twice(tree.child("twice")?);
    recorder.watch_as("root", &tree);
    recorder.watch_as("instance", &twice.0);
    twice.run(1).observe("twice.bottom", recorder.sees("run")).await?;
    let bottom: Vec<_> = recorder.take().into_iter().filter(|line| line.ends_with("bottom")).collect();
    assert_eq!(bottom, ["run twice.bottom", "instance twice.bottom", "root twice.bottom"]);
    Ok(())
}

// R2
#[tokio::test]
async fn the_listeners_of_a_run_are_dropped_when_the_run_ends() -> TestResult {
    let (tree, held) = (Emitter::new(), Arc::new(()));
    let hold = Arc::clone(&held);
    let talk = below(&tree, "talk", |(), _: RunContext| async { Ok(()) });
    talk.run(()).on("*.*", move |_: &mut crate::support::Any, _| assert_eq!(Arc::strong_count(&hold), 2)).await?;
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!((tree.listener_count(), emitter_of(&talk).listener_count()), (0, 0));
    Ok(())
}

// R2, R9, E4
#[tokio::test]
async fn an_event_of_a_nameless_child_of_a_runs_emitter_is_an_own_event_of_the_run() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let chat = below(&tree, "chat", |(), ctx: RunContext| async move {
        ctx.emitter().set_context("step", 1)?;
        ctx.emitter().child(())?.emit("ping", &mut ()).await?;
        ctx.emitter().child_builder(()).group_id("own").build()?.emit("ping", &mut ()).await?;
        Ok(())
    });
    let note = |label: &'static str| {
        let recorder = recorder.clone();
        move |(): &(), meta: &EventMeta<'_>| {
            let run = RunContext::current().map(|ctx| ctx.run_id());
            let is_its_run = run.is_some() && run == meta.trace().map(|trace| trace.run_id);
            let step = meta.context().get("step").cloned();
            recorder.note(format!("{label} {} {is_its_run} {step:?} {:?}", meta.path(), meta.group_id()));
        }
    };
    emitter_of(&chat).observe("ping", note("instance"))?;
    tree.observe("chat.ping", note("root"))?;
    chat.run(()).observe("ping", note("run")).observe("*", recorder.sees("own")).await?;
    let heard = |group: &str| {
        ["run", "own", "instance", "root"].map(|label| match label {
            "own" => "own chat.ping".to_owned(),
            _ => format!("{label} chat.ping true Some(Number(1)) {group}"),
        })
    };
    let expected = [heard("None"), heard("Some(\"own\")")].concat();
    recorder.expect(expected.iter().map(String::as_str));
    Ok(())
}
