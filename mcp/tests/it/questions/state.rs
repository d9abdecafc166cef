//! The state of a call at its server is kept with the call, and is nowhere else.

use std::fs::File;
use std::sync::{Arc, Mutex};

use emitree_agent::past::Point;
use emitree_agent::{AgentRun, Session};
use emitree_emitter::{AnyEvent, EventMeta};
use emitree_middleware::store::{MemoryStore, Store};
use emitree_runtime::Runnable;
use emitree_sinks::Memory;
use serde::Serialize;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::questions::{ID, Kill, Ledger, Process, answer, clerk, go_on, savings, transfer};

/// The end of the state that the bank gives a transfer.
const SECRET: &str = "s3cr3t";

/// Everything that was shown, with its place.
#[derive(Default)]
struct Shown(Vec<(&'static str, String)>);

impl Shown {
    fn add(&mut self, at: &'static str, value: &impl Serialize) {
        self.0.push((at, serde_json::to_string(value).unwrap()));
    }

    async fn add_past(&mut self, session: &Session, store: &MemoryStore, id: &str) {
        for point in [Point::Now, Point::Before(1)] {
            let past = session.at(point).await.unwrap();
            self.0.push(("an earlier point", format!("{past:?} {:?}", past.history())));
        }
        let fork = session.fork(Point::Now, id).await.unwrap();
        self.add("a fork", &fork);
        let stored = store.load(id).await.unwrap().unwrap();
        let parts = stored.parts.iter().map(|part| String::from_utf8_lossy(part).into_owned());
        self.0.push(("the entry of a fork", format!("{:?} {}", stored.head, parts.collect::<String>())));
    }
}

/// The pages and the spans of recordings are made of records alone.
#[tokio::test]
async fn the_state_of_a_call_is_in_no_question_event_record_span_error_fork_or_earlier_point() {
    let file = std::env::temp_dir().join(format!("emitree-mcp-log-{}", std::process::id()));
    let log = Arc::new(File::create(&file).unwrap());
    let subscriber = tracing_subscriber::fmt().with_writer(log).with_span_events(FmtSpan::FULL);
    let _subscribed = tracing::subscriber::set_default(subscriber.finish());
    let (store, ledger) = (MemoryStore::new(), Ledger::new());
    let server = ledger.bank("new").await;
    let agent = clerk(server.tools(), &[transfer(5)]);
    let (events, records) = (Arc::new(Mutex::new(Vec::new())), Memory::new());
    for emitter in [agent.emitter(), server.emitter()] {
        let noted = Arc::clone(&events);
        let observe = move |event: &dyn AnyEvent, _: &EventMeta<'_>| {
            noted.lock().unwrap().push(format!("{:?} {event:?}", event.to_json()));
        };
        emitter.observe("**", observe).unwrap();
    }
    let recording = agent.emitter().pipe_to(records.clone()).unwrap();
    let recording_of_server = server.emitter().pipe_to(records.clone()).unwrap();

    let session = Session::open(&Process::killed_at(&store, Kill::Never), ID).await.unwrap();
    let error = agent.ask("Pay.").session(&session).await.unwrap_err();
    assert!(serde_json::to_string(&session).unwrap().contains(SECRET), "the session has it");
    let mut shown = Shown::default();
    shown.add("the report of the error", &error.report());
    shown.0.push(("the error", format!("{error:?} {error} {:?}", error.interrupt())));
    shown.add("the questions", &session.questions());
    shown.0.push(("debug output", format!("{:?} {session:?}", session.questions())));
    shown.add_past(&session, &store, "fork").await;
    answer(&session, savings()).await;
    assert!(go_on(&agent, &session).await);
    shown.add_past(&session, &store, "later").await;

    recording.flush().await.complete().unwrap();
    recording_of_server.flush().await.complete().unwrap();
    assert!(events.lock().unwrap().len() > 10 && records.records().len() > 10);
    shown.0.push(("records", format!("{:?}", records.records())));
    shown.0.push(("events", events.lock().unwrap().join("\n")));
    let log = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(log.contains("transfer"), "the log has spans: {log}");
    shown.0.push(("spans and logs", log));
    shown.0.iter().for_each(|(at, text)| assert!(!text.contains(SECRET), "{at}: {text}"));
}
