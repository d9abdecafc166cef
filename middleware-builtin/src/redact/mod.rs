//! Secrets and personal data are taken out of what a run takes, gives and tells: [`Redact`].

mod chunk_filter;
mod event_payloads;
mod events;
mod layer;
mod recorded_text;
mod redactor;
mod restore;
mod sink;
mod strategy;
mod vault;

use std::borrow::Cow;
use std::sync::Arc;

use emitree_emitter::Sink;
use emitree_runtime::{Layer, LayerInfo, Middleware, Next, Op, Result, RunContext};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::event_payloads::PayloadRedaction;
use self::layer::RedactLayer;
use self::redactor::RedactOptions;
use self::strategy::HashKey;
use self::vault::Vault;
use crate::shared::built_in::{built_in, debug_as, default_as_new};
use crate::shared::own_events::OwnEvents;
use crate::shared::secrets::chunked_events::{ChunkedEvents, ChunkedText};
use crate::shared::secrets::{Kind, PatternError, Scanner};

pub use self::events::Redacted;
pub use self::sink::RedactSink;
pub use self::strategy::Strategy;
pub use crate::shared::inspected_place::Place;

/// Finds secrets and personal data, and puts something else in their place.
///
/// Bound to a run, it redacts, on the way:
///
/// 1. the context that the run has when it begins, and what is set on it later, by whomever;
/// 2. the input, before anybody else hears it at `start`, and again before the work gets it;
/// 3. the run's own events: those that are text (`String`) or JSON (`Value`), those whose [type was told](Self::event), and
///    the text of those that were [declared](Self::text_of), also when a secret is split over several of them;
/// 4. the output, before `success`, and what listeners of `success` have added to it;
/// 5. the message, the causes and the details of whatever the run fails with, an abort's reason too. The kind stays: a
///    denial is a denial still. What an interrupt or a request for a retry carries is data that somebody needs, and is left.
///
/// It works on runs of any type through JSON: strings are looked at, keys and numbers are left. A type that does not
/// take what stands in place of a secret makes the run fail, rather than have it go on with the secret. For work from
/// `String` to `String` it is a [`Layer`] too.
///
/// ```
/// use emitree_middleware::Redact;
/// use emitree_middleware::redact::Strategy;
/// use emitree_middleware::secrets::Kind;
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
/// assert_eq!(said, "you said: maria@mailbox.org"); // the work has seen `[EMAIL_1]`
/// # Ok(())
/// # }
/// ```
///
/// # Defaults
///
/// All kinds of [`Kind::all`], everywhere, [`Strategy::Redact`], nothing restored. Runs below are looked at with
/// [`for_tree`](emitree_runtime::for_tree).
///
/// # Pseudonyms
///
/// They are kept in the run's extensions, so they are the same in the runs below it, and gone with it: one `Redact`
/// bound to many runs serves each separately. With [`restore_output`](Self::restore_output) the caller of the outermost
/// of them gets what pseudonyms of before the output stand for; its `success` and `finish` show that too. That is done in
/// [`Phase::Observe`](emitree_runtime::Phase::Observe), so a cache keeps what has not been restored. At most 10,000
/// secrets of a run get one, those beyond are redacted.
///
/// # What it does not see
///
/// Events of your own types, unless you [register](Self::event) them; keys and numbers in JSON; text in panics, and what
/// your code prints. For what leaves the process, [`sink`](Self::sink) sees all events. The page
/// [what redaction cannot see](https://github.com/emitree/emitree/blob/main/docs/what-redaction-cannot-see.md) has the whole
/// list, and what to do instead.
///
/// An event of `&'static str` that holds a secret becomes `[REDACTED]` as a whole. JSON that is nested deeper than 128
/// levels is refused: it is not looked at.
///
/// # Failures
///
/// It guards: what cannot be redacted does not pass. A pattern that is wrong is an error where it is given.
///
/// # Its own events
///
/// `middleware.redact.redacted`, a [`Redacted`]: what sort, how many, and where, but never what.
#[derive(Clone)]
pub struct Redact(Arc<Redaction>);

#[derive(Clone)]
struct Redaction {
    options: RedactOptions,
    streams: Vec<Arc<dyn ChunkedEvents>>,
    wholes: Vec<PayloadRedaction>,
    own_events: OwnEvents,
}

