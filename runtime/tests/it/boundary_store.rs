//! M1, M2: a key-value store can be built from kinds of work and layers: writes are encrypted and reads decrypted,
//! reads are cached, scopes are separated, and all access is audited.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::support::Recorder;
use emitree_runtime::{
    Data, Error, Guard, Layer, Next, Observe, Op, Result, RunContext, Runnable, Stack, Transform, runnable_fn,
};
use parking_lot::Mutex;

struct Read;

impl Op for Read {
    type In = Key;
    type Out = Option<String>;

    fn name() -> &'static str {
        "store.read"
    }
}

struct Write;

impl Op for Write {
    type In = Entry;
    type Out = ();

    fn name() -> &'static str {
        "store.write"
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    scope: &'static str,
    key: &'static str,
}

#[derive(Clone, Debug)]
struct Entry {
    key: Key,
    value: String,
    options: WriteOptions,
}

/// The options of a write.
#[derive(Clone, Copy, Debug, Default)]
struct WriteOptions {
    plain: bool,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scope, self.key)
    }
}

/// Records every read and write with its outcome.
#[derive(Clone, Debug)]
struct Audit(Recorder);

impl<O: Op<In: Named>> Observe<O> for Audit {
    type Memo = Key;

    fn before(&self, input: &O::In, _: &RunContext) -> Key {
        self.0.note(format!("audit {} {}", O::name(), input.key()));
        input.key().clone()
    }

    fn after(&self, key: Key, result: &Result<O::Out>, _: &RunContext) {
        self.0.note(format!("audit {key} {}", if result.is_ok() { "ok" } else { "refused" }));
    }
}

/// The input of a read or a write, with access to its key.
trait Named {
    fn key(&self) -> &Key;
}

impl Named for Key {
    fn key(&self) -> &Key {
        self
    }
}

impl Named for Entry {
    fn key(&self) -> &Key {
        &self.key
    }
}

/// A stand-in for encryption: reverses the text, and adds a prefix.
#[derive(Clone, Debug)]
struct Crypt(Recorder);

impl Transform<Write> for Crypt {
    async fn input(&self, entry: &Entry, _: &RunContext) -> Result<Option<Entry>> {
        self.0.note("encrypt");
        let value = format!("enc:{}", entry.value.chars().rev().collect::<String>());
        Ok((!entry.options.plain).then(|| Entry { value, ..entry.clone() }))
    }
}

impl Transform<Read> for Crypt {
    async fn output(&self, value: Option<String>, _: &RunContext) -> Result<Option<String>> {
        self.0.note("decrypt");
        let decrypt = |value: String| match value.strip_prefix("enc:") {
            Some(cipher) => cipher.chars().rev().collect(),
            None => value,
        };
        Ok(value.map(decrypt))
    }
}

