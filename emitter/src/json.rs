//! Conversion of values to JSON with a limit on nesting.
//!
//! By default, `serde_json` reads at most 127 levels, but it writes any number of levels. Serializing a value that is
//! nested thousands of levels deep may overflow the stack. Here, the depth is checked before each level of recursion.

use std::cell::{Cell, RefCell};
use std::fmt::Display;

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::Value;

/// The maximum number of levels to which arrays and objects may be nested. By default, this is also the limit of
/// `serde_json` for reading.
pub const MAX_DEPTH: usize = 127;

/// Converts a value to JSON.
///
/// # Errors
///
/// Returns an error if the value cannot be serialized, or is nested deeper than [`MAX_DEPTH`].
pub fn to_value<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Value> {
    to_value_noting(value).map(|(value, _)| value)
}

/// Converts a value to JSON, and also returns `true` if nothing was lost. NaN and infinities are lost: they become
/// `null`.
///
/// # Errors
///
/// Returns an error in the same cases as [`to_value`].
pub fn to_value_noting<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<(Value, bool)> {
    let loss = LossFlag::default();
    let value = value.serialize(Bounded { inner: serde_json::value::Serializer, depth: 0, item: 0, loss: &loss })?;
    Ok((value, !loss.is_lossy.get()))
}

/// Converts a value to JSON that is read back as data, so nothing may be lost.
///
/// # Errors
///
/// Returns an error in the same cases as [`to_value`], and if the value contains a NaN or an infinity. The error has the
/// path of that number, such as `prices[2]`.
pub fn to_value_exact<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Value> {
    let loss = LossFlag { path: Some(RefCell::default()), ..LossFlag::default() };
    let converted = value.serialize(Bounded { inner: serde_json::value::Serializer, depth: 0, item: 0, loss: &loss });
    converted.map_err(|error| match loss.path {
        Some(path) if loss.is_lossy.get() => serde::ser::Error::custom(format_args!(
            "the number at `{}` is NaN or infinite, and JSON has no such numbers: use a finite number or an `Option`",
            shown(&path.into_inner())
        )),
        _ => error,
    })
}

/// Calls `f` with a wrapper of the value. Serializing the wrapper fails if the value is nested deeper than
/// [`MAX_DEPTH`].
pub(crate) fn bounded<T: Serialize + ?Sized, R>(value: &T, f: impl FnOnce(&AtDepth<'_, '_, T>) -> R) -> R {
    f(&AtDepth { value, depth: 0, loss: &LossFlag::default() })
}

/// Checks how deep a value is nested, without recursion.
///
/// # Errors
///
/// Returns an error if the value is nested deeper than [`MAX_DEPTH`].
pub fn check_depth(value: &Value) -> serde_json::Result<()> {
    // A list replaces recursion, which could overflow the stack for a deep value.
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        let is_nested = matches!(value, Value::Array(_) | Value::Object(_));
        if is_nested && depth > MAX_DEPTH {
            return Err(too_deep());
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => open.extend(members.values().map(|member| (member, depth + 1))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Ok(())
}

fn too_deep<E: serde::ser::Error>() -> E {
    E::custom(format_args!("the value is nested deeper than {MAX_DEPTH} levels"))
}

/// What becomes of a number that JSON does not have.
#[derive(Default)]
pub(crate) struct LossFlag {
    /// Set when a number is replaced by `null`, or is an error.
    is_lossy: Cell<bool>,
    /// The path of the value that is being serialized, if such a number is an error. An error leaves the path as it is.
    path: Option<RefCell<Vec<Step>>>,
}

/// A step of a path.
enum Step {
    Item(usize),
    Field(String),
}

/// Returns a path as `serde_path_to_error` writes it; the path of the whole value is `.`.
fn shown(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Item(item) => text += &format!("[{item}]"),
            Step::Field(name) if text.is_empty() => text += name,
            Step::Field(name) => text += &format!(".{name}"),
        }
    }
    if text.is_empty() { ".".to_owned() } else { text }
}

impl LossFlag {
    fn enter(&self, step: impl FnOnce() -> Step) {
        if let Some(path) = &self.path {
            path.borrow_mut().push(step());
        }
    }

    /// Leaves a part of the value, unless it has failed.
    fn leave<T, E>(&self, part: Result<T, E>) -> Result<T, E> {
        if let Some(path) = &self.path
            && part.is_ok()
        {
            path.borrow_mut().pop();
        }
        part
    }
}

/// A serializer that counts its depth.
#[derive(Clone, Copy)]
struct Bounded<'n, S> {
    inner: S,
    depth: usize,
    /// The number of items of an array that have been serialized.
    item: usize,
    loss: &'n LossFlag,
}

/// A value, and the depth at which it is serialized.
pub(crate) struct AtDepth<'n, 't, T: ?Sized> {
    value: &'t T,
    depth: usize,
    loss: &'n LossFlag,
}

impl<T: Serialize + ?Sized> Serialize for AtDepth<'_, '_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Bounded { inner: serializer, depth: self.depth, item: 0, loss: self.loss })
    }
}

