//! The trace context of W3C, which joins runs to the traces of other processes (R16).
//!
//! One rule gives a run the same ids in each export: its trace id is the 16 bytes of [`Trace::id`], and its span id the
//! last 8 bytes of the run's id. A parent id that begins with 8 zero bytes is the span id of another process.

use std::fmt;
use std::iter::successors;
use std::sync::Arc;

use emitree_emitter::Trace;
use serde_json::{Value, json};
use thiserror::Error;
use uuid::Uuid;

use crate::RunContext;

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;
/// The flags that W3C has defined: sampled, and random trace id. Other flags must not be passed on.
const KNOWN_FLAGS: u8 = 0b11;
/// The number of characters of an invalid header that its error quotes.
const QUOTED: usize = 80;
/// The number of members that a `tracestate` may have.
const MEMBERS: usize = 32;

/// A span of a trace, as the HTTP headers `traceparent` and `tracestate` of
/// [W3C Trace Context](https://www.w3.org/TR/trace-context/) name it.
///
/// [`Run::trace_parent`](crate::Run::trace_parent) joins a run to the trace of a caller, and
/// [`RunContext::trace_parent`] names a run to the services that it calls. `Display` writes the header `traceparent`.
///
/// ```
/// use emitree_runtime::{RunContext, Runnable, TraceParent, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let call = runnable_fn("call", |(): (), ctx: RunContext| async move { Ok(ctx.trace_parent().to_string()) });
///
/// let sent = call.run(()).trace_parent(TraceParent::parse(header)?).await?;
/// assert!(sent.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && sent.ends_with("-01"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace: Uuid,
    span: u64,
    flags: u8,
    state: Option<Arc<str>>,
}

/// The error returned for a text or ids that are not a `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{quoted}` is not a traceparent: {fault}; write one as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`"
)]
pub struct TraceParentError {
    quoted: String,
    fault: &'static str,
}

impl TraceParent {
    /// Makes a trace parent from the ids of a trace and a span, and flags. Flags that W3C has not defined are cleared.
    ///
    /// # Errors
    ///
    /// Returns an error if one of the ids is zero.
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Result<Self, TraceParentError> {
        let trace = Uuid::from_bytes(trace_id);
        let span = u64::from_be_bytes(span_id);
        let made = Self { trace, span, flags: flags & KNOWN_FLAGS, state: None };
        let fault = match (trace.is_nil(), span) {
            (true, _) => "its trace id is zero",
            (_, 0) => "its parent id is zero",
            _ => return Ok(made),
        };
        Err(TraceParentError { quoted: made.to_string(), fault })
    }

    /// Parses the value of the header `traceparent`. Of a later version than `00`, the parts of version `00` are read.
    ///
    /// # Errors
    ///
    /// Returns an error that quotes the header if it does not have the form that W3C defines. The receiver of such a
    /// header should begin a new trace.
    pub fn parse(header: &str) -> Result<Self, TraceParentError> {
        let error = |fault| TraceParentError { quoted: header.chars().take(QUOTED).collect(), fault };
        let mut parts = header.trim_matches([' ', '\t']).splitn(5, '-');
        let mut next = || parts.next().unwrap_or_default();
        let [version] = bytes(next()).ok_or_else(|| error("its version is not 2 hex digits"))?;
        let trace = bytes(next()).ok_or_else(|| error("its trace id is not 32 lower-case hex digits"))?;
        let span = bytes(next()).ok_or_else(|| error("its parent id is not 16 lower-case hex digits"))?;
        let [flags] = bytes(next()).ok_or_else(|| error("its flags are not 2 hex digits"))?;
        match (version, parts.next()) {
            (0xff, _) => Err(error("no version is `ff`")),
            (0, Some(_)) => Err(error("version `00` has four parts")),
            _ => Self::new(trace, span, flags).map_err(|TraceParentError { fault, .. }| error(fault)),
        }
    }

