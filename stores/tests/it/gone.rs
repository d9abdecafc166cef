//! Runs that end because their store is gone for a while (A27, M13).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree::agent::{Agent, AgentRun, ChatModel, ChatRequest, Reply, ScriptedModel, Session, tool_fn};
use emitree::middleware::store::{
    Append, Entry, EntryHead, EntryStatus, Filter, Lease, MemoryStore, Post, Posted, Revision, Store, StoreError,
    StoreId,
};
use emitree::{Result, RunContext, Runnable, runnable_fn};
use emitree_middleware::Durable;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

/// A store that is gone for two changes: the one with a number, and its repeat.
#[derive(Clone, Debug)]
struct Gone {
    store: MemoryStore,
    from: usize,
    changes: Arc<AtomicUsize>,
}

impl Gone {
    fn from(from: usize) -> Self {
        Self { store: MemoryStore::new(), from, changes: Arc::default() }
    }

    /// Counts a change, which fails while the store is gone.
    fn change(&self) -> Result<(), StoreError> {
        let number = self.changes.fetch_add(1, Ordering::Relaxed);
        if (self.from..self.from + 2).contains(&number) {
            return Err(StoreError::failed("the server is gone", "connection closed"));
        }
        Ok(())
    }

    fn was_gone(&self) -> bool {
        self.changes.load(Ordering::Relaxed) > self.from
    }
}

impl Store for Gone {
    fn store_id(&self) -> StoreId {
        self.store.store_id()
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.store.load(id)
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            self.change()?;
            self.store.append(append).await
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        Box::pin(async move {
            self.change()?;
            self.store.post(id, post).await
        })
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        self.store.posts(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.store.list(filter)
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        self.store.remove(id, after)
    }
}

fn lease() -> Lease {
    Lease::new().time(Duration::from_millis(10))
}

/// Runs again until the lease has run out that could not be released.
async fn when_free<T>(run: impl AsyncFn() -> Result<T>) -> Result<T> {
    loop {
        let result = run().await;
        let held = match &result {
            Err(error) => matches!(error.find(), Some(StoreError::Held { .. })),
            Ok(_) => false,
        };
        if !held {
            return result;
        }
        tokio::task::yield_now().await;
    }
}

async fn status(store: &Gone) -> Option<EntryStatus> {
    store.load("a").await.expect("a store").map(|entry| entry.head.status)
}

fn agent() -> Result<Agent> {
    let model = ScriptedModel::by("test", |request: &ChatRequest| {
        let results = request.messages.iter().flat_map(|message| message.tool_results()).count();
        if results == 0 { Reply::calls([("work", json!({"text": "a"}))]) } else { Reply::text("Done.") }
    });
    let work = tool_fn("work", "Works", |Text { text }: Text, _: RunContext| async move { Ok(text) })?;
    Agent::builder("worker", ChatModel::new(model)?).tool(work.idempotent()).build()
}

/// A27
#[tokio::test]
async fn a_session_whose_store_was_gone_is_not_stored_as_failed_and_goes_on() -> Result<()> {
    let agent = agent()?;
    let mut failed = 0;
    for from in 0.. {
        let store = Gone::from(from);
        let session = Session::open(&store, "a").lease(lease()).await?;
        let first = agent.ask("Work.").session(&session).await;
        if !store.was_gone() {
            assert!(from > 5, "{from}");
            break;
        }
        if let Err(error) = first {
            failed += 1;
            assert!(error.find::<StoreError>().is_some(), "{error:?}");
            assert_ne!(status(&store).await, Some(EntryStatus::Failed), "gone at {from}");
            if status(&store).await.is_some() {
                assert_eq!(when_free(async || agent.resume(&session).await).await?.text(), "Done.", "gone at {from}");
            }
        }
    }
    assert!(failed > 3, "{failed}");
    Ok(())
}

/// M13
#[tokio::test]
async fn a_job_whose_store_was_gone_is_not_stored_as_failed_and_goes_on() -> Result<()> {
    let job = runnable_fn("job", |(): (), _: RunContext| async {
        let step = runnable_fn("step", |n: usize, _: RunContext| async move { Ok(n) });
        Ok(step.run(1).key("a").idempotent().await? + step.run(2).key("b").idempotent().await?)
    });
    for from in 0.. {
        let store = Gone::from(from);
        let run = async || job.run(()).middleware(Durable::new(&store, "a").lease(lease())).await;
        let first = run().await;
        if !store.was_gone() {
            assert!(from > 3, "{from}");
            break;
        }
        if first.is_err() {
            assert_ne!(status(&store).await, Some(EntryStatus::Failed), "gone at {from}");
            assert_eq!(when_free(run).await?, 3, "gone at {from}");
        }
    }
    Ok(())
}
