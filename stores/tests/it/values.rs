//! Values under keys, in each database.

use std::collections::BTreeMap;

use emitree_middleware::store::{Append, EntryHead, Filter, Store};
use emitree_middleware::values::{KeyValues, MemoryValues, ValueKey};
use emitree_runtime::Result;
use emitree_stores::SqliteStore;
use futures_util::future::join_all;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::postgres::server;

fn key<const N: usize>(segments: [&str; N]) -> ValueKey {
    ValueKey::new(segments).expect("a key")
}

/// `open` returns a store with the same values each time.
async fn assert_kept<S: Store + KeyValues>(open: impl AsyncFn() -> S) -> Result<()> {
    let store = open().await;
    let language = key(["user", "ada", "language"]);
    let value = json!({"größe": [1.5, null, u64::MAX, -0.1, 1e300], "text": "\0\u{1f600}"});
    store.write(&language, &json!("en")).await?;
    store.write(&language, &value).await?;
    store.append(&Append::new(EntryHead::new("a", "job"))).await?;
    drop(store);
    let store = open().await;
    assert_eq!(store.read(&language).await?, Some(value));
    assert_eq!(store.keys(None).await?, std::slice::from_ref(&language));
    KeyValues::remove(&store, &language).await?;
    KeyValues::remove(&store, &language).await?;
    assert_eq!(store.read(&language).await?, None);
    assert_eq!(store.list(&Filter::unfinished()).await?.len(), 1);
    let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
    let error = store.write(&key(["a"]), &nested(128)).await.expect_err("too deep").explain();
    assert!(error.starts_with(r#"the value of ["a"] cannot be stored"#), "{error}");
    assert_eq!(store.read(&key(["a"])).await?, None);
    store.write(&key(["a"]), &nested(127)).await?;
    assert_eq!(store.read(&key(["a"])).await?, Some(nested(127)));
    Ok(())
}

#[tokio::test]
async fn values_are_kept_beside_entries_and_read_after_the_store_is_opened_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    assert_kept(async || SqliteStore::open(folder.path().join("agents.db")).await.expect("a store")).await?;
    let Some(url) = server::shared() else { return Ok(()) };
    let connect = server::connect(&url);
    assert_kept(async || connect.clone().await.expect("a store")).await
}

fn keys() -> impl Strategy<Value = ValueKey> {
    // Bytes that sort around the end of a segment.
    let segment = prop::collection::vec(prop_oneof!["a", "b", "\0", "\u{1}", "é", "\u{10ffff}", "-", "/"], 1..3);
    prop::collection::vec(segment.prop_map(|parts| parts.concat()), 1..4)
        .prop_map(|path| ValueKey::new(path).expect("a key"))
}

/// Compares the keys of an empty store with those in memory.
async fn assert_listed_as_in_memory(
    store: &impl KeyValues,
    writes: impl IntoIterator<Item = (&ValueKey, Value)>,
    prefixes: &[ValueKey],
) {
    let memory = MemoryValues::new();
    let writes: Vec<_> = writes.into_iter().collect();
    let results = join_all(writes.iter().map(|(key, value)| store.write(key, value))).await;
    assert!(results.iter().all(|result| result.is_ok()));
    for (key, value) in &writes {
        memory.write(key, value).await.expect("written");
    }
    assert_eq!(store.keys(None).await.expect("keys"), memory.keys(None).await.expect("keys"));
    for prefix in writes.iter().map(|(key, _)| *key).chain(prefixes) {
        let (found, expected) = (store.keys(Some(prefix)).await, memory.keys(Some(prefix)).await);
        assert_eq!(found.expect("keys"), expected.expect("keys"), "{prefix}");
        assert_eq!(store.read(prefix).await.expect("read"), memory.read(prefix).await.expect("read"));
    }
}

/// Returns a value for each key, also for the second of two keys that are equal.
fn values(keys: &[ValueKey]) -> impl Iterator<Item = (&ValueKey, Value)> {
    keys.iter().enumerate().map(|(n, key)| (key, Value::from(n)))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn keys_in_a_file_are_listed_as_in_memory(
        written in prop::collection::vec(keys(), 1..30),
        prefixes in prop::collection::vec(keys(), 1..10),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        runtime().block_on(async {
            let store = SqliteStore::open(folder.path().join("agents.db")).await.expect("a store");
            // In one transaction, in this order.
            assert_listed_as_in_memory(&store, values(&written), &prefixes).await;
        });
    }

    #[test]
    fn keys_on_a_server_are_listed_as_in_memory(
        written in prop::collection::vec(keys(), 1..30),
        prefixes in prop::collection::vec(keys(), 1..10),
    ) {
        if let Some(url) = server::shared() {
            // Of two writes to one key at the same time, either may be the last.
            let values: BTreeMap<_, _> = values(&written).collect();
            runtime().block_on(async {
                assert_listed_as_in_memory(&server::store(&url).await, values, &prefixes).await;
            });
        }
    }
}
