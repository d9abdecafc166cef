//! Exclusive tools: the calls of a turn that run at the same time, and the calls that wait (A4).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentBuilder, AgentRun, CallId, ChatModel, HooksFn, Reply, ScriptedModel, Session, Tool, ToolCall,
    ToolOutput, hooks_fn, tool_fn,
};
use emitree_middleware::{Retry, Timeout};
use emitree_runtime::{AbortHandle, Error, Interrupt, Result, RunContext, Success};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::{Log, Text, agent, assert_valid, results};

const STOPPED: &str = "!the run was stopped while the tool was running: it may have had effects";
const INTERRUPTED: &str = "!interrupted while the tool was running: it may have had effects";
const NOT_EXECUTED: &str = "!not executed: the run was stopped";

/// The end of a call in the model of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Succeeds,
    Fails,
    Halts,
    IsFatal,
    Interrupts,
    GateAnswers,
    GateDenies,
    GateInterrupts,
    HasNoTool,
}

impl End {
    const fn runs_a_tool(self) -> bool {
        matches!(self, Self::Succeeds | Self::Fails | Self::Halts | Self::IsFatal | Self::Interrupts)
    }

    const fn ends_the_run(self) -> bool {
        matches!(self, Self::Halts | Self::IsFatal | Self::Interrupts | Self::GateInterrupts)
    }

    /// Returns the result in the history.
    const fn result(self) -> &'static str {
        match self {
            Self::Succeeds => "done",
            Self::Fails => "!broken",
            Self::Halts => "!enough",
            Self::IsFatal => "!fatal",
            Self::Interrupts => INTERRUPTED,
            Self::GateAnswers => "known",
            Self::GateDenies => "!denied by gate: no",
            Self::GateInterrupts => "!not executed: interrupted",
            Self::HasNoTool => "!there is no tool `none`; available tools: `shout`, `beside`, `alone`",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    is_exclusive: bool,
    /// The seconds for which the tool is at work.
    takes: u64,
    end: End,
}

fn call() -> impl Strategy<Value = Call> {
    let end = prop_oneof![
        12 => Just(End::Succeeds),
        2 => Just(End::Fails),
        1 => Just(End::Halts),
        1 => Just(End::IsFatal),
        1 => Just(End::Interrupts),
        1 => Just(End::GateAnswers),
        1 => Just(End::GateDenies),
        1 => Just(End::GateInterrupts),
        1 => Just(End::HasNoTool),
    ];
    (prop::bool::weighted(0.3), 0..5_u64, end).prop_map(|(is_exclusive, takes, end)| Call { is_exclusive, takes, end })
}

/// The seconds at which each call starts and ends, or `None` if no tool runs; the results in the history; and whether
/// the run ends with each kind of error.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    times: Vec<Option<(u64, u64)>>,
    results: Vec<String>,
    error: Option<&'static str>,
}

/// The rule: each call starts as soon as the calls for which it waits have settled, unless one of the calls before ended
/// the run.
fn expected(calls: &[Call]) -> Outcome {
    let mut times: Vec<Option<(u64, u64)>> = Vec::new();
    let mut results = Vec::new();
    let mut settled: Vec<End> = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        let is_barrier = |call: &Call| call.is_exclusive && call.end.runs_a_tool();
        // An exclusive call waits for all calls before it, and any other call for those up to the last exclusive call.
        let waits_for =
            if is_barrier(call) { at } else { calls[..at].iter().rposition(is_barrier).map_or(0, |it| it + 1) };
        let has_ended = |(call, result): (&Call, &String)| call.end.ends_the_run() && result != NOT_EXECUTED;
        let is_over = calls.iter().zip(&results).take(waits_for).any(has_ended);
        let is_executed = call.end.runs_a_tool() && !is_over;
        let start = times[..waits_for].iter().flatten().map(|time| time.1).max().unwrap_or(0);
        times.push(is_executed.then_some((start, start + call.takes)));
        results.push(if call.end.runs_a_tool() && is_over { NOT_EXECUTED } else { call.end.result() }.to_owned());
        settled.extend((is_executed || !call.end.runs_a_tool()).then_some(call.end));
    }
    let has = |end: &[End]| settled.iter().any(|settled| end.contains(settled));
    let error = match () {
        () if has(&[End::Halts]) => Some("halted"),
        () if has(&[End::IsFatal]) => Some("fatal"),
        () if has(&[End::Interrupts, End::GateInterrupts]) => Some("interrupted"),
        () => None,
    };
    Outcome { times, results, error }
}

