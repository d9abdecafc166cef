//! The service with a scripted model and a database in a temporary folder.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use emitree::agent::{ChatModel, ScriptedModel};
use emitree::stores::SqliteStore;
use http_body_util::BodyExt;
use my_service::{Service, cashier};
use serde_json::{Value, json};
use tower::ServiceExt;

async fn send(service: &Service, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
    let response = service.router().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

#[tokio::test]
async fn a_payment_waits_for_its_approval_and_is_made_once() {
    let script = ScriptedModel::new("test").call("pay", json!({"to": "Ada", "amount": 5})).text("Ada is paid.");
    let agent = cashier(ChatModel::new(script).unwrap()).unwrap();
    let file = std::env::temp_dir().join(format!("my-service-{}.db", std::process::id()));
    let service = Service::start(agent, SqliteStore::open(&file).await.unwrap()).await.unwrap();

    let (status, waiting) = send(&service, "POST", "/ask", json!("Pay Ada 5.")).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_eq!(send(&service, "GET", "/waiting", Value::Null).await.1, json!([waiting]));
    let [session, question] = [&waiting["session"], &waiting["questions"][0]["id"]].map(|id| id.as_str().unwrap());
    let path = format!("/answer/{session}/{question}");
    assert_eq!(send(&service, "POST", &path, json!({"value": "approve"})).await.0, StatusCode::ACCEPTED);
    service.idle().await;
    assert_eq!(send(&service, "POST", &path, json!({"value": "approve"})).await.0, StatusCode::NOT_FOUND);
    assert_eq!(send(&service, "GET", "/waiting", Value::Null).await.1, json!([]));
    std::fs::remove_file(file).unwrap();
}
