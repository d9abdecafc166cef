//! A guard against secrets that leave a run: [`ExfilGuard`].

mod decode;
mod events;
mod hosts;
mod leak;
mod passage;
mod state;

use std::fmt;
use std::sync::Arc;

use emitree_emitter::Namespace;
use emitree_runtime::{Description, GuardOptions, JsonRun, Middleware, Phase, Result, RunContext, Stack};
use emitree_secrets::{Kind, PatternError, Scanner};
use futures_core::future::BoxFuture;
use serde::Serialize;

use self::hosts::Hosts;
use self::leak::Detector;
use self::passage::CheckPassage;
use self::state::{ErrorLayer, GuardState, ValueGuard};
use crate::shared::built_in::{built_in, default_as_new};
use crate::shared::inspected::chunked_events::{ChunkedEvents, ChunkedText, HeldText, emit_at_end, flush_at_end};
use crate::shared::own_events::OwnEvents;

pub use self::decode::Encoding;
pub use self::events::Blocked;
pub use self::leak::{KnownError, What};
pub use crate::shared::run_part::RunPart;

const NAME: &str = "exfil_guard";

/// A middleware that denies a run whose input or output contains a secret.
///
/// The guard checks every string and key of the work's input and output for
///
/// - [known values](Self::known),
/// - keys, tokens and passwords, in the formats of [`Scanner::keys`],
/// - URLs to hosts that are not [allowed](Self::allow_hosts), if a list of allowed hosts is set,
///
/// as plain text, in an [encoding](Encoding), or in one encoding inside another. A finding ends the run with a denial
/// by `exfil_guard`. The denial names the kind of finding and its position, and never repeats the secret.
///
/// A failure whose text contains a secret becomes such a denial too. Control flow keeps its kind. If its message, a
/// cause, a detail or a detail key contains a secret, that text is replaced by `withheld by exfil_guard`. Parts that
/// code acts on are not replaced: an interrupt's id, kind and data, a retry request's metadata and detail keys, and the
/// name of the guard that denied or halted. If one of these parts contains a secret, the error becomes a denial
/// instead. An error that comes from an abort or a listener, and therefore does not pass the layers, is checked in the
/// same way, but the outcome stays the same. If such an error would become a denial, only its text is replaced, by the
/// text of the denial.
///
/// Text that a run emits in pieces and returns as a whole, such as the streamed reply of a model, is checked before
/// listeners receive it. A word is held back until it ends, as with [`text_of`](Self::text_of).
///
/// The guard accepts runs of any type and reads their values as JSON. To keep secrets from leaving through tools, bind
/// the guard to the tools, or to all runs below with [`for_nested`](emitree_runtime::for_nested): then a tool whose
/// input contains a secret is denied.
///
/// ```
/// use emitree_middleware::ExfilGuard;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let fetch = runnable_fn("fetch", |url: String, _: RunContext| async move { Ok(format!("<{url}>")) });
/// let guard = ExfilGuard::new().known(["correct horse"])?.allow_hosts(["*.example.org"]);
/// let fetch = fetch.middleware(guard);
///
/// assert!(fetch.run("https://docs.example.org/a".into()).await.is_ok());
/// let denied = fetch.run("https://docs.example.org/?q=Y29ycmVjdCBob3JzZQ==".into()).await.unwrap_err();
/// assert_eq!(
///     denied.explain(),
///     "denied by exfil_guard: a known value, base64-encoded, was about to leave in the input",
/// );
/// assert!(fetch.run("https://evil.example.net/".into()).await.unwrap_err().is_denied());
/// # Ok(())
/// # }
/// ```
///
/// # Defaults
///
/// All kinds of [`Scanner::keys`], no known values, all hosts allowed; inputs, outputs and errors are checked.
///
/// # Limits
///
/// A secret is not found if it is in an encoding that [`Encoding`] does not list, or if it is compressed, encrypted,
/// split over several values, or paraphrased. At most two nested encodings are decoded. A search takes time linear in
/// the length of the text. At most 64 MiB are decoded for each value, or the number of bytes set by
/// [`decode_at_most`](Self::decode_at_most); a value that needs more is denied.
///
/// # Failures
///
/// The guard is a [`Guard`](emitree_runtime::Guard) and fails closed: text that it cannot check completely is denied. If a list of allowed hosts is set, this
/// includes a malformed URL whose host is uncertain. With [`evaluate_only`](Self::evaluate_only), the guard denies
/// nothing, and only reports its findings.
///
/// # Its own events
///
/// `middleware.exfil_guard.blocked`, a [`Blocked`], for each value, error or event text with a finding.
#[derive(Clone)]
pub struct ExfilGuard(Arc<ExfilGuardInner>);

/// The options of a guard, shared by its clones.
#[derive(Clone)]
struct ExfilGuardInner {
    detector: Detector,
    options: ExfilGuardOptions,
    streams: Vec<Arc<dyn ChunkedEvents>>,
    own_events: OwnEvents,
}

#[derive(Clone, Copy, Debug)]
struct ExfilGuardOptions {
    inputs: bool,
    outputs: bool,
    guard: GuardOptions,
}

