//! Pages that come back, and pages that read slowly.

use axum::http::{Method, StatusCode};
use emitree_agent::{Reply, ScriptedModel, tool_fn};
use emitree_runtime::RunContext;
use emitree_web::Chat;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::support::{Events, Page, chat, check, events, page, question, shown};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A chat whose tool waits for a message.
fn waiting() -> (Chat, mpsc::UnboundedSender<()>) {
    let (go, wait) = mpsc::unbounded_channel();
    let wait = std::sync::Arc::new(tokio::sync::Mutex::new(wait));
    let waits = tool_fn("wait", "Waits", move |_: Nothing, ctx: RunContext| {
        let wait = std::sync::Arc::clone(&wait);
        async move {
            ctx.emitter().emit("progress", &mut json!({"percent": 50})).await?;
            wait.lock().await.recv().await;
            Ok("waited")
        }
    });
    let script = ScriptedModel::new("test").call("wait", json!({})).reply(Reply::text("It is over.").in_pieces(2));
    (chat(script, |agent| agent.tool(waits.unwrap())).keep_running(), go)
}

#[tokio::test]
async fn a_page_that_is_loaded_again_reads_the_message_from_its_start() {
    let (chat, go) = waiting();
    let page = page(&chat);
    let mut first = Events::of(page.post("/chat", question("/chat", "t", "Hi")).await);
    let (_, start) = first.until("start").await;
    first.until("tool-input-available").await;
    drop(first);
    let again = page.send(Method::GET, "/chat/t/stream", "").await;
    go.send(()).unwrap();
    let again = events(again).await;
    check("/chat", &again);
    assert_eq!((&again[0], shown(&again).as_str()), (&start, "It is over."));
    // The steps are kept for a minute.
    let late = events(page.send(Method::GET, "/chat/t/stream", "").await).await;
    assert_eq!(late.len(), again.len());
}

#[tokio::test]
async fn ag_ui_goes_on_behind_the_last_event() {
    let (chat, go) = waiting();
    let page = page(&chat);
    let response = page.post("/agent", question("/agent", "t", "Hi")).await;
    go.send(()).unwrap();
    let mut whole = Vec::new();
    let mut stream = Events::of(response);
    while let Some(event) = stream.next().await {
        whole.push(event);
    }
    for (at, (id, _)) in whole.iter().enumerate() {
        let rest = events(page.read_behind("/agent/t/events", id).await).await;
        let expected: Vec<_> = whole[at + 1..].iter().map(|(_, event)| event.clone()).collect();
        // Pieces of a text are joined for a page that comes later.
        assert_eq!(shown(&rest), shown(&expected), "behind {id}");
        assert_eq!(rest.last(), expected.last());
    }
    let response = page.read_behind("/agent/t/events", "x").await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_second_message_while_a_run_is_under_way_is_refused() {
    let (chat, go) = waiting();
    let page = page(&chat);
    let mut first = Events::of(page.post("/agent", question("/agent", "t", "Hi")).await);
    first.until("TOOL_CALL_END").await;
    for path in ["/agent", "/chat"] {
        assert_eq!(page.post(path, question(path, "t", "And?")).await.status(), StatusCode::CONFLICT);
    }
    go.send(()).unwrap();
    first.until("RUN_FINISHED").await;
}

#[tokio::test]
async fn events_that_the_program_shows_reach_the_page() {
    for (path, kind) in [("/agent", "CUSTOM"), ("/chat", "data-emitree-progress")] {
        let (chat, go) = waiting();
        let page = page(&chat.show("**.progress").unwrap());
        go.send(()).unwrap();
        let events = page.ask(path, "t", "Hi").await;
        check(path, &events);
        let shown = events.iter().find(|event| event["type"] == kind).unwrap_or_else(|| panic!("{events:#?}"));
        match path {
            "/agent" => assert_eq!(
                (&shown["name"], &shown["value"]["percent"]),
                (&json!("emitree.tool.wait.progress"), &json!(50))
            ),
            _ => assert_eq!(shown["data"]["value"]["percent"], 50),
        }
    }
}

#[tokio::test]
async fn two_pages_of_two_threads_get_nothing_of_each_other() {
    let script = ScriptedModel::by("test", |request| {
        let text = request.messages.last().map(|message| message.text()).unwrap_or_default();
        Reply::text(format!("You said {text}.")).in_pieces(1)
    });
    let chat = chat(script, |agent| agent).keep_running();
    let page = page(&chat);
    let asks = (0..20).map(|n| {
        let page = Page { app: page.app.clone(), user: "ada" };
        tokio::spawn(async move { page.ask("/chat", &format!("thread-{n}"), &format!("word{n}end")).await })
    });
    for (n, asked) in asks.collect::<Vec<_>>().into_iter().enumerate() {
        let events = asked.await.unwrap();
        assert_eq!(shown(&events), format!("You said word{n}end."));
        let all = format!("{events:?}");
        assert!((0..20).all(|other| other == n || !all.contains(&format!("word{other}end"))), "{all}");
    }
}

#[tokio::test]
async fn a_page_that_never_reads_delays_neither_the_run_nor_another_page() {
    let text = "x".repeat(3 * 1024 * 1024);
    let script = ScriptedModel::new("test").reply(Reply::text(text.clone()).in_pieces(64 * 1024));
    let page = page(&chat(script, |agent| agent).keep_running());
    let slow = page.post("/chat", question("/chat", "t", "Hi")).await;
    let read = events(page.send(Method::GET, "/chat/t/stream", "").await).await;
    check("/chat", &read);
    assert_eq!(shown(&read).len(), text.len());
    // It reads at last: the log was shortened meanwhile, and the page has the same text.
    let slow = events(slow).await;
    check("/chat", &slow);
    assert_eq!(shown(&slow).len(), text.len());
}
