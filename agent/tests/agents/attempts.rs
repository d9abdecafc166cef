//! Tools of a discarded attempt: they are aborted, and the next attempt begins without them (A7).

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentBuilder, AgentInput, AgentOutput, AgentRun, MessageAdded, Reply, ScriptedModel, Session, State, Tool,
    ToolCallIdentified, ToolOutput, hooks_fn, tool_fn,
};
use emitree_middleware::retry::RetryScheduled;
use emitree_middleware::{Retry, Timeout};
use emitree_runtime::{Failure, Layer, Next, Result, RunContext, Stack, Start};
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};

use crate::support::{Log, Text, agent, texts};

/// A tool `work`, and a state that it changes. The model calls the tool in the first attempt, and answers in the second
/// attempt.
#[derive(Clone, Default)]
struct Scene {
    log: Log,
    count: Arc<OnceLock<State<u32>>>,
    /// Notified when the tool has begun.
    at_work: Arc<Notify>,
    /// `true` if the model answers without a delay.
    is_quick: bool,
}

impl Scene {
    fn agent(&self, tool: Tool) -> AgentBuilder {
        let (log, requests, is_quick) = (self.log.clone(), AtomicU32::new(0), self.is_quick);
        let script = ScriptedModel::by("test", move |_| {
            let attempt = requests.fetch_add(1, Ordering::Relaxed) + 1;
            log.add(format!("attempt {attempt}"));
            match attempt {
                1 => Reply::calls([("work", json!({"text": "a"}))]),
                _ if is_quick => Reply::text("done"),
                // While the model answers, a tool of the first attempt would have time to go on.
                _ => Reply::text("done").slow(Duration::from_secs(5), Duration::ZERO),
            }
        });
        let (count, log) = (Arc::clone(&self.count), self.log.clone());
        let counts = hooks_fn("counts", move |hooks| {
            let state = hooks.state::<u32>();
            count.set(state.clone()).expect("installed once");
            let log = log.clone();
            hooks.on_stop(move |_, ctx| {
                log.add(format!("count {}", state.with(ctx, |count| *count)?));
                Ok(false)
            });
        });
        agent(&script).tool(tool).with(counts)
    }

    fn write(&self, ctx: &RunContext) -> Result<()> {
        self.count.get().expect("installed").with(ctx, |count| *count += 1)
    }

    /// Runs an agent with a layer that discards the first attempt when the tool is at work. Returns the state of the
    /// session.
    async fn run(&self, agent: &Agent) -> Result<Value> {
        let session = Session::new();
        let answer = agent.ask("go").session(&session).middleware(layer(self.discards())).await?;
        assert_eq!((answer.text().as_str(), answer.messages.len()), ("done", 2));
        assert_eq!(texts(&session), ["go", "done"]);
        Ok(serde_json::to_value(&session)?["state"]["counts"].clone())
    }

    fn discards(&self) -> Discards {
        Discards(Arc::clone(&self.at_work))
    }
}

fn layer(layer: impl Layer<Agent> + 'static) -> Stack<Agent> {
    Stack::<Agent>::builder().layer(layer).build()
}

/// A layer that drops the first attempt when it is notified, and calls the agent again.
#[derive(Debug)]
struct Discards(Arc<Notify>);

impl Layer<Agent> for Discards {
    async fn call(&self, input: &AgentInput, _: &RunContext, next: Next<'_, Agent>) -> Result<AgentOutput> {
        tokio::select! {
            biased;
            result = next.run(input) => return result,
            () = self.0.notified() => {}
        }
        next.run(input).await
    }

    fn name(&self) -> &str {
        "discards"
    }
}

/// A value of a tool's function that is dropped when the function has ended.
struct LogsEnd(Log);

impl Drop for LogsEnd {
    fn drop(&mut self) {
        self.0.add("the tool has ended");
    }
}

/// Returns a tool that waits, and then changes the state.
fn waits(scene: &Scene, opened: oneshot::Receiver<()>) -> Tool {
    let (scene, opened) = (scene.clone(), Mutex::new(Some(opened)));
    tool_fn("work", "Works", move |_: Text, ctx: RunContext| {
        let (scene, opened) = (scene.clone(), opened.lock().expect("no panic").take());
        async move {
            let _ends = LogsEnd(scene.log.clone());
            scene.at_work.notify_one();
            opened.expect("called once").await.expect("the test opens");
            scene.write(&ctx)?;
            scene.log.add("the tool has written");
            Ok("late")
        }
    })
    .expect("a tool")
}

