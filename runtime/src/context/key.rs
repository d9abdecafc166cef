//! Keys of runs: names that stay the same when the runs are made again (R15).
//!
//! 1. A key is compared in its *scope*: the nearest run above that has a key, or the parent if no run above has one.
//! 2. A run takes its key before its middlewares are bound, and releases it after its last event. Both change the
//!    scope's map under one lock, so two runs never have one key at the same time.
//! 3. A success counts until a run between the two, or the scope, discards the attempt in which the key was taken.

use std::fmt;
use std::iter::successors;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::context::span::Title;
use crate::{Error, ErrorKind, Result, RunContext, Status};

/// The maximum length of one part of a key, in bytes.
const LONGEST: usize = 200;
/// The maximum number of characters that an error quotes of a part that is too long.
const QUOTED: usize = 40;

/// A path that names a run, such as `order-17/charge`, and that stays the same when the run is made again.
///
/// Set by [`Run::key`](crate::Run::key), and returned by [`RunContext::key`]. Pass it to a service that executes a
/// request with a known key only once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunKey(Arc<str>);

impl RunKey {
    fn new(above: Option<&Self>, id: &str) -> Self {
        Self(above.map_or_else(|| id.into(), |above| format!("{above}/{id}").into()))
    }

    /// Returns the parts of the key, from the topmost run to this run, separated by `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key of a run, as an extension of the run alone.
struct OwnKey(RunKey);

/// Marks a run as idempotent, as an extension of the run alone.
pub(crate) struct Idempotent;

/// The keys that are compared in a run, by their last part. Made when the first of these keys is taken.
#[derive(Default)]
struct KeysBelow(Mutex<FxHashMap<Box<str>, Holder>>);

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
        let (run, other) = (&self.run, &other.run);
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
    fn take(&self, id: &str, run: &Holder) -> Result<(), Holder> {
        let mut taken = self.0.lock();
        match taken.get(id) {
            Some(holder) if holder.holds() => Err(holder.clone()),
            _ => {
                taken.insert(id.into(), run.clone());
                Ok(())
            }
        }
    }

    /// Releases a key at the end of the run that has it. If the run has succeeded, the key stays taken.
    fn release(&self, id: &str, status: Status) {
        let mut taken = self.0.lock();
        if status != Status::Success {
            taken.remove(id);
        } else if let Some(holder) = taken.get_mut(id) {
            holder.has_succeeded = true;
        }
    }
}

impl RunContext {
    /// Returns the run's key: the key of the nearest run above that has one, a `/`, and the text that was passed to
    /// [`Run::key`](crate::Run::key). Returns `None` if this method was not called for the run, even if a run above has
    /// a key.
    #[must_use]
    pub fn key(&self) -> Option<RunKey> {
        self.own_extension::<OwnKey>().map(|own| own.0.clone())
    }

    /// Returns `true` if the run was marked with [`Run::idempotent`](crate::Run::idempotent): executing it again has no
    /// further effect.
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
        self.own_extension::<Idempotent>().is_some()
    }

    /// Gives the run its key, until the run ends.
    ///
    /// # Errors
    ///
    /// Returns an error if `id` cannot be part of a key, or if another run has the key.
    pub(crate) fn take_key(&self, id: &str) -> Result<()> {
        check(id)?;
        let above = || successors(self.parent(), |run| run.parent());
        let keyed = above().position(|run| run.own_extension::<OwnKey>().is_some());
        let within: SmallVec<[&Self; 4]> = above().take(keyed.map_or(1, |position| position + 1)).collect();
        let scope = within.last();
        let key = RunKey::new(scope.and_then(|scope| scope.key()).as_ref(), id);
        if let Some(scope) = scope {
            let (keys, run) = (scope.own_extension_or_default::<KeysBelow>(), Holder::new(self, &within));
            keys.take(id, &run).map_err(|holder| holder.error(&key, &run))?;
            let id = id.to_owned();
            self.on_end(move |_, status| keys.release(&id, status));
        }
        self.set_own_extension(OwnKey(key));
        Ok(())
    }

    /// Lets the runs of the next attempt have the keys of runs that have succeeded in this attempt.
    pub(crate) fn discard_keys(&self) {
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
