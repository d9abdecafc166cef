//! Sessions at earlier points, and sessions that are made of them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use emitree_middleware::store::StoreError;
use emitree_runtime::{Error, Result, RunKey};
use rust_decimal::Decimal;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::Usage;
use crate::message::history::History;
use crate::session::Session;
use crate::session::fold::search::Search;
use crate::session::fold::turn::TurnRow;
use crate::session::fold::{Conversation, Fork};
use crate::session::keys::SessionKey;
use crate::session::log::Log;
use crate::session::record::Record;

/// A point of a session, for [`Session::at`] and [`Session::fork`].
///
/// Turns are counted from 1, and runs from 0, as in [`TurnInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Point {
    /// Now.
    Now,
    /// When the messages of the turn had entered the history. If the turn was resumed, when it had ended for the last
    /// time.
    After(u64),
    /// Before the model was asked for the turn, or a layer answered instead. A fork at this point asks again.
    Before(u64),
    /// Before the run began, so without its input. A fork at this point can get another input.
    BeforeRun(u32),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now => f.write_str("now"),
            Self::After(turn) => write!(f, "after the turn {turn}"),
            Self::Before(turn) => write!(f, "before the turn {turn}"),
            Self::BeforeRun(run) => write!(f, "before the run {run}"),
        }
    }
}

/// Which turns of a session can be read after snapshots. Set it where the session is opened:
/// `Session::open(&store, id).keep(Keep::Everything)`.
///
/// A store makes a snapshot when the session has grown: it has the whole session, and takes the place of the records
/// before it. They have texts that hooks have replaced and attempts have discarded, which stay in the store if they are
/// kept. A snapshot after an answer that a guard has withheld removes them in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keep {
    /// A snapshot removes all records before it.
    #[default]
    Nothing,
    /// At least the last turns, so many, can be read, but no more than the last 1,000. A snapshot keeps the records before
    /// it. Those that were kept before are removed once so many turns have ended between two snapshots.
    Turns(u64),
    /// All turns can be read, so the entry grows with each of them.
    Everything,
}

/// The reason why a point of a session cannot be read, or no session can be made of it.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum PastError {
    /// The session has no such turn or run.
    #[error("there is no point {point}: the session has {turns} turns, from 1, and {runs} runs, from 0")]
    Unknown {
        /// The point.
        point: Point,
        /// The number of turns.
        turns: u64,
        /// The number of runs.
        runs: u32,
    },
    /// The turn has not entered the history.
    #[error("there is no point {point}: no message of the turn is in the history; read the point before the turn")]
    Unfinished {
        /// The point.
        point: Point,
    },
    /// The turn belongs to an attempt that was discarded.
    #[error("there is no point {point}: it belongs to an attempt that was discarded")]
    Discarded {
        /// The point.
        point: Point,
    },
    /// The records of the session do not reach back to the point.
    #[error("the point {point} is forgotten: the oldest point that can be read is {oldest}")]
    Forgotten {
        /// The point.
        point: Point,
        /// The oldest point that can be read.
        oldest: Point,
    },
    /// There is a session with the id of the new one.
    #[error("there is a session with the id `{id}`: choose another id for the new one")]
    Exists {
        /// The id.
        id: String,
    },
    /// The id of the new session cannot be the id of a session.
    #[error("the new session cannot have the id `{id}`: {problem}")]
    InvalidId {
        /// The id.
        id: String,
        /// The fault.
        problem: String,
    },
    /// The session cannot be read, or the fork cannot be stored.
    #[error(transparent)]
    Failed(#[from] StoreError),
}

/// A turn of a session. [`Session::turns`] returns the last 1,000.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TurnInfo {
    /// The number of the turn in the session, from 1. The keys of its calls have it.
    pub number: u64,
    /// The number of the run that began the turn, from 0.
    pub run: u32,
    /// When the model was asked, or a layer answered instead.
    pub at: SystemTime,
    /// The tokens that the provider reported.
    pub usage: Usage,
    /// The cost, if it is known.
    pub cost: Option<Decimal>,
    /// The number of tool calls that were to be made.
    pub calls: u32,
    /// The number of messages with which the turn entered the history; 0 before.
    pub messages: usize,
    /// `true` if the model has not replied yet, or calls have no result, and a run is at work or can go on with it.
    pub is_open: bool,
    /// `true` if another attempt of the run has discarded the turn.
    pub is_discarded: bool,
}

