//! The beginning of a run that a page asks for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::http::StatusCode;
use emitree_agent::{Agent, AgentRun, AnswerError, Message, Session};
use emitree_emitter::{AnyEvent, Matcher, Options, new_id};
use emitree_runtime::{Answer, Interrupt, Run};
use tokio::time::{sleep, timeout};

use crate::chat::Shared;
use crate::encode::{Ids, Reads};
use crate::fact::{Fact, matcher};
use crate::fold::Fold;
use crate::live::{EndOnDrop, Live};
use crate::past::parts_of;
use crate::question;
use crate::serve::ask::{Asked, Asks, Continued, Reply};
use crate::serve::failure::Refusal;
use crate::serve::runs::Runs;
use crate::serve::thread::Visitor;
use crate::step::{Content, Part};

/// The time for which the steps of a run that has ended are kept, for pages that are being loaded.
const KEPT: Duration = Duration::from_secs(60);
/// The time for which a response waits for its run to begin. It can then say that another process works on the thread.
const BEGINS: Duration = Duration::from_secs(1);

/// The work of a run.
enum Work {
    Ask(Message),
    Resume,
}

/// Begins the run that a request asks for.
pub(crate) async fn begin(shared: &Shared, visitor: &Visitor, asked: Asked) -> Result<(Arc<Live>, Reads), Refusal> {
    let Asked { thread: id, run, asks } = asked;
    let known = visitor.open(&shared.store, &id).await?;
    let Some(turn) = shared.runs.take(&id) else {
        return Err(match (&known, &asks) {
            (Some(session), Asks::Answers { answers, .. }) => {
                answered(session, answers).await.unwrap_or_else(|| Refusal::under_way(&id))
            }
            _ => Refusal::under_way(&id),
        });
    };
    let session = match (known, &asks) {
        (Some(session), _) => session,
        (None, Asks::Message { .. }) => visitor.make(&shared.store, &id).await?,
        (None, Asks::Answers { .. }) => return Err(Refusal::no_thread(&id)),
    };
    let new_run: Arc<str> = new_id().to_string().into();
    let run = run.unwrap_or_else(|| Arc::clone(&new_run));
    let (mut before, calls) = parts_of(&session.history());
    let (work, continues) = match asks {
        Asks::Message { id, message } => {
            let id = id.unwrap_or_else(|| format!("{new_run}-0").into());
            before.push(Part { id, owner: None, content: Content::User(message.text()) });
            (Work::Ask(message), None)
        }
        Asks::Answers { answers, are_all, continues } => {
            answer(&session, answers, are_all, visitor).await?;
            (Work::Resume, continues)
        }
    };
    let (message, reads) = message_of(continues, &before, &new_run);
    let ids = Ids { thread: id.as_str().into(), run, message };
    let live = Arc::new(Live::new(ids, Fold::new(new_run, before, calls)));
    turn.begin(&live);
    start(shared, &live, session, work);
    Ok((live, reads))
}

