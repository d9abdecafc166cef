//! `ReAct`: a model that calls tools with text has the same history, gates and results as any model.

use std::sync::Arc;

use emitree_agent::{
    Agent, AgentBuilder, AgentRun, ChatModel, ChatOptions, ChatRequest, Chunks, Delta, FinishReason, Message, Part,
    Reply, ScriptedModel, Session, ToolChoice, ToolOutput, hooks_fn, joins, tool_fn,
};
use emitree_agent_kit::built_in::{Structured, ToolSelector};
use emitree_agent_kit::react::{
    ReAct, ReActAgent, ReActError, ReActPartialUpdate, ReActPrompts, ReActRetry, ReActStart, ReActSuccess, ReActUpdate,
};
use emitree_middleware::Redact;
use emitree_runtime::{Error, Next, Result, RunContext, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::support::{Log, Text, agent as native, assert_valid, results, shout};

const CALL: &str = "Thought: I shout.\nFunction Name: shout\nFunction Input: {\"text\": \"a\"}";
const ANSWER: &str = "Thought: I know it.\nFinal Answer: It is\n\nA.";

fn script(replies: impl IntoIterator<Item = &'static str>) -> ScriptedModel {
    replies.into_iter().fold(ScriptedModel::new("test"), ScriptedModel::text)
}

fn agent(script: &ScriptedModel) -> AgentBuilder {
    ReActAgent::builder("tester", ChatModel::new(script.clone()).expect("a model")).tool(shout())
}

/// The messages of a request: the first letter of the role, and the text.
fn sent(request: &ChatRequest) -> Vec<String> {
    request.messages.iter().map(|message| format!("{} {}", &message.role.as_str()[..1], message.text())).collect()
}

/// The parts of the messages, without the ids of calls.
fn parts(session: &Session) -> Vec<String> {
    let part = |part: &Part| match part {
        Part::Text { content } => content.clone(),
        Part::Reasoning { content, .. } => format!("({content})"),
        Part::ToolCall(call) => format!("{} {}", call.name, call.arguments),
        Part::ToolCallResponse(result) => format!("= {}", result.response),
        other => format!("{other:?}"),
    };
    let of = |message: &Arc<Message>| {
        let parts: Vec<_> = message.parts.iter().map(part).collect();
        format!("{} {}", &message.role.as_str()[..1], parts.join(" "))
    };
    assert_valid(session).messages().iter().map(of).collect()
}

/// Logs all events of the middleware.
fn log_of(react: &ReAct) -> Log {
    let log = Log::default();
    let [start, partial, update, error, retry, success] = std::array::from_fn(|_| log.clone());
    let emitter = react.emitter();
    let observers = [
        emitter.observe("start", move |it: &ReActStart, _| start.add(format!("{} start {:?}", it.turn, it.tools))),
        emitter.observe("partial_update", move |it: &ReActPartialUpdate, _| {
            partial.add(format!("{} {} + {}", it.turn, it.key, it.delta));
        }),
        emitter.observe("update", move |it: &ReActUpdate, _| {
            update.add(format!("{} {} = {} {}", it.turn, it.key, it.value, it.parsed));
        }),
        emitter.observe("error", move |it: &ReActError, _| error.add(format!("{} error {}", it.turn, it.error))),
        emitter.observe("retry", move |it: &ReActRetry, _| retry.add(format!("{} retry {}", it.turn, it.error))),
        emitter.observe("success", move |it: &ReActSuccess, _| success.add(format!("success {}", it.answer))),
    ];
    observers.into_iter().for_each(|observer| drop(observer.expect("a listener")));
    log
}

const HISTORY: [&str; 4] =
    ["u Shout.", r#"a (I shout.) shout {"text":"a"}"#, r#"t = "A""#, "a (I know it.) It is\n\nA."];

#[tokio::test]
async fn the_lines_of_a_reply_are_a_thought_a_call_and_an_answer_as_of_any_model() -> Result<()> {
    let script = script([CALL, ANSWER]);
    let session = Session::new();
    let answer = agent(&script).prompt("Be brief.").build()?.ask("Shout.").session(&session).await?;
    assert_eq!((answer.text().as_str(), answer.turns), ("It is\n\nA.", 2));
    assert_eq!(parts(&session), HISTORY);
    let reasons: Vec<_> = answer.messages.iter().filter_map(|message| message.finish_reason.clone()).collect();
    assert_eq!(reasons, [FinishReason::ToolCall, FinishReason::Stop]);

    let requests = script.requests();
    assert_eq!(sent(&requests[0]), ["u Message: Shout."]);
    let call = r#"a Thought: I shout.
Function Name: shout
Function Input: {"text":"a"}"#;
    assert_eq!(sent(&requests[1]), ["u Message: Shout.", call, "u Function Output: A"]);
    for request in &requests {
        assert_eq!((request.tools.len(), &request.options.tool_choice), (0, &None));
        assert_eq!(request.options.stop, ["\nFunction Output:"]);
        let system = request.system.as_deref().unwrap_or_default();
        assert!(system.contains("Function Name: shout\nDescription: Shouts\nInput Schema: {"), "{system}");
        assert!(system.ends_with("# Instructions\n\nBe brief."), "{system}");
    }
    Ok(())
}

#[tokio::test]
async fn the_texts_and_the_type_and_size_of_images_of_a_result_are_written_behind_it() -> Result<()> {
    let script = script(["Thought: I draw.\nFunction Name: draw\nFunction Input: {\"text\": \"a\"}", ANSWER]);
    let draw = tool_fn("draw", "Draws", |_: Text, _: RunContext| async {
        let uri = "data:image/png;base64,AAAA".to_owned();
        let image = Part::Uri { modality: "image".to_owned(), mime_type: Some("image/png".to_owned()), uri };
        Ok(ToolOutput::new("drawn").part(Part::Text { content: "Of May.".to_owned() }).part(image))
    })?;
    agent(&script).tool(draw).build()?.ask("Draw.").await?;
    assert_eq!(sent(&script.requests()[1])[2], "u Function Output: drawn\nOf May.\n[image/png, 3 B]");
    Ok(())
}

#[tokio::test]
async fn whole_or_in_chunks_of_any_size_the_updates_and_the_history_are_the_same() -> Result<()> {
    let expected = [
        r#"1 start ["shout"]"#,
        "1 thought = I shout. \"I shout.\"",
        "1 tool_name = shout \"shout\"",
        r#"1 tool_input = {"text": "a"} {"text":"a"}"#,
        r#"2 start ["shout"]"#,
        "2 thought = I know it. \"I know it.\"",
        "2 final_answer = It is\n\nA. \"It is\\n\\nA.\"",
        "success It is\n\nA.",
    ];
    for chars in 0..=64 {
        let replies = [CALL, ANSWER].map(|text| match chars {
            0 => Reply::text(text),
            _ => Reply::text(text).in_pieces(chars),
        });
        let script = replies.into_iter().fold(ScriptedModel::new("test"), ScriptedModel::reply);
        let (react, session, tokens) = (ReAct::new(), Session::new(), Log::default());
        let (log, to) = (log_of(&react), tokens.clone());
        let run = native(&script).with(react).build()?;
        let run = run.ask("Shout.").session(&session);
        let answer = if chars == 0 { run.await? } else { run.on_token(move |token| to.add(token.text())).await? };
        assert_eq!(answer.text(), "It is\n\nA.");
        assert_eq!(parts(&session), HISTORY, "{chars}");
        let is_partial = |line: &&String| line.contains(" + ");
        let lines = log.lines();
        assert_eq!(lines.iter().filter(|line| !is_partial(line)).collect::<Vec<_>>(), expected.each_ref(), "{chars}");
        let partial = |key: &str| {
            let deltas = lines.iter().filter_map(|line| line.strip_prefix(&format!("{key} + ")));
            deltas.collect::<String>()
        };
        assert_eq!(partial("1 thought"), "I shout.", "{chars}");
        assert_eq!(partial("1 tool_input"), "{\"text\": \"a\"}", "{chars}");
        assert_eq!(partial("2 final_answer"), "It is\n\nA.", "{chars}");
        if chars > 0 {
            assert_eq!(tokens.lines().concat(), "It is\n\nA.", "{chars}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_observation_that_the_model_writes_itself_is_cut() -> Result<()> {
    let invented = "Thought: I shout.\nFunction Name: shout\nFunction Input: {\"text\": \"a\"}\n\nFunction Output: B\n\
                    Thought: so B\nFinal Answer: It is B.";
    for reply in [Reply::text(invented), Reply::text(invented).in_pieces(3)] {
        let (script, session) = (ScriptedModel::new("test").reply(reply).text(ANSWER), Session::new());
        let (react, log) = (ReAct::new(), Log::default());
        let events = log_of(&react);
        let to = log.clone();
        let agent = native(&script).with(react).build()?;
        agent.ask("Shout.").session(&session).on_token(move |token| to.add(token.text())).await?;
        assert_eq!(parts(&session), HISTORY);
        assert_eq!(log.lines().concat(), "It is\n\nA.");
        assert!(!events.lines().iter().any(|line| line.contains('B')), "{:?}", events.lines());
    }
    Ok(())
}

#[tokio::test]
async fn a_text_that_does_not_parse_goes_back_with_its_fault_and_never_enters_the_history() -> Result<()> {
    let table = [
        (
            "Function Name: shout\nFunction Input: {}",
            "the text begins with `Function Name:`; expected `Thought:` or `Final Answer:`",
        ),
        (
            "Thought: x\nFunction Name: sing\nFunction Input: {}",
            "the text after `Function Name:` is wrong: `sing` is not one of `shout`",
        ),
        (
            "Thought: x\nFunction Name:\nFunction Input: {}",
            "the text after `Function Name:` is wrong: `` is not one of `shout`",
        ),
        ("Thought: x", "the text ends after `Thought:`; expected `Function Name:` or `Final Answer:`"),
        (
            "Thought: x\nThought: x",
            "`Thought:` must not follow `Thought:`; expected `Function Name:` or `Final Answer:`",
        ),
        (" ", "the text is empty; expected `Thought:` or `Final Answer:`"),
    ];
    for (wrong, fault) in table {
        for chars in [1, 5, 100] {
            let reply = Reply::text(wrong).in_pieces(chars);
            let script = [reply.clone(), reply, Reply::text(CALL), Reply::text(ANSWER)];
            let script = script.into_iter().fold(ScriptedModel::new("test"), ScriptedModel::reply);
            let (react, session) = (ReAct::new(), Session::new());
            let log = log_of(&react);
            let run = native(&script).with(react).build()?;
            let options = emitree_agent::AgentInput::from("Shout.").options(ChatOptions::new().stream(true));
            let answer = run.ask(options).session(&session).await?;
            assert_eq!((parts(&session), answer.turns), (HISTORY.map(str::to_owned).to_vec(), 2), "{wrong}");
            let events: Vec<_> =
                log.lines().into_iter().filter(|line| line.contains(" error ") || line.contains(" retry ")).collect();
            let once = [format!("1 error {fault}"), format!("1 retry {fault}")];
            assert_eq!(events, [once.clone(), once].concat());
            let requests = script.requests();
            let again = sent(&requests[2]);
            let said = if wrong == " " { 0 } else { 1 };
            assert_eq!(again.len(), 1 + 2 * (1 + said));
            assert_eq!(said == 0, !again.contains(&format!("a {wrong}")));
            assert!(again.last().is_some_and(|text| text.contains(fault)), "{again:?}");
            // In the next turn, they are gone.
            assert_eq!(requests[3].messages.len(), 3);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_reply_that_goes_on_after_a_call_is_not_told_to_write_an_observation() -> Result<()> {
    for more in ["Thought: And now?", "Function Name: shout"] {
        let first = format!("{CALL}\n{more}");
        let script = ScriptedModel::new("test").text(first).text(ANSWER);
        agent(&script).build()?.ask("Shout.").await?;
        let told = sent(&script.requests()[1]).pop().unwrap_or_default();
        assert!(
            told.contains("lines: it goes on after `Function Input:`, where it has to stop. Reply again"),
            "{told}"
        );
        assert!(!told.contains("Function Output"), "{told}");
    }
    Ok(())
}

#[tokio::test]
async fn a_run_fails_when_no_retry_is_left_in_the_step_or_in_total() -> Result<()> {
    let wrong = "Thought: hm";
    for (retries, total, step, requests) in [(0, 10, 0, 1), (2, 10, 2, 3), (5, 3, 3, 4)] {
        let script = ScriptedModel::by("test", move |_| Reply::text(wrong));
        let (react, session) = (ReAct::new().max_retries_per_step(retries).total_retries(total), Session::new());
        let log = log_of(&react);
        let error = native(&script).with(react).build()?.ask("go").session(&session).await.unwrap_err();
        let fault = "the text ends after `Thought:`; expected `Function Name:` or `Final Answer:`";
        let expected =
            format!("the reply does not follow the lines of ReAct: {fault} (after {step} retries in this turn)");
        assert_eq!(error.to_string(), expected);
        assert_eq!((script.requests().len(), parts(&session)), (requests, vec!["u go".to_owned()]));
        assert_eq!(log.lines().last(), Some(&format!("1 error {fault}")));
    }
    // All steps of a run share the total.
    let script = script([wrong, CALL, wrong, CALL, wrong, ANSWER]);
    let agent = native(&script).with(ReAct::new().total_retries(2)).build()?;
    assert!(agent.ask("go").await.unwrap_err().to_string().ends_with("(after 0 retries in this turn)"));
    assert_eq!(script.requests().len(), 5);
    Ok(())
}

#[tokio::test]
async fn a_text_without_prefixes_is_the_answer() -> Result<()> {
    let script = script(["It is A."]);
    let session = Session::new();
    assert_eq!(agent(&script).build()?.ask("Shout.").session(&session).await?.text(), "It is A.");
    assert_eq!(parts(&session), ["u Shout.", "a It is A."]);
    Ok(())
}

#[tokio::test]
async fn gates_and_results_are_those_of_any_agent() -> Result<()> {
    let script = script([CALL, CALL, "Thought: x\nFunction Name: shout\nFunction Input: {\"txt\": 1}", ANSWER]);
    let log = Log::default();
    let to = log.clone();
    let gate = hooks_fn("gate", move |hooks| {
        let to = to.clone();
        hooks.on_gate_each(move |gated, _| {
            to.add(format!("{} {}", gated.call.name, gated.call.arguments));
            if to.lines().len() == 1 {
                gated.deny("gate", "not now");
            }
        });
    });
    let answer = agent(&script).with(gate).build()?.ask("Shout.").await?;
    assert_eq!(log.lines(), [r#"shout {"text":"a"}"#; 2]);
    let invalid = "!the arguments of `shout` are invalid: missing field `text`";
    assert_eq!(results(&answer.messages), ["!denied by gate: not now", "A", invalid]);
    let sent = sent(&script.requests()[3]);
    assert_eq!(sent[2], "u Function Output: the function has failed: denied by gate: not now");
    Ok(())
}

#[tokio::test]
async fn middlewares_choose_tools_whatever_their_order() -> Result<()> {
    #[derive(Debug, Deserialize, JsonSchema, PartialEq)]
    struct Said {
        word: String,
    }
    let other = tool_fn("other", "Is not offered", |_: Text, _: RunContext| async { Ok("") })?;
    let select = || ToolSelector::by(|_, _| Box::pin(async { Ok(vec!["shout".to_owned()]) }));
    for is_first in [true, false] {
        let script = script([CALL, ANSWER]);
        let builder = native(&script).tool(other.clone());
        let builder = if is_first {
            builder.with(ReAct::new()).with(select())
        } else {
            builder.with(select()).with(ReAct::new())
        };
        let answer = builder.build()?.ask("Shout.").await?;
        assert_eq!(results(&answer.messages), ["A"]);
        let system = script.requests()[0].system.clone().unwrap_or_default();
        assert!(system.contains("Function Name: shout") && !system.contains("Function Name: other"), "{system}");
    }
    let script = script(["Thought: x\nFunction Name: final_answer\nFunction Input: {\"word\": \"A\"}"]);
    let answer = agent(&script).with(Structured::of::<Said>()).build()?.ask("Shout.").await?;
    assert_eq!(answer.structured::<Said>()?, Said { word: "A".to_owned() });
    Ok(())
}

#[tokio::test]
async fn a_tool_choice_limits_the_tools_of_the_prompt() -> Result<()> {
    for (choice, has) in
        [(ToolChoice::None, false), (ToolChoice::Tool("shout".to_owned()), true), (ToolChoice::Required, true)]
    {
        let script = script(["Final Answer: A"]);
        agent(&script).options(ChatOptions::new().tool_choice(choice)).build()?.ask("Shout.").await?;
        let request = &script.requests()[0];
        assert_eq!(request.system.as_deref().unwrap_or_default().contains("Function Name: shout"), has);
        assert_eq!(request.options.tool_choice, None);
    }
    Ok(())
}

#[tokio::test]
async fn hooks_of_the_builder_and_of_users_do_not_switch_it_off() -> Result<()> {
    let log = Log::default();
    let [to_request, to_chunk, to_run] = std::array::from_fn(|_| log.clone());
    let script = script([CALL, ANSWER]);
    let builder = agent(&script).prompt("Be brief.").hooks(|hooks| {
        hooks.on_request(move |call, _| to_request.add(format!("{} tools", call.request.tools.len())));
        hooks.chunks(move || {
            let to = to_chunk.clone();
            move |chunks: &mut Chunks, _: &RunContext| {
                let texts = chunks.deltas.iter().filter_map(|delta| match delta {
                    Delta::Text(text) => Some(text.clone()),
                    _ => None,
                });
                texts.for_each(|text| to.add(text));
                Ok(())
            }
        });
        hooks.model_call(|stack| {
            stack.layer_fn("passes", |request: &ChatRequest, _, next: Next<'_, ChatModel>| Box::pin(next.run(request)))
        });
        hooks.agent_run(move |stack| {
            stack.layer_fn("logs", move |input, _, next: Next<'_, Agent>| {
                to_run.add("run");
                Box::pin(next.run(input))
            })
        });
    });
    let builder = builder.with(hooks_fn("wire", |hooks| {
        hooks.on_wire(|messages, _| messages.retain(|message| message.text() != "x"));
    }));
    let session = Session::new();
    builder.build()?.ask("Shout.").session(&session).await?;
    assert_eq!(parts(&session), HISTORY);
    assert_eq!(log.lines(), ["run", "1 tools", "1 tools", "It is\n\nA."]);
    let request = &script.requests()[0];
    assert!(request.system.as_deref().is_some_and(|system| system.ends_with("Be brief.")));
    assert_eq!(sent(request), ["u Message: Shout."]);
    Ok(())
}

#[tokio::test]
async fn for_a_tree_it_applies_to_all_agents_below() -> Result<()> {
    let script = script([CALL, ANSWER]);
    let session = Session::new();
    let agent = native(&script).build()?;
    agent.ask("Shout.").session(&session).middleware(for_tree(joins(ReAct::new()))).await?;
    assert_eq!(parts(&session), HISTORY);
    Ok(())
}

#[tokio::test]
async fn another_agent_continues_the_session() -> Result<()> {
    let session = Session::new();
    agent(&script([CALL, ANSWER])).build()?.ask("Shout.").session(&session).await?;
    let calls = ScriptedModel::new("native").call("shout", json!({"text": "b"})).text("It is B.");
    native(&calls).build()?.ask("Again.").session(&session).await?;
    assert_eq!(calls.requests()[0].messages.len(), 5);
    let script = script([ANSWER]);
    agent(&script).build()?.ask("And?").session(&session).await?;
    let call = "a Function Name: shout\nFunction Input: {\"text\":\"b\"}";
    assert_eq!(
        sent(&script.requests()[0])[4..8],
        ["u Message: Again.", call, "u Function Output: B", "a Final Answer: It is B."]
    );
    Ok(())
}

#[tokio::test]
async fn the_answer_of_a_tool_is_not_read_as_lines() -> Result<()> {
    let tool = tool_fn("page", "Returns a page", |_: Text, _: RunContext| async {
        Ok(ToolOutput::new("Thought: of the page").answer())
    });
    let script = script(["Thought: x\nFunction Name: page\nFunction Input: {\"text\": \"a\"}"]);
    assert_eq!(agent(&script).tool(tool).build()?.ask("go").await?.text(), "Thought: of the page");
    Ok(())
}

#[tokio::test]
async fn secrets_in_pieces_of_lines_are_redacted_in_events() -> Result<()> {
    const MAIL: &str = "maria.react@mailbox.org";
    let replies = [
        format!("Thought: ask {MAIL}\nFunction Name: shout\nFunction Input: {{\"text\": \"{MAIL}\"}}"),
        format!("Function Name: {MAIL}"),
        format!("Final Answer: {MAIL} is away"),
    ];
    let replies = replies.into_iter().map(|text| Reply::text(text).in_pieces(3));
    let script = replies.fold(ScriptedModel::new("test"), ScriptedModel::reply);
    let (react, session) = (ReAct::new(), Session::new());
    let log = log_of(&react);
    let agent = native(&script).with(react).build()?;
    let run = agent.ask("go").session(&session).middleware(for_tree(Redact::new())).on_token(|_| ());
    run.await?;
    let lines = log.lines().join("\n");
    assert!(!lines.contains("maria") && !lines.contains("mailbox"), "{lines}");
    assert!(lines.contains("1 thought = ask [REDACTED:email]"), "{lines}");
    assert!(lines.contains(r#"1 tool_input = {"text": "[REDACTED:email]"} {"text":"[REDACTED:email]"}"#), "{lines}");
    assert!(lines.contains("success [REDACTED:email] is away"), "{lines}");
    Ok(())
}

#[tokio::test]
async fn the_texts_of_the_model_can_be_replaced() -> Result<()> {
    let prompts = ReActPrompts::default()
        .system(|tools, instructions| format!("{} tools. {instructions}", tools.len()))
        .user(|text| format!("Q: {text}"))
        .assistant(|message| format!("{} calls", message.tool_calls().count()))
        .output(|result| format!("R: {}", result.response))
        .fault(|error| format!("{:?}!", error.kind()));
    let script = script([CALL, "Thought: hm", ANSWER]);
    native(&script).prompt("Be brief.").with(ReAct::new().prompts(prompts)).build()?.ask("Shout.").await?;
    let request = &script.requests()[2];
    assert_eq!(request.system.as_deref(), Some("1 tools. Be brief."));
    assert_eq!(sent(request), ["u Q: Shout.", "a 1 calls", "u R: \"A\"", "a Thought: hm", "u NotEndNode!"]);
    Ok(())
}

#[tokio::test]
async fn an_error_of_the_model_is_not_asked_about_again() -> Result<()> {
    let script = ScriptedModel::new("test").error(Error::new("overloaded")).text(ANSWER);
    let error = agent(&script).build()?.ask("Shout.").await.unwrap_err();
    assert_eq!((error.to_string().as_str(), script.requests().len()), ("overloaded", 1));
    Ok(())
}

#[tokio::test]
async fn stop_texts_of_the_options_and_of_the_model_stay() -> Result<()> {
    let script = script(["Final Answer: A", "Final Answer: A"]);
    let model = ChatModel::new(script.clone())?.options(ChatOptions::new().stop(["END"]));
    let builder = || ReActAgent::builder("tester", model.clone());
    builder().build()?.ask("go").await?;
    builder().options(ChatOptions::new().stop(["STOP"])).build()?.ask("go").await?;
    let stops: Vec<_> = script.requests().into_iter().map(|request| request.options.stop).collect();
    assert_eq!(stops, [["END", "\nFunction Output:"], ["STOP", "\nFunction Output:"]]);
    Ok(())
}

// A28
#[tokio::test]
async fn an_empty_reply_is_no_answer_and_is_asked_about_again() -> Result<()> {
    let empty = || Reply::deltas([Delta::Reasoning("Hm.".to_owned()), Delta::Finish(FinishReason::Stop)]);
    let script = ScriptedModel::new("test").reply(empty()).reply(empty()).text(ANSWER);
    assert_eq!(agent(&script).build()?.ask("Shout.").await?.text(), "It is\n\nA.");

    let silent = ScriptedModel::by("test", move |_| empty());
    let error = agent(&silent).build()?.ask("Shout.").await.unwrap_err();
    assert!(error.to_string().contains("Final Answer"), "{error}");
    Ok(())
}
