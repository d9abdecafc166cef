//! The ways to bind a middleware to the run of an agent.

use emitree_agent::{AgentBuilder, AgentInput, AgentMiddleware, AgentOutput, AgentRun, ChatOptions, Session, joins};
use emitree_runtime::{Result, RunContext, Runnable, for_tree, runnable_fn};

/// How a middleware is bound, and whether the run streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    to: To,
    pub(super) streams: bool,
}

#[derive(Clone, Copy, Debug)]
enum To {
    Agent,
    Run,
    RunAbove,
}

impl Bound {
    pub(super) const TO_AGENT: Self = Self { to: To::Agent, streams: false };

    pub(super) fn each_way() -> impl Iterator<Item = Self> {
        let ways = [To::Agent, To::Run, To::RunAbove];
        ways.into_iter().flat_map(|to| [false, true].map(|streams| Self { to, streams }))
    }

    /// Runs an agent with a middleware.
    pub(super) async fn ask(
        self,
        agent: AgentBuilder,
        middleware: impl AgentMiddleware,
        session: &Session,
    ) -> Result<AgentOutput> {
        let input = || AgentInput::from("go").options(ChatOptions::new().stream(self.streams));
        match self.to {
            To::Agent => agent.with(middleware).build()?.ask(input()).session(session).await,
            To::Run => agent.build()?.ask(input()).with(middleware).session(session).await,
            To::RunAbove => {
                let (agent, session, input) = (agent.build()?, session.clone(), input());
                let above = runnable_fn("above", move |(): (), _: RunContext| {
                    let (agent, session, input) = (agent.clone(), session.clone(), input.clone());
                    async move { agent.ask(input).session(&session).await }
                });
                above.run(()).middleware(for_tree(joins(middleware))).await
            }
        }
    }
}

/// Returns the session as it is when it was stored and read again.
pub(super) fn restored(session: &Session) -> Session {
    let stored = serde_json::to_string(session).expect("JSON");
    serde_json::from_str(&stored).expect("a session")
}
