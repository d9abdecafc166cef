//! E19: a sink of heads receives the outcome, the error and the duration of each run, and none of its values.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_emitter::{BoxError, Detail, DetailFn, Emitter, Event, EventRecord, Sink, SinkRecord};
use emitree_runtime::{Checked, Error, Interrupt, Result, RunContext, Runnable, WouldDeny};
use serde_json::{Value, json};

use crate::support::{below, silence_planned_panics};

const VALUE: &str = "a value of the work";

/// Keeps events, with this detail.
#[derive(Clone)]
struct Kept(Detail, Arc<Mutex<Vec<EventRecord>>>);

impl Sink for Kept {
    fn write(&mut self, record: &SinkRecord) -> std::result::Result<(), BoxError> {
        self.1.lock().unwrap().extend(record.as_event().cloned());
        Ok(())
    }

    fn detail(&self) -> DetailFn {
        let detail = self.0;
        Box::new(move |_, _| detail)
    }
}

impl Kept {
    /// Returns the payload of the first event whose path ends with this name.
    fn payload(&self, name: &str) -> Option<Value> {
        let events = self.1.lock().unwrap();
        let event = events.iter().find(|event| event.path.ends_with(name))?;
        assert_eq!(event.detail, self.0);
        Some(event.to_json())
    }
}

async fn end(how: &str, ctx: RunContext) -> Result<String> {
    match how {
        "success" => return Ok(VALUE.to_owned()),
        "panicked" => panic!("planned"),
        "aborted" => _ = ctx.abort("enough"),
        _ => {}
    }
    Err(match how {
        "failed" => Error::new("broken").detail("status", 503),
        "denied" => Error::denied("desk", "not today"),
        "halted" => Error::halted("budget", "spent"),
        "timed_out" => Error::timed_out("too slow"),
        "interrupted" => Error::interrupted(Interrupt::new("approval", json!({"path": VALUE})).with_id("q1")),
        "retry" => Error::retry_with("once more", json!({"text": VALUE})),
        _ => Error::new("aborted meanwhile"),
    })
}

/// Returns what both sinks have received of a run that ends in this way: the whole records, and the heads.
async fn recorded(how: &str) -> [Kept; 2] {
    let tree = Emitter::new();
    let kept = [Detail::Full, Detail::Heads].map(|detail| Kept(detail, Arc::default()));
    let handles = kept.each_ref().map(|kept| tree.pipe_to(kept.clone()).unwrap());
    let ending = below(&tree, "ending", |[how, _]: [String; 2], ctx: RunContext| async move { end(&how, ctx).await });
    _ = ending.run([how.to_owned(), VALUE.to_owned()]).await;
    for handle in handles {
        handle.close(Duration::MAX).await.complete().unwrap();
    }
    kept
}

/// Removes the values that a head does not have, and members without a value.
fn without_values(value: Value) -> Value {
    let Value::Object(members) = value else { return value };
    let is_fact = |(key, value): &(String, Value)| !(["input", "output"].contains(&&**key) || value.is_null());
    let members = members.into_iter().map(|(key, value)| match &*key {
        "data" | "metadata" => (key, Value::Null),
        _ => (key, without_values(value)),
    });
    members.filter(is_fact).collect()
}

// E19, R6
#[tokio::test]
async fn a_head_of_finish_is_the_outcome_and_the_duration_and_has_no_value() {
    silence_planned_panics();
    let ends = ["success", "failed", "denied", "halted", "timed_out", "interrupted", "retry", "panicked", "aborted"];
    for how in ends {
        let [full, heads] = recorded(how).await;
        for name in ["run.error", "run.finish"] {
            let [full, head] = [&full, &heads].map(|kept| kept.payload(name).map(without_values));
            assert_eq!(full, head, "{how} {name}");
            assert_eq!(head.is_none(), name == "run.error" && how == "success", "{how} {name}");
        }
        let finish = heads.payload("run.finish").unwrap();
        let status = if how == "retry" { "failed" } else { how };
        assert_eq!(finish["outcome"]["status"], status);
        assert!(finish["duration_ns"].is_u64());
        let text = serde_json::to_string(&*heads.1.lock().unwrap()).unwrap();
        assert!(!text.contains(VALUE), "{how}: {text}");
    }
}

// E19
#[tokio::test]
async fn start_and_success_have_no_head() {
    let [_, heads] = recorded("success").await;
    assert_eq!([heads.payload("run.start"), heads.payload("run.success")], [Some(Value::Null), Some(Value::Null)]);
}

// E19
#[test]
fn the_head_of_would_deny_has_no_reason_because_it_may_quote_a_value() {
    let would_deny = WouldDeny::new("desk", Checked::Input, VALUE);
    assert_eq!(would_deny.head(), Some(json!({"guard": "desk", "at": "input"})));
}
