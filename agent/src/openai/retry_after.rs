//! The delay that a server requests before the next attempt.

use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;

/// Returns the delay in milliseconds, or `None` if no header has a valid delay. The delay is read from the header
/// `retry-after-ms` or, if that is missing or invalid, from `retry-after`. The latter is an HTTP date or a number of
/// seconds, possibly with a fraction. A date in the past counts as 0.
pub(super) fn milliseconds(headers: &HeaderMap, now: SystemTime) -> Option<u64> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |name, unit: f64| Duration::try_from_secs_f64(text(name)?.parse::<f64>().ok()? * unit).ok();
    let date = || {
        let at = httpdate::parse_http_date(text("retry-after")?).ok()?;
        Some(at.duration_since(now).unwrap_or_default())
    };
    let time = number("retry-after-ms", 0.001).or_else(|| number("retry-after", 1.0)).or_else(date)?;
    u64::try_from(time.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_the_retry_after_header_is_read_and_invalid_values_are_ignored() {
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        type Headers<'a> = &'a [(&'a str, &'a str)];
        let table: [(Headers<'_>, Option<u64>); 12] = [
            (&[("retry-after-ms", "120")], Some(120)),
            (&[("retry-after-ms", "0.5")], Some(0)),
            (&[("retry-after-ms", "40"), ("retry-after", "9")], Some(40)),
            (&[("retry-after-ms", "soon"), ("retry-after", "9")], Some(9000)),
            (&[("retry-after", "2")], Some(2000)),
            (&[("retry-after", "0.25")], Some(250)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT")], Some(3000)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT")], Some(0)),
            (&[("retry-after", "-3")], None),
            (&[("retry-after", "NaN")], None),
            (&[("retry-after", "later")], None),
            (&[], None),
        ];
        for (headers, expected) in table {
            let headers: HeaderMap =
                headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            assert_eq!(milliseconds(&headers, now), expected, "{headers:?}");
        }
    }
}
