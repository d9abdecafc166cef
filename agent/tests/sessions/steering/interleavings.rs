//! Random interleavings of messages, values for a middleware, pauses, turns, attempts and ends of two runs on one session
//! (A15).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentRun, CallId, ChatModel, Message, Reply, Role, ScriptedModel, Session, Tool, hooks_fn, tool_fn,
};
use emitree_runtime::{Error, Next, Phase, Result, RunContext, layer_fn, map_output};
use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::support::{Log, Text, assert_valid};

/// A message that is sent at a time, in half-seconds.
#[derive(Clone, Debug)]
struct Send {
    at: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Steer,
    FollowUp,
    Interject,
    /// A value for the middleware `keeps`.
    Value,
    Pause,
}

impl Kind {
    fn is_message(self) -> bool {
        !matches!(self, Self::Value | Self::Pause)
    }
}

/// A reply of the model: the times for which its calls wait in a guard, or an answer.
#[derive(Clone, Debug)]
enum Step {
    Calls(Vec<(&'static str, u64)>),
    Answer,
    /// An answer that the output function refuses, so that the attempt is discarded.
    Bad,
    Fails,
}

/// A run: its replies, and the time after which it is dropped.
#[derive(Clone, Debug)]
struct Plan {
    steps: Vec<Step>,
    dropped_after: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let call = (prop_oneof![3 => Just("work"), 1 => Just("alone")], 0..4_u64);
    prop_oneof![
        6 => vec(call, 1..4).prop_map(Step::Calls),
        4 => Just(Step::Answer),
        3 => Just(Step::Bad),
        1 => Just(Step::Fails),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let dropped_after = prop_oneof![2 => 1..40_u64, 3 => Just(1_000)];
    (vec(step(), 0..6), dropped_after).prop_map(|(steps, dropped_after)| Plan { steps, dropped_after })
}

fn sends() -> impl Strategy<Value = Vec<Send>> {
    let kind = prop_oneof![
        3 => Just(Kind::Steer),
        3 => Just(Kind::FollowUp),
        3 => Just(Kind::Interject),
        3 => Just(Kind::Value),
        1 => Just(Kind::Pause),
    ];
    let mut sends = vec((0..40_u64, kind).prop_map(|(at, kind)| Send { at, kind }), 0..12).boxed();
    sends = sends
        .prop_map(|mut sends| {
            sends.sort_by_key(|send| send.at);
            sends
        })
        .boxed();
    sends
}

const fn half_seconds(count: u64) -> Duration {
    Duration::from_millis(500 * count)
}

/// A tool that logs its calls, and works for a time.
fn job(name: &str, log: &Log) -> Tool {
    let log = log.clone();
    let tool = tool_fn(name, "Works", move |args: Text, ctx: RunContext| {
        log.add(ctx.own_extension::<CallId>().expect("a call").0.clone());
        async move {
            sleep(half_seconds(args.text.parse().expect("a number"))).await;
            Ok("done")
        }
    });
    tool.expect("a tool")
}

/// An agent with a guard in front of its tools, whose model follows the plan, and answers when the plan is at its end.
fn agent(plan: &Plan, number: usize, log: &Log) -> Result<Agent> {
    let (steps, count) = (plan.steps.clone(), AtomicU32::new(0));
    let script = ScriptedModel::by("test", move |_| {
        let turn = count.fetch_add(1, Ordering::Relaxed);
        let reply = match steps.get(turn as usize) {
            Some(Step::Calls(calls)) => {
                let mut message = Message::assistant("");
                for (at, (name, waits)) in calls.iter().enumerate() {
                    let id = format!("{number}.{turn}.{at}");
                    message =
                        message.with_call(emitree_agent::ToolCall::new(id, *name, json!({"text": waits.to_string()})));
                }
                Reply::response(emitree_agent::ChatResponse::new(message))
            }
            Some(Step::Bad) => Reply::text("bad"),
            Some(Step::Fails) => Reply::error(Error::new("broken")),
            Some(Step::Answer) | None => Reply::text("answer"),
        };
        reply.slow(half_seconds(3), Duration::ZERO)
    });
    let waits = hooks_fn("waits", |hooks| {
        hooks.tool_call(|stack| {
            stack.layer_in(
                Phase::Guard,
                layer_fn("waits", |input: &serde_json::Value, _, next: Next<'_, Tool>| {
                    let waits = input["text"].as_str().and_then(|text| text.parse().ok()).expect("a number");
                    Box::pin(async move {
                        sleep(half_seconds(waits)).await;
                        next.run(input).await
                    })
                }),
            )
        });
        hooks.on_inject_async(|_, _| {
            Box::pin(async {
                sleep(half_seconds(1)).await;
                Ok(())
            })
        });
    });
    let keeps = hooks_fn("keeps", |hooks| {
        let kept = hooks.state::<Vec<String>>();
        hooks.on_message_async(move |text: String, ctx| {
            let kept = kept.clone();
            Box::pin(async move {
                kept.with(ctx, |kept| kept.push(text))?;
                sleep(half_seconds(1)).await;
                Ok(())
            })
        });
    });
    Agent::builder("tester", ChatModel::new(script)?)
        .with(keeps)
        .tool(job("work", log))
        .tool(job("alone", log).exclusive())
        .with(waits)
        .max_middleware_retries(10)
        .build()
}

fn refuse_bad(output: &mut emitree_agent::AgentOutput, _: &RunContext) -> Result<()> {
    if output.text() == "bad" { Err(Error::retry("be polite")) } else { Ok(()) }
}

/// Checks that each message is in the history or undelivered, once, and that messages of one kind are in order if there
/// is one run.
fn check(session: &Session, sent: &[(String, Kind)], is_one_run: bool) -> std::result::Result<(), TestCaseError> {
    let history = assert_valid(session);
    let user = history.messages().iter().filter(|message| message.role == Role::User);
    let entered: Vec<_> = user.map(|message| message.text()).filter(|text| text != "go").collect();
    let waiting: Vec<_> = session.undelivered().iter().map(|message| message.text()).collect();
    let mut all: Vec<_> = entered.iter().chain(&waiting).cloned().collect();
    all.sort();
    let messages = sent.iter().filter(|(_, kind)| kind.is_message());
    let mut expected: Vec<_> = messages.map(|(text, _)| text.clone()).collect();
    expected.sort();
    prop_assert_eq!(all, expected, "entered {:?}, waiting {:?}", entered, waiting);
    let number = |text: &String| sent.iter().position(|(other, _)| other == text).expect("it was sent");
    prop_assert!(waiting.is_sorted_by_key(number), "waiting {:?}", waiting);
    let is_follow_up = |text: &&String| sent[number(text)].1 == Kind::FollowUp;
    let (follow_ups, steering): (Vec<_>, Vec<_>) = entered.iter().partition(is_follow_up);
    if is_one_run {
        prop_assert!(follow_ups.into_iter().map(number).is_sorted(), "{:?}", entered);
        prop_assert!(steering.into_iter().map(number).is_sorted(), "{:?}", entered);
    }
    Ok(())
}

/// Checks that each value has reached its middleware or waits, once and in order.
fn check_values(session: &Session, sent: &[(String, Kind)]) -> std::result::Result<(), TestCaseError> {
    let mut values = session.state::<Vec<String>>("keeps").expect("a list").unwrap_or_default();
    let waiting = session.undelivered_to("keeps");
    values.extend(waiting.iter().map(|value| value.as_str().expect("a text").to_owned()));
    let expected = sent.iter().filter(|(_, kind)| *kind == Kind::Value).map(|(text, _)| text.clone());
    prop_assert_eq!(values, expected.collect::<Vec<_>>(), "waiting {:?}", waiting);
    Ok(())
}

/// Checks that a call that the model reads as not executed was not executed, and any other call once.
fn check_calls(session: &Session, executed: &[String]) -> std::result::Result<(), TestCaseError> {
    let once: BTreeSet<_> = executed.iter().collect();
    prop_assert_eq!(once.len(), executed.len(), "a call was executed twice");
    for message in session.history().messages() {
        for result in message.tool_results() {
            let text = result.response.as_str().unwrap_or_default();
            prop_assert_eq!(text.starts_with("not executed"), !once.contains(&result.id), "{}: {}", result.id, text);
        }
    }
    Ok(())
}

async fn talk(plans: Vec<Plan>, sends: Vec<Send>) -> std::result::Result<(), TestCaseError> {
    let (session, log) = (Session::new(), Log::default());
    let agents: Vec<_> = plans.iter().enumerate().map(|(number, plan)| agent(plan, number, &log)).collect();
    let runs = agents.iter().zip(&plans).map(|(agent, plan)| {
        let agent = agent.as_ref().expect("an agent");
        let run = agent.ask("go").session(&session).middleware(map_output(refuse_bad));
        timeout(half_seconds(plan.dropped_after), run)
    });
    let mut sent = Vec::new();
    let user = async {
        let mut now = 0;
        for (number, Send { at, kind }) in sends.iter().enumerate() {
            sleep(half_seconds(at - now)).await;
            now = *at;
            let text = format!("message {number}");
            match kind {
                Kind::Steer => session.steer(&*text).expect("there is room"),
                Kind::FollowUp => session.follow_up(&*text).expect("there is room"),
                Kind::Interject => session.interject(&*text).expect("there is room"),
                Kind::Value => session.send("keeps", &*text).expect("there is room"),
                Kind::Pause => session.pause(),
            }
            sent.push((text, *kind));
            check(&session, &sent, false)?;
        }
        Ok::<_, TestCaseError>(())
    };
    let (_, checked) = tokio::join!(join_all(runs), user);
    checked?;
    // An attempt that is discarded or dropped undoes changes of other runs to the state.
    let is_one_run = plans.len() == 1;
    check(&session, &sent, is_one_run)?;
    if is_one_run {
        check_values(&session, &sent)?;
    }
    // One more run takes all that waits.
    let last = Plan { steps: Vec::new(), dropped_after: 1_000 };
    let last = agent(&last, plans.len(), &log).expect("an agent");
    if let Err(paused) = last.ask("go").session(&session).await {
        prop_assert_eq!(paused.interrupt().map(|interrupt| &*interrupt.kind), Some("agent.paused"));
        last.resume(&session).await.expect("an answer");
    }
    prop_assert!(session.undelivered().is_empty() && session.undelivered_to("keeps").is_empty());
    if is_one_run {
        check_values(&session, &sent)?;
    }
    check(&session, &sent, false)?;
    check_calls(&session, &log.lines())
}

proptest! {
    // A15
    #[test]
    fn each_message_is_once_in_the_history_or_waits(plans in vec(plan(), 1..3), sends in sends()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(talk(plans, sends))?;
    }
}
