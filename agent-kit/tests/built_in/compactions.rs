//! `context.compact`: hooks before and after a middleware replaces older messages of the history.

use std::sync::Arc;

use emitree_agent::hook::{Compacted, Compaction};
use emitree_agent::{
    Agent, AgentRun, ChatModel, History, HookTest, HooksFn, Message, Reply, ScriptedModel, Session, ToolCall,
    ToolResult, hooks_fn,
};
use emitree_agent_kit::built_in::Summarize;
use emitree_runtime::{Error, Result, RunContext, Runnable, runnable_fn};
use serde_json::json;

use crate::support::{Log, assert_valid, texts};

/// An agent that keeps the last message, and replaces the others with the answer of `small`.
fn summarizes(small: &ScriptedModel) -> Result<Agent> {
    let summarize = Summarize::with(ChatModel::new(small.clone())?)
        .counter(|messages: &[Arc<Message>], _: &RunContext| messages.len() as u64);
    let large = ScriptedModel::by("large", |_| Reply::text("yes"));
    Agent::builder("friend", ChatModel::new(large)?).with(summarize.over_tokens(2).keep_messages(1)).build()
}

fn small() -> ScriptedModel {
    ScriptedModel::by("small", |_| Reply::text("sum"))
}

fn session() -> Result<Session> {
    Ok(History::try_from(vec![Message::user("one"), Message::assistant("two")])?.into())
}

