//! A recorder for the tests of the emitter and the runtime: it records lines and compares whole sequences.

use std::sync::{Arc, Mutex};

use emitree_emitter::{AnyEvent, EventMeta};

pub(crate) type Any = dyn AnyEvent + 'static;

/// Records lines in order: `label path` for each event that a listener received, and other notes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn note(&self, line: impl Into<String>) {
        self.0.lock().expect("no panic under the lock").push(line.into());
    }

    /// Returns a listener for `observe` that records `label path`.
    #[allow(clippy::needless_pass_by_value, reason = "a label is a literal, a number or formatted text")]
    pub(crate) fn sees(&self, label: impl ToString) -> impl Fn(&Any, &EventMeta<'_>) + Send + Sync + 'static {
        let (recorder, label) = (self.clone(), label.to_string());
        move |_, meta| recorder.note(format!("{label} {}", meta.path()))
    }

    /// Removes and returns the recorded lines.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic under the lock"))
    }

    /// Asserts that the lines recorded since the last `take` or `expect` are exactly `expected`.
    #[track_caller]
    pub(crate) fn expect<'a>(&self, expected: impl IntoIterator<Item = &'a str>) {
        let expected: Vec<_> = expected.into_iter().collect();
        let actual = self.take();
        assert!(actual == expected, "expected:\n  {}\nrecorded:\n  {}", expected.join("\n  "), actual.join("\n  "));
    }
}