/// The session of which a session was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The id of the session.
    pub session: String,
    /// The number of its turns at the point of the fork.
    pub turn: u64,
}

/// A session at an earlier point. Returned by [`Session::at`].
#[derive(Clone, Debug)]
pub struct Past(Conversation);

impl Past {
    /// Returns the conversation.
    #[must_use]
    pub fn history(&self) -> History {
        History(Arc::clone(&self.0.messages))
    }

    /// Returns the state of a middleware, or `None` if the session had none for this id. In a turn, it is the state that
    /// the last commit had.
    ///
    /// # Errors
    ///
    /// Returns an error if the state is not a `T`.
    pub fn state<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>> {
        let state = self.0.state.get(id).map(|json| serde_path_to_error::deserialize(&**json));
        state.transpose().map_err(|error| Error::new(format!("the state `{id}` has another type: {error}")))
    }

    /// Returns the values of [`Session::set_meta`].
    #[must_use]
    pub fn meta(&self) -> Map<String, Value> {
        self.0.meta.clone()
    }

    /// Returns the turns until this point, as [`Session::turns`] does.
    #[must_use]
    pub fn turns(&self) -> Vec<TurnInfo> {
        self.0.turn_infos()
    }
}

impl Session {
    /// Makes an empty session with a random id that keeps all its records in memory, so that all its points can be read.
    ///
    /// A session with a [store](Self::open) reads its points from there, and any other session knows only
    /// [`Point::Now`].
    #[must_use]
    pub fn keeping_log() -> Self {
        let session = Self::new();
        session.log.lock().keep_lines(Vec::new());
        session
    }

    /// Returns the last 1,000 turns, in order, those of discarded attempts included.
    #[must_use]
    pub fn turns(&self) -> Vec<TurnInfo> {
        self.read(Conversation::turn_infos)
    }

    /// Returns the session of which [`fork`](Self::fork) has made this one.
    #[must_use]
    pub fn forked_from(&self) -> Option<Origin> {
        let from = self.read(|session| session.from.clone());
        from.map(|Fork { session, turn }| Origin { session, turn })
    }

    /// Returns the id of the other session of the last fork: the one that was made of this session, or of which this one
    /// was made. That session may need what this one has stored elsewhere before.
    #[must_use]
    pub fn last_fork(&self) -> Option<String> {
        self.read(|session| session.forked.as_ref().or(session.from.as_ref()).map(|fork| fork.session.clone()))
    }

    /// Returns the session as it was at an earlier point.
    ///
    /// A session with a [store](Self::open) stores what has changed, and reads its entry again: all points since the
    /// last snapshot can be read, or also those before it ([`Keep`]). A session without a store knows
    /// [`Point::Now`], or all points if it was made with [`keeping_log`](Self::keeping_log). A sub-agent's session knows
    /// [`Point::Now`].
    ///
    /// An answer that a guard has withheld forgets all points before it: its text is in none of them.
    ///
    /// # Errors
    ///
    /// Returns an error that names the point if the session has no such turn or run, if the turn belongs to a discarded
    /// attempt, or if the point is forgotten. Returns the error of the store if it fails.
    pub async fn at(&self, point: Point) -> Result<Past, PastError> {
        self.fold_at(point).await.map(Past)
    }

