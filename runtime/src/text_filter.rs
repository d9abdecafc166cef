//! Filters for text that a run emits and returns in pieces.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Result, RunContext};

/// A filter for one text that arrives in pieces, such as the streamed answer of a language model. It may change the
/// text, and may hold a part of it back until more text has arrived.
pub trait TextFilter: Send {
    /// Takes a piece of the text, and returns the text that passes now.
    ///
    /// # Errors
    ///
    /// Return an error to refuse the text.
    fn push(&mut self, text: &str) -> Result<String>;

    /// Ends the text, and returns the text that was held back.
    ///
    /// # Errors
    ///
    /// Return an error to refuse the text.
    fn finish(&mut self) -> Result<String>;
}

/// A function that makes the filter of one text.
type MakeFilter = Arc<dyn Fn(&str) -> Box<dyn TextFilter> + Send + Sync>;

/// The filters of one run, in the order in which they were added. It is an own extension of the run.
#[derive(Default)]
struct TextFilters(Mutex<Vec<MakeFilter>>);

impl RunContext {
    /// Adds a filter for the texts that this run emits in pieces. The function makes the filter of one text. It receives
    /// the name of the events with the text, for reports.
    ///
    /// A runnable that emits text in pieces passes each text through [`text_filter`](Self::text_filter).
    pub fn filter_text(&self, make: impl Fn(&str) -> Box<dyn TextFilter> + Send + Sync + 'static) {
        self.own_extension_or_default::<TextFilters>().0.lock().push(Arc::new(make));
    }

    /// Returns a filter for one text that the run emits in events of this name, or `None` if the run has no filters. If
    /// it has several, the text passes through all of them, in the order in which they were added.
    ///
    /// Emit the pieces that the filter returns, and build the output of the run from the same pieces: then the text
    /// that listeners receive and the text that the caller receives are equal.
    ///
    /// ```
    /// use emitree_runtime::{Result, RunContext, Runnable, TextFilter, runnable_fn};
    ///
    /// /// Holds a word back until it ends.
    /// struct Words(String);
    ///
    /// impl TextFilter for Words {
    ///     fn push(&mut self, text: &str) -> Result<String> {
    ///         self.0 += text;
    ///         let end = self.0.rfind(' ').map_or(0, |at| at + 1);
    ///         Ok(self.0.drain(..end).collect())
    ///     }
    ///
    ///     fn finish(&mut self) -> Result<String> {
    ///         Ok(std::mem::take(&mut self.0))
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let speak = runnable_fn("speak", |(): (), ctx: RunContext| async move {
    ///     let mut said = Vec::new();
    ///     let mut filter = ctx.text_filter("word").expect("the run has a filter");
    ///     for piece in ["one t", "wo thr", "ee"] {
    ///         said.push(filter.push(piece)?);
    ///     }
    ///     said.push(filter.finish()?);
    ///     for piece in &mut said {
    ///         ctx.emitter().emit("word", piece).await?;
    ///     }
    ///     Ok(said)
    /// });
    /// let said = speak.run(()).middleware(|ctx: &RunContext| {
    ///     ctx.filter_text(|_| Box::new(Words(String::new())));
    ///     Ok(())
    /// });
    /// assert_eq!(said.await?, ["one ", "two ", "", "three"]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn text_filter(&self, name: &str) -> Option<Box<dyn TextFilter>> {
        // Call the functions without the lock: they are user code.
        let makes = self.own_extension::<TextFilters>()?.0.lock().clone();
        Some(Box::new(TextFilterChain(makes.iter().map(|make| make(name)).collect())))
    }
}

/// The filters of one text.
struct TextFilterChain(Vec<Box<dyn TextFilter>>);

impl TextFilter for TextFilterChain {
    fn push(&mut self, text: &str) -> Result<String> {
        self.0.iter_mut().try_fold(text.to_owned(), |text, filter| filter.push(&text))
    }

    fn finish(&mut self) -> Result<String> {
        // The text that a filter held back passes through the filters after it, before these end as well.
        self.0.iter_mut().try_fold(String::new(), |rest, filter| Ok(filter.push(&rest)? + &filter.finish()?))
    }
}
