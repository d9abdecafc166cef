//! Inputs and outputs of runs: types that serde can serialize and deserialize.

use std::any::type_name;

use emitree_emitter::json::check_depth;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, ErrorKind, Result, Runnable};

/// An input or output of a run. Middleware can read and change it as JSON, so serde must be able to serialize and
/// deserialize it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the input or the output of a run",
    label = "inputs and outputs of runs are `Serialize` and `DeserializeOwned`",
    note = "they must also be `Send + Sync + 'static`",
    note = "derive both: `#[derive(serde::Serialize, serde::Deserialize)]`; skip a field that cannot be serialized with `#[serde(skip)]`"
)]
pub trait Data: Serialize + DeserializeOwned + Send + Sync + 'static {}

// Without this attribute, the compiler reports only `Deserialize` as missing, and lists types that implement it.
#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Data for T {}

/// The names of the Rust types of a run's runnable, input and output, as [`type_name`] returns them.
/// Returned by [`RunContext::types`](crate::RunContext::types).
///
/// A run that is created through an [`Arc`](std::sync::Arc), a reference, a [`BoxRunnable`](crate::BoxRunnable) or an
/// [`AnyRunnable`](crate::AnyRunnable) reports the type of the runnable inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunTypes {
    /// The type of the [`Runnable`].
    pub runnable: &'static str,
    /// The type of the runnable's input.
    pub input: &'static str,
    /// The type of the runnable's output.
    pub output: &'static str,
}

impl RunTypes {
    pub(crate) fn of<R: Runnable + ?Sized>() -> Self {
        Self { runnable: type_name::<R>(), input: type_name::<R::Input>(), output: type_name::<R::Output>() }
    }
}

/// Converts JSON into a `T`. If the JSON does not fit, the error shows which part of it does not fit.
pub(crate) fn fit<T: DeserializeOwned>(what: &str, value: &Value) -> Result<T> {
    // Deserializing recurses: a value that is nested too deeply would overflow the stack.
    check_depth(value)
        .map_err(|error| Error::of_kind(ErrorKind::Invalid, format!("the {what} cannot be deserialized: {error}")))?;
    serde_path_to_error::deserialize(value).map_err(|error| {
        let shown = elide(&sorted(value).to_string());
        let at = error.path().to_string();
        let fault = error.into_inner();
        let place = if at == "." { String::new() } else { format!(" at `{at}`") };
        let fault = elide(&fault.to_string());
        let message = format!("the {what} `{shown}` does not fit `{}`{place}: {fault}", type_name::<T>());
        Error::of_kind(ErrorKind::Invalid, message)
    })
}

/// Returns the value with sorted keys. Without the sort, their order would depend on `serde_json`'s feature
/// `preserve_order`, which any crate may enable.
pub(crate) fn sorted(value: &Value) -> Value {
    let mut value = value.clone();
    value.sort_all_objects();
    value
}

/// Replaces the middle of a long text with `…`. The end of a serde error is kept, because it states the expected type.
fn elide(text: &str) -> String {
    const HEAD: usize = 160;
    const TAIL: usize = 80;
    let start = |i: usize| text.char_indices().nth(i).map_or(text.len(), |(at, _)| at);
    match text.chars().count().checked_sub(HEAD + TAIL) {
        None | Some(0) => text.to_owned(),
        Some(left_out) => format!("{}…{}", &text[..start(HEAD)], &text[start(HEAD + left_out)..]),
    }
}
