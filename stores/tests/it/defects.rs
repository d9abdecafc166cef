//! The tests of the contract notice a store with a defect.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use emitree_middleware::store::{Append, Entry, EntryHead, Filter, MemoryStore, Revision, Store, StoreError, StoreId};
use emitree_stores::conformance;
use futures_util::future::BoxFuture;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    OneIdForAll,
    AppendsTwice,
    IgnoresTheRevision,
    IgnoresReplaces,
    HidesNothing,
    MixesOlderParts,
    KeepsWhatIsReplaced,
    ReturnsPartsTwice,
    LosesAPart,
    LosesTheHolder,
    AllowsAnyId,
    AllowsLargeParts,
    RemovesAnything,
    SortsByRevision,
    IgnoresTheLimit,
    ListsTheCursorAgain,
    NeverAppliesADroppedAppendWhole,
}

/// A store with one defect.
#[derive(Debug)]
struct Defective {
    defect: Defect,
    inner: MemoryStore,
}

impl Defective {
    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    async fn current(&self, id: &str) -> Revision {
        self.inner.load(id).await.ok().flatten().map_or(Revision::NONE, |entry| entry.head.revision)
    }

    async fn changed(&self, append: &Append) -> Append {
        let mut append = append.clone();
        match self.defect {
            Defect::AppendsTwice if append.parts.len() == 1 => {
                append.id = Append::new(append.head.clone()).id;
                append.head.revision = self.current(&append.head.id).await;
            }
            Defect::IgnoresTheRevision => append.head.revision = self.current(&append.head.id).await,
            Defect::IgnoresReplaces => append.replaces = false,
            Defect::HidesNothing => append.hides_older = false,
            Defect::KeepsWhatIsReplaced if append.replaces => (append.replaces, append.hides_older) = (false, true),
            Defect::LosesAPart if append.parts.len() > 2 => drop(append.parts.pop()),
            Defect::LosesTheHolder => append.head.holder = None,
            Defect::AllowsAnyId if append.head.id.is_empty() => append.head.id = "empty".to_owned(),
            Defect::AllowsLargeParts => append.parts.iter_mut().for_each(|part| part.truncate(512 * 1024)),
            _ => {}
        }
        append
    }
}

impl Store for Defective {
    fn store_id(&self) -> StoreId {
        static SHARED: std::sync::LazyLock<StoreId> = std::sync::LazyLock::new(StoreId::new);
        if self.has(Defect::OneIdForAll) { *SHARED } else { self.inner.store_id() }
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.inner.load(id)
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            if self.has(Defect::NeverAppliesADroppedAppendWhole) {
                let mut half = append.clone();
                half.parts.truncate(1);
                if append.parts.len() == 2 && append.parts[0].len() > 1_000 {
                    self.inner.append(&half).await?;
                    tokio::task::yield_now().await;
                }
            }
            self.inner.append(&self.changed(append).await).await
        })
    }

    fn older_parts<'a>(&'a self, id: &'a str, before: Revision) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        Box::pin(async move {
            let before = if self.has(Defect::ReturnsPartsTwice) { self.current(id).await } else { before };
            let mut older = self.inner.older_parts(id, before).await?;
            if self.has(Defect::MixesOlderParts) {
                older.reverse();
            }
            Ok(older)
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(async move {
            let mut filter = filter.clone();
            match self.defect {
                Defect::IgnoresTheLimit => filter.limit = None,
                Defect::ListsTheCursorAgain => filter.after = filter.after.map(|id| id[..id.len() - 1].to_owned()),
                _ => {}
            }
            let mut heads = self.inner.list(&filter).await?;
            if self.has(Defect::SortsByRevision) {
                heads.sort_by_key(|head| head.revision);
            }
            Ok(heads)
        })
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let after = if self.has(Defect::RemovesAnything) { self.current(id).await } else { after };
            self.inner.remove(id, after).await
        })
    }
}

/// Returns the message with which the conformance of a store with a defect panics.
fn panic_of(defect: Defect) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let make = async || Arc::new(Defective { defect, inner: MemoryStore::new() });
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(conformance(make))));
    result.err().map(emitree_emitter::panic_text)
}

#[test]
fn a_store_with_a_defect_does_not_conform() {
    use Defect as D;
    let table = [
        (D::OneIdForAll, "two stores have two ids"),
        (D::AppendsTwice, ""),
        (D::IgnoresTheRevision, "a change for revision"),
        (D::IgnoresReplaces, "the parts of `a`"),
        (D::HidesNothing, "the parts of `a`"),
        (D::MixesOlderParts, "the older parts of `a`"),
        (D::KeepsWhatIsReplaced, "the older parts of `a`"),
        (D::ReturnsPartsTwice, "Ok([b"),
        (D::LosesAPart, ""),
        (D::LosesTheHolder, ""),
        (D::AllowsAnyId, "an empty id must be refused"),
        (D::AllowsLargeParts, "a long part must be refused"),
        (D::RemovesAnything, "a change for revision"),
        (D::SortsByRevision, "Filter"),
        (D::IgnoresTheLimit, "Filter"),
        (D::ListsTheCursorAgain, ""),
        (D::NeverAppliesADroppedAppendWhole, ""),
    ];
    for (defect, expected) in table {
        let message = panic_of(defect).unwrap_or_else(|| panic!("nothing noticed {defect:?}"));
        assert!(message.contains(expected), "{defect:?}: {message}");
    }
    assert_eq!(panic_of(D::None), None);
}