/// A tool that is at work for the time of its call, and logs when it starts and ends.
fn job(name: &str, calls: &Arc<Vec<Call>>, log: &Log, begin: Instant) -> Result<Tool> {
    let (calls, log) = (Arc::clone(calls), log.clone());
    Ok(tool_fn(name, "Works", move |_: Text, ctx: RunContext| {
        let (calls, log) = (Arc::clone(&calls), log.clone());
        async move {
            let id = ctx.own_extension::<CallId>().expect("a call").0.clone();
            let call = calls[id.parse::<usize>().expect("a number")];
            let start = begin.elapsed().as_secs();
            sleep(Duration::from_secs(call.takes)).await;
            log.add(format!("{id} {start} {}", begin.elapsed().as_secs()));
            match call.end {
                End::Fails => Err(Error::new("broken")),
                End::Halts => Err(Error::halted("job", "enough")),
                End::IsFatal => Err(Error::new("fatal").fatal(true)),
                End::Interrupts => Err(Error::interrupted(Interrupt::new("question", Value::Null))),
                _ => Ok("done"),
            }
        }
    })?)
}

/// A gate that decides on some of the calls.
fn gate(calls: &Arc<Vec<Call>>) -> HooksFn {
    let calls = Arc::clone(calls);
    hooks_fn("gate", move |hooks| {
        let calls = Arc::clone(&calls);
        hooks.on_gate_each(move |gated, _| match calls[gated.call.id.parse::<usize>().expect("a number")].end {
            End::GateAnswers => gated.answer(ToolOutput::new("known")),
            End::GateDenies => gated.deny("gate", "no"),
            End::GateInterrupts => drop(gated.ask::<bool>(Interrupt::new("question", Value::Null))),
            _ => {}
        });
    })
}

fn script(calls: &[Call]) -> ScriptedModel {
    let name = |call: &Call| match call.end {
        End::HasNoTool => "none",
        _ if call.is_exclusive => "alone",
        _ => "beside",
    };
    let calls: Vec<_> = calls.iter().map(|call| (name(call), json!({"text": ""}))).collect();
    ScriptedModel::new("test").calls(calls).text("the end")
}

/// Runs an agent whose model makes these calls in one turn.
async fn observed(calls: &[Call], spawns: bool, build: impl FnOnce(AgentBuilder) -> AgentBuilder) -> Result<Outcome> {
    let (shared, log, session) = (Arc::new(calls.to_vec()), Log::default(), Session::new());
    let [beside, alone] = ["beside", "alone"].map(|name| job(name, &shared, &log, Instant::now()));
    let agent = agent(&script(calls)).tool(beside?).tool(alone?.exclusive()).with(gate(&shared)).spawn_tools(spawns);
    let answer = build(agent).build()?.ask("go").session(&session).await;
    let mut times = vec![None; calls.len()];
    for line in log.lines() {
        let [id, start, end] = line.split(' ').map(|part| part.parse().expect("a number")).collect::<Vec<u64>>()[..]
        else {
            panic!("{line}");
        };
        assert_eq!(times[usize::try_from(id).expect("small")].replace((start, end)), None, "call {id} ran twice");
    }
    let error = answer.err().map(|error| match () {
        () if error.is_halted() => "halted",
        () if error.is_fatal() => "fatal",
        () if error.is_interrupted() => "interrupted",
        () => "another error",
    });
    Ok(Outcome { times, results: results(assert_valid(&session).messages()), error })
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // A4
    #[test]
    fn a_call_starts_when_the_calls_that_it_waits_for_have_settled_unless_one_of_them_ends_the_run(
        calls in vec(call(), 1..12),
        spawns in any::<bool>(),
        is_parallel in prop::bool::weighted(0.8),
    ) {
        let of_rule: Vec<_> = calls.iter().map(|call| Call { is_exclusive: call.is_exclusive || !is_parallel, ..*call }).collect();
        let seen = block_on(observed(&calls, spawns, |agent| agent.parallel_tools(is_parallel))).expect("an agent");
        prop_assert_eq!(seen, expected(&of_rule));
    }
}

fn succeeds(is_exclusive: bool) -> Call {
    Call { is_exclusive, takes: 1, end: End::Succeeds }
}

