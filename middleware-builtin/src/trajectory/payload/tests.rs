//! What is written in canonical form is what text is brought into.

mod shape;

use proptest::prelude::*;
use serde::Serialize;
use serde_json::value::RawValue;

use self::shape::{Shape, shapes};
use super::*;

/// The model: as it is serialised, brought into canonical form as text.
fn model(event: &dyn AnyEvent, leave_out_nulls: bool) -> String {
    let mut out = Vec::new();
    event.write_json(&mut out);
    Canon::default().bring(&mut out, 0, leave_out_nulls);
    String::from_utf8(out).unwrap()
}

fn pushed(event: &dyn AnyEvent, leave_out_nulls: bool) -> String {
    let mut out = b"head, ".to_vec();
    Payload::Live(event).push_canonical(&mut out, &mut Former::default(), leave_out_nulls);
    String::from_utf8(out).unwrap().strip_prefix("head, ").unwrap().to_owned()
}

fn is_exotic(event: &dyn AnyEvent) -> bool {
    let mut out = b"head".to_vec();
    let written = event.write_canonical(&mut Canonical::new(), &mut out);
    assert!(written.is_ok() || out == b"head", "what is not written leaves nothing behind");
    written.is_err()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_payload_looks_the_same_written_in_order_or_brought_into_it(shape in shapes()) {
        for leave_out_nulls in [true, false] {
            prop_assert_eq!(pushed(&shape, leave_out_nulls), model(&shape, leave_out_nulls), "{:?}", shape);
        }
    }

    #[test]
    fn a_recording_shows_what_was_live(shape in shapes()) {
        let raw = shape.to_raw_json();
        let mut out = Vec::new();
        Payload::Recorded(raw.get()).push_canonical(&mut out, &mut Former::default(), true);
        prop_assert_eq!(String::from_utf8(out).unwrap(), pushed(&shape, true));
    }
}

#[test]
fn fields_are_sorted_and_nulls_go_but_not_from_arrays() {
    #[derive(Serialize)]
    struct Row {
        question: &'static str,
        level: u32,
        none: Option<u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        skipped: Option<u8>,
        ratio: f64,
        list: [Option<u8>; 2],
    }
    let row =
        Row { question: "a \"b\"\n", level: 12, none: None, skipped: None, ratio: f64::NAN, list: [None, Some(3)] };
    assert_eq!(pushed(&row, true), r#"{"level":12,"list":[null,3],"question":"a \"b\"\n"}"#);
    assert_eq!(pushed(&row, false), r#"{"level":12,"list":[null,3],"none":null,"question":"a \"b\"\n","ratio":null}"#);
    assert!(!is_exotic(&row));
}

#[test]
fn what_is_very_deep_stays_in_the_order_in_which_it_was_serialised() {
    for depth in [126, 127, 128, 129, 200] {
        let inner = || Box::new(Shape::Struct(vec![(3, Shape::Bool(true)), (2, Shape::Bool(true)), (1, Shape::None)]));
        let in_lists = (0..depth).fold(inner(), |inner, _| Box::new(Shape::Seq(vec![*inner])));
        let in_variants = (0..depth / 2).fold(inner(), |inner, _| Box::new(Shape::TupleVariant(vec![*inner])));
        for shape in [*in_lists, *in_variants] {
            assert_eq!(pushed(&shape, true), model(&shape, true), "{depth}");
        }
    }
}

#[test]
fn text_of_its_own_and_odd_keys_are_brought_into_order_as_text() {
    let raw = RawValue::from_string(r#"{ "b": 1, "a": null, "c": [ 1 ] }"#.to_owned()).unwrap();
    assert!(is_exotic(&raw));
    assert_eq!(pushed(&raw, true), r#"{"b":1,"c":[1]}"#);
    let odd = std::collections::HashMap::from([(true, 1)]);
    assert!(is_exotic(&odd));
    assert_eq!(pushed(&odd, true), r#"{"true":1}"#);
    let none = std::collections::HashMap::from([(vec![1], 1)]);
    assert!(is_exotic(&none));
    assert!(pushed(&none, true).ends_with("cannot be serialised: key must be a string>\""), "{}", pushed(&none, true));
}

#[test]
fn many_members_in_no_order_are_sorted_at_once() {
    let map: std::collections::HashMap<String, usize> = (0..100_000).map(|n| (format!("key {n}"), n)).collect();
    assert_eq!(pushed(&map, true), model(&map, true));
}
