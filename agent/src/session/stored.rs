//! The stored form of a session.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use emitree_emitter::new_id;
use emitree_runtime::{Result, RunKey};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::message::arguments::storing;
use crate::message::history::{History, check};
use crate::message::{Role, is_false};
use crate::place::state::Slices;
use crate::session::inbox::{Inbox, StoredInput};
use crate::session::keys::SessionKey;
use crate::session::questions::Question;
use crate::session::stopped::{OpenCall, Stopped, StoppedCall, StoppedTurn, Unreturned};
use crate::session::turn_calls::Placed;
use crate::session::{Conversation, Session};
use crate::{ChatOptions, Message, Turn};

/// The version of the format of [`Stored`]. Version 1 is the same as version 2 without the `extra` of reasoning and of
/// calls. Version 3 adds all fields but `history` and `state`.
pub(super) const VERSION: u32 = 3;

/// The maximum number of sessions in one another, because reading them recurses.
const MAX_DEPTH: usize = 200;

/// A stored session.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    #[serde(deserialize_with = "version")]
    pub(super) version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    /// The number of turns so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) turns: u64,
    pub(super) history: History,
    /// The state of each middleware, by the middleware's id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) state: BTreeMap<Arc<str>, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) open: Option<StoredStop>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) inbox: Vec<StoredInput>,
    /// The ids of the last inputs that runs have taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) taken: Vec<Uuid>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) paused: bool,
    /// The id of the pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pause: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(super) meta: Map<String, Value>,
    /// The sessions of the agents below open calls, at any depth.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) below: Vec<Self>,
}

/// A stored [`Stopped`].
#[derive(Serialize, Deserialize)]
pub(super) struct StoredStop {
    run: Uuid,
    turn: Turn,
    #[serde(default, skip_serializing_if = "is_false")]
    asks: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calling: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    options: ChatOptions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<StoredTurn>,
    /// `true` if the run had an answer that layers and output functions had not returned.
    #[serde(default, skip_serializing_if = "is_false")]
    is_answered: bool,
    /// The answer, if it is not in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<Arc<Message>>,
}

/// A stored [`StoppedTurn`].
#[derive(Serialize, Deserialize)]
struct StoredTurn {
    /// The position of the response in the history.
    at: usize,
    number: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    injected: u64,
    #[serde(default, skip_serializing_if = "is_false")]
    is_resolved: bool,
    calls: Vec<StoppedCall>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn is_default(options: &ChatOptions) -> bool {
    *options == ChatOptions::default()
}

impl Session {
    /// Returns the session as it is stored now.
    pub(super) fn to_stored(&self) -> Result<Stored> {
        let state = self.slices.snapshot()?;
        let (id, turns) = (Some(self.id().to_owned()), self.shared.turns.load(Ordering::Relaxed));
        let conversation = self.shared.conversation.lock();
        let (history, stopped) = conversation.as_if_ended();
        let open = stopped.map(|stopped| StoredStop::of(stopped, &history));
        let Conversation { inbox, pause, meta, .. } = &*conversation;
        Ok(Stored {
            version: VERSION,
            id,
            turns,
            history,
            state,
            open,
            inbox: inbox.to_stored(),
            taken: inbox.taken(),
            paused: pause.is_some(),
            pause: *pause,
            meta: meta.clone(),
            below: Vec::new(),
        })
    }

    /// Returns the session as it is stored now, with the sessions below its open calls.
    fn to_stored_whole(&self) -> Result<Stored> {
        let mut whole = self.to_stored()?;
        let mut waiting = whole.take_sessions();
        while let Some(session) = waiting.pop() {
            let mut below = session.to_stored()?;
            waiting.extend(below.take_sessions());
            whole.below.push(below);
        }
        Ok(whole)
    }
}

impl Stored {
    /// Takes the sessions below the open calls, and keeps their ids.
    pub(super) fn take_sessions(&mut self) -> Vec<Session> {
        let mut taken = Vec::new();
        for (_, call) in self.open.iter_mut().flat_map(StoredStop::open_calls) {
            let (ids, sessions): (Vec<_>, Vec<_>) = take(&mut call.sessions).into_iter().unzip();
            call.below = ids;
            taken.extend(sessions);
        }
        taken
    }

    /// Makes the session, with the sessions below its open calls, which are `depth` sessions below the first.
    fn read(self, below: &mut BTreeMap<String, Self>, depth: usize) -> Result<Session, String> {
        let Self { id, turns, history, state, mut open, inbox, taken, paused, pause, meta, .. } = self;
        if depth > MAX_DEPTH {
            return Err(format!("at `below`: more than {MAX_DEPTH} sessions are in one another"));
        }
        for (position, call) in open.iter_mut().flat_map(StoredStop::open_calls) {
            for id in take(&mut call.below) {
                let unknown =
                    || format!("at `open.response.calls[{position}].open.sessions`: there is no session `{id}`");
                let session = below.remove(&id).ok_or_else(unknown)?.read(below, depth + 1)?;
                call.sessions.insert(id, session);
            }
        }
        let inbox = Inbox::stored(inbox, taken)?;
        let pause = paused.then(|| pause.unwrap_or_else(new_id));
        let mut session = Session::default();
        if let Some(id) = id {
            session = session.with_key(read_key(&id)?);
        }
        let stopped = open.map(|open| open.read(&history, &session.key)).transpose()?;
        session.slices = Slices::stored(state);
        session.shared.turns.store(turns, Ordering::Relaxed);
        session.shared.change_inbox(|conversation| {
            *conversation = Conversation { history, inbox, pause, stopped, meta, ..Conversation::default() };
        });
        Ok(session)
    }
}

impl Serialize for Session {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let stored = self.to_stored_whole().map_err(S::Error::custom)?;
        storing(|| stored.serialize(serializer))
    }
}

