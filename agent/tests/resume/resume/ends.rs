//! However a run ends, and before or after which effect, its session goes on (A1, A4, A22).

use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{
    Agent, AgentOutput, AgentRun, ChatModel, Hooks, Reply, ScriptedModel, Session, Tool, Usage, hooks_fn, tool_fn,
};
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::{Retry, Runs};
use emitree_runtime::{AbortHandle, Error, Result, Run, RunContext, for_tree, map_output};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use super::{logged, says, stored};
use crate::support::{Log, Text, assert_valid, refuse_bad, results};

/// How a run ends while a tool is at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The tool goes on, and the run ends with the questions that are open.
    Interrupt,
    /// The session is paused, and the tool goes on.
    Pause,
    Abort,
    Timeout,
    Drop,
}

impl End {
    /// Returns `true` if the tool at the point does not end.
    fn cuts(self) -> bool {
        !matches!(self, Self::Interrupt | Self::Pause)
    }
}

/// Points before and after the effect of each tool. The first tool that comes to the chosen point stops there.
#[derive(Clone, Default)]
struct Points {
    stop: Arc<Mutex<Option<String>>>,
    reached: Arc<Notify>,
    go: Arc<Notify>,
    /// The keys of the calls that have had their effect.
    effects: Log,
}

impl Points {
    fn stopping_at(point: &str) -> Self {
        Self { stop: Arc::new(Mutex::new(Some(point.to_owned()))), ..Self::default() }
    }

    async fn pass(&self, point: &str) {
        let stops = self.stop.lock().take_if(|stop| stop == point).is_some();
        if stops {
            self.reached.notify_one();
            self.go.notified().await;
        }
    }

    fn tool(&self, name: &'static str) -> Tool {
        let points = self.clone();
        let tool = tool_fn(name, "Works", move |_: Text, ctx: RunContext| {
            let points = points.clone();
            async move {
                points.pass(&format!("before {name}")).await;
                points.effects.add(ctx.key().expect("a key").as_str());
                points.pass(&format!("after {name}")).await;
                Ok(format!("{name} done"))
            }
        });
        tool.expect("a tool")
    }

    /// Returns the keys of the effects of a tool.
    fn effects_of(&self, tool: &str) -> Vec<String> {
        let is_of = |key: &&String| key.rsplit('/').next().is_some_and(|last| last.starts_with(tool));
        self.effects.lines().iter().filter(is_of).cloned().collect()
    }
}

struct Scene {
    agent: Agent,
    outer: ScriptedModel,
    inner: ScriptedModel,
    points: Points,
}

const CALLS: [&str; 5] = ["safe", "once", "pay", "alone", "worker"];

fn scene(point: &str, spawns: bool, has_hooks: bool) -> Result<Scene> {
    let points = Points::stopping_at(point);
    let approval = |tool: &'static str| for_tree(Approval::by_interrupt().runs(Runs::named(tool)));
    let inner = ScriptedModel::new("inner").call("dig", says("x")).text("Found.");
    let worker = Agent::builder("worker", ChatModel::new(inner.clone())?)
        .tool(points.tool("dig"))
        .middleware(approval("dig"))
        .spawn_tools(spawns)
        .build()?;
    let calls = CALLS.map(|name| (name, if name == "worker" { json!({"task": "Dig."}) } else { says("x") }));
    let outer = ScriptedModel::new("outer")
        .reply(Reply::calls(calls).usage(Usage::new(10, 1)))
        .reply(Reply::text("Done.").usage(Usage::new(20, 1)));
    let mut builder = Agent::builder("boss", ChatModel::new(outer.clone())?)
        .tool(points.tool("safe").idempotent())
        .tool(points.tool("once"))
        .tool(points.tool("pay"))
        .tool(points.tool("alone").exclusive())
        .tool(worker.as_tool("Works")?)
        .middleware(approval("pay"))
        .spawn_tools(spawns);
    if has_hooks {
        builder = builder.with(hooks_fn("reads", |hooks: &mut Hooks| {
            hooks.on_result(|_, _| ());
        }));
    }
    Ok(Scene { agent: builder.build()?, outer, inner, points })
}

/// Runs an agent, and ends the run when a tool is at the point.
async fn run_until(run: Run<'_, Agent>, end: End, points: &Points, session: &Session) -> Result<AgentOutput> {
    let handle = AbortHandle::new();
    let mut run = Box::pin(run.abort_on(&handle).timeout(Duration::from_secs(3600)));
    tokio::select! {
        biased;
        result = &mut run => return result,
        () = points.reached.notified() => {}
    }
    match end {
        End::Abort => _ = handle.abort("the user has left"),
        End::Timeout => {}
        End::Drop => {
            let during = serde_json::to_value(session).expect("JSON");
            drop(run);
            assert_eq!(serde_json::to_value(session).expect("JSON"), during);
            return Err(Error::new("the run was dropped"));
        }
        End::Interrupt => points.go.notify_one(),
        End::Pause => {
            session.pause();
            points.go.notify_one();
        }
    }
    run.await
}