impl<'n, S> Bounded<'n, S> {
    const fn at<'t, T: ?Sized>(&self, value: &'t T) -> AtDepth<'n, 't, T> {
        AtDepth { value, depth: self.depth, loss: self.loss }
    }

    /// Goes one level down, or returns an error if that level is too deep.
    fn open<I, E: serde::ser::Error>(self, open: impl FnOnce(S) -> Result<I, E>) -> Result<Bounded<'n, I>, E> {
        let depth = self.depth + 1;
        let loss = self.loss;
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        Ok(Bounded { inner: open(self.inner)?, depth, item: 0, loss })
    }

    fn note_float<E: serde::ser::Error>(&self, is_finite: bool) -> Result<(), E> {
        if is_finite {
            return Ok(());
        }
        self.loss.is_lossy.set(true);
        match self.loss.path {
            Some(_) => Err(E::custom("a NaN or an infinity")),
            None => Ok(()),
        }
    }
}

// Methods of scalar values: they add no level, and the calls are passed on.
macro_rules! passed_on {
    ($($method:ident($($name:ident: $type:ty),*);)*) => {$(
        fn $method(self, $($name: $type),*) -> Result<S::Ok, S::Error> {
            self.inner.$method($($name),*)
        }
    )*};
}

// Methods that begin an array or an object: they go one level down.
macro_rules! opened {
    ($($method:ident($($name:ident: $type:ty),*) -> $compound:ident;)*) => {$(
        fn $method(self, $($name: $type),*) -> Result<Self::$compound, S::Error> {
            self.open(|inner| inner.$method($($name),*))
        }
    )*};
}

