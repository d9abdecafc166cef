//! The store in memory keeps the contract (S1 to S5).

use emitree_middleware::store::MemoryStore;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_in_memory_keeps_the_contract() {
    emitree_stores::conformance(async || MemoryStore::new()).await;
}
