//! Random requirements, calls and failures against a small model of the merge: no call breaks a rule, a run that succeeds
//! has met all, and a run that cannot go on fails with the reasons.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use emitree_agent::{AgentRun, ChatRequest, History, Reply, Role, ScriptedModel, Session, ToolChoice};
use emitree_agent_kit::requirements::{Requirement, Requirements};
use emitree_runtime::Result;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use serde_json::json;

use super::{names, planner};

const TOOLS: [&str; 4] = ["think", "weather", "search", "book"];

/// The options of a requirement. Tools are numbers.
#[derive(Clone, Debug, Default)]
struct Options {
    tool: usize,
    step: Option<usize>,
    force_after: Vec<usize>,
    priority: i32,
    consecutive: bool,
    after: Vec<usize>,
    before: Vec<usize>,
    least: usize,
    most: Option<usize>,
    failures: bool,
}

fn options() -> impl Strategy<Value = Options> {
    let lists = || vec(0..4_usize, 0..2);
    let forces = (weighted(0.3, 1..4_usize), lists(), 0..3_i32);
    let numbers = (weighted(0.3, 1..3_usize), weighted(0.4, 1..4_usize));
    (0..4_usize, forces, any::<bool>(), lists(), lists(), numbers, any::<bool>()).prop_map(
        |(tool, (step, force_after, priority), consecutive, after, before, (least, most), failures)| {
            let least = least.unwrap_or(0);
            Options { tool, step, force_after, priority, consecutive, after, before, least, most, failures }
        },
    )
}

impl Options {
    fn requirement(&self) -> Requirement {
        let names = |list: &[usize]| list.iter().map(|tool| TOOLS[*tool]).collect::<Vec<_>>();
        let requirement = Requirement::tool(TOOLS[self.tool])
            .force_after(names(&self.force_after))
            .priority(self.priority)
            .consecutive(self.consecutive)
            .only_after(names(&self.after))
            .only_before(names(&self.before))
            .at_least(self.least)
            .counting_failures(self.failures);
        let requirement = self.step.into_iter().fold(requirement, Requirement::force_at_step);
        self.most.into_iter().fold(requirement, Requirement::at_most)
    }

    fn seen(&self, calls: &[Call]) -> Vec<usize> {
        calls.iter().filter(|call| self.failures || !call.1).map(|call| call.0).collect()
    }

    fn allows(&self, calls: &[Call]) -> bool {
        let seen = self.seen(calls);
        self.most.is_none_or(|most| seen.iter().filter(|tool| **tool == self.tool).count() < most)
            && (self.consecutive || seen.last() != Some(&self.tool))
            && self.after.iter().all(|tool| seen.contains(tool))
            && !self.before.iter().any(|tool| seen.contains(tool))
    }

    fn forces(&self, calls: &[Call]) -> bool {
        let seen = self.seen(calls);
        self.step == Some(seen.len() + 1) || seen.last().is_some_and(|last| self.force_after.contains(last))
    }

    fn is_met(&self, calls: &[Call]) -> bool {
        self.seen(calls).iter().filter(|tool| **tool == self.tool).count() >= self.least
    }
}

/// The number of a tool, and whether its call failed.
type Call = (usize, bool);

/// The tools that may be called after these calls.
fn allowed(all: &[Options], calls: &[Call]) -> BTreeSet<usize> {
    let mut allowed: BTreeSet<_> = (0..4).collect();
    for options in all.iter().filter(|options| !options.allows(calls)) {
        allowed.remove(&options.tool);
    }
    let forces = all.iter().filter(|options| allowed.contains(&options.tool) && options.forces(calls));
    match forces.max_by_key(|options| options.priority).map(|options| options.priority) {
        None => allowed,
        // If priorities are equal, the first wins.
        Some(most) => {
            let is_forced = |options: &&Options| {
                options.priority == most && allowed.contains(&options.tool) && options.forces(calls)
            };
            all.iter().find(is_forced).map(|options| options.tool).into_iter().collect()
        }
    }
}

fn may_end(all: &[Options], calls: &[Call]) -> bool {
    all.iter().all(|options| options.is_met(calls))
}

/// The model's move in a turn. It reads neither the offered tools nor `tool_choice`.
#[derive(Clone, Debug)]
enum Turn {
    Calls(Vec<Call>),
    Answer,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        5 => vec((0..4_usize, any::<bool>()), 1..4).prop_map(Turn::Calls),
        1 => Just(Turn::Answer),
    ]
}

