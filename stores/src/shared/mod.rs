//! The parts that databases have in common.

mod checksum;
mod posts;
mod values;

pub(crate) use checksum::{Text, crc, fault, head_of, readable, status_of};
pub(crate) use posts::{PostRow, waiting};
pub(crate) use values::{ESCAPE, decode, encode, from_json, to_json};