impl ExfilGuardOptions {
    fn describe(self, detector: &Detector, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ExfilGuard");
        debug.field("kinds", &detector.scanner).field("known", &detector.count()).field("hosts", &detector.hosts);
        debug.field("inputs", &self.inputs).field("outputs", &self.outputs);
        debug.field("evaluate_only", &self.guard.is_evaluate_only()).finish()
    }
}

impl ExfilGuard {
    /// Creates a guard that looks for keys, tokens and passwords in inputs, outputs and errors.
    #[must_use]
    pub fn new() -> Self {
        let options = ExfilGuardOptions { inputs: true, outputs: true, guard: GuardOptions::new() };
        let own_events = OwnEvents::new(Namespace::new("middleware.exfil_guard"));
        Self(Arc::new(ExfilGuardInner { detector: Detector::new(), options, streams: Vec::new(), own_events }))
    }

    fn inner_mut(&mut self) -> &mut ExfilGuardInner {
        Arc::make_mut(&mut self.0)
    }

    /// Adds known values, which must not leave as plain text or in an [encoding](Encoding).
    ///
    /// # Errors
    ///
    /// Returns an error if a value has fewer than 6 or more than 4,096 bytes, or if there are more than 10,000 values.
    pub fn known(mut self, values: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Self, KnownError> {
        self.inner_mut().detector.know(values)?;
        Ok(self)
    }

    /// Looks only for these kinds of secrets, besides known values and hosts. Patterns that were added before this call
    /// are removed. The kinds may include personal data, such as e-mail addresses.
    #[must_use]
    pub fn only(mut self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        self.inner_mut().detector.scanner = Scanner::only(kinds);
        self
    }

    /// Stops looking for these kinds of secrets.
    #[must_use]
    pub fn except(mut self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        let scanner = self.0.detector.scanner.except(&kinds);
        self.inner_mut().detector.scanner = scanner;
        self
    }

    /// Adds a pattern of your own.
    ///
    /// # Errors
    ///
    /// Returns an error if the regex is invalid, matches the empty text, may match more than 640 bytes, or becomes too
    /// large.
    pub fn pattern(mut self, name: &str, regex: &str) -> Result<Self, PatternError> {
        let scanner = self.0.detector.scanner.pattern(name, regex)?;
        self.inner_mut().detector.scanner = scanner;
        Ok(self)
    }

    /// Allows URLs to these hosts only: `example.org`, or `*.example.org` for every host below `example.org`.
    ///
    /// A host is recognized
    ///
    /// - after `://`, except in `file://`,
    /// - after the name of a web scheme, a colon and one or more slashes of either kind,
    /// - after `/dev/tcp/` and `/dev/udp/`,
    /// - between `user@` and a colon, as in `git@example.org:path`,
    /// - after two or more slashes at the beginning of quoted, bracketed or assigned text,
    /// - in a word that begins with `www.`.
    ///
    /// At the beginning of a string and after whitespace, `//` may also begin a comment. There, it counts as a URL only
    /// if a host seems to follow: `//evil.net/x` and `//[::1]` are URLs, `//TODO fix` is not.
    ///
    /// A host with non-ASCII letters is never allowed, because URL parsers disagree about it. Write such a host as
    /// `xn--…`, both in this list and in URLs.
    #[must_use]
    pub fn allow_hosts(mut self, hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.inner_mut().detector.hosts = Some(Hosts::new(hosts));
        self
    }

    /// Sets whether inputs are checked. Default: yes.
    #[must_use]
    pub fn inputs(mut self, is_checked: bool) -> Self {
        self.inner_mut().options.inputs = is_checked;
        self
    }

    /// Sets whether outputs and errors are checked. Default: yes.
    #[must_use]
    pub fn outputs(mut self, is_checked: bool) -> Self {
        self.inner_mut().options.outputs = is_checked;
        self
    }

    /// Sets the maximum number of bytes to decode for one value, which is an input, an output, an error or a part of an
    /// event's text. A value that needs more is denied. Default: 64 MiB.
    ///
    /// Text is decoded from each encoding, starting at each position at which encoded text could begin, and all these
    /// bytes count. Each byte of text without whitespace costs about 10 decoded bytes, and each byte of text that is
    /// encoded twice costs up to 400.
    #[must_use]
    pub fn decode_at_most(mut self, bytes: usize) -> Self {
        self.inner_mut().detector.max_decoded = bytes;
        self
    }

    /// Emits findings without denying anything, as [`GuardOptions::evaluate_only`] does: the run also emits
    /// [`would_deny`](emitree_runtime::WouldDeny) for an input or output with a finding. The text of events is not
    /// checked in this mode.
    #[must_use]
    pub fn evaluate_only(mut self) -> Self {
        let options = &mut self.inner_mut().options;
        options.guard = options.guard.evaluate_only();
        self
    }

    /// Checks text that arrives in chunks, in the run's events of this name.
    ///
    /// A word is held back until it ends, because it may be encoded. A possible beginning of a secret is held back
    /// until further text shows that it is not a secret. At most 27 KiB are held back. A word longer than 10 KiB is
    /// passed on in parts of at least 2 KiB. Each part is checked together with the text that is held back and up to 8
    /// KiB of the text that was passed on before.
    ///
    /// If a secret is found, the text of the event that completes the secret is removed, and the emit of that event
    /// fails. No further text passes, and the run fails even if its work ignores the failed emit. At the end of the
    /// run, text that is still held back is emitted as one more event: a copy of the last event with that text. Base64
    /// that spans several lines is found only within one event.
    ///
    /// Build the output of the run from your own text, never from what listeners left in an event: the text that is held
    /// back at that time would be missing.
    ///
    /// # Errors
    ///
    /// Binding fails if the run [filters the text](emitree_emitter::EmitterBuilder::declares_text) of this event itself,
    /// as a model does with `new_token`: unless [`outputs`](Self::outputs) is off, it is checked without `text_of`, and
    /// in the reply too.
    #[must_use]
    pub fn text_of<T: Clone + Serialize + Send + Sync + 'static>(
        mut self,
        name: impl Into<String>,
        text: impl Fn(&mut T) -> &mut String + Send + Sync + 'static,
    ) -> Self {
        let stream = ChunkedText { name: name.into(), text: Arc::new(text) };
        self.inner_mut().streams.push(Arc::new(stream));
        self
    }

