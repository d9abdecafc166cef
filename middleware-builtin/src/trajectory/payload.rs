//! A payload, live or recorded, on its way into a line.

use std::borrow::Cow;

use emitree_emitter::AnyEvent;
use serde_json::Value;

/// What an event carries.
#[derive(Clone, Copy)]
pub(super) enum Payload<'a> {
    Live(&'a dyn AnyEvent),
    Recorded(&'a str),
}

impl<'a> Payload<'a> {
    /// The JSON text, as it was serialised: the same live and from a recording.
    pub(super) fn text(self) -> Cow<'a, str> {
        match self {
            Self::Live(event) => Cow::Owned(Box::<str>::from(event.to_raw_json()).into()),
            Self::Recorded(text) => Cow::Borrowed(text),
        }
    }

    /// The JSON text with sorted keys: on one line, or on several where it is pretty.
    pub(super) fn sorted(self, leaves_out_nulls: bool, is_pretty: bool) -> String {
        let mut value = match self {
            Self::Live(event) => event.to_json(),
            Self::Recorded(text) => match serde_json::from_str(text) {
                Ok(value) => value,
                // Recorded by others, and nested deeper than is read.
                Err(_) => return text.to_owned(),
            },
        };
        if leaves_out_nulls {
            leave_out_nulls(&mut value);
        }
        // `serde_json` may keep the order of insertion: any crate of a build can switch that on.
        value.sort_all_objects();
        let text = if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        text.unwrap_or_default()
    }
}

/// Removes members of objects that are null; in arrays they have a place.
fn leave_out_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(leave_out_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(leave_out_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    #[derive(Serialize)]
    struct Row {
        question: &'static str,
        level: f32,
        none: Option<u8>,
        inner: (Option<u8>, Inner),
    }

    #[derive(Serialize)]
    struct Inner {
        b: Option<u8>,
        a: &'static [u8],
    }

    const ROW: Row = Row { question: "why?", level: 0.1, none: None, inner: (None, Inner { b: None, a: &[2, 1] }) };

    #[test]
    fn keys_are_sorted_and_nulls_go_but_not_from_arrays() {
        let live = Payload::Live(&ROW);
        assert_eq!(live.sorted(true, false), r#"{"inner":[null,{"a":[2,1]}],"level":0.1,"question":"why?"}"#);
        let all = r#"{"inner":[null,{"a":[2,1],"b":null}],"level":0.1,"none":null,"question":"why?"}"#;
        assert_eq!(live.sorted(false, false), all);
    }

    #[test]
    fn a_recording_shows_what_was_live() {
        let text = ROW.to_raw_json();
        for (nulls, pretty) in [(true, true), (true, false), (false, true), (false, false)] {
            let recorded = Payload::Recorded(text.get()).sorted(nulls, pretty);
            assert_eq!(recorded, Payload::Live(&ROW).sorted(nulls, pretty));
        }
    }
}
