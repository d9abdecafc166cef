//! References to images, sounds and files in messages, shown without their bytes.
//!
//! The crates that show, search or send messages agree here on a `data:` URI, and on the text in its place.

/// Returns the head of a `data:` URI, up to its comma. Returns `None` for any other address.
///
/// ```
/// use emitree_emitter::media::data_head;
///
/// assert_eq!(data_head("data:image/png;base64,iVBORw0KGgo="), Some("data:image/png;base64,"));
/// assert_eq!(data_head("https://example.com/a,b.png"), None);
/// ```
#[must_use]
pub fn data_head(uri: &str) -> Option<&str> {
    const SCHEME: &str = "data:";
    uri.get(..SCHEME.len()).filter(|scheme| scheme.eq_ignore_ascii_case(SCHEME))?;
    uri.find(',').map(|comma| &uri[..=comma])
}

/// Describes content: its type, and the size of a `data:` URI, or else the address.
///
/// ```
/// use emitree_emitter::media::label;
///
/// let png = "data:image/png;base64,iVBORw0KGgo=";
/// assert_eq!(label("image", Some("image/png"), png), "image/png, 8 B");
/// assert_eq!(label("image", None, png), "image/png, 8 B");
/// assert_eq!(label("document", Some("application/pdf"), "https://host/a.pdf"), "document, application/pdf, https://host/a.pdf");
/// ```
#[must_use]
pub fn label(modality: &str, mime_type: Option<&str>, uri: &str) -> String {
    let head = data_head(uri);
    let of_head =
        || head.and_then(|head| head["data:".len()..].split([';', ',']).next()).filter(|mime| !mime.is_empty());
    let kind = match mime_type.or_else(of_head) {
        None => modality.to_owned(),
        // `image/png` says that it is an image.
        Some(mime) if mime.split_once('/').is_some_and(|(kind, _)| kind == modality) => mime.to_owned(),
        Some(mime) => format!("{modality}, {mime}"),
    };
    match head {
        Some(head) => format!("{kind}, {}", size(bytes(head, &uri[head.len()..]))),
        None => format!("{kind}, {uri}"),
    }
}

/// Returns the number of bytes that the data of a URI encodes.
fn bytes(head: &str, data: &str) -> usize {
    let is_base64 =
        head.trim_end_matches(',').rsplit(';').next().is_some_and(|last| last.eq_ignore_ascii_case("base64"));
    if is_base64 {
        return data.trim_end_matches('=').len() * 3 / 4;
    }
    data.len() - 2 * data.matches('%').count().min(data.len() / 3)
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} KB", bytes.div_ceil(1_000)),
        _ => format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_data_uri_with_a_comma_has_a_head_and_a_size() {
        for (uri, head, expected) in [
            ("data:,a%20b", Some("data:,"), "image, 3 B"),
            ("DATA:text/plain;charset=utf-8,é,x", Some("DATA:text/plain;charset=utf-8,"), "image, text/plain, 4 B"),
            ("data:;base64,AAAA", Some("data:;base64,"), "image, 3 B"),
            ("data:image/png", None, "image, data:image/png"),
            ("datä:,a", None, "image, datä:,a"),
            ("", None, "image, "),
        ] {
            assert_eq!((data_head(uri), &*label("image", None, uri)), (head, expected), "{uri}");
        }
    }

    #[test]
    fn a_size_is_rounded() {
        let label = |bytes: usize| {
            label("image", Some("image/png"), &format!("data:image/png;base64,{}", "A".repeat(bytes / 3 * 4)))
        };
        assert_eq!(label(999), "image/png, 999 B");
        assert_eq!(label(12_000), "image/png, 12 KB");
        assert_eq!(label(1_260_000), "image/png, 1.2 MB");
    }
}
