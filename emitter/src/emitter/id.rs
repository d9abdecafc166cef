//! Version 7 UUIDs, made from a time and a thread-local random number.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use uuid::Uuid;

thread_local! {
    /// The generator of the thread's random bits. `RandomState` supplies a seed from the operating system. The default
    /// seed of `fastrand` comes from the clock and the thread's id, so two processes may get the same seed.
    static RANDOM: RefCell<Rng> = RefCell::new(Rng::with_seed(RandomState::new().hash_one(())));
}

/// Returns a version 7 UUID (RFC 9562, 5.7) for a time: 48 bits of milliseconds, 74 random bits.
///
/// The random bits come from a generator that the operating system seeds once per thread. The ids are unique, but
/// not secret.
pub(crate) fn at(time: SystemTime) -> Uuid {
    // A clock before 1970 counts as 1970, so that this function cannot fail.
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let millis = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
    let random = RANDOM.with_borrow_mut(|random| random.u128(..)).to_le_bytes();
    let mut tail = [0; 10];
    tail.copy_from_slice(&random[..10]);
    uuid::Builder::from_unix_timestamp_millis(millis, &tail).into_uuid()
}

/// Returns a version 7 UUID for the current time.
#[must_use]
pub fn new_id() -> Uuid {
    at(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_unique_version_7_and_carry_their_time() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let ids: HashSet<Uuid> = (0..10_000).map(|_| at(time)).collect();
        assert_eq!(ids.len(), 10_000);
        for id in ids {
            assert_eq!(id.get_version_num(), 7);
            assert_eq!(id.get_timestamp().map(|t| t.to_unix()), Some((1_700_000_000, 123_000_000)));
        }
    }

    #[test]
    fn threads_do_not_share_a_seed() {
        let draw = || std::thread::spawn(|| at(SystemTime::UNIX_EPOCH)).join().expect("it only draws");
        assert_ne!(draw(), draw());
    }
}
