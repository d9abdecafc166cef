//! Secrets do not leave: [`ExfilGuard`].

mod decode;
mod events;
mod hosts;
mod leak;
mod passage;
mod state;

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{JsonRun, LayerInfo, Middleware, Phase, Result, RunContext, Stack};
use futures_core::future::BoxFuture;
use serde::Serialize;

use self::hosts::Hosts;
use self::leak::Detector;
use self::passage::CheckPassage;
use self::state::{ExfilGuardLayer, GuardState};
use crate::shared::built_in::{built_in, default_as_new};
use crate::shared::own_events::OwnEvents;
use crate::shared::secrets::chunked_events::{ChunkedEvents, ChunkedText, emit_at_end, flush_at_end};
use crate::shared::secrets::{Kind, PatternError, Scanner};

pub use self::decode::Encoding;
pub use self::events::Blocked;
pub use self::leak::{KnownError, What};
pub use crate::shared::inspected_place::Place;

const NAME: &str = "exfil_guard";

/// Denies what would carry a secret out.
///
/// It looks at all strings, keys included, of what goes into a run's work and of what comes out of it: for values that
/// it was [told](Self::known), for what looks like a key, token or password of [`Scanner::keys`], also in another
/// [encoding](Encoding) or two of them one in another; and, if hosts were [named](Self::allow_hosts), for URLs that lead
/// elsewhere, in these encodings too. What is found ends the run as a denial by `exfil_guard` that says what sort it was and where, and never
/// repeats it.
///
/// A failure whose text tells a secret becomes such a denial too. Control flow keeps its kind and loses the text: the
/// message, causes and details, keys included, that tell one say `withheld by exfil_guard`. What it carries besides,
/// somebody acts on: the id, kind and data of an interrupt, the metadata of a request for a retry and the keys of its
/// details, the name of who denied or halted. That passes as it is, or if it tells a secret, not at all: then it is such
/// a denial as well, and nobody is asked. What the run fails with outside of its layers, by an abort or a listener, ends it as
/// it does: where that tells a secret, it is said in the words of the denial.
///
/// It works on runs of any type, through JSON. For the way out of tools it is bound to them, or to all runs below with
/// [`for_nested`](emitree_runtime::for_nested): what goes into a tool has left.
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
/// All kinds of [`Scanner::keys`], no known values, any host, inputs and outputs.
///
/// # Limits
///
/// What is encoded otherwise, compressed, encrypted, spread over several values, or told in other words is not found.
/// Encodings are read to a depth of two. Time is linear in the text: at most 64 MiB are decoded of one value, or as much
/// as [you say](Self::decode_at_most), and a value that holds more is denied.
///
/// # Failures
///
/// It fails closed: what it cannot read for certain, such as the host of an odd URL, is denied. With
/// [`evaluate_only`](Self::evaluate_only) it denies nothing, and says what it would have denied.
///
/// # Its own events
///
/// `middleware.exfil_guard.blocked`, a [`Blocked`].
#[derive(Clone)]
pub struct ExfilGuard(Arc<ExfilGuardInner>);

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
    evaluates_only: bool,
}

impl ExfilGuardOptions {
    fn describe(self, detector: &Detector, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ExfilGuard");
        debug.field("kinds", &detector.scanner).field("known", &detector.count()).field("hosts", &detector.hosts);
        debug.field("inputs", &self.inputs).field("outputs", &self.outputs);
        debug.field("evaluate_only", &self.evaluates_only).finish()
    }
}

impl ExfilGuard {
    /// One that looks for keys, tokens and passwords in inputs and outputs.
    #[must_use]
    pub fn new() -> Self {
        let options = ExfilGuardOptions { inputs: true, outputs: true, evaluates_only: false };
        let own_events = OwnEvents::new("middleware.exfil_guard");
        Self(Arc::new(ExfilGuardInner { detector: Detector::new(), options, streams: Vec::new(), own_events }))
    }

    fn inner_mut(&mut self) -> &mut ExfilGuardInner {
        Arc::make_mut(&mut self.0)
    }

