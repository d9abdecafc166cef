//! O6: limits of attributes.

use emitree_otlp::{Dialect, Fact, Form, Limits, Otlp, Row};
use serde_json::{Value, json};

use crate::collector::attributes;
use crate::records::{TOP, exported, finish, record};

/// Exports a model call with this many messages of this many bytes.
async fn chat(dialect: Dialect, count: usize, bytes: usize, limits: Limits) -> (Value, u32) {
    let message = |number: usize| {
        let content = format!("{number} {}", "ä".repeat(bytes / 2));
        json!({"role": "user", "parts": [{"type": "text", "content": content}]})
    };
    let messages: Vec<Value> = (0..count).map(message).collect();
    let records = [
        record(1, "ChatModel", TOP, "run.start", &json!({"input": {"messages": messages}, "output": null})),
        record(1, "ChatModel", TOP, "start", &json!({"provider": "openai"})),
        finish(2, "ChatModel", TOP, 1),
    ];
    let set = |otlp: Otlp| otlp.dialect(dialect).content(true).limits(limits);
    let spans = exported(records, set).await;
    (json!(attributes(&spans[0].attributes)), spans[0].dropped_attributes_count)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_is_too_long_keeps_its_newest_messages_and_stays_json() {
    let (facts, _) = chat(Dialect::GenAi, 40, 1000, Limits::default().value_bytes(5000)).await;
    let text = facts["gen_ai.input.messages"].as_str().expect("a text");
    assert!(text.len() <= 5000, "{}", text.len());
    let messages: Vec<Value> = serde_json::from_str(text).expect("JSON");
    let first = messages[0]["parts"][0]["content"].as_str().expect("a text");
    assert_eq!((messages.len(), first.starts_with("36 ")), (4, true), "{first}");
    let cut = facts["emitree.cut"][0].as_str().expect("a text");
    assert!(cut.starts_with("gen_ai.input.messages (4") && cut.ends_with(" bytes)"), "{cut}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_message_that_is_too_long_is_cut_and_stays_json() {
    for limit in [40, 100, 1000, 9999] {
        let (facts, _) = chat(Dialect::GenAi, 1, 10_000, Limits::default().value_bytes(limit)).await;
        let text = facts["gen_ai.input.messages"].as_str().expect("a text");
        assert!(text.len() <= limit, "{limit}: {text}");
        serde_json::from_str::<Value>(text).expect("JSON");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flat_messages_leave_out_the_oldest_ones_and_are_numbered_from_0() {
    let (facts, dropped) = chat(Dialect::OpenInference, 100, 10, Limits::default()).await;
    let facts = facts.as_object().expect("attributes");
    assert_eq!((facts.len(), dropped), (128, 82), "{facts:?}");
    assert_eq!(facts["llm.input_messages.0.message.content"].as_str().map(|text| &text[..3]), Some("41 "));
    assert_eq!(facts["llm.input_messages.58.message.content"].as_str().map(|text| &text[..3]), Some("99 "));
    assert_eq!(facts["emitree.cut"], json!(["llm.input_messages (41 of 100)"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn required_attributes_are_never_left_out() {
    for limits in [Limits::default().attributes(0), Limits::default().span_bytes(0)] {
        let (facts, dropped) = chat(Dialect::OpenInference, 100, 1000, limits).await;
        let names: Vec<_> = facts.as_object().expect("attributes").keys().cloned().collect();
        let required = ["emitree.cut", "emitree.outcome", "llm.model_name", "llm.system", "openinference.span.kind"];
        assert_eq!(names, required);
        assert!(dropped >= 200, "{dropped}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_values_of_a_span_have_at_most_the_bytes_of_a_span() {
    let (facts, _) = chat(Dialect::OpenInference, 20, 30_000, Limits::default()).await;
    let bytes: usize = facts.as_object().expect("attributes").values().map(|value| value.to_string().len()).sum();
    assert!((200 << 10..300 << 10).contains(&bytes), "{bytes}");
    assert_eq!(facts["emitree.cut"][0], "llm.input_messages (13 of 20)");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cut_there_is_no_word_of_it() {
    let (facts, dropped) = chat(Dialect::OpenInference, 3, 10, Limits::default()).await;
    assert_eq!((facts.get("emitree.cut"), dropped), (None, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_and_the_status_have_limits_too() {
    let long = "x".repeat(5000);
    let retry = || record(2, "Tool", TOP, "retry", &json!({"retry": 1, "error": {"message": long}}));
    let failed = json!({"error": {"message": long, "kind": "failed"}});
    let end = json!({"outcome": {"status": "failed"}, "duration_ns": 1});
    let records = [
        retry(),
        retry(),
        retry(),
        record(3, "Tool", TOP, "run.error", &failed),
        record(3, "Tool", TOP, "run.finish", &end),
    ];
    let limits = Limits::default().value_bytes(1000).span_bytes(2500);
    let spans = exported(records, |otlp| otlp.content(true).limits(limits)).await;
    let sizes: Vec<_> =
        spans[0].events.iter().map(|event| (event.attributes.len(), event.dropped_attributes_count)).collect();
    assert_eq!(sizes, [(2, 0), (2, 0), (1, 1), (1, 1)]);
    assert_eq!(spans[0].status.as_ref().map(|status| status.message.len()), Some(1000));
}

/// A row of the user may give any value to an attribute.
#[tokio::test(flavor = "multi_thread")]
async fn lists_and_objects_that_are_too_long_are_cut_and_keep_their_shape() {
    let text = "x".repeat(400);
    let list = vec![text.as_str(); 20];
    let mixed = json!([list, 7]);
    for (input, form, is_list) in [
        (json!(list), Form::Plain, true),
        (json!({"texts": list}), Form::Plain, false),
        (mixed, Form::Plain, false),
        (json!(["x".repeat(8000)]), Form::First, false),
    ] {
        let row = Row::new("Retriever", Fact::Input, "retriever.input", "").form(form);
        let started = record(1, "Retriever", TOP, "run.start", &json!({"input": input, "output": null}));
        let limits = Limits::default().value_bytes(5000);
        let set = |otlp: Otlp| otlp.content(true).limits(limits).row(row);
        let spans = exported([started, finish(2, "Retriever", TOP, 1)], set).await;
        let facts = attributes(&spans[0].attributes);
        let value = &facts["retriever.input"];
        if is_list {
            assert_eq!(value.as_array().map(Vec::len), Some(12), "12 texts of 400 bytes fit");
        } else {
            let text = value.as_str().expect("a text");
            assert!(text.len() <= 5000 + "…".len(), "{}", text.len());
            assert!(form == Form::First || serde_json::from_str::<Value>(text).is_ok(), "{text}");
        }
        let cut = facts["emitree.cut"][0].as_str().expect("a text");
        assert!(cut.starts_with("retriever.input (8"), "{cut}");
    }
}
