//! Finds the series of a run.

use std::sync::Arc;

use emitree_runtime::RunContext;
use metrics::{Label, Recorder, with_recorder};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use super::builder::MetricsOptions;
use super::series::{RecorderAddress, Series, address, call_user_code};
use crate::shared::own_events::OwnEvents;

/// The label value for combinations beyond the maximum.
const OTHER: &str = "other";

/// The series of one recorder. Recorders and label functions are user code: they are called without a lock.
pub(super) struct SeriesTable {
    pub(super) options: MetricsOptions,
    pub(super) own_events: OwnEvents,
    known: RwLock<KnownSeries>,
}

#[derive(Default)]
struct KnownSeries {
    recorder: Option<RecorderAddress>,
    /// The series by kind, and then by the values of the other labels.
    series: FxHashMap<String, FxHashMap<Vec<String>, Arc<Series>>>,
    len: usize,
    other: Option<Arc<Series>>,
}

enum Lookup {
    Series(Arc<Series>),
    /// The combination is new, and there is room for it.
    New {
        is_first: bool,
    },
    /// The combination is new, and there is no room for it.
    Full,
}

impl SeriesTable {
    pub(super) fn with(options: MetricsOptions, own_events: OwnEvents) -> Self {
        Self { options, own_events, known: RwLock::default() }
    }

    /// Returns the series of a run; `None` if the recorder panicked.
    pub(super) fn series_of(&self, run: &RunContext) -> Option<Arc<Series>> {
        let kind = run.kind();
        let name = run.name();
        let values = self.options.values(name, run);
        call_user_code(|| with_recorder(|recorder| self.find_or_register(kind, values, recorder)))
    }

    fn find_or_register(&self, kind: &str, values: Vec<String>, recorder: &dyn Recorder) -> Arc<Series> {
        // Release the lock at the end of this statement: in the scrutinee of the `match`, the guard would live while
        // the arms call the recorder.
        let found = self.known.read().find(kind, &values, address(recorder), self.options.max_combinations);
        match found {
            Lookup::Series(series) => series,
            Lookup::New { is_first } => {
                if is_first {
                    self.begin(recorder);
                }
                let series = self.register(kind, &values, recorder);
                self.known.write().insert(kind, values, series, address(recorder))
            }
            Lookup::Full => self.other(recorder),
        }
    }

    /// Begins the table of a new recorder, and forgets the series of the previous recorder.
    fn begin(&self, recorder: &dyn Recorder) {
        let new = KnownSeries { recorder: Some(address(recorder)), ..KnownSeries::default() };
        let before = {
            let mut known = self.known.write();
            // Another thread may have called `begin` with this recorder since the lookup.
            if known.recorder == new.recorder {
                return;
            }
            std::mem::replace(&mut *known, new)
        };
        // Dropping handles calls code of the recorder: drop them without the lock.
        drop(before);
        self.options.names.describe(recorder);
    }

    fn register(&self, kind: &str, values: &[String], recorder: &dyn Recorder) -> Arc<Series> {
        let own = self.options.label_names().zip(values).map(|(name, value)| Label::new(name, value.clone()));
        let labels = [Label::new("kind", kind.to_owned())].into_iter().chain(own).collect();
        Arc::new(Series::register(&self.options.names, &self.own_events, labels, recorder))
    }

    fn other(&self, recorder: &dyn Recorder) -> Arc<Series> {
        let most = self.options.max_combinations;
        tracing::warn!("runs have more than {most} combinations of labels: the rest is counted as `{OTHER}`");
        let values: Vec<_> = self.options.label_names().map(|_| OTHER.to_owned()).collect();
        let series = self.register(OTHER, &values, recorder);
        Arc::clone(self.known.write().other.get_or_insert(series))
    }
}

impl KnownSeries {
    fn find(&self, kind: &str, values: &[String], recorder: RecorderAddress, most: usize) -> Lookup {
        if self.recorder != Some(recorder) {
            return Lookup::New { is_first: true };
        }
        match (self.series.get(kind).and_then(|of_kind| of_kind.get(values)), &self.other) {
            (Some(series), _) => Lookup::Series(Arc::clone(series)),
            (None, _) if self.len < most => Lookup::New { is_first: false },
            (None, Some(other)) => Lookup::Series(Arc::clone(other)),
            (None, None) => Lookup::Full,
        }
    }

    /// Adds a series, and returns the series to use. If another thread has added a series with the same labels, that
    /// series is returned. If the recorder has been replaced meanwhile, the given series is returned but not kept.
    fn insert(
        &mut self,
        kind: &str,
        values: Vec<String>,
        series: Arc<Series>,
        recorder: RecorderAddress,
    ) -> Arc<Series> {
        if self.recorder != Some(recorder) {
            return series;
        }
        let of_kind = self.series.entry(kind.to_owned()).or_default();
        let before = of_kind.len();
        let kept = Arc::clone(of_kind.entry(values).or_insert(series));
        self.len += of_kind.len() - before;
        kept
    }
}
