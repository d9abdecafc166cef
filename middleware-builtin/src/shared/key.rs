//! The keys that runs are counted by: [`Key`].
//!
//! A known key is looked up without a copy: a `KeyRef` borrows from the run, and an `OwnedKey` is the stored copy.

use std::any::type_name;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_emitter::Emitter;
use emitree_runtime::{AsInstance, Error, Middleware, Result, RunContext, map_input};
use hashbrown::Equivalent;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shared::panic::caught;

/// A key that runs are counted by: runs with equal keys are counted together.
///
/// By default, all runs have the same key. [`when_missing`](Self::when_missing) sets how runs without a key are
/// treated.
///
/// ```
/// use emitree_middleware::key::{Key, Missing};
/// use emitree_runtime::RunContext;
///
/// let per_user = Key::context("user_id").when_missing(Missing::Deny);
/// let per_kind = Key::kind();
/// let per_path = Key::of(|ctx: &RunContext| Ok(Some(ctx.emitter().namespace().to_owned())));
/// let per_host = Key::input(|url: &String| url.split('/').nth(2).map(str::to_owned));
/// # drop([per_user, per_kind, per_path, per_host]);
/// ```
#[derive(Clone)]
pub struct Key {
    source: KeySource,
    missing: Missing,
}

type KeyFn = dyn Fn(&RunContext) -> Result<Option<String>> + Send + Sync;
type BindFn = dyn Fn(&RunContext) -> Result<()> + Send + Sync;
/// A computed key, or the message of a panic.
type Computed = Result<Option<String>, String>;

#[derive(Clone)]
enum KeySource {
    All,
    Context(Arc<str>),
    Kind,
    Instance,
    Group,
    Function(Arc<KeyFn>),
    Input(InputKey),
}

/// A key that a function computes from the input of a run.
#[derive(Clone)]
struct InputKey {
    /// Distinguishes the keys of several limits of one run.
    id: usize,
    /// Binds the function to a run. A run with another input has no key.
    bind: Arc<BindFn>,
}

/// The keys of a run that were computed from its input, or the message of a panic. An extension of the run alone.
#[derive(Default)]
struct InputKeys(Mutex<Vec<(usize, Computed)>>);

impl InputKeys {
    fn set(&self, id: usize, key: Computed) {
        let mut keys = self.0.lock();
        // Another attempt may have another input.
        keys.retain(|(known, _)| *known != id);
        keys.push((id, key));
    }

    fn get(&self, id: usize) -> Computed {
        let keys = self.0.lock();
        keys.iter().find(|(known, _)| *known == id).map_or(Ok(None), |(_, key)| key.clone())
    }
}

/// Selects how runs without a key are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Missing {
    /// All runs without a key are counted together.
    #[default]
    Together,
    /// The run is neither counted nor limited.
    Pass,
    /// The run is denied.
    Deny,
}

impl Key {
    /// Returns a key that is the same for all runs.
    #[must_use]
    pub const fn all() -> Self {
        Self::from_source(KeySource::All)
    }

    /// Returns a key that is a value of the run's context, such as `user_id`.
    ///
    /// Any JSON value is a key, except `null`, which counts as missing. The number `7` and the text `"7"` are different
    /// keys.
    #[must_use]
    pub fn context(name: impl Into<Arc<str>>) -> Self {
        Self::from_source(KeySource::Context(name.into()))
    }

    /// Returns a key that is the kind of the run, such as `Tool`. This key is never missing.
    #[must_use]
    pub const fn kind() -> Self {
        Self::from_source(KeySource::Kind)
    }

    /// Returns a key that is the instance of the run: its identity, not its name. This key is never missing.
    #[must_use]
    pub const fn instance() -> Self {
        Self::from_source(KeySource::Instance)
    }

    /// Returns a key that is the run's group id.
    #[must_use]
    pub const fn group() -> Self {
        Self::from_source(KeySource::Group)
    }

