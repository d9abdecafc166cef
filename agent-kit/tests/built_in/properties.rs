//! Histories of any shape through the middlewares for long conversations: the model receives a valid conversation with
//! the last user message.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{
    AgentBuilder, AgentInput, AgentRun, ChatModel, History, Message, Reply, ScriptedModel, Session, ToolCall,
    ToolResult,
};
use emitree_agent_kit::built_in::{ClearToolResults, SlidingWindow, Summarize};
use emitree_runtime::{Error, Result};
use futures_util::future::try_join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

use super::{agent_with_tools, call, last_user};

/// Some messages that are valid by themselves: a text of the user or the model, or calls with their results. The results
/// are in one message, or in a message each.
fn group() -> impl Strategy<Value = Vec<Message>> {
    let text = || "[a-z]{1,40}";
    let calls = (vec((text(), any::<bool>()), 1..4), any::<bool>()).prop_map(|(calls, in_one)| {
        let ids = || (0..).map(|id: usize| id.to_string());
        let asks = calls.iter().zip(ids()).map(|((name, _), id)| ToolCall::new(id, &name[..1], json!({"a": name})));
        let asks = asks.fold(Message::assistant(""), Message::with_call);
        let results = calls.iter().zip(ids()).map(|((text, fails), id)| {
            if *fails { ToolResult::error(id, text.clone()) } else { ToolResult::new(id, text.clone()) }
        });
        let results: Vec<_> =
            if in_one { vec![Message::tool(results)] } else { results.map(|result| Message::tool([result])).collect() };
        [vec![asks], results].concat()
    });
    prop_oneof![
        text().prop_map(|text| vec![Message::user(text)]),
        text().prop_map(|text| vec![Message::assistant(text)]),
        calls,
    ]
}

/// One of the middlewares, with limits of any size.
#[derive(Clone, Copy, Debug)]
enum Bound {
    Messages(usize),
    Tokens(u64),
    Clear { keep: usize, over: u64 },
    Summary { keep: usize, over: u64, fails: bool },
}

impl Bound {
    fn add(self, builder: AgentBuilder) -> AgentBuilder {
        match self {
            Self::Messages(n) => builder.with(SlidingWindow::messages(n)),
            Self::Tokens(n) => builder.with(SlidingWindow::tokens(n)),
            Self::Clear { keep, over } => builder.with(ClearToolResults::keep(keep).over_tokens(over).except(["a"])),
            Self::Summary { keep, over, fails } => {
                let reply = move || if fails { Reply::error(Error::new("overloaded")) } else { Reply::text("short") };
                let small = ChatModel::new(ScriptedModel::by("small", move |_| reply())).expect("a model");
                builder.with(Summarize::with(small).keep_messages(keep).over_tokens(over))
            }
        }
    }

    /// The id of the middleware. An agent cannot have two with one id.
    fn id(self) -> &'static str {
        match self {
            Self::Messages(_) | Self::Tokens(_) => "sliding_window",
            Self::Clear { .. } => "clear_tool_results",
            Self::Summary { .. } => "summarize",
        }
    }
}

fn bound() -> impl Strategy<Value = Bound> {
    prop_oneof![
        (1..20_usize).prop_map(Bound::Messages),
        (1..200_u64).prop_map(Bound::Tokens),
        (0..5_usize, 5..200_u64).prop_map(|(keep, over)| Bound::Clear { keep, over }),
        (0..5_usize, 5..200_u64, any::<bool>()).prop_map(|(keep, over, fails)| Bound::Summary { keep, over, fails }),
    ]
}

/// Runs an agent once for each input, in one session. Returns the messages of each request.
fn requests(bound: &[Bound], history: History, inputs: &[Vec<Message>]) -> Vec<Vec<Arc<Message>>> {
    let script = ScriptedModel::by("test", |_| Reply::text("answer"));
    let agent =
        bound.iter().fold(agent_with_tools(&script), |builder, bound| bound.add(builder)).build().expect("an agent");
    let session = Session::from(history);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        for input in inputs {
            agent.ask(AgentInput::new(input.clone())).session(&session).await.expect("an answer");
        }
    });
    crate::support::assert_valid(&session);
    script.requests().into_iter().map(|request| request.messages.to_vec()).collect()
}

