//! The status of a stored session in lists, and when workers take it (A27, F2).

use std::time::{Duration, SystemTime};

use emitree_middleware::durable::STUCK;
use emitree_middleware::store::{EntryHead, EntryStatus, OpenQuestion, Rest, Revision};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::Role;
use crate::session::fold::Conversation;
use crate::session::fold::runs::Run;
use crate::session::record::Line;

/// The state of the stored session, as far as this process knows it.
#[derive(Debug)]
pub(super) struct Known {
    /// The inputs that were handed over last, and the revision at which they were: they are stored if it has moved.
    pub(super) handed: (Vec<Line>, Revision),
    /// The ids of inputs that were posted, in this order, as far as the store has them only as posts.
    pub(super) posted: Vec<Uuid>,
    pub(super) listed: Listed,
    /// The status once no run uses the session.
    pub(super) ended: EntryStatus,
    /// The queue that a submission has named, if the session had none.
    pub(super) queue: Option<String>,
    /// `true` if workers come back to the session after some time, because its run has failed.
    pub(super) comes_back: bool,
    /// `true` if its worker gives its attempt back: it goes away, so another one goes on, or it has tried nothing.
    pub(super) is_handed_over: bool,
    /// The guards of the agent with which a worker goes on with the session.
    pub(super) guards: Vec<String>,
    /// `true` if somebody has stopped the runs that use the session, or that were about to.
    pub(super) is_stopped: bool,
    /// The reason, for a run that was about to.
    pub(super) stops: Option<String>,
    /// `true` if a message has come while no run used the session.
    pub(super) has_new: bool,
    /// `has_new` before the last claim, for a run that changes nothing.
    pub(super) had_new: bool,
    /// The number of runs that are about to use the session.
    pub(super) claiming: usize,
    /// `true` if the session was read again since the last claim, which is lost then.
    pub(super) is_reloaded: bool,
    /// `true` if an answer was withheld that the store may have.
    pub(super) forgets: bool,
    /// The number of turns at the last snapshot.
    pub(super) snapshot: u64,
}

/// The part of a head that depends on the session.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Listed {
    pub(super) status: EntryStatus,
    pub(super) questions: Vec<OpenQuestion>,
    pub(super) meta: Map<String, Value>,
}

impl Listed {
    pub(super) fn of(head: &EntryHead) -> Self {
        Self { status: head.status, questions: head.questions.clone(), meta: head.meta.clone() }
    }
}

/// How a run has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) status: EntryStatus,
    /// `true` for a failure after which a retry may help.
    pub(crate) comes_back: bool,
}

/// The questions that wait, those of sub-agents included, and what the status depends on.
pub(super) struct Now {
    pub(super) questions: Vec<OpenQuestion>,
    pub(super) meta: Map<String, Value>,
    pub(super) is_live: bool,
    pub(super) has_messages: bool,
    pub(super) is_held: bool,
    pub(super) is_answered: bool,
    /// `true` if a person has given it up for workers.
    pub(super) gave_up: bool,
}

impl Now {
    pub(super) fn of(fold: &Conversation) -> Self {
        let holds = |run: &Run| run.answer.is_some() && (run.undo.is_some() || fold.stopped == Some(run.number));
        Self {
            questions: fold.all_questions(fold).into_iter().map(OpenQuestion::from).collect(),
            meta: fold.meta.clone(),
            is_live: fold.runs.iter().any(Run::is_live),
            has_messages: fold.inbox.iter().any(|waiting| waiting.sent.message().is_some()),
            is_held: fold.runs.iter().any(holds),
            is_answered: fold.messages.last().is_none_or(|last| last.role == Role::Assistant),
            gave_up: fold
                .stuck
                .as_ref()
                .is_some_and(|stuck| stuck.answer.as_ref().is_some_and(|answer| answer.value == "fail")),
        }
    }
}

impl Known {
    /// Creates the state of a session that is opened. `snapshot` is the number of turns at its last snapshot.
    pub(super) fn new(head: &EntryHead, snapshot: u64) -> Self {
        Self {
            handed: (Vec::new(), head.revision),
            posted: Vec::new(),
            listed: Listed::of(head),
            // A session that no run has begun to use has nothing to go on with.
            ended: if head.revision == Revision::NONE { EntryStatus::Ended } else { head.status },
            queue: None,
            comes_back: false,
            is_handed_over: false,
            guards: Vec::new(),
            is_stopped: false,
            stops: None,
            has_new: false,
            had_new: false,
            claiming: 0,
            is_reloaded: false,
            forgets: false,
            snapshot,
        }
    }

    /// Returns the inputs that were handed over, and that are not stored at a revision.
    pub(super) fn not_stored(&self, revision: Revision) -> &[Line] {
        let (handed, before) = &self.handed;
        if *before == revision { handed } else { &[] }
    }

    /// Returns the status while no run uses the session. Workers go on with one that has a queue.
    pub(super) fn status(&self, now: &Now, has_queue: bool) -> EntryStatus {
        let idle = if has_queue { EntryStatus::Queued } else { EntryStatus::Paused };
        match self.ended {
            _ if now.gave_up => EntryStatus::Failed,
            _ if !now.questions.is_empty() => EntryStatus::Waiting,
            // The questions have answers, or messages wait, so a run can go on.
            EntryStatus::Waiting => EntryStatus::Running,
            EntryStatus::Ended if now.has_messages || now.is_held => EntryStatus::Running,
            EntryStatus::Failed if self.has_new || self.comes_back && has_queue => idle,
            EntryStatus::Ended if self.has_new && !now.is_answered => idle,
            EntryStatus::Paused if self.has_new => idle,
            ended => ended,
        }
    }

    /// Lets workers leave the session until there is a new message or answer.
    pub(super) fn be_paused(&mut self) {
        self.ended = EntryStatus::Paused;
        self.has_new = false;
        self.comes_back = false;
    }

    /// Returns when workers go on with a session of this status. `now` is the time by the clock of the store.
    pub(super) fn rest(&self, status: EntryStatus, questions: &[OpenQuestion], attempts: u32, now: SystemTime) -> Rest {
        let attempts = if self.is_handed_over { attempts.saturating_sub(1) } else { attempts };
        let due = match status {
            EntryStatus::Queued if self.comes_back => Some(Rest::backoff(attempts)),
            EntryStatus::Queued | EntryStatus::Running => Some(Duration::ZERO),
            // A person decides first.
            EntryStatus::Waiting if questions.iter().any(|question| question.kind == STUCK) => None,
            EntryStatus::Waiting => {
                let deadline = questions.iter().filter_map(|question| question.deadline).min();
                deadline.map(|at| at.duration_since(now).unwrap_or_default())
            }
            _ => None,
        };
        Rest { due, attempts }
    }
}
