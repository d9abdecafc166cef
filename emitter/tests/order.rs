//! The order in which listeners receive an event, each once (E5, E6, E10).

mod support;

use emitree_emitter::{AnyEvent, BoxError, Emitter, Options};

use crate::support::{Recorder, TestResult, block_on, emit, run_of, run_within};

/// E5: order(e) = e, then order(tree parent), then order(run parent), then order of each pipe. An emitter that occurs
/// several times keeps its last place. The pipe of `tool` is therefore part of the order of `tool`, before the run
/// parent, and the pipe of the run is last, after the root.
#[test]
fn an_event_rises_through_the_tree_parent_then_the_run_parent_then_the_pipes() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let (agent, tool) = (root.child("agent")?, root.child("tool")?);
    let agent_run = run_of(&agent);
    let tool_run = run_within(&tool, &agent_run);
    let (first, second) = (Emitter::new().child("first")?, root.child("second")?);
    let all = [
        ("root", &root),
        ("agent", &agent),
        ("tool", &tool),
        ("agent run", &agent_run),
        ("tool run", &tool_run),
        ("first", &first),
        ("second", &second),
    ];
    for (who, emitter) in all {
        emitter.on("*.*", recorder.hears(who))?;
        emitter.on("start", recorder.hears(format!("{who}, own:")))?;
    }
    emit(&tool_run, "start");
    recorder.expect([
        "tool run tool.start",
        "tool run, own: tool.start",
        "tool tool.start",
        "tool, own: tool.start",
        "agent run tool.start",
        "agent tool.start",
        "root tool.start",
    ]);
    tool_run.pipe(&first);
    tool.pipe(&second);
    emit(&tool_run, "start");
    recorder.expect([
        "tool run tool.start",
        "tool run, own: tool.start",
        "tool tool.start",
        "tool, own: tool.start",
        "second tool.start",
        "agent run tool.start",
        "agent tool.start",
        "root tool.start",
        "first tool.start",
    ]);
    Ok(())
}

/// E5: the whole order of the tree parent, including its own run parent, comes before the order of the run parent.
#[test]
fn the_runs_of_the_tree_parent_come_before_the_run_parent() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let outer = run_of(&root.child("outer")?);
    let inner = run_within(&root.child("inner")?, &outer);
    let other = run_of(&root.child("other")?);
    let source = run_within(&inner.child("part")?, &other);
    for (who, emitter) in
        [("root", &root), ("outer", &outer), ("inner", &inner), ("other", &other), ("source", &source)]
    {
        emitter.on("*.*", recorder.hears(who))?;
    }
    emit(&source, "x");
    let expected = ["source", "inner", "outer", "other", "root"].map(|who| format!("{who} inner.part.x"));
    recorder.expect(expected.iter().map(String::as_str));
    other.pipe(&Emitter::new());
    emit(&source, "x");
    recorder.expect(expected.iter().map(String::as_str));
    Ok(())
}

/// E5: neither the nested run nor its instance has listeners, so only the order of the parent run remains.
#[test]
fn events_of_a_run_without_listeners_are_received_in_the_order_of_its_parent_run() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let agent = root.child("agent")?;
    let run = run_of(&agent);
    for (who, emitter) in [("root", &root), ("agent", &agent), ("run", &run)] {
        emitter.on("*.*", recorder.hears(who))?;
    }
    emit(&run_within(&root.child("tool")?, &run), "start");
    recorder.expect(["run tool.start", "agent tool.start", "root tool.start"]);
    Ok(())
}

/// E5: the order on one emitter.
#[test]
fn listeners_are_called_in_order_of_priority_and_then_of_registration() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    for (who, priority) in [("a", 0), ("b", -1), ("c", 5), ("d", 0), ("e", 5), ("f", i32::MIN), ("g", i32::MAX)] {
        emitter.with(Options::new().priority(priority)).on("*", recorder.hears(who))?;
    }
    emit(&emitter, "x");
    recorder.expect(["g x", "c x", "e x", "a x", "d x", "b x", "f x"]);
    Ok(())
}

/// E5: `on` and `on_async` share one order. An async listener is awaited before the next listener starts.
#[test]
fn sync_and_async_listeners_share_one_order_and_run_one_after_the_other() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    emitter.on_async("*", recorder.hears_async("first"))?;
    emitter.on("*", recorder.hears("second"))?;
    emitter.on_async("*", recorder.hears_async("third"))?;
    emitter.with(Options::new().priority(1)).on("*", recorder.hears("zeroth"))?;
    emit(&emitter, "x");
    recorder.expect(["zeroth x", "first x", "first done", "second x", "third x", "third done"]);
    Ok(())
}

