//! Keys of runs: names that stay the same when the runs are made again (R15).
//!
//! 1. A key is compared in its *scope*: the nearest run above that has a key, or the parent if no run above has one.
//! 2. A run takes its key before its middlewares are bound, and releases it after its last event. Both change the
//!    scope's map under one lock, so two runs never have one key at the same time.
//!    A key of `Run::key_with` is in no map.
//! 3. A success counts until a run between the two, or the scope, discards the attempt in which the key was taken.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter::successors;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::context::SharedRun;
use crate::context::span::Title;
use crate::run::drive::ErasedRun;
use crate::{Error, ErrorKind, Result, RunContext, Status};

/// The maximum length of one part of a key, in bytes.
const LONGEST: usize = 200;
/// The maximum number of characters that an error quotes of a part that is too long.
const QUOTED: usize = 40;

/// A path that names a run, such as `order-17/charge`, and that stays the same when the run is made again.
///
/// Set by [`Run::key`](crate::Run::key), and returned by [`RunContext::key`]. Pass it to a service that executes a
/// request with a known key only once. Keys are equal if their parts are equal; their [`fence`](Self::fence) does not
/// count.
#[derive(Clone, Debug)]
pub struct RunKey {
    path: Arc<str>,
    fence: Option<NonZeroU64>,
}

impl RunKey {
    /// Creates a key with one part, for [`Run::key_with`](crate::Run::key_with).
    ///
    /// # Errors
    ///
    /// Returns an error if `id` is empty, has more than 200 bytes, or contains `/` or a control character.
    pub fn new(id: &str) -> Result<Self> {
        check(id)?;
        Ok(Self { path: id.into(), fence: None })
    }

    /// Returns this key with one more part: `order-17` and `charge` become `order-17/charge`.
    ///
    /// # Errors
    ///
    /// Returns an error if `id` is empty, has more than 200 bytes, or contains `/` or a control character.
    pub fn child(&self, id: &str) -> Result<Self> {
        check(id)?;
        Ok(Self::below(Some(self), id))
    }

    fn below(above: Option<&Self>, path: &str) -> Self {
        let path = above.map_or_else(|| path.into(), |above| format!("{above}/{path}").into());
        Self { path, fence: None }
    }

    /// Returns the parts of the key, from the topmost run to this run, separated by `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.path
    }

    /// Returns a number that is greater each time a store commits that work with this key begins, or `None` if no store
    /// keeps the run. A resource that remembers the greatest number it has seen for a key can refuse a process that has
    /// lost its claim (a fencing token).
    #[must_use]
    pub const fn fence(&self) -> Option<NonZeroU64> {
        self.fence
    }
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

impl PartialEq for RunKey {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for RunKey {}

impl Hash for RunKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.path.hash(state);
    }
}

/// The key of a run, and whether the run's work has begun. One allocation, also for the function that makes the key.
pub(crate) struct OwnKey<F: ?Sized = dyn Fn() -> RunKey + Send + Sync> {
    has_begun: AtomicBool,
    /// The number that [`RunKey::fence`] returns, or 0.
    fence: AtomicU64,
    /// Empty until the key is first read.
    key: OnceLock<RunKey>,
    make: F,
}

impl<F> OwnKey<F> {
    pub(crate) const fn new(make: F) -> Self {
        Self { has_begun: AtomicBool::new(false), fence: AtomicU64::new(0), key: OnceLock::new(), make }
    }
}

impl OwnKey {
    fn key(&self) -> RunKey {
        let key = self.key.get().cloned();
        // User code: call it without the lock of `get_or_init`.
        let key = key.unwrap_or_else(|| {
            let made = (self.make)();
            self.key.get_or_init(|| made).clone()
        });
        RunKey { fence: NonZeroU64::new(self.fence.load(Ordering::Relaxed)).or(key.fence), ..key }
    }
}

/// The keys that are compared in a run, by the own parts of the keyed runs. Made when the first of these keys is taken.
#[derive(Default)]
struct KeysBelow(Mutex<FxHashMap<Box<str>, Holder>>);

/// The keys of the sleeps in a run.
#[derive(Default)]
struct SleepsBelow(KeysBelow);

/// A run that has a key, or that has succeeded with it.
#[derive(Clone)]
struct Holder {
    /// The run's kind, name and id, for errors.
    run: Arc<str>,
    has_succeeded: bool,
    /// The runs from the parent up to the scope, and how many attempts each of them had discarded at the beginning.
    began_in: SmallVec<[(Arc<Discarded>, u32); 2]>,
}

