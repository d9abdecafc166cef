//! The faults of the workers, their networks and their server.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::processes::{End, Place};
use crate::proxy::{Network, Proxy};
use crate::server::Server;

const CUTS: [Network; 6] = [
    Network::Closes,
    Network::SwallowsRequests,
    Network::SwallowsReplies,
    Network::SwallowsBoth,
    Network::SwallowsRepliesTo(b"append_1"),
    Network::SwallowsRepliesTo(b"take_1"),
];
/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How often something has happened.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    kills: usize,
    stops: usize,
    cuts: usize,
    server_stops: usize,
    aborts: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, stops, cuts, server_stops, aborts } = self;
        write!(f, "{kills} kills, {stops} stops, {cuts} cuts of the network, ")?;
        write!(f, "{server_stops} stops of the server, {aborts} processes that their jobs have aborted")
    }
}

/// The workers, and what happens to them.
pub(crate) struct Disturber {
    pub(crate) places: Vec<Place>,
    /// The network of the parent.
    pub(crate) network: Arc<Proxy>,
    pub(crate) server: Arc<Server>,
    pub(crate) lease: Duration,
    pub(crate) random: fastrand::Rng,
    /// The numbers of ended jobs at which the server stops, the last one first.
    pub(crate) server_stops: Vec<usize>,
    pub(crate) ended: Arc<AtomicUsize>,
    pub(crate) counts: Counts,
    /// The numbers of the processes that were told to end.
    pub(crate) shut_down: BTreeSet<u32>,
    /// The workers that have ended by themselves.
    pub(crate) faults: Vec<String>,
}

impl Disturber {
    /// Disturbs until it is told to end. Then all processes go on, and the network works.
    pub(crate) async fn disturb(mut self, end: CancellationToken) -> io::Result<Self> {
        let mut next = Instant::now() + self.pause();
        let mut number = 0;
        let mut restart: Option<JoinHandle<io::Result<()>>> = None;
        let mut own_cut_until = None;
        while !end.is_cancelled() {
            let now = Instant::now();
            self.look(now)?;
            if own_cut_until.is_some_and(|until| until <= now) {
                self.network.set(Network::Works);
                own_cut_until = None;
            }
            if let Some(restarted) = restart.take_if(|restart| restart.is_finished()) {
                restarted.await??;
            }
            let ended = self.ended.load(Ordering::Relaxed);
            if restart.is_none() && self.server_stops.pop_if(|at| *at <= ended).is_some() {
                self.counts.server_stops += 1;
                let server = Arc::clone(&self.server);
                restart = Some(spawn_blocking(move || server.crash()));
            }
            if next <= now {
                next = now + self.pause();
                if let Some(time) = self.happen(number)? {
                    own_cut_until = Some(now + time);
                }
                number += 1;
            }
            sleep(LOOK).await;
        }
        if let Some(restart) = restart {
            restart.await??;
        }
        self.network.set(Network::Works);
        for place in &mut self.places {
            place.mend();
            place.go_on()?;
        }
        Ok(self)
    }

    /// Only replaces processes that have ended, until it is told to end.
    pub(crate) async fn rest(mut self, end: CancellationToken) -> io::Result<Self> {
        while !end.is_cancelled() {
            self.look(Instant::now())?;
            sleep(LOOK).await;
        }
        Ok(self)
    }

    /// Returns the time until something happens.
    fn pause(&mut self) -> Duration {
        // With more workers, more happens.
        self.lease.mul_f64((0.5 + 2.0 * self.random.f64()) / self.places.len() as f64)
    }

    fn look(&mut self, now: Instant) -> io::Result<()> {
        for place in &mut self.places {
            match place.look(now)? {
                Some(End::Abort) => self.counts.aborts += 1,
                Some(End::Other(status)) => self.faults.push(format!("a worker has ended by itself: {status}")),
                Some(End::Shutdown) | None => {}
            }
        }
        Ok(())
    }

    /// Lets something happen. The first four are different. Returns the time for which the network of the parent is cut.
    fn happen(&mut self, number: usize) -> io::Result<Option<Duration>> {
        let place = self.random.usize(..self.places.len());
        let time = self.lease.mul_f64(0.3 + 2.7 * self.random.f64());
        let network = CUTS[self.random.usize(..CUTS.len())];
        let what = if number < 4 { number * 3 } else { self.random.usize(..10) };
        let is_parent = self.random.u8(..3) == 0;
        let place = &mut self.places[place];
        match what {
            0..=2 => {
                place.kill()?;
                self.counts.kills += 1;
            }
            3..=5 => self.counts.stops += usize::from(place.stop(time)?),
            6..=8 => {
                self.counts.cuts += 1;
                if is_parent {
                    self.network.set(network);
                    return Ok(Some(time));
                }
                place.cut(network, time);
            }
            _ => self.shut_down.extend(place.shut_down()),
        }
        Ok(None)
    }
}
