//! The tree of emitters: paths, names, and inherited properties (E1–E4).

mod support;

use std::sync::Arc;

use emitree_emitter::rt::RunLinks;
use emitree_emitter::{AnyEvent, BuildError, Context, Creator, Emitter, EventName, Namespace, Trace, new_id};
use serde_json::{Value, json};

use crate::support::{Recorder, TestResult, block_on, emit, run_of, run_within};

/// E1.
#[test]
fn a_path_lists_segments_from_the_root_and_an_event_rises_from_its_source() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let backend = root.child("backend")?;
    let chat = backend.child("chat")?;
    for (who, emitter) in [("root", &root), ("backend", &backend), ("chat", &chat)] {
        emitter.on("*.*", recorder.hears(who))?;
    }
    emit(&chat, "start");
    recorder.expect(["chat backend.chat.start", "backend backend.chat.start", "root backend.chat.start"]);
    emit(&backend, "start");
    recorder.expect(["backend backend.start", "root backend.start"]);
    emit(&root, "start");
    recorder.expect(["root start"]);
    Ok(())
}

/// E1.
#[test]
fn the_process_has_one_root_and_new_starts_an_isolated_tree() {
    assert_eq!(Emitter::root(), Emitter::root());
    assert_ne!(Emitter::new(), Emitter::new());
    assert_ne!(Emitter::new(), Emitter::root());
    assert_eq!((Emitter::root().namespace(), Emitter::root().parent()), ("", None));
}

/// E1.
#[test]
fn a_child_keeps_its_parent_alive_but_a_parent_does_not_keep_its_children_alive() -> TestResult {
    let recorder = Recorder::new();
    let leaf = {
        let root = Emitter::new();
        root.on("*.*", recorder.hears("root"))?;
        root.child("a")?.child("b")?
    };
    emit(&leaf, "start");
    recorder.expect(["root a.b.start"]);

    let (root, held) = (Emitter::new(), Arc::new(()));
    let child = root.child("gone")?;
    let captured = Arc::clone(&held);
    child.on("*", move |_: &mut dyn AnyEvent, _| drop(Arc::clone(&captured)))?;
    drop(child);
    assert_eq!(Arc::strong_count(&held), 1, "the child went, and its listener with it");
    Ok(())
}

/// E2.
#[test]
fn an_invalid_name_is_an_error_that_quotes_it_in_each_method_that_takes_a_name() {
    let emitter = Emitter::new();
    for bad in ["", ".", "a.", ".a", "a..b", "new token", "a-b", "größe", "*", "a/b", "a\n"] {
        let quoted = format!("`{bad}`");
        let errors = [
            emitter.child(bad).expect_err(bad).to_string(),
            emitter.path_of(bad).expect_err(bad).to_string(),
            emitter.emit_now(bad, &mut ()).expect_err(bad).to_string(),
            block_on(emitter.emit(bad, &mut ())).expect_err(bad).to_string(),
            emitter.child_builder(bad).build().expect_err(bad).to_string(),
            Emitter::builder().declares::<()>(bad).build().expect_err(bad).to_string(),
            EventName::try_new(bad).expect_err(bad).to_string(),
        ];
        for error in errors {
            assert!(error.contains(&quoted), "{bad:?}: {error}");
        }
    }
}

/// E2.
#[test]
fn a_name_can_be_checked_in_a_const() -> TestResult {
    const START: EventName = EventName::new("start");
    const RUN_START: EventName = EventName::new("run.start");
    const CHAT: Namespace = Namespace::new("backend.chat");
    let chat = Emitter::new().child_of(CHAT);
    assert_eq!(chat.path_of(START)?, "backend.chat.start");
    assert_eq!(chat.path_of(RUN_START)?, "backend.chat.run.start");
    assert_eq!(EventName::try_new("start")?, START);
    Ok(())
}

