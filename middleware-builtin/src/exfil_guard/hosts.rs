//! To which hosts URLs may lead. What cannot be read for certain is not allowed.

/// Hosts that are allowed.
#[derive(Clone, Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// Names, and `*.example.org` for all below one.
    pub(super) fn new(allowed: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self(allowed.into_iter().map(|host| host.as_ref().trim_end_matches('.').to_ascii_lowercase()).collect())
    }

    /// Whether a URL in a text leads elsewhere.
    pub(super) fn are_left(&self, text: &str) -> bool {
        self.are_left_within(text) || beginning(text).is_some_and(|authority| !self.allow(authority))
    }

    /// The same of a part that is not the beginning of a text.
    pub(super) fn are_left_within(&self, part: &str) -> bool {
        authorities(part).any(|authority| !self.allow(authority))
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

/// The parts of a text that stand where a URL has its host, wherever that is: behind `://`, behind the name of a scheme of
/// the web, a colon and any slashes of either sort, and behind two slashes or more at the beginning of what is quoted,
/// bracketed or assigned there.
fn authorities(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(['/', '\\', ':']).filter_map(|(at, _)| begin(text, at)).map(|at| authority(&text[at..]))
}

/// What stands behind two slashes or more, of either sort, at the beginning of a whole text: there it is a URL for who
/// takes the text for one, and a comment for others. So it has to look like a host.
fn beginning(text: &str) -> Option<&str> {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c.is_control());
    let authority = authority(&text[slashes(text)..]);
    // A reader may take a backslash for a slash, or for a part of the user's name.
    let before_backslash = authority.split('\\').next().unwrap_or_default();
    let is_url = slashes(text) >= 2 && [authority, before_backslash].into_iter().any(is_like_host);
    is_url.then_some(authority)
}

/// Up to where the path, or the text around, goes on.
fn authority(rest: &str) -> &str {
    let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | ')' | '`' | ',');
    &rest[..rest.find(ends).unwrap_or(rest.len())]
}

fn slashes(text: &str) -> usize {
    text.len() - text.trim_start_matches(['/', '\\']).len()
}

/// An address, or a name with a dot whose last label is one that a domain at the top can have: `evil.net`, not `TODO`,
/// `pkg:target` or `f.call(x`. A name without a dot leads to no host outside.
fn is_like_host(authority: &str) -> bool {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if let Some(address) = host.strip_prefix('[') {
        return address.contains(':');
    }
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    // IDNA has four of them.
    let is_dot = |c: char| matches!(c, '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}');
    let host = host.trim_end_matches(is_dot);
    let top = host.rsplit_once(is_dot).map_or("", |(_, top)| top).to_lowercase();
    let is_name = top.starts_with("xn--") || top.len() > 1 && top.chars().all(|c| c.is_alphabetic() || !c.is_ascii());
    // `127.0.0.1`, `2130706433` and `0x7f000001` are one; a shorter number is rather a version.
    let is_digit = |c: char| c.is_ascii_hexdigit() || matches!(c, 'x' | 'X' | '.');
    let is_number = host.len() > 6 && host.starts_with(|c: char| c.is_ascii_digit()) && host.chars().all(is_digit);
    (is_name || is_number) && port.chars().all(|c| c.is_ascii_digit())
}

/// Where the host begins, if it does so behind what stands there.
fn begin(text: &str, at: usize) -> Option<usize> {
    const WEB: [&str; 5] = ["http", "https", "ws", "wss", "ftp"];
    let (before, from) = (&text[..at], &text[at..]);
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
            ("//evil.net/x", true),
            ("//example.org/x", false),
            (" \n//evil.net", true),
            ("///EVIL.NET.:8080?q", true),
            ("/\\evil.net/x", true),
            ("\\\\evil.net\\x", true),
            ("//evil.net\\@example.org/", true),
            ("//example.org@evil.net", true),
            ("//10.1.2.3/x", true),
            ("//0x7f000001/x", true),
            ("//[2001:db8::1]/x", true),
            ("//[::1]/x", false),
            ("//evil。net/x", true),
            ("//evil.xn--p1ai/x", true),
            ("// comment, as on evil.net", false),
            ("//TODO fix", false),
            ("//TODO: see evil.net", false),
            ("//nolint:errcheck", false),
            ("//@ts-ignore", false),
            ("//e.g. this", false),
            ("//v1.2 of it", false),
            ("//console.log(x);", false),
            ("//[x] done", false),
            ("//depot/main/file.c", false),
            ("//localhost/x", false),
            ("//", false),
            ("x = 1; //self.count", false),
            ("ssh://git@evil.net/x", true),
            ("https://", true),
        ];
        for (text, leaves) in rows {
            assert_eq!(hosts.are_left(text), leaves, "{text}");
        }
    }
}
