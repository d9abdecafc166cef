//! The files of the page. The server sends them as they are, and the export puts them into one file.
//!
//! The page is plain JavaScript in classic scripts, with types in comments: no build, no framework, so the export can put
//! the files into one page as they are. `model.js` uses no document, so node tests it.

/// A file that `index.html` refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asset {
    pub(crate) name: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) text: &'static str,
}

pub(crate) const INDEX: &str = include_str!("../page/index.html");

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The scripts, in the order in which the page loads them, after the style.
pub(crate) const ASSETS: [Asset; 10] = [
    Asset { name: "style.css", media_type: "text/css; charset=utf-8", text: include_str!("../page/style.css") },
    Asset { name: "model.js", media_type: SCRIPT, text: include_str!("../page/model.js") },
    Asset { name: "format.js", media_type: SCRIPT, text: include_str!("../page/format.js") },
    Asset { name: "search.js", media_type: SCRIPT, text: include_str!("../page/search.js") },
    Asset { name: "list.js", media_type: SCRIPT, text: include_str!("../page/list.js") },
    Asset { name: "timeline.js", media_type: SCRIPT, text: include_str!("../page/timeline.js") },
    Asset { name: "tabs.js", media_type: SCRIPT, text: include_str!("../page/tabs.js") },
    Asset { name: "view.js", media_type: SCRIPT, text: include_str!("../page/view.js") },
    Asset { name: "keys.js", media_type: SCRIPT, text: include_str!("../page/keys.js") },
    Asset { name: "live.js", media_type: SCRIPT, text: include_str!("../page/live.js") },
];

impl Asset {
    /// Returns the line of `index.html` that loads this file.
    pub(crate) fn tag(&self) -> String {
        match self.name.ends_with(".css") {
            true => format!("<link rel=\"stylesheet\" href=\"{}\">\n", self.name),
            false => format!("<script src=\"{}\"></script>\n", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_each_file_once_in_the_order_of_the_list() {
        let places: Vec<_> = ASSETS.iter().map(|asset| INDEX.find(&asset.tag())).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
        let loaded = INDEX.matches("src=").count() + INDEX.matches("rel=\"stylesheet\"").count();
        assert_eq!(loaded, ASSETS.len());
    }

    #[test]
    fn no_file_would_end_the_element_that_contains_it_in_an_exported_page() {
        for Asset { name, text, .. } in ASSETS {
            let text = text.to_lowercase();
            assert!(!text.contains("</script") && !text.contains("</style") && !text.contains("<!--"), "{name}");
        }
    }
}