    /// Returns a key that a function computes from the run; `None` counts as missing. If the function fails or panics,
    /// the run is denied.
    #[must_use]
    pub fn of(f: impl Fn(&RunContext) -> Result<Option<String>> + Send + Sync + 'static) -> Self {
        Self::from_source(KeySource::Function(Arc::new(f)))
    }

    /// Returns a key that a function computes from the run's input, as the functions that change the input left it. A run
    /// with another type of input has no key, and so has a run for which the function returns `None`. If the function
    /// panics, the run is denied.
    ///
    /// ```
    /// use std::time::Duration;
    /// use emitree_middleware::RateLimit;
    /// use emitree_middleware::key::Key;
    ///
    /// #[derive(Clone)]
    /// struct Url {
    ///     host: String,
    /// }
    ///
    /// // Two requests a second for each host.
    /// let polite = RateLimit::builder(2, Duration::from_secs(1)).by(Key::input(|url: &Url| url.host.clone()));
    /// # drop(polite);
    /// ```
    #[must_use]
    pub fn input<I, K>(f: impl Fn(&I) -> K + Send + Sync + 'static) -> Self
    where
        I: Clone + Send + Sync + 'static,
        K: Into<Option<String>>,
    {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let note = map_input(move |input: &mut I, ctx: &RunContext| {
            // A panic denies the run when the limit reads the key (M5).
            ctx.own_extension_or_default::<InputKeys>().set(id, caught(|| f(input).into()));
            Ok(())
        });
        let note = note.named("key").last();
        let bind = move |ctx: &RunContext| {
            let has_input = ctx.types().input == type_name::<I>();
            if has_input { note.bind(ctx) } else { Ok(()) }
        };
        Self::from_source(KeySource::Input(InputKey { id, bind: Arc::new(bind) }))
    }

    /// Sets how runs without a key are treated. Default: [`Missing::Together`].
    #[must_use]
    pub fn when_missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    const fn from_source(source: KeySource) -> Self {
        Self { source, missing: Missing::Together }
    }

    /// Prepares the key of a run, before the layer that [looks](Self::look) at it is bound.
    pub(crate) fn bind(&self, ctx: &RunContext) -> Result<()> {
        match &self.source {
            KeySource::Input(input) => (input.bind)(ctx),
            _ => Ok(()),
        }
    }

    /// Calls a function with the key of a run, or with `None` if the run is not counted.
    ///
    /// Returns an error if the run has no key and the key is set to [`Missing::Deny`], or if the key function fails or
    /// panics. The caller must then deny the run.
    #[inline]
    pub(crate) fn look<R>(&self, ctx: &RunContext, look: impl FnOnce(Option<KeyRef<'_>>) -> R) -> Result<R, Error> {
        match &self.source {
            KeySource::All => Ok(look(Some(KeyRef::All))),
            KeySource::Context(name) => {
                // Hold the context while the key borrows from it.
                let context = ctx.context();
                Ok(look(self.or_missing(context.get(name).and_then(KeyRef::of_json))?))
            }
            KeySource::Kind => Ok(look(Some(KeyRef::Text(ctx.kind())))),
            KeySource::Instance => Ok(look(Some(KeyRef::Instance(ctx.instance_emitter())))),
            KeySource::Group => Ok(look(self.or_missing(ctx.emitter().group_id().map(KeyRef::Text))?)),
            KeySource::Function(f) => {
                let key = call_key_fn(&**f, ctx)?;
                Ok(look(self.or_missing(key.as_deref().map(KeyRef::Text))?))
            }
            KeySource::Input(input) => {
                let key = match ctx.own_extension::<InputKeys>() {
                    Some(keys) => keys.get(input.id).map_err(|panic| panicked(&panic))?,
                    None => None,
                };
                Ok(look(self.or_missing(key.as_deref().map(KeyRef::Text))?))
            }
        }
    }

    /// Returns `true` if two runs have the same key, and so are counted together.
    pub(crate) fn is_same_for(&self, run: &RunContext, other: &RunContext) -> bool {
        // The input of the run is not known yet.
        if matches!(self.source, KeySource::Input(_)) {
            return false;
        }
        let same = self.look(run, |key| self.look(other, |other| key.is_some() && key == other));
        same.is_ok_and(|same| same.unwrap_or(false))
    }

    fn or_missing<'a>(&self, found: Option<KeyRef<'a>>) -> Result<Option<KeyRef<'a>>> {
        match (found, self.missing) {
            (None, Missing::Together) => Ok(Some(KeyRef::All)),
            (None, Missing::Deny) => Err(Error::new(format!("runs are counted {self:?}, but this run has no key"))),
            (found, _) => Ok(found),
        }
    }
}

