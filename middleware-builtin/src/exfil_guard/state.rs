//! The state of a guard in one run, the guard of input and output, and the layer that checks errors.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::json::{MAX_DEPTH, check_depth};
use emitree_runtime::{Error, ErrorKind, Guard, Interrupt, JsonRun, Layer, Next, Result, RunContext};
use parking_lot::Mutex;
use serde_json::Value;

use super::events::Blocked;
use super::leak::What;
use super::{Encoding, ExfilGuardOptions, NAME};
use crate::shared::built_in::debug_as;
use crate::shared::inspected::chunked_events::HeldText;
use crate::shared::inspected::error_text::{change_detail_keys, change_texts};
use crate::shared::json::{Path, strings};
use crate::shared::own_events::OwnEvents;
use crate::shared::run_part::RunPart;

/// The position of an error's details in its report.
const DETAILS: Path<'static> = Path::Key(&Path::Root, "details");

/// The state that the layer, the streams and the error map of one binding share.
pub(super) struct GuardState {
    pub(super) detector: super::Detector,
    options: ExfilGuardOptions,
    own_events: OwnEvents,
    blocked: Mutex<Vec<Blocked>>,
}

impl GuardState {
    pub(super) fn new(detector: super::Detector, options: ExfilGuardOptions, own_events: OwnEvents) -> Self {
        Self { detector, options, own_events, blocked: Mutex::default() }
    }

    /// Records a finding and returns its denial, which does not repeat the secret.
    pub(super) fn block(&self, part: RunPart, at: &str, what: What, encoding: Encoding) -> Error {
        let subject = match &what {
            What::Known => "a known value".to_owned(),
            What::Kind(kind) => format!("a possible secret of the kind `{kind}`"),
            What::Host => "a URL to a host that is not allowed".to_owned(),
            What::TooDeep => format!("a value that is nested deeper than {MAX_DEPTH} levels"),
            What::TooMuch => format!("encoded text beyond the limit of {} decoded bytes", self.detector.max_decoded),
        };
        let at_pointer = if at.is_empty() { String::new() } else { format!(" at `{at}`") };
        let written = encoding.written();
        let reason = format!("{subject}{written} was about to leave in the {}{at_pointer}", part.as_str());
        let evaluated_only = self.options.guard.is_evaluate_only();
        self.blocked.lock().push(Blocked { part, at: at.to_owned(), what, encoding, evaluated_only });
        Error::denied(NAME, reason)
    }

    /// Emits the findings recorded so far.
    pub(super) async fn emit_blocked(&self, ctx: &RunContext) {
        // Take the findings out first: no lock is held across the await, and each finding is emitted once.
        let blocked = std::mem::take(&mut *self.blocked.lock());
        for blocked in blocked {
            self.own_events.emit(ctx, || blocked).await;
        }
    }

    /// Returns a position as a JSON pointer, or `…` if its keys contain a secret.
    fn pointer(&self, at: &Path<'_>) -> String {
        let at = at.to_string();
        if self.detector.find_leak(&at, &mut self.detector.budget()).is_some() { "…".to_owned() } else { at }
    }

    /// Checks an input or output.
    fn check_value(&self, part: RunPart, value: &Value, ctx: &RunContext) -> Result<()> {
        // The search recurses: a value that is nested too deeply is denied without a search.
        if check_depth(value).is_err() {
            return Err(self.block(part, "", What::TooDeep, Encoding::Plain));
        }
        // Use one budget for the whole value, so that many small strings cannot decode more bytes than one large
        // string.
        let mut denied = Ok(());
        let mut budget = self.detector.budget();
        let mut look = |at: &Path<'_>, text: &str| {
            if denied.is_ok()
                && let Some((what, encoding)) = self.detector.find_leak(text, &mut budget)
            {
                denied = Err(self.block(part, &self.pointer(at), what, encoding));
            }
        };
        strings_and_keys(value, &Path::root_of(ctx.kind(), part == RunPart::Input), &mut look);
        denied
    }

    /// Checks an error. A failure with a secret becomes a denial. Control flow keeps its kind, and its texts with
    /// secrets are replaced, unless a part that cannot be replaced contains a secret.
    pub(super) fn check_error(&self, error: Error) -> Error {
        if has_deep_value(&error) {
            return self.block(RunPart::Error, "", What::TooDeep, Encoding::Plain);
        }
        let mut denied = None;
        let mut budget = self.detector.budget();
        let mut leaks = |at: &Path<'_>, text: &str| {
            let Some((what, encoding)) = self.detector.find_leak(text, &mut budget) else { return false };
            denied.get_or_insert_with(|| self.block(RunPart::Error, &self.pointer(at), what, encoding));
            true
        };
        let mut withhold = |at: &Path<'_>, text: &mut String| {
            if leaks(at, text) {
                "withheld by exfil_guard".clone_into(text);
            }
        };
        // First replace the texts that can be replaced, then check the other parts.
        let checked = change_texts(error, &mut withhold);
        let checked = change_detail_keys(checked, &mut |key| withhold(&DETAILS, key));
        // Only control flow can keep its kind, and only if none of its fixed parts contains a secret (M9).
        let mut keeps = checked.is_control_flow();
        for_each_fixed_text(&checked, &mut |at, text| keeps &= !leaks(at, text));
        match denied {
            Some(denied) if !keeps => denied,
            _ => checked,
        }
    }
}