/// E3.
#[test]
fn a_child_can_have_a_dotted_name_several_segments_or_the_namespace_of_its_parent() -> TestResult {
    let root = Emitter::new();
    let one = root.child("backend.chat")?;
    for same in
        [root.child(["backend", "chat"])?, root.child(&["backend", "chat"][..])?, root.child("backend")?.child("chat")?]
    {
        assert_eq!(same.namespace(), one.namespace());
        assert_ne!(same, one, "equal only when it is the same one");
    }
    assert_eq!(one.clone(), one);
    assert_eq!(
        (one.child(())?.namespace(), one.child_with(Creator::new("Tool", "read")).namespace()),
        (one.namespace(), one.namespace())
    );
    assert!(one.child([""; 0]).is_err() && one.child(["a", ""]).is_err());
    assert_eq!(one.path_of("start")?, "backend.chat.start");
    Ok(())
}

/// E3, E4: an emitter whose namespace is long keeps only its own name, and equal namespaces may be joined from different
/// names.
#[test]
fn a_long_namespace_is_that_of_the_names_on_the_way() -> TestResult {
    let long = "n".repeat(100);
    for others in [0, 20] {
        let (root, recorder) = (Emitter::new(), Recorder::new());
        for i in 0..others {
            root.on(format!("other_{i}*"), recorder.hears("other"))?;
        }
        let dotted = format!("{long}.{long}.a.b.{long}");
        root.on(format!("{dotted}.x"), recorder.hears("path"))?;
        root.on(format!("**.b.{long}.x"), recorder.hears("glob"))?;
        root.on(format!("n{dotted}.x"), recorder.hears("longer path"))?;
        root.on(format!("{long}.a.b.{long}.x"), recorder.hears("shorter path"))?;
        let at_once = root.child(&dotted)?;
        let in_two = root.child(format!("{long}.{long}"))?.child(format!("a.b.{long}"))?;
        let in_steps = root.child(&long)?.child([&*long, "a"])?.child(())?.child("b")?.child(&long)?;
        for emitter in [at_once, in_two, in_steps] {
            // The second emit finds the match of the first.
            for _ in 0..2 {
                emit(&emitter, "x");
                recorder.expect([&*format!("path {dotted}.x"), &*format!("glob {dotted}.x")]);
            }
            assert_eq!(emitter.path_of("x")?, format!("{dotted}.x"));
            assert_eq!(emitter.namespace(), dotted);
            assert_eq!(emitter.child("c")?.namespace(), format!("{dotted}.c"));
        }
    }
    Ok(())
}

/// E3.
#[test]
fn a_child_inherits_context_group_creator_and_trace_unless_given_its_own() -> TestResult {
    let trace = Trace { id: new_id(), run_id: new_id(), parent_run_id: None };
    let (creator, group) = (Creator::new("Agent", "desk"), "g1");
    let top = Emitter::builder()
        .context(json!({"user": 1, "kept": true}))
        .creator(creator.clone())
        .group_id(group)
        .trace(trace)
        .build()?;
    let plain = top.child("plain")?;
    assert_eq!(context(&plain), json!({"user": 1, "kept": true}));
    assert_eq!((plain.creator(), plain.group_id(), plain.trace()), (Some(&creator), Some(group), Some(trace)));

    let own_trace = Trace { id: new_id(), ..trace };
    let tool = Creator::new("Tool", "read");
    let own = top
        .child_builder("own")
        .context(json!({"user": 2}))
        .creator(tool.clone())
        .group_id("g2")
        .trace(own_trace)
        .build()?;
    assert_eq!(context(&own), json!({"user": 2, "kept": true}), "merged, its own keys win");
    assert_eq!((own.creator(), own.group_id(), own.trace()), (Some(&tool), Some("g2"), Some(own_trace)));
    assert_ne!(Creator::new("Tool", "read"), tool, "equal only when it is the same one");
    Ok(())
}

/// E3.
#[test]
fn a_child_inherits_the_context_as_it_is_at_its_creation() -> TestResult {
    let top = Emitter::new();
    top.set_context("step", 1)?;
    let child = top.child("child")?;
    top.set_context("step", 2)?;
    assert_eq!(context(&child), json!({"step": 1}));
    assert_eq!(context(&top.child("later")?), json!({"step": 2}));
    child.set_context("own", "x")?;
    assert_eq!((context(&child), context(&top)), (json!({"step": 1, "own": "x"}), json!({"step": 2})));
    Ok(())
}