/// The reply of the model to each of the inputs enters the history as well.
fn check(bound: &[Bound], history: &History, inputs: &[Vec<Message>]) -> std::result::Result<(), TestCaseError> {
    let mut before: Vec<_> = history.messages().to_vec();
    for (messages, input) in requests(bound, history.clone(), inputs).into_iter().zip(inputs) {
        before.extend(input.iter().cloned().map(Arc::new));
        // A valid history has a result directly after each call, and no other results.
        prop_assert!(History::try_from(messages.clone()).is_ok(), "{bound:?}: {messages:?}");
        prop_assert!(!messages.is_empty());
        if let Some(asked) = last_user(&before) {
            prop_assert!(messages.contains(asked), "{bound:?}: {messages:?} without {asked:?}");
        }
        before.push(Arc::new(Message::assistant("answer")));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    // A14
    #[test]
    fn the_model_receives_a_valid_conversation_with_the_last_user_message(
        groups in vec(group(), 1..15),
        inputs in vec(group(), 0..3),
        (one, two) in (bound(), bound()),
    ) {
        let history = History::try_from(groups.concat()).expect("valid");
        // The first run continues without a new message.
        let inputs = [vec![Vec::new()], inputs].concat();
        check(&[one], &history, &inputs)?;
        if one.id() != two.id() {
            check(&[one, two], &history, &inputs)?;
            check(&[two, one], &history, &inputs)?;
        }
    }
}

/// A hundred runs of one agent with all of these middlewares, each in a session of its own: nothing of one conversation
/// reaches another.
#[tokio::test]
async fn a_hundred_concurrent_conversations_do_not_mix() -> Result<()> {
    let script = ScriptedModel::by("test", |_| Reply::text("answer").slow(Duration::from_millis(1), Duration::ZERO));
    let small = ScriptedModel::by("small", |request| {
        // The summary names the conversation of which it is.
        let text = request.last_user_text();
        let name = text.split('<').nth(1).and_then(|rest| rest.split('>').next()).unwrap_or_default();
        Reply::text(format!("about <{name}>")).slow(Duration::from_millis(1), Duration::ZERO)
    });
    let agent = agent_with_tools(&script)
        .with(Summarize::with(ChatModel::new(small)?).over_tokens(60).keep_messages(4))
        .with(SlidingWindow::messages(6))
        .with(ClearToolResults::keep(1).over_tokens(1))
        .build()?;
    let conversations = (0..100).map(|number| {
        let agent = &agent;
        async move {
            let session = Session::new();
            for turn in 0..8 {
                let [asks, result] = call("x", &format!("<{number}> result {turn}"));
                session.extend([Message::user(format!("<{number}> before {turn}")), asks, result])?;
                agent.ask(format!("<{number}> question {turn}")).session(&session).await?;
            }
            Ok::<_, Error>(session)
        }
    });
    let sessions = try_join_all(conversations).await?;
    for (number, session) in sessions.iter().enumerate() {
        let history = crate::support::assert_valid(session);
        let texts = serde_json::to_string(&history)?;
        let names: Vec<_> = texts.split('<').skip(1).filter_map(|rest| rest.split('>').next()).collect();
        assert!(names.iter().all(|name| *name == number.to_string()), "{number}: {names:?}");
        assert!(history.messages()[0].text().starts_with("Summary of the conversation so far:"));
    }
    for request in script.requests() {
        let messages = History::try_from(request.messages.to_vec())?;
        let texts = serde_json::to_string(&messages)?;
        let names: HashSet<_> = texts.split('<').skip(1).filter_map(|rest| rest.split('>').next()).collect();
        assert_eq!(names.len(), 1, "{texts}");
        assert!(request.messages.len() <= 6);
    }
    Ok(())
}
