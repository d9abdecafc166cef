//! Numbers and durations of runs as metrics: [`Metrics`].

mod builder;
mod counted;
mod names;
mod series;
mod table;

use std::sync::Arc;

use emitree_emitter::Namespace;
use emitree_runtime::{Middleware, Result, RunContext};

use builder::MetricsOptions;
pub use builder::{MetricsBuilder, MetricsError};
pub use counted::Counted;
use counted::CountedOnce;
use table::SeriesTable;

use crate::shared::built_in::{built_in, debug_as, default_as_new};
use crate::shared::own_events::OwnEvents;

/// Counts runs and measures their durations, through the facade of the crate [`metrics`]. The metrics go to the
/// recorder that the program installs.
///
/// | metric | type | labels | measures |
/// |---|---|---|---|
/// | `emitree_runs_started_total` | counter | `kind` | runs that have started |
/// | `emitree_runs_active` | gauge | `kind` | runs that have started and have not ended |
/// | `emitree_runs_ended_total` | counter | `kind`, `outcome` | runs that have ended |
/// | `emitree_run_duration_seconds` | histogram | `kind`, `outcome` | the durations of runs, by tokio's clock |
///
/// `outcome` is one of the names of [`Status`](emitree_runtime::Status): `success`, `failed`, `denied`, `halted`,
/// `aborted`, `timed_out`, `interrupted`, `panicked`, `dropped`. A run is counted as started at its first poll, when
/// the middleware is bound, and as ended after its `finish`, regardless of its outcome. A run that fails before its
/// `start`, because a later middleware cannot be bound, is counted too. Names and labels follow the [conventions of
/// Prometheus](https://prometheus.io/docs/practices/naming/).
///
/// The middleware counts the runs that it is bound to; with [`for_tree`](emitree_runtime::for_tree), it also counts the
/// runs below. If it is bound twice to one run, the run is counted twice. It does not read or change inputs and
/// outputs. Clones share their series.
///
/// ```
/// use emitree_middleware::Metrics;
/// use emitree_runtime::{RunContext, Runnable, for_tree, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// // Once, at the beginning: metrics_exporter_prometheus::PrometheusBuilder::new().install()?;
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) })
///     .middleware(for_tree(Metrics::new()));
/// assert_eq!(double.run(21).await?, 42);
/// // emitree_runs_ended_total{kind="Run",outcome="success"} 1
/// # Ok(())
/// # }
/// ```
///
/// # Number of series
///
/// Each combination of label values is a series, which most recorders keep forever: use labels with few values. By
/// default, there is one combination per kind; [`names`](MetricsBuilder::names) and [`label`](MetricsBuilder::label)
/// multiply the combinations. Beyond [`max_combinations`](MetricsBuilder::max_combinations), by default 1,000, runs
/// with new combinations are counted with the value `other` for every label except `outcome`, and a warning is logged
/// once.
///
/// # Recorder
///
/// A run uses the recorder that is installed when the middleware is bound to the run. If the run is the first of its
/// series with its outcome, the metrics of this outcome use the recorder that is installed when the run ends. The
/// recorder may be installed after the middleware is created. The handles of each series are kept, so a run whose
/// series is known registers no metrics. Recorders are compared by address: do not use one `Metrics` with a [local
/// recorder](::metrics::with_local_recorder) that may be created at the address of an earlier recorder. If a recorder
/// panics, the panic is logged and the run continues.
///
/// # Its own events
///
/// `middleware.metrics.counted`, a [`Counted`], once for each run that ends.
///
/// - If the run or this middleware's emitter has listeners when the middleware is bound to the run, the event is
///   emitted at the run's `finish`, just before the run is counted. Async listeners are awaited.
/// - If listeners are registered only later, or if the run ends without a `finish`, the event is emitted after the run
///   is counted. Nothing can be awaited at that point: if an async listener would receive the event, no listener
///   receives it, and a warning is logged.
///
/// # What it remembers
///
/// The handles of all series are kept until the last clone is dropped, or until a run uses another recorder.
#[derive(Clone)]
pub struct Metrics(Arc<SeriesTable>);

impl Metrics {
    /// Creates metrics with the labels `kind` and `outcome`, and names that begin with `emitree`.
    #[must_use]
    pub fn new() -> Self {
        Self::with(MetricsOptions::default())
    }

    /// Returns a builder that sets options.
    pub fn builder() -> MetricsBuilder {
        MetricsBuilder::default()
    }

    fn with(options: MetricsOptions) -> Self {
        Self(Arc::new(SeriesTable::with(options, OwnEvents::new(Namespace::new("middleware.metrics")))))
    }
}

default_as_new!(Metrics);

built_in!(Metrics, |this| this.0.own_events);

impl Middleware for Metrics {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if let Some(series) = self.0.series_of(ctx) {
            series.begin();
            let counted_once = CountedOnce::of(&series.own_events, ctx);
            // Count in `on_end` and not in a listener of `finish`: with a listener, every run would emit its lifecycle
            // events.
            ctx.on_end(move |ctx, status| {
                series.end(status, ctx.elapsed());
                counted_once.end(&series.own_events, ctx, status);
            });
        }
        Ok(())
    }

    fn name(&self) -> &str {
        "metrics"
    }
}

debug_as!(Metrics, |this| this.0.options);
