//! Any value that serde knows.

use proptest::prelude::*;
use serde::ser::{
    Error, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple, SerializeTupleStruct,
    SerializeTupleVariant,
};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// Names of fields; those that differ late, and some that have to be escaped.
const NAMES: [&str; 14] =
    ["", "a", "b", "c", "ab", "Z", "é", "level", "output", "question", "questions", "long enough", "\"q\"", "\\\n"];

#[derive(Clone, Debug)]
pub(super) enum Shape {
    None,
    Unit,
    UnitStruct,
    UnitVariant,
    Bool(bool),
    I64(i64),
    U8(u8),
    U64(u64),
    I128(i128),
    U128(u128),
    F32(f32),
    F64(f64),
    Char(char),
    Str(String),
    Shown(String),
    Bytes(Vec<u8>),
    Some(Box<Self>),
    Newtype(Box<Self>),
    NewtypeVariant(Box<Self>),
    Seq(Vec<Self>),
    Tuple(Vec<Self>),
    TupleStruct(Vec<Self>),
    TupleVariant(Vec<Self>),
    Map(Vec<(Self, Self)>),
    /// Fields by their names' numbers; a unit is skipped.
    Struct(Vec<(usize, Self)>),
    StructVariant(Vec<(usize, Self)>),
    Raw(Box<RawValue>),
    Fails,
}

fn name(at: usize) -> &'static str {
    NAMES[at % NAMES.len()]
}

impl Serialize for Shape {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => s.serialize_none(),
            Self::Unit => s.serialize_unit(),
            Self::UnitStruct => s.serialize_unit_struct("U"),
            Self::UnitVariant => s.serialize_unit_variant("E", 0, "unit\t"),
            Self::Bool(value) => s.serialize_bool(*value),
            Self::I64(value) => s.serialize_i64(*value),
            Self::U8(value) => s.serialize_u8(*value),
            Self::U64(value) => s.serialize_u64(*value),
            Self::I128(value) => s.serialize_i128(*value),
            Self::U128(value) => s.serialize_u128(*value),
            Self::F32(value) => s.serialize_f32(*value),
            Self::F64(value) => s.serialize_f64(*value),
            Self::Char(value) => s.serialize_char(*value),
            Self::Str(value) => s.serialize_str(value),
            Self::Shown(value) => s.collect_str(value),
            Self::Bytes(value) => s.serialize_bytes(value),
            Self::Some(value) => s.serialize_some(value),
            Self::Newtype(value) => s.serialize_newtype_struct("N", value),
            Self::NewtypeVariant(value) => s.serialize_newtype_variant("E", 1, "newtype", value),
            Self::Raw(value) => value.serialize(s),
            Self::Fails => Err(S::Error::custom("it would not")),
            _ => self.serialize_compound(s),
        }
    }
}

impl Shape {
    fn serialize_compound<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Seq(items) => {
                let mut seq = s.serialize_seq(None)?;
                items.iter().try_for_each(|item| seq.serialize_element(item))?;
                seq.end()
            }
            Self::Tuple(items) => {
                let mut tuple = s.serialize_tuple(items.len())?;
                items.iter().try_for_each(|item| tuple.serialize_element(item))?;
                tuple.end()
            }
            Self::TupleStruct(items) => {
                let mut tuple = s.serialize_tuple_struct("T", items.len())?;
                items.iter().try_for_each(|item| tuple.serialize_field(item))?;
                tuple.end()
            }
            Self::TupleVariant(items) => {
                let mut tuple = s.serialize_tuple_variant("E", 2, "tuple", items.len())?;
                items.iter().try_for_each(|item| tuple.serialize_field(item))?;
                tuple.end()
            }
            _ => self.serialize_object(s),
        }
    }

    fn serialize_object<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Map(members) => {
                let mut map = s.serialize_map(Some(members.len()))?;
                members.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
            Self::Struct(fields) => {
                let mut object = s.serialize_struct("S", fields.len())?;
                fields.iter().try_for_each(|(at, value)| match value {
                    Self::Unit => object.skip_field(name(*at)),
                    value => object.serialize_field(name(*at), value),
                })?;
                object.end()
            }
            Self::StructVariant(fields) => {
                let mut object = s.serialize_struct_variant("E", 3, "struct", fields.len())?;
                fields.iter().try_for_each(|(at, value)| object.serialize_field(name(*at), value))?;
                object.end()
            }
            _ => s.serialize_unit(),
        }
    }
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{0,3}", "[a-z ]{3,20}", any::<String>(), "[\\x00-\\x22\\\\é]{0,9}"]
}

fn leaves() -> impl Strategy<Value = Shape> {
    prop_oneof![
        4 => Just(Shape::None),
        1 => prop_oneof![Just(Shape::Unit), Just(Shape::UnitStruct), Just(Shape::UnitVariant)],
        1 => any::<bool>().prop_map(Shape::Bool),
        2 => prop_oneof![(-12..12_i64), any::<i64>()].prop_map(Shape::I64),
        1 => any::<u8>().prop_map(Shape::U8),
        1 => any::<u64>().prop_map(Shape::U64),
        1 => any::<i128>().prop_map(Shape::I128),
        1 => any::<u128>().prop_map(Shape::U128),
        1 => prop::num::f32::ANY.prop_map(Shape::F32),
        2 => prop::num::f64::ANY.prop_map(Shape::F64),
        1 => any::<char>().prop_map(Shape::Char),
        3 => texts().prop_map(Shape::Str),
        1 => texts().prop_map(Shape::Shown),
        1 => any::<Vec<u8>>().prop_map(Shape::Bytes),
    ]
}

/// What a map has for keys: text, and what becomes text, or is none.
fn keys() -> impl Strategy<Value = Shape> {
    let others =
        prop_oneof![Just(Shape::UnitVariant), any::<u64>().prop_map(Shape::U64), any::<char>().prop_map(Shape::Char)];
    prop_oneof![24 => texts().prop_map(Shape::Str), 4 => others, 1 => leaves()]
}

fn compounds(inner: impl Strategy<Value = Shape> + Clone + 'static) -> impl Strategy<Value = Shape> {
    let items = || prop::collection::vec(inner.clone(), 0..5);
    let fields = || prop::collection::vec((0..NAMES.len(), inner.clone()), 0..6);
    prop_oneof![
        inner.clone().prop_map(|shape| Shape::Some(Box::new(shape))),
        inner.clone().prop_map(|shape| Shape::Newtype(Box::new(shape))),
        inner.clone().prop_map(|shape| Shape::NewtypeVariant(Box::new(shape))),
        items().prop_map(Shape::Seq),
        items().prop_map(Shape::Tuple),
        items().prop_map(Shape::TupleStruct),
        items().prop_map(Shape::TupleVariant),
        prop::collection::vec((keys(), inner.clone()), 0..5).prop_map(Shape::Map),
        fields().prop_map(Shape::Struct),
        fields().prop_map(Shape::Struct),
        fields().prop_map(Shape::StructVariant),
    ]
}

fn odd() -> impl Strategy<Value = Shape> {
    let raw = RawValue::from_string(r#"{"y" : [null], "x":null , "w" : 1e400}"#.to_owned()).expect("it is JSON");
    prop_oneof![Just(Shape::Raw(raw)), Just(Shape::Fails)]
}

pub(super) fn shapes() -> impl Strategy<Value = Shape> {
    prop_oneof![60 => leaves(), 1 => odd()].prop_recursive(5, 40, 5, compounds)
}