    /// Makes another session of this one, as it was at an earlier point.
    ///
    /// The fork has the history, the state of middleware, the [metadata](Self::meta) and the [turns](Self::turns) of this
    /// session. Its turns go on from their number, and its keys have its own id, so no idempotency key of this session is
    /// used again. A call that has no result at the point is never made in the fork. Questions and messages that wait, and
    /// a pause, stay here.
    ///
    /// If this session has a [store](Self::open), the fork is an entry of the same store, and is stored when this returns.
    /// Otherwise, it is in memory.
    ///
    /// ```
    /// use emitree_agent::past::Point;
    /// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let script = ScriptedModel::new("test").text("Mont Blanc.").text("Everest.");
    /// let agent = Agent::builder("guide", ChatModel::new(script)?).build()?;
    /// let session = Session::keeping_log();
    /// agent.ask("What is the highest mountain?").session(&session).await?;
    ///
    /// let again = session.fork(Point::Before(1), "again").await?;
    /// assert_eq!(agent.resume(&again).await?.text(), "Everest.");
    /// assert_eq!(session.history().messages()[1].text(), "Mont Blanc.");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`at`](Self::at). Returns [`PastError::InvalidId`] if the id cannot be the id of a session
    /// ([`with_id`](Self::with_id)), and [`PastError::Exists`] if it is that of this session, or of an entry of the store.
    /// This session remembers that it was forked, so the store's error is [`StoreError::Held`] if another process holds
    /// it.
    pub async fn fork(&self, point: Point, id: &str) -> Result<Self, PastError> {
        let invalid = |error: Error| PastError::InvalidId { id: id.to_owned(), problem: error.to_string() };
        let key = RunKey::new(id).map_err(invalid)?;
        let entry = self.log.entry();
        let is_free = id != self.id()
            && match entry {
                Some(entry) => entry.is_free(id).await?,
                None => true,
            };
        if !is_free {
            return Err(PastError::Exists { id: id.to_owned() });
        }
        let fork = self.fold_at(point).await?.fork(id);
        // Before the fork exists, so that nothing that it needs is removed here meanwhile.
        self.push_forked(id);
        self.saved().await?;
        let keeps_lines = entry.is_none() && self.log.lock().lines().is_some();
        let first = keeps_lines.then(|| Record::Session(Box::new(fork.clone())).into());
        let fork = Self::of_log(Log::of(fork, SessionKey::new(key)));
        first.into_iter().for_each(|first| fork.log.lock().keep_lines(vec![first]));
        match entry {
            Some(entry) => entry.fork(fork).await,
            None => Ok(fork),
        }
    }

    fn push_forked(&self, id: &str) {
        let pushed = self.log.lock().push(&self.view, Record::Forked { to: id.to_owned() });
        debug_assert_eq!(pushed, Ok(()), "a session can be forked at any time");
    }

    /// Returns the session at a point, with its runs.
    async fn fold_at(&self, point: Point) -> Result<Conversation, PastError> {
        let unread = |error| StoreError::failed(format!("the session `{}` cannot be read", self.id()), error);
        self.log.sync_all().map_err(unread)?;
        let entry = self.log.entry().filter(|_| point != Point::Now && !self.view.is_below());
        if let Some(entry) = entry {
            // A session that has nothing is not stored.
            if entry.is_stored() || self.log.lock().lines().is_some_and(|lines| !lines.is_empty()) {
                match self.saved().await {
                    // The records that another process has stored can be read.
                    Ok(()) | Err(StoreError::Held { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            return entry.search(point).await;
        }
        let (now, lines) = {
            let state = &mut *self.log.lock();
            state.identify(&self.view);
            let lines = if self.view.is_below() { None } else { state.lines().map(<[_]>::to_vec) };
            (state.session(&self.view).clone(), lines)
        };
        let Some(lines) = lines.filter(|_| point != Point::Now) else { return Search::new(point, now).end() };
        let mut search = Search::new(point, Conversation::new(&now.id));
        let folded = lines.into_iter().try_for_each(|line| search.fold_line(line));
        debug_assert_eq!(folded, Ok(()), "the lines were folded before");
        search.end()
    }
}

impl Conversation {
    fn turn_infos(&self) -> Vec<TurnInfo> {
        let asked = self.runs.iter().filter_map(|run| run.asks);
        let open: Vec<_> =
            self.open_turns().filter(|open| !open.is_over()).map(|open| open.number).chain(asked).collect();
        let info = |row: &TurnRow| {
            let TurnRow { number, run, at, usage, cost, calls, messages, is_discarded } = *row;
            let at = UNIX_EPOCH + Duration::from_millis(at);
            let is_open = open.contains(&number);
            TurnInfo { number, run, at, usage, cost, calls, messages, is_open, is_discarded }
        };
        self.table.iter().map(info).collect()
    }
}
