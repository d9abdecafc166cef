//! A journal keeps the inputs and outputs of the runs below a run. A replay answers these runs from the journal, until
//! the first difference.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Any, Failing, TestResult, desk, instance, question};
use emitree_emitter::{AnyEvent, Emitter, EventMeta};
use emitree_middleware::record::{AttemptResult, Entry, JournalError, Recorded, RunJournal};
use emitree_middleware::replay::{Difference, Replayed};
use emitree_middleware::{Record, Replay};
use emitree_runtime::{
    AbortHandle, Data, Error, ErrorKind, Interrupt, Op, Result, RunContext, Runnable, RunnableFn, Status, Transform,
    for_tree, map_output, runnable_fn,
};
use futures_util::FutureExt;
use futures_util::future::{join_all, select};
use serde_json::{Value, json};
use tokio::time::sleep;

/// The number of executions of a tool's work.
#[derive(Clone, Debug, Default)]
struct Done(Arc<AtomicU32>);

impl Done {
    fn take(&self) -> u32 {
        self.0.swap(0, Ordering::Relaxed)
    }

    /// Returns a tool that computes its output with `f`, from the input and the number of executions so far.
    fn tool<I: Data + Clone, O: Data>(
        &self,
        name: &'static str,
        f: impl Fn(I, u32) -> Result<O> + Send + Sync + 'static,
    ) -> Arc<impl Runnable<Input = I, Output = O> + 'static> {
        let done = self.clone();
        Arc::new(instance(&Emitter::new(), "Tool", name, move |input: I, _: RunContext| {
            let output = f(input, done.0.fetch_add(1, Ordering::Relaxed) + 1);
            async move {
                tokio::task::yield_now().await;
                output
            }
        }))
    }
}

