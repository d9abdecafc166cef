//! Questions of a run that is aborted or dropped while another call of the turn goes on.

use std::sync::Arc;

use emitree_agent::{Agent, AgentRun, ChatModel, Reply, Role, ScriptedModel, Session, Tool, tool_fn};
use emitree_emitter::AnyEvent;
use emitree_mcp::McpServer;
use emitree_middleware::store::MemoryStore;
use emitree_runtime::{AbortHandle, Result, RunContext};
use serde_json::json;
use tokio::sync::Notify;

use crate::questions::{ERAS, ID, Kill, Ledger, Nothing, Process, answer, go_on, results, savings, transfer};

/// A tool that never ends.
fn wait() -> Tool {
    tool_fn("wait", "Waits", |_: Nothing, _: RunContext| std::future::pending::<Result<String>>()).unwrap()
}

fn agent(server: &McpServer) -> Agent {
    let model =
        ScriptedModel::by("test", |request| match request.messages.iter().any(|message| message.role == Role::Tool) {
            true => Reply::text("Done."),
            false => Reply::calls([transfer(5), ("wait", json!({}))]),
        });
    let agent = Agent::builder("clerk", ChatModel::new(model).unwrap()).tool(wait());
    agent.with(server.tools().idempotent(["transfer"])).build().unwrap()
}

#[tokio::test]
async fn a_question_outlives_the_abort_and_the_drop_of_its_run() {
    for era in ERAS {
        for is_dropped in [false, true] {
            let (store, ledger) = (MemoryStore::new(), Ledger::new());
            let server = ledger.bank(era).await;
            let session = Session::open(&Process::killed_at(&store, Kill::Never), ID).await.unwrap();
            let asked = Arc::new(Notify::new());
            let notify = Arc::clone(&asked);
            let clerk = agent(&server);
            let abort = AbortHandle::new();
            let run = clerk.ask("Pay.").session(&session).abort_on(&abort);
            let run = run.observe("tool.transfer.finish", move |_: &dyn AnyEvent, _| notify.notify_one());
            let mut run = Box::pin(run.into_future());
            tokio::select! {
                ended = &mut run => panic!("{ended:?}"),
                () = asked.notified() => {}
            }
            if !is_dropped {
                abort.abort("enough");
                assert!(run.as_mut().await.unwrap_err().is_aborted());
            }
            drop(run);
            drop((session, clerk, server));

            let server = ledger.bank(era).await;
            let session = Session::open(&Process::killed_at(&store, Kill::Never), ID).await.unwrap();
            answer(&session, savings()).await;
            assert!(go_on(&agent(&server), &session).await, "{era} {is_dropped}");
            assert_eq!(results(&session)[0], "sent 5 from savings", "{era} {is_dropped}");
            assert_eq!(ledger.lines(), ["5 from savings"], "{era} {is_dropped}");
        }
    }
}
