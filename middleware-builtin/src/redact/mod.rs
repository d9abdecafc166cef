//! Redaction of secrets and personal data: [`Redact`].

mod chunk_filter;
mod event_payloads;
mod events;
mod layer;
mod pseudonyms;
mod recorded_text;
mod redactor;
mod restore;
mod sink;
mod strategy;

use std::borrow::Cow;
use std::sync::Arc;

use emitree_emitter::{Namespace, Sink};
use emitree_runtime::{Description, Layer, Middleware, Next, Op, Result, RunContext};
use emitree_secrets::{Kind, PatternError, Scanner};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::event_payloads::PayloadRedaction;
use self::layer::RedactLayer;
use self::redactor::RedactOptions;
use self::strategy::HashKey;
use crate::shared::built_in::{built_in, debug_as, default_as_new};
use crate::shared::inspected::chunked_events::{ChunkedEvents, ChunkedText};
use crate::shared::own_events::OwnEvents;

pub use self::events::Redacted;
pub use self::pseudonyms::Pseudonyms;
pub use self::sink::RedactSink;
pub use self::strategy::Strategy;
pub use crate::shared::run_part::RunPart;

/// Finds secrets and personal data, and replaces them.
///
/// A redaction that is bound to a run redacts:
///
/// 1. the context that the run begins with, and each value that is set on it later, by any code;
/// 2. the input: at `start`, before other listeners receive it, and again before the work receives it;
/// 3. the run's own events: text (`String`), JSON (`Value`), events that are [declared as
///    data](emitree_emitter::EmitterBuilder::declares_data), such as all events of models, tools and agents,
///    [registered types](Self::event), and [text in chunks](Self::text_of), even if a secret is split over several
///    events. The text that a run emits in pieces and returns as a whole, such as the streamed reply of a model, is
///    redacted before, so that listeners and callers receive the same text;
/// 4. the output: before `success`, and again after the listeners of `success`;
/// 5. the message, the causes and the details of the error that the run fails with, including the reason of an abort.
///    The error keeps its kind: a denial remains a denial. The data of an interrupt or of a request for a retry is not
///    changed, because its receiver needs it.
///
/// A redaction accepts runs of any type, and reads and writes their values as JSON. Strings are redacted; keys and
/// numbers are not. If the type of a value does not accept the replacement, the run fails instead of continuing with
/// the secret. `Redact` is also a [`Layer`] for work that takes and returns a `String`.
///
/// ```
/// use emitree_middleware::Redact;
/// use emitree_middleware::redact::Strategy;
/// use emitree_secrets::Kind;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(format!("you said: {text}")) });
///
/// let redact = Redact::new().pattern("ticket", r"\bTCK-[0-9]{6}\b")?.strategy_for(Kind::Card, Strategy::Mask);
/// let said = echo.run("TCK-123456, paid with 4111 1111 1111 1111".into()).middleware(redact).await?;
/// assert_eq!(said, "you said: [REDACTED:ticket], paid with ********1111");
///
/// let pseudonyms = Redact::new().strategy(Strategy::Pseudonym).restore_output();
/// let said = echo.run("maria@mailbox.org".into()).middleware(pseudonyms).await?;
/// assert_eq!(said, "you said: maria@mailbox.org"); // the work has seen a pseudonym
/// # Ok(())
/// # }
/// ```
///
/// # Defaults
///
/// All kinds of [`Kind::all`] are redacted in all parts with [`Strategy::Redact`], and no pseudonyms are restored. Use
/// [`for_tree`](emitree_runtime::for_tree) to redact nested runs too.
///
/// # Pseudonyms
///
/// A pseudonym, such as `[EMAIL_gkpfbanmople]`, is derived from the secret and the [key](Self::hash_key), so it stands
/// for the same secret in all runs. By default, the secrets of a run are kept in its extensions, and are dropped with
/// the run. The runs below it use the same mapping. [`pseudonyms`](Self::pseudonyms) keeps a mapping over several runs.
/// At most 10,000 secrets of a mapping get a pseudonym; further secrets are replaced as with [`Strategy::Redact`]. Two
/// secrets of a mapping never share a pseudonym: if their hashes begin alike, the later one gets a longer pseudonym.
///
/// With [`restore_output`](Self::restore_output), the outermost run that shares the pseudonyms restores its output:
/// each pseudonym that stands for a secret from the run's context, input or events is replaced with that secret. The
/// run's caller and the listeners of its `success` and `finish` receive the restored output. The output is restored by
/// the first listener of `success`: layers, such as a cache, and output functions see the pseudonyms. A pseudonym that is
/// not in the mapping stays as it is.
///
/// The history of a session contains pseudonyms. Without a `hash_key`, each `Redact::new()` has a random key, and a
/// later `Redact` or process gives the same secret another pseudonym. For stored sessions, set the same `hash_key` in
/// all processes. The mapping is not stored: after a restart, a pseudonym in a loaded session is restored only once a
/// run with the mapping has received its secret again.
///
/// # What it does not see
///
/// A redaction does not see keys and numbers in JSON, the text of panics, text that your code prints, or events that
/// are neither text nor JSON nor declared as data, unless their type is [registered](Self::event). A [`sink`](Self::sink) also redacts
/// records of events of other types, because it reads each payload as JSON. The page [what redaction cannot
/// see](https://github.com/emitree/emitree/blob/main/docs/what-redaction-cannot-see.md) lists the known gaps, and a
/// remedy for each.
///
/// An event of type `&'static str` that contains a secret becomes `[REDACTED]`. JSON that is nested deeper than 127
/// levels is not searched and does not pass.
///
/// # Failures
///
/// A value that cannot be redacted does not pass: the run or the emit fails, or a context value is replaced as a whole.
/// [`pattern`](Self::pattern) returns an error if the pattern is invalid.
///
/// # Its own events
///
/// `middleware.redact.redacted`, a [`Redacted`]: the kind, number and part of the secrets, but not the secrets.
#[derive(Clone)]
pub struct Redact(Arc<Redaction>);