fn agent<F, Fut, I, O>(f: F) -> RunnableFn<F, I, O>
where
    F: Fn(I, RunContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O>> + Send,
    I: Data + Clone,
    O: Data,
{
    instance(&Emitter::new(), "Agent", "desk", f)
}

/// Runs an agent with a `Record`. Returns the result, and the journal after it was written and read back.
async fn recorded<R: Runnable>(agent: &R, input: R::Input) -> (Result<R::Output>, Arc<RunJournal>) {
    let record = Record::new();
    let result = agent.run(input).middleware(record.clone()).await;
    let journal = record.journal().expect("the run has ended");
    let mut file = Vec::new();
    journal.write_to(&mut file).expect("memory can be written to");
    let read = RunJournal::read_from(&*file).expect("it was written by us");
    assert_eq!(read, *journal);
    (result, Arc::new(read))
}

/// Returns the difference that stopped a replay.
fn difference(error: &Error) -> Difference {
    assert_eq!(error.kind(), &ErrorKind::Halted { by: "replay".to_owned() }, "{error:?}");
    serde_json::from_value(error.details()["difference"].clone()).expect("it was written by us")
}

#[tokio::test]
async fn a_journal_contains_the_input_answer_parent_and_order_of_each_run_below() -> TestResult {
    let (result, journal) = recorded(&desk(&Emitter::new()), question()).await;
    assert_eq!(result?, "README.md has 2");
    assert_eq!((&*journal.kind, &*journal.name, journal.status), ("Assistant", "Desk", Some(Status::Success)));
    let told = |entry: &Entry| {
        let Entry { id, parent, kind, name, path, input, answers, status, ended, .. } = entry;
        json!([id, parent, kind, name, path, input, answers, status, ended])
    };
    let expected = [
        json!([1, null, "Tool", "read_file", "tool.read_file", {"path": "README.md"},
            [{"output": "README.md has 2"}], "success", 2]),
        json!([2, 1, "Tool", "decode", "tool.decode", [1, 2], [{"output": 2}], "success", 1]),
    ];
    assert_eq!(journal.entries.iter().map(told).collect::<Vec<_>>(), expected);
    Ok(())
}

#[tokio::test]
async fn each_run_below_is_answered_from_the_journal_without_calling_its_work() -> TestResult {
    let done = Done::default();
    let random = done.tool("random", |seed: u32, n| Ok(seed * 100 + n));
    let agent = agent(move |n: u32, _: RunContext| {
        let random = Arc::clone(&random);
        async move { Ok((n, random.run(1).await?, random.run(2).await?, random.run(1).await?)) }
    });
    let (result, journal) = recorded(&agent, 0).await;
    assert_eq!((result?, done.take()), ((0, 101, 202, 103), 3));
    let replay = Replay::from(journal);
    for n in [0, 1] {
        let again = agent.run(n).middleware(replay.clone()).await?;
        assert_eq!((again, done.take()), ((n, 101, 202, 103), 0), "the bound run does its own work");
    }
    Ok(())
}

#[tokio::test]
async fn concurrent_runs_receive_their_own_answers_in_any_order_of_beginning() -> TestResult {
    let done = Done::default();
    let random = done.tool("random", |seed: u32, n| Ok(seed * 1_000 + n));
    let agent = agent(move |is_backwards: bool, _: RunContext| {
        let random = Arc::clone(&random);
        async move {
            let mut seeds: Vec<_> = (0..100).collect();
            if is_backwards {
                seeds.reverse();
            }
            let mut results: Vec<u32> =
                join_all(seeds.into_iter().map(|seed| random.run(seed))).await.into_iter().collect::<Result<_>>()?;
            results.sort_unstable();
            Ok(results)
        }
    });
    let (result, journal) = recorded(&agent, false).await;
    done.take();
    assert_eq!(agent.run(true).middleware(Replay::from(journal)).await?, result?);
    assert_eq!(done.take(), 0);
    Ok(())
}

#[tokio::test]
async fn a_recording_and_a_replay_are_shared_by_100_concurrent_runs() -> TestResult {
    let done = Done::default();
    let random = done.tool("random", |seed: u32, n| Ok(seed * 1_000 + n));
    let agent = agent(move |n: u32, _: RunContext| {
        let random = Arc::clone(&random);
        async move { Ok((random.run(n).await?, random.run(n + 1).await?)) }
    });
    let journals: Arc<Mutex<Vec<Arc<RunJournal>>>> = Arc::default();
    let keep = Arc::clone(&journals);
    let record = Record::on_end(move |journal| {
        keep.lock().expect("nobody panics").push(Arc::clone(journal));
        Ok(())
    });
    join_all((0..100).map(|n| agent.run(n).middleware(record.clone()))).await;
    let journals = std::mem::take(&mut *journals.lock().expect("nobody panics"));
    assert_eq!(journals.len(), 100);
    assert!(journals.iter().all(|journal| journal.entries.len() == 2));
    let (of_seven, _) =
        (journals.iter().find(|journal| journal.entries[0].input == 7).expect("one of them"), done.take());
    let replay = Replay::from(Arc::clone(of_seven));
    let results = join_all((0..100).map(|_| agent.run(7).middleware(replay.clone()))).await;
    let first = results[0].as_ref().expect("as recorded");
    assert!(results.iter().all(|result| result.as_ref().is_ok_and(|result| result == first)));
    assert_eq!(done.take(), 0);
    Ok(())
}

#[tokio::test]
async fn replayed_errors_equal_the_recorded_errors() -> TestResult {
    type Ends = fn() -> Error;
    let rows: [Ends; 9] = [
        || Error::new("no").detail("path", "a").caused_by(std::io::Error::other("disk")),
        || Error::new("later").retryable(true),
        || Error::denied("policy", "no"),
        || Error::halted("budget", "spent"),
        || Error::interrupted(Interrupt::new("approval", json!({"path": "a"}))),
        || Error::timed_out("late"),
        || Error::aborted("enough"),
        || Error::retry_with("again", 3),
        || panic!("oh"),
    ];
    for (i, ends) in rows.into_iter().enumerate() {
        let done = Done::default();
        let tool = done.tool("fails", move |(): (), _| Err::<(), _>(ends()));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let see = Arc::clone(&seen);
        let agent = agent(move |(): (), _: RunContext| {
            let (tool, see) = (Arc::clone(&tool), Arc::clone(&see));
            async move {
                let error = tool.run(()).await.expect_err("it fails");
                see.lock().expect("nobody panics").push(error.report());
                Ok(error.to_string())
            }
        });
        let (result, journal) = recorded(&agent, ()).await;
        done.take();
        assert_eq!(agent.run(()).middleware(Replay::from(journal)).await?, result?, "row {i}");
        let seen = seen.lock().expect("nobody panics");
        assert_eq!((seen.len(), done.take()), (2, 0));
        assert_eq!(seen[0], seen[1], "row {i}");
    }
    Ok(())
}

#[derive(Debug)]
struct AddOne;
impl<O: Op<In = u32, Out = u32>> Transform<O> for AddOne {
    async fn input(&self, input: &u32, _: &RunContext) -> Result<Option<u32>> {
        Ok(Some(input + 1))
    }

    async fn output(&self, output: u32, _: &RunContext) -> Result<u32> {
        Ok(output + 1)
    }
}

#[tokio::test]
async fn layers_and_output_middlewares_change_a_replayed_output_exactly_once() -> TestResult {
    let done = Done::default();
    let count = done.tool("count", |n: u32, _| Ok(n * 10));
    let agent = agent(move |n: u32, _: RunContext| {
        let count = Arc::clone(&count);
        async move {
            let twice = map_output(|n: &mut u32, _: &RunContext| {
                *n *= 2;
                Ok(())
            });
            count
                .run(n)
                .layers(|stack| stack.transform(AddOne))
                .middleware(twice)
                .on_start(|start, _| start.input += 1)
                .await
        }
    });
    let (result, journal) = recorded(&agent, 1).await;
    assert_eq!((result?, done.take()), (62, 1));
    assert_eq!(agent.run(1).middleware(Replay::from(journal)).await?, 62);
    assert_eq!(done.take(), 0);
    Ok(())
}

#[tokio::test]
async fn each_attempt_of_a_run_below_is_replayed_and_an_unrecorded_attempt_is_a_difference() -> TestResult {
    let done = Done::default();
    let count = done.tool("count", |(): (), n| if n == 2 { Err(Error::retry("even")) } else { Ok(n) });
    let agent = agent(move |most: u32, _: RunContext| {
        let count = Arc::clone(&count);
        async move {
            let enough =
                map_output(|n: &mut u32, _: &RunContext| if *n < 3 { Err(Error::retry("too few")) } else { Ok(()) });
            count.run(()).middleware(enough).max_middleware_retries(most).await
        }
    });
    let (result, journal) = recorded(&agent, 5).await;
    assert_eq!((result?, done.take()), (3, 3));
    assert_eq!(journal.entries[0].answers.len(), 3);
    assert_eq!(agent.run(5).middleware(Replay::from(journal)).await?, 3);
    assert_eq!(done.take(), 0);

    let (result, journal) = recorded(&agent, 0).await;
    assert!(result.expect_err("too few").is_retry());
    let error = agent.run(1).middleware(Replay::from(journal)).await.expect_err("one more attempt");
    let message = "Tool[count] with `null`, the journal's entry 1, is attempted more often than recorded (attempts in the journal: 1)";
    assert_eq!(error.to_string(), message);
    Ok(())
}

#[tokio::test]
async fn each_attempt_of_the_bound_run_is_replayed_with_its_own_recorded_runs() -> TestResult {
    let done = Done::default();
    let count = done.tool("count", |(): (), n| Ok(n));
    let agent = agent(move |(): (), ctx: RunContext| {
        let count = Arc::clone(&count);
        async move {
            let n = count.run(()).await?;
            if ctx.attempt() < 2 { Err(Error::retry("again")) } else { Ok(n) }
        }
    });
    let record = Record::new();
    let run = || agent.run(()).max_middleware_retries(2);
    assert_eq!(run().middleware(record.clone()).await?, 3);
    let journal = record.journal().expect("it has ended");
    assert_eq!(journal.entries.iter().map(|entry| entry.round).collect::<Vec<_>>(), [0, 1, 2]);
    done.take();
    assert_eq!(run().middleware(Replay::from(journal)).await?, 3);
    assert_eq!(done.take(), 0);
    Ok(())
}

/// An agent that reads or lists each of its inputs.
fn reader(done: &Done) -> impl Runnable<Input = Vec<Value>, Output = usize> + 'static {
    let (read, list) = (done.tool("read", |_: Value, n| Ok(n)), done.tool("list", |_: Value, n| Ok(n)));
    agent(move |wanted: Vec<Value>, _: RunContext| {
        let (read, list) = (Arc::clone(&read), Arc::clone(&list));
        async move {
            for input in &wanted {
                // The agent ignores failures, but a difference still stops the run.
                let _: Result<u32> =
                    if input.is_array() { list.run(input.clone()).await } else { read.run(input.clone()).await };
            }
            Ok(wanted.len())
        }
    })
}