/// E3.
#[test]
fn set_group_id_applies_to_later_events_children_and_runs() -> TestResult {
    let (recorder, top) = (Recorder::new(), Emitter::builder().group_id("given").build()?);
    let note = recorder.clone();
    top.on("x", move |(): &mut (), meta| note.note(meta.group_id().unwrap_or("none")))?;
    let early = top.child("early")?;
    emit(&top, "x");
    std::thread::scope(|scope| {
        for i in 0..8 {
            let top = &top;
            scope.spawn(move || top.set_group_id(format!("{i}")));
        }
    });
    (0..1_000).for_each(|_| top.set_group_id("set"));
    emit(&top, "x");
    recorder.expect(["given", "set"]);
    let late = [top.child("late")?, run_of(&top), top.child_builder("late").build()?];
    assert_eq!((top.group_id(), early.group_id()), (Some("set"), Some("given")));
    assert!(late.iter().all(|late| late.group_id() == Some("set")));
    assert_eq!(top.child_builder("own").group_id("own").build()?.group_id(), Some("own"));
    Ok(())
}

/// E3: the run is a child of its instance, and was started in another run.
#[test]
fn a_run_inherits_from_its_instance_and_from_the_run_that_started_it() -> TestResult {
    let root = Emitter::builder().group_id("all").build()?;
    let (outer, inner) = (root.child("outer")?, root.child("inner")?);
    inner.set_context("instance", 1)?;
    let parent = outer.for_run(RunLinks::new().group_id("session").context(json!({"instance": 0, "run": 1}).into())?);
    let run = inner.for_run(RunLinks::new().parent(&parent).context(json!({"own": 1}).into())?);
    assert_eq!(context(&run), json!({"instance": 0, "run": 1, "own": 1}));
    assert_eq!((run.namespace(), run.group_id()), ("inner", Some("session")));
    assert_eq!(run_of(&inner).group_id(), Some("all"));

    let (above, below) = (parent.trace().expect("a run has a trace"), run.trace().expect("a run has a trace"));
    assert_eq!((above.id, above.parent_run_id), (above.run_id, None), "an outermost run starts a trace");
    assert_eq!((below.id, below.parent_run_id), (above.id, Some(above.run_id)));
    assert_eq!(run.child("part")?.trace(), Some(below), "what is below a run happens in it");
    assert_ne!(run_within(&inner, &parent).trace(), Some(below));
    Ok(())
}

/// E3, R3: the key `internal` is reserved for the runtime.
#[test]
fn the_reserved_context_key_is_refused_by_each_method_that_sets_a_context() {
    let (emitter, reserved) = (Emitter::new(), json!({"internal": true}));
    let refused = [
        emitter.set_context("internal", true).expect_err("reserved"),
        Emitter::builder().context(reserved.clone()).build().expect_err("reserved"),
        emitter.child_builder("a").context(reserved.clone()).build().expect_err("reserved"),
        RunLinks::new().context(Context::from(reserved)).expect_err("reserved"),
    ];
    for error in refused {
        assert!(matches!(&error, BuildError::ReservedKey("internal")) && error.to_string().contains("`internal`"));
    }
}

/// E3.
#[test]
fn a_creator_returns_its_shared_value_if_the_type_is_right() -> TestResult {
    let thing = Arc::new(vec![1, 2]);
    let shared = Arc::clone(&thing);
    let emitter = Emitter::builder().creator(Creator::of("List", "numbers", Arc::clone(&thing))).build()?.child("a")?;
    emitter.on("look", move |is_shared: &mut bool, meta| {
        let creator = meta.creator().expect("it was given one");
        assert_eq!((creator.kind(), creator.name(), creator.thing::<String>()), ("List", "numbers", None));
        *is_shared = creator.thing::<Vec<i32>>().is_some_and(|value| std::ptr::eq(value, Arc::as_ptr(&shared)));
    })?;
    let mut is_shared = false;
    emitter.emit_now("look", &mut is_shared)?;
    assert!(is_shared, "not a copy");
    Ok(())
}

