"""The sources of the site, and the check of its links. See `scripts/site`.

    site.py sources FOLDER    writes the book's sources: the pages of docs/, whose order is that of docs/README.md
    site.py check FOLDER      checks every link and anchor of the built pages
"""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/emitree/emitree/blob/main/"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def outside_code(page, change):
    """Changes the text of a page outside of code blocks."""
    parts = re.split(r"(?ms)(^```.*?^```$)", page)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def to_repository(match):
    """A link out of docs/ leads to the repository, because the book has only these pages."""
    target = match.group(1)
    if not target.startswith("../"):
        return match.group(0)
    return f"]({REPOSITORY}{target.removeprefix('../')})"


def summary(readme):
    """Returns the table of contents: the headings of docs/README.md, and the links below them. Of an item of a list, only
    the first link counts, because the others belong to its description."""
    lines = ["# Summary", "", "[All pages](README.md)"]
    listed = {"README.md"}
    for paragraph in readme.split("\n\n")[1:]:
        if paragraph.startswith("## "):
            lines += ["", "# " + paragraph.removeprefix("## "), ""]
        items = re.split(r"(?m)^(?:-|\d+\.) ", paragraph)
        for item in items:
            links = re.findall(r"\[([^\]]+)\]\(([\w-]+\.md)\)", item)
            for title, page in links[:1] if len(items) > 1 else links:
                if page not in listed and len(lines) > 3:
                    listed.add(page)
                    lines.append(f"- [{' '.join(title.split())}]({page})")
    others = sorted(page.name for page in DOCS.glob("*.md") if page.name not in listed)
    if others:
        sys.exit(f"docs/README.md does not list {', '.join(others)}")
    return "\n".join(lines) + "\n"


def sources(folder):
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "src").mkdir(parents=True)
    for page in DOCS.iterdir():
        if page.suffix == ".md":
            text = outside_code(page.read_text(), lambda part: LINK.sub(to_repository, part))
            if page.name == "README.md":
                text += "\nThe [documentation of all crates](api/emitree/index.html) is beside this book.\n"
            (folder / "src" / page.name).write_text(text)
        elif page.suffix == ".png":
            shutil.copy(page, folder / "src")
    (folder / "src" / "SUMMARY.md").write_text(summary((DOCS / "README.md").read_text()))
    shutil.copy(DOCS / "site" / "book.toml", folder)
    rule = re.search(r"(?s):root \{.*?\n\}", (ROOT / "viewer/page/style.css").read_text()).group(0)
    colors = "\n".join(re.findall(r"(?m)^ *--[\w-]+: light-dark.*;$", rule))
    (folder / "site.css").write_text(f":root {{\n{colors}\n}}\n\n" + (DOCS / "site" / "site.css").read_text())


class Page(html.parser.HTMLParser):
    """The ids and the links of a page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.add(attributes["id"])
        for name in ("href", "src", "srcset"):
            if attributes.get(name) and tag in ("a", "img", "link", "script", "source"):
                self.links.append(attributes[name])


def check(folder):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    known = set(tracked) | {str(parent) for path in tracked for parent in pathlib.PurePath(path).parents}
    pages = {}

    def page_of(path):
        if path not in pages:
            pages[path] = Page(path)
        return pages[path]

    faults, count = [], 0
    for path in sorted(folder.glob("*.html")):
        # The page with all pages repeats them, with relative anchors.
        if path.name in ("print.html", "toc.html", "404.html"):
            continue
        for link in page_of(path).links:
            count += 1
            url = urllib.parse.urlsplit(link)
            if link.startswith(REPOSITORY):
                if urllib.parse.unquote(link.removeprefix(REPOSITORY)).split("#")[0].rstrip("/") not in known:
                    faults.append(f"{path.name}: {link} is not in the repository")
                continue
            if url.scheme or url.netloc:
                continue
            target = path.parent / urllib.parse.unquote(url.path) if url.path else path
            if not target.exists():
                faults.append(f"{path.name}: {link} does not exist")
            elif url.fragment and target.suffix == ".html":
                if urllib.parse.unquote(url.fragment) not in page_of(target).ids:
                    faults.append(f"{path.name}: {link} has no such anchor")
    print(f"{count} links in {len(pages)} pages")
    if faults or count < 500:
        sys.exit("\n".join(faults) or "the pages have too few links")


if __name__ == "__main__":
    {"sources": sources, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