// A4
#[tokio::test(start_paused = true)]
async fn of_a_hundred_calls_the_exclusive_ones_run_alone_and_results_stay_in_call_order() -> Result<()> {
    let calls: Vec<_> = (0..100).map(|at| succeeds(at % 50 == 49)).collect();
    for spawns in [false, true] {
        let seen = observed(&calls, spawns, |agent| agent).await?;
        let time = |at: u64| Some((at, at + 1));
        let expected: Vec<_> =
            (0..100).map(|at| time(u64::from(at >= 49) + u64::from(at >= 50) + u64::from(at >= 99))).collect();
        assert_eq!((seen.times, seen.error), (expected, None));
    }
    Ok(())
}

// A4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spawned_calls_on_several_threads_never_run_beside_an_exclusive_call() -> Result<()> {
    let at_work = Arc::new(AtomicU32::new(0));
    let counts = |name: &str| {
        let at_work = Arc::clone(&at_work);
        tool_fn(name, "Counts the calls at work", move |_: Text, _: RunContext| {
            let at_work = Arc::clone(&at_work);
            async move {
                let mut most = at_work.fetch_add(1, Ordering::SeqCst) + 1;
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                    most = most.max(at_work.load(Ordering::SeqCst));
                }
                at_work.fetch_sub(1, Ordering::SeqCst);
                Ok(most)
            }
        })
    };
    let calls: Vec<_> = (0..60).map(|at| succeeds(at % 5 == 4)).collect();
    let agent = agent(&script(&calls)).tool(counts("beside")).tool(counts("alone")?.exclusive()).spawn_tools(true);
    let answer = agent.build()?.ask("go").await?;
    let most = results(&answer.messages);
    assert_eq!(most.len(), 60);
    assert!(most.iter().skip(4).step_by(5).all(|most| most == "1"), "{most:?}");
    Ok(())
}

// A4
#[tokio::test(start_paused = true)]
async fn tools_that_a_middleware_of_the_run_adds_may_be_exclusive_and_are_so_without_parallel_tools() -> Result<()> {
    let (together, alone) = ((0, 1), (1, 2));
    for (is_parallel, is_exclusive, second) in
        [(true, false, together), (true, true, alone), (false, false, alone), (false, true, alone)]
    {
        for asks_each_turn in [false, true] {
            let (calls, log) = (Arc::new(vec![succeeds(false); 2]), Log::default());
            let tool = job("job", &calls, &log, Instant::now())?;
            let tool = if is_exclusive { tool.exclusive() } else { tool };
            let adds = hooks_fn("adds", move |hooks| {
                let tool = tool.clone();
                if asks_each_turn {
                    hooks.tools(move |_| Ok(vec![tool.clone()]));
                } else {
                    hooks.tool(tool);
                }
            });
            let calls = ["job"; 2].map(|name| (name, json!({"text": ""})));
            let agent = agent(&ScriptedModel::new("test").calls(calls).text("the end")).parallel_tools(is_parallel);
            agent.build()?.ask("go").with(adds).await?;
            assert_eq!(log.lines(), ["0 0 1".to_owned(), format!("1 {} {}", second.0, second.1)]);
        }
    }
    Ok(())
}

// A4
#[tokio::test(start_paused = true)]
async fn the_tool_that_a_resolver_or_a_gate_has_chosen_decides_whether_a_call_is_exclusive() -> Result<()> {
    let resolves = hooks_fn("chooses", |hooks| {
        hooks.on_resolve(|call, _| Ok(Some(ToolCall::new("", "alone", call.arguments.clone()))));
    });
    let gates = hooks_fn("chooses", |hooks| {
        hooks.on_gate_each(|gated, _| gated.call.name = "alone".to_owned());
    });
    for chooses in [resolves, gates] {
        let seen = observed(&[succeeds(false); 3], false, |agent| agent.with(chooses)).await?;
        assert_eq!(seen.times, [Some((0, 1)), Some((1, 2)), Some((2, 3))]);
    }
    Ok(())
}

/// A tool `ends` that ends the run, or whose listener ends it, and a tool `waits` that logs its calls.
struct Scene {
    called: Log,
    abort: AbortHandle,
}

impl Scene {
    fn new() -> Self {
        Self { called: Log::default(), abort: AbortHandle::new() }
    }

    /// Returns an agent whose model first calls `ends`, and then `waits` twice. One of the tools is exclusive.
    fn agent(&self, is_first_exclusive: bool, ends: Tool, spawns: bool) -> Result<Agent> {
        let called = self.called.clone();
        let waits = tool_fn("waits", "Waits for its turn", move |_: Text, _: RunContext| {
            called.add("called");
            async { Ok("done") }
        })?;
        let (ends, waits) = if is_first_exclusive { (ends.exclusive(), waits) } else { (ends, waits.exclusive()) };
        let calls = ["ends", "waits", "waits"].map(|name| (name, json!({"text": ""})));
        let model = ChatModel::new(ScriptedModel::new("test").calls(calls).text("the end"))?;
        Agent::builder("tester", model).tool(ends).tool(waits).spawn_tools(spawns).build()
    }

