//! The delay that a collector asks for.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, RETRY_AFTER};

/// Returns the delay of the header `retry-after`: a number of seconds or an HTTP date. A date in the past is no
/// delay. A header that cannot be read is ignored.
pub(super) fn delay(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = || text.parse().ok().map(Duration::from_secs);
    let date = || Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default());
    seconds().or_else(date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_the_header_is_read_and_invalid_values_are_ignored() {
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let table = [
            (Some("2"), Some(2)),
            (Some(" 0 "), Some(0)),
            (Some("Sun, 06 Nov 1994 08:49:40 GMT"), Some(3)),
            (Some("Sun, 06 Nov 1994 08:49:30 GMT"), Some(0)),
            (Some("Sunday, 06-Nov-94 08:49:40 GMT"), Some(3)),
            (Some("Sun Nov  6 08:49:40 1994"), Some(3)),
            (Some("-3"), None),
            (Some("later"), None),
            (Some(""), None),
            (None, None),
        ];
        for (text, expected) in table {
            let headers: HeaderMap = text.iter().map(|text| (RETRY_AFTER, text.parse().unwrap())).collect();
            assert_eq!(delay(&headers, now), expected.map(Duration::from_secs), "{text:?}");
        }
    }
}
