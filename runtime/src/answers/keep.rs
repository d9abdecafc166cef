//! Questions that keep a value for the next start of their call (M8).

use std::fmt;

use emitree_emitter::json::{check_depth, to_value_exact};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Answers;
use crate::{Error, ErrorKind, Interrupt, Result, RunContext};

/// A value that a call has kept with its question: [`RunContext::ask_keeping`]. Code that stores questions takes it from
/// [`Interrupt::kept`], and puts it into the [own extensions](crate::Run::own_extension) of the run that makes the call
/// again, for [`RunContext::kept`].
///
/// Its `Debug` output leaves the value out, and its JSON is the value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeptValue(Value);

impl KeptValue {
    /// Creates a value.
    pub fn new(value: impl Into<Value>) -> Self {
        Self(value.into())
    }

    /// Returns the value.
    #[must_use]
    pub const fn get(&self) -> &Value {
        &self.0
    }
}

impl fmt::Debug for KeptValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptValue").finish_non_exhaustive()
    }
}

impl Answers {
    /// Marks this value, and clones that are made of it: the code that set it as an extension stores the values that
    /// calls keep with their questions ([`RunContext::ask_keeping`]).
    #[must_use]
    pub const fn keeping_values(mut self) -> Self {
        self.keeps_values = true;
        self
    }
}

impl Interrupt {
    /// Lets the call that asks keep a value, as [`RunContext::ask_keeping`] does, for code that reads answers itself
    /// ([`Answers::ask_as`]).
    #[must_use]
    pub fn keeping(mut self, value: KeptValue) -> Self {
        self.kept = Some(value);
        self
    }

    /// Returns the value that the call keeps, if [`RunContext::ask_keeping`] has asked the question.
    #[must_use]
    pub const fn kept(&self) -> Option<&KeptValue> {
        self.kept.as_ref()
    }

    /// Removes the value that the call keeps, and returns it.
    pub const fn take_kept(&mut self) -> Option<KeptValue> {
        self.kept.take()
    }
}

impl RunContext {
    /// Asks a question as [`ask`](Self::ask) does, and keeps a value for the next start of the call, such as the place at
    /// which another server goes on. [`kept`](Self::kept) returns it then.
    ///
    /// The call may start again although its work has [begun](Self::begin), and is not idempotent: the code that asks
    /// says so that it goes on where it was, and does nothing twice. The commit that begins the next start takes the
    /// value, so after a kill behind it the call may have had effects, as any other call.
    ///
    /// The value is stored with the call, and is in no question, event, record of a sink, span or fork. Call this on the
    /// run of a tool of an agent: the session of the agent stores the value.
    ///
    /// ```
    /// use emitree_runtime::{Answers, Interrupt, KeptValue, RunContext, Runnable, runnable_fn};
    /// use serde_json::json;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let book = runnable_fn("book", |(): (), ctx: RunContext| async move {
    ///     // The place is where the other server goes on.
    ///     let place = ctx.kept()?.unwrap_or_else(|| "offer 7".to_owned());
    ///     let is_right: bool = ctx.ask_keeping(Interrupt::new("confirm", json!({"price": 80})), &place)?;
    ///     Ok(format!("{place}: {is_right}"))
    /// });
    /// // An agent does this for the runs of its tools.
    /// let answers = Answers::new().keeping_values();
    /// let run = || book.run(()).key("order-17").extension(answers.clone());
    ///
    /// let error = run().await.unwrap_err();
    /// let question = error.interrupt().unwrap();
    /// assert_eq!(question.kept(), Some(&KeptValue::new("offer 7")));
    /// assert!(!serde_json::to_string(question).unwrap().contains("offer 7"));
    ///
    /// answers.answer(&question.id, json!(true));
    /// let kept = question.kept().cloned().unwrap();
    /// assert_eq!(run().own_extension(kept).await?, "offer 7: true");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Answers::ask`], except that only the work of runs above must not have begun. Returns an error if the
    /// value cannot be serialized, is nested too deeply, or if nobody stores it.
    pub fn ask_keeping<T: DeserializeOwned>(&self, question: Interrupt, value: &impl Serialize) -> Result<T> {
        let value = to_value_exact(value)?;
        check_depth(&value)?;
        self.ask(question.keeping(KeptValue(value)))
    }

    /// Returns the value that the call has kept with the question that interrupted it ([`ask_keeping`](Self::ask_keeping)),
    /// or `None` if it has not been interrupted so.
    ///
    /// # Errors
    ///
    /// Returns an error if the value does not fit `T`.
    pub fn kept<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let kept = self.own_extension::<KeptValue>();
        let value = kept.map(|kept| serde_path_to_error::deserialize(kept.get()));
        value.transpose().map_err(|error| {
            Error::of_kind(ErrorKind::Invalid, format!("the value that the call has kept has another type: {error}"))
        })
    }
}
