//! R10: `error` and `finish` only report. If one of their listeners fails, all others are still called, wherever the
//! failing listener is registered, however it fails, and however the run ends.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_emitter::{BoxError, Emitter, Options, Registration};
use emitree_runtime::{Error, Lifecycle, Result, Run, RunContext, Runnable};
use futures_util::FutureExt;
use futures_util::future::pending;
use support::{Any, Recorder, TestResult, below, emitter_of, silence_planned_panics};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Run,
    Instance,
    Parent,
    Root,
}

#[derive(Clone, Copy, Debug)]
enum Failing {
    ByError,
    ByPanic,
    WhenAwaited,
    ByPanicWhenAwaited,
    ByItsType,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Fails,
    IsDropped,
}

const PLACES: [Place; 4] = [Place::Run, Place::Instance, Place::Parent, Place::Root];
const FAILING: [Failing; 5] =
    [Failing::ByError, Failing::ByPanic, Failing::WhenAwaited, Failing::ByPanicWhenAwaited, Failing::ByItsType];
const PATHS: [&str; 2] = ["inner.run.error", "inner.run.finish"];

impl Failing {
    /// A listener of another type fails only at own events. It skips all other events (E7).
    fn fails_at(self, place: Place) -> bool {
        !matches!(self, Self::ByItsType) || matches!(place, Place::Run | Place::Instance)
    }

    fn listener(self, path: &'static str) -> Registration {
        let first = Options::new().priority(100);
        match self {
            Self::ByError => first.on(path, |_: &mut Any, _| Err::<(), BoxError>("a planned failure".into())),
            Self::ByPanic => first.on(path, |_: &mut Any, _| -> () { panic!("a planned panic") }),
            Self::WhenAwaited => first.on_async(path, |_: &mut Any, _| {
                Box::pin(async {
                    tokio::task::yield_now().await;
                    Err("a planned failure".into())
                })
            }),
            Self::ByPanicWhenAwaited => {
                first.on_async(path, |_: &mut Any, _| Box::pin(async { panic!("a planned panic") }))
            }
            Self::ByItsType => first.on(path, |_: &mut String, _| ()),
        }
    }
}

