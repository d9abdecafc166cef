//! A real model on loopback. Start it with `scripts/local-model.sh start`, and then run
//! `cargo test -p emitree-agent --features openai real -- --ignored`.

use emitree_agent::{
    Agent, AgentRun, ChatModel, ChatOptions, ChatRequest, FinishReason, OpenAi, ResponseFormat, Session,
};
use emitree_runtime::{Result, Runnable};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::support::*;

fn model() -> ChatModel {
    let url = std::env::var("LOCAL_MODEL_URL").unwrap_or_else(|_| "http://127.0.0.1:18082/v1".to_owned());
    ChatModel::new(OpenAi::builder("local").base_url(url).build().expect("a provider")).expect("a model")
}

#[tokio::test]
#[ignore = "needs `scripts/local-model.sh start`"]
async fn a_real_model_streams_its_answer_and_reports_its_tokens() -> Result<()> {
    // Without a limit, a small model may generate text until no second question fits into its context.
    let mut options = ChatOptions::default();
    options.max_tokens = Some(50);
    let agent = Agent::builder("talker", model()).options(options).build()?;
    let (log, session) = (Log::default(), Session::new());
    let to = log.clone();
    let answer = agent.ask("Say hello.").session(&session).on_token(move |token| to.add(token.text())).await?;
    let tokens = log.lines();
    assert!(tokens.len() > 1, "{tokens:?}");
    assert_eq!(tokens.concat(), answer.text());
    assert!(answer.usage.input_tokens > 0 && answer.usage.output_tokens > 0, "{:?}", answer.usage);
    assert_eq!(agent.ask("Say it again.").session(&session).await?.turns, 1);
    assert_eq!(assert_valid(&session).messages().len(), 4);
    Ok(())
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Person {
    name: String,
    age: u8,
}

#[tokio::test]
#[ignore = "needs `scripts/local-model.sh start`"]
async fn a_real_model_answers_in_the_format_of_a_schema_and_within_a_limit() -> Result<()> {
    let mut request = ChatRequest::from("Invent a person.");
    request.options.response_format = Some(ResponseFormat::of::<Person>());
    request.options.max_tokens = Some(200);
    let answer = model().run(request).await?;
    let person: Person = serde_json::from_str(&answer.text())?;
    assert!(!person.name.is_empty(), "a person without a name, {} years old", person.age);

    let mut request = ChatRequest::from("Tell a long story.");
    request.options.max_tokens = Some(5);
    let answer = model().run(request).await?;
    assert_eq!(answer.message.finish_reason, Some(FinishReason::Length));
    assert_eq!(answer.usage.expect("token counts").output_tokens, 5);
    Ok(())
}