async fn check_end(end: End, point: &str, spawns: bool, has_hooks: bool) -> Result<()> {
    let scene = scene(point, spawns, has_hooks)?;
    let Scene { agent, outer, inner, points } = &scene;
    let mut session = Session::with_id("order-17")?;
    let mut output = run_until(agent.ask("Go.").session(&session), end, points, &session).await;
    let mut resumes = 0;
    while let Err(error) = output {
        resumes += 1;
        assert!(resumes < 6, "{error}");
        session = stored(&session);
        for question in session.questions() {
            session.answer(&question.id, Decision::Approve).await.expect("it is open");
        }
        session = stored(&session);
        output = run_until(agent.resume(&session), end, points, &session).await;
    }
    let answer = output?;
    assert_eq!(*points.stop.lock(), None, "the point was reached");
    assert_eq!((answer.text().as_str(), answer.turns), ("Done.", 2));
    assert_eq!((answer.usage.input_tokens, answer.usage.output_tokens), (30, 2));
    assert_eq!((outer.requests().len(), inner.requests().len()), (2, 2));
    assert_eq!(session.questions(), []);
    assert_valid(&session);

    let of_worker = results(&inner.requests()[1].messages);
    let all = results(session.history().messages());
    let all = CALLS.into_iter().zip(&all).filter(|(name, _)| *name != "worker").chain([("dig", &of_worker[0])]);
    let is_at = |name: &str| point.ends_with(name);
    for (name, result) in all {
        let effects = points.effects_of(name);
        if name == "safe" {
            assert_eq!(result, "safe done");
            assert!(!effects.is_empty() && effects.iter().all(|key| *key == effects[0]), "{effects:?}");
            continue;
        }
        // With hooks of `tool.result`, a result has not passed before all calls of the turn have settled.
        let is_demoted = end.cuts() && (is_at(name) || (has_hooks && result.contains("may have had effects")));
        if is_demoted {
            assert!(result.starts_with('!') && result.contains("may have had effects"), "{name}: {result}");
            assert!(effects.len() <= 1, "{effects:?}");
        } else {
            assert_eq!((result, effects.len()), (&format!("{name} done"), 1));
        }
        if is_at(name) {
            let has_effect = !end.cuts() || point.starts_with("after");
            assert_eq!(effects.len(), usize::from(has_effect), "{effects:?}");
        }
    }
    assert!(session.history().messages().iter().flat_map(|message| message.tool_results()).count() == CALLS.len());
    assert_eq!(results(session.history().messages())[4], "Found.");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn however_a_run_ends_a_call_with_a_result_is_executed_once_and_a_call_that_had_begun_at_most_once() -> Result<()>
{
    for end in [End::Interrupt, End::Pause, End::Abort, End::Timeout, End::Drop] {
        for tool in ["safe", "once", "pay", "alone", "dig"] {
            for point in [format!("before {tool}"), format!("after {tool}")] {
                for (spawns, has_hooks) in [(false, false), (true, false), (false, true), (true, true)] {
                    let (point, case) = (point.clone(), format!("{end:?} {point}, spawns {spawns}, hooks {has_hooks}"));
                    let checked = tokio::spawn(async move { check_end(end, &point, spawns, has_hooks).await });
                    checked.await.unwrap_or_else(|_| panic!("{case}"))?;
                }
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_resume_that_finds_nothing_to_do_fails_each_time_and_changes_nothing() -> Result<()> {
    let script = ScriptedModel::new("test").text("Done.");
    let agent = super::builder(&script).build()?;
    let session = Session::new();
    agent.ask("Go.").session(&session).await?;
    let before = serde_json::to_value(&session)?;
    for _ in 0..2 {
        let error = agent.resume(&session).await.expect_err("nothing to do").to_string();
        assert!(error.starts_with("there is nothing to resume"), "{error}");
        assert_eq!(serde_json::to_value(&session)?, before);
    }
    let empty = Session::new();
    for _ in 0..2 {
        let error = agent.resume(&empty).await.expect_err("nothing to do").to_string();
        assert!(error.contains("it has no messages"), "{error}");
    }
    Ok(())
}

/// Leaves a session with a call that was not executed.
async fn left_open(log: &Log) -> Result<Session> {
    let script = ScriptedModel::new("test").calls([("wait", says("x")), ("quick", says("a"))]);
    let wait = logged("wait", &Log::default(), &Arc::new(true.into())).exclusive().idempotent();
    let agent = super::builder(&script).tool(wait).tool(logged("quick", log, &Arc::default())).build()?;
    let session = Session::new();
    let run = agent.ask("Go.").session(&session).timeout(Duration::from_secs(1));
    assert!(run.await.expect_err("it waits").is_timed_out());
    Ok(stored(&session))
}

#[tokio::test(start_paused = true)]
async fn another_attempt_after_a_resume_keeps_the_resumed_turn_and_forgets_the_turns_behind_it() -> Result<()> {
    let calls = |text: &str| Reply::calls([("quick", says(text))]).usage(Usage::new(10, 0));
    let fails = Error::new("no network").retryable(true);
    // A layer repeats the run, or a function for its output does.
    for (is_layer, replies) in [
        (true, vec![calls("b"), Reply::error(fails), calls("c"), Reply::text("Done.").usage(Usage::new(1, 0))]),
        (false, vec![calls("b"), Reply::text("bad"), calls("c"), Reply::text("Done.").usage(Usage::new(1, 0))]),
    ] {
        let log = Log::default();
        let session = left_open(&log).await?;
        let script = replies.into_iter().fold(ScriptedModel::new("test"), ScriptedModel::reply);
        let wait = logged("wait", &log, &Arc::default()).exclusive().idempotent();
        let agent = super::builder(&script).tool(wait).tool(logged("quick", &log, &Arc::default())).build()?;
        let run = agent.resume(&session);
        let run = if is_layer {
            run.middleware(Retry::builder().max_retries(1).without_jitter().build()?)
        } else {
            run.max_middleware_retries(1).middleware(map_output(refuse_bad))
        };
        let answer = run.await?;
        assert_eq!(log.lines(), ["wait x", "quick a", "quick b", "quick c"]);
        let found = (answer.text(), answer.turns, answer.usage.input_tokens);
        assert_eq!(found, ("Done.".to_owned(), 3, 11), "by a layer: {is_layer}");
        assert_eq!(results(session.history().messages()), ["wait done", "quick done", "quick done"]);
        assert_valid(&session);
    }
    Ok(())
}