/// E5: observers run after all listeners that may change the event. Priorities and emitters make no difference.
#[test]
fn all_listeners_that_may_change_an_event_run_before_all_observers() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let child = root.child("child")?;
    child.with(Options::new().priority(9)).observe("*", recorder.sees("child sees"))?;
    child.on("*", recorder.hears("child"))?;
    root.observe("*.*", recorder.sees("root sees"))?;
    root.on_async("*.*", recorder.hears_async("root"))?;
    emit(&child, "x");
    recorder.expect(["child child.x", "root child.x", "root done", "child sees child.x", "root sees child.x"]);

    child.on("n", |n: &mut u32, _| *n *= 2)?;
    root.on("*.*", |n: &mut u32, _| *n += 1)?;
    let note = recorder.clone();
    child.with(Options::new().priority(10)).observe("n", move |n: &u32, _| note.note(format!("saw {n}")))?;
    block_on(child.emit("n", &mut 20_u32))?;
    let seen = ["child child.n", "root child.n", "root done", "saw 41", "child sees child.n", "root sees child.n"];
    recorder.expect(seen);
    Ok(())
}

/// E5: observers start in the order in which other listeners are called. Async observers run together, and all
/// observers have ended when the emit returns.
#[test]
fn async_observers_start_in_order_run_together_and_are_awaited() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let child = root.child("child")?;
    child.observe_async("*", recorder.sees_async("first"))?;
    child.observe("*", recorder.sees("second"))?;
    child.observe_async("*", recorder.sees_async("third"))?;
    root.observe_async("*.*", recorder.sees_async("fourth"))?;
    emit(&child, "x");
    let heard = recorder.take();
    assert_eq!(heard[..4], ["first child.x", "second child.x", "third child.x", "fourth child.x"]);
    let mut ends = heard[4..].to_vec();
    ends.sort();
    assert_eq!(ends, ["first done", "fourth done", "third done"], "in whatever order");
    Ok(())
}

/// E6.
#[test]
fn an_emitter_receives_an_event_at_most_once_however_many_ways_lead_to_it() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let (a, b, c) = (root.child("a")?, root.child("b")?, root.child("c")?);
    for (who, emitter) in [("root", &root), ("a", &a), ("b", &b), ("c", &c)] {
        emitter.on("*.*", recorder.hears(who))?;
    }
    for (from, to) in [(&a, &b), (&a, &c), (&b, &c), (&c, &a), (&root, &a), (&a, &a)] {
        from.pipe(to);
        from.pipe(to);
    }
    emit(&a, "x");
    recorder.expect(["a a.x", "b a.x", "c a.x", "root a.x"]);
    emit(&root, "x");
    recorder.expect(["root x", "a x", "b x", "c x"]);
    Ok(())
}

/// E6: more than `MAX_WALK` emitters are above the run, so a search replaces the walk. Every 250th run has a listener.
#[test]
fn an_event_in_a_thousand_nested_runs_reaches_each_listener_above_once() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let instance = root.child("agent")?;
    root.on("*.*", recorder.hears("root"))?;
    instance.on("*.*", recorder.hears("agent"))?;
    let outermost = run_of(&instance);
    outermost.on("*.*", recorder.hears("outermost"))?;
    let mut innermost = outermost;
    for depth in 1..=1000 {
        innermost = run_within(&instance, &innermost);
        if depth % 250 == 0 {
            innermost.on("*.*", recorder.hears(format!("run {depth}")))?;
        }
    }
    emit(&innermost, "x");
    recorder.expect([
        "run 1000 agent.x",
        "run 750 agent.x",
        "run 500 agent.x",
        "run 250 agent.x",
        "outermost agent.x",
        "agent agent.x",
        "root agent.x",
    ]);
    Ok(())
}

/// E10.
#[test]
fn a_listener_that_is_registered_during_an_emit_receives_the_next_event() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let child = root.child("child")?;
    let (late, child_too, root_too) = (recorder.clone(), child.clone(), root.clone());
    child.with(Options::new().once()).on("*", move |_: &mut dyn AnyEvent, _| -> Result<(), BoxError> {
        late.note("registering");
        child_too.on("*", late.hears("late, same emitter:"))?;
        root_too.on("*.*", late.hears("late, above:"))?;
        root_too.observe("*.*", late.sees("late, observing:"))?;
        let aside = Emitter::new();
        aside.on("*.*", late.hears("late, by a pipe:"))?;
        root_too.pipe(&aside);
        Ok(())
    })?;
    emit(&child, "x");
    recorder.expect(["registering"]);
    emit(&child, "x");
    recorder.expect([
        "late, same emitter: child.x",
        "late, above: child.x",
        "late, by a pipe: child.x",
        "late, observing: child.x",
    ]);
    Ok(())
}

/// The inner emit calls all its listeners before the outer emit continues.
#[test]
fn a_listener_may_emit_on_its_own_emitter() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    let inner = emitter.clone();
    emitter.on("countdown", move |n: &mut u32, _| -> Result<(), BoxError> {
        if *n > 0 {
            inner.emit_now("countdown", &mut (*n - 1))?;
        }
        Ok(())
    })?;
    let inner = emitter.clone();
    emitter.on_async("outer", move |_: &mut (), _| {
        let inner = inner.clone();
        Box::pin(async move { Ok(inner.emit("inner", &mut ()).await?) })
    })?;
    emitter.observe("*", recorder.sees("seen"))?;
    emitter.emit_now("countdown", &mut 2_u32)?;
    recorder.expect(["seen countdown", "seen countdown", "seen countdown"]);
    emit(&emitter, "outer");
    recorder.expect(["seen inner", "seen outer"]);
    Ok(())
}
