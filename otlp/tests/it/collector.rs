//! A collector of spans, which answers as a test tells it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Makes the answer to one request.
pub(crate) type Answer = Box<dyn FnOnce() -> Response + Send>;

#[derive(Clone)]
pub(crate) struct Collector {
    address: SocketAddr,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    answers: VecDeque<Answer>,
    requests: Vec<(HeaderMap, ExportTraceServiceRequest)>,
}

impl Collector {
    /// Starts a collector that gives these answers, and then accepts everything.
    pub(crate) async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Inner { answers: answers.into_iter().collect(), requests: Vec::new() };
        let collector = Self { address, inner: Arc::new(Mutex::new(inner)) };
        let routes = Router::new().route("/v1/traces", post(collect)).with_state(collector.clone());
        tokio::spawn(async { axum::serve(listener, routes).await.unwrap() });
        collector
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<(HeaderMap, ExportTraceServiceRequest)> {
        self.inner.lock().unwrap().requests.clone()
    }

    /// Returns the spans of all requests, in the order of their arrival.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let requests = self.requests().into_iter().map(|(_, request)| request);
        let scopes = requests.flat_map(|request| request.resource_spans).flat_map(|spans| spans.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// Returns the span with a name.
    pub(crate) fn span(&self, name: &str) -> Span {
        let spans = self.spans();
        let names: Vec<_> = spans.iter().map(|span| span.name.clone()).collect();
        spans.into_iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span `{name}` among {names:?}"))
    }
}

async fn collect(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> Response {
    let mut inner = collector.inner.lock().unwrap();
    inner.requests.push((headers, ExportTraceServiceRequest::decode(body).unwrap()));
    inner.answers.pop_front().map_or_else(|| Response::new(Body::empty()), |answer| answer())
}

/// Returns attributes as JSON.
pub(crate) fn attributes(list: &[KeyValue]) -> BTreeMap<String, Value> {
    let attributes: BTreeMap<_, _> =
        list.iter().map(|attribute| (attribute.key.clone(), json_of(attribute.value.as_ref().unwrap()))).collect();
    assert_eq!(attributes.len(), list.len(), "each attribute is there once");
    attributes
}

fn json_of(value: &AnyValue) -> Value {
    match value.value.as_ref().unwrap() {
        Any::StringValue(text) => json!(text),
        Any::BoolValue(value) => json!(value),
        Any::IntValue(int) => json!(int),
        Any::DoubleValue(float) => json!(float),
        Any::ArrayValue(array) => array.values.iter().map(json_of).collect(),
        other => panic!("{other:?} is no value of an attribute"),
    }
}
