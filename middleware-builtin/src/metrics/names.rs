//! The names and descriptions of the metrics.

use std::sync::Arc;

use metrics::{KeyName, Level, Metadata, Recorder, Unit};

pub(super) static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// The names of the four metrics.
pub(super) struct MetricNames {
    pub(super) started: KeyName,
    pub(super) active: KeyName,
    pub(super) ended: KeyName,
    pub(super) duration: KeyName,
}

impl MetricNames {
    pub(super) fn with_prefix(prefix: &str) -> Self {
        let name = |rest| KeyName::from(Arc::<str>::from(format!("{prefix}_{rest}")));
        Self {
            started: name("runs_started_total"),
            active: name("runs_active"),
            ended: name("runs_ended_total"),
            duration: name("run_duration_seconds"),
        }
    }

    pub(super) fn describe(&self, recorder: &dyn Recorder) {
        let count = Some(Unit::Count);
        recorder.describe_counter(self.started.clone(), count, "Runs that have started.".into());
        recorder.describe_gauge(self.active.clone(), count, "Runs that have started and have not ended.".into());
        recorder.describe_counter(self.ended.clone(), count, "Runs that have ended, by outcome.".into());
        let duration = "Duration of runs, by outcome.".into();
        recorder.describe_histogram(self.duration.clone(), Some(Unit::Seconds), duration);
    }
}
