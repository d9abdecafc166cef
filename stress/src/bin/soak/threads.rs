//! Threads outside any runtime. They interfere with the runs at random moments.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// Two threads with one queue. They end when the last clone of this handle is dropped.
#[derive(Clone)]
pub(crate) struct Threads(Sender<Job>);

impl Threads {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..2 {
            let receiver = Arc::clone(&receiver);
            std::thread::spawn(move || work(&receiver));
        }
        Self(sender)
    }

    pub(crate) fn do_soon<T>(&self, job: impl FnOnce() -> T + Send + 'static) {
        // If both threads have ended, sending fails and the job is dropped.
        drop(self.0.send(Box::new(|| drop(job()))));
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(job) = next() {
        // Ignores a panic, because the recording contains it.
        drop(catch_unwind(AssertUnwindSafe(job)));
    }
}
