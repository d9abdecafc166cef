//! Arrays and objects.

use serde::Serialize;
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple, SerializeTupleStruct,
    SerializeTupleVariant,
};

use super::Exotic;
use super::key::Key;
use super::members::Member;
use super::string::push_string;
use super::writer::Writer;

/// An array that is open.
pub(super) struct List<'a, 'w> {
    writer: &'a mut Writer<'w>,
    /// What closes it: the brace too of the variant that it is the value of.
    ends: &'static [u8],
}

/// An object that is open.
pub(super) struct Object<'a, 'w> {
    writer: &'a mut Writer<'w>,
    /// Where its own begin among the members.
    first: usize,
    /// Where the member begins whose key is written.
    start: usize,
    /// Behind the key.
    key_end: usize,
    is_sorted: bool,
    ends: &'static [u8],
}

/// Opens `{"Variant":`, of which there is nothing to put into order.
fn open_variant(writer: &mut Writer<'_>, variant: &str) {
    writer.depth += 1;
    writer.out.push(b'{');
    push_string(writer.out, variant);
    writer.out.push(b':');
}

/// Ends what is open, whose every part has a comma behind it.
#[inline]
fn close(writer: &mut Writer<'_>, ends: &[u8]) {
    if writer.out.last() == Some(&b',') {
        writer.out.pop();
    }
    writer.out.extend_from_slice(ends);
    writer.depth -= ends.len();
}

impl<'a, 'w> List<'a, 'w> {
    #[inline]
    pub(super) fn open(writer: &'a mut Writer<'w>) -> Self {
        writer.depth += 1;
        writer.out.push(b'[');
        Self { writer, ends: b"]" }
    }

    pub(super) fn open_variant(writer: &'a mut Writer<'w>, variant: &str) -> Self {
        open_variant(writer, variant);
        Self { ends: b"]}", ..Self::open(writer) }
    }

    #[inline]
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Exotic> {
        value.serialize(&mut *self.writer)?;
        self.writer.out.push(b',');
        Ok(())
    }

    #[inline]
    fn close(self) {
        close(self.writer, self.ends);
    }
}

impl<'a, 'w> Object<'a, 'w> {
    #[inline]
    pub(super) fn open(writer: &'a mut Writer<'w>) -> Self {
        writer.depth += 1;
        writer.out.push(b'{');
        let first = writer.members.len();
        Self { writer, first, start: 0, key_end: 0, is_sorted: true, ends: b"}" }
    }

    pub(super) fn open_variant(writer: &'a mut Writer<'w>, variant: &str) -> Self {
        open_variant(writer, variant);
        Self { ends: b"}}", ..Self::open(writer) }
    }

    #[inline]
    pub(super) fn member<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), Exotic> {
        self.start = self.writer.out.len();
        push_string(self.writer.out, key);
        self.colon();
        self.value(value)
    }

    /// Ends the key.
    #[inline]
    fn colon(&mut self) {
        self.key_end = self.writer.out.len() - 1;
        self.writer.out.push(b':');
    }

    /// Writes the value behind the key.
    #[inline]
    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Exotic> {
        let at = self.writer.out.len();
        value.serialize(&mut *self.writer)?;
        let is_null = self.writer.out.get(at) == Some(&b'n');
        self.settle(is_null);
        Ok(())
    }

    /// Keeps the member that was written, or leaves it out.
    fn settle(&mut self, is_null: bool) {
        let Self { writer, first, start, key_end, .. } = self;
        if writer.is_too_deep() {
            writer.out.push(b',');
        } else if is_null && writer.form.leaves_out_nulls {
            writer.out.truncate(*start);
        } else {
            writer.out.push(b',');
            if writer.form.sorts {
                let member = Member { start: *start, key_end: *key_end, end: writer.out.len() };
                self.is_sorted &= writer.members.add(*first, member, writer.out);
            }
        }
    }

    #[inline]
    pub(super) fn close(self) {
        let Self { writer, first, is_sorted, ends, .. } = self;
        if !is_sorted {
            writer.members.sort(first, writer.out);
        }
        writer.members.close(first);
        close(writer, ends);
    }
}

macro_rules! list {
    ($($part:ident::$add:ident),*) => {$(
        impl $part for List<'_, '_> {
            type Ok = ();
            type Error = Exotic;

            #[inline]
            fn $add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Exotic> {
                self.item(value)
            }

            #[inline]
            fn end(self) -> Result<(), Exotic> {
                self.close();
                Ok(())
            }
        }
    )*};
}
list!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

macro_rules! object {
    ($($part:ident),*) => {$(
        impl $part for Object<'_, '_> {
            type Ok = ();
            type Error = Exotic;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Exotic> {
                self.member(key, value)
            }

            #[inline]
            fn end(self) -> Result<(), Exotic> {
                self.close();
                Ok(())
            }
        }
    )*};
}
object!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for Object<'_, '_> {
    type Ok = ();
    type Error = Exotic;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Exotic> {
        self.start = self.writer.out.len();
        key.serialize(Key(self.writer.out))?;
        self.colon();
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Exotic> {
        self.value(value)
    }

    fn end(self) -> Result<(), Exotic> {
        self.close();
        Ok(())
    }
}