    /// Adds the value of the header `tracestate`; join several headers with commas. An invalid value is logged and left
    /// out, as W3C demands.
    #[must_use]
    pub fn with_state(mut self, state: &str) -> Self {
        self.state = None;
        if !is_state(state) {
            let quoted: String = state.chars().take(QUOTED).collect();
            tracing::warn!("`{quoted}` is not a tracestate, and is left out: write one as `vendor=value,other=value`");
        } else if !state.trim().is_empty() {
            self.state = Some(state.into());
        }
        self
    }

    /// Returns the value of the header `tracestate`, if there is one.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the ids of a run that has this parent and no parent in this process.
    pub(crate) const fn trace_of(&self, run_id: Uuid) -> Trace {
        Trace { id: self.trace, run_id, parent_run_id: Some(Uuid::from_u64_pair(0, self.span)) }
    }

    /// Returns the members `flags` and `state`.
    fn facts(&self) -> Value {
        let mut facts = json!({"flags": self.flags});
        if let Some(state) = self.state() {
            facts["state"] = state.into();
        }
        facts
    }

    /// Returns the span as a link, with its ids.
    fn link(&self) -> Value {
        let mut link = self.facts();
        link["trace_id"] = self.trace.simple().to_string().into();
        link["span_id"] = format!("{:016x}", self.span).into();
        link
    }
}

/// Writes the header `traceparent`, with the version `00`.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{:016x}-{:02x}", self.trace.simple(), self.span, self.flags)
    }
}

/// Reads lower-case hex digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let &[high, low] = pair else { return None };
        *byte = digit(high)? << 4 | digit(low)?;
    }
    (text.len() == 2 * N).then_some(bytes)
}

/// Returns `true` if a text is a list of members `key=value`, as W3C defines it. Members may be empty.
fn is_state(text: &str) -> bool {
    let members = || text.split(',').map(|member| member.trim_matches([' ', '\t'])).filter(|member| !member.is_empty());
    members().count() <= MEMBERS
        && members().all(|member| member.split_once('=').is_some_and(|(key, value)| is_key(key) && is_value(value)))
}

/// A key is a name, or the name of a tenant, `@` and the name of a vendor.
fn is_key(key: &str) -> bool {
    let is_name = |name: &str, length, may_begin: fn(u8) -> bool| {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/".contains(&byte);
        name.len() <= length && name.bytes().next().is_some_and(may_begin) && name.bytes().all(is_part)
    };
    let is_letter = |byte: u8| byte.is_ascii_lowercase();
    match key.split_once('@') {
        None => is_name(key, 256, is_letter),
        Some((tenant, vendor)) => {
            is_name(tenant, 241, |byte| byte.is_ascii_alphanumeric()) && is_name(vendor, 14, is_letter)
        }
    }
}

fn is_value(value: &str) -> bool {
    (1..=256).contains(&value.len()) && value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=')
}

impl RunContext {
    /// Returns the run as the parent of work in other processes: send it as the header `traceparent`, and its
    /// [`state`](TraceParent::state) as `tracestate`.
    ///
    /// The flags and the state come from the outermost run. A trace that begins here is sampled.
    #[must_use]
    pub fn trace_parent(&self) -> TraceParent {
        let Trace { id, run_id, .. } = self.trace();
        let outermost = successors(Some(self), |run| run.parent()).last();
        let (flags, state) = match outermost.and_then(Self::given_trace_parent) {
            Some(given) => (given.flags, given.state.clone()),
            None => (SAMPLED, None),
        };
        TraceParent { trace: id, span: run_id.as_u64_pair().1, flags, state }
    }

    /// Returns what the context of `start` has under `trace`: the flags and the state of a trace that the run joins, or
    /// a link if the run has a parent in this process.
    pub(crate) fn trace_facts(&self) -> Option<Value> {
        let given = self.given_trace_parent()?;
        Some(if self.parent().is_some() { json!({"links": [given.link()]}) } else { given.facts() })
    }
}