/// The number of attempts that a run has discarded. Counted only in runs with keys below.
#[derive(Default)]
struct Discarded(AtomicU32);

impl Discarded {
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Holder {
    fn new(run: &RunContext, within: &[&RunContext]) -> Self {
        let began_in = |above: &&RunContext| {
            let discarded = above.own_extension_or_default::<Discarded>();
            let count = discarded.count();
            (discarded, count)
        };
        let title = Title { kind: run.kind(), name: run.name() };
        Self {
            run: format!("`{title}` ({})", run.run_id()).into(),
            has_succeeded: false,
            began_in: within.iter().map(began_in).collect(),
        }
    }

    /// Returns `true` if the run is under way, or has succeeded in an attempt that was not discarded.
    fn holds(&self) -> bool {
        !self.has_succeeded || self.began_in.iter().all(|(discarded, count)| discarded.count() == *count)
    }

    /// Returns the error of another run with the same key.
    fn error(&self, key: &RunKey, other: &Self) -> Error {
        let state = if self.has_succeeded { "has succeeded in the same attempt" } else { "is under way" };
        let run = &self.run;
        let other = &other.run;
        Error::new(format!(
            "the run {other} cannot have the key `{key}`: the run {run} has this key and {state}; give one of them, or a run above it, another key"
        ))
    }
}

impl KeysBelow {
    /// Takes a key for a run.
    ///
    /// # Errors
    ///
    /// Returns the run that has the key.
    fn take(&self, path: &str, run: &Holder) -> Result<(), Holder> {
        let mut taken = self.0.lock();
        match taken.get(path) {
            Some(holder) if holder.holds() => Err(holder.clone()),
            _ => {
                taken.insert(path.into(), run.clone());
                Ok(())
            }
        }
    }

    /// Releases a key at the end of the run that has it. If the run has succeeded, the key stays taken.
    fn release(&self, path: &str, status: Status) {
        let mut taken = self.0.lock();
        if status != Status::Success {
            taken.remove(path);
        } else if let Some(holder) = taken.get_mut(path) {
            holder.has_succeeded = true;
        }
    }
}

impl<L: ErasedRun + ?Sized> SharedRun<L> {
    pub(crate) fn own_key(&self) -> Option<&OwnKey> {
        self.given_key.as_ref().or_else(|| self.taken_key.get()).map(|own| &**own)
    }
}

impl RunContext {
    /// Returns the run's key: the key of the nearest run above that has one, a `/`, and the text that was passed to
    /// [`Run::key`](crate::Run::key). Returns `None` if the run has no key of its own, even if a run above has a key.
    #[must_use]
    pub fn key(&self) -> Option<RunKey> {
        self.own_key().map(OwnKey::key)
    }

    /// Returns the key of this run, or if it has none, the key of the nearest run above that has one.
    #[must_use]
    pub fn key_around(&self) -> Option<RunKey> {
        successors(Some(self), |run| run.parent()).find_map(Self::key)
    }

    /// Gives the run a key, as [`Run::key`](crate::Run::key) does, for a middleware that knows the key of the runs that
    /// it is bound to. Call this in [`Middleware::bind`](crate::Middleware::bind): middlewares that were bound before
    /// see no key in `bind`.
    ///
    /// # Errors
    ///
    /// Returns an error if `id` cannot be part of a key, if another run has the key, or if this run already has a key.
    pub fn take_key(&self, id: &str) -> Result<()> {
        check(id)?;
        self.take_path(id)
    }

    /// Returns `true` if executing the run again has no further effect: the run was marked with
    /// [`Run::idempotent`](crate::Run::idempotent), or its runnable [is idempotent](crate::Runnable::is_idempotent). This is
    /// known before the middlewares are bound.
    ///
    /// ```
    /// use emitree_runtime::{Layer, Next, Op, Result, RunContext};
    ///
    /// /// Executes an idempotent run once more if it fails.
    /// #[derive(Debug)]
    /// struct OnceMore;
    ///
    /// impl<O: Op> Layer<O> for OnceMore {
    ///     async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
    ///         match next.run(input).await {
    ///             Err(error) if error.is_retryable() && ctx.is_idempotent() => {
    ///                 ctx.discard_attempt(error.to_string(), ()).await?;
    ///                 next.run(input).await
    ///             }
    ///             result => result,
    ///         }
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        self.shared().is_idempotent
    }

    /// Records that the work of the run has begun, so that it may have had effects. Call this in a runnable's
    /// [`execute`](crate::Runnable::execute), directly before the first effect. In a run without a key of its own, this
    /// does nothing.
    pub fn begin(&self) {
        if let Some(own) = self.own_key() {
            own.has_begun.store(true, Ordering::Relaxed);
        }
    }

