//! R4, R8, R13: a long chain of runs, each in a task that the run above has spawned, ends innermost first and without
//! recursion, so the stack does not overflow.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use emitree_emitter::{BoxError, Emitter};
use emitree_runtime::{AbortHandle, Result, RunContext, Runnable};
use support::{Any, TestResult};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const DEPTH: usize = 10_000;

/// A runnable whose runs wait forever. Each run with an input above 0 spawns another run first.
struct Link {
    emitter: Emitter,
    this: Weak<Self>,
    innermost: mpsc::UnboundedSender<()>,
    /// The input of each run that has ended, in the order of the ends.
    ended: Arc<Mutex<Vec<usize>>>,
    outermost: OnceLock<RunContext>,
}

impl Runnable for Link {
    type Input = usize;
    type Output = ();

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, left: &usize, ctx: &RunContext) -> Result<()> {
        let (ended, left) = (Arc::clone(&self.ended), *left);
        self.outermost.get_or_init(|| ctx.clone());
        ctx.on_end(move |_, _| ended.lock().expect("nobody panics here").push(left));
        match left.checked_sub(1) {
            Some(left) => drop(ctx.spawn(self.this.upgrade().expect("it runs").run_shared(left))),
            None => self.innermost.send(())?,
        }
        std::future::pending().await
    }
}

/// A chain of runs of a [`Link`], whose innermost run already waits.
struct Chain {
    link: Arc<Link>,
    runtime: Runtime,
    handle: AbortHandle,
    outermost: JoinHandle<Result<()>>,
}

fn chain(depth: usize) -> std::result::Result<Chain, BoxError> {
    let (innermost, mut waiting) = mpsc::unbounded_channel();
    let (emitter, handle) = (Emitter::new().child("link")?, AbortHandle::new());
    let link = Arc::new_cyclic(|this| {
        let (this, ended) = (Weak::clone(this), Arc::default());
        Link { emitter, this, innermost, ended, outermost: OnceLock::new() }
    });
    let runtime = Builder::new_current_thread().build()?;
    let outermost = runtime.spawn(link.run_shared(depth - 1).abort_on(&handle));
    runtime.block_on(waiting.recv());
    Ok(Chain { link, runtime, handle, outermost })
}

/// Ends a chain with `end`, and checks that all of its runs have ended, the innermost first.
fn ended(end: impl FnOnce(Runtime, AbortHandle, JoinHandle<Result<()>>)) -> TestResult {
    let Chain { link, runtime, handle, outermost } = chain(DEPTH)?;
    end(runtime, handle, outermost);
    let ended = link.ended.lock().expect("nobody panics here");
    // The innermost run has the input 0.
    let out_of_order = ended.iter().enumerate().find(|&(place, &left)| place != left);
    assert_eq!((ended.len(), out_of_order), (DEPTH, None));
    Ok(())
}

// R8
#[test]
fn when_the_runtime_is_dropped_a_long_chain_of_tasks_ends_innermost_first() -> TestResult {
    ended(|runtime, _, _| drop(runtime))
}

// R8
#[test]
fn when_the_outermost_run_is_dropped_a_long_chain_of_tasks_ends_innermost_first() -> TestResult {
    ended(|runtime, _, outermost| {
        outermost.abort();
        runtime.block_on(async {
            drop(outermost.await);
            emitree_runtime::wait_for_ends(std::time::Duration::MAX).await
        });
    })
}

// R7
#[test]
fn when_the_outermost_run_is_aborted_a_long_chain_of_tasks_ends_innermost_first() -> TestResult {
    ended(|runtime, handle, outermost| {
        handle.abort("enough");
        assert!(runtime.block_on(outermost).expect("it does not panic").is_err());
    })
}

// E15, R2: deeply nested runs cache the absence of listeners until a listener is registered.
#[test]
fn a_listener_registered_late_far_above_receives_the_ends_of_all_runs_below() -> TestResult {
    const LEVELS: usize = 200;
    let far_above: [fn(&Chain) -> &Emitter; 2] =
        [|chain| chain.link.outermost.get().expect("it runs").emitter(), |chain| &chain.link.emitter];
    for emitter_of in far_above {
        let chain = chain(LEVELS)?;
        let heard = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&heard);
        emitter_of(&chain).observe("link.run.finish", move |_: &Any, _| {
            counting.fetch_add(1, Ordering::Relaxed);
        })?;
        drop(chain.runtime);
        assert_eq!(heard.load(Ordering::Relaxed), LEVELS);
    }
    Ok(())
}
