//! The changes of a session, as its store keeps them.
//!
//! An entry is a list of changes. The first change, and each that replaces all before it, has the whole session. A change
//! names each session by its id: the session of the entry, and the sessions of agents below its open calls, so a commit
//! of a sub-agent writes only what the sub-agent has changed. Each change is JSON:
//!
//! ```json
//! {"version": 3, "sessions": [{"id": "order-17", "turns": 2, "history": {"keep": 3, "set": {"2": {}}, "add": [{}]}}]}
//! ```
//!
//! Fields that have not changed are left out. `history` keeps the first `keep` messages, replaces some of them, and adds others.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::message::Message;
use crate::message::arguments::storing;
use crate::message::history::History;
use crate::session::Session;
use crate::session::stored::{Stored, VERSION, version};

/// The sessions of an entry, as they were last written, by their ids.
#[derive(Debug, Default)]
pub(super) struct Written(BTreeMap<String, Parts>);

/// One session, as it was last written.
#[derive(Debug, Default)]
struct Parts {
    turns: u64,
    history: History,
    state: BTreeMap<Arc<str>, Value>,
    open: Value,
    inbox: Value,
    taken: Vec<Uuid>,
    pause: Option<Uuid>,
}

#[derive(Serialize)]
struct Delta<'a> {
    version: u32,
    sessions: Vec<SessionDelta<'a>>,
    /// The sessions that are no longer part of the entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<&'a str>,
}

#[derive(Default, PartialEq, Serialize)]
struct SessionDelta<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    turns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryDelta<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    state: BTreeMap<&'a str, &'a Value>,
    /// The middlewares that no longer have a state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forgotten: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inbox: Option<&'a Value>,
    /// The ids of inputs that were taken since then.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    taken: &'a [Uuid],
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<Option<Uuid>>,
}

#[derive(PartialEq, Serialize)]
struct HistoryDelta<'a> {
    keep: usize,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    set: BTreeMap<usize, &'a Message>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    add: Vec<&'a Message>,
}

impl Written {
    /// Returns a session as it would be written now, with the sessions below its open calls.
    ///
    /// # Errors
    ///
    /// Returns an error if the state of a middleware cannot be serialized.
    pub(super) fn of(session: &Session) -> emitree_runtime::Result<Self> {
        let mut written = Self::default();
        written.add(session)?;
        Ok(written)
    }

    fn add(&mut self, session: &Session) -> emitree_runtime::Result<()> {
        let mut stored = session.to_stored()?;
        let below = stored.take_sessions();
        let open = serde_json::to_value(&stored.open)?;
        let inbox = if stored.inbox.is_empty() { Value::Null } else { serde_json::to_value(&stored.inbox)? };
        let Stored { turns, history, state, taken, pause, .. } = stored;
        self.0.insert(session.id().to_owned(), Parts { turns, history, state, open, inbox, taken, pause });
        below.iter().try_for_each(|session| self.add(session))
    }

    /// Returns the JSON of the changes since `before`, or `None` if there are none.
    pub(super) fn since(&self, before: &Self) -> serde_json::Result<Option<Vec<u8>>> {
        let nothing = Parts::default();
        let sessions = self.0.iter().filter_map(|(id, parts)| match before.0.get(id) {
            Some(before) => parts.since(id, before),
            // An empty session is a change too.
            None => Some(parts.since(id, &nothing).unwrap_or(SessionDelta { id, ..SessionDelta::default() })),
        });
        let gone = before.0.keys().filter(|id| !self.0.contains_key(*id)).map(String::as_str).collect();
        let delta = Delta { version: VERSION, sessions: sessions.collect(), gone };
        let has_changed = !delta.sessions.is_empty() || !delta.gone.is_empty();
        Ok(if has_changed { Some(storing(|| serde_json::to_vec(&delta))?) } else { None })
    }
}

