"""What release.yml does to the README before it builds. PyPI shows the page as readme_renderer makes it."""

import re

from interpreter import ROOT, python
from readme_renderer import markdown

REPOSITORY, TAG = "https://github.com/somebody/cw-plugin", "v1.2.3"


def test_links_and_pictures_of_the_readme_work_on_pypis_page(tmp_path):
    """They are absolute, and lead to files of this repository, or to headings of the page."""
    page = tmp_path / "README.md"
    page.write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    result = python(ROOT / ".github" / "absolute_links.py", page, REPOSITORY, TAG)
    assert result.returncode == 0, result.stderr
    html = markdown.render(page.read_text(encoding="utf-8"))
    links = re.findall(r'<a [^>]*href="(?!#user-content)([^"]*)"', html)  # but for each heading's link to itself
    pictures = re.findall(r'<img [^>]*src="([^"]*)"', html)
    assert len(links) > 15 and len(pictures) == 3
    headings = re.findall(r"^#+ (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for view, targets in (("blob", links), ("raw", pictures)):
        for target in targets:
            assert target.startswith("https://"), target
            if target.startswith(REPOSITORY):
                path, _, anchor = target.removeprefix(f"{REPOSITORY}/{view}/{TAG}/").partition("#")
                assert (ROOT / path).exists(), target
                assert path != "README.md" or anchor in anchors, target