impl Redact {
    /// One that redacts all that it knows, everywhere.
    #[must_use]
    pub fn new() -> Self {
        let own_events = OwnEvents::new("middleware.redact");
        Self(Arc::new(Redaction { options: RedactOptions::new(), streams: Vec::new(), wholes: Vec::new(), own_events }))
    }

    fn set(mut self, change: impl FnOnce(&mut RedactOptions)) -> Self {
        change(&mut Arc::make_mut(&mut self.0).options);
        self
    }

    /// Looks for these kinds only, besides one's own patterns given later.
    #[must_use]
    pub fn only(self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        self.set(|options| options.scanner = Scanner::only(kinds))
    }

    /// Leaves these kinds.
    #[must_use]
    pub fn except(self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        self.set(|options| options.scanner = options.scanner.except(&kinds))
    }

    /// Looks for a pattern of one's own too, in the syntax of the crate `regex`: its first group is the secret, or all
    /// that it matches.
    ///
    /// # Errors
    ///
    /// If it is no regex, matches the empty text, may match more than 640 bytes, or becomes too large.
    pub fn pattern(self, name: &str, regex: &str) -> Result<Self, PatternError> {
        let scanner = self.0.options.scanner.pattern(name, regex)?;
        Ok(self.set(|options| options.scanner = scanner))
    }

    /// What stands in place of secrets.
    #[must_use]
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.set(|options| {
            options.strategy = strategy;
            options.draw_key(strategy);
        })
    }

    /// What stands in place of secrets of one kind.
    #[must_use]
    pub fn strategy_for(self, kind: Kind, strategy: Strategy) -> Self {
        self.set(|options| {
            options.by_kind.push((kind, strategy));
            options.draw_key(strategy);
        })
    }

    /// Keys hashes with this, so that they are the same in other processes. Otherwise a key is drawn for each `Redact`.
    #[must_use]
    pub fn hash_key(self, key: impl AsRef<[u8]>) -> Self {
        self.set(|options| options.key = Some(HashKey::new(key.as_ref())))
    }

    /// Looks there only.
    #[must_use]
    pub fn places(self, places: impl IntoIterator<Item = Place>) -> Self {
        self.set(|options| options.places = places.into_iter().collect())
    }

    /// Gives the caller what pseudonyms in the output stand for.
    #[must_use]
    pub fn restore_output(self) -> Self {
        self.set(|options| options.restores = true)
    }

    /// Redacts the text of the run's events of that name: text that comes bit by bit.
    ///
    /// An event goes on with what is clear of its text and of the text before it, which may be none; what could be the
    /// beginning of a secret is held, mostly the last word, at most [`Scanner::window`] bytes. Once the beginning of a
    /// private key has been seen, all is held to its end, or for 16 KiB. What is held at the run's end comes as one more
    /// event, before `success` or `error`: a copy of the last one, with that text. So all texts together are the
    /// redacted text. An attempt that is given up takes what is held with it.
    ///
    /// One stream of text is taken for one name: where several come side by side in a run, give them names or runs of
    /// their own.
    #[must_use]
    pub fn text_of<T: Clone + Serialize + Send + Sync + 'static>(
        mut self,
        name: impl Into<String>,
        text: impl Fn(&mut T) -> &mut String + Send + Sync + 'static,
    ) -> Self {
        let stream = ChunkedText { name: name.into(), text: Arc::new(text) };
        Arc::make_mut(&mut self.0).streams.push(Arc::new(stream));
        self
    }

    /// Redacts the run's events of that name whole: each of their strings. Events of text (`String`, `&'static str`, `Box<str>`,
    /// `Arc<str>`, `Cow<'static, str>`) and of JSON (`Value`) need not be told, and neither do those of the library.
    ///
    /// A type that does not take what stands in place of a secret makes the emit fail; who only observes hears that event as
    /// it was.
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
        Arc::make_mut(&mut self.0).wholes.push(event_payloads::of_type::<T>(name.into()));
        self
    }

    /// Redacts what leaves through a sink, and nothing else; text that comes bit by bit is [declared](RedactSink::text_at)
    /// there.
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

    /// A text without its secrets. Pseudonyms in it are its own.
    #[must_use]
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let (options, vault) = (&self.0.options, Vault::default());
        options.scanner.replace(text, |kind, secret| options.replacement(kind, secret, &vault))
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

    fn layers(&self) -> Vec<LayerInfo> {
        RedactLayer::described(self)
    }
}

/// Around work on text, such as a place of one's own: input and output are redacted.
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