    /// Sets the [`fence`](RunKey::fence) of the run's [key](Self::key), for code that has stored that the work begins. In
    /// a run without a key of its own, this does nothing.
    pub fn set_fence(&self, fence: NonZeroU64) {
        if let Some(own) = self.own_key() {
            own.fence.store(fence.get(), Ordering::Relaxed);
        }
    }

    /// Returns `true` if [`begin`](Self::begin) was called in this run, in any attempt, and the run has a key of its
    /// own.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.own_key().is_some_and(|own| own.has_begun.load(Ordering::Relaxed))
    }

    fn own_key(&self) -> Option<&OwnKey> {
        self.shared().own_key()
    }

    /// Gives the run the parts of a key that its caller has set, if there are any.
    pub(crate) fn take_parts(&self, parts: &[Box<str>]) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        parts.iter().try_for_each(|id| check(id))?;
        self.take_path(&parts.join("/"))
    }

    /// Returns a run and those above it, up to the first that has a key, or only the run if none has.
    fn up_to_key(first: Option<&Self>) -> SmallVec<[&Self; 4]> {
        let runs = || successors(first, |run| run.parent());
        let keyed = runs().position(|run| run.own_key().is_some());
        runs().take(keyed.map_or(1, |position| position + 1)).collect()
    }

    /// Gives the run the key of the nearest run above that has one, continued by `path`, until the run ends.
    fn take_path(&self, path: &str) -> Result<()> {
        if let Some(key) = self.key() {
            return Err(self.has_key(&key));
        }
        let within = Self::up_to_key(self.parent());
        let scope = within.last();
        let key = RunKey::below(scope.and_then(|scope| scope.key()).as_ref(), path);
        if let Some(scope) = scope {
            let keys = scope.own_extension_or_default::<KeysBelow>();
            let run = Holder::new(self, &within);
            keys.take(path, &run).map_err(|holder| holder.error(&key, &run))?;
            let path = path.to_owned();
            self.on_end(move |_, status| keys.release(&path, status));
        }
        self.set_key(Box::new(OwnKey::new(move || key.clone())))
    }

    /// Takes a key for a sleep in this attempt. Returns the key, or `None` if no run around has one.
    pub(crate) fn take_sleep(&self, id: &str) -> Result<Option<RunKey>> {
        check(id)?;
        let within = Self::up_to_key(Some(self));
        let scope = within.last().unwrap_or(&self);
        // A sleep that was dropped keeps its key as well.
        let sleep = Holder { has_succeeded: true, ..Holder::new(self, &within) };
        let sleeps = scope.own_extension_or_default::<SleepsBelow>();
        sleeps.0.take(id, &sleep).map_err(|other| {
            let run = &sleep.run;
            let other = &other.run;
            Error::new(format!(
                "the run {run} cannot sleep with the key {id:?}: the run {other} has slept with it in the same attempt; give each sleep a key of its own"
            ))
        })?;
        scope.key().map(|key| key.child(id)).transpose()
    }

    fn set_key(&self, own: Box<OwnKey>) -> Result<()> {
        self.shared().taken_key.set(own).map_err(|own| self.has_key(&own.key()))
    }

    fn has_key(&self, key: &RunKey) -> Error {
        let title = Title { kind: self.kind(), name: self.name() };
        Error::of_kind(
            ErrorKind::Invalid,
            format!("the run `{title}` already has the key `{key}`: call `take_key` only if `key` returns `None`"),
        )
    }

    /// Lets the next attempt have the keys of the runs and the sleeps of this attempt.
    /// [`discard_attempt`](Self::discard_attempt) does this; call it for an attempt that is discarded without that event,
    /// because it has emitted nothing.
    pub fn discard_keys(&self) {
        if let Some(discarded) = self.own_extension::<Discarded>() {
            discarded.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Checks one part of a key.
fn check(id: &str) -> Result<()> {
    let fault = match id {
        "" => "is empty",
        _ if id.len() > LONGEST => "is too long",
        _ if id.contains('/') => "contains `/`",
        _ if id.contains(char::is_control) => "contains a control character",
        _ => return Ok(()),
    };
    let quoted = match id.char_indices().nth(QUOTED) {
        Some((end, _)) if id.len() > LONGEST => format!("{:?}…", &id[..end]),
        _ => format!("{id:?}"),
    };
    Err(Error::of_kind(
        ErrorKind::Invalid,
        format!(
            "{quoted} cannot be the key of a run, because it {fault}: use 1 to {LONGEST} bytes without `/` and control characters"
        ),
    ))
}
