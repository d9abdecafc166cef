//! Runs are counted, and it is measured how long they take: [`Metrics`].

mod builder;
mod counted;
mod names;
mod series;
mod table;

use std::sync::Arc;

use emitree_runtime::{Middleware, Result, RunContext};

use builder::MetricsOptions;
pub use builder::{MetricsBuilder, MetricsError};
pub use counted::Counted;
use counted::CountedOnce;
use table::SeriesTable;

use crate::shared::built_in::{built_in, debug_as, default_as_new};
use crate::shared::own_events::OwnEvents;

/// Counts runs and measures how long they take, through the facade of the crate [`metrics`]: what becomes of that is
/// the business of the recorder that the program has installed.
///
/// | name | sort | labels | what it tells |
/// |---|---|---|---|
/// | `emitree_runs_started_total` | counter | `kind` | runs that have begun |
/// | `emitree_runs_active` | gauge | `kind` | those of them that are not over |
/// | `emitree_runs_ended_total` | counter | `kind`, `outcome` | runs that are over |
/// | `emitree_run_duration_seconds` | histogram | `kind`, `outcome` | how long those took, by tokio's clock |
///
/// `outcome` is one of the names of [`Status`](emitree_runtime::Status): `success`, `failed`, `denied`, `halted`,
/// `aborted`, `timed_out`, `interrupted`, `panicked`, `dropped`. Each run that is polled is counted once as started, when
/// it is bound, and once as ended, after its `finish`, however it ends (R4); so is one that fails before its `start`,
/// because something that is bound later cannot be. Names and labels follow [Prometheus's conventions](https://prometheus.io/docs/practices/naming/).
///
/// It counts the runs that it is bound to: with [`for_tree`](emitree_runtime::for_tree), those below too. Bound
/// twice to one run, it counts that twice. It looks at no value and changes nothing.
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
/// # How many series
///
/// Each combination of labels is a series, which a recorder keeps for good: labels must not take values without end.
/// By default there is one per kind, and kinds are few; [`names`](MetricsBuilder::names) and
/// [`label`](MetricsBuilder::label) multiply them. After [`max_combinations`](MetricsBuilder::max_combinations), by
/// default 1,000, what is new is counted with `other` in place of every value, and that is logged once.
///
/// # Which recorder
///
/// The one that is installed when a run is bound, be it later than the middleware was made. Its handles are kept, so
/// that a run makes no labels and looks up no names; recorders are told apart by where they are in memory, so one
/// `Metrics` should not see two [local ones](::metrics::with_local_recorder) of which the second takes the first's
/// place. A recorder that panics is logged, and the run goes on as if it were not there (M5).
///
/// # Its own events
///
/// `middleware.metrics.counted`, a [`Counted`], for each run that ends, once; where nobody listens it costs nothing but a
/// look whether somebody does.
///
/// - Where somebody hears the run or this when the run is bound, it is said at the run's `finish`, just before the run is
///   counted, to all who listen by then; who has to be awaited is.
/// - Where nobody does until later, or the run ends without a `finish`, it is said when the run has been counted. There
///   nothing can be awaited: where a listener would have to be, nobody hears it, and that is logged.
///
/// Clones are the same one.
#[derive(Clone)]
pub struct Metrics(Arc<SeriesTable>);

impl Metrics {
    /// Counts by kind and outcome, under names that begin with `emitree`.
    #[must_use]
    pub fn new() -> Self {
        Self::with(MetricsOptions::default())
    }

    /// With options.
    pub fn builder() -> MetricsBuilder {
        MetricsBuilder::default()
    }

    fn with(options: MetricsOptions) -> Self {
        Self(Arc::new(SeriesTable::with(options, OwnEvents::new("middleware.metrics"))))
    }
}

default_as_new!(Metrics);

built_in!(Metrics, |this| this.0.own_events);

impl Middleware for Metrics {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if let Some(series) = self.0.series_of(ctx) {
            series.begin();
            let counted_once = CountedOnce::of(&series.own_events, ctx);
            // A listener of `finish` would make each run tell what it otherwise need not.
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
