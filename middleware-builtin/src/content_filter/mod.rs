//! A filter for unwanted content: [`ContentFilter`].

mod layer;
mod rules;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::Namespace;
use emitree_runtime::{GuardOptions, JsonRun, Phase, Result, Stack};
use serde::Serialize;
use serde_json::Value;

use self::layer::{AnswerLayer, ContentFilterGuard, Finding};
use self::rules::ContentRules;
use crate::shared::built_in::{built_in, debug_as, default_as_new};
use crate::shared::own_events::{OwnEvents, own_events};

pub use self::rules::FilterError;
pub use crate::shared::run_part::RunPart;

const NAME: &str = "content_filter";

/// The context key under which [`ContentFilter::mark`] stores its list of findings.
pub const MARK: &str = "content_filter";

/// A middleware that checks a run's input and output with words, regexes and async classifiers. A finding denies the
/// run, replaces its output, or marks the run.
///
/// A filter accepts runs of any type and reads their values as JSON. It checks every string, but not object keys or
/// numbers. Words match as whole words, regardless of case. For each text, one pass checks all words and regexes. A
/// text without a match is passed to the classifiers, one after the other. The first finding decides.
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
/// No words, regexes or classifiers. Inputs and outputs are checked. A finding denies the run with the message `the
/// content is not allowed`. A check of an input or output has 10 seconds, with all its classifiers. Runs below are checked
/// only with [`for_tree`](emitree_runtime::for_tree) or [`for_nested`](emitree_runtime::for_nested).
///
/// # Limits
///
/// At most 10,000 words and regexes of at most 1,024 bytes each. The pattern of a word is 30 bytes longer than the
/// escaped word. Regexes match in linear time. Text in a run's events is not checked.
///
/// # Failures
///
/// The filter is a [`Guard`](emitree_runtime::Guard) and fails closed: if a classifier fails or panics, or if a check
/// takes too long, the run is denied, and the failure is the cause of the denial. A run with a value that is nested too
/// deeply to be checked is denied too. If a classifier returns control flow other than a time-out, the run ends with it.
/// With [`mark`](ContentFilter::mark), the filter fails open: the run emits
/// [`would_deny`](emitree_runtime::WouldDeny) instead, and the value passes.
///
/// # Its own events
///
/// `middleware.content_filter.filtered`, a [`Filtered`], with the label, the position and the action, but not the text.
#[derive(Clone)]
pub struct ContentFilter(Arc<ContentFilterInner>);

/// The options of a filter, shared by its clones.
#[derive(Clone)]
struct ContentFilterInner {
    rules: ContentRules,
    action: FilterAction,
    timeout: Duration,
    inputs: bool,
    outputs: bool,
    own_events: OwnEvents,
}

/// The effect of a finding.
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

/// Unwanted content was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Filtered {
    /// The part of the run: input or output.
    pub part: RunPart,
    /// The position in the input or output, as a JSON pointer (RFC 6901).
    pub at: String,
    /// The label of the word or regex, or the label that the classifier returned.
    pub label: String,
    /// The action taken: `deny`, `answer` or `mark`.
    pub action: &'static str,
}

own_events! { Filtered = "filtered" { at, label }; }

impl ContentFilter {
    /// Creates a filter without words, regexes or classifiers.
    #[must_use]
    pub fn new() -> Self {
        let action = FilterAction::Deny("the content is not allowed".to_owned());
        Self(Arc::new(ContentFilterInner {
            rules: ContentRules::default(),
            action,
            timeout: Duration::from_secs(10),
            inputs: true,
            outputs: true,
            own_events: OwnEvents::new(Namespace::new("middleware.content_filter")),
        }))
    }

    fn inner_mut(&mut self) -> &mut ContentFilterInner {
        Arc::make_mut(&mut self.0)
    }

    /// Adds words under a label. A word matches only as a whole word, regardless of case.
    ///
    /// # Errors
    ///
    /// Returns an error if a word is empty, if its pattern has more than 1,024 bytes, if all patterns together become
    /// too large, or if there are more than 10,000 words and regexes.
    pub fn words(mut self, label: &str, words: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, FilterError> {
        let words = words.into_iter().map(|word| rules::word_pattern(word.as_ref()));
        self.inner_mut().rules.add(label, words)?;
        Ok(self)
    }

    /// Adds a regex, in the syntax of the crate `regex`, under a label.
    ///
    /// # Errors
    ///
    /// Returns an error if the regex is invalid, empty or longer than 1,024 bytes, if all patterns together become too
    /// large, or if there are more than 10,000 words and regexes.
    pub fn regex(mut self, label: &str, regex: &str) -> Result<Self, FilterError> {
        self.inner_mut().rules.add(label, [regex.to_owned()])?;
        Ok(self)
    }

    /// Adds an async function that is called with each text that no word or regex matches. The function returns a label
    /// if it objects to the text, and `None` to let the text pass.
    #[must_use]
    pub fn classifier<F, Fut>(mut self, classify: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<String>>> + Send + 'static,
    {
        self.inner_mut().rules.classifier(Arc::new(move |text| Box::pin(classify(text))));
        self
    }

    /// Sets the time that a check of an input or output may take, by tokio's clock. All classifiers share this time.
    /// Default: 10 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.inner_mut().timeout = timeout;
        self
    }

    /// Denies a run with this message if unwanted content is found.
    #[must_use]
    pub fn deny(mut self, message: impl Into<String>) -> Self {
        self.inner_mut().action = FilterAction::Deny(message.into());
        self
    }

    /// Answers with this value if unwanted content is found. An input with a finding does not reach the work; an output
    /// with a finding is replaced. The run fails if the answer does not fit the run's output type.
    #[must_use]
    pub fn answer(mut self, answer: impl Into<Value>) -> Self {
        self.inner_mut().action = FilterAction::Answer(answer.into());
        self
    }

    /// Lets unwanted content pass and marks the run: an object with `part`, `at` and `label` is appended to the list
    /// under [`MARK`] in the run's context. Later events of the run carry that context. If other code has set this key
    /// to a value that is not a list, that value becomes the first item.
    #[must_use]
    pub fn mark(mut self) -> Self {
        self.inner_mut().action = FilterAction::Mark;
        self
    }

    /// Sets whether inputs are checked. Default: yes.
    #[must_use]
    pub fn inputs(mut self, is_checked: bool) -> Self {
        self.inner_mut().inputs = is_checked;
        self
    }

    /// Sets whether outputs are checked. Default: yes.
    #[must_use]
    pub fn outputs(mut self, is_checked: bool) -> Self {
        self.inner_mut().outputs = is_checked;
        self
    }

    fn stack(&self) -> Stack<JsonRun> {
        let filter = Arc::clone(&self.0);
        let finding = Finding::default();
        let mut options = GuardOptions::new();
        // Only classifiers wait: without them, the filter needs no timer.
        if filter.rules.has_classifiers() {
            options = options.timeout(filter.timeout);
        }
        let mut stack = Stack::builder();
        match &filter.action {
            FilterAction::Deny(_) => {}
            // Outside of the guard, so that it receives the guard's denials (M2).
            FilterAction::Answer(answer) => {
                let answer = AnswerLayer { answer: answer.clone(), finding: finding.clone() };
                stack = stack.layer_in(Phase::Guard, answer);
            }
            // A filter that only marks must not stop a run, even if it fails (M5).
            FilterAction::Mark => options = options.evaluate_only(),
        }
        stack.guard_with(options, ContentFilterGuard { filter, finding }).build()
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
            .field("timeout", &self.timeout)
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .finish()
    }
}

debug_as!(ContentFilter, |this| this.0);