    /// Looks for personal data too: e-mail addresses, IBANs, card numbers, phone numbers and IP addresses.
    #[must_use]
    pub fn personal_data(mut self) -> Self {
        let scanner = self.0.detector.scanner.with(&Kind::PERSONAL);
        self.inner_mut().detector.scanner = scanner;
        self
    }

    /// Returns the first finding in a text, with its encoding.
    #[must_use]
    pub fn look(&self, text: &str) -> Option<(What, Encoding)> {
        self.0.detector.find_leak(text, &mut self.0.detector.budget())
    }

    fn state(&self) -> Arc<GuardState> {
        let ExfilGuardInner { detector, options, own_events, .. } = &*self.0;
        Arc::new(GuardState::new(detector.clone(), *options, own_events.clone()))
    }
}

/// Builds the layers of one binding. `held` contains the run's checked event streams.
fn stack(state: Arc<GuardState>, held: Arc<[Arc<dyn HeldText>]>, options: ExfilGuardOptions) -> Stack<JsonRun> {
    let mut stack = Stack::builder();
    // A guard that only evaluates checks errors once, in the run's error map: a layer would record them twice.
    if options.outputs && !options.guard.is_evaluate_only() {
        stack = stack.layer_in(Phase::Guard, ErrorLayer(Arc::clone(&state)));
    }
    stack.guard_with(options.guard, ValueGuard { state, held }).build()
}

/// Returns a function that emits the findings recorded so far. Findings are recorded where nothing can be awaited.
fn emit_blocked_fn(
    state: &Arc<GuardState>,
) -> impl Fn(RunContext) -> BoxFuture<'static, ()> + Clone + Send + Sync + 'static {
    let state = Arc::clone(state);
    move |ctx| {
        let state = Arc::clone(&state);
        Box::pin(async move { state.emit_blocked(&ctx).await })
    }
}

default_as_new!(ExfilGuard);

built_in!(ExfilGuard, |this| this.0.own_events);

impl Middleware for ExfilGuard {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let state = self.state();
        let options = self.0.options;
        let evaluates_only = options.guard.is_evaluate_only();
        // A guard that only evaluates must not hold text back.
        let streams: &[Arc<dyn ChunkedEvents>] = if evaluates_only { &[] } else { &self.0.streams };
        let listen = |stream: &Arc<dyn ChunkedEvents>| {
            let name = stream.name().to_owned();
            let state = Arc::clone(&state);
            stream.listen(ctx, Box::new(move || Box::new(CheckPassage::new(&name, &state))))
        };
        let held: Arc<[_]> = streams.iter().map(listen).collect::<Result<_>>()?;
        if !held.is_empty() {
            // Emit the held text before the listeners of `success` and `error` are called.
            flush_at_end(&held, ctx, emit_blocked_fn(&state))?;
        }
        if options.outputs && !evaluates_only {
            // Text that the run returns, and emits in pieces before.
            let state = Arc::clone(&state);
            ctx.filter_text(move |name| Box::new(CheckPassage::new(name, &state)));
        }
        if options.outputs {
            // Errors that do not pass the layer, from an abort or a listener, are checked on their way out of the run.
            let outgoing = Arc::clone(&state);
            ctx.map_error(move |error| {
                let checked = outgoing.check_error(error.clone());
                if evaluates_only { error } else { checked }
            });
            emit_at_end(ctx, emit_blocked_fn(&state))?;
        }
        stack(state, held, options).bind(ctx)
    }

    fn name(&self) -> &str {
        NAME
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_layers(|| stack(self.state(), Arc::default(), self.0.options).layers())
    }
}

impl fmt::Debug for ExfilGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.options.describe(&self.0.detector, f)
    }
}