fn lines(messages: &[Arc<Message>]) -> String {
    messages
        .iter()
        .map(|message| message.text().replace("Summary of the conversation so far:\n\n", "sum: "))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Logs what it receives before and after.
fn logs(id: &'static str, log: &Log) -> HooksFn {
    let log = log.clone();
    hooks_fn(id, move |hooks| {
        let (before, after) = (log.clone(), log.clone());
        hooks.on_compact(move |messages, _| before.add(format!("{id} before: {}", lines(messages))));
        hooks.on_compacted(move |compacted: &Compacted, _| {
            after.add(format!("{id} after: {} -> {}", lines(&compacted.before), lines(&compacted.after)));
        });
    })
}

#[tokio::test]
async fn the_model_reads_what_the_hooks_before_leave_and_the_hooks_after_receive_what_was_replaced() -> Result<()> {
    let (small, log, session) = (small(), Log::default(), session()?);
    let hides = hooks_fn("hides", |hooks| {
        hooks.on_compact_async(|messages, _| {
            Box::pin(async {
                messages[0] = Arc::new(Message::user("(hidden)"));
                Ok(())
            })
        });
    });
    let agent = summarizes(&small)?;
    let run = agent.ask("three").session(&session);
    run.with(logs("a", &log)).with(hides).with(logs("b", &log)).await?;
    let replaced = "after: one, two -> sum: sum";
    let expected =
        ["a before: one, two", "b before: (hidden), two", &format!("a {replaced}"), &format!("b {replaced}")];
    assert_eq!(log.lines(), expected);
    let prompt = small.requests()[0].last_user_text();
    assert!(prompt.ends_with("user: (hidden)\n\nassistant: two"), "{prompt}");
    assert_eq!(lines(assert_valid(&session).messages()), "sum: sum, three, yes");
    Ok(())
}

// A3
#[tokio::test]
async fn a_halt_skips_this_compaction_only_and_the_run_goes_on() -> Result<()> {
    let (small, log, session) = (small(), Log::default(), session()?);
    let once = hooks_fn("once", |hooks| {
        let asked = hooks.state::<u32>();
        hooks.on_compact(move |_, ctx| {
            let asked = asked.with(ctx, |asked| std::mem::replace(asked, 1))?;
            if asked == 0 { Err(Error::halted("once", "not yet")) } else { Ok(()) }
        });
    });
    let agent = summarizes(&small)?;
    let ask = |text: &'static str| agent.ask(text).session(&session).with(once.clone()).with(logs("a", &log));
    ask("three").await?;
    assert_eq!((texts(&session).join(", ").as_str(), small.requests().len()), ("one, two, three, yes", 0));
    assert_eq!(log.lines(), [""; 0], "later hooks are not called");
    ask("four").await?;
    assert_eq!(lines(assert_valid(&session).messages()), "sum: sum, four, yes");
    assert_eq!(log.lines(), ["a before: one, two, three, yes", "a after: one, two, three, yes -> sum: sum"]);
    Ok(())
}

#[tokio::test]
async fn any_other_failure_of_a_hook_ends_the_run_and_the_history_stays() -> Result<()> {
    let before = || hooks_fn("m", |hooks| _ = hooks.on_compact(|_, _| Err(Error::denied("m", "never"))));
    let after = || {
        hooks_fn("m", |hooks| {
            hooks.on_compacted_async(|_, _| Box::pin(async { Err(Error::new("the archive is full")) }));
        })
    };
    for (hooks, expected, requests) in [(before(), "never", 0), (after(), "the archive is full", 1)] {
        let (small, session) = (small(), session()?);
        let error = summarizes(&small)?.ask("three").session(&session).with(hooks).await.unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!((texts(&session).join(", ").as_str(), small.requests().len()), ("one, two, three", requests));
        if requests == 1 {
            assert_eq!(error.details()["by"], "m.context.compact");
            // The summary does not count, so the hooks after are called with the next one.
            let log = Log::default();
            summarizes(&small)?.ask("four").session(&session).with(logs("a", &log)).await?;
            assert_eq!(log.lines()[1], "a after: one, two, three -> sum: sum");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_hooks_after_are_not_called_if_the_model_fails() -> Result<()> {
    let small = ScriptedModel::by("small", |_| Reply::error(Error::new("overloaded")));
    let (log, session) = (Log::default(), session()?);
    summarizes(&small)?.ask("three").session(&session).with(logs("a", &log)).await?;
    assert_eq!(log.lines(), ["a before: one, two"]);
    Ok(())
}

/// A middleware that cuts the history at a position, and puts a message there.
fn cuts(at: usize, message: fn() -> Message) -> HooksFn {
    hooks_fn("cuts", move |hooks| {
        hooks.on_state_async(move |history, ctx| {
            Box::pin(async move {
                let Some(compaction) = Compaction::begin(history, at, ctx).await? else { return Ok(()) };
                compaction.replace_with([Arc::new(message())]).await
            })
        });
    })
}

#[tokio::test]
async fn any_middleware_can_compact_a_history_and_mistakes_are_named() -> Result<()> {
    let call = Message::assistant("").with_call(ToolCall::new("c", "x", json!({})));
    let messages = vec![Message::user("one"), call, Message::tool([ToolResult::new("c", 1)])];
    let old: fn() -> Message = || Message::user("old");
    let calls = || Message::assistant("").with_call(ToolCall::new("d", "x", json!({})));
    let at_boundaries = "`boundaries` returns the positions where it can";
    let cut = |at| format!("a history of 4 messages cannot be cut at {at}: {at_boundaries}");
    let open = "message 0 calls `x` (id `d`), but no result follows".to_owned();
    for (at, message, expected) in [
        (0, old, Ok("one, , , go, yes")),
        (3, old, Ok("old, go, yes")),
        (2, old, Err(cut(2))),
        (9, old, Err(cut(9))),
        (3, calls, Err(open)),
    ] {
        let (log, session) = (Log::default(), Session::from(History::try_from(messages.clone())?));
        let model = ChatModel::new(ScriptedModel::new("large").text("yes"))?;
        let agent = Agent::builder("friend", model).with(cuts(at, message)).with(logs("a", &log)).build()?;
        let answer = agent.ask("go").session(&session).await;
        let is_valid = expected.is_ok();
        assert_eq!(
            answer.map(|_| texts(&session).join(", ")).map_err(|error| error.to_string()),
            expected.map(str::to_owned)
        );
        if is_valid {
            assert_eq!(log.lines().len(), if at == 0 { 0 } else { 2 });
        } else {
            assert_eq!(texts(&session).join(", "), "one, , , go");
        }
    }
    let outside = runnable_fn("outside", |(): (), ctx: RunContext| async move {
        Compaction::begin(&mut History::try_from(vec![Message::user("one")])?, 1, &ctx).await.map(|_| ())
    });
    let error = outside.run(()).await.unwrap_err().to_string();
    assert!(error.ends_with("the run `outside` is neither an agent's run nor nested in one"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_hook_test_calls_the_hooks_before_and_after() -> Result<()> {
    let log = Log::default();
    let test = HookTest::new(&logs("a", &log))?;
    let one = || vec![Arc::new(Message::user("one"))];
    assert_eq!(test.compact([Message::user("one")]).await?, Some(one()));
    test.compacted(Compacted::new(one(), Vec::new())).await?;
    assert_eq!(log.lines(), ["a before: one", "a after: one -> "]);

    let halts = hooks_fn("halts", |hooks| _ = hooks.on_compact(|_, _| Err(Error::halted("halts", "no"))));
    assert_eq!(HookTest::new(&halts)?.compact([Message::user("one")]).await?, None);

    let both = hooks_fn("both", |hooks| {
        hooks.on_compact(|messages, _| messages.clear());
        hooks.on_state_async(|history, ctx| {
            Box::pin(async move {
                let compaction = Compaction::begin(history, 1, ctx).await?.expect("no halt");
                let note = format!("{} messages", compaction.messages().len());
                compaction.replace_with([Arc::new(Message::user(note))]).await
            })
        });
    });
    let history = HookTest::new(&both)?.state(History::try_from(vec![Message::user("one")])?).await?;
    assert_eq!(history.messages()[0].text(), "0 messages", "hooks of `model.state` can compact in a test");
    Ok(())
}
