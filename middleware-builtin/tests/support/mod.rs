//! The common parts of the integration tests: a desk whose runs are nested three levels deep, and a page that collects
//! written text.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use emitree_emitter::{AnyEvent, BoxError, Creator, Emitter, EventMeta};
use emitree_middleware::trajectory::{Trajectory, TrajectoryBuilder};
use emitree_runtime::{Data, Error, Result, RunContext, Runnable, RunnableFn, runnable_fn};
use serde::{Deserialize, Serialize};

pub(crate) type Any = dyn AnyEvent + 'static;
pub(crate) type TestResult<T = ()> = std::result::Result<T, BoxError>;

/// The written text, one item for each write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page(Arc<Mutex<Vec<Vec<u8>>>>);

impl Page {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Returns a trajectory that writes to this page.
    pub(crate) fn trajectory(&self) -> Trajectory {
        self.built(|builder| builder)
    }

    /// Returns a trajectory that has these options and writes to this page.
    pub(crate) fn built(&self, options: impl FnOnce(TrajectoryBuilder) -> TrajectoryBuilder) -> Trajectory {
        options(Trajectory::builder().writer(self.clone())).build().expect("options that are right")
    }

    pub(crate) fn pieces(&self) -> Vec<String> {
        let pieces = self.0.lock().expect("nobody panics here");
        pieces.iter().map(|piece| String::from_utf8(piece.clone()).expect("text")).collect()
    }

    /// Takes the written text.
    pub(crate) fn take(&self) -> String {
        let text = self.pieces().concat();
        self.0.lock().expect("nobody panics here").clear();
        text
    }

    /// Compares the text written since the last call with the expected lines.
    #[track_caller]
    pub(crate) fn expect<'a>(&self, expected: impl IntoIterator<Item = &'a str>) {
        let expected: String = expected.into_iter().flat_map(|line| [line, "\n"]).collect();
        let written = self.take();
        assert!(written == expected, "expected:\n{expected}\nwritten:\n{written}");
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics here").push(bytes.to_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Listeners that always fail, and the number of their calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failing(Arc<AtomicUsize>);

impl Failing {
    /// Returns a listener of events of type `E`.
    pub(crate) fn listener<E: ?Sized>(&self) -> impl Fn(&mut E, &EventMeta<'_>) -> TestResult + Send + Sync + use<E> {
        let failing = self.clone();
        move |_, _| failing.fail()
    }

    /// Counts a call, and returns an error.
    pub(crate) fn fail(&self) -> TestResult {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err("a planned failure".into())
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns an instance of a kind below `root`. Its work is the function `f`.
pub(crate) fn instance<F, Fut, I, O>(
    root: &Emitter,
    kind: &'static str,
    name: &'static str,
    f: F,
) -> RunnableFn<F, I, O>
where
    F: Fn(I, RunContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O>> + Send,
    I: Data + Clone,
    O: Data,
{
    let namespace = format!("{}.{name}", kind.to_lowercase());
    let emitter = root.child_builder(namespace).creator(Creator::new(kind, name)).build().expect("a valid name");
    runnable_fn(name, f).with_emitter(emitter)
}

/// Polls a future once, without a waker.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) question: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) path: String,
}

pub(crate) fn question() -> Question {
    Question { question: "how many words?".to_owned() }
}

/// Returns `Assistant[Desk]`, which runs `Tool[read_file]`, which runs `Tool[decode]`; without a path,
/// `Tool[read_file]` fails.
pub(crate) fn desk(root: &Emitter) -> impl Runnable<Input = Question, Output = String> + 'static {
    desk_that_reads(root, "README.md")
}

pub(crate) fn failing_desk(root: &Emitter) -> impl Runnable<Input = Question, Output = String> + 'static {
    desk_that_reads(root, "")
}

fn desk_that_reads(root: &Emitter, path: &'static str) -> impl Runnable<Input = Question, Output = String> + 'static {
    let decode = Arc::new(instance(root, "Tool", "decode", |bytes: Vec<u8>, _| async move { Ok(bytes.len()) }));
    let read = Arc::new(instance(root, "Tool", "read_file", move |file: File, _| {
        let decode = Arc::clone(&decode);
        async move {
            let len = decode.run(vec![1, 2]).await?;
            match &*file.path {
                "" => Err(Error::from(io::Error::from(io::ErrorKind::NotFound)).message("not found: no path")),
                path => Ok(format!("{path} has {len}")),
            }
        }
    }));
    instance(root, "Assistant", "Desk", move |_: Question, _| {
        let read = Arc::clone(&read);
        async move {
            match read.run(File { path: path.to_owned() }).await {
                Ok(text) => Ok(text),
                Err(_) => Ok("I could not read it".to_owned()),
            }
        }
    })
}

/// The lines of a desk's trajectory.
pub(crate) const LINES: [&str; 6] = [
    "Assistant[Desk][start]: question: how many words?",
    "--> Tool[read_file][start]: path: README.md",
    "    --> Tool[decode][start]: [1,2]",
    "    <-- Tool[decode][success]: 2",
    "<-- Tool[read_file][success]: README.md has 2",
    "Assistant[Desk][success]: README.md has 2",
];
