//! The store in memory keeps the contract (S1 to S5).

use emitree_middleware::store::MemoryStore;

use super::repeats;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_in_memory_keeps_the_contract() {
    // In the long form, 1,000 leases end while they are renewed.
    for _ in 0..repeats(10) {
        emitree_stores::conformance(async || MemoryStore::new()).await;
    }
}
