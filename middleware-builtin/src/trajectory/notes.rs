//! What happens in a run between its start and its end, as text: attempts, questions, answers and other events.
//!
//! Like the [kinds](super::kinds), the events are known by their names and JSON fields, live and recorded. An error line
//! already shows that a run was denied, so events of denials have no text.

use std::time::Duration;

use emitree_emitter::EventName;
use serde_json::Value;

use super::kinds;
use super::tree::RunNotes;

/// The names of all events that may have a text.
pub(super) const NAMES: [EventName; 28] = [
    EventName::new("answered"),
    EventName::new("approved"),
    EventName::new("asked"),
    EventName::new("attempt_discarded"),
    EventName::new("blocked"),
    EventName::new("closed"),
    EventName::new("delayed"),
    EventName::new("edited"),
    EventName::new("failed"),
    EventName::new("fell_back"),
    EventName::new("filtered"),
    EventName::new("half_opened"),
    EventName::new("handoff"),
    EventName::new("hit"),
    EventName::new("iteration"),
    EventName::new("joined"),
    EventName::new("message"),
    EventName::new("message_dropped"),
    EventName::new("opened"),
    EventName::new("responded"),
    EventName::new("resumed"),
    EventName::new("retry"),
    EventName::new("summarized"),
    EventName::new("tool_response"),
    EventName::new("unused_answer"),
    EventName::new("warning"),
    EventName::new("would_deny"),
    EventName::new("would_run"),
];

pub(super) fn has_text(name: &str) -> bool {
    NAMES.iter().any(|one| one.as_str() == name)
}

/// An event that is not a lifecycle event.
pub(super) struct Note<'a> {
    /// The kind of the creator, or the name of the middleware that emits it.
    pub(super) by: &'a str,
    pub(super) name: &'a str,
    pub(super) payload: &'a Value,
}