    fn ends(&self, aborts: bool) -> Result<Tool> {
        let abort = self.abort.clone();
        Ok(tool_fn("ends", "Ends the run", move |_: Text, _: RunContext| {
            if aborts {
                abort.abort("enough");
            }
            async { Ok("done") }
        })?)
    }
}

// A4
#[tokio::test]
async fn after_an_abort_the_calls_that_wait_are_not_executed() -> Result<()> {
    for (is_first_exclusive, spawns) in [(false, false), (false, true), (true, false), (true, true)] {
        for by_function in [true, false] {
            let (scene, session) = (Scene::new(), Session::new());
            let agent = scene.agent(is_first_exclusive, scene.ends(by_function)?, spawns)?;
            let (abort, log) = (scene.abort.clone(), scene.called.clone());
            let run = agent.ask("go").session(&session).abort_on(&scene.abort);
            // A listener that aborts the run after the work, so that the call itself succeeds.
            let run = run.on("tool.ends.run.success", move |_: &mut Success<Value, ToolOutput>, _| {
                log.add("success");
                abort.abort("enough");
            });
            assert!(run.await.unwrap_err().is_aborted());
            // The agent does not wait for a spawned call of an aborted run.
            let first = if by_function || spawns { STOPPED } else { "done" };
            assert_eq!(results(assert_valid(&session).messages()), [first, NOT_EXECUTED, NOT_EXECUTED]);
            let expected: &[&str] = if by_function { &[] } else { &["success"] };
            assert_eq!(scene.called.lines(), expected, "spawned: {spawns}");
        }
    }
    Ok(())
}

// A1
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_when_the_run_is_dropped_has_not_begun_and_a_denied_call_keeps_its_result() -> Result<()> {
    for (is_first_exclusive, spawns) in [(false, false), (false, true), (true, false), (true, true)] {
        let (scene, session) = (Scene::new(), Session::new());
        let sleeps = tool_fn("ends", "Sleeps", |_: Text, _: RunContext| async {
            sleep(Duration::from_secs(60)).await;
            Ok("late")
        })?;
        let agent = scene.agent(is_first_exclusive, sleeps, spawns)?;
        let denies = hooks_fn("gate", |hooks| {
            hooks.on_gate(|batch, _| batch.open().nth(2).expect("a call").deny("gate", "no"));
        });
        let run = agent.ask("go").session(&session).with(denies);
        tokio::time::timeout(Duration::from_secs(1), run).await.expect_err("the tool sleeps");
        assert_eq!(results(assert_valid(&session).messages()), [STOPPED, NOT_EXECUTED, "!denied by gate: no"]);
        // If the tool were still at work, the calls behind it could start now.
        sleep(Duration::from_secs(120)).await;
        assert!(scene.called.lines().is_empty());
    }
    Ok(())
}

// A7
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_when_its_attempt_is_discarded_never_begins() -> Result<()> {
    for spawns in [false, true] {
        let (requests, called) = (AtomicU32::new(0), Log::default());
        let script = ScriptedModel::by("test", move |_| match requests.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::calls(["sleeps", "waits"].map(|name| (name, json!({"text": ""})))),
            // The tool of the first attempt would have time to go on.
            _ => Reply::text("the end").slow(Duration::from_secs(40), Duration::ZERO),
        });
        let sleeps = tool_fn("sleeps", "Sleeps", |_: Text, _: RunContext| async {
            sleep(Duration::from_secs(60)).await;
            Ok("late")
        })?;
        let to = called.clone();
        let waits = tool_fn("waits", "Waits for its turn", move |_: Text, _: RunContext| {
            to.add("called");
            async { Ok("done") }
        })?;
        let agent = agent(&script).tool(sleeps.exclusive()).tool(waits).spawn_tools(spawns).build()?;
        let retry = Retry::builder().max_retries(1).base_delay(Duration::from_secs(1)).without_jitter().build()?;
        let session = Session::new();
        let run = agent.ask("go").session(&session).middleware(retry);
        let answer = run.middleware(Timeout::per_attempt(Duration::from_secs(50))).await;
        assert_eq!(answer?.text(), "the end");
        assert!(called.lines().is_empty());
    }
    Ok(())
}