impl Parts {
    fn since<'a>(&'a self, id: &'a str, before: &'a Self) -> Option<SessionDelta<'a>> {
        let is_changed = |(key, value): &(&Arc<str>, &Value)| before.state.get(*key) != Some(value);
        let delta = SessionDelta {
            id,
            turns: (self.turns != before.turns).then_some(self.turns),
            history: HistoryDelta::between(&before.history, &self.history),
            state: self.state.iter().filter(is_changed).map(|(key, value)| (&**key, value)).collect(),
            forgotten: before.state.keys().filter(|key| !self.state.contains_key(*key)).map(|key| &**key).collect(),
            open: (self.open != before.open).then_some(&self.open),
            inbox: (self.inbox != before.inbox).then_some(&self.inbox),
            taken: added(&self.taken, &before.taken),
            pause: (self.pause != before.pause).then_some(self.pause),
        };
        (delta != SessionDelta { id, ..SessionDelta::default() }).then_some(delta)
    }
}

/// Returns what was added to a list that grows at its end.
fn added<'a>(now: &'a [Uuid], before: &[Uuid]) -> &'a [Uuid] {
    let last = before.last().and_then(|last| now.iter().rposition(|id| id == last));
    &now[last.map_or(0, |last| last + 1)..]
}

impl<'a> HistoryDelta<'a> {
    fn between(before: &History, after: &'a History) -> Option<Self> {
        if Arc::ptr_eq(&before.0, &after.0) {
            return None;
        }
        let (before, after) = (before.messages(), after.messages());
        let keep = before.len().min(after.len());
        // Most messages are the same allocation, so few are compared by value.
        let pairs = before.iter().zip(after).enumerate();
        let is_same = |before: &Arc<Message>, after: &Arc<Message>| Arc::ptr_eq(before, after) || before == after;
        let set = pairs.filter(|(_, (before, after))| !is_same(before, after)).map(|(at, (_, after))| (at, &**after));
        let delta = Self { keep, set: set.collect(), add: after[keep..].iter().map(|message| &**message).collect() };
        let has_changed = before.len() != keep || !delta.set.is_empty() || !delta.add.is_empty();
        has_changed.then_some(delta)
    }
}

/// Returns the session that the changes of an entry make.
///
/// # Errors
///
/// Returns the fault of a change that cannot be read, or of the session.
pub(super) fn read<'a>(id: &str, changes: impl IntoIterator<Item = &'a [u8]>) -> Result<Session, String> {
    let mut folded = BTreeMap::<String, Folded>::new();
    for (number, change) in changes.into_iter().enumerate() {
        let at = |fault: String| format!("in its change {number}: {fault}");
        let change: Change = serde_json::from_slice(change).map_err(|fault| at(fault.to_string()))?;
        for session in change.sessions {
            folded.entry(session.id.clone()).or_default().apply(session).map_err(at)?;
        }
        change.gone.iter().for_each(|id| _ = folded.remove(id));
    }
    let missing = || format!("its changes have no session with the id `{id}`");
    let mut session = folded.remove(id).ok_or_else(missing)?.into_stored(id)?;
    session.below = folded.into_iter().map(|(id, below)| below.into_stored(&id)).collect::<Result<_, _>>()?;
    Session::try_from(session)
}

/// A change that was read.
#[derive(Deserialize)]
struct Change {
    #[serde(rename = "version", deserialize_with = "version")]
    _version: u32,
    sessions: Vec<SessionChange>,
    #[serde(default)]
    gone: Vec<String>,
}

#[derive(Deserialize)]
struct SessionChange {
    id: String,
    turns: Option<u64>,
    history: Option<HistoryChange>,
    #[serde(default)]
    state: BTreeMap<Arc<str>, Value>,
    #[serde(default)]
    forgotten: Vec<Arc<str>>,
    #[serde(default, deserialize_with = "also_null")]
    open: Option<Value>,
    #[serde(default, deserialize_with = "also_null")]
    inbox: Option<Value>,
    #[serde(default)]
    taken: Vec<Uuid>,
    #[serde(default, deserialize_with = "also_null")]
    pause: Option<Option<Uuid>>,
}