#[tokio::test]
async fn the_first_difference_stops_the_run_with_an_error_that_describes_it() -> TestResult {
    let done = Done::default();
    let reader = reader(&done);
    let (_, journal) = recorded(&reader, vec![json!({"path": "a", "lines": [1, 2]}), json!(["b"])]).await;
    let rows = [
        (
            vec![json!({"path": "a", "lines": [1, 3]}), json!(["b"])],
            "in Agent[desk], the journal's entry 1 is Tool[read] with `{\"lines\":[1,2],\"path\":\"a\"}`, \
             but the run has the input `{\"lines\":[1,3],\"path\":\"a\"}`: the inputs differ at `$.lines[1]`",
        ),
        (
            vec![json!({"path": "a", "lines": [1, 2]}), json!("c"), json!("d")],
            "Agent[desk] started Tool[read] with `\"c\"`, but the journal's next entry there, 2, is \
             Tool[list] with `[\"b\"]`",
        ),
        (
            vec![json!({"path": "a", "lines": [1, 2]}), json!(["b"]), json!("d")],
            "Agent[desk] started Tool[read] with `\"d\"`, but the journal contains no further run there",
        ),
        (
            vec![json!({"path": "a", "lines": [1, 2]})],
            "Agent[desk] ended without Tool[list] with `[\"b\"]`, the journal's entry 2",
        ),
        (vec![], "Agent[desk] ended without Tool[read] with `{\"lines\":[1,2],\"path\":\"a\"}`, the journal's entry 1"),
    ];
    done.take();
    for (wanted, message) in rows {
        let error = reader.run(wanted).middleware(Replay::from(Arc::clone(&journal))).await.expect_err(message);
        assert_eq!(error.to_string(), message);
        assert_eq!(difference(&error).to_string(), message);
        assert_eq!(done.take(), 0, "nothing is done");
    }
    let same_in_other_order = vec![json!(["b"]), json!({"lines": [1, 2], "path": "a"})];
    assert_eq!(reader.run(same_in_other_order).middleware(Replay::from(journal)).await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_run_is_not_answered_with_an_entry_recorded_below_another_run() -> TestResult {
    let done = Done::default();
    let inner = done.tool("inner", |n: u32, _| Ok(n));
    let below = Arc::clone(&inner);
    let outer = Arc::new(instance(&Emitter::new(), "Tool", "outer", move |n: u32, _: RunContext| {
        let inner = Arc::clone(&below);
        async move { inner.run(n).await }
    }));
    let agent = agent(move |by_itself: bool, _: RunContext| {
        let (inner, outer) = (Arc::clone(&inner), Arc::clone(&outer));
        async move { if by_itself { inner.run(1).await } else { outer.run(1).await } }
    });
    let (_, journal) = recorded(&agent, false).await;
    assert_eq!((journal.entries.len(), done.take()), (2, 1));
    let error = agent.run(true).middleware(Replay::from(journal)).await.expect_err("it was recorded elsewhere");
    assert!(matches!(difference(&error), Difference::Unexpected { expected: Some((1, _)), .. }), "{error}");
    assert_eq!(done.take(), 0);
    Ok(())
}

#[tokio::test]
async fn a_difference_in_a_task_stops_the_pending_work_of_the_run() -> TestResult {
    let done = Done::default();
    let read = done.tool("read", |_: u32, n| Ok(n));
    let agent = agent(move |n: u32, ctx: RunContext| {
        let read = Arc::clone(&read);
        async move {
            let task = ctx.spawn(async move { read.run(n).await });
            if n > 0 {
                std::future::pending::<()>().await;
            }
            task.await?
        }
    });
    let (_, journal) = recorded(&agent, 0).await;
    let error = agent.run(1).middleware(Replay::from(journal)).await.expect_err("another input");
    assert!(matches!(difference(&error), Difference::OtherInput { entry: 1, .. }), "{error}");
    Ok(())
}

#[tokio::test]
async fn an_error_of_the_work_is_the_cause_of_a_difference_about_a_missing_run() -> TestResult {
    let done = Done::default();
    let read = done.tool("read", |_: u32, n| Ok(n));
    let agent = agent(move |fails: bool, _: RunContext| {
        let read = Arc::clone(&read);
        async move { if fails { Err(Error::denied("policy", "no more")) } else { read.run(1).await } }
    });
    let (_, journal) = recorded(&agent, false).await;
    let error = agent.run(true).middleware(Replay::from(journal)).await.expect_err("a run is missing");
    assert!(matches!(difference(&error), Difference::Missing { entry: 1, .. }));
    assert!(error.explain().contains("caused by: no more"), "{}", error.explain());
    Ok(())
}

#[tokio::test]
async fn a_recording_that_ended_with_a_denial_is_replayed_as_the_denial() -> TestResult {
    let done = Done::default();
    let read = done.tool("read", |_: u32, n| Ok(n));
    let agent = agent(move |n: u32, _: RunContext| {
        let read = Arc::clone(&read);
        async move { Err::<(), _>(Error::denied("policy", format!("no more than {}", read.run(n).await?))) }
    });
    let (result, journal) = recorded(&agent, 1).await;
    let live = result.expect_err("it denies");
    let error = agent.run(1).middleware(Replay::from(journal)).await.expect_err("it denies again");
    assert_eq!((error.kind(), error.to_string()), (live.kind(), live.to_string()));
    assert!(error.is_denied(), "{error}");
    assert_eq!(done.take(), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_dropped_or_timed_out_when_recorded_stays_pending_in_the_replay() -> TestResult {
    let done = Done::default();
    let counted = done.clone();
    let wait = Arc::new(instance(&Emitter::new(), "Tool", "wait", move |ms: u64, _: RunContext| {
        counted.0.fetch_add(1, Ordering::Relaxed);
        async move {
            sleep(Duration::from_millis(ms)).await;
            Ok(ms)
        }
    }));
    let agent = agent(move |is_slow: bool, _: RunContext| {
        let wait = Arc::clone(&wait);
        async move {
            let (slow, fast) = (wait.run(50), wait.run(10));
            let won = select(slow, fast).await.factor_first().0?;
            let late = wait.run(90).timeout(Duration::from_millis(20)).await.expect_err("too late");
            let forever = if is_slow { wait.run(1_000).await? } else { 0 };
            Ok((won, late.is_timed_out(), forever))
        }
    });
    let (result, journal) = recorded(&agent, false).await;
    assert_eq!((result?, done.take()), ((10, true, 0), 3));
    let statuses: Vec<_> = journal.entries.iter().map(|entry| (entry.status, entry.answers.len())).collect();
    let expected = [(Status::Dropped, 0), (Status::Success, 1), (Status::TimedOut, 0)];
    assert_eq!(statuses, expected.map(|(status, answers)| (Some(status), answers)));
    assert_eq!(agent.run(false).middleware(Replay::from(journal)).await?, (10, true, 0));
    assert_eq!(done.take(), 0);

    let (record, handle) = (Record::new(), AbortHandle::new());
    let run = agent.run(true).middleware(record.clone()).abort_on(handle.signal());
    let (result, ()) = tokio::join!(run, async {
        sleep(Duration::from_millis(500)).await;
        handle.abort("enough");
    });
    assert!(result.expect_err("aborted").is_aborted());
    let replay = Replay::from(record.journal().expect("it has ended"));
    let error = agent.run(true).middleware(replay).await.expect_err("there is no more");
    // The recording does not show which of the stopped runs ended the recorded run, so the replay ends at the first of
    // them.
    assert!(matches!(difference(&error), Difference::Ends { .. }), "{error}");
    Ok(())
}

#[tokio::test]
async fn the_journal_of_a_dropped_run_is_kept() -> TestResult {
    let tool = Arc::new(instance(&Emitter::new(), "Tool", "never", |(): (), _: RunContext| async {
        std::future::pending::<()>().await;
        Ok(())
    }));
    let agent = agent(move |(): (), _: RunContext| {
        let tool = Arc::clone(&tool);
        async move { tool.run(()).await }
    });
    let record = Record::new();
    let mut run = Box::pin(agent.run(()).middleware(record.clone()));
    assert!((&mut run).now_or_never().is_none());
    drop(run);
    emitree_runtime::wait_for_ends(Duration::from_secs(5)).await;
    let journal = record.journal().expect("the run was dropped");
    assert_eq!((journal.status, journal.entries.len()), (Some(Status::Dropped), 1));
    Ok(())
}

#[tokio::test]
async fn floating_point_numbers_are_read_from_a_journal_file_exactly() -> TestResult {
    let done = Done::default();
    let half = done.tool("half", |x: f64, n| Ok(x / 2.0 + f64::from(n)));
    let agent = agent(move |(): (), _: RunContext| {
        let half = Arc::clone(&half);
        async move {
            let mut sum = 0.0;
            for n in 1..500 {
                sum += half.run(1.0 / f64::from(n) * 1e-17).await?;
            }
            half.run(118.754_510_155_009_98).await.map(|x| x + sum)
        }
    });
    let (result, journal) = recorded(&agent, ()).await;
    let again = agent.run(()).middleware(Replay::from(journal)).await?;
    assert_eq!(again.to_bits(), result?.to_bits());
    Ok(())
}

#[tokio::test]
async fn a_truncated_or_invalid_journal_is_an_error_that_names_the_line_or_version() -> TestResult {
    let (_, journal) = recorded(&desk(&Emitter::new()), question()).await;
    let mut file = Vec::new();
    journal.write_to(&mut file)?;
    let whole = String::from_utf8(file)?;
    let read = |text: &str| RunJournal::read_from(text.as_bytes()).map_err(|error: JournalError| error.to_string());
    assert!(read(&whole).is_ok());
    let torn = read(&whole[..whole.len() - 5]).expect_err("torn");
    assert!(torn.starts_with("line 3 of the journal is incomplete: "), "{torn}");
    let lines: Vec<_> = whole.lines().collect();
    let rows = [
        (
            format!("{}\n{}\n", lines[0], lines[1]),
            "the journal ends at line 2 with 1 of 2 runs: it was not written completely",
        ),
        (String::new(), "the journal ends at line 0 with 0 of 1 runs: it was not written completely"),
        (
            whole.replace("\"version\":1", "\"version\":9"),
            "a journal of version 9 cannot be read: this crate reads version 1",
        ),
    ];
    for (text, message) in rows {
        assert_eq!(read(&text).expect_err(message), message);
    }
    let other = read(&whole.replace("\"id\":1", "\"di\":1")).expect_err("a line of something else");
    assert!(other.starts_with("line 2 of the journal is not a journal line: missing field `id`"), "{other}");
    for cut in 0..whole.len() - 1 {
        assert!(whole.is_char_boundary(cut) && read(&whole[..cut]).is_err(), "cut at {cut}");
    }
    Ok(())
}

#[tokio::test]
async fn events_of_record_and_replay_reach_their_emitters_and_the_run() -> TestResult {
    let heard = Heard::default();
    let desk = desk(&Emitter::new());
    let record = Record::new();
    record.emitter().observe("recorded", hears::<Recorded>("own", &heard))?;
    let run = desk.run(question()).middleware(record.clone());
    run.observe("middleware.record.*", hears::<dyn AnyEvent>("run", &heard)).await?;
    let replay = Replay::from(record.journal().expect("it has ended"));
    replay.emitter().observe("replayed", hears::<Replayed>("own", &heard))?;
    let run = desk.run(question()).middleware(replay);
    run.observe("middleware.replay.*", hears::<dyn AnyEvent>("run", &heard)).await?;
    let recorded = ("middleware.record.recorded", Some(false), json!({"runs": 2, "status": "success"}));
    let replayed = ("middleware.replay.replayed", Some(true), json!({"entry": 1, "kind": "Tool", "name": "read_file"}));
    let expected: Vec<_> = [recorded, replayed]
        .into_iter()
        .flat_map(|(path, run, json)| ["own", "run"].map(|who| (who, path.to_owned(), run, json.clone())))
        .collect();
    assert_eq!(*heard.lock().expect("nobody panics"), expected);
    Ok(())
}

/// For each event, in order: the observer, the path, whether the event's run is nested, and the payload.
type Heard = Arc<Mutex<Vec<(&'static str, String, Option<bool>, Value)>>>;

/// Returns an observer that records events of type `E`.
fn hears<E: AnyEvent + ?Sized>(who: &'static str, heard: &Heard) -> impl Fn(&E, &EventMeta<'_>) + Send + Sync + use<E> {
    let heard = Arc::clone(heard);
    move |event, meta| {
        let is_nested = meta.trace().map(|trace| trace.parent_run_id.is_some());
        heard.lock().expect("nobody panics").push((who, meta.path().to_owned(), is_nested, event.payload_to_json()));
    }
}

// The middlewares may be bound in any order, and a listener may be registered at any time before the end.
#[tokio::test]
async fn recorded_reaches_a_listener_that_is_registered_before_the_end_of_the_run() -> TestResult {
    let heard = Arc::new(AtomicU32::new(0));
    let listen = |ctx: &RunContext, heard: &Arc<AtomicU32>| {
        let heard = Arc::clone(heard);
        ctx.emitter().observe("middleware.record.recorded", move |_: &dyn AnyEvent, _| {
            heard.fetch_add(1, Ordering::Relaxed);
        })
    };
    let (late, under_way) = (Arc::clone(&heard), Arc::clone(&heard));
    let bound_later = move |ctx: &RunContext| listen(ctx, &late).map(drop).map_err(Error::from);
    agent(|(): (), _: RunContext| async { Ok(()) }).run(()).middleware(Record::new()).middleware(bound_later).await?;
    assert_eq!(heard.swap(0, Ordering::Relaxed), 1);
    let listens = agent(move |(): (), ctx: RunContext| {
        let listening = listen(&ctx, &under_way).map(drop);
        async move { Ok(listening?) }
    });
    listens.run(()).middleware(Record::new()).await?;
    assert_eq!(heard.load(Ordering::Relaxed), 1);
    Ok(())
}

#[tokio::test]
async fn a_difference_is_emitted_as_differed() -> TestResult {
    let done = Done::default();
    let reader = reader(&done);
    let (_, journal) = recorded(&reader, vec![json!("a")]).await;
    let (replay, said) = (Replay::from(journal), Arc::new(Mutex::new(Vec::new())));
    let say = Arc::clone(&said);
    replay.emitter().on("differed", move |event: &mut Difference, _| {
        say.lock().expect("nobody panics").push(event.clone());
    })?;
    let error = reader.run(vec![json!("b")]).middleware(replay).await.expect_err("another input");
    assert_eq!(*said.lock().expect("nobody panics"), [difference(&error)]);
    Ok(())
}

// M5: observers fail open.
#[tokio::test]
async fn failing_listeners_and_a_failing_on_end_function_do_not_affect_record_and_replay() -> TestResult {
    let [at_end, recorded, replayed]: [Failing; 3] = Default::default();
    let ending = at_end.clone();
    let record = Record::on_end(move |_| ending.fail());
    record.emitter().on("*.*", recorded.listener::<Any>())?;
    let desk = desk(&Emitter::new());
    assert_eq!(desk.run(question()).middleware(record.clone()).await?, "README.md has 2");
    let replay = Replay::from(record.journal().expect("it is kept all the same"));
    replay.emitter().on("*.*", replayed.listener::<Any>())?;
    assert_eq!(desk.run(question()).middleware(replay).await?, "README.md has 2");
    assert_eq!([at_end, recorded, replayed].map(|failing| failing.calls()), [1, 1, 1]);
    Ok(())
}

#[tokio::test]
async fn an_output_that_is_not_json_is_recorded_as_an_error() -> TestResult {
    let desk = agent(|(): (), _: RunContext| async move {
        let pairs = runnable_fn("pairs", |(): (), _: RunContext| async { Ok(BTreeMap::from([((1, 2), 3)])) });
        Ok(pairs.run(()).await?.len())
    });
    let (result, journal) = recorded(&desk, ()).await;
    // M5: observers fail open.
    assert_eq!(result?, 1);
    let AttemptResult::Error(report) = &journal.entries[0].answers[0] else { panic!("{journal:?}") };
    assert!(report.message.contains("BTreeMap<(i32, i32), i32>`, cannot be converted to JSON"), "{report:?}");
    let error = desk.run(()).middleware(Replay::from(journal)).await.expect_err("there is no answer");
    assert!(error.explain().contains("cannot be converted to JSON"), "{}", error.explain());
    Ok(())
}

#[tokio::test]
async fn a_recording_with_for_tree_keeps_a_journal_for_each_run() -> TestResult {
    let journals: Arc<Mutex<Vec<(String, usize)>>> = Arc::default();
    let keep = Arc::clone(&journals);
    let record = Record::on_end(move |journal| {
        keep.lock().expect("nobody panics").push((journal.name.clone(), journal.entries.len()));
        Ok(())
    });
    desk(&Emitter::new()).run(question()).middleware(for_tree(record)).await?;
    let expected = [("decode", 0), ("read_file", 1), ("Desk", 2)].map(|(name, runs)| (name.to_owned(), runs));
    assert_eq!(*journals.lock().expect("nobody panics"), expected);
    Ok(())
}

#[tokio::test]
async fn explain_lists_a_recording_and_a_replay() -> TestResult {
    let desk = desk(&Emitter::new());
    let (_, journal) = recorded(&desk, question()).await;
    let run = desk.run(question()).middleware(Record::new()).middleware(Replay::from(journal));
    let lines = [
        "Desk",
        "  bound:",
        "    record: keeps the last journal",
        "    replay: 2 runs below Assistant[Desk]",
        "  passes:",
        "    observe   replay: stops at the first difference",
    ];
    assert_eq!(run.explain().to_string(), lines.join("\n"));
    Ok(())
}
