//! From a value to text.

use serde::{Serialize, Serializer};

use super::Exotic;
use super::compound::{List, Object};
use super::members::Members;
use super::string::push_string;

/// Deeper than this, nothing is put into order.
const DEEPEST: usize = 128;

/// Writes one value. What has no order in itself is written by `serde_json`.
pub(super) struct Writer<'w> {
    pub(super) out: &'w mut Vec<u8>,
    pub(super) members: &'w mut Members,
    /// How many objects and arrays are open.
    pub(super) depth: usize,
    pub(super) form: Form,
}

/// What becomes of the members of objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Whether they are put into order.
    pub(super) sorts: bool,
    pub(super) leaves_out_nulls: bool,
}

impl Writer<'_> {
    #[inline]
    pub(super) const fn is_too_deep(&self) -> bool {
        self.depth > DEEPEST
    }

    #[inline]
    fn push(&mut self, text: &str) -> Result<(), Exotic> {
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Appends what `serde_json` makes of a value.
pub(super) fn push_as_it_is<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<(), Exotic> {
    serde_json::to_writer(out, value).map_err(|_| Exotic)
}

/// Appends a whole number. Many are of one digit.
macro_rules! whole {
    ($($serialize:ident: $type:ty),*) => {$(
        #[inline]
        fn $serialize(self, number: $type) -> Result<(), Exotic> {
            match u8::try_from(number) {
                Ok(digit @ 0..10) => self.out.push(b'0' + digit),
                _ => push_as_it_is(self.out, &number)?,
            }
            Ok(())
        }
    )*};
}

impl<'a, 'w> Serializer for &'a mut Writer<'w> {
    type Ok = ();
    type Error = Exotic;
    type SerializeSeq = List<'a, 'w>;
    type SerializeTuple = List<'a, 'w>;
    type SerializeTupleStruct = List<'a, 'w>;
    type SerializeTupleVariant = List<'a, 'w>;
    type SerializeMap = Object<'a, 'w>;
    type SerializeStruct = Object<'a, 'w>;
    type SerializeStructVariant = Object<'a, 'w>;

    whole!(
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128
    );

    #[inline]
    fn serialize_bool(self, value: bool) -> Result<(), Exotic> {
        self.push(if value { "true" } else { "false" })
    }

    fn serialize_f32(self, number: f32) -> Result<(), Exotic> {
        push_as_it_is(self.out, &number)
    }

    fn serialize_f64(self, number: f64) -> Result<(), Exotic> {
        push_as_it_is(self.out, &number)
    }

    fn serialize_char(self, char: char) -> Result<(), Exotic> {
        self.serialize_str(char.encode_utf8(&mut [0; 4]))
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), Exotic> {
        push_string(self.out, text);
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Exotic> {
        push_as_it_is(self.out, bytes)
    }

    #[inline]
    fn serialize_none(self) -> Result<(), Exotic> {
        self.serialize_unit()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Exotic> {
        value.serialize(self)
    }

    #[inline]
    fn serialize_unit(self) -> Result<(), Exotic> {
        self.push("null")
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Exotic> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Exotic> {
        self.serialize_str(variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Exotic> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Exotic> {
        let mut object = Object::open(self);
        object.member(variant, value)?;
        object.close();
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List<'a, 'w>, Exotic> {
        Ok(List::open(self))
    }

    fn serialize_tuple(self, _: usize) -> Result<List<'a, 'w>, Exotic> {
        Ok(List::open(self))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<List<'a, 'w>, Exotic> {
        Ok(List::open(self))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<List<'a, 'w>, Exotic> {
        Ok(List::open_variant(self, variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Object<'a, 'w>, Exotic> {
        Ok(Object::open(self))
    }

    #[inline]
    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Object<'a, 'w>, Exotic> {
        // Text that `serde_json` would write as it stands, a raw value or a number, is none of its structs to others.
        if name.starts_with("$serde_json::") { Err(Exotic) } else { Ok(Object::open(self)) }
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Object<'a, 'w>, Exotic> {
        Ok(Object::open_variant(self, variant))
    }
}