/// A model that plays the turns and then answers. Calls differ, so that none is called alike in a row.
fn script(turns: Vec<Turn>) -> ScriptedModel {
    let state = Mutex::new((turns.into_iter(), 0_u32));
    ScriptedModel::by("test", move |_| {
        let (turns, count) = &mut *state.lock().expect("no panic");
        match turns.next() {
            None | Some(Turn::Answer) => Reply::text("done"),
            Some(Turn::Calls(calls)) => Reply::calls(calls.into_iter().map(|(tool, fails)| {
                *count += 1;
                (TOOLS[tool], json!({"text": if fails { "fail".to_owned() } else { count.to_string() }}))
            })),
        }
    })
}

fn run(all: &[Options], turns: Vec<Turn>) -> Option<(Result<String>, History, Vec<ChatRequest>)> {
    let script = script(turns);
    let requirements = Requirements::new(all.iter().map(Options::requirement)).max_equal_calls(u32::MAX);
    // Options that contradict each other are refused.
    let agent = planner(&script).with(requirements).build().ok()?;
    let session = Session::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let answer = runtime.block_on(async { agent.ask("go").session(&session).await });
    Some((answer.map(|answer| answer.text()), crate::support::assert_valid(&session), script.requests()))
}

/// Follows the history, and compares each turn with the model of the merge. Returns the calls that were executed.
fn follow(all: &[Options], history: &History, requests: &[ChatRequest]) -> Result<Vec<Call>, TestCaseError> {
    let mut done: Vec<Call> = Vec::new();
    let mut requests = requests.iter();
    let messages = history.messages();
    for (at, message) in messages.iter().enumerate() {
        let calls: Vec<_> = message.tool_calls().collect();
        if message.role == Role::Assistant {
            check_request(all, &done, requests.next().expect("a request"))?;
        }
        if calls.is_empty() {
            continue;
        }
        let results = messages[at + 1..].iter().flat_map(|message| message.tool_results()).take(calls.len());
        let results: HashMap<_, _> = results.map(|result| (&result.id, result)).collect();
        let offered = allowed(all, &done);
        let (mut expected, mut settled) = (done.clone(), Vec::new());
        for call in calls {
            let tool = TOOLS.iter().position(|name| *name == call.name).expect("a tool");
            let text = results[&call.id].response.as_str().unwrap_or_default();
            let is_executed = !text.starts_with("denied by requirements: ");
            let is_right = offered.contains(&tool) && allowed(all, &expected).contains(&tool);
            prop_assert_eq!(is_executed, is_right, "{:?} after {:?}: {}", call, expected, text);
            if is_executed {
                expected.push((tool, false));
                settled.push((tool, results[&call.id].is_error));
            }
        }
        done.extend(settled);
    }
    Ok(done)
}

fn check_request(all: &[Options], done: &[Call], request: &ChatRequest) -> Result<(), TestCaseError> {
    let expected: Vec<_> = allowed(all, done).into_iter().map(|tool| TOOLS[tool]).collect();
    prop_assert_eq!(names(request), expected.clone());
    let prompt = request.system.as_deref().unwrap_or_default();
    prop_assert_eq!(prompt.contains("You cannot give your final answer yet"), !may_end(all, done));
    match &request.options.tool_choice {
        Some(ToolChoice::Tool(tool)) => prop_assert_eq!(&expected, &[tool.as_str()]),
        Some(choice) => prop_assert!(*choice == ToolChoice::Required && !may_end(all, done)),
        None => prop_assert!(may_end(all, done)),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    // A21
    #[test]
    fn no_call_breaks_a_rule_and_a_run_succeeds_only_if_it_may_end(
        all in vec(options(), 0..5),
        turns in vec(turn(), 0..8),
    ) {
        let Some((answer, history, requests)) = run(&all, turns) else { return Ok(()) };
        let done = follow(&all, &history, &requests)?;
        match answer {
            Ok(_) => prop_assert!(may_end(&all, &done), "{done:?}"),
            Err(error) => {
                let error = error.to_string();
                let is_reasoned = error.starts_with("no tool may be called (") || error.contains("max_retries_per_step");
                prop_assert!(is_reasoned || error.contains("max_steps"), "{error}");
                prop_assert!(requests.len() <= 20);
                if error.starts_with("no tool may be called (") {
                    prop_assert!(allowed(&all, &done).is_empty() && !may_end(&all, &done), "{done:?}: {error}");
                }
            }
        }
    }
}
