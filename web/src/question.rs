//! Questions, as pages show them and answer them.

use emitree_middleware::approval::{self, Choice, Decision, Request};
use emitree_runtime::Interrupt;
use serde_json::{Value, json};

pub(crate) fn is_approval(question: &Interrupt) -> bool {
    question.kind == approval::INTERRUPT
}

/// Returns a text that asks the question.
pub(crate) fn text(question: &Interrupt) -> String {
    if let Ok(request) = Request::of_interrupt(question) {
        return format!("May `{}` begin with {}?", request.name, request.input);
    }
    let own = ["message", "question", "text"].into_iter().find_map(|key| question.data.get(key)?.as_str());
    own.unwrap_or(&question.kind).to_owned()
}

/// Returns a JSON Schema of the answers.
pub(crate) fn schema(question: &Interrupt) -> Value {
    if is_approval(question) {
        return schema_of_approval(question);
    }
    match (question.data.get("schema"), question.data.get("choices")) {
        (Some(schema @ Value::Object(_)), _) => schema.clone(),
        (_, Some(choices)) if question.data["several"] == true => json!({"type": "array", "items": {"enum": choices}}),
        (_, Some(choices)) => json!({"enum": choices}),
        _ => json!({}),
    }
}

fn schema_of_approval(question: &Interrupt) -> Value {
    let mut properties = json!({"approved": {"type": "boolean"}, "reason": {"type": "string"}});
    let may_edit = Request::of_interrupt(question).is_ok_and(|request| request.allowed.contains(&Choice::Edit));
    if may_edit {
        properties["editedArgs"] = json!({"description": "the arguments with which the call is made instead"});
    }
    json!({"type": "object", "properties": properties, "required": ["approved"]})
}

/// Reads the answer of a page: to an approval, `{"approved": …}` or a decision as JSON.
pub(crate) fn answer(question: &Interrupt, value: &Value) -> Value {
    match value.get("approved").and_then(Value::as_bool).filter(|_| is_approval(question)) {
        Some(true) => match value.get("editedArgs") {
            Some(edited) => json!({"edit": edited}),
            None => json!("approve"),
        },
        Some(false) => rejection(value["reason"].as_str()),
        None => value.clone(),
    }
}

/// Returns the answer that stands for no answer.
pub(crate) fn cancelled(question: &Interrupt) -> Value {
    if is_approval(question) { rejection(Some("cancelled")) } else { Value::Null }
}

fn rejection(reason: Option<&str>) -> Value {
    let reason = reason.filter(|reason| !reason.is_empty()).unwrap_or("rejected");
    serde_json::to_value(Decision::reject(reason)).unwrap_or_default()
}
