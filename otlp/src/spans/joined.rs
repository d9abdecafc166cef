//! Traces of other processes, which runs join or link to. The context of a run's `start` has their facts under `trace`.

use emitree_emitter::EventRecord;
use serde_json::Value;
use uuid::Uuid;

use super::Link;

/// A trace that another process began: the facts that an outermost run was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Joined {
    /// The flags of W3C Trace Context.
    pub(crate) flags: u8,
    /// The `tracestate`.
    pub(crate) state: String,
}

impl Joined {
    /// Returns the trace that a run joins, if this is the `start` of one.
    pub(super) fn of(start: &EventRecord) -> Option<Self> {
        let trace = start.context.get("trace")?;
        Some(Self { flags: flags(trace)?, state: state(trace) })
    }

    /// Returns `true` if the other process records the trace.
    pub(super) const fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }
}

/// Returns the spans of other processes that a run links to.
pub(super) fn links(start: &EventRecord) -> Vec<Link> {
    let links = start.context.get("trace").and_then(|trace| trace.get("links")?.as_array());
    links.into_iter().flatten().filter_map(link).collect()
}

fn link(link: &Value) -> Option<Link> {
    let trace: Uuid = link["trace_id"].as_str()?.parse().ok()?;
    let span = u64::from_str_radix(link["span_id"].as_str()?, 16).ok()?;
    Some(Link { trace, span: span.to_be_bytes(), flags: flags(link).unwrap_or_default(), state: state(link) })
}

fn flags(facts: &Value) -> Option<u8> {
    facts["flags"].as_u64().and_then(|flags| u8::try_from(flags).ok())
}

fn state(facts: &Value) -> String {
    facts["state"].as_str().unwrap_or_default().to_owned()
}
