//! Work that takes ten milliseconds of paused time, and records when it begins.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::future::pending;
use std::time::Duration;

use emitree_runtime::Run;
use emitree_runtime::Runnable;
use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use super::Recorder;

pub(crate) const TEN: Duration = Duration::from_millis(10);

/// Work at a fixed pace, with its recorder and its start time. Clones have the same start time.
#[derive(Clone)]
pub(crate) struct Pace(Recorder, Instant);

impl Pace {
    pub(crate) fn new(recorder: &Recorder) -> Self {
        Self(recorder.clone(), Instant::now())
    }

    pub(crate) async fn work(self, n: u32) -> u32 {
        self.0.note(format!("{n} at {} ms", self.1.elapsed().as_millis()));
        sleep(TEN).await;
        n * 2
    }
}

/// A future that never completes, and records its drop.
pub(crate) async fn endless<T>(recorder: Recorder) -> T {
    struct Dropped(Recorder);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.note("the work is dropped");
        }
    }
    let _dropped = Dropped(recorder);
    pending().await
}

/// Polls runs once, in order, and checks that none of them is over.
pub(crate) fn begin<R: Runnable>(runs: &mut [&mut Run<'_, R>]) {
    for run in runs {
        assert!(run.now_or_never().is_none(), "it is over at once");
    }
}
