//! `Structured`: the model answers with JSON of a Rust type.

use emitree_agent::{
    Agent, AgentBuilder, AgentOutput, AgentRun, ChatModel, ChatOptions, ChatRequest, Message, Reply, ResponseFormat,
    ScriptedModel, Session, ToolChoice,
};
use emitree_agent_kit::built_in::{Structured, ToolSelector};
use emitree_runtime::{Result, map_output};
use futures_util::future::try_join_all;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::bound::{Bound, restored};
use crate::support::{Log, agent, assert_valid, refuse_bad, results, texts};

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
struct Person {
    name: String,
    born: u32,
}

const RIGHT: &str = r#"{"name":"Ada","born":1815}"#;
const WRONG: &str = r#"{"name":"Ada","born":"1815"}"#;
const FAULT: &str = "at `born`: invalid type: string \"1815\", expected u32";

fn ada() -> Person {
    Person { name: "Ada".to_owned(), born: 1815 }
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// An agent without tools.
fn plain(script: &ScriptedModel) -> AgentBuilder {
    Agent::builder("tester", ChatModel::new(script.clone()).expect("a model"))
}

fn script_of(replies: impl IntoIterator<Item = Reply>) -> ScriptedModel {
    replies.into_iter().fold(ScriptedModel::new("test"), ScriptedModel::reply)
}

/// The call of the tool with an answer.
fn call(answer: &str) -> Reply {
    Reply::calls([("final_answer", json_of(answer))])
}

fn tools(request: &ChatRequest) -> Vec<&str> {
    request.tools.iter().map(|tool| tool.name.as_str()).collect()
}

#[tokio::test]
async fn without_tools_the_model_is_asked_for_a_response_format_and_with_tools_for_a_call() -> Result<()> {
    for bound in Bound::each_way() {
        let script = ScriptedModel::new("test").text(RIGHT);
        let answer = bound.ask(plain(&script), Structured::of::<Person>(), &Session::new()).await?;
        assert_eq!(answer.structured::<Person>()?, ada());
        let request = &script.requests()[0];
        assert_eq!((tools(request), &request.options.tool_choice), (vec![], &None));
        let Some(ResponseFormat::JsonSchema { name, schema }) = &request.options.response_format else { panic!() };
        assert_eq!((name.as_str(), schema["type"].as_str()), ("Person", Some("object")));

        let script = script_of([Reply::calls([("shout", json!({"text": "a"}))]), call(RIGHT)]);
        let session = Session::new();
        let answer = bound.ask(agent(&script), Structured::of::<Person>(), &session).await?;
        assert_eq!((answer.structured::<Person>()?, answer.turns), (ada(), 2), "{bound:?}");
        let request = &script.requests()[1];
        let options = &request.options;
        assert_eq!((tools(request), &options.response_format), (vec!["shout", "final_answer"], &None));
        assert_eq!(options.tool_choice, Some(ToolChoice::Required));
        assert_eq!(request.tools[1].parameters, *schema);
        assert_eq!(texts(&session).last().map(|text| json_of(text)), Some(json_of(RIGHT)));
    }
    Ok(())
}

#[tokio::test]
async fn either_way_may_be_chosen_and_a_tool_choice_of_the_options_stays() -> Result<()> {
    let script = ScriptedModel::new("test").text(RIGHT).reply(call(RIGHT));
    let by_format = Structured::of::<Person>().by_response_format();
    let answer = Bound::TO_AGENT.ask(agent(&script), by_format, &Session::new()).await?;
    assert_eq!(answer.structured::<Person>()?, ada());
    let auto = plain(&script).options(ChatOptions::new().tool_choice(ToolChoice::Auto)).build()?;
    assert_eq!(auto.ask("go").with(Structured::of::<Person>().by_tool()).await?.structured::<Person>()?, ada());
    let requests = script.requests();
    assert!(tools(&requests[0]) == ["shout"] && requests[0].options.response_format.is_some());
    assert_eq!(tools(&requests[1]), ["final_answer"]);
    assert_eq!(requests[1].options.tool_choice, Some(ToolChoice::Auto));
    Ok(())
}

#[tokio::test]
async fn an_answer_that_does_not_fit_goes_back_with_path_and_reason_so_many_times() -> Result<()> {
    for bound in Bound::each_way() {
        for (wrong, attempts) in [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (2, 3)] {
            let text = Reply::text;
            let ways = [
                (vec![text(WRONG); wrong], text(RIGHT), plain as fn(&ScriptedModel) -> AgentBuilder),
                (vec![call(WRONG); wrong], call(RIGHT), agent),
            ];
            for (replies, right, agent) in ways {
                let (script, session) = (script_of(replies.into_iter().chain([right])), Session::new());
                let structured = Structured::of::<Person>().attempts(attempts);
                let answer = bound.ask(agent(&script), structured, &session).await;
                assert_valid(&session);
                if wrong as u32 > attempts {
                    let error = answer.unwrap_err();
                    assert!(error.to_string().starts_with("the answer does not fit `Person`: "), "{error}");
                    assert!(error.to_string().ends_with(FAULT), "{error}");
                    assert_eq!(json_of(error.details()["text"].as_str().unwrap_or_default()), json_of(WRONG));
                    assert_eq!(script.requests().len() as u32, attempts + 1);
                    continue;
                }
                assert_eq!(answer?.structured::<Person>()?, ada(), "{wrong} {attempts} {bound:?}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_model_reads_what_does_not_fit() -> Result<()> {
    let script = ScriptedModel::new("test").text("Ada.").text(WRONG).text(RIGHT);
    let session = Session::new();
    Bound::TO_AGENT.ask(plain(&script), Structured::of::<Person>().attempts(2), &session).await?;
    let again = "Answer again, with the whole JSON and nothing else.";
    let expected = [
        "go",
        "Ada.",
        &format!("Your answer does not fit: it is not JSON: expected value at line 1 column 1. {again}"),
        WRONG,
        &format!("Your answer does not fit: {FAULT}. {again}"),
        RIGHT,
    ];
    assert_eq!(texts(&session), expected);

    let script = script_of([Reply::text("Ada."), call(WRONG), call(RIGHT)]);
    let answer = Bound::TO_AGENT.ask(agent(&script), Structured::of::<Person>().attempts(2), &session).await?;
    assert!(answer.messages[2].text().ends_with("Call the tool `final_answer` with the whole answer."));
    let expected = format!("!the arguments of `final_answer` are invalid: {FAULT}");
    assert_eq!(results(&answer.messages)[0], expected);
    Ok(())
}

#[tokio::test]
async fn a_text_that_fits_is_an_answer_although_the_agent_has_tools() -> Result<()> {
    let script = ScriptedModel::new("test").text(RIGHT);
    let answer = Bound::TO_AGENT.ask(agent(&script), Structured::of::<Person>(), &Session::new()).await?;
    assert_eq!((answer.structured::<Person>()?, answer.turns), (ada(), 1));
    Ok(())
}

#[tokio::test]
async fn the_loop_goes_on_if_the_model_calls_another_tool_beside_the_answer() -> Result<()> {
    let both = Reply::calls([("shout", json!({"text": "a"})), ("final_answer", json!({"name": "Bob", "born": 1}))]);
    let script = script_of([both, call(RIGHT)]);
    let answer = Bound::TO_AGENT.ask(agent(&script), Structured::of::<Person>(), &Session::new()).await?;
    assert_eq!((answer.structured::<Person>()?, answer.turns), (ada(), 2));
    Ok(())
}

#[tokio::test]
async fn the_answer_by_tool_is_a_token_of_a_streamed_run() -> Result<()> {
    let (log, agent) = (Log::default(), agent(&script_of([call(RIGHT)])).with(Structured::of::<Person>()).build()?);
    let to = log.clone();
    agent.ask("go").on_token(move |token| to.add(token.text())).await?;
    assert_eq!(json_of(&log.lines().concat()), json_of(RIGHT));
    Ok(())
}

#[tokio::test]
async fn after_a_tool_selector_the_tool_is_offered_again() -> Result<()> {
    let small = ChatModel::new(ScriptedModel::new("small").text(r#"{"tools": ["shout"]}"#))?;
    let script = script_of([call(RIGHT)]);
    let agent = agent(&script).with(ToolSelector::with(small)).with(Structured::of::<Person>()).build()?;
    assert_eq!(agent.ask("go").await?.structured::<Person>()?, ada());
    assert_eq!(tools(&script.requests()[0]), ["shout", "final_answer"]);
    Ok(())
}

#[tokio::test]
async fn a_discarded_attempt_takes_its_wrong_answers_back_and_so_does_the_next_run() -> Result<()> {
    let bad = |output: &mut AgentOutput, ctx: &_| {
        if output.text().contains("Bob") {
            output.answer = Message::assistant("bad");
        }
        refuse_bad(output, ctx)
    };
    let bob = r#"{"name":"Bob","born":1}"#;
    let script = ScriptedModel::new("test").text(WRONG).text(bob).text(WRONG).text(RIGHT).text(WRONG).text(RIGHT);
    let agent = plain(&script).with(Structured::of::<Person>()).build()?;
    let session = Session::new();
    let run = agent.ask("go").session(&session).middleware(map_output(bad)).max_middleware_retries(1);
    assert_eq!(run.await?.structured::<Person>()?, ada());
    assert_eq!(agent.ask("go").session(&restored(&session)).await?.structured::<Person>()?, ada());
    Ok(())
}

#[tokio::test]
async fn a_hundred_runs_at_once_have_answers_of_their_own() -> Result<()> {
    let script = ScriptedModel::by("test", |request| match request.messages.len() {
        1 => Reply::text(format!("person {}", request.last_user_text())),
        _ => Reply::text(format!(r#"{{"name": "{}", "born": 1815}}"#, request.messages[0].text())),
    });
    let agent = plain(&script).with(Structured::of::<Person>()).build()?;
    let runs = (0..100).map(|n| agent.ask(format!("n{n}")).into_future());
    for (n, answer) in try_join_all(runs).await?.into_iter().enumerate() {
        assert_eq!(answer.structured::<Person>()?.name, format!("n{n}"));
    }
    Ok(())
}

#[cfg(feature = "json-schema")]
#[tokio::test]
async fn a_range_of_the_schema_is_checked_in_texts_and_calls() -> Result<()> {
    #[derive(Debug, Deserialize, JsonSchema)]
    struct Rating {
        #[schemars(range(max = 5))]
        stars: u32,
    }
    for (reply, agent) in [
        (Reply::text(r#"{"stars": 6}"#), plain as fn(&ScriptedModel) -> AgentBuilder),
        (call(r#"{"stars": 6}"#), agent),
    ] {
        let structured = Structured::of::<Rating>().attempts(0);
        let error = Bound::TO_AGENT.ask(agent(&script_of([reply])), structured, &Session::new()).await.unwrap_err();
        assert!(error.to_string().ends_with("at `stars`: 6 is greater than the maximum of 5"), "{error}");
    }
    let answer = AgentOutput::new(Message::assistant(r#"{"stars": 5}"#));
    assert_eq!(answer.structured::<Rating>()?.stars, 5);
    Ok(())
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_an_error_of_structured_with_the_text() {
    let error = AgentOutput::new(Message::assistant(WRONG)).structured::<Person>().unwrap_err();
    assert!(error.to_string().ends_with(&format!("Person`: {FAULT}")), "{error}");
    assert_eq!(error.details()["text"], WRONG);
}

#[tokio::test]
async fn a_type_that_is_no_object_is_an_error_that_quotes_its_schema_and_two_types_are_an_error() {
    let error = plain(&ScriptedModel::new("test")).with(Structured::of::<Vec<u8>>()).build().unwrap_err().to_string();
    assert!(error.contains("the schema of the arguments of `final_answer` is `{"), "{error}");
    assert!(error.contains(r#""type":"array""#), "{error}");
    let twice = plain(&ScriptedModel::new("test")).with(Structured::of::<Person>()).with(Structured::of::<Person>());
    assert!(twice.build().unwrap_err().to_string().contains("`structured` twice"));
}

// A28
#[tokio::test]
async fn an_empty_reply_is_asked_for_once_more_and_then_fails() -> Result<()> {
    let empty = || Reply::text(" ");
    let answers = script_of([empty(), Reply::text(RIGHT)]);
    let output = plain(&answers).with(Structured::of::<Person>()).build()?.ask("Who?").await?;
    assert_eq!((json_of(&output.text()), answers.requests().len()), (json_of(RIGHT), 2));

    let silent = script_of([empty(), empty(), Reply::text(RIGHT)]);
    let error = plain(&silent).with(Structured::of::<Person>()).build()?.ask("Who?").await.unwrap_err().to_string();
    assert!(error.starts_with("the model `test` has answered twice without text"), "{error}");
    Ok(())
}