/// Calls the user's key function. If the function fails or panics, the text of the returned error says so.
fn call_key_fn(f: &KeyFn, ctx: &RunContext) -> Result<Option<String>> {
    let failed = |error: Error| Error::new(format!("the key function failed: {error}")).caused_by(error);
    match caught(|| f(ctx)) {
        Ok(key) => key.map_err(failed),
        Err(panic) => Err(panicked(&panic)),
    }
}

fn panicked(panic: &str) -> Error {
    Error::new(format!("the key function panicked: {panic}"))
}

impl Default for Key {
    fn default() -> Self {
        Self::all()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            KeySource::All => f.write_str("all together"),
            KeySource::Context(name) => write!(f, "by `{name}` of the context"),
            KeySource::Kind => f.write_str("by kind"),
            KeySource::Instance => f.write_str("by instance"),
            KeySource::Group => f.write_str("by group"),
            KeySource::Function(_) => f.write_str("by a function"),
            KeySource::Input(_) => f.write_str("by the input"),
        }
    }
}

/// A key borrowed from a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum KeyRef<'a> {
    All,
    Text(&'a str),
    Json(&'a Value),
    Instance(&'a Emitter),
}

impl<'a> KeyRef<'a> {
    fn of_json(value: &'a Value) -> Option<Self> {
        match value {
            Value::Null => None,
            Value::String(text) => Some(Self::Text(text)),
            other => Some(Self::Json(other)),
        }
    }

    pub(crate) fn to_owned(self) -> OwnedKey {
        match self {
            Self::All => OwnedKey::All,
            Self::Text(text) => OwnedKey::Text(text.into()),
            Self::Json(value) => OwnedKey::Json(value.clone()),
            Self::Instance(emitter) => OwnedKey::Instance(emitter.clone()),
        }
    }
}

/// An owned key, for storage.
#[derive(Clone, Debug)]
pub(crate) enum OwnedKey {
    All,
    Text(Box<str>),
    Json(Value),
    Instance(Emitter),
}

impl OwnedKey {
    pub(crate) fn as_ref_key(&self) -> KeyRef<'_> {
        match self {
            Self::All => KeyRef::All,
            Self::Text(text) => KeyRef::Text(text),
            Self::Json(value) => KeyRef::Json(value),
            Self::Instance(emitter) => KeyRef::Instance(emitter),
        }
    }

    /// Returns the key as events show it: the namespace of an instance, and `null` for the key of all runs.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::All => Value::Null,
            Self::Text(text) => Value::from(&**text),
            Self::Json(value) => value.clone(),
            Self::Instance(emitter) => Value::from(emitter.namespace()),
        }
    }
}

impl PartialEq for OwnedKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_ref_key() == other.as_ref_key()
    }
}

impl Eq for OwnedKey {}

/// Hashes like a `KeyRef` of the same key, so that a table of owned keys can be searched by a borrowed key.
impl Hash for OwnedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_ref_key().hash(state);
    }
}

impl Equivalent<OwnedKey> for KeyRef<'_> {
    fn equivalent(&self, key: &OwnedKey) -> bool {
        *self == key.as_ref_key()
    }
}