/// Waits until a run has begun, and refuses it if another process works on its thread. A run that waits, such as for a
/// limit, is shown as one that has begun.
pub(crate) async fn begun(live: &Live) -> Result<(), Refusal> {
    match timeout(BEGINS, live.begun()).await {
        Ok(Err(error)) => Err(Refusal::new(StatusCode::CONFLICT, error.to_string())),
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

/// Returns the message that a run writes: one that the page shows, if it shows all open calls of it.
fn message_of(continues: Option<Continued>, before: &[Part], run: &Arc<str>) -> (Arc<str>, Reads) {
    let last = before.iter().rev().take_while(|part| !matches!(part.content, Content::User(_)));
    let calls: Vec<_> = last.filter(|part| part.call().is_some()).map(|part| &part.id).collect();
    match continues {
        Some(Continued { id, calls: shown }) if calls.iter().all(|call| shown.iter().any(|id| **id == ***call)) => {
            (id, Reads::On)
        }
        _ => (Arc::clone(run), Reads::Anew),
    }
}

/// Returns the refusal of answers to questions that were answered.
async fn answered(session: &Session, answers: &[(String, Reply)]) -> Option<Refusal> {
    let open = session.questions();
    let (id, _) = answers.iter().find(|(id, _)| open.iter().all(|question| question.id != *id))?;
    // The question is not open, so it takes no answer.
    session.answer(id, Answer::from(serde_json::Value::Null)).await.err().map(Into::into)
}

/// Gives the answers of a page to a session.
async fn answer(
    session: &Session,
    answers: Vec<(String, Reply)>,
    are_all: bool,
    visitor: &Visitor,
) -> Result<(), Refusal> {
    let open = session.questions();
    let missing = open.iter().find(|question| answers.iter().all(|(id, _)| question.id != *id));
    if let Some(Interrupt { id, .. }) = missing.filter(|_| are_all) {
        let text = format!("the question {id:?} has no answer: `resume` has to answer all open questions");
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    let (mut known, mut is_fresh) = (None, false);
    for (id, reply) in answers {
        let question = open.iter().find(|question| question.id == id);
        let value = match (question, reply) {
            (Some(question), Reply::Value(value)) => question::answer(question, &value),
            (Some(question), Reply::Cancelled) => question::cancelled(question),
            (None, Reply::Value(value)) => value,
            (None, Reply::Cancelled) => serde_json::Value::Null,
        };
        let mut answer = Answer::from(value);
        answer.by.clone_from(&visitor.name);
        match session.answer(&id, answer).await {
            Ok(()) => is_fresh = true,
            // An earlier request has given this answer, and another one did not fit.
            Err(error @ AnswerError::Answered { .. }) => known = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    match known {
        Some(error) if !is_fresh => Err(error.into()),
        _ => Ok(()),
    }
}

/// Starts the task of a run. It ends with the run, which the chat aborts when it is dropped.
fn start(shared: &Shared, live: &Arc<Live>, session: Session, work: Work) {
    let (agent, live, shown) = (shared.agent.clone(), Arc::clone(live), shared.shown.clone());
    let (runs, keeps) = (Arc::downgrade(&shared.runs), shared.keeps_running);
    let place = Place { runs, thread: session.id().to_owned(), live: Arc::downgrade(&live) };
    tokio::spawn(async move {
        let ends = EndOnDrop(Arc::clone(&live));
        let run = match work {
            Work::Ask(message) => agent.ask(message),
            Work::Resume => agent.resume(&session),
        };
        let result = observed(run.session(&session), &live, shown).await;
        live.end(&result);
        drop((ends, result, agent, session));
        // A run that another process has refused was never one.
        let keeps = keeps && !live.is_refused();
        // The next run of the thread frees the steps of this one.
        drop(live);
        if keeps {
            sleep(KEPT).await;
        }
        drop(place);
    });
}

/// The place of a run in its chat. Dropping it gives the place up, also if the task of the run panics.
struct Place {
    runs: Weak<Runs>,
    thread: String,
    live: Weak<Live>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((runs, live)) = self.runs.upgrade().zip(self.live.upgrade()) {
            runs.forget(&self.thread, &live);
        }
    }
}

/// Lets a run stream, and folds its events.
fn observed<'a>(run: Run<'a, Agent>, live: &Arc<Live>, shown: Vec<Matcher>) -> Run<'a, Agent> {
    let of_facts = Arc::clone(live);
    // Models and sub-agents are runs below the agent's.
    let facts = Options::new().nested(true).observe(matcher(), move |event: &dyn AnyEvent, meta| {
        Fact::of(event, meta).into_iter().for_each(|fact| of_facts.add(fact));
    });
    let run = run.abort_on(live.abort.signal()).on_start(|start, _| start.input.options.stream = Some(true));
    let run = run.register(facts);
    shown.into_iter().fold(run, |run, matcher| {
        let live = Arc::clone(live);
        run.observe(matcher, move |event: &dyn AnyEvent, meta| {
            Fact::shown(event, meta).into_iter().for_each(|fact| live.add(fact));
        })
    })
}