impl<'n, S: Serializer> Serializer for Bounded<'n, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Bounded<'n, S::SerializeSeq>;
    type SerializeTuple = Bounded<'n, S::SerializeTuple>;
    type SerializeTupleStruct = Bounded<'n, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Bounded<'n, S::SerializeTupleVariant>;
    type SerializeMap = Bounded<'n, S::SerializeMap>;
    type SerializeStruct = Bounded<'n, S::SerializeStruct>;
    type SerializeStructVariant = Bounded<'n, S::SerializeStructVariant>;

    passed_on! {
        serialize_bool(value: bool);
        serialize_i8(value: i8);
        serialize_i16(value: i16);
        serialize_i32(value: i32);
        serialize_i64(value: i64);
        serialize_i128(value: i128);
        serialize_u8(value: u8);
        serialize_u16(value: u16);
        serialize_u32(value: u32);
        serialize_u64(value: u64);
        serialize_u128(value: u128);
        serialize_char(value: char);
        serialize_str(value: &str);
        serialize_bytes(value: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    opened! {
        serialize_seq(len: Option<usize>) -> SerializeSeq;
        serialize_tuple(len: usize) -> SerializeTuple;
        serialize_tuple_struct(name: &'static str, len: usize) -> SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, len: usize) -> SerializeTupleVariant;
        serialize_map(len: Option<usize>) -> SerializeMap;
        serialize_struct(name: &'static str, len: usize) -> SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, len: usize) -> SerializeStructVariant;
    }

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        self.note_float(value.is_finite())?;
        // `serde_json` writes the `f32` 0.1 as `0.1`. Converted to `f64`, it would have more digits.
        let shortest = if value.is_finite() { value.to_string().parse() } else { Ok(f64::from(value)) };
        self.inner.serialize_f64(shortest.unwrap_or_else(|_| f64::from(value)))
    }

    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        self.note_float(value.is_finite())?;
        self.inner.serialize_f64(value)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        let value = self.at(value);
        self.inner.serialize_some(&value)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        let value = self.at(value);
        self.inner.serialize_newtype_struct(name, &value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let Bounded { inner, depth, loss, .. } = self.open(Ok::<S, S::Error>)?;
        loss.enter(|| Step::Field(variant.to_owned()));
        loss.leave(inner.serialize_newtype_variant(name, index, variant, &AtDepth { value, depth, loss }))
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

// The parts of arrays and objects, each serialized at the depth of its container.
macro_rules! compound {
    ($($trait:ident: $method:ident($($name:ident: $type:ty)?);)*) => {$(
        impl<C: $trait> $trait for Bounded<'_, C> {
            type Ok = C::Ok;
            type Error = C::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, $($name: $type,)? value: &T) -> Result<(), C::Error> {
                let item = self.item;
                self.item += 1;
                self.loss.enter(|| step(item, [$($name)?]));
                let value = self.at(value);
                let part = self.inner.$method($($name,)? &value);
                self.loss.leave(part)
            }

            fn end(self) -> Result<C::Ok, C::Error> {
                self.inner.end()
            }
        }
    )*};
}

/// Returns the step to a field, or to an item without a name.
fn step<const N: usize>(item: usize, name: [&'static str; N]) -> Step {
    name.first().map_or(Step::Item(item), |name| Step::Field((*name).to_owned()))
}

compound! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeStruct: serialize_field(key: &'static str);
    SerializeStructVariant: serialize_field(key: &'static str);
}

impl<C: SerializeMap> SerializeMap for Bounded<'_, C> {
    type Ok = C::Ok;
    type Error = C::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), C::Error> {
        self.loss.enter(|| match serde_json::to_value(key) {
            Ok(Value::String(key)) => Step::Field(key),
            key => Step::Field(key.map_or_else(|_| "?".to_owned(), |key| key.to_string())),
        });
        self.inner.serialize_key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
        let value = self.at(value);
        let part = self.inner.serialize_value(&value);
        self.loss.leave(part)
    }

    fn end(self) -> Result<C::Ok, C::Error> {
        self.inner.end()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({"a": inner}) })
    }

    /// Dropping a nested value recurses, too, so the test takes it apart in a loop.
    fn take_apart(mut value: Value) {
        while let Some(inner) = match &mut value {
            Value::Array(items) => items.pop(),
            Value::Object(members) => members.remove("a"),
            _ => None,
        } {
            value = inner;
        }
    }

    #[test]
    fn a_value_nested_deeper_than_127_levels_is_an_error_before_any_recursion() {
        for (levels, fits) in [(0, true), (127, true), (128, false)] {
            let value = nested(levels);
            assert_eq!(to_value(&value).is_ok(), fits, "{levels}");
            assert_eq!(check_depth(&value).is_ok(), fits, "{levels}");
            assert_eq!(bounded(&value, |value| to_raw_value(value)).is_ok(), fits, "{levels}");
            assert_eq!(serde_json::from_str::<Value>(&value.to_string()).is_ok(), fits, "{levels}");
        }
        let mut deep = Value::Null;
        for _ in 0..100_000 {
            deep = Value::Array(vec![deep]);
        }
        let text = bounded(&deep, |deep| to_raw_value(deep));
        for error in [to_value(&deep).err(), check_depth(&deep).err(), text.err()] {
            assert_eq!(error.expect("too deep").to_string(), "the value is nested deeper than 127 levels");
        }
        take_apart(deep);
    }

    #[test]
    fn values_are_serialized_as_by_serde_json_and_the_loss_of_nan_is_reported() {
        #[derive(serde::Serialize)]
        enum Sample {
            Unit,
            New(Option<f64>),
            Tuple(u8, &'static str),
            Struct { a: char, b: () },
        }
        let values =
            (vec![Sample::Unit, Sample::New(Some(1.5)), Sample::Tuple(1, "x")], Sample::Struct { a: 'é', b: () });
        assert_eq!(to_value(&values).ok(), serde_json::to_value(&values).ok());
        let text = bounded(&values, |values| to_raw_value(values)).expect("JSON");
        assert_eq!(text.get(), serde_json::to_string(&values).expect("JSON"));
        let raw = serde_json::value::RawValue::from_string(" [ 1 ] ".to_owned()).expect("JSON");
        assert_eq!(bounded(&raw, |raw| to_raw_value(raw)).expect("JSON").get(), raw.get());
        let raw = serde_json::value::RawValue::from_string("[1]".to_owned()).expect("JSON");
        assert_eq!(to_value(&raw).ok(), Some(json!([1])));
        assert_eq!(to_value_exact(&values).ok(), serde_json::to_value(&values).ok());
        for (value, is_all) in [(Sample::New(Some(f64::NAN)), false), (Sample::New(None), true)] {
            assert_eq!(to_value_noting(&[&value]).ok(), Some((json!([{"New": null}]), is_all)));
        }
    }

    #[test]
    fn a_number_that_json_cannot_represent_is_an_error_with_its_path() {
        #[derive(serde::Serialize)]
        struct Price {
            amounts: Vec<f64>,
            by_name: BTreeMap<u8, Option<f32>>,
        }
        #[derive(serde::Serialize)]
        enum Sample {
            New(Price),
        }
        let price =
            |amount, other| Price { amounts: vec![1.0, amount], by_name: BTreeMap::from([(1, Some(0.5)), (7, other)]) };
        let path = |value: &dyn Fn() -> serde_json::Result<Value>| value().unwrap_err().to_string();
        let message = |path: &str| {
            format!(
                "the number at `{path}` is NaN or infinite, and JSON has no such numbers: use a finite number or an `Option`"
            )
        };
        assert_eq!(path(&|| to_value_exact(&f64::NAN)), message("."));
        assert_eq!(path(&|| to_value_exact(&(1, f32::INFINITY))), message("[1]"));
        assert_eq!(path(&|| to_value_exact(&[price(1.0, None), price(f64::NAN, None)])), message("[1].amounts[1]"));
        assert_eq!(path(&|| to_value_exact(&Sample::New(price(1.0, Some(f32::NAN))))), message("New.by_name.7"));
        let fits = price(1.0, None);
        assert_eq!(to_value_exact(&fits).ok(), serde_json::to_value(&fits).ok());
    }
}