impl TryFrom<Stored> for Session {
    type Error = String;

    fn try_from(mut stored: Stored) -> Result<Self, String> {
        let below = take(&mut stored.below).into_iter();
        let mut below = below.map(|below| (below.id.clone().unwrap_or_default(), below)).collect();
        stored.read(&mut below, 0)
    }
}

/// Reads the version, which comes first: a later version may have other fields.
pub(super) fn version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let version = u32::deserialize(deserializer)?;
    if (1..=VERSION).contains(&version) {
        return Ok(version);
    }
    Err(D::Error::custom(format_args!(
        "the session is stored in version {version}, but only the versions 1 to {VERSION} can be read"
    )))
}

/// Reads an id, which is the key of a run for the session of a sub-agent.
pub(super) fn read_key(id: &str) -> Result<RunKey, String> {
    let (first, rest) = id.split_once('/').map_or((id, None), |(first, rest)| (first, Some(rest)));
    let mut parts = rest.iter().flat_map(|rest| rest.split('/'));
    RunKey::new(first)
        .and_then(|key| parts.try_fold(key, |key, part| key.child(part)))
        .map_err(|error| format!("at `id`: {error}"))
}

impl StoredStop {
    /// Returns the open calls, with their positions in the turn.
    fn open_calls(&mut self) -> impl Iterator<Item = (usize, &mut OpenCall)> {
        let calls = self.response.iter_mut().flat_map(|turn| &mut turn.calls).enumerate();
        calls.filter_map(|(position, call)| match call {
            StoppedCall::Open(open) => Some((position, &mut **open)),
            StoppedCall::Settled(_) => None,
        })
    }

    fn of(Stopped { run, turn, asks, calling, options, open, answer }: Stopped, history: &History) -> Self {
        let response = open.and_then(|open| {
            let at = open.position(history)?;
            let injected = u64::try_from(open.placed.injected).unwrap_or(u64::MAX);
            let StoppedTurn { number, is_resolved, calls, .. } = open;
            Some(StoredTurn { at, number, injected, is_resolved, calls })
        });
        let is_answered = answer.is_some();
        let answer = answer.and_then(|answer| match answer {
            Unreturned::Message(answer) => Some(answer),
            Unreturned::InHistory => None,
        });
        Self { run, turn, asks, calling, options, response, is_answered, answer }
    }

    fn read(self, history: &History, key: &SessionKey) -> Result<Stopped, String> {
        let Self { run, turn, asks, calling, options, response, is_answered, answer } = self;
        let open = response.map(|turn| turn.read(history, key)).transpose()?;
        if let Some(answer) = &answer {
            let is_answer = answer.role == Role::Assistant && answer.tool_calls().next().is_none();
            let valid = if is_answer {
                check(std::slice::from_ref(answer)).map_err(|fault| fault.to_string())
            } else {
                Err("it is not a message of the role `assistant` without tool calls".to_owned())
            };
            valid.map_err(|fault| format!("at `open.answer`: {fault}"))?;
        }
        let in_history = is_answered.then_some(Unreturned::InHistory);
        let answer = answer.map(Unreturned::Message).or(in_history);
        Ok(Stopped { run, turn, asks, calling: calling.filter(|number| *number > 0), options, open, answer })
    }
}

impl StoredTurn {
    fn read(self, history: &History, key: &SessionKey) -> Result<StoppedTurn, String> {
        let Self { at, number, injected, is_resolved, calls } = self;
        let messages = history.messages();
        let response = messages.get(at).filter(|message| message.role == Role::Assistant).ok_or_else(|| {
            format!("at `open.response.at`: message {at} of the history is not the response of a model")
        })?;
        let asked = response.tool_calls().count();
        if asked == 0 || asked != calls.len() {
            let count = calls.len();
            return Err(format!(
                "at `open.response.calls`: there are {count} calls, but message {at} of the history has {asked}"
            ));
        }
        let behind = at + 1 + asked;
        let results = messages.get(at + 1..behind).unwrap_or_default().to_vec();
        let is_one = |message: &Arc<_>| Message::tool_results(message).count() == 1;
        if results.len() != asked || !results.iter().all(is_one) {
            return Err(format!("at `open.response.at`: message {at} is not followed by one message for each result"));
        }
        let injected = usize::try_from(injected).unwrap_or(usize::MAX);
        if injected > messages.len() - behind {
            return Err(format!(
                "at `open.response.injected`: the history has no {injected} messages after the results"
            ));
        }
        for (position, (asked, call)) in response.tool_calls().zip(&calls).enumerate() {
            let StoppedCall::Open(open) = call else { continue };
            let of_call = key.call(number, position, open.call.as_ref().unwrap_or(asked));
            let changed = |(at, question): (usize, &Question)| Some((at, question.changed_id(key.get(), &of_call)?));
            if let Some((at, expected)) = open.questions.iter().enumerate().find_map(changed) {
                return Err(format!(
                    "at `open.response.calls[{position}].open.questions[{at}].question.id`: the call or the question was \
                     changed after it was asked; its id would be `{expected}`"
                ));
            }
        }
        let placed = Placed { results, injected };
        Ok(StoppedTurn { number, response: Arc::clone(response), placed, is_resolved, calls })
    }
}