// A7
#[tokio::test(start_paused = true)]
async fn an_attempt_begins_when_the_tools_of_the_discarded_attempt_have_ended_and_without_their_writes() -> Result<()> {
    for spawns in [false, true] {
        let (scene, (open, opened)) = (Scene::default(), oneshot::channel());
        let agent = scene.agent(waits(&scene, opened)).spawn_tools(spawns).build()?;
        // The tool may go on during the second attempt.
        let late = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            open.send(())
        });
        let state = scene.run(&agent).await?;
        late.await.expect("no panic").expect_err("the tool no longer waits");
        assert_eq!(scene.log.lines(), ["attempt 1", "the tool has ended", "attempt 2", "count 0"], "spawned: {spawns}");
        assert_eq!(state, 0);
    }
    Ok(())
}

// A7
#[tokio::test(start_paused = true)]
async fn a_spawned_tool_is_aborted_as_soon_as_its_attempt_takes_too_long() -> Result<()> {
    let (scene, (open, opened)) = (Scene::default(), oneshot::channel());
    let agent = scene.agent(waits(&scene, opened)).spawn_tools(true).build()?;
    let retry = Retry::builder().max_retries(1).base_delay(Duration::from_secs(30)).without_jitter().build();
    let log = scene.log.clone();
    let run = agent
        .ask("go")
        .on("**.retry", move |_: &mut RetryScheduled, _| log.add("half a minute passes"))
        .middleware(retry.expect("valid"))
        .middleware(Timeout::per_attempt(Duration::from_secs(10)));
    // The delay before the second attempt would be long enough for the tool.
    let late = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(25)).await;
        open.send(())
    });
    run.await?;
    late.await.expect("no panic").expect_err("the tool no longer waits");
    assert_eq!(scene.log.lines(), ["attempt 1", "half a minute passes", "the tool has ended", "attempt 2", "count 0"]);
    Ok(())
}

// A7
#[tokio::test(start_paused = true)]
async fn an_attempt_begins_when_the_listeners_of_aborted_tools_have_ended() -> Result<()> {
    for spawns in [false, true] {
        let (scene, (_open, opened)) = (Scene::default(), oneshot::channel());
        let agent = scene.agent(waits(&scene, opened)).spawn_tools(spawns).build()?;
        let log = scene.log.clone();
        let run = agent.ask("go").middleware(layer(scene.discards()));
        let run = run.on_async("tool.work.run.error", move |_: &mut Failure, _| {
            let log = log.clone();
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                log.add("the listener has ended");
                Ok(())
            })
        });
        run.await?;
        let expected = ["attempt 1", "the tool has ended", "the listener has ended", "attempt 2", "count 0"];
        assert_eq!(scene.log.lines(), expected, "spawned: {spawns}");
    }
    Ok(())
}

// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_ignores_its_abort_holds_the_next_attempt_and_writes_nothing_into_it() -> Result<()> {
    let (scene, (open, opened), (enter, entered)) = (Scene::default(), mpsc::channel(), oneshot::channel());
    let scene = Scene { is_quick: true, ..scene };
    let (of_tool, channels) = (scene.clone(), Arc::new(Mutex::new(Some((enter, opened)))));
    let blocks = tool_fn("work", "Blocks its thread", move |_: Text, ctx: RunContext| {
        let (scene, channels) = (of_tool.clone(), channels.lock().expect("no panic").take());
        async move {
            let _ends = LogsEnd(scene.log.clone());
            let (enter, opened) = channels.expect("called once");
            enter.send(()).expect("the test waits");
            opened.recv().expect("the test opens");
            scene.log.add(format!("written: {}", scene.write(&ctx).is_ok()));
            Ok("late")
        }
    })?;
    let agent = scene.agent(blocks).spawn_tools(true).build()?;
    let mut run = pin!(scene.run(&agent));
    let mut is_pending = || run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    assert!(is_pending());
    entered.await.expect("the tool is called");
    // The layer discards the attempt. In the same poll, the second attempt would ask the model.
    scene.at_work.notify_one();
    assert!(is_pending());
    assert!(is_pending());
    assert_eq!(scene.log.lines(), ["attempt 1"]);
    open.send(()).expect("the tool waits");
    assert_eq!(run.await?, 0);
    assert_eq!(scene.log.lines(), ["attempt 1", "written: false", "the tool has ended", "attempt 2", "count 0"]);
    Ok(())
}

