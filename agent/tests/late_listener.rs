//! A listener that is added while a call is streamed. This test has a process of its own, because the name of a call is
//! emitted as soon as anybody listens, also a test that listens on the root.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_agent::reply::{ToolCallDelta, ToolCallStarted};
use emitree_agent::{ChatModel, ChatRequest, Delta, Reply, ScriptedModel};
use emitree_runtime::{Result, RunContext, Runnable};

#[tokio::test(start_paused = true)]
async fn a_listener_that_is_added_during_a_call_receives_its_name_and_then_each_further_piece() -> Result<()> {
    let deltas =
        ["{\"pa", "th\": ", "1", "}"].map(|piece| Delta::tool_call(0, Some("a".into()), Some("read".into()), piece));
    let second = Duration::from_secs(1);
    let script = ScriptedModel::new("test").reply(Reply::deltas(deltas).slow(Duration::ZERO, second));
    let log = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&log);
    let listens_late = move |ctx: &RunContext| {
        let (ctx, log) = (ctx.clone(), Arc::clone(&to));
        tokio::spawn(async move {
            tokio::time::sleep(second * 3 / 2).await;
            let started = Arc::clone(&log);
            let emitter = ctx.emitter();
            emitter.observe("tool_call_started", move |event: &ToolCallStarted, _| {
                started.lock().expect("no panic").push(event.name.to_string());
            })?;
            emitter.observe("tool_call_delta", move |event: &ToolCallDelta, _| {
                log.lock().expect("no panic").push(event.arguments.clone());
            })
        });
        Ok(())
    };
    let mut request = ChatRequest::from("go");
    request.options.stream = Some(true);
    let response = ChatModel::new(script)?.run(request).middleware(listens_late).await?;
    assert_eq!(*log.lock().expect("no panic"), ["read", "1", "}"]);
    assert_eq!(response.message.tool_calls().next().expect("a call").arguments.to_string(), r#"{"path":1}"#);
    Ok(())
}
