//! The senders of messages to sessions, and the answers to the questions of their agents.

use std::error::Error as StdError;
use std::future::IntoFuture;
use std::sync::Arc;

use emitree::Result;
use emitree::agent::{History, Session};
use emitree::middleware::approval::{Decision, Request};
use futures_util::future::{try_join, try_join_all};
use tokio::time::sleep;

use crate::answers::{AUTHORS, accepted, answer_call};
use crate::parent::{Parent, STUCK, locked};
use crate::sessions::{Letter, QUEUE, Talk, Way};

/// The reason with which calls are rejected.
pub(crate) const REJECTED: &str = "nobody has ordered this";

/// How long a sender pauses between its messages, at most, in leases.
const PAUSE: f64 = 0.5;

impl Parent {
    /// Sends the messages to a session, one after another for each sender (F3, F4).
    pub(crate) async fn talk(self: Arc<Self>, talk: Talk) {
        if let Err(error) = self.send_all(&talk).await {
            self.fault(format!("a message to {} was not taken: {}", talk.id, error.explain()));
        }
    }

    /// Opens a session as two processes do.
    async fn open(&self, id: &str) -> Result<Vec<Session>> {
        let sessions = self.stores.each_ref().map(|store| Session::open(store, id).into_future());
        let sessions = try_join_all(sessions).await?;
        // A session that was open already may be out of date.
        try_join_all(sessions.iter().map(Session::refresh)).await?;
        Ok(sessions)
    }

    async fn send_all(&self, talk: &Talk) -> Result<()> {
        let sessions = self.open(&talk.id).await?;
        let Some((first, requests)) = talk.requests.split_first() else { return Ok(()) };
        self.send(&sessions, first).await?;
        let in_order = async |letters: &[Letter]| {
            for letter in letters {
                let pause = self.lease.mul_f64(locked(&self.random).f64() * PAUSE);
                sleep(pause).await;
                self.send(&sessions, letter).await?;
            }
            Ok(())
        };
        try_join(in_order(requests), in_order(&talk.hints)).await.map(drop)
    }

    /// Sends a message, and returns when it is stored. A submission is made twice at once.
    async fn send(&self, sessions: &[Session], Letter { text, way }: &Letter) -> Result<()> {
        let session = &sessions[locked(&self.random).usize(..sessions.len())];
        match way {
            Way::Submit => {
                let submits = sessions.iter().map(|session| session.submit(QUEUE, &**text).once(&**text).into_future());
                let new = try_join_all(submits).await?.iter().filter(|submitted| submitted.is_new).count();
                if new != 1 {
                    self.fault(format!("{new} of two submissions of `{text}` were told that it is new"));
                }
                return Ok(());
            }
            Way::FollowUp => session.follow_up(&**text)?,
            Way::Steer => session.steer(&**text)?,
        }
        Ok(session.saved().await?)
    }

    /// Answers the questions of a session that waits.
    pub(crate) async fn answer_session(self: Arc<Self>, id: String) {
        if let Err(error) = self.decide(&id).await {
            self.fault(format!("an answer to {id}: {error}"));
        }
    }

    /// Answers each question twice at once: one author approves, and the other one rejects (F5).
    async fn decide(&self, id: &str) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let sessions = self.open(id).await?;
        for question in sessions[0].questions() {
            if question.kind == STUCK {
                return Err("it waits for a person, and does not abort its processes".into());
            }
            let request = Request::of_interrupt(&question)?;
            let decisions = [Decision::Approve, Decision::Reject { reason: REJECTED.to_owned() }];
            let answers = sessions.iter().zip(AUTHORS).zip(decisions);
            let mut answers: Vec<_> = answers
                .map(|((session, author), decision)| answer_call(session, &question.id, decision, author))
                .collect();
            // So that each of them is first at times.
            let is_reverse = locked(&self.random).bool();
            if is_reverse {
                answers.reverse();
            }
            let mut told = try_join_all(answers).await?;
            if is_reverse {
                told.reverse();
            }
            let first = accepted(&told)?;
            let message = request.input["message"].as_str().unwrap_or_default().to_owned();
            let notes = &mut *locked(&self.notes);
            notes.answers += 1;
            if let Some(before) = notes.approved.insert(message, first.to_owned()) {
                return Err(format!("{before} and {first} have answered `{}`", question.id).into());
            }
        }
        Ok(())
    }

    /// Returns the histories of sessions.
    pub(crate) async fn histories(&self, talks: &[Talk]) -> Result<Vec<History>> {
        let mut histories = Vec::new();
        for talk in talks {
            let session = Session::open(&self.sound, &*talk.id).await?;
            let left = (session.undelivered().len(), session.questions().len());
            if left != (0, 0) {
                self.fault(format!("{} has ended with {} messages and {} questions", talk.id, left.0, left.1));
            }
            histories.push(session.history());
        }
        Ok(histories)
    }
}
