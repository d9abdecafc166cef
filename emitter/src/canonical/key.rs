//! Keys of maps, which are text or become it.

use serde::ser::Impossible;
use serde::{Serialize, Serializer};

use super::Exotic;
use super::string::push_string;
use super::writer::push_as_it_is;

/// Writes a key, in quotes. What `serde_json` takes besides text and whole numbers is too seldom to be taken here.
pub(super) struct Key<'o>(pub(super) &'o mut Vec<u8>);

macro_rules! whole {
    ($($serialize:ident: $type:ty),*) => {$(
        fn $serialize(self, number: $type) -> Result<(), Exotic> {
            self.0.push(b'"');
            push_as_it_is(self.0, &number)?;
            self.0.push(b'"');
            Ok(())
        }
    )*};
}

macro_rules! none_of {
    ($($serialize:ident($($type:ty),*) -> $ok:ty;)*) => {$(
        fn $serialize(self, $(_: $type),*) -> Result<$ok, Exotic> {
            Err(Exotic)
        }
    )*};
}

impl Serializer for Key<'_> {
    type Ok = ();
    type Error = Exotic;
    type SerializeSeq = Impossible<(), Exotic>;
    type SerializeTuple = Impossible<(), Exotic>;
    type SerializeTupleStruct = Impossible<(), Exotic>;
    type SerializeTupleVariant = Impossible<(), Exotic>;
    type SerializeMap = Impossible<(), Exotic>;
    type SerializeStruct = Impossible<(), Exotic>;
    type SerializeStructVariant = Impossible<(), Exotic>;

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), Exotic> {
        push_string(self.0, text);
        Ok(())
    }

    fn serialize_char(self, char: char) -> Result<(), Exotic> {
        self.serialize_str(char.encode_utf8(&mut [0; 4]))
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Exotic> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Exotic> {
        value.serialize(self)
    }

    whole!(
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64
    );

    none_of! {
        serialize_bool(bool) -> ();
        serialize_f32(f32) -> ();
        serialize_f64(f64) -> ();
        serialize_bytes(&[u8]) -> ();
        serialize_none() -> ();
        serialize_unit() -> ();
        serialize_unit_struct(&'static str) -> ();
        serialize_seq(Option<usize>) -> Self::SerializeSeq;
        serialize_tuple(usize) -> Self::SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant;
        serialize_map(Option<usize>) -> Self::SerializeMap;
        serialize_struct(&'static str, usize) -> Self::SerializeStruct;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant;
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<(), Exotic> {
        Err(Exotic)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Exotic> {
        Err(Exotic)
    }
}
