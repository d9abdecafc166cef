//! Inputs, answers, submissions and aborts that any process sends to a session that another one holds (F4, F5).
//!
//! The process that holds the session takes them into the log, and so does the next one that claims or changes it. Inputs
//! have the ids of their records, so a session gets each of them once, whichever way it comes.

use std::future::IntoFuture;
use std::mem::take;
use std::sync::Arc;

use emitree_emitter::new_id;
use emitree_middleware::durable::Submitted;
use emitree_middleware::store::{Post, Posted, Revision, StoreError};
use emitree_runtime::{Answer, Error, Result, RunContext};
use futures_core::future::BoxFuture;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Message;
use crate::message::arguments::storing;
use crate::message::history::check;
use crate::session::Session;
use crate::session::entry::SessionEntry;
use crate::session::fold::CAPACITY;
use crate::session::log::{Log, LogState, View};
use crate::session::record::{Input, Line, Record};
use crate::session::run::take_interjections;
use crate::session::turn::Closed;

/// The body of a post.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Sent {
    /// An input, or the answer to a question.
    Line(Box<Line>),
    /// An input for the agents that serve a queue, to which the session belongs from now on.
    Submission {
        queue: String,
        line: Box<Line>,
        /// The guards that the submitting run hands down.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        guards: Vec<String>,
    },
    Abort(String),
}

impl Sent {
    /// Returns the id of a message.
    const fn message_id(&self) -> Option<Uuid> {
        match self {
            Self::Line(line) | Self::Submission { line, .. } => match line.record {
                Record::Sent { id, .. } => Some(id),
                _ => None,
            },
            Self::Abort(_) => None,
        }
    }

    const fn is_input(&self) -> bool {
        match self {
            Self::Line(line) => id_of(&line.record).is_some(),
            Self::Submission { .. } => true,
            Self::Abort(_) => false,
        }
    }

    fn to_post(&self) -> Result<Post, StoreError> {
        let json = storing(|| serde_json::to_string(self));
        json.map(Post::new).map_err(|error| StoreError::failed("what is sent to the session is no JSON", error))
    }
}

/// Returns the id of a record that arrives once.
const fn id_of(record: &Record) -> Option<Uuid> {
    match record {
        Record::Sent { id, .. } | Record::Paused { id } => Some(*id),
        _ => None,
    }
}

/// Returns the answer that a post has, unless it was taken.
pub(super) fn answer_in(post: &Post) -> Option<Answer> {
    match serde_json::from_slice(&post.body) {
        Ok(Sent::Line(line)) => match line.record {
            Record::Answered { answer, .. } => Some(answer),
            _ => None,
        },
        _ => None,
    }
}

impl SessionEntry {
    /// Returns the records that the store does not have, also those whose append another process has prevented.
    fn unstored(&self, log: &Log) -> Vec<Line> {
        let revision = self.journal.revision();
        let known = self.known.lock();
        known.not_stored(revision).iter().chain(log.lock().lines().unwrap_or_default()).cloned().collect()
    }

    /// Sends the inputs that are not stored to the process that holds the session. Returns `false` if other changes of the
    /// program are not stored, which cannot be sent.
    pub(super) async fn post_inputs(&self, log: &Log) -> Result<bool, StoreError> {
        let unstored = self.unstored(log);
        let stays = |line: &Line| matches!(line.record, Record::Meta { .. } | Record::Said { .. });
        let are_all = !unstored.iter().any(stays);
        for line in unstored {
            if let Some(id) = id_of(&line.record) {
                self.journal.post(&Sent::Line(Box::new(line)).to_post()?.id(id)).await?;
            }
        }
        Ok(are_all)
    }

    /// Stores the inputs of this process, or sends them, so that those that are sent next come behind them.
    async fn send_first(&self, log: &Log) -> Result<(), StoreError> {
        while self.unstored(log).iter().any(|line| id_of(&line.record).is_some()) {
            match self.journal.commit().await {
                Err(StoreError::Conflict { current, .. }) if current != Revision::NONE => {}
                Err(StoreError::Held { .. }) => return self.post_inputs(log).await.map(drop),
                stored => return stored.map(drop),
            }
        }
        Ok(())
    }

    /// Returns `true` if none of the inputs that were sent waits in the store, or if workers go on with them. Otherwise the
    /// process that holds the session may release it without them, and nobody would know of them.
    pub(super) async fn are_posts_safe(&self, log: &Log) -> Result<bool, StoreError> {
        let sent: Vec<_> = self.unstored(log).iter().filter_map(|line| id_of(&line.record)).collect();
        let store = &self.kept.store;
        if store.posts(self.journal.id()).await?.iter().all(|post| !sent.contains(&post.id)) {
            return Ok(true);
        }
        let entry = store.load(self.journal.id()).await?;
        Ok(entry.is_some_and(|entry| entry.head.queue.is_some()))
    }

