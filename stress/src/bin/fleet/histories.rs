//! The check of the histories of sessions.

use std::collections::BTreeMap;

use emitree::agent::{History, Role, ToolResult};

use crate::answers::AUTHORS;
use crate::effects::{Deed, Line};
use crate::jobs::charged;
use crate::parent::Notes;
use crate::senders::REJECTED;
use crate::sessions::{DONE, Letter, Talk, asks, message_of};

const UNKNOWN: &str = "it may have had effects";

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    Charged,
    Rejected,
    /// Its process was gone, so its effect is unknown.
    Unknown,
}

/// The effects of calls, and the parent's notes, to which histories are compared.
pub(crate) struct Histories<'a> {
    pub(crate) lines: &'a [Line],
    pub(crate) notes: &'a Notes,
    /// The results so far.
    pub(crate) results: Vec<Called>,
}

impl Histories<'_> {
    /// Returns how often the tool was called for a message, and how often this had an effect.
    fn counts(&self, text: &str) -> [usize; 2] {
        let of_text = || self.lines.iter().filter(|line| line.job == text);
        [Deed::Call, Deed::Charge].map(|deed| of_text().filter(|line| line.deed == deed).count())
    }

    /// Returns the calls that were made, or had their effect, more than once.
    pub(crate) fn check_effects(&self, talk: &Talk) -> Vec<String> {
        let check = |Letter { text, .. }: &Letter| {
            let [calls, charges] = self.counts(text);
            let fault = || format!("the tool was called {calls} times for `{text}`, with {charges} effects");
            (calls > 1 || charges > 1).then(fault)
        };
        talk.letters().filter_map(check).collect()
    }

    /// Returns what is wrong with a session that has ended.
    pub(crate) fn check(&mut self, talk: &Talk, history: &History) -> Vec<String> {
        let mut faults = Vec::new();
        // Deserializing a history checks it.
        let json = serde_json::to_value(history).and_then(serde_json::from_value::<History>);
        faults.extend(json.err().map(|error| format!("the history of {} is not valid: {error}", talk.id)));
        if history.messages().last().map(|last| last.text()).as_deref() != Some(DONE) {
            faults.push(format!("{} has ended without an answer", talk.id));
        }
        let users = history.messages().iter().filter(|message| message.role == Role::User);
        let said: Vec<_> = users.map(|message| message.text()).collect();
        for letters in [&talk.requests, &talk.hints] {
            let sent: Vec<_> = letters.iter().map(|letter| &letter.text).collect();
            let arrived: Vec<_> = said.iter().filter(|text| sent.contains(text)).collect();
            if arrived != sent {
                faults.push(format!("{sent:?} were sent, and {arrived:?} are in the history of {}", talk.id));
            }
        }
        if said.len() > talk.letters().count() {
            faults.push(format!("nobody has sent some of {said:?}"));
        }
        let results = results(history);
        for Letter { text, .. } in talk.letters() {
            let results = results.get(&**text).map_or(&[][..], Vec::as_slice);
            faults.extend(self.check_call(text, results));
        }
        faults
    }

    /// Returns what is wrong with the call for a message.
    fn check_call(&mut self, text: &str, results: &[&ToolResult]) -> Option<String> {
        let [calls, charges] = self.counts(text);
        let author = self.notes.approved.get(text).map(String::as_str);
        if asks(text) != author.is_some() {
            return Some(format!("the call for `{text}` has got the answer of {author:?}"));
        }
        let [result] = results else { return Some(format!("the call for `{text}` has the results {results:?}")) };
        let is = |error: &str| result.is_error && result.response.as_str().is_some_and(|said| said.contains(error));
        let (kind, is_right) = if author == Some(AUTHORS[1]) {
            (Called::Rejected, is(REJECTED) && calls == 0)
        } else if is(UNKNOWN) {
            (Called::Unknown, !text.starts_with("undisturbed"))
        } else {
            (Called::Charged, !result.is_error && result.response == charged(text) && charges == 1)
        };
        self.results.push(kind);
        (!is_right)
            .then(|| format!("the tool was called {calls} times for `{text}`, answered by {author:?}: {result:?}"))
    }
}

/// Returns the results of calls, by the messages that the calls are about.
fn results(history: &History) -> BTreeMap<&str, Vec<&ToolResult>> {
    // Calls of later turns have the same ids.
    let mut calls = BTreeMap::new();
    let mut results = BTreeMap::<_, Vec<_>>::new();
    for message in history.messages() {
        calls.extend(message.tool_calls().filter_map(|call| Some((&*call.id, message_of(call)?))));
        for result in message.tool_results() {
            results.entry(calls.get(&*result.id).copied().unwrap_or_default()).or_default().push(result);
        }
    }
    results
}