#[derive(Clone)]
struct Redaction {
    options: RedactOptions,
    chunked: Vec<Arc<dyn ChunkedEvents>>,
    payloads: Vec<PayloadRedaction>,
    own_events: OwnEvents,
}

impl Redact {
    /// Creates a `Redact` that replaces secrets of [all kinds](Kind::all) in all [parts](RunPart).
    #[must_use]
    pub fn new() -> Self {
        let own_events = OwnEvents::new(Namespace::new("middleware.redact"));
        Self(Arc::new(Redaction {
            options: RedactOptions::new(),
            chunked: Vec::new(),
            payloads: Vec::new(),
            own_events,
        }))
    }

    fn set(mut self, change: impl FnOnce(&mut RedactOptions)) -> Self {
        change(&mut Arc::make_mut(&mut self.0).options);
        self
    }

    /// Redacts only these kinds, and your own patterns that are added after this call.
    #[must_use]
    pub fn only(self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        self.set(|options| options.scanner = Scanner::only(kinds))
    }

    /// Excludes these kinds from the redaction.
    #[must_use]
    pub fn except(self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        self.set(|options| options.scanner = options.scanner.except(&kinds))
    }

    /// Adds your own pattern, in the syntax of the crate `regex`. Its first group is the secret; without a group, the
    /// whole match is the secret.
    ///
    /// # Errors
    ///
    /// Returns an error if the pattern is not a valid regex, matches the empty text, may match more than 640 bytes, or
    /// is too large when compiled.
    pub fn pattern(self, name: &str, regex: &str) -> Result<Self, PatternError> {
        let scanner = self.0.options.scanner.pattern(name, regex)?;
        Ok(self.set(|options| options.scanner = scanner))
    }

