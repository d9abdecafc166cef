//! A1: the turn of a call may end while a tool begins to execute the call. The model uses the source file of the crate,
//! and explores the interleavings of both threads.

#[allow(dead_code, reason = "the model uses a part of it")]
#[path = "../src/tool/started.rs"]
mod started;

/// The primitives of loom, under the names of the crate's own module.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU8, Ordering};
}

use self::started::WorkStarted;

#[test]
fn a_call_is_closed_as_not_executed_exactly_if_its_function_is_never_called() {
    loom::model(|| {
        let call = WorkStarted::in_attempt(1);
        let tool = call.clone();
        // A tool that is retried asks twice.
        let tool = loom::thread::spawn(move || [tool.call(), tool.call()]);
        let has_started = call.close();
        let [first, second] = tool.join().expect("no panic");
        assert_eq!((first, has_started), (second, first));
        assert_eq!(call.call(), has_started, "the state stays as it is");
    });
}
