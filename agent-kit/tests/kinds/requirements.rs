//! `Requirements`: which tools a model may call, when it has to, and when the run may end.

mod merge;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use emitree_agent::{
    Agent, AgentBuilder, AgentOutput, AgentRun, ChatModel, ChatOptions, ChatRequest, Reply, ScriptedModel, Session,
    Tool, ToolCall, ToolChoice, ToolOutput, TurnDecision, hooks_fn, joins, tool_fn,
};
use emitree_agent_kit::requirements::{
    FinalAnswer, Requirement, Requirements, RequirementsInit, RequirementsStart, RequirementsSuccess, Rule, Rules, Step,
};
use emitree_middleware::Redact;
use emitree_runtime::{Error, Interrupt, Result, RunContext, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{Log, Text, assert_valid, refuse_bad, results};

/// A tool that returns its name, or fails if its argument is `fail`.
fn tool(name: &str) -> Tool {
    let reply = name.to_owned();
    tool_fn(name, "Returns its name", move |args: Text, _: RunContext| {
        let reply = reply.clone();
        async move { if args.text == "fail" { Err(Error::new("failed")) } else { Ok(reply) } }
    })
    .expect("a tool")
}

fn planner(script: &ScriptedModel) -> AgentBuilder {
    let builder = Agent::builder("planner", ChatModel::new(script.clone()).expect("a model"));
    ["think", "weather", "search", "book"].into_iter().fold(builder, |builder, name| builder.tool(tool(name)))
}

/// A model that calls these tools, each in a turn of its own. `think!` fails, and `think+weather` is one turn.
fn calls(names: &[&str]) -> ScriptedModel {
    let call = |name: &str| {
        let arguments = json!({"text": if name.ends_with('!') { "fail" } else { "" }});
        (name.trim_end_matches('!').to_owned(), arguments)
    };
    names.iter().fold(ScriptedModel::new("test"), |script, names| script.calls(names.split('+').map(call)))
}

fn names(request: &ChatRequest) -> Vec<&str> {
    request.tools.iter().map(|spec| spec.name.as_str()).collect()
}

/// Returns the tools that each request offered, with the choice of the request if there is one.
fn offered(script: &ScriptedModel) -> Vec<String> {
    let choice = |request: &ChatRequest| match &request.options.tool_choice {
        None => String::new(),
        Some(ToolChoice::Tool(tool)) => format!(" -> {tool}"),
        Some(choice) => format!(" {choice:?}"),
    };
    script.requests().iter().map(|request| format!("{}{}", names(request).join(" "), choice(request))).collect()
}

async fn ask(script: &ScriptedModel, requirements: Requirements) -> Result<AgentOutput> {
    let session = Session::new();
    let answer = planner(script).with(requirements).build()?.ask("go").session(&session).await;
    assert_valid(&session);
    answer
}

const ALL: &str = "think weather search book";

#[tokio::test]
async fn each_option_decides_which_tools_are_offered_for_the_steps_so_far() -> Result<()> {
    let think = || Requirement::tool("think");
    let cases = [
        (vec![], vec!["think"], vec![ALL, ALL]),
        (vec![think().force_at_step(1)], vec!["think"], vec!["think -> think", ALL]),
        (vec![think().force_at_step(2)], vec!["book", "think"], vec![ALL, "think -> think", ALL]),
        (vec![think().force_after(["weather"])], vec!["weather", "think"], vec![ALL, "think -> think", ALL]),
        (vec![think().consecutive(false)], vec!["think", "book"], vec![ALL, "weather search book", ALL]),
        (vec![think().at_most(1)], vec!["think", "book"], vec![ALL, "weather search book", "weather search book"]),
        (
            vec![think().only_after(["weather", "book"])],
            vec!["book", "weather"],
            vec!["weather search book", "weather search book", ALL],
        ),
        (vec![think().only_before(["weather", "book"])], vec!["think", "book"], vec![ALL, ALL, "weather search book"]),
        (
            vec![think().at_least(2)],
            vec!["think", "think"],
            vec!["think weather search book Required", "think weather search book Required", ALL],
        ),
        (
            vec![think().when(|steps, _| steps.len() == 1)],
            vec!["book", "book"],
            vec!["weather search book", ALL, "weather search book"],
        ),
        // A failed call is no step, unless failures count.
        (vec![think().force_at_step(1)], vec!["think!", "think"], vec!["think -> think", "think -> think", ALL]),
        (vec![think().at_most(1).counting_failures(true)], vec!["think!"], vec![ALL, "weather search book"]),
        // A tool that is not allowed is not forced; of two forced tools, the priority decides.
        (
            vec![think().force_at_step(1), Requirement::tool("book").force_at_step(1)],
            vec!["think"],
            vec!["think -> think", ALL],
        ),
        (
            vec![think().force_at_step(1), Requirement::tool("book").force_at_step(1).priority(1)],
            vec!["book"],
            vec!["book -> book", ALL],
        ),
        (
            vec![think().force_at_step(1).when(|_, _| false), Requirement::tool("book").force_at_step(1)],
            vec!["book"],
            vec!["book -> book", "weather search book"],
        ),
    ];
    for (requirements, called, expected) in cases {
        let script = calls(&called).text("done");
        let case = format!("{requirements:?}");
        assert_eq!(ask(&script, Requirements::new(requirements)).await?.text(), "done", "{case}");
        assert_eq!(offered(&script), expected, "{case}");
    }
    Ok(())
}

#[tokio::test]
async fn the_prompt_lists_the_tools_that_are_not_allowed_with_the_reasons() -> Result<()> {
    let requirements = || {
        Requirements::new([
            Requirement::tool("think").force_at_step(1),
            Requirement::tool("weather").only_after(["think"]).at_least(1).because("ask for the weather first"),
            Requirement::tool("search").only_after(["weather"]),
        ])
    };
    let parts = [
        "Call the tool `think` now.\n\nYou cannot call these tools now:\n\
         - `weather`: may be called only after `think` (ask for the weather first)\n\
         - `search`: may be called only after `weather`\n\n\
         You cannot give your final answer yet:\n\
         - `weather`: has to be called at least once (ask for the weather first)",
        "You cannot call these tools now:\n- `search`: may be called only after `weather`\n\n\
         You cannot give your final answer yet:\n\
         - `weather`: has to be called at least once (ask for the weather first)",
    ];
    let script = calls(&["think", "weather"]).text("done");
    planner(&script).prompt("Plan.").with(requirements()).build()?.ask("go").await?;
    let prompts: Vec<_> = script.requests().into_iter().map(|request| request.system.unwrap_or_default()).collect();
    assert_eq!(prompts, [&format!("Plan.\n\n{}", parts[0]), &format!("Plan.\n\n{}", parts[1]), "Plan."]);

    // With a hook of `model.wire`, the prompt is the first message.
    let script = calls(&["think", "weather"]).text("done");
    let wire = hooks_fn("wire", |hooks| {
        hooks.on_wire(|_, _| ());
    });
    planner(&script).prompt("Plan.").with(wire).with(requirements()).build()?.ask("go").await?;
    let request = &script.requests()[1];
    assert_eq!((request.system.as_deref(), request.messages.len()), (None, 4));
    assert_eq!(request.messages[0].text(), format!("Plan.\n\n{}", parts[1]));
    Ok(())
}

#[tokio::test]
async fn a_call_that_was_not_offered_is_not_executed_and_its_result_has_the_reason() -> Result<()> {
    let script = calls(&["search", "book", "weather", "think"]).text("done");
    let requirements = Requirements::new([
        Requirement::tool("search").only_after(["weather"]).because("no guesses"),
        Requirement::tool("think").force_after(["weather"]),
        Requirement::tool("book").when(|_, _| false),
    ]);
    let answer = ask(&script, requirements).await?;
    let expected = [
        "!denied by requirements: may be called only after `weather` (no guesses)",
        "!denied by requirements: is not allowed now",
        "weather",
        "think",
    ];
    assert_eq!(results(&answer.messages), expected);
    let script = calls(&["weather", "book", "think"]).text("done");
    let forced = Requirements::new([Requirement::tool("think").force_after(["weather"])]);
    let expected = ["weather", "!denied by requirements: `think` has to be called now", "think"];
    assert_eq!(results(&ask(&script, forced).await?.messages), expected);
    Ok(())
}

#[tokio::test]
async fn each_further_call_of_a_turn_is_decided_as_if_the_calls_before_had_succeeded() -> Result<()> {
    let think = || Requirement::tool("think");
    let most = "!denied by requirements: may be called at most 2 times";
    let cases = [
        (think().at_most(2), "think+think+think", vec!["think", "think", most]),
        (think().at_most(2), "think!+think+think", vec!["!failed", "think", most]),
        (
            think().consecutive(false),
            "think+think+book",
            vec!["think", "!denied by requirements: may not be called twice in a row", "book"],
        ),
        (
            think().only_before(["book"]),
            "think+book+think",
            vec!["think", "book", "!denied by requirements: may be called only before `book`"],
        ),
        (
            think().force_at_step(2),
            "weather+book+think+book",
            vec!["weather", "!denied by requirements: `think` has to be called now", "think", "book"],
        ),
        // A call before it in the same turn has no result yet.
        (
            think().only_after(["book"]),
            "book+think",
            vec!["book", "!denied by requirements: may be called only after `book`"],
        ),
    ];
    for (requirement, called, expected) in cases {
        let case = format!("{requirement:?}");
        let answer = ask(&calls(&[called]).text("done"), Requirements::new([requirement])).await?;
        assert_eq!(results(&answer.messages), expected, "{case}");
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_while_the_run_may_not_end_goes_back_so_many_times() -> Result<()> {
    let weather = || Requirements::new([Requirement::tool("weather").at_least(1)]);
    let text = "The final answer is not allowed yet (`weather`: has to be called at least once).";
    let script = ScriptedModel::new("test").text("a").text("b").text("c").call("weather", json!({"text": ""}));
    let answer = ask(&script.text("done"), weather()).await?;
    let texts: Vec<_> = answer.messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["go", "a", text, "b", text, "c", text, "", "", "done"]);

    for most in [0, 2] {
        let script = ScriptedModel::by("test", |_| Reply::text("no"));
        let error = ask(&script, weather().max_retries_per_step(most)).await.unwrap_err().to_string();
        let expected = format!(
            "the model still does not follow its requirements (`max_retries_per_step({most})`): the final answer is not \
             allowed yet (`weather`: has to be called at least once)"
        );
        assert_eq!(error, expected);
        assert_eq!(script.requests().len(), most as usize + 1);
    }
    Ok(())
}

#[tokio::test]
async fn a_model_that_is_refused_in_each_turn_fails_with_the_reason_and_a_step_begins_the_count_anew() -> Result<()> {
    let only = || Requirements::new([Requirement::tool("think").only_after(["book"])]).max_retries_per_step(1);
    let error = ask(&calls(&["think", "think", "think"]), only()).await.unwrap_err().to_string();
    let expected = "the model still does not follow its requirements (`max_retries_per_step(1)`): `think`: may be \
                    called only after `book`";
    assert_eq!(error, expected);
    let script = calls(&["think", "weather", "think", "weather+think", "think", "book"]).text("done");
    assert_eq!(ask(&script, only()).await?.text(), "done");
    Ok(())
}

#[tokio::test]
async fn a_run_in_which_nothing_is_allowed_fails_with_the_reason_of_each_tool() -> Result<()> {
    let never = |name: &str| Requirement::tool(name).when(|_, _| false);
    let requirements =
        Requirements::new([never("think").at_least(1), never("search"), never("book").because("closed")])
            .and(Fixed(vec![Rule::hide("weather")]));
    let error = ask(&ScriptedModel::new("test"), requirements).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "no tool may be called (`think`: is not allowed now; `weather`: `weather` is not available; `search`: is not \
         allowed now; `book`: is not allowed now (closed)), but the final answer is not allowed yet (`think`: has to be \
         called at least once)"
    );
    Ok(())
}

/// Rules that do not depend on the steps.
#[derive(Debug)]
struct Fixed(Vec<Rule>);

impl Rules for Fixed {
    fn rules(&self, _: &[Step], _: &RunContext) -> Vec<Rule> {
        self.0.clone()
    }
}

#[tokio::test]
async fn rules_are_merged_so_that_one_is_enough_to_deny_to_hide_and_to_prevent_the_end() -> Result<()> {
    let rules = vec![
        Rule::deny("think", "one"),
        Rule::deny("think", "two"),
        Rule::hide("search"),
        Rule::force("search", 9),
        Rule::force("weather", 1),
    ];
    let script = calls(&["think", "search", "weather"]).text("done");
    let answer = ask(&script, Requirements::new([]).and(Fixed(rules)).max_retries_per_step(9)).await?;
    assert_eq!(offered(&script)[0], "weather -> weather");
    assert!(!script.requests()[0].system.as_ref().is_some_and(|prompt| prompt.contains("search")));
    let expected =
        ["!denied by requirements: one; two", "!denied by requirements: `search` is not available", "weather"];
    assert_eq!(results(&answer.messages), expected);
    Ok(())
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
struct Plan {
    city: String,
    days: u32,
}

fn answers(arguments: &Value) -> Reply {
    Reply::calls([("final_answer", arguments.clone())])
}

#[tokio::test]
async fn the_final_answer_is_a_tool_that_is_offered_while_the_run_may_end() -> Result<()> {
    let plan = json!({"city": "Lima", "days": 2});
    let requirements = || {
        Requirements::new([
            Requirement::tool("think").force_after(["weather"]),
            Requirement::tool("weather").at_least(1),
        ])
        .final_answer::<Plan>()
    };
    // A call before it is offered, a wrong one, one beside another call.
    let both = Reply::calls([("final_answer", plan.clone()), ("book", json!({"text": ""}))]);
    let wrong = answers(&json!({"city": "Lima", "days": "two"}));
    let script = ScriptedModel::new("test").reply(answers(&plan)).call("weather", json!({"text": ""})).reply(wrong);
    let answer = ask(&script.clone().reply(both).reply(answers(&plan)), requirements()).await?;
    assert_eq!(answer.structured::<Plan>()?, Plan { city: "Lima".to_owned(), days: 2 });
    let (early, forced) = (format!("{ALL} Required"), "think final_answer -> think");
    assert_eq!(offered(&script), [&early, &early, forced, forced, forced]);
    let results = results(&answer.messages);
    assert!(results[0].starts_with("!denied by requirements: the final answer is not allowed yet"), "{results:?}");
    assert!(results[2].contains("at `days`"), "{results:?}");
    assert_eq!(results[3], "!denied by requirements: the final answer has to be the only call of its turn");
    Ok(())
}

#[tokio::test]
async fn a_text_instead_of_the_call_is_the_final_answer_if_it_fits_and_the_run_may_end() -> Result<()> {
    let script = ScriptedModel::new("test").text("In Lima.").text(r#"{"city": "Lima", "days": 2}"#);
    let answer = ask(&script, Requirements::new([]).final_answer::<Plan>()).await?;
    assert_eq!(answer.structured::<Plan>()?.days, 2);
    let told = script.requests()[1].messages[2].text();
    assert!(
        told.starts_with("Your answer does not fit: it is not JSON") && told.ends_with("`final_answer`."),
        "{told}"
    );

    for (reply, expected) in [
        (Reply::text("42"), "42"),
        (answers(&json!({"response": "In Lima."})), "In Lima."),
        (Reply::text("In Lima."), "In Lima."),
    ] {
        let script = ScriptedModel::new("test").reply(reply);
        let answer = ask(&script, Requirements::new([]).final_answer::<String>()).await?;
        assert_eq!(answer.text(), expected);
        let spec = &script.requests()[0].tools[4];
        assert_eq!(spec.parameters["properties"]["response"]["type"], "string");
    }
    let list = ScriptedModel::new("test").text("[1]").text("unused");
    assert_eq!(ask(&list, Requirements::new([]).final_answer::<Vec<u32>>()).await?.structured::<Vec<u32>>()?, [1]);

    let bad = ScriptedModel::by("test", |_| Reply::text("never"));
    let error = ask(&bad, Requirements::new([]).final_answer::<Plan>()).await.unwrap_err().to_string();
    assert!(error.contains("`max_retries_per_step(3)`") && error.contains("does not fit"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_tool_choice_of_the_options_stays_as_far_as_the_rules_allow() -> Result<()> {
    let requirement = || Requirement::tool("weather").at_least(1);
    for (choice, before, after) in [
        (ToolChoice::Auto, " Required", " Auto"),
        (ToolChoice::Tool("weather".to_owned()), " -> weather", " -> weather"),
    ] {
        let script = calls(&["weather"]).text("done");
        let options = ChatOptions::new().tool_choice(choice);
        let agent = planner(&script).options(options).with(Requirements::new([requirement().at_least(1)])).build()?;
        agent.ask("go").await?;
        assert_eq!(offered(&script), [format!("{ALL}{before}"), format!("{ALL}{after}")]);
    }
    let script = calls(&["weather"]).text("done");
    let options = ChatOptions::new().tool_choice(ToolChoice::Tool("weather".to_owned()));
    let once = Requirements::new([Requirement::tool("weather").at_most(1)]);
    planner(&script).options(options).with(once).build()?.ask("go").await?;
    assert_eq!(offered(&script)[1], "think search book");
    Ok(())
}

#[tokio::test]
async fn the_events_of_a_run_are_emitted_on_it_and_on_the_emitter_of_the_requirements() -> Result<()> {
    let text = "Take \"an\" umbrella.";
    let reply = Reply::calls([("final_answer", json!({"response": text}))]).in_pieces(3);
    let script = calls(&["weather"]).reply(reply);
    let requirements =
        Requirements::new([Requirement::tool("weather").force_at_step(1).at_most(1)]).final_answer::<String>();
    let (log, pieces) = (Log::default(), Log::default());
    let (init, start, success) = (log.clone(), log.clone(), log.clone());
    let emitter = requirements.emitter();
    emitter.on("init", move |event: &mut RequirementsInit, _| init.add(format!("init {}", event.tools.join(" "))))?;
    emitter.on("start", move |event: &mut RequirementsStart, _| {
        let refused: Vec<_> = event.refused.iter().map(|(tool, _)| tool.as_str()).collect();
        let (turn, offered, choice) = (event.turn, event.offered.join(" "), &event.tool_choice);
        start.add(format!("start {turn}: {offered}, {choice:?}, not {}", refused.join(" ")));
    })?;
    emitter.on("success", move |event: &mut RequirementsSuccess, _| success.add(format!("success {}", event.turn)))?;
    let to = pieces.clone();
    let agent = planner(&script).with(requirements).build()?;
    let run = agent.ask("go").on_token(|_| ());
    let answer = run
        .on("middleware.requirements.final_answer", move |event: &mut FinalAnswer, _| {
            assert!(event.output().ends_with(&event.delta));
            to.add(std::mem::take(&mut event.delta));
            if let Some(value) = &event.structured {
                to.add(format!(" = {value} of {}", event.output()));
            }
        })
        .await?;
    assert_eq!(answer.text(), text);
    let lines = [
        "init think weather search book final_answer",
        "start 1: weather final_answer, Some(Tool(\"weather\")), not think search book",
        "success 1",
        "start 2: think search book final_answer, Some(Required), not weather",
        "success 2",
    ];
    assert_eq!(log.lines(), lines);
    assert!(pieces.lines().len() > 4, "{:?}", pieces.lines());
    assert_eq!(pieces.lines().concat(), format!("{text} = {} of {text}", json!(text)));
    Ok(())
}

#[tokio::test]
async fn secrets_in_pieces_of_the_final_answer_are_redacted_in_its_events() -> Result<()> {
    const CLEAR: &str = "Before you go, please ask [REDACTED:email] whether it rains in Lima.";
    for for_all in [true, false] {
        let reply =
            answers(&json!({"response": "Before you go, please ask maria.plan@mailbox.org whether it rains in Lima."}))
                .in_pieces(3);
        let script = ScriptedModel::new("test").reply(reply);
        let requirements = Requirements::new([]).final_answer::<String>();
        let log = Log::default();
        let to = log.clone();
        requirements.emitter().observe("final_answer", move |event: &FinalAnswer, _| {
            assert!(CLEAR.starts_with(event.output()), "{}", event.output());
            to.add(&*event.delta);
        })?;
        let agent = planner(&script).with(requirements).build()?;
        let run = agent.ask("go").on_token(|_| ());
        // Without `for_tree`, the model's run is not redacted, but the events are the agent's.
        let run = if for_all { run.middleware(for_tree(Redact::new())) } else { run.middleware(Redact::new()) };
        assert_eq!(run.await?.text(), CLEAR);
        assert!(log.lines().len() > 1, "{:?}", log.lines());
        assert_eq!(log.lines().concat(), CLEAR);
    }
    Ok(())
}

#[tokio::test]
async fn a_final_answer_that_is_not_offered_emits_no_text() -> Result<()> {
    let script = ScriptedModel::new("test").reply(answers(&json!({"response": "early"}))).text("no");
    let requirements =
        Requirements::new([Requirement::tool("weather").at_least(1)]).final_answer::<String>().max_retries_per_step(0);
    let log = Log::default();
    let to = log.clone();
    requirements.emitter().on("final_answer", move |event: &mut FinalAnswer, _| to.add(&*event.delta))?;
    assert!(ask(&script, requirements).await.is_err());
    assert_eq!(log.lines(), [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_tool_that_was_called_alike_so_often_in_a_row_is_not_offered_in_the_next_turn() -> Result<()> {
    let script = calls(&["think", "think", "think", "think", "think"]).text("done");
    let answer = ask(&script, Requirements::new([])).await?;
    let expected: Vec<_> = [ALL, ALL, ALL, "weather search book", ALL, ALL].map(str::to_owned).into();
    assert_eq!(offered(&script), expected);
    let denied = "!denied by requirements: was called 3 times in a row with the same arguments";
    assert_eq!(results(&answer.messages), ["think", "think", "think", denied, "think"]);
    // Other arguments, or another tool in between, are not a row.
    let script = calls(&["think", "think", "book", "think", "think", "think!"]).text("done");
    ask(&script, Requirements::new([])).await?;
    assert!(offered(&script).iter().all(|offered| offered == ALL));
    let script = calls(&["think", "book"]).text("done");
    ask(&script, Requirements::new([]).max_equal_calls(1)).await?;
    assert_eq!(offered(&script), [ALL, "weather search book", "think weather search"]);
    Ok(())
}

/// A requirement whose responder logs each question, and allows all but `book`.
fn asks(log: &Log) -> Requirement {
    let log = log.clone();
    Requirement::ask(["search", "book"]).by(move |call: ToolCall| {
        log.add(call.name.clone());
        async move {
            if call.arguments.to_string().contains("fail") {
                Err(Error::new("no reply"))
            } else {
                Ok(call.name != "book")
            }
        }
    })
}

#[tokio::test]
async fn a_responder_is_asked_about_each_allowed_call_and_may_be_remembered_or_hide_a_tool() -> Result<()> {
    let turns = ["think", "search+book", "search", "book"];
    let refused = "!denied by requirements: the call was refused";
    let all = ["think", "search", refused, "search", refused];
    type Change = fn(Requirement) -> Requirement;
    let cases: [(Change, Vec<&str>, &str); 4] = [
        (|it| it, vec!["search", "book", "search", "book"], ALL),
        (Requirement::remember, vec!["search", "book"], ALL),
        (Requirement::hide_refused, vec!["search", "book", "search"], "think weather search"),
        (|it| it.remember().hide_refused(), vec!["search", "book"], "think weather search"),
    ];
    for (change, expected, last) in cases {
        let (log, script) = (Log::default(), calls(&turns).text("done"));
        let answer = ask(&script, Requirements::new([change(asks(&log))])).await?;
        assert_eq!(
            (log.lines(), offered(&script)[4].as_str()),
            (expected.iter().map(|it| (*it).to_owned()).collect(), last)
        );
        let mut results = results(&answer.messages);
        if last != ALL {
            assert_eq!(results.pop().as_deref(), Some("!denied by requirements: `book` is not available"));
        }
        assert_eq!(results, all[..results.len()]);
    }
    // Nobody is asked about a call that the rules do not allow.
    let log = Log::default();
    ask(&calls(&["search"]).text("done"), Requirements::new([asks(&log).only_after(["think"])])).await?;
    assert_eq!(log.lines(), [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_responder_that_fails_denies_the_call_and_one_that_interrupts_interrupts_it() -> Result<()> {
    let answer =
        ask(&calls(&["search!+book"]).text("done"), Requirements::new([asks(&Log::default()).remember()])).await?;
    let expected = ["!denied by requirements: no reply", "!denied by requirements: the call was refused"];
    assert_eq!(results(&answer.messages), expected);
    let interrupts = Requirement::ask(["book"])
        .by(|_| async { Err(Error::interrupted(Interrupt::new("question", json!("may I?")))) });
    let script = calls(&["think+book"]);
    let error = ask(&script, Requirements::new([interrupts])).await.unwrap_err();
    assert!(error.is_interrupted(), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_run_does_not_end_in_another_way_while_it_may_not_end() -> Result<()> {
    let weather = || Requirements::new([Requirement::tool("weather").at_least(1)]);
    let show = tool_fn("show", "Shows", |_: Text, _: RunContext| async { Ok(ToolOutput::new("shown").answer()) })?;
    let stops = hooks_fn("stops", |hooks| {
        hooks.on_action(|action, ctx| {
            if emitree_agent::AgentContext::turn(ctx).is_some_and(|turn| turn.number == 1) {
                action.decision = Some(TurnDecision::Stop);
            }
        });
    });
    let script = calls(&["show", "weather"]).text("done");
    let answer = planner(&script).tool(show.clone()).with(weather()).build()?.ask("go").await?;
    assert_eq!(answer.text(), "done");
    let answer = planner(&calls(&["think", "weather", "show"])).tool(show).with(weather()).with(stops).build()?;
    assert_eq!(answer.ask("go").await?.text(), "shown");
    Ok(())
}

#[tokio::test]
async fn another_attempt_begins_without_steps() -> Result<()> {
    let script = calls(&["weather"]).text("bad").text("early").call("weather", json!({"text": ""})).text("done");
    let requirements = Requirements::new([Requirement::tool("weather").at_least(1).at_most(1)]);
    let agent = planner(&script).with(requirements).max_middleware_retries(1).build()?;
    let answer = agent.ask("go").middleware(emitree_runtime::map_output(refuse_bad)).await?;
    assert_eq!((answer.text().as_str(), results(&answer.messages)), ("done", vec!["weather".to_owned()]));
    Ok(())
}

// A6
#[tokio::test]
async fn neither_hooks_of_the_user_nor_the_way_of_binding_switch_the_requirements_off() -> Result<()> {
    let requirements = || {
        Requirements::new([
            Requirement::tool("think").force_at_step(1),
            Requirement::tool("weather").only_after(["think"]).at_least(1),
        ])
        .final_answer::<String>()
    };
    // Hooks of the builder at each place that requirements use, and at `model.wire`.
    let own = |builder: AgentBuilder| {
        builder.hooks(|hooks| {
            hooks.on_wire(|_, _| ());
            hooks.on_request(|_, _| ());
            hooks.on_action(|_, _| ());
            hooks.on_gate(|_, _| ());
            hooks.on_result(|_, _| ());
            hooks.on_stop(|_, _| Ok(false));
            hooks.on_end(|_, _| ());
            hooks.prompt(|_| Ok("Be brief.".to_owned()));
        })
    };
    let script = || calls(&["weather", "think"]).text("early").call("weather", json!({"text": ""})).text("done");
    let check = |answer: &AgentOutput, script: &ScriptedModel| {
        let denied = "!denied by requirements: may be called only after `think`";
        assert_eq!(results(&answer.messages), [denied, "think", "weather"]);
        assert_eq!((answer.text().as_str(), answer.turns), ("done", 5));
        assert_eq!(names(&script.requests()[0]), ["think"]);
    };
    let with = script();
    check(&own(planner(&with).with(requirements())).build()?.ask("go").await?, &with);
    let on_run = script();
    check(&own(planner(&on_run)).build()?.ask("go").with(requirements()).await?, &on_run);
    let joined = script();
    let run = own(planner(&joined)).build()?;
    check(&run.ask("go").middleware(for_tree(joins(requirements()))).await?, &joined);
    // An agent below.
    let below = script();
    let inner = own(planner(&below)).build()?.as_tool("Plans");
    let outer = ScriptedModel::new("outer").call("planner", json!({"task": "go"})).text("end");
    let agent = Agent::builder("outer", ChatModel::new(outer)?).tool(inner).build()?;
    let only = emitree_middleware::Runs::named("planner").only(joins(requirements()));
    assert_eq!(results(&agent.ask("go").middleware(for_tree(only)).await?.messages), ["done"]);
    assert_eq!(below.requests().len(), 5);
    Ok(())
}

#[tokio::test]
async fn a_call_that_a_resolver_rewrote_follows_the_rules_too() -> Result<()> {
    let resolves = hooks_fn("resolves", |hooks| {
        hooks.on_resolve(|call, _| Ok((call.name == "book").then(|| ToolCall::new("", "think", json!({"text": ""})))));
    });
    let script = calls(&["book"]).text("done");
    let requirements = Requirements::new([Requirement::tool("think").only_after(["weather"])]);
    let answer = planner(&script).with(resolves).with(requirements).build()?.ask("go").await?;
    assert_eq!(results(&answer.messages), ["!denied by requirements: may be called only after `weather`"]);
    Ok(())
}

#[test]
fn contradictions_are_errors_of_build_that_quote_the_requirement() {
    let think = || Requirement::tool("think");
    let weather = || Requirement::tool("weather");
    let cases = [
        (vec![Requirement::tool("thnik")], "names the tool `thnik`, but the agent `planner` has only `think`"),
        (vec![think().only_after(["wether"])], "names the tool `wether`"),
        (vec![think().force_after(["wether"])], "names the tool `wether`"),
        (
            vec![think().only_after(["think"])],
            "`Requirement::tool(\"think\").only_after([\"think\"])` has `think` in its own `only_after`",
        ),
        (vec![think().only_before(["book", "think"])], "has `think` in its own `only_before`"),
        (vec![think().force_after(["think"])], "has `think` in its own `force_after`"),
        (vec![think().only_after(["book"]).only_before(["book"])], "is both after and before `book`"),
        (vec![think().at_least(3).at_most(2)], "`at_least(3)` exceeds `at_most(2)` of `think`"),
        (vec![think().at_least(3), think().at_most(2)], "`at_least(3)` exceeds `at_most(2)` of `think`"),
        (vec![think().force_at_step(0)], "`Requirement::tool(\"think\").force_at_step(0)` forces a step 0"),
        (vec![think().force_at_step(1).at_most(0)], "`think` has `at_most(0)`"),
        (vec![think().force_after(["book"]).at_most(0)], "`think` has `at_most(0)`"),
        (
            vec![think().force_at_step(2).only_after(["weather", "book"])],
            "at step 2, `book`, `weather` cannot all have been called before `think`",
        ),
        (
            vec![think().force_at_step(2).only_after(["weather"]), weather().only_after(["book"])],
            "at step 2, `book`, `weather` cannot all",
        ),
        (
            vec![think().only_after(["weather"]), weather().only_after(["think"])],
            "can never be met: `think` would have to be called before itself",
        ),
        (
            vec![think().only_after(["weather"]).only_before(["book"]), weather().only_after(["book"])],
            "`think` may be called only before `book`, and only after it",
        ),
        (
            vec![think().at_least(1).only_after(["book"]), Requirement::tool("book").at_most(0)],
            "`book` has `at_most(0)`",
        ),
        (
            vec![Requirement::ask(["book"])],
            "`Requirement::ask([\"book\"])` asks nobody (`ask`): set a responder with `by`",
        ),
        (vec![think().remember()], "asks nobody (`remember`)"),
        (vec![think().hide_refused()], "asks nobody (`hide_refused`)"),
        (vec![Requirement::ask([""; 0]).by(|_| async { Ok(true) })], "names no tool"),
    ];
    for (requirements, expected) in cases {
        let case = format!("{requirements:?}");
        let built = planner(&ScriptedModel::new("test")).with(Requirements::new(requirements)).build();
        let error = built.expect_err(&case).to_string();
        assert!(error.contains(expected), "{case}: {error}");
    }
}

#[test]
fn build_checks_own_rules_and_accepts_requirements_that_can_be_met() {
    let error = planner(&ScriptedModel::new("test")).with(Requirements::new([]).max_equal_calls(0)).build();
    assert!(error.unwrap_err().to_string().contains("`max_equal_calls(0)`"));
    let own = Requirements::new([]).and(Requirement::tool("thnik"));
    assert!(planner(&ScriptedModel::new("test")).with(own).build().is_err());
    let fine = [
        Requirement::tool("think").force_at_step(1).consecutive(false),
        Requirement::tool("weather").only_after(["think"]).at_least(1).at_most(2),
        Requirement::tool("book").only_after(["think", "weather"]).force_at_step(3),
    ];
    assert!(planner(&ScriptedModel::new("test")).with(Requirements::new(fine)).build().is_ok());
}

#[tokio::test]
async fn own_rules_see_the_outputs_of_the_steps() -> Result<()> {
    /// Allows `book` once `search` was called twice, counting failures.
    #[derive(Debug)]
    struct Counted(Arc<AtomicU32>);
    impl Rules for Counted {
        fn rules(&self, steps: &[Step], _: &RunContext) -> Vec<Rule> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let failed = |step: &Step| step.output().is_some_and(|output| output.is_error);
            let searches = steps.iter().filter(|step| step.tool() == "search" && failed(step)).count();
            if searches < 2 { vec![Rule::prevent_end("search", "search twice in vain")] } else { vec![] }
        }

        fn counts_failures(&self) -> bool {
            true
        }
    }
    let merges = Arc::new(AtomicU32::new(0));
    let script = calls(&["search!", "search+search!"]).text("done");
    let answer = ask(&script, Requirements::new([]).and(Counted(Arc::clone(&merges)))).await?;
    assert_eq!(answer.turns, 3);
    // Three requests, two calls of one turn, and the end.
    assert_eq!(merges.load(Ordering::Relaxed), 6);
    Ok(())
}
