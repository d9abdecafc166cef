//! Results with images, sounds, files and links.

use std::net::TcpListener;

use emitree_agent::{Agent, ChatModel, Part, ScriptedModel, ToolResult};
use emitree_mcp::Limits;
use serde_json::json;

use crate::support::{bank, bash, result, results};

fn text(content: &str) -> Part {
    Part::Text { content: content.to_owned() }
}

/// Calls a tool whose result has a text and this block, as JSON.
async fn shown(block: &str) -> ToolResult {
    let call = format!(r#"reply '"result":{{"content":[{{"type":"text","text":"see"}},{block}]}}'"#);
    let server = bash(&[("CALL", &*call)]).connect().await.unwrap();
    result(server.tools(), "act", json!({})).await
}

#[tokio::test]
async fn an_image_is_a_part_in_both_eras() {
    for era in ["old", "new"] {
        let server = bank(&["--era", era]).connect().await.unwrap();
        let statement = result(server.tools(), "statement", json!({})).await;
        let uri = format!("data:image/png;base64,{}", "iVBORw0KGgoA".repeat(1024));
        let image = Part::Uri { modality: "image".to_owned(), mime_type: Some("image/png".to_owned()), uri };
        assert_eq!((statement.response, statement.parts), (json!("the account:"), vec![image]), "{era}");
    }
}

#[tokio::test]
async fn a_link_is_a_part_and_is_never_fetched() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let uri = format!("http://{}/map.png", listener.local_addr().unwrap());
    let link = format!(r#"{{"type":"resource_link","name":"map","mimeType":"image/png","uri":"{uri}"}}"#);
    let mime_type = Some("image/png".to_owned());
    let link_part = Part::Uri { modality: "document".to_owned(), mime_type, uri };
    let shown = shown(&link).await;
    assert_eq!((shown.response, shown.parts), (json!("see"), vec![text("map"), link_part]));
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn what_is_for_the_user_only_is_in_the_details() {
    let image = r#"{"type":"image","mimeType":"image/png","data":"AAAA","annotations":{"audience":["user"]}}"#;
    let call = format!(r#"reply '"result":{{"content":[{image}]}}'"#);
    let server = bash(&[("CALL", &*call)]).connect().await.unwrap();
    let model = ScriptedModel::new("test").call("act", json!({})).text("done");
    let agent = Agent::builder("clerk", ChatModel::new(model.clone()).unwrap()).with(server.tools()).build().unwrap();
    let details = std::sync::Arc::new(parking_lot::Mutex::new(json!(null)));
    let kept = std::sync::Arc::clone(&details);
    let run = agent.ask("Go on.").observe("tool.act.success", move |event: &dyn emitree_emitter::AnyEvent, _| {
        *kept.lock() = event.to_json()["output"]["details"].clone();
    });
    let result = results(&run.await.unwrap()).remove(0);
    assert_eq!((result.response, result.parts), (json!(""), vec![]));
    assert_eq!(details.lock()["for_user"][0]["data"], "AAAA");
    assert!(!serde_json::to_string(&model.requests()[1].messages).unwrap().contains("AAAA"));
}

/// The bounds of the results of own tools.
#[tokio::test]
async fn a_part_of_more_than_8_mib_and_parts_of_more_than_16_make_the_result_an_error() {
    for (bytes, images, fault) in [
        (4 << 20, 1, None),
        (9 << 20, 1, Some("part 0 of the result has 9437220 bytes: a part has at most 8388608")),
        (6 << 20, 3, Some("the parts of the result have 18874476 bytes: they have at most 16777216")),
    ] {
        let call = r#"[[ $line =~ \"id\":([0-9]+) ]]; printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[' "${BASH_REMATCH[1]}"
for ((n = 1; n <= IMAGES; n++)); do
  [ $n = 1 ] || printf ,; printf '{"type":"image","mimeType":"image/png","data":"'; head -c $BYTES /dev/zero | tr '\0' A; printf '"}'
done; echo ']}}'"#;
        let (bytes, images) = (bytes.to_string(), images.to_string());
        let server = bash(&[("CALL", call), ("BYTES", &bytes), ("IMAGES", &images)]);
        let server = server.limits(Limits::default().message_bytes(32 << 20)).connect().await.unwrap();
        let result = result(server.tools(), "act", json!({})).await;
        assert_eq!((result.is_error, result.parts.len()), (fault.is_some(), usize::from(fault.is_none())));
        assert_eq!(result.response, fault.unwrap_or_default(), "{bytes}");
    }
}
