//! To which hosts URLs may lead. What cannot be read for certain is not allowed.

/// Hosts that are allowed.
#[derive(Clone, Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// Names, and `*.example.org` for all below one.
    pub(super) fn new(allowed: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self(allowed.into_iter().map(|host| host.as_ref().trim_end_matches('.').to_ascii_lowercase()).collect())
    }

    /// Whether a URL in the text leads elsewhere.
    pub(super) fn are_left(&self, text: &str) -> bool {
        authorities(text).any(|authority| !self.allow(authority))
    }

    fn allow(&self, authority: &str) -> bool {
        let Some(host) = host(authority) else { return false };
        let takes = |allowed: &String| match allowed.strip_prefix("*.") {
            Some(above) => host.strip_suffix(above).is_some_and(|below| below.len() > 1 && below.ends_with('.')),
            None => host == *allowed,
        };
        self.0.iter().any(takes)
    }
}

/// The parts of a text that stand where a URL has its host: behind `://`, behind the name of a scheme of the web and any
/// slashes of either sort, and behind `//` at the beginning of a quoted or bracketed text.
fn authorities(text: &str) -> impl Iterator<Item = &str> {
    let places = text.match_indices(['/', '\\', ':']).filter_map(|(at, _)| begin(text, at));
    places.map(|at| {
        let rest = &text[at..];
        let ends =
            |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | ')' | '`' | ',');
        &rest[..rest.find(ends).unwrap_or(rest.len())]
    })
}

/// Where the host begins, if it does so behind what stands there.
fn begin(text: &str, at: usize) -> Option<usize> {
    const WEB: [&str; 5] = ["http", "https", "ws", "wss", "ftp"];
    let (before, from) = (&text[..at], &text[at..]);
    let slashes = |text: &str| text.len() - text.trim_start_matches(['/', '\\']).len();
    if let Some(rest) = from.strip_prefix(':') {
        let scheme =
            before.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_ascii_lowercase();
        let (count, is_web) = (slashes(rest), WEB.contains(&scheme.as_str()));
        let is_file = scheme == "file";
        let leads = (count > 0 && is_web) || (rest.starts_with("//") && !is_file);
        return leads.then_some(at + 1 + if is_web { count } else { 2 });
    }
    let is_relative = slashes(from) >= 2 && before.ends_with(['"', '\'', '(', '=', '<']);
    (is_relative && !from[slashes(from)..].starts_with(char::is_whitespace)).then(|| at + slashes(from))
}

/// The host of an authority, without user and port; none where readers of URLs disagree.
fn host(authority: &str) -> Option<String> {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => host.split_at(rest.find(']')? + 2),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']' | ':');
    let is_port = port.starts_with(':') || port.chars().all(|c| c == '.');
    let is_certain = !authority.contains('\\') && is_port && !host.is_empty() && host.chars().all(is_plain);
    // A sentence may end behind it.
    is_certain.then(|| host.trim_end_matches('.').to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_certainly_leads_to_an_allowed_host_passes() {
        let hosts = Hosts::new(["example.org", "*.acme.com", "[::1]"]);
        let rows = [
            ("see https://example.org/path?x#y.", false),
            ("see https://example.org.", false),
            ("HTTPS://EXAMPLE.ORG:8443/", false),
            ("https://api.acme.com and (https://a.b.acme.com)", false),
            ("http://[::1]:80/", false),
            ("see http://[::1].", false),
            ("http://[::1]evil.net/", true),
            ("http://[::1].evil.net/", true),
            ("no URL // a comment, a:b, C:\\dir, file:///etc/hosts", false),
            ("https://acme.com", true),
            ("https://evilacme.com", true),
            ("https://example.org.evil.net/", true),
            ("https://example.org@evil.net/", true),
            ("https://evil.net\\@example.org/", true),
            ("https:/\\evil.net", true),
            ("https:evil.net is no URL here", false),
            ("![x](https://evil.net/i.png?d=1)", true),
            ("<img src=\"//evil.net/x\">", true),
            ("https://ex%61mple.org", true),
            ("https://еxample.org", true),
            ("ftp://evil.net gopher://evil.net", true),
            ("ssh://git@evil.net/x", true),
            ("https://", true),
        ];
        for (text, leaves) in rows {
            assert_eq!(hosts.are_left(text), leaves, "{text}");
        }
    }
}