// A7
#[tokio::test(start_paused = true)]
async fn what_a_tool_has_left_behind_cannot_write_into_the_next_attempt() -> Result<()> {
    for spawns in [false, true] {
        let scene = Scene::default();
        let of_tool = scene.clone();
        let leaves = tool_fn("work", "Leaves a task behind", move |_: Text, ctx: RunContext| {
            let scene = of_tool.clone();
            async move {
                scene.at_work.notify_one();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let error = scene.write(&ctx).expect_err("the attempt was discarded");
                    scene.log.add(format!("{error}, aborted: {}", error.is_aborted()));
                });
                std::future::pending::<Result<u32>>().await
            }
        })?;
        assert_eq!(scene.run(&scene.agent(leaves).spawn_tools(spawns).build()?).await?, 0);
        let refused = "the state `counts` cannot be used: the attempt in which `work` was called was discarded";
        let refused = format!("{refused}, aborted: true");
        assert_eq!(scene.log.lines(), ["attempt 1", "attempt 2", &refused, "count 0"], "spawned: {spawns}");
    }
    Ok(())
}

// A7
#[tokio::test(start_paused = true)]
async fn a_spawned_call_that_has_not_begun_when_its_attempt_is_discarded_never_begins() -> Result<()> {
    let (scene, (_open, opened)) = (Scene::default(), oneshot::channel());
    let agent = scene.agent(waits(&scene, opened)).spawn_tools(true).build()?;
    let (identified, starts, log) = (scene.log.clone(), scene.log.clone(), scene.log.clone());
    let guard = hooks_fn("guard", move |hooks| {
        let log = log.clone();
        hooks.tool_call(|stack| {
            stack.layer_fn("guard", move |arguments: &Value, _, next: Next<'_, Tool>| {
                log.add("a layer is entered");
                Box::pin(next.run(arguments))
            })
        });
    });
    // The attempt is discarded before the runtime polls the task of the call.
    scene.at_work.notify_one();
    let run = agent.ask("go").with(guard).middleware(layer(scene.discards()));
    run.on("tool_call_identified", move |_: &mut ToolCallIdentified, _| identified.add("called"))
        .on("tool.work.run.start", move |_: &mut Start<Value, ToolOutput>, _| starts.add("the call has begun"))
        .await?;
    assert_eq!(scene.log.lines(), ["attempt 1", "called", "attempt 2", "count 0"]);
    Ok(())
}

/// A layer that discards the first attempt as [`Discards`] does, but keeps its future until the second has ended.
#[derive(Debug)]
struct Keeps(Arc<Notify>);

impl Layer<Agent> for Keeps {
    async fn call(&self, input: &AgentInput, _: &RunContext, next: Next<'_, Agent>) -> Result<AgentOutput> {
        let mut first = pin!(next.run(input));
        tokio::select! {
            biased;
            result = first.as_mut() => return result,
            () = self.0.notified() => {}
        }
        next.run(input).await
    }

    fn name(&self) -> &str {
        "keeps"
    }
}

// A7
#[tokio::test(start_paused = true)]
async fn an_attempt_whose_future_a_layer_keeps_neither_holds_nor_changes_the_next_attempt() -> Result<()> {
    for spawns in [false, true] {
        let (scene, (open, opened)) = (Scene::default(), oneshot::channel());
        let agent = scene.agent(waits(&scene, opened)).spawn_tools(spawns).build()?;
        let late = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            open.send(())
        });
        let session = Session::new();
        let run = agent.ask("go").session(&session).timeout(Duration::from_secs(60));
        run.middleware(layer(Keeps(Arc::clone(&scene.at_work)))).await?;
        drop(late.await);
        let mut lines = scene.log.lines();
        // The function of a tool that is not spawned is dropped with the future that the layer keeps.
        lines.retain(|line| line != "the tool has ended");
        assert_eq!(lines, ["attempt 1", "attempt 2", "count 0"], "spawned: {spawns}");
        // The kept future, which contains a turn, is dropped after the second attempt.
        assert_eq!(texts(&session), ["go", "done"]);
        assert_eq!(serde_json::to_value(&session)?["state"]["counts"], 0);
    }
    Ok(())
}

// R13
#[tokio::test(start_paused = true)]
async fn the_run_ends_after_the_tools_of_its_last_attempt_if_that_was_dropped() -> Result<()> {
    for spawns in [false, true] {
        let (scene, (_open, opened)) = (Scene::default(), oneshot::channel());
        let agent = scene.agent(waits(&scene, opened)).spawn_tools(spawns).build()?;
        let run = agent.ask("go").middleware(Timeout::per_attempt(Duration::from_secs(10)));
        assert!(run.await.unwrap_err().is_timed_out());
        assert_eq!(scene.log.lines(), ["attempt 1", "the tool has ended"], "spawned: {spawns}");
    }
    Ok(())
}