/// Denies access to other scopes.
#[derive(Clone, Debug)]
struct OnlyScope(&'static str, Recorder);

impl<O: Op<In: Named>> Guard<O> for OnlyScope {
    async fn check_input(&self, input: &O::In, _: &RunContext) -> Result<()> {
        self.1.note("guard");
        let scope = input.key().scope;
        if scope == self.0 { Ok(()) } else { Err(Error::new(format!("`{scope}` is not your scope"))) }
    }

    fn name(&self) -> &str {
        "scope"
    }
}

/// Caches reads, and forwards reads of keys that are not in the cache.
#[derive(Debug, Default)]
struct Cache(Mutex<HashMap<Key, Option<String>>>);

impl Layer<Read> for Cache {
    async fn call(&self, key: &Key, _: &RunContext, next: Next<'_, Read>) -> Result<Option<String>> {
        let known = self.0.lock().get(key).cloned();
        if let Some(value) = known {
            return Ok(value);
        }
        let value = next.run(key).await?;
        self.0.lock().insert(key.clone(), value.clone());
        Ok(value)
    }
}

/// A store behind its layers.
#[derive(Clone)]
struct Store {
    recorder: Recorder,
    values: Arc<Mutex<HashMap<Key, String>>>,
    reads: Stack<Read>,
    writes: Stack<Write>,
}

impl Store {
    fn new(reads: Stack<Read>, writes: Stack<Write>, recorder: &Recorder) -> Self {
        Self { recorder: recorder.clone(), values: Arc::default(), reads, writes }
    }

    fn guarded(recorder: &Recorder) -> Self {
        let (audit, crypt) = (Audit(recorder.clone()), Crypt(recorder.clone()));
        let scope = OnlyScope("mine", recorder.clone());
        let reads = Stack::builder().guard(scope.clone()).transform(crypt.clone()).observe(audit.clone()).build();
        let writes = Stack::builder().guard(scope).transform(crypt).observe(audit).build();
        Self::new(reads, writes, recorder)
    }

    async fn read(&self, key: Key, ctx: &RunContext) -> Result<Option<String>> {
        self.reads.call_with(&key, ctx, self, |store, key, _| Box::pin(async { Ok(store.look_up(key)) })).await
    }

    async fn write(&self, entry: Entry, ctx: &RunContext) -> Result<()> {
        self.writes
            .call_with(&entry, ctx, self, |store, entry, _| {
                store.put(entry);
                Box::pin(async { Ok(()) })
            })
            .await
    }

    fn look_up(&self, key: &Key) -> Option<String> {
        self.recorder.note(format!("read {key}"));
        self.values.lock().get(key).cloned()
    }

    fn put(&self, entry: &Entry) {
        self.recorder.note(format!("write {} {}", entry.key, entry.value));
        self.values.lock().insert(entry.key.clone(), entry.value.clone());
    }
}

async fn with<T: Data, F>(store: Store, f: impl Fn(Store, RunContext) -> F + Send + Sync) -> Result<T>
where
    F: Future<Output = Result<T>> + Send,
{
    runnable_fn("store", move |(): (), ctx: RunContext| f(store.clone(), ctx)).run(()).await
}

const fn key(scope: &'static str) -> Key {
    Key { scope, key: "k" }
}

fn entry(value: &str, options: WriteOptions) -> Entry {
    Entry { key: key("mine"), value: value.to_owned(), options }
}

// M2
#[tokio::test]
async fn writes_are_encrypted_and_reads_decrypted_inside_the_audit_and_outside_the_guard() {
    let recorder = Recorder::new();
    let read = with(Store::guarded(&recorder), |store, ctx| async move {
        store.write(entry("abc", WriteOptions::default()), &ctx).await?;
        store.read(key("mine"), &ctx).await
    });
    assert_eq!(read.await.expect("it is one's own scope").as_deref(), Some("abc"));
    recorder.expect([
        "audit store.write mine/k",
        "encrypt",
        "guard",
        "write mine/k enc:cba",
        "audit mine/k ok",
        "audit store.read mine/k",
        "guard",
        "read mine/k",
        "decrypt",
        "audit mine/k ok",
    ]);
}

// M1
#[tokio::test]
async fn options_of_a_write_reach_the_layers() {
    let recorder = Recorder::new();
    let write = with(Store::guarded(&recorder), |store, ctx| async move {
        store.write(entry("abc", WriteOptions { plain: true }), &ctx).await
    });
    write.await.expect("it is one's own scope");
    assert_eq!(recorder.take()[3], "write mine/k abc");
}

// M2, M5
#[tokio::test]
async fn access_to_another_scope_is_denied_and_audited() {
    let recorder = Recorder::new();
    let read = with(Store::guarded(&recorder), |store, ctx| async move { store.read(key("theirs"), &ctx).await });
    assert!(read.await.expect_err("it is somebody else's").is_denied());
    recorder.expect(["audit store.read theirs/k", "guard", "audit theirs/k refused"]);
}

// M1
#[tokio::test]
async fn a_read_passes_through_a_default_stack() {
    let recorder = Recorder::new();
    let store = Store::new(Stack::default(), Stack::default(), &recorder);
    let read = with(store, |store, ctx| async move { store.read(key("any"), &ctx).await });
    assert_eq!(read.await.expect("nobody says no"), None);
    recorder.expect(["read any/k"]);
}

// M1
#[tokio::test]
async fn a_cache_answers_the_second_read() {
    let recorder = Recorder::new();
    let reads = Stack::builder().layer(Cache::default()).build();
    let store = Store::new(reads, Stack::default(), &recorder);
    store.put(&entry("abc", WriteOptions::default()));
    let read = with(store, |store, ctx| async move {
        let first = store.read(key("mine"), &ctx).await?;
        Ok(first == store.read(key("mine"), &ctx).await?)
    });
    assert!(read.await.expect("nothing fails"));
    recorder.expect(["write mine/k abc", "read mine/k"]);
}