    /// Knows these values: they must not leave, whatever they look like.
    ///
    /// # Errors
    ///
    /// If one has fewer than 6 bytes or more than 4,096, or there are more than 10,000.
    pub fn known(mut self, values: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Self, KnownError> {
        self.inner_mut().detector.know(values)?;
        Ok(self)
    }

    /// Looks for these kinds only, besides known values and one's own patterns given later: for an e-mail address too,
    /// if it is among them.
    #[must_use]
    pub fn only(mut self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        self.inner_mut().detector.scanner = Scanner::only(kinds);
        self
    }

    /// Lets these kinds pass.
    #[must_use]
    pub fn except(mut self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        let scanner = self.0.detector.scanner.except(&kinds);
        self.inner_mut().detector.scanner = scanner;
        self
    }

    /// Looks for a pattern of one's own too.
    ///
    /// # Errors
    ///
    /// If it is no regex, matches the empty text, may match more than 640 bytes, or becomes too large.
    pub fn pattern(mut self, name: &str, regex: &str) -> Result<Self, PatternError> {
        let scanner = self.0.detector.scanner.pattern(name, regex)?;
        self.inner_mut().detector.scanner = scanner;
        Ok(self)
    }

    /// Lets URLs lead to these hosts only: `example.org`, or `*.example.org` for all below it.
    ///
    /// A host is looked for behind `://` and the name of a scheme of the web, behind `/dev/tcp/`, between `git@` and a
    /// colon, behind only slashes where something quoted, bracketed or assigned begins, and in a word that begins with
    /// `www.`. At the beginning of a string and behind a blank, slashes may begin a comment as well: there,
    /// `//evil.net/x` and `//[::1]` are URLs, because what follows at once looks like a host, and `//TODO fix` is none.
    ///
    /// A host with letters beyond ASCII is not allowed, because readers disagree about it: name it, and write it, as
    /// `xn--…`.
    #[must_use]
    pub fn allow_hosts(mut self, hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.inner_mut().detector.hosts = Some(Hosts::new(hosts));
        self
    }

    /// Whether it looks at inputs. Default: on.
    #[must_use]
    pub fn inputs(mut self, is_checked: bool) -> Self {
        self.inner_mut().options.inputs = is_checked;
        self
    }

    /// Whether it looks at outputs and errors. Default: on.
    #[must_use]
    pub fn outputs(mut self, is_checked: bool) -> Self {
        self.inner_mut().options.outputs = is_checked;
        self
    }

    /// Decodes at most this many bytes of one value, which is an input, an output or an error: beyond that, it is denied.
    /// Default: 64 MiB.
    ///
    /// Each way in which a text could be read counts, and each place where it could begin: of a text without blanks, some
    /// 10 bytes for each byte, and of one that is encoded twice, up to 400.
    #[must_use]
    pub fn decode_at_most(mut self, bytes: usize) -> Self {
        self.inner_mut().detector.max_decoded = bytes;
        self
    }

    /// Denies nothing, and says what it would have denied. Events pass as they are.
    #[must_use]
    pub fn evaluate_only(mut self) -> Self {
        self.inner_mut().options.evaluates_only = true;
        self
    }

    /// Looks at the text of the run's events of that name: text that comes bit by bit.
    ///
    /// A word is held until it is over, because it may be encoded, and what could be the beginning of a secret until it
    /// is clear: at most 27 KiB. A word longer than that goes on in parts of 2 KiB, each looked at with what is held and
    /// 8 KiB of what went on before. Text with a secret in it does not go on, nor what follows it: the event that brought
    /// it is emptied, its emit fails, and so does the run, whatever the work makes of that. What is held at the run's end
    /// comes as one more event, a copy of the last one with that text. Base64 in several lines is found in one event
    /// only.
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

    /// Also looks for personal data: e-mail addresses, IBANs, numbers of cards, phones and IP addresses.
    #[must_use]
    pub fn personal_data(mut self) -> Self {
        let scanner = self.0.detector.scanner.with(&Kind::PERSONAL);
        self.inner_mut().detector.scanner = scanner;
        self
    }

    /// What in a text must not leave, if there is anything.
    #[must_use]
    pub fn look(&self, text: &str) -> Option<(What, Encoding)> {
        self.0.detector.find_leak(text, &mut self.0.detector.budget())
    }

    fn state(&self) -> Arc<GuardState> {
        let ExfilGuardInner { detector, options, own_events, .. } = &*self.0;
        Arc::new(GuardState::new(detector.clone(), *options, own_events.clone()))
    }
}

fn stack(
    state: Arc<GuardState>,
    held: Arc<[Arc<dyn crate::shared::secrets::chunked_events::HeldText>]>,
) -> Stack<JsonRun> {
    Stack::builder().layer_in(Phase::Guard, ExfilGuardLayer { state, held }).build()
}

/// Says what was blocked, where somebody can be awaited.
fn emitter_of_blocked(
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
        let streams: &[Arc<dyn ChunkedEvents>] = if self.0.options.evaluates_only { &[] } else { &self.0.streams };
        let listen =
            |stream: &Arc<dyn ChunkedEvents>| stream.listen(ctx, Box::new(CheckPassage::new(stream.name(), &state)));
        let held: Arc<[_]> = streams.iter().map(listen).collect::<Result<_>>()?;
        if !held.is_empty() {
            flush_at_end(&held, ctx, emitter_of_blocked(&state))?;
        }
        if self.0.options.outputs {
            let outgoing = Arc::clone(&state);
            ctx.map_error(move |error| outgoing.check_error(error));
            emit_at_end(ctx, emitter_of_blocked(&state))?;
        }
        stack(state, held).bind(ctx)
    }

    fn name(&self) -> &str {
        NAME
    }

    fn layers(&self) -> Vec<LayerInfo> {
        stack(self.state(), Arc::default()).layers()
    }
}

impl fmt::Debug for ExfilGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.options.describe(&self.0.detector, f)
    }
}