/// Calls `see` with the fixed texts of an error. They cannot be replaced, because code acts on them.
fn for_each_fixed_text(error: &Error, see: &mut impl FnMut(&Path<'_>, &str)) {
    if let ErrorKind::Denied { by } | ErrorKind::Halted { by } = error.kind() {
        see(&Path::Key(&Path::Key(&Path::Root, "kind"), "by"), by);
    }
    if let Some(Interrupt { id, kind, data, .. }) = error.interrupt() {
        let at = Path::Key(&Path::Root, "interrupt");
        see(&Path::Key(&at, "id"), id);
        see(&Path::Key(&at, "kind"), kind);
        strings_and_keys(data, &Path::Key(&at, "data"), see);
    }
    if let Some(retry) = error.retry_request() {
        keys(&Value::from(error.details().clone()), &mut |key| see(&DETAILS, key));
        strings_and_keys(&retry.metadata, &Path::Key(&Path::Key(&Path::Root, "retry"), "metadata"), see);
    }
}

/// Returns `true` if JSON in an error is nested so deeply that reading it could overflow the stack.
fn has_deep_value(error: &Error) -> bool {
    let interrupt = error.interrupt().map(|interrupt| &interrupt.data);
    error.details().values().chain(interrupt).any(|value| check_depth(value).is_err())
}

/// Calls `see` with all strings and keys of a value. Keys are reported at the position of the whole value.
fn strings_and_keys(value: &Value, at: &Path<'_>, see: &mut impl FnMut(&Path<'_>, &str)) {
    strings(value, at, see);
    keys(value, &mut |key| see(at, key));
}

fn keys(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| keys(item, see)),
        Value::Object(members) => members.iter().for_each(|(key, member)| {
            see(key);
            keys(member, see);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The guard of one binding, with the run's checked event streams.
pub(super) struct ValueGuard {
    pub(super) state: Arc<GuardState>,
    pub(super) held: Arc<[Arc<dyn HeldText>]>,
}

impl Guard<JsonRun> for ValueGuard {
    async fn check_input(&self, input: &Value, ctx: &RunContext) -> Result<()> {
        let state = &self.state;
        let checked = if state.options.inputs { state.check_value(RunPart::Input, input, ctx) } else { Ok(()) };
        self.state.emit_blocked(ctx).await;
        checked
    }

    async fn check_output(&self, output: &Value, ctx: &RunContext) -> Result<()> {
        // Work that ignores the failed emit of a refused event must not succeed.
        let checked = match self.held.iter().find_map(|stream| stream.refused()) {
            Some(refused) => Err(refused),
            None if self.state.options.outputs => self.state.check_value(RunPart::Output, output, ctx),
            None => Ok(()),
        };
        self.state.emit_blocked(ctx).await;
        checked
    }

    fn name(&self) -> &str {
        NAME
    }
}

debug_as!(ValueGuard, |this| this.state);

/// The layer that checks the errors of the work. A [`Guard`] sees no errors.
pub(super) struct ErrorLayer(pub(super) Arc<GuardState>);

impl Layer<JsonRun> for ErrorLayer {
    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        let result = next.run(input).await.map_err(|error| self.0.check_error(error));
        self.0.emit_blocked(ctx).await;
        result
    }

    fn name(&self) -> &str {
        "exfil_guard.errors"
    }
}

debug_as!(ErrorLayer, |this| this.0);

impl fmt::Debug for GuardState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.describe(&self.detector, f)
    }
}