/// A layer that makes a second attempt when it is notified, and then polls the first attempt to its end.
#[derive(Debug)]
struct Hedges(Arc<Notify>, Log);

impl Layer<Agent> for Hedges {
    async fn call(&self, input: &AgentInput, _: &RunContext, next: Next<'_, Agent>) -> Result<AgentOutput> {
        let mut first = pin!(next.run(input));
        tokio::select! {
            biased;
            result = first.as_mut() => return result,
            () = self.0.notified() => {}
        }
        let mut second = pin!(next.run(input));
        let error = tokio::select! {
            biased;
            result = second.as_mut() => return result,
            result = first => result.expect_err("another attempt has begun"),
        };
        self.1.add(error.to_string());
        second.await
    }

    fn name(&self) -> &str {
        "hedges"
    }
}

// A7
#[tokio::test(start_paused = true)]
async fn an_attempt_that_a_layer_polls_when_another_has_begun_ends_with_an_error_and_changes_nothing() -> Result<()> {
    for listens in [false, true] {
        let (scene, (open, opened)) = (Scene::default(), oneshot::channel());
        // The second reply comes late, so that the first attempt would have time to go on.
        let agent = scene.agent(waits(&scene, opened)).build()?;
        let (session, messages) = (Session::new(), Log::default());
        let mut run = agent.ask("go").session(&session);
        if listens {
            let log = messages.clone();
            run = run.on("message", move |added: &mut MessageAdded, _| log.add(added.message.text()));
        }
        let open = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            open.send(()).ok();
        };
        let run = run.middleware(layer(Hedges(Arc::clone(&scene.at_work), scene.log.clone())));
        let (answer, ()) = tokio::join!(run, open);
        let answer = answer?;
        assert_eq!((answer.text().as_str(), answer.turns, answer.messages.len()), ("done", 1, 2));
        let mut lines = scene.log.lines();
        // The function of the tool is dropped with the future of its attempt.
        lines.retain(|line| line != "the tool has ended");
        assert_eq!(lines, ["attempt 1", "attempt 2", "the attempt of the agent was discarded", "count 0"]);
        assert_eq!(texts(&session), ["go", "done"]);
        assert_eq!(messages.lines(), if listens { &["go", "go", "done"][..] } else { &[] });
    }
    Ok(())
}

/// A layer that keeps the future of the first attempt, drops the second attempt, and makes a third.
#[derive(Debug)]
struct KeepsOnlyTheFirst(Arc<Notify>);

impl Layer<Agent> for KeepsOnlyTheFirst {
    async fn call(&self, input: &AgentInput, _: &RunContext, next: Next<'_, Agent>) -> Result<AgentOutput> {
        let mut first = pin!(next.run(input));
        tokio::select! {
            biased;
            result = first.as_mut() => return result,
            () = self.0.notified() => {}
        }
        let second = tokio::time::timeout(Duration::from_secs(1), next.run(input));
        assert!(second.await.is_err(), "the model is slow");
        next.run(input).await
    }

    fn name(&self) -> &str {
        "keeps_only_the_first"
    }
}

// A7
#[tokio::test(start_paused = true)]
async fn an_attempt_does_not_wait_for_tools_of_any_earlier_attempt_whose_future_a_layer_keeps() -> Result<()> {
    for spawns in [false, true] {
        let (scene, (_open, opened)) = (Scene::default(), oneshot::channel());
        let agent = scene.agent(waits(&scene, opened)).spawn_tools(spawns).build()?;
        let run = agent.ask("go").timeout(Duration::from_secs(60));
        run.middleware(layer(KeepsOnlyTheFirst(Arc::clone(&scene.at_work)))).await?;
        let mut lines = scene.log.lines();
        lines.retain(|line| line != "the tool has ended");
        assert_eq!(lines, ["attempt 1", "attempt 2", "attempt 3", "count 0"], "spawned: {spawns}");
    }
    Ok(())
}

// A7
#[tokio::test(start_paused = true)]
async fn dropping_an_attempt_with_many_spawned_tools_costs_linear_time() -> Result<()> {
    // With quadratic time, this test is terminated because it takes too long.
    const CALLS: usize = 20_000;
    let script = ScriptedModel::new("test").calls((0..CALLS).map(|_| ("work", json!({"text": "a"}))));
    let work = tool_fn("work", "Works", |_: Text, _: RunContext| std::future::pending::<Result<u32>>())?;
    let agent = agent(&script).tool(work).spawn_tools(true).build()?;
    let run = agent.ask("go").middleware(Timeout::per_attempt(Duration::from_secs(10)));
    assert!(run.await.unwrap_err().is_timed_out());
    Ok(())
}