/// The place of a failing listener, the way in which it fails, and the path of the event.
type Trouble = Option<(Place, Failing, &'static str)>;

/// Returns the listeners of a place: the failing listener, if it is at this place, and listeners that record events.
fn listeners(place: Place, trouble: Trouble, recorder: &Recorder) -> Vec<Registration> {
    let mut all: Vec<_> =
        trouble.iter().filter(|(at, ..)| *at == place).map(|(_, failing, path)| failing.listener(path)).collect();
    for path in PATHS {
        let [changes, awaited, observes] = [(); 3].map(|()| recorder.clone());
        all.push(Options::new().on(path, move |_: &mut Any, _| changes.note(format!("{place:?} {path}"))));
        all.push(Options::new().on_async(path, move |_: &mut Any, _| {
            awaited.note(format!("{place:?} {path}, awaited"));
            Box::pin(async { Ok(()) })
        }));
        all.push(Options::new().observe(path, move |_: &Any, _| observes.note(format!("{place:?} {path}, seen"))));
    }
    all
}

fn with_listeners<R: Runnable>(run: Run<'_, R>, listeners: Vec<Registration>) -> Run<'_, R> {
    listeners.into_iter().fold(run, Run::register)
}

/// Runs `inner` in `outer`. Returns the number of isolated failures at each place, and the error of the outer run.
async fn failures(end: End, trouble: Trouble, recorder: &Recorder) -> ([u64; 4], Option<String>) {
    let (tree, emitters) = (Emitter::new(), Arc::new(Mutex::new(Vec::new())));
    let inner = Arc::new(below(&tree, "inner", move |(): (), _: RunContext| async move {
        match end {
            End::Fails => Result::<()>::Err(Error::new("broken")),
            End::IsDropped => pending().await,
        }
    }));
    for (place, emitter) in [(Place::Instance, emitter_of(&*inner)), (Place::Root, &tree)] {
        for listener in listeners(place, trouble, recorder) {
            emitter.register(listener).expect("a valid matcher");
        }
    }
    let (runs, known, notes) = (Arc::clone(&inner), Arc::clone(&emitters), recorder.clone());
    let outer = below(&tree, "outer", move |(): (), ctx: RunContext| {
        let (inner, known) = (Arc::clone(&runs), Arc::clone(&known));
        known.lock().expect("nobody panics here").push(ctx.emitter().clone());
        let listeners = listeners(Place::Run, trouble, &notes);
        let remember = move |ctx: &RunContext| {
            known.lock().expect("nobody panics here").push(ctx.emitter().clone());
            Ok(())
        };
        async move { with_listeners(inner.run(()), listeners).middleware(remember).await }
    });
    let mut run = Box::pin(with_listeners(outer.run(()), listeners(Place::Parent, trouble, recorder)));
    let came_to = match end {
        End::Fails => run.await.err(),
        End::IsDropped => {
            assert!(run.as_mut().now_or_never().is_none(), "its work goes on");
            drop(run);
            None
        }
    };
    emitree_runtime::wait_for_ends(Duration::from_secs(60)).await;
    let emitters = emitters.lock().expect("nobody panics here");
    let at = [&emitters[1], emitter_of(&*inner), &emitters[0], &tree];
    (at.map(Emitter::isolated_failures), came_to.map(|error| error.to_string()))
}

// R10
#[tokio::test(start_paused = true)]
async fn a_failing_listener_of_error_or_finish_is_isolated_and_all_others_are_called() {
    silence_planned_panics();
    for end in [End::Fails, End::IsDropped] {
        let recorder = Recorder::new();
        let (_, came_to) = failures(end, None, &recorder).await;
        let heard = recorder.take();
        assert_eq!(heard.len(), PATHS.len() * PLACES.len() * 3, "each place hears each event thrice: {heard:#?}");
        for place in PLACES {
            for (failing, path) in FAILING.iter().flat_map(|failing| PATHS.map(|path| (*failing, path))) {
                let what = format!("{end:?}: at the {place:?}, {failing:?}, of `{path}`");
                let (isolated, with_it) = failures(end, Some((place, failing, path)), &recorder).await;
                assert_eq!(recorder.take(), heard, "{what}");
                let fails = |other| other == place && failing.fails_at(place);
                assert_eq!(isolated, PLACES.map(|other| u64::from(fails(other))), "{what}");
                assert_eq!(with_it, came_to, "{what}");
            }
        }
    }
}

// R10
#[tokio::test]
async fn failing_listeners_of_a_run_do_not_prevent_calls_of_the_instances_listeners() -> TestResult {
    silence_planned_panics();
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let broken = below(&tree, "broken", |(): (), _: RunContext| async { Result::<()>::Err(Error::new("broken")) });
    let (errors, ends) = (recorder.clone(), recorder.clone());
    broken.on_error(move |failure, _| errors.note(format!("error {}", failure.error())))?;
    broken.on_finish(move |finish, _| ends.note(format!("finish {}", finish.outcome().status().as_str())))?;
    let run = broken.run(()).on_error(|_, _| -> () { panic!("a planned panic") });
    let ended = run.on_finish(|_, _| Err::<(), BoxError>("a planned failure".into())).await;
    assert_eq!(ended.expect_err("it is broken").to_string(), "broken");
    recorder.expect(["error broken", "finish failed"]);
    Ok(())
}

// E11: a failure at `start` or `success` still stops all later listeners that may change the event.
#[tokio::test]
async fn a_failing_listener_of_start_or_success_stops_all_later_listeners_that_may_change_it() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let fine = below(&tree, "fine", |(): (), _: RunContext| async { Ok(()) });
    let (starts, successes) = (recorder.clone(), recorder.clone());
    fine.on_start(move |_, _| starts.note("start"))?;
    fine.on_success(move |_, _| successes.note("success"))?;
    let fails = || Err::<(), BoxError>("a planned failure".into());
    assert!(fine.run(()).on_start(move |_, _| fails()).await.is_err());
    recorder.expect([]);
    assert!(fine.run(()).on_success(move |_, _| fails()).await.is_err());
    recorder.expect(["start"]);
    Ok(())
}