impl Note<'_> {
    /// Returns the text of the event, or `None` if its run's other lines say the same. An event of another crate under
    /// one of these names lacks the fields, and has no text.
    pub(super) fn text(&self, run: &mut RunNotes) -> Option<String> {
        Some(match (self.by, self.name) {
            ("retry", "retry") => self.retry()?,
            ("Tool", "retry") => format!("retry {} after {}", self.number("retry")?, self.at("/error/message")?),
            (_, "attempt_discarded") => self.discarded()?,
            ("fallback", "answered") => format!("{} answers, after {}", self.at("/by")?, self.at("/after/0/cause")?),
            ("ChatModel", "fell_back") => {
                format!(
                    "falls back from {} to {} after {}",
                    self.at("/from")?,
                    self.at("/to")?,
                    self.at("/error/message")?
                )
            }
            ("cache", "hit") => format!("answered from the cache, {} old", self.time("age_ms")?),
            ("cache", "joined") => format!("waits for an equal run, {} old", self.time("age_ms")?),
            ("durable", "answered") => "answered from the store".to_owned(),
            ("override_output", "answered") => "answered by override_output, not executed".to_owned(),
            ("override_output", "would_run") => "dry run, not executed".to_owned(),
            ("approval", "asked") => format!("asks whether it may run (question {})", self.at("/id")?),
            ("approval", "approved") if self.payload["remembered"] == true => {
                "approved by an earlier answer".to_owned()
            }
            ("approval", "approved") => "approved".to_owned(),
            ("approval", "edited") => {
                format!("approved with another input: {}", kinds::text(self.payload.get("input")?))
            }
            ("approval", "responded") => format!("answered instead: {}", kinds::text(self.payload.get("output")?)),
            // Approvals emit this themselves.
            ("Agent", "asked") if self.payload["kind"] == "approval" => return None,
            ("Agent", "asked") => {
                format!("{} asks: {} (question {})", self.at("/by")?, self.at("/kind")?, self.at("/id")?)
            }
            ("Agent", "answered") => match self.at("/by") {
                Some(by) => format!("{by} has answered (question {})", self.at("/id")?),
                None => format!("has an answer (question {})", self.at("/id")?),
            },
            ("Agent", "unused_answer") => format!("an answer was not used (question {})", self.at("/id")?),
            ("Agent", "handoff") => format!("hands over to {}: {}", self.at("/to")?, self.at("/reason")?),
            ("Agent", "resumed") => format!("continues run {}", self.at("/continues")?),
            ("Agent", "message_dropped") => {
                format!("a message to {} was dropped: {}", self.at("/to")?, self.at("/error")?)
            }
            ("Agent", "iteration") => {
                run.has_begun = true;
                run.failed.clear();
                return None;
            }
            ("Agent", "message") => self.steering(run)?,
            ("Agent", "tool_response") => self.failed_call(run)?,
            ("summarize", "summarized") => {
                format!("summarized {} messages, {} tokens", self.number("messages")?, self.number("tokens")?)
            }
            ("summarize" | "tool_selector", "failed") => format!("{} failed: {}", self.by, self.at("/error")?),
            ("rate_limit" | "concurrency", "delayed") => format!("waited {} for {}", self.time("waited_ms")?, self.by),
            ("circuit_breaker", "opened") => format!("the circuit opens after {}", self.at("/cause")?),
            ("circuit_breaker", "half_opened") => "a call tries whether the circuit can close".to_owned(),
            ("circuit_breaker", "closed") => "the circuit closes".to_owned(),
            ("budget", "warning") => {
                format!("{} of {} {} are spent", self.at("/spent")?, self.at("/most")?, self.at("/limit")?)
            }
            ("budget", "closed") => format!("the budget closes: {}", self.at("/reason")?),
            ("content_filter", "filtered") if self.payload["action"] != "deny" => {
                format!("content_filter found {} in the {}{}", self.at("/label")?, self.at("/part")?, self.at("/at")?)
            }
            ("exfil_guard", "blocked") if self.payload["evaluated_only"] == true => {
                format!("exfil_guard would deny the {}{}", self.at("/part")?, self.at("/at")?)
            }
            (_, "would_deny") => {
                format!("{} would deny the {}: {}", self.at("/guard")?, self.at("/at")?, self.at("/reason")?)
            }
            _ => return None,
        })
    }

    /// Returns `retry 2 of 3 after 429, in 1.2s`.
    fn retry(&self) -> Option<String> {
        let retry = self.number("attempt")? + 1;
        let cause = self.at("/status").or_else(|| self.at("/cause"))?;
        let of = match self.number("retries") {
            Some(retries @ 1..) => format!(" of {retries}"),
            _ => String::new(),
        };
        Some(format!("retry {retry}{of} after {cause}, in {}", self.time("delay_ms")?))
    }

    /// Returns the reason for another attempt, if no other event reports it.
    fn discarded(&self) -> Option<String> {
        let metadata = &self.payload["metadata"];
        let is_reported = ["retry", "fallback", "or"].iter().any(|by| metadata["by"] == *by) || self.by == "Tool";
        if is_reported { None } else { Some(format!("again, because {}", self.at("/reason")?)) }
    }

    /// Returns a message that somebody has sent to an agent while it worked. Earlier messages are its input.
    fn steering(&self, run: &RunNotes) -> Option<String> {
        let message = self.payload.get("message")?;
        if !run.has_begun || message["role"] != "user" {
            return None;
        }
        Some(format!("is told: {}", kinds::output("ChatModel", self.payload)))
    }

    /// Returns the failure of a call that has no run with an error line: a call that was denied, or had wrong arguments.
    fn failed_call(&self, run: &mut RunNotes) -> Option<String> {
        if self.payload.pointer("/result/is_error") != Some(&Value::Bool(true)) {
            return None;
        }
        let name = self.at("/call/name")?;
        let response = self.at("/result/response")?;
        let with_line = run.failed.iter().position(|(failed, error)| *failed == name && response.contains(&**error));
        if let Some(with_line) = with_line {
            run.failed.swap_remove(with_line);
            return None;
        }
        let arguments = kinds::text(self.payload.pointer("/call/arguments")?);
        Some(format!("{name}({arguments}) → failed: {response}"))
    }

    /// Returns a field as text, or `None` if it is missing, null or empty.
    fn at(&self, pointer: &str) -> Option<String> {
        let text = kinds::text(self.payload.pointer(pointer)?);
        if text.is_empty() { None } else { Some(text) }
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.payload.get(field)?.as_u64()
    }

    fn time(&self, field: &str) -> Option<String> {
        Some(format!("{:.1?}", Duration::from_millis(self.number(field)?)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_event_with_a_text_has_one_line_and_others_have_none() {
        let mut run = RunNotes { has_begun: true, ..RunNotes::default() };
        run.failed.push(("pay".to_owned(), "no money".to_owned()));
        let user = json!({"role": "user", "parts": [{"type": "text", "content": "in feet"}]});
        let failed = |response: &str| {
            json!({
                "call": {"id": "1", "name": "pay", "arguments": {"to": "Ada"}},
                "result": {"id": "1", "response": response, "is_error": true},
            })
        };
        for (by, name, payload, expected) in [
            (
                "retry",
                "retry",
                json!({"attempt": 1, "retries": 3, "status": 429, "cause": "busy", "delay_ms": 1200}),
                "retry 2 of 3 after 429, in 1.2s",
            ),
            (
                "retry",
                "retry",
                json!({"attempt": 0, "cause": "busy", "delay_ms": 500}),
                "retry 1 after busy, in 500.0ms",
            ),
            ("other", "retry", json!({"attempt": 0}), ""),
            ("Tool", "retry", json!({"retry": 1, "error": {"message": "busy"}}), "retry 1 after busy"),
            (
                "Run",
                "attempt_discarded",
                json!({"reason": "no JSON", "metadata": {"by": "react"}}),
                "again, because no JSON",
            ),
            ("Run", "attempt_discarded", json!({"reason": "busy", "metadata": {"by": "retry"}}), ""),
            (
                "fallback",
                "answered",
                json!({"by": "b", "after": [{"by": "a", "cause": "down"}]}),
                "b answers, after down",
            ),
            (
                "ChatModel",
                "fell_back",
                json!({"from": "a", "to": "b", "error": {"message": "down"}}),
                "falls back from a to b after down",
            ),
            ("cache", "hit", json!({"key": "0", "age_ms": 3200}), "answered from the cache, 3.2s old"),
            ("approval", "asked", json!({"id": "7", "request": {}}), "asks whether it may run (question 7)"),
            ("approval", "edited", json!({"id": "7", "input": {"to": "Bob"}}), "approved with another input: to: Bob"),
            ("approval", "rejected", json!({"id": "7", "reason": "no"}), ""),
            ("Agent", "answered", json!({"id": "7", "by": "ada"}), "ada has answered (question 7)"),
            ("Agent", "handoff", json!({"from": "a", "to": "b", "reason": "money"}), "hands over to b: money"),
            ("Agent", "message", json!({"message": user}), "is told: in feet"),
            ("Agent", "message", json!({"message": {"role": "assistant", "parts": []}}), ""),
            ("Agent", "tool_response", failed("no money"), ""),
            (
                "Agent",
                "tool_response",
                failed("denied by approval: no"),
                "pay(to: Ada) → failed: denied by approval: no",
            ),
            (
                "summarize",
                "summarized",
                json!({"messages": 40, "tokens": 60_000, "summary": "…"}),
                "summarized 40 messages, 60000 tokens",
            ),
            ("rate_limit", "delayed", json!({"key": null, "waited_ms": 1500}), "waited 1.5s for rate_limit"),
            (
                "content_filter",
                "filtered",
                json!({"part": "input", "at": "/q", "label": "abuse", "action": "mark"}),
                "content_filter found abuse in the input/q",
            ),
        ] {
            let note = Note { by, name, payload: &payload };
            assert!(has_text(name) || expected.is_empty(), "{name}");
            assert_eq!(note.text(&mut run).unwrap_or_default(), expected, "{by} {name}");
        }
        let (by, name, payload) = ("Agent", "message", json!({"message": user}));
        assert_eq!(Note { by, name, payload: &payload }.text(&mut RunNotes::default()), None, "the input of a run");
    }
}
