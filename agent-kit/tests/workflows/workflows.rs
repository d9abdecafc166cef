//! Workflows: where each `Goto` leads, the state of steps that fail, events, and ends in the middle (A20).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use emitree_agent::{Agent, ChatModel, ScriptedModel};
use emitree_agent_kit::workflow::{
    Goto, Step, StepFailure, StepOutput, StepStart, StepSuccess, Workflow, WorkflowBuilder, WorkflowOutput, ask,
    sub_workflow,
};
use emitree_emitter::AnyEvent;
use emitree_middleware::store::MemoryStore;
use emitree_middleware::{Durable, ExfilGuard, Retry, Runs, Timeout, Trajectory};
use emitree_runtime::{
    AbortHandle, Error, Result, Run, RunContext, Runnable, for_tree, map_output, runnable_fn, wait_for_ends,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::support::Log;

/// A state whose steps take the next `Goto` of a script, and end the workflow if there is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Script {
    then: Vec<Goto>,
    done: Vec<String>,
}

impl Script {
    fn new(then: impl IntoIterator<Item = Goto>) -> Self {
        Self { then: then.into_iter().collect(), done: Vec::new() }
    }
}

/// A step that follows the script.
fn scripted(name: &'static str) -> impl for<'a> Fn(&'a mut Script, &'a RunContext) -> BoxFuture<'a, Result<Goto>> {
    move |state, _| {
        Box::pin(async move {
            state.done.push(name.to_owned());
            Ok(if state.then.is_empty() { Goto::End } else { state.then.remove(0) })
        })
    }
}

fn a_b_c() -> WorkflowBuilder<Script> {
    ["a", "b", "c"].into_iter().fold(Workflow::builder("letters"), |flow, name| flow.step(name, scripted(name)))
}

fn to(name: &str) -> Goto {
    Goto::To(name.into())
}

/// Logs the own events of the workflow `letters`, as in `success a -> b {…}`.
fn logged<'a>(run: Run<'a, Workflow<Script>>, log: &Log) -> Run<'a, Workflow<Script>> {
    let [started, succeeded, failed] = [(); 3].map(|()| log.clone());
    run.observe("start", move |start: &StepStart, _| started.add(format!("start {} {}", start.number, start.step)))
        .observe("success", move |success: &StepSuccess<Script>, _| {
            let next = success.next.as_deref().unwrap_or("end");
            succeeded.add(format!("success {} -> {next} {}", success.step, success.state.done.concat()));
        })
        .observe("error", move |failure: &StepFailure<Script>, _| {
            let error = &failure.error.message;
            failed.add(format!("error {}: {error} {}", failure.step, failure.state.done.concat()));
        })
}

