//! The options of a redaction, and their application to texts, values, events and errors.

use std::fmt;

use emitree_runtime::Error;
use emitree_secrets::{Kind, Piece, Scanner};
use parking_lot::Mutex;
use serde_json::Value;

use super::events::{Redacted, Tally};
use super::pseudonyms::Pseudonyms;
use super::strategy::{HashKey, Strategy};
use crate::shared::inspected::error_text::{change_denier, change_texts};
use crate::shared::json::{Path, strings, strings_mut};
use crate::shared::run_part::RunPart;

/// The options of a redaction.
#[derive(Clone)]
pub(super) struct RedactOptions {
    pub(super) scanner: Scanner,
    pub(super) strategy: Strategy,
    pub(super) by_kind: Vec<(Kind, Strategy)>,
    pub(super) key: Option<HashKey>,
    pub(super) pseudonyms: Option<Pseudonyms>,
    pub(super) parts: Vec<RunPart>,
    pub(super) restores: bool,
}

impl RedactOptions {
    pub(super) fn new() -> Self {
        Self {
            scanner: Scanner::new(),
            strategy: Strategy::default(),
            by_kind: Vec::new(),
            key: None,
            pseudonyms: None,
            parts: RunPart::ALL.into(),
            restores: false,
        }
    }

    /// Generates a random key if the strategy needs a key and none is set.
    pub(super) fn draw_key(&mut self, strategy: Strategy) {
        if matches!(strategy, Strategy::Hash | Strategy::Pseudonym) && self.key.is_none() {
            self.key = HashKey::random();
        }
    }

    pub(super) fn covers(&self, part: RunPart) -> bool {
        self.parts.contains(&part)
    }

    /// Returns the replacement of a secret.
    pub(super) fn replacement(&self, kind: &Kind, secret: &str, names: &Pseudonyms) -> String {
        // If several strategies were set for a kind, the last one applies.
        let own = self.by_kind.iter().rev().find(|(of, _)| of == kind);
        own.map_or(self.strategy, |(_, strategy)| *strategy).replace(kind, secret, self.key.as_ref(), names)
    }

    /// Redacts a text; returns `true` if anything was replaced.
    pub(super) fn text(&self, text: &mut String, names: &Pseudonyms, mut found: impl FnMut(&Kind)) -> bool {
        let replaced = self.scanner.replace(text, |kind, secret| {
            found(kind);
            self.replacement(kind, secret, names)
        });
        let std::borrow::Cow::Owned(replaced) = replaced else { return false };
        *text = replaced;
        true
    }

    /// Returns a JSON pointer as text for reports. Secrets in keys are redacted in this text, but not in the value.
    pub(super) fn pointer(&self, at: &Path<'_>) -> String {
        self.scanner.replace(&at.to_string(), |kind, _| format!("[REDACTED:{kind}]")).into_owned()
    }
}

impl fmt::Debug for RedactOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Redact");
        debug.field("kinds", &self.scanner).field("strategy", &self.strategy);
        if !self.by_kind.is_empty() {
            debug.field("by_kind", &self.by_kind);
        }
        if self.parts != RunPart::ALL {
            debug.field("parts", &self.parts);
        }
        debug.field("restore_output", &self.restores).finish()
    }
}

/// Redacts the values of one run, or the records of one sink, and counts the findings.
#[derive(Debug)]
pub(super) struct Redactor {
    pub(super) options: RedactOptions,
    pub(super) pseudonyms: Pseudonyms,
    /// The kind of the run.
    kind: String,
    /// The handle for the output. It hides secrets that first occur in the output of the outermost run.
    of_output: Pseudonyms,
    tally: Mutex<Tally>,
}

impl Redactor {
    /// Creates the redactor of a run. `is_outermost` is `true` for the outermost run that uses these pseudonyms.
    pub(super) fn of_run(options: RedactOptions, pseudonyms: Pseudonyms, is_outermost: bool, kind: &str) -> Self {
        let of_output = if is_outermost { pseudonyms.hidden() } else { pseudonyms.clone() };
        Self { options, pseudonyms, kind: kind.to_owned(), of_output, tally: Mutex::default() }
    }