    /// Sends an answer, under the key of its question. Returns the post that was first, if there is one.
    pub(super) async fn post_answer(&self, key: &str, id: &str, answer: &Answer) -> Result<Option<Post>, StoreError> {
        let line = Line::from(Record::Answered { id: id.to_owned(), answer: answer.clone() });
        match self.journal.post_and_take(&Sent::Line(Box::new(line)).to_post()?.key(key)).await? {
            Posted::Kept => Ok(None),
            // It was sent, and its reply was lost.
            Posted::Refused(first) if answer_in(&first).as_ref() == Some(answer) => Ok(None),
            Posted::Refused(first) => Ok(Some(first)),
        }
    }

    /// Takes over answers whose process was killed before it took them over. An abort waits for the next claim.
    pub(super) async fn take_answers(&self) -> Result<(), StoreError> {
        let posts = self.kept.store.posts(self.journal.id()).await?;
        if posts.iter().all(|post| answer_in(post).is_some()) {
            self.journal.refresh().await?;
        }
        Ok(())
    }

    /// Stores what the store does not have, and reads what other processes have changed.
    pub(super) async fn catch_up(&self) -> Result<(), StoreError> {
        self.store_first().await?;
        self.journal.refresh().await.map(drop)
    }

    /// Takes over what was sent. Returns the ids of the posts that are done with: no more inputs fit into a full inbox.
    pub(super) fn take_posts(&self, log: &Arc<Log>, posts: &[Post]) -> Vec<Uuid> {
        let taken = self.take_each(log, posts);
        let mut posted = take(&mut self.known.lock().posted);
        posted.extend(&taken);
        log.lock().put_first(log.root(), &mut posted);
        self.known.lock().posted = posted;
        taken
    }

    fn take_each(&self, log: &Arc<Log>, posts: &[Post]) -> Vec<Uuid> {
        let mut taken = Vec::new();
        let mut is_blocked = false;
        for post in posts {
            let sent = serde_json::from_slice::<Sent>(&post.body);
            // An answer and an abort pass the inputs that wait, which may wait for them.
            let is_input = sent.as_ref().is_ok_and(Sent::is_input);
            is_blocked |= sent.as_ref().is_ok_and(|sent| self.has_to_wait(log, sent));
            if is_input && is_blocked {
                continue;
            }
            taken.push(post.id);
            match sent {
                Ok(Sent::Line(line)) if id_of(&line.record).is_some() => self.take_input(log, *line),
                Ok(Sent::Line(line)) => take_answer(log, *line),
                Ok(Sent::Submission { queue, line, guards }) => {
                    self.known.lock().queue = Some(queue);
                    self.take_guards(log, guards);
                    self.take_input(log, *line);
                }
                Ok(Sent::Abort(reason)) => self.stop(log, reason),
                Err(error) => {
                    tracing::warn!(%error, "what was sent to the session `{}` cannot be read", self.journal.id());
                }
            }
        }
        taken
    }

    /// Returns `true` for a post that has to wait in the store.
    pub(super) fn post_has_to_wait(&self, log: &Log, post: &Post) -> bool {
        serde_json::from_slice(&post.body).is_ok_and(|sent| self.has_to_wait(log, &sent))
    }

    /// Returns `true` for an input for which there is no place, and for one that was submitted below guards that the runs
    /// under way lack: then the next worker takes it.
    fn has_to_wait(&self, log: &Log, sent: &Sent) -> bool {
        let known = self.known.lock();
        let state = log.lock();
        let needs_place = sent.message_id().is_some_and(|id| !state.fold.knows(id));
        let is_full = needs_place && state.fold.inbox.len() >= CAPACITY;
        let lacks = |guard: &String| !known.guards.contains(guard);
        let is_unguarded = matches!(sent, Sent::Submission { guards, .. } if guards.iter().any(lacks));
        is_full || is_unguarded && !state.runs().is_empty()
    }

    fn take_guards(&self, log: &Log, names: Vec<String>) {
        let state = &mut *log.lock();
        if !names.iter().all(|name| state.fold.guards.contains(name)) {
            _ = state.push(log.root(), Record::Guards { names });
        }
    }

    fn take_input(&self, log: &Arc<Log>, line: Line) {
        let interjects = matches!(line.record, Record::Sent { sent: Input::Interject(_), .. });
        let below = line.session.clone();
        let (is_new, closed) = {
            let state = &mut *log.lock();
            let is_new = state.push_again(log.root(), vec![line]) && state.runs().is_empty();
            let view = if interjects { state.view_of_line(log.root(), below.as_deref()) } else { None };
            (is_new, view.and_then(|view| close_turn(state, &view)))
        };
        if is_new {
            self.note_new();
        }
        closed.into_iter().for_each(Closed::abort);
    }

    /// Aborts the runs that use the session, or that are about to. Without any, it is paused.
    fn stop(&self, log: &Log, reason: String) {
        let runs = log.lock().runs();
        runs.iter().for_each(|run| _ = run.abort(&*reason));
        self.note_stop(reason);
    }
}

/// Closes the first turn under way for the interjections that wait.
pub(super) fn close_turn(state: &mut LogState, view: &View) -> Option<Closed> {
    let turn = state.local(view).and_then(|local| local.turns.first().cloned())?;
    take_interjections(state, view, turn.by()).then(|| turn.close(state))
}