#[tokio::test]
async fn each_goto_leads_where_it_says() -> Result<()> {
    use Goto::{End, Next, Prev, Same, Start};
    let table = [
        ("a", vec![], "a"),
        ("a", vec![Next], "ab"),
        ("a", vec![Next, Next], "abc"),
        ("a", vec![Next, Next, Next], "abc"),
        ("a", vec![Next, End, Next], "ab"),
        ("a", vec![Same, Same, Next], "aaab"),
        ("a", vec![Next, Prev, Next], "abab"),
        ("a", vec![to("c"), Prev, Prev], "acba"),
        ("a", vec![to("c"), to("a"), to("a")], "acaa"),
        ("b", vec![Next, Start, Prev], "bcba"),
        ("b", vec![Prev, Start, End], "bab"),
        ("c", vec![Next, Next], "c"),
        ("c", vec![Start, to("b"), Start], "ccbc"),
    ];
    for (start, script, path) in table {
        let flow = a_b_c().start(start).build()?;
        let done = flow.run(Script::new(script.clone())).await?;
        assert_eq!(done.state.done.concat(), path, "{start} {script:?}");
        let names: String = done.steps.iter().map(|(step, _)| &**step).collect();
        assert_eq!(names, path, "{start} {script:?}");
        let gone = done.steps.into_iter().map(|(_, next)| next);
        let expected = script.iter().cloned().chain([End]).take(path.len());
        assert_eq!(gone.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{start} {script:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_goto_that_leads_nowhere_fails_the_run_with_the_steps_and_after_an_error_event() -> Result<()> {
    let table = [
        (Goto::Prev, "the step `a` of the workflow `letters` returned `Goto::Prev`, but is the first step"),
        (to("aa"), "the step `a` of the workflow `letters` returned `Goto::To(\"aa\")`, but there is no such step"),
    ];
    for (next, expected) in table {
        let (flow, log) = (a_b_c().build()?, Log::default());
        let error = logged(flow.run(Script::new([next])), &log).await.unwrap_err().to_string();
        assert_eq!(error, format!("{expected}; its steps are `a`, `b`, `c`"));
        assert_eq!(log.lines(), ["start 1 a".to_owned(), format!("error a: {error} ")]);
    }
    Ok(())
}

#[tokio::test]
async fn a_run_that_needs_more_than_max_steps_fails_and_takes_no_step_more() -> Result<()> {
    let (flow, log) = (a_b_c().max_steps(3).build()?, Log::default());
    let enough = [Goto::Next, Goto::Prev];
    assert_eq!(flow.run(Script::new(enough.clone())).await?.steps.len(), 3);
    let run = flow.run(Script::new(enough.into_iter().chain([to("c")])));
    let error = logged(run, &log).await.unwrap_err().to_string();
    let expected = "the workflow `letters` has not ended after 3 steps, and `c` would follow: allow more with \
                    `max_steps`, or return `Goto::End`; its steps are `a`, `b`, `c`";
    assert_eq!(error, expected);
    let expected =
        ["start 1 a", "success a -> b a", "start 2 b", "success b -> a ab", "start 3 a", "success a -> c aba"];
    assert_eq!(log.lines(), expected);
    Ok(())
}

// Without another limit, a hundred steps.
#[tokio::test]
async fn a_step_that_always_repeats_itself_ends_after_a_hundred_steps() -> Result<()> {
    let flow = Workflow::builder("count").step("more", |n: &mut u32, _| {
        *n += 1;
        let next = if *n > 100 { Err(Error::new("too late")) } else { Ok(Goto::Same) };
        Box::pin(async { next })
    });
    let flow = flow.build()?;
    let error = flow.run(0).await.unwrap_err().to_string();
    assert!(error.contains("has not ended after 100 steps"), "{error}");
    Ok(())
}

// If a step were run inside the step before it, each would use some of the stack.
#[tokio::test]
async fn a_thousand_steps_use_no_more_of_the_stack_than_one() -> Result<()> {
    let [highest, lowest] = [0, usize::MAX].map(|at| Arc::new(AtomicUsize::new(at)));
    let (high, low) = (Arc::clone(&highest), Arc::clone(&lowest));
    let flow = Workflow::builder("long")
        .step("hop", move |n: &mut u32, _| {
            let here = 0_u8;
            let at = std::ptr::from_ref(&here) as usize;
            high.fetch_max(at, Ordering::Relaxed);
            low.fetch_min(at, Ordering::Relaxed);
            *n += 1;
            let next = if *n < 1_000 { Goto::Same } else { Goto::End };
            Box::pin(async move { Ok(next) })
        })
        .max_steps(1_000)
        .build()?;
    let done = flow.run(0).await?;
    assert_eq!((done.state, done.steps.len()), (1_000, 1_000));
    let used = highest.load(Ordering::Relaxed) - lowest.load(Ordering::Relaxed);
    assert!(used < 4_096, "{used} bytes of stack");
    Ok(())
}

#[tokio::test]
async fn a_step_that_fails_ends_the_run_and_its_error_event_has_the_state_before_it() -> Result<()> {
    let names = ["a", "b", "c"];
    for fails in 0..names.len() {
        let flow = names.into_iter().enumerate().fold(Workflow::builder("letters"), |flow, (at, name)| {
            flow.step(name, move |state: &mut Script, _| {
                Box::pin(async move {
                    state.done.push(name.to_owned());
                    if at == fails { Err(Error::new("broken").detail("at", at)) } else { Ok(Goto::Next) }
                })
            })
        });
        let (flow, log) = (flow.build()?, Log::default());
        let error = logged(flow.run(Script::default()), &log).await.unwrap_err();
        assert_eq!(error.explain(), format!("broken\n  at: {fails}\n  step: \"{}\"", names[fails]));
        let mut expected = Vec::new();
        for at in 0..fails {
            expected.push(format!("start {} {}", at + 1, names[at]));
            expected.push(format!("success {} -> {} {}", names[at], names[at + 1], names[..=at].concat()));
        }
        expected.push(format!("start {} {}", fails + 1, names[fails]));
        expected.push(format!("error {}: broken {}", names[fails], names[..fails].concat()));
        assert_eq!(log.lines(), expected);
    }
    Ok(())
}

#[tokio::test]
async fn each_step_is_a_run_of_its_own_below_the_workflow() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let flow = a_b_c().build()?;
    let run = flow.run(Script::new([Goto::Next])).observe("*.*", move |_: &dyn AnyEvent, meta| {
        let creator =
            meta.creator().map_or_else(String::new, |creator| format!("{} {}", creator.kind(), creator.name()));
        to.add(format!("{} {creator}", meta.path()));
    });
    run.await?;
    let expected = [
        "workflow.letters.run.start Workflow letters",
        "workflow.letters.start Workflow letters",
        "workflow.letters.a.run.start Step a",
        "workflow.letters.a.run.success Step a",
        "workflow.letters.a.run.finish Step a",
        "workflow.letters.success Workflow letters",
        "workflow.letters.start Workflow letters",
        "workflow.letters.b.run.start Step b",
        "workflow.letters.b.run.success Step b",
        "workflow.letters.b.run.finish Step b",
        "workflow.letters.success Workflow letters",
        "workflow.letters.run.success Workflow letters",
        "workflow.letters.run.finish Workflow letters",
    ];
    assert_eq!(log.lines(), expected);
    Ok(())
}

#[tokio::test]
async fn a_listener_of_start_or_success_that_fails_ends_the_run() -> Result<()> {
    let (flow, log) = (a_b_c().build()?, Log::default());
    let run = flow.run(Script::new([Goto::Next])).on("start", |start: &mut StepStart, _| {
        if &*start.step == "b" { Err(Error::new("not b").into()) } else { Ok(()) }
    });
    assert_eq!(logged(run, &log).await.unwrap_err().to_string(), "not b");
    let run = flow.run(Script::new([Goto::Next]));
    let run = run.on("success", |_: &mut StepSuccess<Script>, _| Err(Error::new("not so").into()));
    assert_eq!(logged(run, &log).await.unwrap_err().to_string(), "not so");
    let expected = ["start 1 a", "success a -> b a", "start 2 b", "error b: not b a", "start 1 a", "success a -> b a"];
    assert_eq!(log.lines(), expected);
    Ok(())
}

#[tokio::test]
async fn listeners_of_the_runs_own_start_and_of_the_steps_start_do_not_disturb_each_other() -> Result<()> {
    let (flow, log) = (a_b_c().build()?, Log::default());
    let run = flow.run(Script::default()).on_start(|start, _| start.input.then = vec![Goto::Next]);
    let run = logged(run, &log).on_success(|success, _| success.output.state.done.push("!".to_owned()));
    assert_eq!(run.await?.state.done.concat(), "ab!");
    assert_eq!(log.lines(), ["start 1 a", "success a -> b a", "start 2 b", "success b -> end ab"]);
    Ok(())
}

#[tokio::test]
async fn an_abort_between_two_steps_lets_no_further_step_begin() -> Result<()> {
    let ended = ["start 1 a", "run of a"];
    for (at, then) in
        [("step", &[][..]), ("success", &["success a -> b a"]), ("start", &["success a -> b a", "start 2 b"])]
    {
        let (handle, log) = (AbortHandle::new(), Log::default());
        let [in_step, in_success, in_start] = [(); 3].map(|()| handle.clone());
        let [in_a, in_b] = ["a", "b"].map(|name| (name, log.clone()));
        let flow = Workflow::builder("letters")
            .step("a", move |state: &mut Script, _| {
                if at == "step" {
                    in_step.abort("enough");
                }
                state.done.push("a".to_owned());
                Box::pin(async { Ok(Goto::Next) })
            })
            .step("b", |_: &mut Script, _| panic!("the step `b` begins"))
            .build()?;
        let run = [in_a, in_b].into_iter().fold(flow.run(Script::default()).abort_on(&handle), |run, (name, log)| {
            let path = format!("workflow.letters.{name}.run.start");
            run.observe(path, move |_: &dyn AnyEvent, _| log.add(format!("run of {name}")))
        });
        let run = logged(run, &log)
            .observe("success", move |_: &StepSuccess<Script>, _| _ = (at == "success") && in_success.abort("enough"))
            .observe("start", move |start: &StepStart, _| {
                _ = (at == "start" && start.number == 2) && in_start.abort("enough");
            });
        let error = run.await.unwrap_err();
        assert!(error.is_aborted() && error.to_string().contains("enough"), "{error}");
        assert_eq!(log.lines(), [&ended, then].concat(), "{at}");
    }
    Ok(())
}

#[tokio::test]
async fn dropping_the_run_drops_the_step_at_work_and_the_workflow_can_run_again() -> Result<()> {
    let (calls, log) = (Arc::new(AtomicU32::new(0)), Log::default());
    let flow = Workflow::builder("letters").step("a", move |state: &mut Script, _| {
        let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        Box::pin(async move {
            state.done.push("a".to_owned());
            if is_first {
                std::future::pending::<()>().await;
            }
            Ok(Goto::End)
        })
    });
    let (flow, to) = (flow.build()?, log.clone());
    let mut run = logged(flow.run(Script::default()), &log)
        .observe("**.run.error", move |_: &dyn AnyEvent, meta| to.add(meta.path()));
    assert!((&mut run).now_or_never().is_none());
    drop(run);
    assert!(wait_for_ends(Duration::from_secs(60)).await.is_complete());
    assert_eq!(log.lines(), ["start 1 a", "workflow.letters.a.run.error", "workflow.letters.run.error"]);
    assert_eq!(flow.run(Script::default()).await?.state.done, ["a"]);
    Ok(())
}

#[tokio::test]
async fn a_sub_workflow_that_fails_fails_its_step_and_leaves_the_outer_state() -> Result<()> {
    let inner = Workflow::builder("inner")
        .step("count", |n: &mut u32, _| {
            Box::pin(async move {
                *n += 1;
                if *n > 2 { Err(Error::new("at most 2")) } else { Ok(Goto::End) }
            })
        })
        .build()?;
    let back = |state: &mut Script, done: WorkflowOutput<u32>| {
        state.done.push(done.state.to_string());
        Goto::Same
    };
    let count = sub_workflow(&inner, |state: &Script| state.done.len().try_into().unwrap_or(0), back);
    let (flow, log) = (Workflow::builder("letters").step("inner", count).build()?, Log::default());
    let to = log.clone();
    let run = logged(flow.run(Script::default()), &log);
    let run = run.observe("workflow.inner.error", move |failure: &StepFailure<u32>, _| {
        to.add(format!("inner error {}: {} {}", failure.step, failure.error.message, failure.state));
    });
    assert_eq!(run.await.unwrap_err().explain(), "at most 2\n  step: \"count\"");
    let expected = [
        "start 1 inner",
        "success inner -> inner 1",
        "start 2 inner",
        "success inner -> inner 12",
        "start 3 inner",
        "inner error count: at most 2 2",
        "error inner: at most 2 12",
    ];
    assert_eq!(log.lines(), expected);
    Ok(())
}

#[tokio::test]
async fn a_step_asks_an_agent_and_takes_its_answer_into_the_state() -> Result<()> {
    let script = ScriptedModel::new("test").text("too short").text("ok").error(Error::new("no model"));
    let critic = Agent::builder("critic", ChatModel::new(script.clone())?).build()?;
    let check = ask(
        &critic,
        |state: &Script| state.done.join(", "),
        |state: &mut Script, answer| {
            state.done.push(answer.text());
            if answer.text() == "ok" { Goto::End } else { Goto::Prev }
        },
    );
    let flow = Workflow::builder("review").step("draft", scripted("draft")).step("check", check).build()?;
    let done = flow.run(Script::new([Goto::Next, Goto::Next])).await?;
    assert_eq!(done.state.done, ["draft", "too short", "draft", "ok"]);
    let asked: Vec<_> = script.requests().iter().map(|request| request.messages[0].text()).collect();
    assert_eq!(asked, ["draft", "draft, too short, draft"]);

    let error = flow.run(Script::new([Goto::Next])).await.unwrap_err();
    assert_eq!((error.to_string().as_str(), &error.details()["step"]), ("no model", &"check".into()));
    Ok(())
}

/// A workflow whose step `fetch` fails, waits or returns, as the number of the attempt says.
fn fetching(work: impl Fn(u32) -> BoxFuture<'static, Result<()>> + Send + Sync + 'static) -> Result<Workflow<Script>> {
    let (attempts, work) = (AtomicU32::new(0), Arc::new(work));
    Workflow::builder("letters")
        .step("a", scripted("a"))
        .step("fetch", move |state: &mut Script, _| {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
            state.done.push(attempt.to_string());
            let work = work(attempt);
            Box::pin(async move { work.await.map(|()| Goto::End) })
        })
        .build()
}

#[tokio::test(start_paused = true)]
async fn another_attempt_of_a_step_begins_with_the_state_before_the_step() -> Result<()> {
    let flow = fetching(|attempt| {
        let busy = (attempt < 3).then(|| Error::new("busy").retryable(true));
        std::future::ready(busy.map_or(Ok(()), Err)).boxed()
    })?;
    let log = Log::default();
    let run = flow.run(Script::new([Goto::Next])).middleware(for_tree(Runs::named("fetch").only(Retry::new())));
    assert_eq!(logged(run, &log).await?.state.done, ["a", "3"]);
    assert_eq!(log.lines(), ["start 1 a", "success a -> fetch a", "start 2 fetch", "success fetch -> end a3"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_a_guard_and_an_output_function_apply_to_the_step_that_they_name() -> Result<()> {
    let input = || Script::new([Goto::Next]);
    let hour = Duration::from_secs(3600);
    let flow = fetching(move |_| tokio::time::sleep(hour).boxed().map(Ok).boxed())?;
    let limit = |name| for_tree(Runs::named(name).only(Timeout::overall(Duration::from_secs(1))));
    let error = flow.run(input()).middleware(limit("fetch")).await.unwrap_err();
    assert!(error.is_timed_out() && error.details()["step"] == "fetch", "{error:?}");
    assert_eq!(flow.run(input()).middleware(limit("a")).await?.steps.len(), 2);

    let closed = |_: &RunContext| Err(Error::denied("hours", "closed"));
    let error = flow.run(input()).middleware(for_tree(Runs::named("fetch").only(closed))).await.unwrap_err();
    assert!(error.is_denied(), "{error:?}");

    let ends = map_output(|output: &mut StepOutput<Script>, _: &RunContext| {
        output.state.done.push("changed".to_owned());
        output.next = Goto::End;
        Ok(())
    });
    let done = flow.run(input()).middleware(for_tree(Runs::of_type::<Step<Script>>().only(ends))).await?;
    assert_eq!((done.state.done.concat(), &*done.steps), ("achanged".to_owned(), &[("a".into(), Goto::End)][..]));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_drops_an_attempt_of_the_workflow_leaves_the_step_at_work_without_an_end() -> Result<()> {
    let log = Log::default();
    let flow = fetching(|attempt| match attempt {
        1 => std::future::pending().boxed(),
        _ => std::future::ready(Ok(())).boxed(),
    })?;
    let limit = Timeout::per_attempt(Duration::from_secs(1));
    let run = flow.run(Script::new([Goto::Next])).middleware(Retry::new()).middleware(limit);
    assert_eq!(logged(run, &log).await?.state.done, ["a", "2"]);
    let first = ["start 1 a", "success a -> fetch a", "start 2 fetch"];
    assert_eq!(log.lines(), [&first[..], &first, &["success fetch -> end a2"]].concat());
    Ok(())
}

#[tokio::test]
async fn an_error_that_has_a_detail_step_keeps_it() -> Result<()> {
    let flow = Workflow::builder("counts")
        .step("count", |_: &mut u32, _| Box::pin(async { Err(Error::new("broken").detail("step", 7)) }))
        .build()?;
    let error = flow.run(0).await.unwrap_err();
    assert_eq!(error.explain(), "broken\n  step: 7");
    Ok(())
}

#[tokio::test]
async fn a_trajectory_shows_each_step_by_its_name() -> Result<()> {
    let (log, flow) = (Log::default(), a_b_c().build()?);
    let to = log.clone();
    let trajectory = Trajectory::builder().writer(std::io::sink()).build()?;
    trajectory
        .emitter()
        .observe("start", move |event: &dyn AnyEvent, _| to.add(event.to_json()["message"].to_string()))?;
    flow.run(Script::new([Goto::Next])).middleware(trajectory).await?;
    let named =
        |line: &String| ["Workflow[letters]", "Step[a]", "Step[b]"].into_iter().find(|name| line.contains(name));
    let shown: Vec<_> = log.lines().iter().filter_map(named).collect();
    assert_eq!(shown, ["Workflow[letters]", "Step[a]", "Step[b]"]);
    Ok(())
}

#[test]
fn a_workflow_that_cannot_run_is_refused_by_build() {
    let flow = |names: &[&'static str]| {
        names.iter().fold(Workflow::builder("letters"), |flow, name| flow.step(*name, scripted(name)))
    };
    let long = "a".repeat(197);
    let too_long = format!("cannot have a step called `{long}`: with its number, \"100-aaa");
    let table = [
        (Workflow::builder("letters").step(&long[1..], scripted("a")).step(&*long, scripted("a")), &*too_long),
        (flow(&[]), "the workflow `letters` has no steps: add one with `step(name, function)`"),
        (flow(&["a", ""]), "the workflow `letters` has a step with an empty name: name each step"),
        (flow(&["a", "b", "a"]), "the workflow `letters` has two steps called `a`"),
        (flow(&["a", "b"]).start("c"), "the workflow `letters` cannot start with `c`; its steps are `a`, `b`"),
        (flow(&["a"]).max_steps(0), "`max_steps(0)` allows the workflow `letters` no step: allow at least 1"),
        (flow(&["a/b"]), "`workflow.letters.a/b` is not a valid name"),
        (Workflow::builder("le/tters").step("a", scripted("a")), "`workflow.le/tters` is not a valid name"),
        (flow(&["a"]).middleware(Runs::named("a").only(ExfilGuard::new())), "for_tree"),
    ];
    for (builder, expected) in table {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn names_with_spaces_and_hyphens_keep_them_and_namespaces_get_underscores() -> Result<()> {
    let flow = Workflow::builder("my review").step("first-draft", scripted("a")).build()?;
    assert_eq!((flow.name(), flow.kind(), flow.emitter().namespace()), ("my review", "Workflow", "workflow.my_review"));
    assert!(format!("{flow:?}").contains("Step(\"first-draft\")"), "{flow:?}");
    Ok(())
}

#[derive(Deserialize)]
struct Route {
    next: String,
}

#[tokio::test]
async fn a_workflow_routes_by_an_answer_in_a_fence_behind_thoughts_or_behind_a_sentence() -> Result<()> {
    let route = r#"{"next": "c"}"#;
    let texts = [
        format!("```json\n{route}\n```"),
        format!("<think>Not {{\"next\": \"b\"}}.</think>\n{route}"),
        format!("Step c is right: {route}"),
    ];
    for text in texts {
        let router = Agent::builder("router", ChatModel::new(ScriptedModel::new("small").text(&text))?).build()?;
        let back = |_: &mut Script, answer: emitree_agent::AgentOutput| match answer.structured::<Route>() {
            Ok(route) => to(&route.next),
            Err(error) => to(&error.to_string()),
        };
        let routed = Workflow::builder("letters")
            .step("a", ask(&router, |_: &Script| "Which step is next?", back))
            .step("b", scripted("b"))
            .step("c", scripted("c"))
            .build()?;
        assert_eq!(routed.run(Script::default()).await?.state.done, ["c"], "{text}");
    }
    Ok(())
}

/// A20, M13
#[tokio::test]
async fn in_a_job_steps_have_keys_and_a_workflow_goes_on_without_a_question_after_a_kill() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (began, hangs) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(true)));
    let seen = log.clone();
    let key = move |ctx: &RunContext| seen.add(format!("{:?}", ctx.key().map(|key| key.to_string())));
    let (reached, is_killed, of_wait) = (Arc::clone(&began), Arc::clone(&hangs), key.clone());
    let inner = Workflow::builder("inner")
        .step_idempotent("wait", move |_: &mut u32, ctx| {
            of_wait(ctx);
            let (reached, is_killed) = (Arc::clone(&reached), is_killed.load(Ordering::Relaxed));
            Box::pin(async move {
                if is_killed {
                    reached.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok(Goto::End)
            })
        })
        .build()?;
    let back = |n: &mut u32, done: WorkflowOutput<u32>| {
        *n += done.state;
        Goto::End
    };
    let flow = Workflow::builder("outer")
        .step("count", move |n: &mut u32, ctx| {
            key(ctx);
            *n += 1;
            Box::pin(async { Ok(Goto::Next) })
        })
        .step("inner", sub_workflow(&inner, |n: &u32| *n, back))
        .build()?;
    let outer = flow.clone();
    let job = runnable_fn("job", move |(): (), _: RunContext| {
        let flow = outer.clone();
        async move { Ok(flow.run(1).key("flow").await?.state) }
    });
    let run = || job.run(()).middleware(Durable::new(&store, "order-17"));
    tokio::select! {
        ended = run() => panic!("it hangs: {ended:?}"),
        () = began.notified() => {}
    }
    wait_for_ends(Duration::from_secs(5)).await;
    hangs.store(false, Ordering::Relaxed);
    assert_eq!(run().await?, 4);
    let [count, wait] = ["1-count", "2-inner/1/1-wait"].map(|key| format!("Some(\"order-17/flow/{key}\")"));
    assert_eq!(log.lines(), [count, wait.clone(), wait]);

    let before = log.lines().len();
    assert_eq!(flow.run(1).await?.state, 4);
    assert_eq!(log.lines()[before..], ["None", "None"], "without a key of the workflow");
    Ok(())
}
