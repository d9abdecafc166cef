//! Runs as OpenTelemetry spans, for Jaeger, Grafana Tempo, Phoenix, Langfuse and every other tool that reads OTLP.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use emitree_emitter::Emitter;
//! use emitree_otlp::{Dialect, Otlp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let otlp = Otlp::from_env()?.dialect(Dialect::GenAi);
//! let traces = Emitter::root().pipe_to(otlp.sink())?;
//! // …
//! traces.close_blocking(Duration::from_secs(10)).complete()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Concepts
//!
//! - [`Otlp`] has the settings, and [`OtlpSink`] receives **records**. Spans are built from records alone, so a live
//!   run, its recording and the records of another machine give the same spans: to export a file, write its records
//!   to the sink.
//! - Each run is a **span**, from its `start` to its `finish`. The trace id is the trace of the run, and the span id
//!   is the last half of the run's id. Its status is an error if the run failed, panicked or timed out. A denial, a
//!   halt, an abort, a question and a dropped run are control flow; `emitree.outcome` has the outcome of every run.
//! - A [`Dialect`] is a table of facts about runs and the **attributes** that tools read them from. Content, such as
//!   the messages of a model, is exported on request only ([`Otlp::content`]).
//! - Spans are sent in batches, on a thread of their own. If the collector is not ready, requests are repeated within
//!   limits of time and bytes, and no run waits for it.

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc
    )
)]

mod dialect;
mod encode;
mod env;
mod error;
mod export;
mod otlp;
mod sampler;
mod sink;
mod spans;

pub use self::dialect::{Dialect, Form, Row};
pub use self::encode::{Limits, SpanKind};
pub use self::error::OtlpError;
pub use self::otlp::Otlp;
pub use self::sink::OtlpSink;
pub use self::spans::Fact;