fn take_answer(log: &Arc<Log>, line: Line) {
    let Record::Answered { id, answer } = line.record else { return };
    let session = Session::of_log(Arc::clone(log));
    let taken = session.take_answer_in(&mut log.lock(), &id, &answer);
    match taken {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!(%error, "an answer that was sent is dropped"),
        None => tracing::warn!(question = id, "an answer that was sent is dropped: the question is not open"),
    }
}

impl Session {
    /// Submits a message to the agents that serve a queue: one of its [workers](emitree_middleware::durable::Worker) goes on
    /// with the session, and gives the message to the agent where it would end, as a [follow-up](Self::follow_up). It is
    /// stored when the returned value has been awaited, also while a process works on the session. The session belongs to
    /// the queue from then on: workers go on with it after a kill, an answer, a message and a
    /// [retryable](Error::is_retryable) failure.
    ///
    /// The names of the guards that the run which calls this hands down are stored: a worker whose agent lacks one of them
    /// asks a person instead of going on.
    ///
    /// ```
    /// use emitree_agent::{Agent, ChatModel, ScriptedModel, Session};
    /// use emitree_middleware::durable::Worker;
    /// use emitree_middleware::store::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let store = MemoryStore::new();
    /// let session = Session::open(&store, "order-17").await?;
    /// assert!(session.submit("support", "Pay the bills.").once("order-17/1").await?.is_new);
    /// assert!(!session.submit("support", "Pay the bills.").once("order-17/1").await?.is_new);
    ///
    /// // Later, perhaps on another machine.
    /// let agent = Agent::builder("support", ChatModel::new(ScriptedModel::new("test").text("Paid."))?).build()?;
    /// let worker = Worker::new(&store).serve("support", agent).start().await?;
    /// while session.history().messages().len() < 2 {
    ///     tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    ///     session.refresh().await?;
    /// }
    /// worker.shutdown(std::time::Duration::from_secs(30)).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the session has no store or belongs to another queue, if the message is not valid by itself, if
    /// 1,000 messages wait, and the error of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the message may be submitted.
    pub fn submit(&self, queue: impl Into<String>, message: impl Into<Message>) -> Submit<'_> {
        Submit { session: self, queue: queue.into(), message: message.into(), once: None }
    }

    /// Stops the session: aborts the runs that use it, in whichever process they are under way. It is paused then, and its
    /// workers leave it until there is a new message or answer. A session that waits for a worker or for an answer is
    /// paused at once. Returns `false` if nothing is under way and nothing waits, or if the session has no store.
    ///
    /// The process that works on the session gets the abort at most a second later. Nothing waits for the end of its runs.
    /// It passes messages that wait for a place, and for a guard: workers go on with those afterwards.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the session may be stopped.
    pub async fn abort(&self, reason: impl Into<String>) -> Result<bool, StoreError> {
        let Some(entry) = self.log.entry() else { return Ok(false) };
        let reason = reason.into();
        let post = Sent::Abort(reason.clone()).to_post()?;
        loop {
            entry.journal.refresh().await?;
            if entry.journal.holder().is_some() {
                entry.journal.post(&post).await?;
                return Ok(true);
            }
            if !entry.is_stored() || !entry.pause() {
                return Ok(false);
            }
            match entry.journal.commit().await {
                Ok(_) => return Ok(true),
                // Another process was faster.
                Err(StoreError::Conflict { current, .. }) if current != Revision::NONE => {}
                Err(StoreError::Held { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Submits a message to a queue when it is awaited. Returned by [`Session::submit`].
#[must_use = "a message is submitted when this is awaited"]
#[derive(Debug)]
pub struct Submit<'a> {
    session: &'a Session,
    queue: String,
    message: Message,
    once: Option<String>,
}

impl Submit<'_> {
    /// Sets the id of the submission: of all that have this id in the session, only the first is kept.
    pub fn once(mut self, id: impl Into<String>) -> Self {
        self.once = Some(id.into());
        self
    }

    async fn submit(self) -> Result<Submitted> {
        let Self { session, queue, message, once } = self;
        let Some(entry) = session.log.entry().filter(|_| !session.view.is_below()) else {
            return Err(Error::new("the session cannot be submitted: a session of `Session::open` can"));
        };
        check(std::slice::from_ref(&Arc::new(message.clone())))?;
        let is_served = entry.is_served(&queue).await?;
        entry.store_first().await?;
        entry.send_first(&session.log).await?;
        let id = new_id();
        let sent = Record::Sent { number: 0, id, sent: Input::FollowUp(Arc::new(message)) };
        let guards = RunContext::current().map(|ctx| ctx.nested_guards()).unwrap_or_default();
        let sent = Sent::Submission { queue: queue.clone(), line: Box::new(sent.into()), guards };
        let mut post = sent.to_post()?.id(id).queue(queue);
        if let Some(once) = once {
            post = post.key(format!("once/{once}"));
        }
        let is_new = entry.journal.post(&post).await? == Posted::Kept;
        Ok(Submitted::new(is_new, is_served))
    }
}

impl<'a> IntoFuture for Submit<'a> {
    type Output = Result<Submitted>;
    type IntoFuture = BoxFuture<'a, Result<Submitted>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.submit())
    }
}