#[derive(Deserialize)]
struct HistoryChange {
    keep: usize,
    #[serde(default)]
    set: BTreeMap<usize, Arc<Message>>,
    #[serde(default)]
    add: Vec<Arc<Message>>,
}

/// Reads a value that is there, even if it is `null`.
fn also_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A session after some of the changes.
#[derive(Default)]
struct Folded {
    turns: u64,
    history: Vec<Arc<Message>>,
    state: BTreeMap<Arc<str>, Value>,
    open: Value,
    inbox: Value,
    taken: Vec<Uuid>,
    pause: Option<Uuid>,
}

impl Folded {
    fn apply(&mut self, change: SessionChange) -> Result<(), String> {
        let SessionChange { id, turns, history, state, forgotten, open, inbox, taken, pause } = change;
        if let Some(HistoryChange { keep, set, add }) = history {
            let last = set.keys().next_back().map_or(0, |last| last + 1);
            if keep.max(last) > self.history.len() {
                let len = self.history.len();
                return Err(format!("the session `{id}` has {len} messages, but the change is about message {keep}"));
            }
            self.history.truncate(keep);
            for (at, message) in set {
                *self.history.get_mut(at).ok_or_else(|| format!("the change removes and replaces message {at}"))? =
                    message;
            }
            self.history.extend(add);
        }
        self.state.extend(state);
        forgotten.iter().for_each(|middleware| _ = self.state.remove(middleware));
        self.turns = turns.unwrap_or(self.turns);
        self.open = open.unwrap_or_else(|| take(&mut self.open));
        self.inbox = inbox.unwrap_or_else(|| take(&mut self.inbox));
        self.taken.extend(taken);
        self.pause = pause.unwrap_or(self.pause);
        Ok(())
    }

    fn into_stored(self, id: &str) -> Result<Stored, String> {
        let Self { turns, history, state, open, inbox, taken, pause } = self;
        let inbox = if inbox.is_null() { json!([]) } else { inbox };
        Ok(Stored {
            version: VERSION,
            id: Some(id.to_owned()),
            turns,
            history: History::try_from(history).map_err(|fault| format!("at `history`: {fault}"))?,
            state,
            open: serde_json::from_value(open).map_err(|fault| format!("at `open`: {fault}"))?,
            inbox: serde_json::from_value(inbox).map_err(|fault| format!("at `inbox`: {fault}"))?,
            taken,
            paused: pause.is_some(),
            pause,
            meta: Map::new(),
            below: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    /// A session: its messages, of which a change keeps, replaces and removes any, and the states of its middlewares.
    fn parts() -> impl Strategy<Value = Parts> {
        let state = btree_map(prop_oneof![Just("a"), Just("b"), Just("c")], 0..3_u8, 0..3);
        (0..3_u64, vec("[xyz]", 0..6), state, any::<bool>()).prop_map(|(turns, texts, state, is_paused)| Parts {
            turns,
            history: History::try_from(texts.into_iter().map(Message::user).collect::<Vec<_>>()).expect("texts"),
            state: state.into_iter().map(|(id, value)| (id.into(), json!(value))).collect(),
            pause: is_paused.then(|| Uuid::from_u128(u128::from(turns))),
            ..Parts::default()
        })
    }

    proptest! {
        // A24
        #[test]
        fn the_changes_of_a_session_make_the_session_that_was_written_last(written in vec(parts(), 1..8)) {
            let (mut before, mut changes) = (Written::default(), Vec::new());
            for parts in written {
                let now = Written([("s".to_owned(), parts)].into());
                changes.extend(now.since(&before).expect("JSON"));
                prop_assert_eq!(now.since(&now).expect("JSON"), None);
                before = now;
            }
            let session = read("s", changes.iter().map(Vec::as_slice)).expect("a session");
            let again = Written::of(&session).expect("JSON");
            prop_assert_eq!(again.since(&before).expect("JSON"), None);
            prop_assert_eq!(before.since(&again).expect("JSON"), None);
        }
    }
}