fn context(emitter: &Emitter) -> Value {
    serde_json::to_value(emitter.context()).expect("a context is JSON")
}

/// E3: properties of emitters above are looked up in a loop instead of by recursion.
#[test]
fn the_last_of_100_000_nested_runs_has_the_trace_and_group_of_the_first() -> TestResult {
    let instance = Emitter::new().child("agent")?;
    let first = instance.for_run(RunLinks::new().group_id("session"));
    let mut above = run_of(&instance);
    let mut last = first.clone();
    for _ in 0..100_000 {
        let run = run_within(&instance, &last);
        above = std::mem::replace(&mut last, run);
    }
    let trace = last.trace().expect("it is a run's");
    let id_of = |run: &Emitter| run.trace().expect("it is a run's").run_id;
    assert_eq!((trace.id, trace.parent_run_id), (id_of(&first), Some(id_of(&above))));
    assert_eq!(last.group_id(), Some("session"));
    Ok(())
}

/// E4, R2: a `()` child of a run's emitter emits for the run.
#[test]
fn events_of_a_nameless_child_of_a_runs_emitter_are_own_events_of_the_run() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let instance = root.child("chat")?;
    let outer = run_of(&root.child("agent")?);
    let run = run_within(&instance, &outer);
    for (label, emitter) in [("run", &run), ("instance", &instance), ("outer", &outer), ("root", &root)] {
        for matcher in ["ping", "*", "p*", "chat.ping"] {
            emitter.observe(matcher, recorder.sees(format!("{label} {matcher}")))?;
        }
    }
    let children = [
        run.child(())?,
        run.child(())?.child(())?,
        run.child_builder(()).context(json!({ "step": 1 })).group_id("own").build()?,
    ];
    for emitter in [&run].into_iter().chain(&children) {
        emit(emitter, "ping");
        recorder.expect([
            "run ping chat.ping",
            "run * chat.ping",
            "run p* chat.ping",
            "run chat.ping chat.ping",
            "instance ping chat.ping",
            "instance * chat.ping",
            "instance p* chat.ping",
            "instance chat.ping chat.ping",
            "outer chat.ping chat.ping",
            "root chat.ping chat.ping",
        ]);
        assert_eq!(emitter.trace(), run.trace());
    }
    let trace = Trace { id: new_id(), run_id: new_id(), parent_run_id: None };
    let others = [
        run.child("part")?,
        run.child(())?.child("part")?,
        run.child_with(Creator::new("Tool", "read")),
        run.child_builder(()).creator(Creator::new("Tool", "read")).build()?,
        run.child_builder(()).trace(trace).build()?,
        instance.child(())?,
        run_of(&run.child(())?),
    ];
    for emitter in &others {
        emit(emitter, "ping");
        assert!(recorder.take().iter().all(|line| line.contains(" chat.ping ")), "not the run's own");
    }
    Ok(())
}

/// E4: two `()` children of a run's emitter do not receive each other's events. The run's declarations apply to both.
#[test]
fn a_nameless_child_of_a_runs_emitter_has_its_own_listeners_and_the_runs_declarations() -> TestResult {
    let recorder = Recorder::new();
    let run = run_of(&Emitter::builder().declares::<()>("ping").build()?);
    let (one, other) = (run.child(())?, run.child(())?);
    one.observe("ping", recorder.sees("one"))?;
    other.observe("ping", recorder.sees("other"))?;
    run.observe("ping", recorder.sees("run"))?;
    emit(&one, "ping");
    emit(&run, "ping");
    recorder.expect(["one ping", "run ping", "run ping"]);
    let error = one.emit_now("ping", &mut 1_u8).expect_err("another type");
    assert!(error.to_string().contains("`ping` is declared with payload `()`"), "{error}");
    assert!(one.on("ping", |_: &mut u8, _| ()).is_err());
    Ok(())
}
