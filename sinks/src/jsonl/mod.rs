//! One JSON record per line: written by [`Jsonl`] and [`JsonlFile`], read back by [`read_jsonl`].

mod error;
mod file;
mod locked_file;
mod read;
mod tail;
mod writer;

pub use self::error::JsonlError;
pub use self::file::{FlushPolicy, JsonlFile, JsonlOptions};
#[cfg(feature = "runs")]
pub(crate) use self::read::quote;
pub use self::read::{ReadError, Records, read_jsonl};
pub use self::tail::Tail;
pub use self::writer::Jsonl;
