//! Content that is not wanted: [`ContentFilter`].

mod layer;
mod rules;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{JsonRun, Phase, Result, Stack};
use serde::Serialize;
use serde_json::Value;

use self::layer::ContentFilterLayer;
use self::rules::ContentRules;
use crate::shared::built_in::{built_in, debug_as, default_as_new};
use crate::shared::own_events::{OwnEvents, own_events};

pub use self::rules::FilterError;
pub use crate::shared::inspected_place::Place;

const NAME: &str = "content_filter";

/// The key of a run's context under which a filter that [marks](ContentFilter::mark) says what it found.
pub const MARK: &str = "content_filter";

/// Looks for words, regexes, or whatever an async classifier objects to, in what a run takes and gives; and denies it,
/// answers in its place, or marks the run.
///
/// It works on runs of any type, through JSON: each string of input and output is looked at, keys and numbers are left.
/// Words are whole words in any case; all words and regexes are looked for in one pass, classifiers are asked one after
/// the other for what passes those. The first that objects decides.
///
/// ```
/// use emitree_middleware::ContentFilter;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) });
///
/// let polite = ContentFilter::new().words("rude", ["darn", "heck"])?.deny("please say that in other words");
/// let error = echo.run("Oh, DARN!".into()).middleware(polite).await.unwrap_err();
/// assert_eq!(error.explain(), "denied by content_filter: please say that in other words\n  label: \"rude\"");
///
/// let answering = ContentFilter::new()
///     .classifier(|text| async move { Ok(text.ends_with('?').then(|| "question".to_owned())) })
///     .answer("I do not take questions");
/// assert_eq!(echo.run("why?".into()).middleware(answering).await?, "I do not take questions");
/// # Ok(())
/// # }
/// ```
///
/// # Defaults
///
/// Nothing is looked for; input and output are looked at; what is found is denied, as `the content is not allowed`;
/// each answer of a classifier has 10 seconds. Runs below are looked at with
/// [`for_tree`](emitree_runtime::for_tree).
///
/// # Limits
///
/// At most 10,000 words and regexes of at most 1,024 bytes. Regexes take linear time. A text that comes bit by bit in
/// events is not looked at: the output is.
///
/// # Failures
///
/// It guards, and fails closed: a classifier that fails, panics or takes too long is a denial, with that as its cause.
/// One that only marks observes, and fails open: that is logged.
///
/// # Its own events
///
/// `middleware.content_filter.filtered`, a [`Filtered`]: the label, where, and what was done, but not the text.
#[derive(Clone)]
pub struct ContentFilter(Arc<ContentFilterInner>);

#[derive(Clone)]
struct ContentFilterInner {
    rules: ContentRules,
    action: FilterAction,
    inputs: bool,
    outputs: bool,
    own_events: OwnEvents,
}

/// What is done with what is found.
#[derive(Clone, Debug)]
enum FilterAction {
    Deny(String),
    Answer(Value),
    Mark,
}

impl FilterAction {
    const fn name(&self) -> &'static str {
        match self {
            Self::Deny(_) => "deny",
            Self::Answer(_) => "answer",
            Self::Mark => "mark",
        }
    }
}

/// Something was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Filtered {
    /// Where.
    pub place: Place,
    /// Where there: a JSON pointer (RFC 6901).
    pub at: String,
    /// What the word, the regex or the classifier calls it.
    pub label: String,
    /// What was done: `deny`, `answer` or `mark`.
    pub action: &'static str,
}

own_events! { Filtered = "filtered" { at, label }; }

impl ContentFilter {
    /// One that looks for nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let rules = ContentRules::new(Duration::from_secs(10));
        let action = FilterAction::Deny("the content is not allowed".to_owned());
        Self(Arc::new(ContentFilterInner {
            rules,
            action,
            inputs: true,
            outputs: true,
            own_events: OwnEvents::new("middleware.content_filter"),
        }))
    }

    fn inner_mut(&mut self) -> &mut ContentFilterInner {
        Arc::make_mut(&mut self.0)
    }

    /// Objects to whole words, in any case, and calls them by a label.
    ///
    /// # Errors
    ///
    /// If one is empty or has more than 1,024 bytes, or there are too many.
    pub fn words(mut self, label: &str, words: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, FilterError> {
        let words = words.into_iter().map(|word| rules::word_pattern(word.as_ref()));
        self.inner_mut().rules.add(label, words)?;
        Ok(self)
    }

    /// Objects to what a regex matches, in the syntax of the crate `regex`, and calls it by a label.
    ///
    /// # Errors
    ///
    /// If it is no regex, is empty or has more than 1,024 bytes, becomes too large, or there are too many.
    pub fn regex(mut self, label: &str, regex: &str) -> Result<Self, FilterError> {
        self.inner_mut().rules.add(label, [regex.to_owned()])?;
        Ok(self)
    }

    /// Asks an async function about each text that passes words and regexes: it gives a label for what it objects to.
    #[must_use]
    pub fn classifier<F, Fut>(mut self, classify: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<String>>> + Send + 'static,
    {
        self.inner_mut().rules.classifier(Arc::new(move |text| Box::pin(classify(text))));
        self
    }

    /// Gives each answer of a classifier so long, by tokio's clock. Default: 10 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.inner_mut().rules.timeout = timeout;
        self
    }

    /// Denies what is found, with this message.
    #[must_use]
    pub fn deny(mut self, message: impl Into<String>) -> Self {
        self.inner_mut().action = FilterAction::Deny(message.into());
        self
    }

    /// Answers in place of what is found: an input does not reach the work, an output is replaced. It has to fit the type
    /// of the output; otherwise the run fails.
    #[must_use]
    pub fn answer(mut self, answer: impl Into<Value>) -> Self {
        self.inner_mut().action = FilterAction::Answer(answer.into());
        self
    }

    /// Lets what is found pass, and marks the run: an object with `place`, `at` and `label` is added to the list under
    /// [`MARK`] in its context, which its later events carry.
    #[must_use]
    pub fn mark(mut self) -> Self {
        self.inner_mut().action = FilterAction::Mark;
        self
    }

    /// Whether it looks at inputs. Default: on.
    #[must_use]
    pub fn inputs(mut self, is_checked: bool) -> Self {
        self.inner_mut().inputs = is_checked;
        self
    }

    /// Whether it looks at outputs. Default: on.
    #[must_use]
    pub fn outputs(mut self, is_checked: bool) -> Self {
        self.inner_mut().outputs = is_checked;
        self
    }

    fn stack(&self) -> Stack<JsonRun> {
        Stack::builder().layer_in(Phase::Guard, ContentFilterLayer(Arc::clone(&self.0))).build()
    }
}

default_as_new!(ContentFilter);

built_in!(ContentFilter, |this| this.0.own_events, NAME, this.stack());

impl fmt::Debug for ContentFilterInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ContentFilter");
        debug
            .field("rules", &self.rules)
            .field("action", &self.action.name())
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .finish()
    }
}

debug_as!(ContentFilter, |this| this.0);
