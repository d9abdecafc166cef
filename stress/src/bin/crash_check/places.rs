//! The words of the log: commits such as `began order/1/0`, with the places that they are about.

/// Returns the entry of a session or a place.
pub(crate) fn entry_of(place: &str) -> &str {
    if place.starts_with("job/clerk") {
        return "job/clerk";
    }
    place.split('/').next().unwrap_or(place)
}

/// Returns the place of a key: the key of a step, or of a call without its hash.
pub(crate) fn place_of(key: &str) -> &str {
    match entry_of(key) {
        "job" => key,
        _ => key.rsplit_once('/').map_or(key, |(place, _)| place),
    }
}

/// Returns the places of the calls, and of the steps with effects, that a commit begins.
pub(crate) fn begun(commits: &[String]) -> impl Iterator<Item = String> {
    let place = |commit: &String| {
        let place = commit.strip_prefix("job-").unwrap_or(commit).strip_prefix("began ");
        place.filter(|place| !["job/who", "job/clerk"].contains(place)).map(str::to_owned)
    };
    commits.iter().filter_map(place)
}

/// Returns the session of the place of a call.
pub(crate) fn session_of(place: &str) -> &str {
    place.rsplitn(3, '/').last().unwrap_or(place)
}

/// Returns the entry of a commit, or `None` if it is an effect.
pub(crate) fn entry_of_commits(commits: &[String]) -> Option<&str> {
    let (kind, place) = commits.first()?.split_once(' ')?;
    match kind {
        "effect" => None,
        _ if kind.starts_with("job-") => Some("job"),
        _ => Some(entry_of(place)),
    }
}

/// Returns the kind of a commit.
pub(crate) fn kind(commit: &str) -> &str {
    commit.split(' ').next().unwrap_or(commit)
}