    /// Sets how secrets are replaced. Default: [`Strategy::Redact`].
    #[must_use]
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.set(|options| {
            options.strategy = strategy;
            options.draw_key(strategy);
        })
    }

    /// Sets how secrets of one kind are replaced.
    #[must_use]
    pub fn strategy_for(self, kind: Kind, strategy: Strategy) -> Self {
        self.set(|options| {
            options.by_kind.push((kind, strategy));
            options.draw_key(strategy);
        })
    }

    /// Sets the key of [`Strategy::Hash`] and [`Strategy::Pseudonym`], so that all processes with this key create the
    /// same hashes and pseudonyms. Default: a random key for each `Redact::new()`, which its clones share.
    #[must_use]
    pub fn hash_key(self, key: impl AsRef<[u8]>) -> Self {
        self.set(|options| options.key = Some(HashKey::new(key.as_ref())))
    }

    /// Sets the parts of a run that are redacted. Default: all.
    #[must_use]
    pub fn parts(self, parts: impl IntoIterator<Item = RunPart>) -> Self {
        self.set(|options| options.parts = parts.into_iter().collect())
    }

    /// Replaces the pseudonyms in the output with their secrets; see [pseudonyms](Self#pseudonyms).
    #[must_use]
    pub fn restore_output(self) -> Self {
        self.set(|options| options.restores = true)
    }

    /// Uses this mapping of pseudonyms in each run, and keeps it over the runs. Default: a new mapping for each run and
    /// the runs below it. See [pseudonyms](Self#pseudonyms).
    ///
    /// ```
    /// use emitree_middleware::Redact;
    /// use emitree_middleware::redact::{Pseudonyms, Strategy};
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) });
    /// let conversation = Pseudonyms::new();
    /// let redact = Redact::new().strategy(Strategy::Pseudonym).pseudonyms(&conversation).restore_output();
    /// let pseudonym = redact.text("maria@mailbox.org").into_owned();
    ///
    /// let said = echo.run(format!("eve@mailbox.org asks {pseudonym}")).middleware(redact).await?;
    /// assert_eq!(said, "eve@mailbox.org asks maria@mailbox.org");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pseudonyms(self, pseudonyms: &Pseudonyms) -> Self {
        self.set(|options| options.pseudonyms = Some(pseudonyms.clone()))
    }

    /// Redacts text that arrives in chunks: each of the run's events with this name carries one chunk.
    ///
    /// Each event passes with the text that is released from its own chunk and from earlier chunks; this text may be
    /// empty. Text that may be the beginning of a secret is held back: usually the last word, and at most
    /// [`Scanner::window`] bytes. After the beginning of a private key, all text is held back up to the end of the key,
    /// but at most 16 KiB. At the end of the run, before `success` or `error`, text that is still held back is emitted
    /// in one more event, a copy of the last event. The texts of all events, concatenated, are the redacted text. If an
    /// attempt is discarded, the text that is held back is dropped.
    ///
    /// Build the output of the run from your own text, which is redacted as output, and never from what listeners left
    /// in an event: the text that is held back at that time would be missing. [What redaction cannot
    /// see](https://github.com/emitree/emitree/blob/main/docs/what-redaction-cannot-see.md) has a program.
    ///
    /// All events with this name in one run form one text. For several concurrent texts, use several names or runs.
    ///
    /// # Errors
    ///
    /// Binding fails if the run [filters the text](emitree_emitter::EmitterBuilder::declares_text) of this event itself,
    /// as a model does with `new_token`: it is redacted without `text_of`, and in the reply too.
    #[must_use]
    pub fn text_of<T: Clone + Serialize + Send + Sync + 'static>(
        mut self,
        name: impl Into<String>,
        text: impl Fn(&mut T) -> &mut String + Send + Sync + 'static,
    ) -> Self {
        let stream = ChunkedText { name: name.into(), text: Arc::new(text) };
        Arc::make_mut(&mut self.0).chunked.push(Arc::new(stream));
        self
    }

    /// Redacts all strings in the run's events with this name and payload type. Text (`String`, `&'static str`,
    /// `Box<str>`, `Arc<str>`, `Cow<'static, str>`), JSON (`Value`), events that are [declared as
    /// data](emitree_emitter::EmitterBuilder::declares_data) and the library's own events are redacted without this
    /// call.
    ///
    /// If the type does not accept the replacement, the emit fails; observers receive that event unredacted.
    ///
    /// ```
    /// use emitree_middleware::Redact;
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Sent { to: String }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let send = runnable_fn("send", |(): (), ctx: RunContext| async move {
    ///     ctx.emitter().emit("sent", &mut Sent { to: "maria@mailbox.org".to_owned() }).await?;
    ///     Ok(())
    /// });
    /// let run = send.run(()).middleware(Redact::new().event::<Sent>("sent"));
    /// run.observe("sent", |sent: &Sent, _| assert_eq!(sent.to, "[REDACTED:email]")).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn event<T: Serialize + DeserializeOwned + Send + Sync + 'static>(mut self, name: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.0).payloads.push(event_payloads::of_type::<T>(name.into()));
        self
    }

    /// Returns a sink that redacts the records that it receives, and then passes them to `inner`. Register text in
    /// chunks with [`RedactSink::text_at`].
    ///
    /// ```
    /// use emitree_emitter::Emitter;
    /// use emitree_middleware::Redact;
    /// use emitree_sinks::Memory;
    ///
    /// let (emitter, memory) = (Emitter::new(), Memory::new());
    /// let handle = emitter.pipe_to(Redact::new().sink(memory.clone()))?;
    /// emitter.emit_now("sent", &mut "to maria@mailbox.org")?;
    /// handle.flush_blocking().complete()?;
    /// let records = memory.records();
    /// assert_eq!(records[0].as_event().unwrap().payload.get(), "\"to [REDACTED:email]\"");
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn sink<S: Sink>(&self, inner: S) -> RedactSink<S> {
        RedactSink::new(self.0.options.clone(), inner)
    }

    /// Returns a text with its secrets replaced. Its pseudonyms are kept only in a mapping that was set with
    /// [`pseudonyms`](Self::pseudonyms).
    #[must_use]
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let options = &self.0.options;
        let names = options.pseudonyms.clone().unwrap_or_default();
        options.scanner.replace(text, |kind, secret| options.replacement(kind, secret, &names))
    }
}

default_as_new!(Redact);

built_in!(Redact, |this| this.0.own_events);

impl Middleware for Redact {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        RedactLayer::bind(self, ctx)
    }

    fn name(&self) -> &str {
        "redact"
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_layers(|| RedactLayer::described(self))
    }
}

/// Redacts the input and the output of work that takes and returns a `String`.
impl<O: Op<In = String, Out = String>> Layer<O> for Redact {
    async fn call(&self, input: &String, _: &RunContext, next: Next<'_, O>) -> Result<String> {
        let redacted = self.text(input);
        let output = match &redacted {
            Cow::Borrowed(_) => next.run(input).await?,
            Cow::Owned(redacted) => next.run(redacted).await?,
        };
        Ok(self.text(&output).into_owned())
    }

    fn name(&self) -> &str {
        "redact"
    }
}

debug_as!(Redact, |this| this.0.options);
