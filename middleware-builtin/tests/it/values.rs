//! Stores of values under keys.

use std::sync::Arc;

use emitree_middleware::values::{InvalidKey, KeyValues, MemoryValues, ValueKey};
use emitree_runtime::Result;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

fn key<const N: usize>(segments: [&str; N]) -> ValueKey {
    ValueKey::new(segments).expect("a key")
}

#[tokio::test]
async fn a_value_is_read_as_it_was_written_last_until_it_is_removed() -> Result<()> {
    let store = MemoryValues::new();
    let values: Arc<dyn KeyValues> = Arc::new(store.clone());
    let language = key(["user", "ada", "language"]);
    assert_eq!(values.read(&language).await?, None);
    for value in [json!("en"), json!({"first": ["fr", null, 1.5]}), Value::Null] {
        values.write(&language, &value).await?;
        assert_eq!(store.read(&language).await?, Some(value));
    }
    assert_eq!(values.read(&key(["user", "ada"])).await?, None);
    values.remove(&key(["user", "ada"])).await?;
    assert_eq!(values.read(&language).await?, Some(Value::Null));
    values.remove(&language).await?;
    values.remove(&language).await?;
    assert_eq!(values.read(&language).await?, None);
    assert_eq!(values.keys(None).await?, []);
    Ok(())
}

#[tokio::test]
async fn keys_lists_the_keys_with_a_prefix_segment_by_segment_in_the_order_of_keys() -> Result<()> {
    let values = MemoryValues::new();
    let sorted = [key(["a"]), key(["a", "b"]), key(["a", "b", "c"]), key(["a", "é"]), key(["a-b"]), key(["ab", "c"])];
    for key in sorted.iter().rev() {
        values.write(key, &json!(1)).await?;
    }
    let table: [(Option<ValueKey>, &[ValueKey]); 6] = [
        (None, &sorted),
        (Some(key(["a"])), &sorted[..4]),
        (Some(key(["a", "b"])), &sorted[1..3]),
        (Some(key(["ab"])), &sorted[5..]),
        (Some(key(["ab", "c", "d"])), &[]),
        (Some(key(["b"])), &[]),
    ];
    for (prefix, expected) in table {
        assert_eq!(values.keys(prefix.as_ref()).await?, expected, "{prefix:?}");
    }
    Ok(())
}

#[test]
fn a_path_without_segments_and_an_empty_segment_are_errors_that_quote_the_path() {
    assert_eq!(ValueKey::new::<&str>([]), Err(InvalidKey::NoSegments));
    assert!(InvalidKey::NoSegments.to_string().starts_with("the key `[]` has no segments"));
    for (path, position) in [(vec![""], 0), (vec!["a", ""], 1), (vec!["a", "", "b", ""], 1)] {
        let error = ValueKey::new(path.clone()).unwrap_err();
        let expected = path.iter().map(|&segment| segment.to_owned()).collect::<Vec<_>>();
        assert_eq!(error, InvalidKey::EmptySegment { path: expected, position });
        assert!(
            error.to_string().starts_with(&format!("segment {position} of the key `{path:?}` is empty")),
            "{error}"
        );
    }
    for path in ["user.ada", "a/b", " ", "\0", "é"] {
        assert_eq!(key([path]).segments(), [path]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_receive_whole_values_while_others_write() -> Result<()> {
    let (values, shared) = (MemoryValues::new(), key(["shared"]));
    let whole = |n: u64| json!(vec![n; 100]);
    values.write(&shared, &whole(0)).await?;
    let tasks = (1..=8).map(|n| {
        let (values, shared) = (values.clone(), shared.clone());
        tokio::spawn(async move {
            for _ in 0..50 {
                values.write(&shared, &whole(n)).await?;
                let read = values.read(&shared).await?.expect("a value");
                assert_eq!(read, whole(read[0].as_u64().expect("a number")));
                values.write(&key(["own", &n.to_string()]), &json!(n)).await?;
            }
            Ok::<_, emitree_runtime::Error>(())
        })
    });
    for result in try_join_all(tasks).await? {
        result?;
    }
    assert_eq!(values.keys(Some(&key(["own"]))).await?.len(), 8);
    Ok(())
}

#[test]
fn debug_output_shows_no_values() {
    let values = MemoryValues::new();
    futures_util::future::FutureExt::now_or_never(values.write(&key(["a"]), &json!("secret"))).expect("ready").unwrap();
    assert_eq!(format!("{values:?}"), "MemoryValues { len: 1 }");
}
