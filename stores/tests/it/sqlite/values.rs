//! Values under keys, in the same file.

use emitree_middleware::store::{Filter, Revision, Store};
use emitree_middleware::values::{KeyValues, MemoryValues, ValueKey};
use emitree_runtime::Result;
use futures_util::future::join_all;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{append, new_path, open};

fn key<const N: usize>(segments: [&str; N]) -> ValueKey {
    ValueKey::new(segments).expect("a key")
}

#[tokio::test]
async fn values_are_kept_beside_entries_and_read_after_the_file_is_opened_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = new_path(&folder);
    let store = open(&path).await;
    let language = key(["user", "ada", "language"]);
    let value = json!({"größe": [1.5, null, u64::MAX, -0.1, 1e300], "text": "\0\u{1f600}"});
    store.write(&language, &json!("en")).await?;
    store.write(&language, &value).await?;
    store.append(&append("a", Revision::NONE)).await?;
    drop(store);
    let store = open(&path).await;
    assert_eq!(store.read(&language).await?, Some(value));
    assert_eq!(store.keys(None).await?, std::slice::from_ref(&language));
    KeyValues::remove(&store, &language).await?;
    KeyValues::remove(&store, &language).await?;
    assert_eq!(store.read(&language).await?, None);
    assert_eq!(store.list(&Filter::unfinished()).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_value_that_could_not_be_read_again_is_refused_and_a_damaged_value_is_an_error_that_names_its_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = new_path(&folder);
    let store = open(&path).await;
    let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
    let error = store.write(&key(["a"]), &nested(128)).await.expect_err("too deep").explain();
    assert!(error.starts_with(r#"the value of ["a"] cannot be stored"#), "{error}");
    assert_eq!(store.read(&key(["a"])).await.expect("read"), None);
    store.write(&key(["a"]), &nested(127)).await.expect("written");
    assert_eq!(store.read(&key(["a"])).await.expect("read"), Some(nested(127)));

    let damage = "UPDATE value SET json = '[1'";
    rusqlite::Connection::open(&path).and_then(|db| db.execute(damage, [])).expect("a damage");
    let error = store.read(&key(["a"])).await.expect_err("damaged").explain();
    assert!(error.starts_with(r#"the value of ["a"] is damaged"#), "{error}");
    let damage = "UPDATE value SET key = x'ff'";
    rusqlite::Connection::open(&path).and_then(|db| db.execute(damage, [])).expect("a damage");
    assert_eq!(store.keys(None).await.expect("the keys with this byte are not in the range"), []);
}

fn keys() -> impl Strategy<Value = ValueKey> {
    // Bytes that sort around the end of a segment.
    let segment = prop::collection::vec(prop_oneof!["a", "b", "\0", "\u{1}", "é", "\u{10ffff}", "-", "/"], 1..3);
    prop::collection::vec(segment.prop_map(|parts| parts.concat()), 1..4)
        .prop_map(|path| ValueKey::new(path).expect("a key"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn keys_are_listed_as_in_memory(
        written in prop::collection::vec(keys(), 1..30),
        prefixes in prop::collection::vec(keys(), 1..10),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (store, memory) = (open(new_path(&folder)).await, MemoryValues::new());
            let writes: Vec<_> = written.iter().enumerate().map(|(n, key)| (key, Value::from(n))).collect();
            // In one transaction, in this order.
            let results = join_all(writes.iter().map(|(key, value)| store.write(key, value))).await;
            assert!(results.iter().all(|result| result.is_ok()));
            for (key, value) in &writes {
                memory.write(key, value).await.expect("written");
            }
            assert_eq!(store.keys(None).await.expect("keys"), memory.keys(None).await.expect("keys"));
            for prefix in written.iter().chain(&prefixes) {
                let (found, expected) = (store.keys(Some(prefix)).await, memory.keys(Some(prefix)).await);
                assert_eq!(found.expect("keys"), expected.expect("keys"), "{prefix}");
                assert_eq!(store.read(prefix).await.expect("read"), memory.read(prefix).await.expect("read"));
            }
        });
    }
}