    /// Creates the redactor of a sink: its secrets are not restored.
    pub(super) fn of_sink(options: RedactOptions) -> Self {
        let pseudonyms = options.pseudonyms.clone().unwrap_or_default().hidden();
        let (kind, of_output) = (String::new(), pseudonyms.clone());
        Self { options, of_output, pseudonyms, kind, tally: Mutex::default() }
    }

    /// Appends a clean piece unchanged, or the replacement of a secret.
    pub(super) fn put(&self, out: &mut String, piece: Piece<'_>, found: impl FnOnce(&Kind)) {
        match piece {
            Piece::Clean(clean) => *out += clean,
            Piece::Secret(kind, secret) => {
                found(kind);
                *out += &self.options.replacement(kind, secret, &self.pseudonyms);
            }
        }
    }

    /// Returns the findings since the last call.
    pub(super) fn found(&self) -> Vec<Redacted> {
        self.tally.lock().take()
    }

    pub(super) fn note(&self, part: RunPart, at: &str, kind: &Kind) {
        self.tally.lock().add(part, at, kind);
    }

    pub(super) fn text(&self, part: RunPart, at: &Path<'_>, text: &mut String) -> bool {
        let mut pointer = None;
        let names = if part == RunPart::Output { &self.of_output } else { &self.pseudonyms };
        self.options.text(text, names, |kind| {
            self.note(part, pointer.get_or_insert_with(|| self.options.pointer(at)), kind);
        })
    }

    /// Returns the root of a value of the run.
    fn root(&self, part: RunPart) -> Path<'static> {
        Path::root_of(&self.kind, part == RunPart::Input)
    }

    /// Redacts a value of the run; returns `true` if anything was replaced.
    pub(super) fn value(&self, part: RunPart, value: &mut Value) -> bool {
        self.value_at(part, &self.root(part), value)
    }

    /// Redacts a value below this root; returns `true` if anything was replaced.
    pub(super) fn value_at(&self, part: RunPart, root: &Path<'_>, value: &mut Value) -> bool {
        let mut is_changed = false;
        strings_mut(value, root, &mut |at, text| is_changed |= self.text(part, at, text));
        is_changed
    }

    /// Returns the redacted text of an event with this name, if anything was replaced.
    pub(super) fn event_text(&self, name: &str, text: &str) -> Option<String> {
        let mut redacted = text.to_owned();
        self.event_string(name, &mut redacted).then_some(redacted)
    }

    /// Redacts a text in an event with this name; returns `true` if anything was replaced.
    pub(super) fn event_string(&self, name: &str, text: &mut String) -> bool {
        self.options.text(text, &self.pseudonyms, |kind| self.note(RunPart::Event, name, kind))
    }

    /// Redacts the value of an event with this name; returns `true` if anything was replaced.
    pub(super) fn event(&self, name: &str, value: &mut Value) -> bool {
        let mut is_changed = false;
        strings_mut(value, &self.root(RunPart::Event), &mut |_, text| {
            is_changed |= self.options.text(text, &self.pseudonyms, |kind| self.note(RunPart::Event, name, kind));
        });
        is_changed
    }

    /// Redacts the texts of an error, and the name of the guard in a denial or halt. The error keeps its kind.
    pub(super) fn error(&self, error: Error) -> Error {
        let mut change = |at: &Path<'_>, text: &mut String| {
            self.text(RunPart::Error, at, text);
        };
        change_texts(change_denier(error, &mut change), &mut change)
    }

    /// Returns a redacted copy of a value, if anything is replaced.
    pub(super) fn replaced(&self, part: RunPart, value: &Value) -> Option<Value> {
        let mut is_clean = true;
        let scanner = &self.options.scanner;
        strings(value, &self.root(part), &mut |_, text| is_clean = is_clean && scanner.is_clean(text));
        if is_clean {
            return None;
        }
        // Most values are clean: these are searched once and not copied.
        let mut copy = value.clone();
        self.value(part, &mut copy).then_some(copy)
    }
}
