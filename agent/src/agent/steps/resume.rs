//! A run that goes on with what an earlier run of its session has left open.

use std::sync::Arc;

use emitree_runtime::{Error, Result};
use futures_core::future::BoxFuture;
use uuid::Uuid;

use crate::agent::builder::ask_for_tools;
use crate::agent::calls::report;
use crate::agent::events::RunResumed;
use crate::agent::steps::{After, Loop};
use crate::agent::turn::Resumes;
use crate::session::run::Resumed;
use crate::{AgentOutput, Message, Role, Turn};

impl<'a> Loop<'a> {
    /// Makes the calls that were left open, and then takes turns until there is an answer.
    pub(super) fn resume(mut self, resumed: Resumed) -> BoxFuture<'a, Result<AgentOutput>> {
        Box::pin(async move {
            if let Resumed::Run { turn, .. } = &resumed {
                // The number of steps is counted anew, because a run that has reached it could not go on.
                self.steered_after = turn.number;
            }
            self.report_start(Vec::new).await?;
            if self.has_starts() {
                self.start().await?;
            }
            let answered = match resumed {
                Resumed::Run { run, turn, answer } => {
                    self.continues = Some(run);
                    self.make_open_calls(run, turn, answer).await?
                }
                Resumed::Conversation => {
                    self.begin_with_message().await?;
                    None
                }
                Resumed::Ended(answer) if self.state.resumes() == Resumes::Inside => {
                    self.state.keep_answer(&answer, self.ctx);
                    Some((answer, After::End))
                }
                Resumed::Ended(_) => {
                    return Err(Error::new(
                        "there is nothing to resume: the conversation of the session ends with an answer",
                    ));
                }
            };
            self.state.session.keep()?;
            self.go_on(answered).await
        })
    }

    /// Where the last answer was the end, the messages that wait start another round, as they do in the loop.
    async fn begin_with_message(&mut self) -> Result<()> {
        let history = self.state.session.history();
        if history.messages().last().is_none_or(|last| last.role == Role::Assistant) {
            self.steer_at_end().await?;
        }
        Ok(())
    }

    async fn make_open_calls(
        &mut self,
        continues: Uuid,
        now: Turn,
        answer: Option<Arc<Message>>,
    ) -> Result<Option<(Arc<Message>, After)>> {
        let Some(turn) = self.state.session.reopen() else {
            if let Some(answer) = &answer {
                self.state.keep_answer(answer, self.ctx);
            }
            let executed = Vec::new();
            let demoted = Vec::new();
            report(self, RunResumed { continues, turn: now, executed, demoted }).await;
            return Ok(answer.map(|answer| (answer, After::End)));
        };
        if self.agent.hands_off {
            self.state.handoffs.begin_turn();
        }
        // The open calls may be of tools that middlewares add, as at the turn that made them.
        let asked = match ask_for_tools(&self.installed) {
            true => self.tools.ask(self.agent, &self.installed, self.ctx).await,
            false => Ok(()),
        };
        let outcome = match asked {
            Ok(()) => self.make_calls(turn).await,
            Err(error) => {
                drop(turn);
                Err(error)
            }
        };
        self.end_turn(outcome).await.map(Some)
    }
}
