//! `ReAct` and `Requirements` with each other, with a selection of tools, and with handoffs.

use emitree_agent::kinds::Handoff;
use emitree_agent::{
    Agent, AgentBuilder, AgentRun, ChatModel, ChatRequest, Reply, ScriptedModel, Session, Tool, tool_fn,
};
use emitree_agent_kit::built_in::ToolSelector;
use emitree_agent_kit::react::ReAct;
use emitree_agent_kit::requirements::{FinalAnswer, Requirement, Requirements};
use emitree_runtime::{Result, RunContext};
use serde_json::json;

use crate::support::{Log, Text, assert_valid, results};

fn tool(name: &'static str) -> Tool {
    tool_fn(name, "Returns its name", move |_: Text, _: RunContext| async move { Ok(name) }).expect("a tool")
}

fn agent(name: &str, script: &ScriptedModel) -> AgentBuilder {
    let builder = Agent::builder(name, ChatModel::new(script.clone()).expect("a model"));
    builder.tool(tool("think")).tool(tool("weather"))
}

/// A reply in lines that calls a tool.
fn call(tool: &str) -> String {
    format!("Thought: I act.\nFunction Name: {tool}\nFunction Input: {{\"text\": \"\"}}")
}

/// The functions that the prompt of a request lists.
fn listed(request: &ChatRequest) -> Vec<&str> {
    let (functions, _) = request.system.as_deref().unwrap_or_default().split_once("# How to reply").expect("a prompt");
    functions.lines().filter_map(|line| line.strip_prefix("Function Name: ")).collect()
}

fn requirements() -> Requirements {
    Requirements::new([
        Requirement::tool("think").force_at_step(1),
        Requirement::tool("weather").only_after(["think"]).at_least(1),
    ])
}

#[tokio::test]
async fn a_model_that_calls_tools_with_text_follows_requirements_in_any_order_of_the_two() -> Result<()> {
    for is_first in [true, false] {
        let replies = [
            call("weather"),
            call("think"),
            "Final Answer: Rain, I guess.".into(),
            call("weather"),
            "It rains.".into(),
        ];
        let script = replies.into_iter().fold(ScriptedModel::new("test"), ScriptedModel::text);
        let (builder, session) = (agent("planner", &script), Session::new());
        let builder = if is_first {
            builder.with(ReAct::new()).with(requirements())
        } else {
            builder.with(requirements()).with(ReAct::new())
        };
        let answer = builder.build()?.ask("go").session(&session).await?;
        assert_eq!(
            (answer.text().as_str(), results(&answer.messages)),
            ("It rains.", vec!["think".into(), "weather".into()])
        );
        assert_valid(&session);
        let requests = script.requests();
        let all: Vec<_> = requests.iter().map(listed).collect();
        let both = vec!["think", "weather"];
        assert_eq!(all, [vec!["think"], vec!["think"], both.clone(), both.clone(), both]);
        let told = |at: usize| requests[at].messages.last().map(|message| message.text()).unwrap_or_default();
        assert!(told(1).contains("`weather` is not one of `think`"), "{}", told(1));
        assert!(told(3).ends_with("(`weather`: has to be called at least once)."), "{}", told(3));
        let system = requests[0].system.clone().unwrap_or_default();
        assert!(system.contains("- `weather`: may be called only after `think`"), "{system}");
    }
    Ok(())
}

#[tokio::test]
async fn the_final_answer_of_a_model_that_calls_tools_with_text_arrives_in_pieces() -> Result<()> {
    let text = "Take an umbrella.";
    let reply = format!("Thought: done\nFunction Name: final_answer\nFunction Input: {{\"response\": \"{text}\"}}");
    let script = ScriptedModel::new("test").reply(Reply::text(reply).in_pieces(5));
    let requirements = Requirements::new([]).final_answer::<String>();
    let agent = agent("planner", &script).with(requirements).with(ReAct::new()).build()?;
    let log = Log::default();
    let to = log.clone();
    let run = agent.ask("go").on_token(|_| ());
    let run = run.on("middleware.requirements.final_answer", move |event: &mut FinalAnswer, _| to.add(&*event.delta));
    assert_eq!(run.await?.text(), text);
    assert!(log.lines().len() > 2, "{:?}", log.lines());
    assert_eq!(log.lines().concat(), text);
    Ok(())
}

#[tokio::test]
async fn a_selection_of_tools_does_not_take_the_final_answer() -> Result<()> {
    let select = ToolSelector::by(|_, _| Box::pin(async { Ok(vec!["think".to_owned()]) }));
    let answer = Reply::calls([("final_answer", json!({"response": "done"}))]);
    let script = ScriptedModel::new("test").call("think", json!({"text": ""})).reply(answer);
    let requirements = Requirements::new([Requirement::tool("think").at_least(1)]).final_answer::<String>();
    let answer = agent("planner", &script).with(select).with(requirements).build()?.ask("go").await?;
    assert_eq!(answer.text(), "done");
    let names = |at: usize| script.requests()[at].tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    assert_eq!((names(0), names(1)), (vec!["think".to_owned()], vec!["think".to_owned(), "final_answer".to_owned()]));
    Ok(())
}

#[tokio::test]
async fn a_handoff_from_text_to_calls_and_back_keeps_the_kind_of_each() -> Result<()> {
    let clerk = ScriptedModel::new("clerk").call("think", json!({"text": ""})).call("weather", json!({"text": ""}));
    let clerk = clerk.text("Thought: no line");
    let billing = agent("billing", &clerk).with(requirements()).build()?;
    let transfer = "Thought: not mine\nFunction Name: transfer_to_billing\nFunction Input: {\"reason\": \"invoices\"}";
    let script = ScriptedModel::new("source").text(transfer).text("Final Answer: Bye.");
    let handoff = Handoff::to(&billing, "Invoices");
    let support = agent("support", &script).with(ReAct::new()).handoff(handoff).build()?;
    let session = Session::new();
    let answer = support.ask("My invoice is wrong.").session(&session).on_token(|_| ()).await?;
    assert_eq!((answer.text().as_str(), answer.last_agent()), ("Thought: no line", "billing"));
    let requests = clerk.requests();
    assert_eq!((requests.len(), requests[0].options.stop.len(), requests[0].tools.len()), (3, 0, 1));
    assert_eq!(support.ask("Thanks.").session(&session).await?.text(), "Bye.");
    assert_valid(&session);

    // And the other way.
    let clerk = ScriptedModel::new("clerk").text("Thought: paid\nFinal Answer: Twice.");
    let billing = agent("billing", &clerk).with(ReAct::new()).build()?;
    let transfer = |script: ScriptedModel| script.call("transfer_to_billing", json!({"reason": "invoices"}));
    let script = transfer(transfer(ScriptedModel::new("source")).call("think", json!({"text": ""})));
    let required = Requirements::new([Requirement::tool("think").force_at_step(1)]);
    let handoff = Handoff::to(&billing, "Invoices");
    let support = agent("support", &script).with(required).handoff(handoff).build()?;
    let answer = support.ask("My invoice is wrong.").on_token(|_| ()).await?;
    assert_eq!((answer.text().as_str(), answer.last_agent()), ("Twice.", "billing"));
    let results = results(&answer.messages);
    assert_eq!(results[0], "!denied by requirements: `think` has to be called now");
    assert_eq!(clerk.requests().len(), 1);
    Ok(())
}
