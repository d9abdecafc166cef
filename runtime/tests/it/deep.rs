//! R4, R8, R13: a long chain of nested runs ends on a small stack, because the chain is ended without recursion.

use std::sync::{Arc, Weak};
use std::thread;

use crate::support::{Any, Recorder, Slot, poll_once};
use emitree_emitter::{Emitter, EventMeta};
use emitree_runtime::{AbortHandle, Result, Run, RunContext, Runnable, Stage};
use futures_util::FutureExt;

const DEPTH: usize = 300;
/// A recursion would need much more than the roughly 300 bytes of stack that are available here for each link.
const STACK: usize = 96 * 1024;

/// A runnable whose runs each create another run, put it into a slot, and wait forever.
struct Link {
    emitter: Emitter,
    this: Weak<Self>,
    next: Slot<Run<'static, Self>>,
    innermost: Slot<RunContext>,
}

impl Runnable for Link {
    type Input = ();
    type Output = ();

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, (): &(), ctx: &RunContext) -> Result<()> {
        self.innermost.put(ctx.clone());
        self.next.put(self.this.upgrade().expect("it runs").run_shared(()));
        std::future::pending().await
    }
}

/// Runs that are nested in each other, the outermost first.
struct Chain {
    runs: Vec<Run<'static, Link>>,
    innermost: Slot<RunContext>,
}

/// Returns a chain whose runs have all been polled once.
fn chain(tree: &Emitter, handle: &AbortHandle) -> Chain {
    let (emitter, innermost) = (tree.child("link").expect("a valid name"), Slot::new());
    let link =
        |this: &Weak<Link>| Link { emitter, this: this.clone(), next: Slot::new(), innermost: innermost.clone() };
    let link = Arc::new_cyclic(link);
    let mut next = link.run_shared(()).abort_on(handle);
    let begin = |_| {
        assert!(poll_once(&mut next).is_pending());
        std::mem::replace(&mut next, link.next.take())
    };
    Chain { runs: (0..DEPTH).map(begin).collect(), innermost }
}

/// Records `error` and `finish` of each run, with the depth of the run.
fn note_ends(recorder: &Recorder, tree: &Emitter) {
    for stage in [Stage::Error, Stage::Finish] {
        let notes = recorder.clone();
        let note = move |_: &Any, _: &EventMeta<'_>| {
            notes.note(format!("{} {}", stage.as_str(), RunContext::current().expect("in the run").depth()));
        };
        tree.observe(stage, note).expect("a valid matcher");
    }
}

/// Calls `end` with a chain on a small stack, and checks that all of its runs end, the innermost first (R13).
#[track_caller]
fn expect_all_end(end: impl FnOnce(&mut Chain, &AbortHandle) + Send + 'static) {
    let ends = move || {
        let (tree, recorder, handle) = (Emitter::new(), Recorder::new(), AbortHandle::new());
        note_ends(&recorder, &tree);
        let mut chain = chain(&tree, &handle);
        recorder.expect([]);
        end(&mut chain, &handle);
        let told = recorder.take();
        drop(chain);
        recorder.expect([]);
        told
    };
    let thread = thread::Builder::new().stack_size(STACK).spawn(ends).expect("a thread");
    let told = thread.join().expect("it does not panic");
    let ends_of = |depth| ["error", "finish"].map(|event| format!("{event} {depth}"));
    let expected: Vec<_> = (0..DEPTH).rev().flat_map(ends_of).collect();
    assert_eq!(told, expected);
}

// R8, R13: the test still holds the futures of the runs below.
#[test]
fn when_the_outermost_run_is_dropped_all_runs_below_end() {
    expect_all_end(|chain, _| drop(chain.runs.remove(0)));
}

// R7, R13
#[test]
fn when_the_outermost_run_is_aborted_all_runs_below_end() {
    expect_all_end(|chain, handle| {
        handle.abort("enough");
        assert!(poll_once(&mut chain.runs[0]).is_ready());
    });
}

// R13
#[test]
fn runs_below_a_dropped_run_return_an_error_at_their_next_poll() {
    expect_all_end(|chain, _| {
        drop(chain.runs.remove(0));
        assert!(chain.runs.iter_mut().all(|run| run.now_or_never().is_some_and(|result| result.is_err())));
    });
}

// R8, R9: the context of a run keeps the contexts of the runs above alive.
#[test]
fn dropping_the_innermost_context_drops_all_contexts_above_on_a_small_stack() {
    expect_all_end(|chain, _| {
        while chain.runs.pop().is_some() {}
        assert_eq!(chain.innermost.take().depth(), DEPTH - 1);
    });
}
