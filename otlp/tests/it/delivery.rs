//! O7, O8: spans reach the collector or are counted, and no run waits for it.

use std::io;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use emitree_emitter::{BoxError, Emitter, Overflow, Report, Sink};
use emitree_otlp::{Otlp, OtlpSink};
use emitree_runtime::{Result as RunResult, RunContext, Runnable, runnable_fn};
use futures_util::stream::{self, StreamExt};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceResponse};
use prost::Message;
use tokio::net::TcpListener;

use crate::collector::{Answer, Collector, attributes};
use crate::journal::Journal;
use crate::records::finish;

type Result<T> = std::result::Result<T, BoxError>;

const LONG: Duration = Duration::from_secs(60);
/// The events of a run, of which one stands for its span.
const EVENTS: u64 = 3;

fn answer(status: u16, headers: &[(&'static str, String)], body: impl Into<Body>) -> Answer {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    Box::new(|| response)
}

async fn runs(app: &Emitter, count: usize) -> Result<()> {
    for _ in 0..count {
        let double = runnable_fn("double", |n: u32, _: RunContext| async move { RunResult::Ok(2 * n) });
        let double = double.with_emitter(app.child("double")?);
        assert_eq!(double.run(21).await?, 42);
    }
    Ok(())
}

/// Exports some runs to a collector, and closes the sink.
async fn export(collector: &str, count: usize, set: impl FnOnce(Otlp) -> Otlp) -> Result<Report> {
    let app = Emitter::new();
    let traces = app.pipe_to(set(Otlp::to(collector)?).sink())?;
    runs(&app, count).await?;
    let report = traces.close(LONG).await;
    let total = report.delivered + report.failed;
    assert_eq!((total, report.lost, report.buffered, report.pending), (count as u64 * EVENTS, 0, 0, 0), "{report}");
    Ok(report)
}

fn same(otlp: Otlp) -> Otlp {
    otlp
}

fn never_again(otlp: Otlp) -> Otlp {
    otlp.retry_for(Duration::ZERO)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_ready_is_asked_again() -> Result<()> {
    let past = httpdate(SystemTime::now() - LONG);
    let delays = [vec![], vec![("retry-after", "0".to_owned())], vec![("retry-after", past)]];
    for status in [429, 502, 503, 504] {
        for delay in &delays {
            let collector = Collector::start([answer(status, delay, "busy")]).await;
            let report = export(&collector.url(), 1, same).await?;
            assert_eq!(report.complete()?, EVENTS, "{status} {delay:?}");
            let bodies: Vec<_> = collector.requests().into_iter().map(|(_, body)| body).collect();
            assert_eq!((bodies.len(), &bodies[0]), (2, &bodies[1]), "{status} {delay:?}");
        }
    }
    Ok(())
}

/// Returns a time in the form of HTTP headers.
fn httpdate(time: SystemTime) -> String {
    httpdate::fmt_http_date(time)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_that_is_longer_than_the_limit_fails_the_spans_at_once() -> Result<()> {
    for delay in ["3600".to_owned(), httpdate(SystemTime::now() + 60 * LONG)] {
        let collector = Collector::start([answer(503, &[("retry-after", delay)], "")]).await;
        let report = export(&collector.url(), 1, same).await?;
        let error = report.error.clone().unwrap_or_default();
        assert_eq!((report.failed, collector.requests().len()), (1, 1), "{report}");
        assert!(error.contains("answered 503 Service Unavailable; given up"), "{error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_collector_refuses_is_not_repeated() -> Result<()> {
    for (status, reason) in [(400, "Bad Request"), (401, "Unauthorized"), (413, "Payload Too Large"), (500, "Internal")]
    {
        let collector = Collector::start([answer(status, &[], "the reason")]).await;
        // A value that is too short to be a key hides no answer.
        let set = |otlp: Otlp| otlp.header("x-version", "r").unwrap();
        let report = export(&collector.url(), 2, set).await?;
        let error = report.error.clone().unwrap_or_default();
        assert_eq!((report.failed, collector.requests().len()), (2, 1), "{report}");
        let expected = format!("the collector at {}/v1/traces answered {status} {reason}", collector.url());
        assert!(error.starts_with(&expected) && error.ends_with(": the reason"), "{error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() -> Result<()> {
    let other = Collector::start([]).await;
    let to = [("location", format!("{}/v1/traces", other.url()))];
    let collector = Collector::start([answer(307, &to, "")]).await;
    let report = export(&collector.url(), 1, same).await?;
    assert_eq!((report.failed, other.requests().len()), (1, 0), "{report}");
    Ok(())
}

fn partial(rejected: i64, message: &str) -> Answer {
    let partial = ExportTracePartialSuccess { rejected_spans: rejected, error_message: message.to_owned() };
    let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    answer(200, &[], body)
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_the_collector_rejects_count_as_failed() -> Result<()> {
    // A collector cannot reject more spans than it was sent, or fewer than none.
    for (rejected, failed) in [(2, 2), (5, 5), (9, 5)] {
        let collector = Collector::start([partial(rejected, "too old")]).await;
        let report = export(&collector.url(), 5, same).await?;
        assert_eq!((report.failed, collector.requests().len()), (failed, 1), "{report}");
        let error = report.error.unwrap_or_default();
        assert!(error.ends_with(&format!("rejected {rejected} spans: too old")), "{error}");
    }
    for harmless in [partial(0, "a warning"), partial(-3, ""), answer(200, &[], "no protobuf"), answer(202, &[], "")] {
        let collector = Collector::start([harmless]).await;
        assert_eq!(export(&collector.url(), 5, same).await?.complete()?, 5 * EVENTS);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_down_fails_the_spans() -> Result<()> {
    // Nobody listens on a port that was just closed.
    let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let report = export(&format!("http://{address}"), 2, never_again).await?;
    assert_eq!(report.failed, 2, "{report}");
    let error = report.error.unwrap_or_default();
    assert!(error.starts_with(&format!("no answer of the collector at http://{address}/v1/traces: ")), "{error}");
    Ok(())
}

/// An answer whose body begins and does not end.
fn begins(then: impl StreamExt<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    Body::from_stream(stream::iter([Ok(Bytes::from_static(b"\n"))]).chain(then))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_end_in_time_fails_the_spans() -> Result<()> {
    let collector = Collector::start([answer(200, &[], begins(stream::pending()))]).await;
    let set = |otlp| never_again(otlp).timeout(Duration::from_millis(200));
    let report = export(&collector.url(), 1, set).await?;
    assert_eq!((report.failed, collector.requests().len()), (1, 1), "{report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_answer_was_cut_is_repeated() -> Result<()> {
    let cut = stream::iter([Err(io::Error::other("cut"))]);
    let collector = Collector::start([answer(200, &[("content-length", "9".to_owned())], begins(cut))]).await;
    assert_eq!(export(&collector.url(), 1, same).await?.complete()?, EVENTS);
    assert_eq!(collector.requests().len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_above_its_limit_fails_the_spans() -> Result<()> {
    let endless = stream::repeat_with(|| Ok(Bytes::from(vec![b'x'; 1 << 14])));
    let collector = Collector::start([answer(200, &[], begins(endless))]).await;
    let report = export(&collector.url(), 1, same).await?;
    assert_eq!((report.failed, collector.requests().len()), (1, 1), "{report}");
    assert!(report.error.clone().unwrap_or_default().ends_with("sent an answer of more than 65536 bytes"), "{report}");
    Ok(())
}

/// A collector that answers nothing: it accepts connections, and reads nothing.
async fn mute() -> Result<(TcpListener, String)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    Ok((listener, url))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_run_waits_for_a_collector_that_does_not_answer() -> Result<()> {
    let (_listener, url) = mute().await?;
    let app = Emitter::new();
    let traces = app.pipe_to(Otlp::to(&url)?.sink())?;
    runs(&app, 2000).await?;
    // The close waits, but not longer than it is told to.
    let report = traces.close(Duration::ZERO).await;
    assert_eq!((report.failed, report.is_complete()), (0, false), "{report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_block_no_event_is_lost_however_many_there_are() -> Result<()> {
    let collector = Collector::start([]).await;
    let set = |otlp: Otlp| otlp.overflow(Overflow::Block);
    assert_eq!(export(&collector.url(), 5000, set).await?.complete()?, 5000 * EVENTS);
    assert_eq!(collector.spans().len(), 5000);
    // Otherwise, the oldest events are lost.
    let otlp = Otlp::to(&collector.url())?;
    let overflow = |otlp: &Otlp| otlp.sink().overflow();
    assert_eq!([overflow(&otlp), overflow(&set(otlp.clone()))], [Overflow::DropOldest, Overflow::Block]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_above_the_limit_of_bytes_fail_while_the_collector_does_not_answer() -> Result<()> {
    let (_listener, url) = mute().await?;
    let mut sink = Otlp::to(&url)?.pending_bytes(2000).sink();
    let counts = |sink: &OtlpSink| sink.progress().map(|progress| (progress.buffered, progress.failed));
    for end in 0..100 {
        // Each run has an id of its own.
        let run = format!("01a220d4-9313-70f2-b2ad-{end:012x}");
        sink.write(&finish(1, "Tool", &run, 1))?;
    }
    let (waiting, failed) = counts(&sink).expect("counts");
    assert_eq!(waiting + failed, 100);
    // The spans in the first request do not count, because they no longer wait.
    assert!((50..100).contains(&failed), "{failed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_spans_are_sent_in_requests_of_at_most_512() -> Result<()> {
    let collector = Collector::start([]).await;
    assert_eq!(export(&collector.url(), 1300, same).await?.complete()?, 1300 * EVENTS);
    let count = |request: &opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest| {
        request.resource_spans[0].scope_spans[0].spans.len()
    };
    assert!(collector.requests().iter().all(|(_, request)| count(request) <= 512));
    assert_eq!(collector.spans().len(), 1300);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_sends_the_spans_of_runs_that_have_ended() -> Result<()> {
    let (collector, app) = (Collector::start([]).await, Emitter::new());
    let traces = app.pipe_to(Otlp::to(&collector.url())?.sink())?;
    let (flushing, in_run) = (traces.clone(), app.clone());
    let outer = runnable_fn("outer", move |(): (), _: RunContext| {
        let (traces, app) = (flushing.clone(), in_run.clone());
        async move {
            runs(&app, 1).await.unwrap();
            let report = traces.flush().await;
            // The open run is the only event that is not delivered.
            assert_eq!((report.buffered, report.failed, report.error), (1, 0, None));
            RunResult::Ok(())
        }
    });
    outer.with_emitter(app.child("outer")?).run(()).await?;
    assert_eq!(collector.spans().iter().map(|span| &*span.name).collect::<Vec<_>>(), ["double"]);
    traces.close(LONG).await.complete()?;
    assert_eq!(collector.spans().len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_the_headers_and_the_resource() -> Result<()> {
    let collector = Collector::start([]).await;
    let app = Emitter::new();
    let otlp = Otlp::to(&format!("{}/", collector.url()))?.header("X-Key", "k")?.resource("service.name", "desk");
    let traces = app.pipe_to(otlp.resource("team", "a").resource("team", "b").sink())?;
    runs(&app, 1).await?;
    traces.close(LONG).await.complete()?;
    let (headers, request) = collector.requests().remove(0);
    assert_eq!(headers["x-key"], "k");
    let user_agent = headers["user-agent"].to_str()?;
    assert!(user_agent.starts_with("emitree-otlp/0.") && user_agent.ends_with(" (Rust)"), "{user_agent}");
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let resource = attributes(&request.resource_spans[0].resource.as_ref().expect("a resource").attributes);
    assert_eq!((&resource["service.name"], &resource["team"]), (&"desk".into(), &"b".into()));
    assert_eq!(resource["telemetry.sdk.name"], "emitree");
    Ok(())
}

/// Requests of one span each, so that the collector answers once for each run.
async fn export_each(collector: &Collector, count: usize) -> Result<Report> {
    let app = Emitter::new();
    let traces = app.pipe_to(Otlp::to(&collector.url())?.sink())?;
    for _ in 0..count {
        runs(&app, 1).await?;
        drop(traces.flush().await);
    }
    Ok(traces.close(LONG).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_series_of_failures_or_of_warnings_is_logged_once() -> Result<()> {
    let journal = Journal::default();
    tracing::subscriber::set_global_default(journal.clone())?;
    let refused = || answer(400, &[], "no");
    let answers = [partial(0, "soon full"), partial(0, "soon full"), refused(), refused(), partial(1, "too old")];
    let collector = Collector::start(answers).await;
    let report = export_each(&collector, 6).await?;
    assert_eq!((report.failed, collector.requests().len()), (3, 6), "{report}");
    // Other tests log too.
    let logged: Vec<_> = journal.take().into_iter().filter(|line| line.contains(&collector.url())).collect();
    let at = format!("the collector at {}/v1/traces", collector.url());
    let expected = [
        format!("spans were exported with a warning: {at} warns: soon full"),
        format!("spans were not exported: {at} answered 400 Bad Request: no"),
    ];
    assert_eq!(logged, expected);
    Ok(())
}
